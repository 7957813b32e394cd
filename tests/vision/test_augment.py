"""Augmentation against Pillow, colorsys and torchvision's rules, batch by batch."""

import colorsys
import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from osscl.errors import SpecError
from osscl.vision.augment import (
    DRAWS,
    IN_CACHE,
    TRIES,
    Augmentation,
    augment,
    blend,
    crop_boxes,
    draws,
    jitter,
    luma,
    shift_hue,
    two_views,
)
from refusals import naming

S = 16
STEP = 1 / 255
NOTHING = Augmentation(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=0.0, grey=0.0)
FLIP, LEFT, TOP, JITTER, BRIGHT, CONTRAST, SATURATION, HUE, ORDER, GREY = range(2 * TRIES, DRAWS)


def photos(n: int, size: int = S, channels: int = 3) -> Tensor:
    """Smooth random images: noise, enlarged."""
    noise = torch.randint(0, 256, (n, channels, 4, 4), generator=torch.Generator().manual_seed(0)).float()
    return torch.nn.functional.interpolate(noise, size, mode="bicubic").clamp(0, 255).to(torch.uint8)


def as_pil(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)


def from_pil(image: Image.Image) -> Tensor:
    array = np.atleast_3d(np.asarray(image))
    return torch.from_numpy(array.copy()).permute(2, 0, 1).float() / 255


def rounded(x: Tensor) -> Image.Image:
    return as_pil((x * 255).round().to(torch.uint8))


def middle(n: int = 1, **at: float) -> Tensor:
    """Draws that are all one half, but for those named by column."""
    u = torch.full((n, DRAWS), 0.5)
    for column, value in at.items():
        u[:, globals()[column]] = value
    return u


def turned(x: Tensor, shift: float) -> Tensor:
    """The hue of each pixel turned by colorsys, one pixel at a time."""
    out = torch.empty_like(x)
    for i, j in itertools.product(range(x.shape[1]), range(x.shape[2])):
        h, s, v = colorsys.rgb_to_hsv(*x[:, i, j].tolist())
        out[:, i, j] = torch.tensor(colorsys.hsv_to_rgb((h + shift) % 1.0, s, v))
    return out


def close(x: Tensor, y: Tensor, steps: float) -> bool:
    return (x - y).abs().max().item() <= steps * STEP


# ----- crop and flip


def box_draws(left: int, top: int, width: int, height: int, size: int) -> tuple[Tensor, Augmentation]:
    """Draws and a spec for which the crop is known: area and ratio cannot vary, the offsets hit the wanted pixel."""
    share, ratio = width * height / size**2, width / height
    u = middle(LEFT=(left + 0.5) / (size - width + 1), TOP=(top + 0.5) / (size - height + 1))
    return u, replace(NOTHING, scale=(share, share), ratio=(ratio, ratio))


@pytest.mark.parametrize(
    "box", [(0, 0, 16, 16), (0, 0, 8, 8), (3, 5, 9, 7), (5, 0, 11, 13), (8, 9, 8, 7), (15, 15, 1, 1)]
)
def test_a_crop_is_pillows_crop_and_bilinear_resize(box):
    left, top, width, height = box
    image = photos(1)
    u, spec = box_draws(*box, size=S)
    assert [int(part) for part in crop_boxes(u, S, spec)] == list(box)
    expected = as_pil(image[0]).crop((left, top, left + width, top + height)).resize((S, S), Image.Resampling.BILINEAR)
    assert close(augment(image, u, spec)[0], from_pil(expected), 1.01)


def test_the_whole_image_is_returned_unchanged():
    images = photos(4)
    assert close(augment(images, draws(4, torch.Generator().manual_seed(0)), NOTHING), images.float() / 255, 0.001)


@pytest.mark.parametrize("box", [(0, 0, 16, 16), (3, 5, 9, 7)])
def test_a_flip_is_pillows_mirror_of_the_crop(box):
    image = photos(1)
    u, spec = box_draws(*box, size=S)
    plain, flipped = augment(image, u, spec)[0], augment(image, u, replace(spec, flip=1.0))[0]
    assert close(flipped, from_pil(ImageOps.mirror(rounded(plain))), 0.51)
    assert not close(flipped, plain, 20)


