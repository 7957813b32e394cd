"""What stands beside the paper on a report's page: its tables and figures that records speak of, and its claims."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from osscl.methods.base import PAPER, Schedule
from osscl.paper.cells import Table
from osscl.paper.claims import is_trial, world_of, worlds
from osscl.paper.plan import Records
from osscl.paper.score import outcome, seeds_told
from osscl.paper.stand_in import on_demo
from osscl.paper.tables import FIGURES, TABLES
from osscl.report import curves, paper, verdicts
from osscl.report.formats import TableSection
from osscl.report.plots import Figure
from osscl.runs.record import RunRecord

LEFT_OUT = "left out: these runs are on the demo's data or too short to learn much, and say nothing about the paper."


@dataclass(frozen=True)
class Shown:
    """A table or figure of which a cell is recorded, and what it is shown at."""

    table: Table
    schedule: Schedule
    seeds: Sequence[int]
    trial: bool


@dataclass(frozen=True)
class Beside:
    """The paper on a page."""

    tables: Sequence[TableSection] = ()  # with a number of ours
    figures: Sequence[Figure] = ()
    values: Sequence[TableSection] = ()  # tables that need no run
    claims: Sequence[TableSection] = ()
    note: str = ""  # what is not there, and why


def beside_paper(records: Sequence[RunRecord]) -> Beside:
    """What records say beside the paper: tables once a schedule, claims where one is no trial; and what they do not."""
    known = {record.id: record for record in records}
    recorded = list(_recorded(known))
    tables = [_table(known, shown) for shown in recorded if shown.table.id in TABLES]
    figures = [_figure(known, shown) for shown in recorded if shown.table.id in FIGURES]
    claims = [] if all(shown.trial for shown in recorded) else [verdicts.section(known)]
    values = [paper.section(table, known, PAPER, ()) for table in TABLES.values() if claims and not table.cells]
    return Beside(tables, figures, values, claims, _note(records, recorded))


def _recorded(known: Records) -> Iterator[Shown]:
    """Every table and figure of which a cell is recorded, once a schedule."""
    for (data, schedule), seeds in worlds(known).items():
        for table in (*TABLES.values(), *FIGURES.values()):
            here = on_demo(table) if data == "demo" else table
            if any(outcome(cell, known, schedule, seeds).records for cell in here.cells):
                yield Shown(here, schedule, seeds, is_trial(data, schedule))


def _table(known: Records, shown: Shown) -> TableSection:
    made = paper.section(shown.table, known, shown.schedule, shown.seeds)
    return replace(made, title=f"{made.title}; schedule {shown.schedule.name}")


def _figure(known: Records, shown: Shown) -> Figure:
    found = outcome(shown.table.cells[0], known, shown.schedule, shown.seeds)
    said = f"schedule {shown.schedule.name}, {seeds_told(found.seeds, shown.seeds)}, n={len(found.records)}"
    title = f"{shown.table.id}: {shown.table.heading}; schedule {shown.schedule.name}"
    return curves.figure(title, said, shown.table.all_notes, found.records)


def _note(records: Sequence[RunRecord], recorded: Sequence[Shown]) -> str:
    """What of the paper is not there, and why."""
    if not recorded:
        only_trials = all(is_trial(*world_of(record)) for record in records)
        why = LEFT_OUT if only_trials else "left out: none of these runs makes a cell of a table."
        return f"The paper's tables and claims are {why}"
    there = {shown.table.id for shown in recorded}
    missing = [one.id for one in (*TABLES.values(), *FIGURES.values()) if one.cells and one.id not in there]
    absent = [f"Not recorded: {', '.join(missing)}."] if missing else []
    tried = [f"The paper's claims are {LEFT_OUT}"] if all(shown.trial for shown in recorded) else []
    return " ".join(absent + tried)
