"""What stands beside the paper on a report's page: its tables that records speak of, and its claims."""

from collections.abc import Sequence
from dataclasses import replace

from osscl.experiments.claims import is_trial, worlds
from osscl.experiments.outcomes import outcome
from osscl.experiments.record import RunRecord
from osscl.experiments.stand_in import on_demo
from osscl.experiments.tables import TABLES
from osscl.report import paper, verdicts
from osscl.report.formats import TableSection


def sections_of(records: Sequence[RunRecord]) -> list[TableSection]:
    """Tables of which a cell is recorded, one for each schedule; then the claims, where one is no trial."""
    known = {record.id: record for record in records}
    found, told = [], False
    for (data, schedule), seeds in worlds(known).items():
        for table in TABLES.values():
            here = on_demo(table) if data == "demo" else table
            if any(outcome(cell, known, schedule, seeds).records for cell in here.cells):
                made = paper.section(here, known, schedule, seeds)
                found.append(replace(made, title=f"{made.title}; schedule {schedule.name}"))
                told = told or not is_trial(data, schedule)
    return [*found, verdicts.section(known)] if told else found