def torchvision_box(rng: random.Random, size: int, spec: Augmentation) -> tuple[int, int, int, int]:
    """RandomResizedCrop's rule, written out: up to ten tries, then the whole of a square image."""
    for _ in range(10):
        area = size * size * rng.uniform(*spec.scale)
        ratio = math.exp(rng.uniform(math.log(spec.ratio[0]), math.log(spec.ratio[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= size and 0 < h <= size:
            return rng.randint(0, size - w), rng.randint(0, size - h), w, h
    return 0, 0, size, size


def largest_gap(one: list[float], two: list[float]) -> float:
    """Kolmogorov and Smirnov's distance of two samples."""
    points = np.unique(np.concatenate((one, two)))
    shares = [np.searchsorted(np.sort(sample), points, side="right") / len(sample) for sample in (one, two)]
    return float(np.abs(shares[0] - shares[1]).max())


@pytest.mark.parametrize(
    "spec", [Augmentation(), Augmentation(scale=(0.6, 1.0)), Augmentation(scale=(0.08, 0.5), ratio=(0.5, 2))]
)
def test_crops_are_distributed_as_in_torchvision(spec):
    n, size = 20_000, 32
    rng = random.Random(0)
    slow = np.array([torchvision_box(rng, size, spec) for _ in range(n)], dtype=float).T
    fast = torch.stack(crop_boxes(draws(n, torch.Generator().manual_seed(0)), size, spec)).double().numpy()
    for one, two in zip(slow, fast, strict=True):  # left, top, width, height
        assert largest_gap(one, two) < 0.02
    assert largest_gap(slow[2] * slow[3], fast[2] * fast[3]) < 0.02
    assert largest_gap(slow[2] / slow[3], fast[2] / fast[3]) < 0.02


def test_crops_stay_inside_the_image_and_are_never_empty():
    for size, spec in ((8, Augmentation(scale=(0.0001, 1.0))), (32, Augmentation(scale=(0.5, 1.0), ratio=(0.2, 5)))):
        left, top, width, height = crop_boxes(draws(5000, torch.Generator().manual_seed(1)), size, spec)
        assert min(left.min(), top.min()) >= 0
        assert min(width.min(), height.min()) >= 1
        assert max((left + width).max(), (top + height).max()) <= size


def test_the_first_crop_that_fits_is_used_and_the_whole_image_if_none_does():
    u, spec = middle(), Augmentation(scale=(0.0001, 1.0), ratio=(2.0, 2.0))
    u[:, :TRIES] = torch.tensor([1.0, 0.9, 0.3, 0.1])  # the first two areas do not fit at this ratio
    _, _, width, height = crop_boxes(u, S, spec)
    assert (int(width), int(height)) == (round(S * math.sqrt(0.6)), round(S * math.sqrt(0.15)))
    u[:, :TRIES] = 1.0
    assert [int(part) for part in crop_boxes(u, S, Augmentation(ratio=(2.0, 2.0)))] == [0, 0, S, S]


# ----- colours


def single(x: Tensor, kind: int, factor: float) -> Tensor:
    return blend(x[None], torch.tensor([kind]), [torch.tensor([factor])] * 3, active=torch.tensor([True]))[0]


ENHANCE = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)


@pytest.mark.parametrize("factor", [0.6, 0.85, 1.0, 1.15, 1.4])
@pytest.mark.parametrize("kind", range(3), ids=["brightness", "contrast", "saturation"])
def test_each_blend_is_pillows(kind, factor):
    for image in photos(4):
        assert close(
            single(image.float() / 255, kind, factor), from_pil(ENHANCE[kind](as_pil(image)).enhance(factor)), 1.5
        )


@pytest.mark.parametrize("shift", [-0.5, -0.1, -0.037, 0.0, 0.02, 0.1, 1 / 3, 0.5])
def test_a_hue_shift_is_colorsys_pixel_by_pixel(shift):
    corners = list(itertools.product((0.0, 1.0), repeat=3))
    special = torch.tensor([*corners, (0.5, 0.5, 0.5)])
    x = torch.cat((special.T.reshape(3, 1, 9), photos(1, 18)[0].float().div(255)[:, :8, :9]), 1)
    assert close(shift_hue(x[None], torch.tensor([shift]))[0], turned(x, shift), 0.01)


def test_grey_is_pillows_mode_l_in_all_three_channels():
    images = photos(6)
    views = augment(images, middle(6), replace(NOTHING, grey=1.0))
    for image, view in zip(images, views, strict=True):
        assert close(view, from_pil(as_pil(image).convert("L")).expand(3, -1, -1), 1.01)
    assert torch.equal(views[:, 0], views[:, 2])


STRONG = Augmentation(jitter=1.0, brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5)
FACTORS, SHIFT = (1.6, 1.7, 1.8), 0.2  # strong enough to be cut off at black and white: without that, blends commute
COLOURS = {"BRIGHT": 0.8, "CONTRAST": 0.85, "SATURATION": 0.9, "HUE": 0.7}


def by_hand(image: Tensor, order: tuple[int, ...]) -> Tensor:
    """Pillow's and colorsys' single operations, one after the other; 3 is the hue."""
    x = image.float() / 255
    for kind in order:
        x = turned(x, SHIFT) if kind == 3 else from_pil(ENHANCE[kind](rounded(x)).enhance(FACTORS[kind]))
    return x


def test_each_of_the_24_orders_of_colour_operations_is_applied_in_that_order():
    image = photos(1, 8)[0]
    u = middle(24, **COLOURS)
    u[:, ORDER] = (torch.arange(24) + 0.5) / 24
    found = jitter(image.expand(24, -1, -1, -1).float() / 255, u[:, JITTER:GREY], STRONG)
    expected = torch.stack([by_hand(image, order) for order in itertools.permutations(range(4))])
    distance = torch.cdist(found.flatten(1), expected.flatten(1), p=1) / found[0].numel()
    assert sorted(distance.argmin(1).tolist()) == list(range(24))
    nearest = distance.topk(2, 1, largest=False).values
    assert nearest[:, 0].max().item() < STEP  # Pillow rounds after every operation, we do not
    assert nearest[:, 1].min().item() > 1.2 * STEP


def test_orders_are_drawn_with_equal_probability():
    # Equal pieces of the unit interval: with 24 orders found above, every piece is one order.
    edges = torch.arange(25) / 24
    image = photos(1, 8).float() / 255
    u = middle(48, **COLOURS)
    u[:24, ORDER], u[24:, ORDER] = edges[:24] + 1e-4, edges[1:] - 1e-4
    found = jitter(image.expand(48, -1, -1, -1), u[:, JITTER:GREY], STRONG)
    assert torch.equal(found[:24], found[24:])
    assert len({x.numpy().tobytes() for x in found}) == 24


def test_factors_are_uniform_within_their_strengths():
    grey = torch.full((3, 3, 8, 8), 100, dtype=torch.uint8)
    u = middle(3)
    u[:, BRIGHT] = torch.tensor([0.0, 0.5, 1.0])
    spec = replace(NOTHING, jitter=1.0, brightness=0.4, contrast=0.0, saturation=0.0, hue=0.0)
    assert augment(grey, u, spec)[:, 0, 0, 0].mul(255).tolist() == pytest.approx([60, 100, 140], abs=1e-3)


@pytest.mark.parametrize(("name", "share"), [("flip", 0.5), ("jitter", 0.8), ("grey", 0.2)])
def test_the_share_of_changed_images_is_the_probability_and_the_rest_is_unchanged(name, share):
    images = photos(1, 8).expand(3000, -1, -1, -1)
    views = augment(images, draws(3000, torch.Generator().manual_seed(0)), replace(NOTHING, **{name: share}))
    distance = (views - images.float() / 255).abs().amax((1, 2, 3))
    assert bool(((distance < 0.01 * STEP) | (distance > 1e-4)).all())
    assert (distance > 1e-4).float().mean().item() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("name", ["flip", "jitter", "grey"])
def test_a_probability_of_zero_never_happens_and_of_one_always(name):
    images = photos(1).expand(64, -1, -1, -1)
    u = draws(64, torch.Generator().manual_seed(0))
    u[0] = 0.0
    plain = images.float() / 255
    assert close(augment(images, u, replace(NOTHING, **{name: 0.0})), plain, 0.001)
    always = augment(images, u, replace(NOTHING, **{name: 1.0}))
    assert (always - plain).abs().amax((1, 2, 3)).min().item() > STEP


# ----- batches


def test_each_view_depends_only_on_its_own_row_of_random_numbers():
    images, u = photos(1).expand(12, -1, -1, -1), draws(12, torch.Generator().manual_seed(0))
    together = augment(images, u, Augmentation())
    assert len({view.numpy().tobytes() for view in together}) == 12
    for i in range(12):
        torch.testing.assert_close(augment(images[i : i + 1], u[i : i + 1], Augmentation())[0], together[i])


@pytest.mark.parametrize("n", [0, 1, IN_CACHE, IN_CACHE + 1, 3 * IN_CACHE])
def test_a_batch_of_any_size_keeps_its_rows_in_order(n):
    images, u = photos(n), draws(n, torch.Generator().manual_seed(0))
    views = augment(images, u, Augmentation())
    assert views.shape == (n, 3, S, S)
    for i in {0, n // 2, n - 1} if n else ():
        torch.testing.assert_close(views[i], augment(images[i : i + 1], u[i : i + 1], Augmentation())[0])


def test_the_same_random_numbers_give_the_same_bits():
    images = photos(12)
    one, two = (augment(images, draws(12, torch.Generator().manual_seed(3)), Augmentation()) for _ in range(2))
    assert torch.equal(one, two)
    assert not torch.equal(one, augment(images, draws(12, torch.Generator().manual_seed(4)), Augmentation()))


def test_every_random_number_is_used_once():
    """No two parameters hang on one number: each column alone changes something that the others do not."""
    images, spec = photos(1), Augmentation()
    u = torch.full((1, DRAWS), 0.3)
    u[:, GREY] = 0.6
    base = augment(images, u, spec)
    unused = []
    for column in range(DRAWS):
        other = u.clone()
        other[:, column] = 0.1 if column == GREY else 0.9
        if torch.equal(augment(images, other, spec), base):
            unused.append(column)
    assert unused == [1, 2, 3, 5, 6, 7]  # the later tries at a crop, which the first makes needless here


def test_views_are_in_the_unit_interval_and_images_are_not_changed():
    images = photos(200)
    before = images.clone()
    views = augment(images, draws(200, torch.Generator().manual_seed(0)), STRONG)
    assert views.dtype == torch.float32
    assert views.min().item() >= 0 and views.max().item() <= 1 + 1e-6
    assert torch.equal(images, before)


def test_two_views_pair_rows_i_and_i_plus_n():
    images, u = photos(5), draws(10, torch.Generator().manual_seed(0))
    views = two_views(images, u, Augmentation())
    assert views.shape == (10, 3, S, S)
    torch.testing.assert_close(views[:5], augment(images, u[:5], Augmentation()))
    torch.testing.assert_close(views[5:], augment(images, u[5:], Augmentation()))
    assert not torch.allclose(views[:5], views[5:])


def test_one_channel_is_cropped_but_not_coloured():
    images, u = photos(6, 8, channels=1), draws(6, torch.Generator().manual_seed(0))
    loud = Augmentation(scale=(0.6, 1.0), jitter=1.0, grey=1.0)
    views = augment(images, u, loud)
    assert views.shape == (6, 1, 8, 8)
    assert torch.equal(views, augment(images, u, replace(loud, jitter=0.0, grey=0.0)))
    assert not close(views, images.float() / 255, 5)


def test_luma_is_itu_r_601():
    primaries = torch.eye(3).view(3, 3, 1, 1)
    assert luma(primaries).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])


@pytest.mark.parametrize(
    "wrong",
    [{"scale": (0.0, 1.0)}, {"scale": (0.5, 0.2)}, {"scale": (0.2, 1.1)}, {"ratio": (0.0, 1.0)}, {"flip": -0.1},
     {"jitter": 1.1}, {"grey": 2.0}, {"brightness": 1.5}, {"hue": 0.6}],
)  # fmt: skip
def test_invalid_augmentations_are_refused_by_field(wrong):
    with pytest.raises(SpecError, match=naming(next(iter(wrong)))):
        Augmentation(**wrong)


def test_random_numbers_are_uniform():
    u = draws(4000, torch.Generator().manual_seed(0))
    assert u.shape == (4000, DRAWS)
    counts = Counter((u * 10).long().flatten().tolist())
    assert all(abs(counts[k] / u.numel() - 0.1) < 0.01 for k in range(10))
