"""The fourteen operations of RandAugment on image batches, each image with an operation and a level of its own."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.vision.augment import luma

MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
LEVELS = 10
STRONGEST = 0.9  # the range of factors that enhance: 1 - .9 to 1 + .9


def random_operation(x: Tensor, which: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """One operation of each image; `which`, `level` and `sign` are uniform numbers, (n,) each."""
    names = (*MOVES, *CHANGES)
    kind = (which * (len(names) + 1)).long().view(-1, 1, 1, 1)  # the last kind leaves the image as it is
    strength = (level * LEVELS).floor() / LEVELS
    signed = torch.where(sign < 0.5, -strength, strength)
    moved = warp(x, torch.stack([move(signed) for move in _moves(x.shape[-1])], 1), kind.flatten())
    changed = x
    for number, change in enumerate(CHANGES.values(), len(MOVES)):
        changed = torch.where(kind == number, change(x, strength.view(-1, 1, 1, 1), signed.view(-1, 1, 1, 1)), changed)
    return torch.where(kind < len(MOVES), moved, changed)


def _moves(size: int) -> list[Callable[[Tensor], Tensor]]:
    """The first two rows of each move's affine map, (n, 2, 3), in the coordinates of grid_sample."""

    def affine(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor, f: Tensor) -> Tensor:
        return torch.stack((a, b, c, d, e, f), 1).view(-1, 2, 3)

    def rotate(s: Tensor) -> Tensor:
        angle, zero = torch.deg2rad(30 * s), torch.zeros_like(s)
        return affine(angle.cos(), -angle.sin(), zero, angle.sin(), angle.cos(), zero)

    def shear_x(s: Tensor) -> Tensor:
        one, zero = torch.ones_like(s), torch.zeros_like(s)
        return affine(one, 0.3 * s, zero, zero, one, zero)

    def shear_y(s: Tensor) -> Tensor:
        one, zero = torch.ones_like(s), torch.zeros_like(s)
        return affine(one, zero, zero, 0.3 * s, one, zero)

    def translate_x(s: Tensor) -> Tensor:
        one, zero = torch.ones_like(s), torch.zeros_like(s)
        return affine(one, zero, (0.3 * size * s).trunc() * 2 / size, zero, one, zero)

    def translate_y(s: Tensor) -> Tensor:
        one, zero = torch.ones_like(s), torch.zeros_like(s)
        return affine(one, zero, zero, zero, one, (0.3 * size * s).trunc() * 2 / size)

    return [rotate, shear_x, shear_y, translate_x, translate_y]


def warp(x: Tensor, maps: Tensor, kind: Tensor) -> Tensor:
    """Each image under the map of its kind, (n, moves, 2, 3), to the nearest pixel; black where nothing was."""
    chosen = maps[torch.arange(len(x), device=x.device), kind.clamp(max=maps.shape[1] - 1)]
    grid = F.affine_grid(chosen, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def autocontrast(x: Tensor, *_: Tensor) -> Tensor:
    """Each channel stretched to the whole range."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def equalize(x: Tensor, *_: Tensor) -> Tensor:
    """Each channel's values spread evenly, by its histogram of 256 values."""
    values = (255 * x).round().long().flatten(2)
    counts = torch.zeros(*values.shape[:2], 256, device=x.device).scatter_add_(
        2, values, torch.ones_like(values, dtype=x.dtype)
    )
    highest = counts.gather(2, values.amax(2, keepdim=True))
    step = ((values.shape[2] - highest) / 255).floor()
    table = (((counts.cumsum(2) - counts) + (step / 2).floor()) / step.clamp(min=1)).floor().clamp(0, 255)
    spread = table.gather(2, values).view_as(x) / 255
    return torch.where(step[..., None] > 0, spread, x)


def solarize(x: Tensor, strength: Tensor, _: Tensor) -> Tensor:
    """Values above a threshold inverted; the stronger, the lower the threshold."""
    return torch.where(x > 1 - strength, 1 - x, x)


def posterize(x: Tensor, strength: Tensor, _: Tensor) -> Tensor:
    """Eight to five bits a value."""
    unit = 2.0 ** (4 * strength).floor()
    return ((255 * x).round() / unit).floor() * unit / 255


def saturate(x: Tensor, _: Tensor, signed: Tensor) -> Tensor:
    return enhance(x, luma(x) if x.shape[1] == 3 else x, signed)


def contrast(x: Tensor, _: Tensor, signed: Tensor) -> Tensor:
    grey = luma(x) if x.shape[1] == 3 else x
    return enhance(x, grey.mean((2, 3), keepdim=True), signed)


def brighten(x: Tensor, _: Tensor, signed: Tensor) -> Tensor:
    return enhance(x, torch.zeros_like(x), signed)


def sharpen(x: Tensor, _: Tensor, signed: Tensor) -> Tensor:
    """Away from, or towards, a smoothed image; the border stays, as Pillow has it."""
    kernel = 1 + F.pad(torch.full((1, 1), 4.0, device=x.device), (1, 1, 1, 1))  # no copy from the host: it is captured
    channels = x.shape[1]
    smooth = F.conv2d(x, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    return enhance(x, F.pad(smooth, (1, 1, 1, 1)) + _border(x), signed)


def _border(x: Tensor) -> Tensor:
    return x - F.pad(x[..., 1:-1, 1:-1], (1, 1, 1, 1))


def enhance(x: Tensor, plain: Tensor, signed: Tensor) -> Tensor:
    """From the plain image through x and beyond, as Pillow's enhancers do."""
    factor = 1 + STRONGEST * signed
    return (plain + factor * (x - plain)).clamp(0, 1)


CHANGES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "solarize": solarize,
    "posterize": posterize,
    "saturate": saturate,
    "contrast": contrast,
    "brighten": brighten,
    "sharpen": sharpen,
}
