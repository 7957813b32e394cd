"""A table of the paper as data: its cells, what is printed in each, and the runs that make it."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from osscl.config import override
from osscl.methods.base import DEMO, Schedule
from osscl.runs.presets import on_small_net
from osscl.runs.spec import RunSpec, make_spec
from osscl.stream.scenario import ScenarioSpec

# What a cell shows of a run: its final accuracy in %, or minutes of some of its phases.
Measure = Literal["accuracy", "minutes", "reference", "later reference", "pretraining", "learner"]

STAND_INS = {  # of the paper's networks, where schedules and demo data ask for small ones
    "resnet18": "small",
    "resnet34": "small-deep",
    "resnet50": "small-deep",
    "wrn-40-2": "small-wide",
    "wrn-28-10": "small-wide",
}


@dataclass(frozen=True)
class Published:
    """What the paper prints: mean and std in % over three runs, or minutes, which have no std."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Cell:
    """One number of a table, and the run, one a seed, that makes it."""

    row: str
    column: str
    scenario: ScenarioSpec
    configuration: str  # by its name
    changes: tuple[str, ...] = ()  # of the configuration, written as --set has them
    published: Published | None = None  # None: the paper has no such cell
    measure: Measure = "accuracy"
    small: bool = False  # with small networks whatever the schedule says

    @property
    def name(self) -> str:
        return f"{self.row}/{self.column}"

    def spec(self, schedule: Schedule, seed: int) -> RunSpec:
        """The complete run of this cell."""
        return _spec(self.scenario, self.configuration, self.changes, self.small, schedule, seed)


@dataclass(frozen=True)
class Note:
    """A word on some cells, by patterns of their names and configurations; it stands under a table that has one."""

    cells: str
    text: str
    configurations: str = "*"

    def is_on(self, cell: Cell) -> bool:
        return fnmatchcase(cell.name, self.cells) and fnmatchcase(cell.configuration, self.configurations)


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper, or one of our own."""

    id: str
    title: str  # what it shows, on whatever data
    cells: tuple[Cell, ...] = ()
    notes: tuple[str | Note, ...] = ()  # what a cell is, on whatever data
    of_paper: tuple[str | Note, ...] = ()  # notes on the paper's own data, numbers and words, and what was taken
    setting: str = ""  # the paper's data, as the title goes on with it
    short: str = ""  # the heading where it is too long for a line of a list

    @property
    def heading(self) -> str:
        return f"{self.title}{self.setting}"

    @property
    def brief(self) -> str:
        return self.short or self.heading.partition(":")[0]

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Those on the whole, and those on a cell that is there."""
        told = (*self.notes, *self.of_paper)
        return tuple(note if isinstance(note, str) else note.text for note in told if self._speaks_of(note))

    def _speaks_of(self, note: str | Note) -> bool:
        return isinstance(note, str) or any(map(note.is_on, self.cells))


@functools.cache  # tables share cells, and the id of a spec is expensive
def _spec(
    scenario: ScenarioSpec, configuration: str, changes: tuple[str, ...], small: bool, schedule: Schedule, seed: int
) -> RunSpec:
    made = make_spec(scenario, configuration, schedule, seed)
    is_sized = schedule.small_net or schedule == DEMO  # by make_spec
    method = on_small_net(made.method) if small and not is_sized else made.method
    fitting = [_with_stand_in(change) for change in changes] if small or is_sized else changes
    return replace(made, method=override(method, fitting))


def _with_stand_in(change: str) -> str:
    field, _, value = change.partition("=")
    return f"{field}={STAND_INS.get(value, value)}" if field.endswith(".backbone") else change


def with_plus(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells, and beside each that is `ursl` as it stands one of `ursl-plus`, which the paper does not have."""
    made: list[Cell] = []
    for cell in cells:
        made.append(cell)
        if cell.configuration == "ursl" and not cell.changes:
            column = "ursl-plus" if cell.column == "ursl" else cell.column
            row = "ursl-plus" if cell.row == "ursl" else cell.row
            made.append(replace(cell, row=row, column=column, configuration="ursl-plus", published=None))
    return tuple(made)
