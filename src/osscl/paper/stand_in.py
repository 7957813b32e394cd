"""The paper's tables on the demo's data: digits as the main sets, letters as the peripheral sets."""

from collections.abc import Sequence
from dataclasses import replace

from osscl.paper.cells import Cell, Table
from osscl.stream.scenario import ScenarioSpec

# The two sets that are not the main one become two kinds of letters, in this order.
SETS = ("cifar10", "cifar100", "tinyimagenet")
LETTERS = ("letters", "letters-turned")
FURTHER = {"caltech256": "letters-faint"}
DRAWS = 90  # the paper's images per image here: 9000 become 100
FEW, MORE = (3, 30), (6, 40)  # labels per class and |M|, for a table's smaller and larger P
LARGER = 0.1  # the least P that counts as larger
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
