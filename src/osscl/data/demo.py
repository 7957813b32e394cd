"""The embedded data sets: handwritten digits to learn and letters around them; no files, no network."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from osscl.data.images import Array, Decoded, canonical

# Each shape once, except those that look like a digit at 8 x 8 (BCDGIOQSZbfgiloqrsz) or blur (aem).
LETTERS = tuple("AEFHJKLMNPRTUVWXYdhknt")
IMAGES_PER_LETTER = 100
DETAIL = 32  # the digits were scanned in black and white at 32 x 32, then each 4 x 4 block was counted
GLYPH = 96  # pixels per side at which a glyph is drawn before it is sampled


def digits() -> Decoded:
    """scikit-learn's 1797 handwritten digits, (n, 1, 8, 8)."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    return _split(_shades(raw.images), raw.target.astype(np.int64), tuple(str(digit) for digit in range(10)))


def letters() -> Decoded:
    """Letters made as the digits were: slanted and bent black-and-white strokes, counted in blocks."""
    rng = np.random.default_rng(20)
    images = np.concatenate([_hand_drawn(letter, rng) for letter in LETTERS])
    labels = np.repeat(np.arange(len(LETTERS)), IMAGES_PER_LETTER)
    return _split(images, labels, LETTERS)


def letters_turned() -> Decoded:
    """The letters rotated by 90 degrees to the left."""
    return _redrawn(lambda images: np.rot90(images, axes=(2, 3)))


def letters_faint() -> Decoded:
    """The letters in grey on a tinted background: at half the contrast."""
    return _redrawn(lambda images: images // 2 + 64)


def _redrawn(change: Callable[[Array], Array]) -> Decoded:
    """The letters, each image changed."""
    known = letters()
    return replace(known, train_images=change(known.train_images), test_images=change(known.test_images))


def _shades(counts: Array) -> Array:
    """Counts from 0 to 16 as (n, 1, 8, 8) uint8 from 0 to 255."""
    return np.round(counts * (255 / 16)).astype(np.uint8)[:, None]


def _split(images: Array, labels: Array, class_names: Sequence[str]) -> Decoded:
    """Hold out a quarter of every class; in canonical order, rows are sorted by a hash and thus in random order."""
    images, labels = canonical(images, labels)
    first = np.searchsorted(labels, labels)  # where the class of each row begins
    test = np.arange(len(labels)) - first < np.bincount(labels)[labels] // 4
    return Decoded(images[~test], labels[~test], images[test], labels[test], tuple(class_names))


def _hand_drawn(letter: str, rng: Generator) -> Array:
    """Different images of one letter, (n, 1, 8, 8) uint8."""
    n = IMAGES_PER_LETTER

    def between(low: float, high: float) -> Array:
        return low + (high - low) * rng.random((n, 1, 1))

    y, x = np.meshgrid(*[(np.arange(DETAIL) + 0.5) / DETAIL * 2 - 1] * 2, indexing="ij")  # the image is [-1, 1]^2
    x, y = x - between(-0.12, 0.08), y - between(-0.06, 0.06)
    # Slant, turn and bend are polynomials: the last bit of sine and cosine differs between machines.
    slanted = x + between(-0.3, 0.2) * y + between(-0.15, 0.15) * y * y + between(-0.1, 0.1) * x * y
    turned = y + between(-0.15, 0.15) * x + between(-0.12, 0.12) * x * x + between(-0.1, 0.1) * x * y
    across, down = slanted / between(0.56, 0.8), turned / between(0.94, 1.06)

    glyphs = np.stack([_glyph(letter, stroke) for stroke in (1, 3, 5, 7)])
    pen = (rng.random((n, 1, 1)) * len(glyphs)).astype(int)
    column, row = (np.floor((axis + 1) / 2 * GLYPH).astype(int) for axis in (across, down))
    inside = (column >= 0) & (column < GLYPH) & (row >= 0) & (row < GLYPH)
    ink = glyphs[pen, row.clip(0, GLYPH - 1), column.clip(0, GLYPH - 1)] & inside
    ink ^= rng.random(ink.shape) < between(0, 0.006)  # specks of a scanner

    counts = ink.reshape(n, 8, DETAIL // 8, 8, DETAIL // 8).sum((2, 4))
    return _shades(np.round(counts * between(0.95, 1.03)).clip(max=16))


def _glyph(letter: str, stroke: int) -> Array:
    """A letter that fills a square, (96, 96) bool, drawn in Pillow's default font with that stroke width."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=GLYPH)
    box = font.getbbox(letter, stroke_width=stroke)
    left, top, right, bottom = (int(edge) for edge in box)
    height = bottom - top
    width = max(right - left, round(0.75 * height))  # does not stretch narrow letters
    page = Image.new("L", (width, height))
    start = ((width - right - left) // 2, -top)
    ImageDraw.Draw(page).text(start, letter, fill=255, font=font, stroke_width=stroke)
    return np.asarray(page.resize((GLYPH, GLYPH), Image.Resampling.BOX)) > 127
