"""The weak and the strong views of classifiers: pad and crop, flip, jitter; random operations and a hole on top.

As in `augment`, a view is a function of an image and of one row of uniform numbers. The first eight of them make a view
strong, the others are the weak view's, so both views of an image may differ in all that is random.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.device import fused
from osscl.frozen import require
from osscl.vision.augment import luma
from osscl.vision.operations import random_operation

PADDING = 8  # a border of an eighth of the side is what a crop may move by: 4 pixels at 32
OPERATIONS = 2  # of a strong view


@dataclass(frozen=True)
class WeakAugmentation:
    """Pad, crop and flip; brightness and contrast where strengths are given, as GD and DM do."""

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
    """A weak view that two random operations and a hole of half the side have gone over."""
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
    """Each image moved by a whole number of pixels, black where nothing was, and mirrored where `flipped`."""
    size, border = x.shape[-1], max(1, x.shape[-1] // PADDING)
    at = torch.arange(size, device=x.device)
    columns = (across * (2 * border + 1)).long()[:, None] + torch.where(flipped[:, None], size - 1 - at, at)
    rows = (down * (2 * border + 1)).long()[:, None] + at
    padded = F.pad(x, (border,) * 4)
    picked = padded.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[3]))
    return picked.gather(3, columns[:, None, None, :].expand(-1, x.shape[1], size, -1))


def light(x: Tensor, u: Tensor, spec: WeakAugmentation) -> Tensor:
    """Brightness and contrast by random factors, in an order of each image's own; `u` is (n, 3)."""
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
    """A grey square of half the side around a random place, cut off at the image's border (Cutout)."""
    size = x.shape[-1]
    at = torch.arange(size, device=x.device)
    columns, rows = (
        (at >= (place * size).floor()[:, None] - size // 4) & (at < (place * size).floor()[:, None] + size // 4)
        for place in (across, down)
    )
    return torch.where((rows[:, None, :, None] & columns[:, None, None, :]), 0.5, x)
