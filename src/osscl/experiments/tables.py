"""Every table and figure of the paper by its name, and the cells that a user picks."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from osscl.errors import SpecError, unknown
from osscl.experiments import ablations, published, search
from osscl.experiments.cells import Cell, Note, Published, Table
from osscl.experiments.limits import LIMITS
from osscl.experiments.published import Pair
from osscl.methods.method import PAPER
from osscl.stream.scenario import ScenarioSpec

OURS = "URSL's cells run ursl: the paper's algorithm; optimisers, projector and head are ours (T8), and so is ursl-plus"


def _noted(table: Table) -> Table:
    """The table, with a word on what runs in URSL's cells."""
    return replace(table, notes=(*table.notes, Note("*", OURS, configurations="ursl*")))


TABLES: Mapping[str, Table] = {
    table.id: _noted(table)
    for table in (
        published.T1, published.T2, published.T3, ablations.T4, ablations.T5, ablations.T6, search.T7, search.T8,
        ablations.T9, ablations.T10, ablations.T11, ablations.T12, ablations.T13, ablations.T14, ablations.T15,
        ablations.T16, ablations.T17, ablations.T18,
    )
}  # fmt: skip
FIGURES: Mapping[str, Table] = {"F1": ablations.F1, "F2": ablations.F2}
COMMANDS = {"table": TABLES, "figure": FIGURES, "experiments": LIMITS}


def one_of(tables: Mapping[str, Table], kind: str, name: str, *others: str) -> Table:
    """The table of this name, in capitals or not; `others` are names that are allowed besides."""
    id = name.upper()
    if id in tables:
        return tables[id]
    for command, elsewhere in COMMANDS.items():
        if id in elsewhere:
            raise SpecError(f"{id} is no {kind}: osscl {command} {id}")
    raise unknown(kind, name, [*others, *tables])


def picked(table: Table, patterns: str | None) -> Table:
    """The table with the cells that `patterns` names: cells, rows or columns, with * and ?, between commas."""
    if patterns is None:
        return table
    chosen: set[str] = set()
    for pattern in (part.strip() for part in patterns.split(",")):
        found = [cell.name for cell in table.cells if _matches(cell, pattern)]
        if not found:
            raise unknown(f"cell of {table.id}", pattern, [cell.name for cell in table.cells])
        chosen.update(found)
    return replace(table, cells=tuple(cell for cell in table.cells if cell.name in chosen))


def _matches(cell: Cell, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (cell.name, cell.row, cell.column))


def cell_of(table: str, name: str) -> Cell:
    """A cell of the paper by its table and name."""
    return next(cell for cell in {**TABLES, **FIGURES}[table].cells if cell.name == name)


def published_of(scenario: ScenarioSpec, method: object) -> Pair | None:
    """Mean and std that the paper has of a method, by its fields, in a scenario; None: no table has such a cell."""
    alike = (theirs for known, theirs in _published_methods().get(scenario, ()) if known == method)
    found = next(alike, None)
    return None if found is None else (found.mean, found.std or 0.0)


@functools.cache
def _published_methods() -> dict[ScenarioSpec, list[tuple[object, Published]]]:
    """Every accuracy that the paper prints, by its scenario, the first tables first."""
    made: dict[ScenarioSpec, list[tuple[object, Published]]] = {}
    for table in TABLES.values():
        for cell in table.cells:
            if cell.published is not None and cell.measure == "accuracy":
                made.setdefault(cell.scenario, []).append((cell.spec(PAPER, 0).method, cell.published))
    return made
