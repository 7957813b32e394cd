"""A table of the paper as data: its cells, what the paper prints in each, the run that fills it; also on digits."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

from osscl.config import override
from osscl.methods.base import DEMO, Schedule
from osscl.runs.spec import RunSpec, ids_with_seeds, make_spec, on_small_net, with_seed
from osscl.stream.scenario import ScenarioSpec

# What a cell shows of a run: its final accuracy in %, also with our head instead of its own, or minutes of some phases.
Measure = Literal["accuracy", "our head", "minutes", "reference", "later reference", "pretraining", "learner"]

ACCURACIES = ("accuracy", "our head")

STAND_INS = {  # small networks in place of the paper's, for the demo's data and schedules with small networks
    "resnet18": "small",
    "resnet34": "small-deep",
    "resnet50": "small-deep",
    "wrn-40-2": "small-wide",
    "wrn-28-10": "small-wide",
}


@dataclass(frozen=True)
class Published:
    """What the paper prints: mean and std in % over three runs, or minutes without std."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Cell:
    """One number of a table, and the run that fills it, one per seed."""

    row: str
    column: str
    scenario: ScenarioSpec
    configuration: str  # its name
    changes: tuple[str, ...] = ()  # of the configuration, written as for --set
    published: Published | None = None  # None: the paper has no such cell
    measure: Measure = "accuracy"
    small: bool = False  # with small networks at any schedule

    @property
    def name(self) -> str:
        return f"{self.row}/{self.column}"

    def spec(self, schedule: Schedule, seed: int) -> RunSpec:
        """The complete run of this cell."""
        return with_seed(self._spec_of_any_seed(schedule), seed)

    def run_ids(self, schedule: Schedule, seeds: Iterable[int]) -> list[str]:
        """The ids of its runs, without making a spec for each seed."""
        return ids_with_seeds(self._spec_of_any_seed(schedule), seeds)

    def _spec_of_any_seed(self, schedule: Schedule) -> RunSpec:
        return _spec(self.scenario, self.configuration, self.changes, self.small, schedule)


@dataclass(frozen=True)
class Note:
    """A note on the cells that match these patterns, shown under tables that have one."""

    cells: str
    text: str
    configurations: str = "*"

    def is_on(self, cell: Cell) -> bool:
        return fnmatchcase(cell.name, self.cells) and fnmatchcase(cell.configuration, self.configurations)


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper, or one of our own."""

    id: str
    title: str  # what it shows, on any data
    cells: tuple[Cell, ...] = ()
    notes: tuple[str | Note, ...] = ()  # on any data
    of_paper: tuple[str | Note, ...] = ()  # on the paper's data, numbers and text, and our choices
    setting: str = ""  # the paper's data, appended to the title
    short: str = ""  # for lists, where the heading is too long

    @property
    def heading(self) -> str:
        return f"{self.title}{self.setting}"

    @property
    def brief(self) -> str:
        return self.short or self.heading

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Notes on the table, and on cells that it has."""
        return tuple(
            note if isinstance(note, str) else note.text
            for note in (*self.notes, *self.of_paper)
            if isinstance(note, str) or any(map(note.is_on, self.cells))
        )


@functools.cache  # tables share cells, and the id of a spec is expensive
def _spec(
    scenario: ScenarioSpec, configuration: str, changes: tuple[str, ...], small: bool, schedule: Schedule
) -> RunSpec:  # fmt: skip
    made = make_spec(scenario, configuration, schedule, seed=0)
    is_sized = schedule.small_net or schedule == DEMO  # by make_spec
    method = on_small_net(made.method) if small and not is_sized else made.method
    fitting = [_with_stand_in(change) for change in changes] if small or is_sized else changes
    return replace(made, method=override(method, fitting))


def _with_stand_in(change: str) -> str:
    field, _, value = change.partition("=")
    return f"{field}={STAND_INS.get(value, value)}" if field.endswith(".backbone") else change


