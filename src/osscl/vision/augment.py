"""Random views of image batches, computed where the images are.

A view is a function of the image and of `DRAWS` uniform numbers, one row per image: the same numbers always
make the same view, and a CUDA graph can be fed new ones.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from osscl.config import require, require_declared
from osscl.device import fused

TRIES = 4  # Deviation: torchvision tries ten crops; with four, fewer than one image in a thousand needs the fallback
DRAWS = 2 * TRIES + 10
IN_CACHE = 64  # images at a time on a CPU, so that a chain of elementwise operations stays in its cache
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601, as in Pillow's mode L


@dataclass(frozen=True)
class Augmentation:
    """Random resized crop, flip, colour jitter, greyscale; the defaults are the paper's (Appendix, Augmentations)."""

    scale: tuple[float, float] = (0.2, 1.0)  # share of the image's area that a crop keeps
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5  # probabilities
    jitter: float = 0.8
    brightness: float = 0.4  # strengths
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1
    grey: float = 0.2

    def __post_init__(self) -> None:
        require_declared(self)
        require(0 < self.scale[0] <= self.scale[1] <= 1, self, "scale", "0 < low <= high <= 1")
        require(0 < self.ratio[0] <= self.ratio[1], self, "ratio", "0 < low <= high")
        for name in ("flip", "jitter", "grey"):
            require(0 <= getattr(self, name) <= 1, self, name, "a probability in [0, 1]")
        for name in ("brightness", "contrast", "saturation"):
            require(0 <= getattr(self, name) <= 1, self, name, "a strength in [0, 1]")
        require(0 <= self.hue <= 0.5, self, "hue", "a strength in [0, 0.5]")


def draws(n: int, rng: Generator) -> Tensor:
    """The uniform random numbers of `n` views, (n, DRAWS)."""
    return torch.rand(n, DRAWS, generator=rng, device=rng.device)


def two_views(images: Tensor, u: Tensor, spec: Augmentation) -> Tensor:
    """Two views of each image, (2n, c, s, s) in [0, 1]; rows i and i+n belong together. `u` is (2n, DRAWS)."""
    return augment(images.repeat(2, 1, 1, 1), u, spec)


@torch.no_grad()  # outside the compiled part: a compiled graph is bound to the mode it is called in
def augment(images: Tensor, u: Tensor, spec: Augmentation) -> Tensor:
    """One view of each image: (n, c, s, s) uint8 and (n, DRAWS) to (n, c, s, s) float in [0, 1]."""
    if images.is_cuda or len(images) <= IN_CACHE:
        return _augment(images, u, spec)
    return torch.cat([_augment(x, v, spec) for x, v in zip(images.split(IN_CACHE), u.split(IN_CACHE), strict=True)])


@fused
def _augment(images: Tensor, u: Tensor, spec: Augmentation) -> Tensor:
    left, top, width, height = crop_boxes(u, images.shape[-1], spec)
    x = crop(images.float() / 255, left, top, width, height, flipped=u[:, 8] < spec.flip)
    if spec.jitter > 0 and images.shape[1] == 3:
        x = jitter(x, u[:, 11:17], spec)
    if spec.grey > 0 and images.shape[1] == 3:
        x = torch.where((u[:, 17] < spec.grey).view(-1, 1, 1, 1), luma(x), x)
    return x


