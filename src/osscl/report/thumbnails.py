"""What the gate let in and kept out, as pictures where the data is at hand: one sprite a run, all within a budget."""

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from osscl.data.images import ImageBank
from osscl.experiments.record import RunRecord

BUDGET = 500_000  # characters of all sprites of a page
Row = tuple[str, int]  # set, row


@dataclass(frozen=True)
class Tile:
    """One row of U_t: what it really is, and where it lies in the run's sprite."""

    kind: str  # seen, unseen, foreign; main where the labels are not at hand
    words: str
    place: int | None = None  # None: no picture


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
    """The strip of one run; `sprite` is a data URI, empty where there is none."""

    rows: tuple[StripRow, ...]
    sprite: str = ""
    places: int = 0
    left_out: bool = False  # the data is at hand, the budget is spent

    @property
    def without_data(self) -> bool:
        """Whether there would be pictures if the data were at hand."""
        return not self.sprite and not self.left_out and any(row.tiles for row in self.rows)


def strip_of(run: RunRecord, banks: Mapping[str, ImageBank], budget: int) -> Strip:
    """Pictures of all steps, or of the first, middle and last, or of none: as many as the budget allows."""
    steps = [t for t, step in enumerate(run.steps) if step.gate is not None]
    few = sorted({steps[0], steps[len(steps) // 2], steps[-1]}) if steps else []
    at_hand = {name: bank for name, bank in banks.items() if bank.content == run.content.get(name)}
    for chosen in (steps, few):
        shown = [row for t in chosen for row in _named(run, t) if _is_at_hand(row, at_hand)]
        sprite = sprite_of(shown, at_hand) if shown else ""
        if len(sprite) <= budget:
            places = {row: i for i, row in enumerate(shown)}
            return Strip(tuple(_row(run, t, at_hand, places) for t in chosen), sprite, len(shown))
    return Strip(tuple(_row(run, t, at_hand, {}) for t in few), left_out=True)


def _is_at_hand(row: Row, banks: Mapping[str, ImageBank]) -> bool:
    return row[0] in banks and 0 <= row[1] < len(banks[row[0]].train)


def _named(run: RunRecord, t: int) -> Sequence[Row]:
    gate = run.steps[t].gate
    assert gate is not None
    return (*gate.let_in, *gate.kept_out)


def _row(run: RunRecord, t: int, banks: Mapping[str, ImageBank], places: Mapping[Row, int]) -> StripRow:
    gate = run.steps[t].gate
    assert gate is not None
    met = {c for step in run.steps[: t + 1] for c in step.new_classes}
    sides = [tuple(_tile(run, row, met, banks, places) for row in side) for side in (gate.let_in, gate.kept_out)]
    return StripRow(t, *sides)


def _tile(run: RunRecord, row: Row, met: set[int], banks: Mapping[str, ImageBank], places: Mapping[Row, int]) -> Tile:
    name, number = row
    own = name == run.spec.scenario.main
    if not _is_at_hand(row, banks):
        return Tile("main" if own else "foreign", f"{name}, row {number}")
    label = int(banks[name].train.labels[number])
    kind = ("seen" if label in met else "unseen") if own else "foreign"
    return Tile(kind, f"{banks[name].class_names[label]} ({kind}; {name}, row {number})", places.get(row))


def sprite_of(rows: Sequence[Row], banks: Mapping[str, ImageBank]) -> str:
    """The rows side by side as one data URI: PNG for small grey images, JPEG for photographs."""
    from PIL import Image

    pictures = [banks[name].train.images[number].numpy() for name, number in rows]
    size = max(picture.shape[-1] for picture in pictures)
    wide = np.concatenate([_square(picture, size) for picture in pictures], axis=1)
    grey = all(picture.shape[0] == 1 for picture in pictures)
    written = io.BytesIO()
    if grey:
        Image.fromarray(wide[..., 0]).save(written, "PNG", optimize=True)
    else:
        Image.fromarray(wide).save(written, "JPEG", quality=85)
    form = "png" if grey else "jpeg"
    return f"data:image/{form};base64,{base64.b64encode(written.getvalue()).decode()}"


def _square(picture: "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]", size: int) -> "np.ndarray":  # type: ignore[type-arg]
    """(size, size, 3), smaller pictures in the upper left corner of black."""
    square = np.zeros((size, size, 3), dtype=np.uint8)
    square[: picture.shape[1], : picture.shape[2]] = picture.transpose(1, 2, 0)
    return square


def strips_of(runs: Sequence[RunRecord], banks: Mapping[str, ImageBank]) -> dict[str, Strip]:
    """A strip a run, by the run's id; the budget is shared, and what one leaves over the next may use."""
    left, strips = BUDGET, {}
    for i, run in enumerate(runs):
        strips[run.id] = strip_of(run, banks, left // (len(runs) - i))
        left -= len(strips[run.id].sprite)
    return strips
