"""Weak and strong views for classifiers: padded crops, flips, jitter, RandAugment and Cutout."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import require
from osscl.device import fused
from osscl.vision.augment import luma

MOVES = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
LEVELS = 10
STRONGEST = 0.9  # enhancement factors range from 1 - .9 to 1 + .9


def random_operation(x: Tensor, which: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """One random operation per image; `which`, `level` and `sign` are uniform random numbers, (n,) each."""
    names = (*MOVES, *CHANGES)
    kind = (which * (len(names) + 1)).long().view(-1, 1, 1, 1)  # the last kind is the identity
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
    """Each image under the map of its kind, (n, moves, 2, 3), nearest neighbour, black outside."""
    chosen = maps[torch.arange(len(x), device=x.device), kind.clamp(max=maps.shape[1] - 1)]
    grid = F.affine_grid(chosen, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def autocontrast(x: Tensor, *_: Tensor) -> Tensor:
    """Stretch each channel to the whole range."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-6), x)


def equalize(x: Tensor, *_: Tensor) -> Tensor:
    """Equalise each channel's histogram of 256 values."""
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
    """Invert values above a threshold, which falls with the level."""
    return torch.where(x > 1 - strength, 1 - x, x)


def posterize(x: Tensor, strength: Tensor, _: Tensor) -> Tensor:
    """Reduce values to between eight and five bits."""
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
    """Sharpen or smooth; the border stays, as in Pillow."""
    kernel = 1 + F.pad(
        torch.full((1, 1), 4.0, device=x.device), (1, 1, 1, 1)
    )  # built on the device: a copy from the host cannot be captured
    channels = x.shape[1]
    smooth = F.conv2d(x, (kernel / 13).expand(channels, 1, 3, 3), groups=channels)
    return enhance(x, F.pad(smooth, (1, 1, 1, 1)) + _border(x), signed)


def _border(x: Tensor) -> Tensor:
    return x - F.pad(x[..., 1:-1, 1:-1], (1, 1, 1, 1))


def enhance(x: Tensor, plain: Tensor, signed: Tensor) -> Tensor:
    """Interpolate from `plain` to x and beyond, as Pillow's enhancers do."""
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


PADDING = 8  # crops move by up to an eighth of the side: 4 pixels at 32
OPERATIONS = 2  # per strong view


@dataclass(frozen=True)
class WeakAugmentation:
    """Pad, crop and flip; brightness and contrast if strengths are given, as in GD and DM."""

    flip: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "brightness", "contrast"):
            require(0 <= getattr(self, name) <= 1, self, name, "in [0, 1]")


@torch.no_grad()
def weak_view(images: Tensor, u: Tensor, spec: WeakAugmentation) -> Tensor:
    """One view of each image: (n, c, s, s) uint8 and (n, DRAWS) to (n, c, s, s) float in [0, 1]."""
    return _weak_view(images, u, spec)


@torch.no_grad()
def strong_view(images: Tensor, u: Tensor, spec: WeakAugmentation) -> Tensor:
    """A weak view, then two random operations and a hole of half the side."""
    return _strong_view(images, u, spec)


@fused
def _weak_view(images: Tensor, u: Tensor, spec: WeakAugmentation) -> Tensor:
    x = shifted(images.float() / 255, u[:, 9], u[:, 10], flipped=u[:, 8] < spec.flip)
    if images.shape[1] == 3 and (spec.brightness or spec.contrast):
        x = light(x, u[:, 11:14], spec)
    return x


@fused
def _strong_view(images: Tensor, u: Tensor, spec: WeakAugmentation) -> Tensor:
    x = _weak_view.__wrapped__(images, u, spec)  # type: ignore[attr-defined]
    for i in range(OPERATIONS):
        x = random_operation(x, *u[:, 3 * i : 3 * i + 3].unbind(1))
    return with_hole(x, u[:, 6], u[:, 7])  # type: ignore[no-any-return]


def shifted(x: Tensor, across: Tensor, down: Tensor, flipped: Tensor) -> Tensor:
    """Each image shifted by whole pixels, black outside, and mirrored where `flipped`."""
    size, border = x.shape[-1], max(1, x.shape[-1] // PADDING)
    at = torch.arange(size, device=x.device)
    columns = (across * (2 * border + 1)).long()[:, None] + torch.where(flipped[:, None], size - 1 - at, at)
    rows = (down * (2 * border + 1)).long()[:, None] + at
    padded = F.pad(x, (border,) * 4)
    picked = padded.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[3]))
    return picked.gather(3, columns[:, None, None, :].expand(-1, x.shape[1], size, -1))


def light(x: Tensor, u: Tensor, spec: WeakAugmentation) -> Tensor:
    """Brightness and contrast by random factors, in a random order per image; `u` is (n, 3)."""
    bright, contrast = (
        (1 + (2 * u[:, i] - 1) * strength).view(-1, 1, 1, 1)
        for i, strength in enumerate((spec.brightness, spec.contrast))
    )
    first = (u[:, 2] < 0.5).view(-1, 1, 1, 1)
    x = torch.where(first, (bright * x).clamp(0, 1), x)
    grey = luma(x).mean((2, 3), keepdim=True)
    x = (contrast * x + (1 - contrast) * grey).clamp(0, 1)
    return torch.where(first, x, (bright * x).clamp(0, 1))


def with_hole(x: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """A grey square of half the side around a random point, cut at the border (Cutout)."""
    size = x.shape[-1]
    at = torch.arange(size, device=x.device)
    columns, rows = (
        (at >= (place * size).floor()[:, None] - size // 4) & (at < (place * size).floor()[:, None] + size // 4)
        for place in (across, down)
    )
    return torch.where((rows[:, None, :, None] & columns[:, None, None, :]), 0.5, x)