OUR_VARIANTS = {  # configurations of ours, shown after the paper's
    "ursl": ("ursl-plus", "ursl-plus-unlimited"),
    "gem": ("gem-joint",),
}


def with_ours(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """The cells, each unchanged cell of a published method followed by those of our variants, which the paper lacks."""
    made: list[Cell] = []
    for cell in cells:
        made.append(cell)
        for ours in OUR_VARIANTS.get(cell.configuration, ()) if not cell.changes else ():
            row, column = (ours if name == cell.configuration else name for name in (cell.row, cell.column))
            made.append(replace(cell, row=row, column=column, configuration=ours, published=None))
    return tuple(made)


# ----- on the demo's data: digits as the main sets, letters as the peripheral sets

# The two sets that are not the main one become two kinds of letters, in this order.
SETS = ("cifar10", "cifar100", "tinyimagenet")
LETTERS = ("letters", "letters-turned")
FURTHER = {"caltech256": "letters-faint"}
DRAWS = 90  # the paper's unlabelled images are divided by this: 9000 become 100
FEW, MORE = (3, 30), (6, 40)  # labels per class and |M|, for a table's smaller and larger P
LARGER = 0.1  # the smallest P that counts as the larger one
MEMORY = {"cifar10": (50, 200), "cifar100": (500, 1000), "tinyimagenet": (1000, 2000)}  # |M| at either P
DIGITS = 10  # a memory holds at least one image of each
SMALLER = "digits among letters, with small networks and a ninetieth of the unlabelled images"
NAMES = "; rows keep their names from the paper"


def on_demo(table: Table) -> Table:
    """The same table on digits and letters with small networks, without the paper's numbers and notes."""
    if not table.cells:
        return table  # lists values and needs no data
    # A digit has fewer bytes than a class mean: statistics fit into no memory of digits.
    cells = tuple(cell_on_demo(cell) for cell in table.cells if cell.configuration != "ursl-plus")
    notes = *table.notes, f"{SMALLER}, {sizes_words(cells)}{NAMES if len(cells) > 1 else ''}"
    return replace(table, title=f"{table.title}, on digits", cells=cells, notes=notes, of_paper=(), setting="")


def sizes_words(cells: Sequence[Cell]) -> str:
    """Labels and memories of these cells, as in: 3 labels per class and a memory of 30."""
    memories: dict[int | None, list[str]] = {}
    for labels, memory in dict.fromkeys((cell.scenario.labels_per_class, cell.scenario.memory) for cell in cells):
        memories.setdefault(labels, []).append(str(memory))
    kinds = {labels: f"{labels} labels per class" if labels is not None else "all labels" for labels in memories}
    return "; ".join(f"{kinds[labels]} and a memory of {' or '.join(found)}" for labels, found in memories.items())


def cell_on_demo(cell: Cell) -> Cell:
    return replace(cell, scenario=demo_scenario(cell.scenario), published=None, small=True)


def demo_scenario(scenario: ScenarioSpec) -> ScenarioSpec:
    """A scenario of the paper, on digits and letters."""
    world = dict(zip((name for name in SETS if name != scenario.main), LETTERS, strict=False)) | FURTHER
    share = scenario.labeled_fraction or 0.0
    larger = share >= LARGER
    labels, memory = MORE if larger else FEW
    part = scenario.memory / MEMORY[scenario.main][larger]  # below 1 where a table is about small memories
    return replace(
        scenario,
        main="digits",
        peripheral=tuple(world[name] for name in scenario.peripheral),
        labeled_fraction=1.0 if share == 1 else None,
        labels_per_class=None if share == 1 else labels,
        memory=max(DIGITS, round(memory * part)),
        classes_per_step=(DIGITS,) if scenario.steps == 1 else None,
        related=round((scenario.related or 0) / DRAWS),
        unrelated=round((scenario.unrelated or 0) / DRAWS),
    )
