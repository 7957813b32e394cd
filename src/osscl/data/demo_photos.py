"""Drawn pictures in folders, as a user would keep photographs: labelled weeks, a pile, a test."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw, ImageFilter

from osscl.errors import UserError

SIZE = (240, 180)
LABELED, PILED, UNKNOWN_PILED, TESTED = 10, 10, 16, 8  # pictures of a kind in each folder
Color = tuple[int, int, int]


@dataclass(frozen=True)
class Sketch:
    """A canvas with a place, a scale and colours for one object."""

    draw: ImageDraw.ImageDraw
    rng: Generator
    x: float
    y: float
    scale: float

    def points(self, *pairs: tuple[float, float]) -> list[tuple[float, float]]:
        """Points of the object, in units of its size about its place."""
        return [(self.x + self.scale * a, self.y + self.scale * b) for a, b in pairs]

    def polygon(self, color: Color, *pairs: tuple[float, float]) -> None:
        self.draw.polygon(self.points(*pairs), fill=color)

    def ellipse(self, color: Color, *corners: tuple[float, float]) -> None:
        (a, b), (c, d) = self.points(*corners)
        self.draw.ellipse((a, b, c, d), fill=color)

    def box(self, color: Color, *corners: tuple[float, float]) -> None:
        (a, b), (c, d) = self.points(*corners)
        self.draw.rectangle((a, b, c, d), fill=color)

    def color(self, *base: int) -> Color:
        red, green, blue = np.clip(np.array(base) + self.rng.integers(-30, 31, 3), 0, 255).tolist()
        return red, green, blue


def house(s: Sketch) -> None:
    s.box(s.color(205, 170, 130), (-0.8, -0.1), (0.8, 0.9))
    s.polygon(s.color(150, 50, 40), (-1, -0.1), (0, -0.9), (1, -0.1))
    s.box(s.color(90, 60, 40), (-0.15, 0.35), (0.2, 0.9))
    for x in (-0.6, 0.35):
        s.box(s.color(170, 210, 235), (x, 0.1), (x + 0.3, 0.4))


def tree(s: Sketch) -> None:
    s.box(s.color(100, 70, 40), (-0.12, 0.2), (0.12, 1))
    for _ in range(14):
        a, b = s.rng.uniform(-0.5, 0.5), s.rng.uniform(-0.8, 0.1)
        s.ellipse(s.color(50, 130, 45), (a - 0.35, b - 0.3), (a + 0.35, b + 0.3))


def boat(s: Sketch) -> None:
    s.box(s.color(60, 110, 190), (-3, 0.55), (3, 3))
    s.polygon(s.color(140, 60, 40), (-1, 0.3), (1, 0.3), (0.65, 0.8), (-0.65, 0.8))
    s.box(s.color(80, 60, 50), (-0.04, -1), (0.04, 0.3))
    s.polygon(s.color(240, 240, 230), (0.08, -0.95), (0.85, 0.2), (0.08, 0.2))
    s.polygon(s.color(225, 225, 215), (-0.08, -0.8), (-0.6, 0.2), (-0.08, 0.2))


def car(s: Sketch) -> None:
    body = s.color(*s.rng.choice([[190, 40, 40], [40, 80, 180], [220, 190, 50]]).tolist())
    s.box(s.color(90, 90, 95), (-3, 0.6), (3, 3))
    s.polygon(body, (-1, 0.5), (-1, 0.1), (-0.6, 0), (-0.35, -0.4), (0.4, -0.4), (0.65, 0), (1, 0.1), (1, 0.5))
    s.polygon(s.color(190, 220, 235), (-0.45, 0), (-0.28, -0.3), (0.32, -0.3), (0.48, 0))
    for x in (-0.6, 0.55):
        s.ellipse((25, 25, 25), (x - 0.22, 0.3), (x + 0.22, 0.74))
        s.ellipse((170, 170, 170), (x - 0.1, 0.42), (x + 0.1, 0.62))


def fish(s: Sketch) -> None:
    s.box(s.color(30, 120, 170), (-4, -4), (4, 4))
    body = s.color(235, 140, 40)
    s.ellipse(body, (-0.8, -0.4), (0.6, 0.4))
    s.polygon(body, (0.5, 0), (1, -0.4), (0.9, 0), (1, 0.4))
    s.polygon(s.color(200, 90, 30), (-0.2, -0.35), (0.2, -0.7), (0.3, -0.3))
    s.ellipse((250, 250, 250), (-0.65, -0.18), (-0.45, 0.02))
    s.ellipse((10, 10, 10), (-0.6, -0.13), (-0.52, -0.05))


def balloon(s: Sketch) -> None:
    for stripe in range(5):
        wide = 0.75 * math.cos(math.pi * stripe / 12)
        color = s.color(220, 60, 60) if stripe % 2 else s.color(245, 220, 80)
        s.ellipse(color, (-wide + stripe * 0.06, -1), (wide - stripe * 0.06, 0.45))
    s.polygon((110, 90, 60), (-0.3, 0.3), (0.3, 0.3), (0.15, 0.65), (-0.15, 0.65))
    s.box(s.color(130, 90, 50), (-0.2, 0.65), (0.2, 0.95))


def mushroom(s: Sketch) -> None:
    s.box(s.color(80, 130, 60), (-4, 0.8), (4, 4))
    s.polygon(s.color(235, 225, 205), (-0.2, 0), (0.2, 0), (0.3, 0.9), (-0.3, 0.9))
    (a, b), (c, d) = s.points((-0.9, -0.8), (0.9, 0.8))
    s.draw.pieslice((a, b, c, d), 180, 360, fill=s.color(190, 35, 35))
    for _ in range(7):
        x, y = s.rng.uniform(-0.6, 0.6), s.rng.uniform(-0.6, -0.1)
        s.ellipse((245, 240, 235), (x - 0.09, y - 0.07), (x + 0.09, y + 0.07))


def umbrella(s: Sketch) -> None:
    color = s.color(90, 50, 150)
    (a, b), (c, d) = s.points((-1, -0.8), (1, 1))
    s.draw.pieslice((a, b, c, d), 180, 360, fill=color)
    for x in (-0.75, -0.25, 0.25, 0.75):
        s.ellipse(s.color(200, 215, 230), (x - 0.25, -0.02), (x + 0.25, 0.25))
    s.box((60, 50, 40), (-0.03, -0.85), (0.03, 0.9))
    (a, b), (c, d) = s.points((-0.3, 0.7), (0.03, 1.05))
    s.draw.arc((a, b, c, d), 0, 180, fill=(60, 50, 40), width=max(2, int(s.scale * 0.06)))


KINDS: dict[str, Callable[[Sketch], None]] = {
    draw.__name__: draw for draw in (house, tree, boat, car, fish, balloon, mushroom, umbrella)
}
WEEKS = {"week1": ("house", "tree", "boat"), "week2": ("car", "fish")}
UNKNOWN_IN_PILE = ("balloon", "mushroom")  # umbrellas are only in test/


def draw_picture(kind: str, rng: Generator) -> Image.Image:
    """One picture of a kind, with random sky, place, size, colours, blur and noise."""
    width, height = SIZE
    top, bottom = rng.integers(120, 240, 3), rng.integers(140, 250, 3)
    share = np.linspace(0, 1, height)[:, None, None]
    canvas = Image.fromarray((top * (1 - share) + bottom * share + np.zeros((1, width, 1))).astype(np.uint8))
    draw = ImageDraw.Draw(canvas)
    if rng.random() < 0.6:
        color = tuple(rng.integers(70, 170, 3).tolist())
        draw.rectangle((0, int(height * rng.uniform(0.7, 0.85)), width, height), fill=color)
    scale = height * rng.uniform(0.26, 0.42)
    KINDS[kind](Sketch(draw, rng, width * rng.uniform(0.35, 0.65), height * rng.uniform(0.42, 0.58), scale))
    turned = canvas.rotate(rng.uniform(-8, 8), Image.Resampling.BICUBIC, fillcolor=tuple(top.tolist()))
    soft = turned.filter(ImageFilter.GaussianBlur(rng.uniform(0, 1.2)))
    noise = rng.normal(0, rng.uniform(2, 9), (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(soft) + noise, 0, 255).astype(np.uint8))


def write_demo_photos(out: Path, seed: int = 0) -> None:
    """Write week1/, week2/, pile/ and test/ into a new folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists and is not overwritten: give a new folder")
    rng = np.random.default_rng(seed)
    piled = []
    for week, kinds in WEEKS.items():
        for kind in kinds:
            _save(out / week / kind, [draw_picture(kind, rng) for _ in range(LABELED)])
            piled += [draw_picture(kind, rng) for _ in range(PILED)]
    for kind in UNKNOWN_IN_PILE:
        piled += [draw_picture(kind, rng) for _ in range(UNKNOWN_PILED)]
    _save(out / "pile", [piled[i] for i in rng.permutation(len(piled))])
    for kind in KINDS:
        _save(out / "test" / kind, [draw_picture(kind, rng) for _ in range(TESTED)])


def _save(folder: Path, pictures: list[Image.Image]) -> None:
    folder.mkdir(parents=True)
    for i, picture in enumerate(pictures):
        picture.save(folder / f"{i:03d}.jpg", quality=90)