def crop_boxes(u: Tensor, size: int, spec: Augmentation) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Left, top, width and height in whole pixels: the first of the tries that fits, else the whole image."""
    low, high = spec.scale
    area = size**2 * (low + u[:, :TRIES] * (high - low))
    log_low, log_high = math.log(spec.ratio[0]), math.log(spec.ratio[1])
    ratio = torch.exp(log_low + u[:, TRIES : 2 * TRIES] * (log_high - log_low))
    widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
    width = height = torch.full_like(widths[:, 0], size)
    for k in reversed(range(TRIES)):
        w, h = widths[:, k], heights[:, k]
        fits = (torch.minimum(w, h) >= 1) & (torch.maximum(w, h) <= size)
        width, height = torch.where(fits, w, width), torch.where(fits, h, height)
    left, top = (u[:, 9] * (size - width + 1)).floor(), (u[:, 10] * (size - height + 1)).floor()
    return left, top, width, height


def crop(x: Tensor, left: Tensor, top: Tensor, width: Tensor, height: Tensor, flipped: Tensor) -> Tensor:
    """Cut each image's box out, scale it to the full size bilinearly and mirror it where `flipped`."""
    n, size = len(x), x.shape[-1]
    at = torch.arange(size, device=x.device, dtype=torch.float32) + 0.5
    across = torch.where(flipped[:, None], size - at, at)
    # The clamp keeps pixels outside the box from mixing in, as if it were cut out before resizing.
    gx = (left[:, None] + across * width[:, None] / size).clamp(left[:, None] + 0.5, (left + width)[:, None] - 0.5)
    gy = (top[:, None] + at * height[:, None] / size).clamp(top[:, None] + 0.5, (top + height)[:, None] - 0.5)
    grid = torch.stack((gx[:, None, :].expand(n, size, size), gy[:, :, None].expand(n, size, size)), -1)
    return F.grid_sample(x, grid * (2 / size) - 1, mode="bilinear", padding_mode="border", align_corners=False)


def jitter(x: Tensor, u: Tensor, spec: Augmentation) -> Tensor:
    """Brightness, contrast, saturation and hue, in a random order per image; `u` is (n, 6)."""
    on = u[:, 0] < spec.jitter
    factors = [
        torch.where(on, 1 + (2 * u[:, 1 + i] - 1) * strength, torch.ones_like(u[:, 0]))
        for i, strength in enumerate((spec.brightness, spec.contrast, spec.saturation))
    ]
    order = (u[:, 5] * 24).long().clamp(max=23)
    hue_slot, permutation = order % 4, order // 4
    odd = permutation % 2
    first = permutation // 2
    slots = (first, (first + 1 + odd) % 3, (first + 2 - odd) % 3)  # the six orders of three, without a table
    for i, kind in enumerate(slots):
        x = blend(x, kind, factors, active=hue_slot > i)
    x = shift_hue(x, torch.where(on, (2 * u[:, 4] - 1) * spec.hue, torch.zeros_like(u[:, 0])))
    for i, kind in enumerate(slots):
        x = blend(x, kind, factors, active=hue_slot <= i)
    return x


def blend(x: Tensor, kind: Tensor, factors: list[Tensor], active: Tensor) -> Tensor:
    """Mix each image with black (kind 0: brightness), its mean grey (1: contrast) or its grey (2: saturation)."""
    factor = torch.where(kind == 0, factors[0], torch.where(kind == 1, factors[1], factors[2]))
    factor = torch.where(active, factor, torch.ones_like(factor)).view(-1, 1, 1, 1)
    kind = kind.view(-1, 1, 1, 1)
    grey = luma(x)
    other = torch.where(
        kind == 1, grey.mean((2, 3), keepdim=True), torch.where(kind == 2, grey, torch.zeros_like(grey))
    )
    return (factor * x + (1 - factor) * other).clamp(0, 1)


def luma(x: Tensor) -> Tensor:
    """Grey value of each pixel, (n, 1, s, s)."""
    return LUMA[0] * x[:, 0:1] + LUMA[1] * x[:, 1:2] + LUMA[2] * x[:, 2:3]


def shift_hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of each image by `shift` of a full circle, in HSV."""
    red, green, blue = x.unbind(1)
    value, low = x.amax(1), x.amin(1)
    chroma = value - low
    safe = chroma.clamp(min=1e-8)
    sextant = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sextant = sextant + 6 * shift.view(-1, 1, 1)
    faces = []
    for offset in (5, 3, 1):
        k = torch.remainder(offset + sextant, 6)
        faces.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(faces, 1)
