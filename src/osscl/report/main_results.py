"""The main results as one table: ours over seeds, the paper's, the bytes kept of past data, and the minutes."""

from collections.abc import Sequence

from osscl.methods.base import PAPER, Schedule
from osscl.paper.cells import Table
from osscl.paper.plan import Records
from osscl.paper.score import Outcome, outcomes
from osscl.report.formats import Column, Number, ResultTable, Row
from osscl.report.paper_comparison import our_number, published_number, table_notes
from osscl.report.tables import mean_number
from osscl.runs.record import RunRecord

MEGABYTE = 1e6
COLUMNS = (
    Column("setting"), Column("method"), Column("ours", "mean", ("mean", "std", "n"), ours=True),
    Column("paper", "published", ("paper_mean", "paper_std")), Column("kept", "number", ("kept_megabytes",)),
    Column("minutes", "number"), Column("seeds", "seeds", only_csv=True),
)  # fmt: skip


def main_results(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> ResultTable:
    """One row per cell; what is not recorded is missing."""
    found = outcomes(table, records, schedule, seeds)
    rows = [_row(one) for one in found]
    return ResultTable(table.heading, COLUMNS, rows, table_notes(table, found, records, schedule, seeds))


def _row(one: Outcome) -> Row:
    cell = one.cell
    theirs = published_number(cell.published, cell.measure) if one.schedule == PAPER else None
    minutes = mean_number([record.minutes for record in one.records])
    return cell.row, cell.column, our_number(one), theirs, kept(one.records), minutes, one.seeds


def kept(records: Sequence[RunRecord]) -> Number | None:
    """Mean megabytes of past data kept after the last step, where every record says so."""
    bytes_kept = [record.memory_bytes for record in records]
    found = mean_number([None if count is None else count / MEGABYTE for count in bytes_kept], 2)
    return None if found is None else Number(found.value, unit="MB", digits=2)
