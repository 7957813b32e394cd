"""Pictures of what the gate accepted and rejected, where the data is available, within a size budget."""

import io
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from osscl.data.images import ImageBank
from osscl.data.pictures import data_url
from osscl.methods.base import PAPER
from osscl.report.naming import unusual_fields
from osscl.runs.record import RunRecord
from osscl.runs.spec import is_changed

BUDGET = 500_000  # characters of all sprites of a page
ACROSS = 16  # pictures side by side in a sprite
LEVELS = ((False, 3), (False, None), (True, None))  # all steps or three of them; pictures per side, None: all
Row = tuple[str, int]  # set, row
Banks = Mapping[str, ImageBank]


@dataclass(frozen=True)
class Sprite:
    """Pictures of one size in one data URI, row by row."""

    number: int
    uri: str
    across: int
    down: int


Places = Mapping[Row, tuple[Sprite, int]]


@dataclass(frozen=True)
class Tile:
    """One row of U_t: its true kind, and the place of its picture."""

    kind: str  # seen, unseen, foreign; main where the labels are not available
    words: str
    sprite: Sprite | None = None  # None: no picture
    place: int = 0  # in the sprite


@dataclass(frozen=True)
class StripRow:
    """One step of the strip."""

    step: int
    let_in: tuple[Tile, ...]
    kept_out: tuple[Tile, ...]

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return (*self.let_in, *self.kept_out)


@dataclass(frozen=True)
class Strip:
    """The strip of one run."""

    rows: tuple[StripRow, ...]
    left_out: bool = False  # the data is available, but the budget is spent

    @property
    def tiles(self) -> tuple[Tile, ...]:
        return tuple(tile for row in self.rows for tile in row.tiles)

    @property
    def without_data(self) -> bool:
        """Whether there are no pictures because the data is missing."""
        return not self.left_out and bool(self.tiles) and all(tile.sprite is None for tile in self.tiles)


@dataclass(frozen=True)
class StripImages:
    """The strips of a page by their run's id, and the sprites that they share."""

    strips: Mapping[str, Strip]
    sprites: tuple[Sprite, ...] = ()


@dataclass(frozen=True)
class Cut:
    """A run's strip: all steps, or the first, middle and last; with at most `tiles` pictures per side."""

    run: RunRecord
    whole: bool
    tiles: int | None

    @property
    def chosen(self) -> list[int]:
        gated = [t for t, step in enumerate(self.run.steps) if step.gate is not None]
        return gated if self.whole or not gated else sorted({gated[0], gated[len(gated) // 2], gated[-1]})

    def sides(self, t: int) -> tuple[Sequence[Row], Sequence[Row]]:
        gate = self.run.steps[t].gate
        assert gate is not None
        return gate.let_in[: self.tiles], gate.kept_out[: self.tiles]

    def pictured(self, banks: Banks) -> list[Row]:
        """The rows whose picture is available."""
        here = available_banks(self.run, banks)
        return [row for t in self.chosen for side in self.sides(t) for row in side if _is_in(row, here)]


def strips_of(runs: Sequence[RunRecord], banks: Banks, budget: int = BUDGET) -> StripImages:
    """A few pictures for every run, then more within the budget, the most important runs first."""
    wanted = [Cut(run, *level) for level in LEVELS for run in sorted(runs, key=importance)]
    sizes = partial(_size, wanted, banks)
    granted = wanted[: bisect_right(range(1, len(wanted) + 1), budget, key=sizes)]
    sprites = sprites_of(_distinct(granted, banks), banks)
    best = {cut.run.id: cut for cut in granted}  # the last is the largest
    strips = {run.id: _strip(best.get(run.id), run, banks, sprites) for run in runs}
    return StripImages(strips, tuple(dict.fromkeys(sprite for sprite, _ in sprites.values())))


def importance(run: RunRecord) -> tuple[bool, bool]:
    """A sort key: the paper's schedule before others, and named configurations before their ablations."""
    ablation = is_changed(run.spec.method) or bool(unusual_fields(run.spec.scenario))
    return run.spec.schedule != PAPER, ablation


def _size(wanted: Sequence[Cut], banks: Banks, count: int) -> int:
    """Characters of the sprites that the first `count` cuts need."""
    sprites = sprites_of(_distinct(wanted[:count], banks), banks)
    return sum(len(sprite.uri) for sprite in {sprite for sprite, _ in sprites.values()})


def _distinct(cuts: Iterable[Cut], banks: Banks) -> list[Row]:
    return list(dict.fromkeys(row for cut in cuts for row in cut.pictured(banks)))


def available_banks(run: RunRecord, banks: Banks) -> dict[str, ImageBank]:
    """The data sets of the run; other data of the same name is not used."""
    return {name: bank for name, bank in banks.items() if bank.content == run.content.get(name)}


def _is_in(row: Row, banks: Banks) -> bool:
    return row[0] in banks and 0 <= row[1] < len(banks[row[0]].train)


def _strip(cut: Cut | None, run: RunRecord, banks: Banks, places: Places) -> Strip:
    """Without a cut there was no room for pictures; the rows are still described."""
    shown = cut or Cut(run, False, None)
    left_out = cut is None and bool(shown.pictured(banks))
    here = available_banks(run, banks)
    return Strip(tuple(_row(shown, t, here, {} if left_out else places) for t in shown.chosen), left_out)


def _row(cut: Cut, t: int, banks: Banks, places: Places) -> StripRow:
    met = {c for step in cut.run.steps[: t + 1] for c in step.new_classes}
    sides = [tuple(_tile(cut.run, row, met, banks, places) for row in side) for side in cut.sides(t)]
    return StripRow(t, *sides)


def _tile(run: RunRecord, row: Row, met: set[int], banks: Banks, places: Places) -> Tile:
    name, number = row
    own = name == run.spec.scenario.main
    if not _is_in(row, banks):
        return Tile("main" if own else "foreign", f"{name}, row {number}")
    label = int(banks[name].train.labels[number])
    kind = ("seen" if label in met else "unseen") if own else "foreign"
    words = f"{banks[name].class_names[label]} ({kind}; {name}, row {number})"
    return Tile(kind, words, *places.get(row, (None, 0)))


def sprites_of(rows: Sequence[Row], banks: Banks) -> dict[Row, tuple[Sprite, int]]:
    """The place of each row's picture: one sprite per size and number of channels."""
    shapes: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        shapes.setdefault(tuple(banks[row[0]].train.images.shape[1:]), []).append(row)
    places = {}
    for number, alike in enumerate(shapes.values()):
        sprite = _sprite(number, [banks[name].train.images[row].numpy() for name, row in alike])
        places.update({row: (sprite, place) for place, row in enumerate(alike)})
    return places


def _sprite(number: int, pictures: "Sequence[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]") -> Sprite:
    """PNG for small grey images, JPEG for photographs."""
    from PIL import Image

    across = min(ACROSS, len(pictures))
    down = -(-len(pictures) // across)
    channels, height, width = pictures[0].shape
    sheet = np.zeros((down * height, across * width, channels), dtype=np.uint8)
    for place, picture in enumerate(pictures):
        top, left = place // across * height, place % across * width
        sheet[top : top + height, left : left + width] = picture.transpose(1, 2, 0)
    grey, written = channels == 1, io.BytesIO()
    if grey:
        Image.fromarray(sheet[..., 0]).save(written, "PNG", optimize=True)
    else:
        Image.fromarray(sheet).save(written, "JPEG", quality=85)
    form = "png" if grey else "jpeg"
    return Sprite(number, data_url(written.getvalue(), form), across, down)
