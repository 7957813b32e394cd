"""Weak and strong views: each operation against Pillow, crops and holes against their definition."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from osscl.vision import randaugment as operations
from osscl.vision.augment import DRAWS
from osscl.vision.randaugment import WeakAugmentation, light, shifted, strong_view, weak_view, with_hole

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 3, 16, 16), dtype=np.uint8)
PIXELS[0] = PIXELS[0] // 4 + 60  # of low contrast
PIXELS[1, 0] = 77  # one channel without any
X = torch.from_numpy(PIXELS).float() / 255


def pillow(function, index):
    picture = Image.fromarray(PIXELS[index].transpose(1, 2, 0))
    return torch.from_numpy(np.array(function(picture))).permute(2, 0, 1).float() / 255


def near(ours, theirs, levels=1.01):
    return (ours - theirs).abs().max() <= levels / 255


def column(value):
    return torch.full((len(X), 1, 1, 1), float(value))


@pytest.mark.parametrize(
    ("name", "strength", "signed", "theirs"),
    [
        ("autocontrast", 0, 0, ImageOps.autocontrast),
        ("equalize", 0, 0, ImageOps.equalize),
        ("solarize", 0.5, 0, lambda p: ImageOps.solarize(p, 128)),
        ("posterize", 0.5, 0, lambda p: ImageOps.posterize(p, 6)),
        ("saturate", 0, 0.5, lambda p: ImageEnhance.Color(p).enhance(1.45)),
        ("contrast", 0, -0.5, lambda p: ImageEnhance.Contrast(p).enhance(0.55)),
        ("brighten", 0, 0.5, lambda p: ImageEnhance.Brightness(p).enhance(1.45)),
        ("sharpen", 0, 0.8, lambda p: ImageEnhance.Sharpness(p).enhance(1.72)),
    ],
)
def test_each_operation_equals_pillows(name, strength, signed, theirs):
    ours = operations.CHANGES[name](X, column(strength), column(signed))
    for i in range(len(X)):
        assert near(ours[i], pillow(theirs, i), levels=2.01), (name, i)
    assert name == "autocontrast" or not torch.equal(ours, X)


def test_every_operation_is_drawn_and_applied_alone():
    kinds = len(operations.MOVES) + len(operations.CHANGES) + 1
    which = (torch.arange(kinds) + 0.5) / kinds
    x = X[2:3].expand(kinds, -1, -1, -1)
    out = operations.random_operation(x, which, torch.full((kinds,), 0.75), torch.ones(kinds))
    assert torch.equal(out[-1], x[-1])
    for i, change in enumerate(operations.CHANGES.values(), len(operations.MOVES)):
        assert torch.equal(out[i : i + 1], change(X[2:3], column(0.7)[:1], column(0.7)[:1]))
    assert not any(torch.equal(out[i], x[i]) for i in range(len(operations.MOVES)))


def test_a_translation_moves_by_whole_pixels_and_fills_with_black():
    kinds = len(operations.MOVES) + len(operations.CHANGES) + 1
    which = torch.tensor([(operations.MOVES.index("translate_x") + 0.5) / kinds])
    out = operations.random_operation(X[:1], which, torch.tensor([0.95]), torch.ones(1))
    moved = int(0.3 * 16 * 0.9)
    assert torch.equal(out[..., :-moved], X[:1, :, :, moved:])
    assert not out[..., -moved:].any()


def test_a_shift_is_a_crop_of_the_padded_image():
    padded = torch.nn.functional.pad(X, (2, 2, 2, 2))
    across, down = torch.tensor([0.0, 0.39, 0.41, 0.61, 0.99, 0.5]), torch.tensor([0.99, 0.5, 0.0, 0.3, 0.7, 0.5])
    flipped = torch.tensor([False, True, False, True, False, False])
    out = shifted(X, across, down, flipped)
    for i in range(len(X)):
        left, top = int(across[i] * 5), int(down[i] * 5)
        expected = padded[i, :, top : top + 16, left : left + 16]
        assert torch.equal(out[i], expected.flip(-1) if flipped[i] else expected)
    assert torch.equal(out[5], X[5])


def test_light_changes_brightness_and_contrast_in_either_order():
    spec = WeakAugmentation(brightness=0.5, contrast=0.5)
    u = torch.tensor([[0.75, 0.25, 0.0], [0.75, 0.25, 1.0]])
    one, other = light(X[2:3].expand(2, -1, -1, -1), u, spec)
    bright = (1.25 * X[2]).clamp(0, 1)
    grey = (torch.tensor([0.299, 0.587, 0.114])[:, None, None] * bright).sum(0).mean()
    assert torch.allclose(one, (0.75 * bright + 0.25 * grey).clamp(0, 1), atol=1e-6)
    assert not torch.allclose(one, other)


def test_a_hole_is_grey_and_half_as_wide_as_the_image():
    out = with_hole(X, torch.full((6,), 0.5), torch.full((6,), 0.5))
    assert torch.all(out[:, :, 4:12, 4:12] == 0.5)
    outside = torch.ones(16, 16, dtype=torch.bool)
    outside[4:12, 4:12] = False
    assert torch.equal(out[..., outside], X[..., outside])
    corner = with_hole(X, torch.zeros(6), torch.zeros(6))
    assert torch.all(corner[:, :, :4, :4] == 0.5) and torch.equal(corner[:, :, 4:], X[:, :, 4:])


def test_views_depend_only_on_their_random_numbers_and_stay_in_range():
    images, spec = torch.from_numpy(PIXELS), WeakAugmentation(brightness=63 / 255, contrast=0.8)
    u = torch.rand(6, DRAWS, generator=torch.Generator().manual_seed(0))
    for view in (weak_view, strong_view):
        assert torch.equal(view(images, u, spec), view(images, u, spec))
        assert view(images, u, spec).min() >= 0 and view(images, u, spec).max() <= 1
        alone = torch.cat([view(images[i : i + 1], u[i : i + 1], spec) for i in range(6)])
        assert torch.allclose(alone, view(images, u, spec), atol=1e-6)
    v = u.clone()
    v[:, :8] = 0.5
    assert torch.equal(weak_view(images, u, spec), weak_view(images, v, spec))  # a strong view's own numbers


def test_one_channel_is_supported():
    images = torch.from_numpy(PIXELS[:, :1])
    u = torch.rand(6, DRAWS, generator=torch.Generator().manual_seed(1))
    assert strong_view(images, u, WeakAugmentation(0, 0.2, 0.2)).shape == (6, 1, 16, 16)
