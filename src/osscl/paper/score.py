"""What records say about a table's cells: our mean next to the paper's, and a verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from osscl.methods.base import PAPER, SCHEDULES, Schedule
from osscl.metrics import sample_std
from osscl.paper.cells import ACCURACIES, Cell, Measure, Table
from osscl.paper.plan import Records, record_for
from osscl.paper.verdict import Verdict
from osscl.runs.record import RunRecord

ENOUGH = 3  # seeds that a verdict needs, as many as the paper has
POINT = 1.0  # accuracy: the largest distance below the paper's mean that still reaches it
ROUNDING = 1e-6


@dataclass(frozen=True)
class Outcome:
    """One cell and its records, one per seed."""

    cell: Cell
    schedule: Schedule
    records: tuple[RunRecord, ...]
    values: tuple[float, ...]  # one per record
    untimed: bool = False  # the cell shows minutes, and its runs shared their device

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return sample_std(self.values)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.spec.seed for record in self.records)

    @property
    def verdict(self) -> Verdict | None:
        """None at schedules other than the paper's, and for a recorded cell that the paper does not print."""
        if self.schedule != PAPER:
            return None
        if self.mean is None:
            return Verdict("not timed" if self.untimed else "not run")
        theirs, n = self.cell.published, len(self.values)
        if theirs is None:
            return None
        is_accuracy = self.cell.measure in ACCURACIES
        away = theirs.mean - self.mean if is_accuracy else self.mean - theirs.mean
        allowed = min(theirs.std or 0.0, POINT) if is_accuracy else 0.0
        distance = None if away <= allowed + ROUNDING else away
        miss: Literal["short", "over"] = "short" if is_accuracy else "over"
        if n < ENOUGH:
            return Verdict("few seeds", distance, n, miss)
        return Verdict("reached" if distance is None else miss, distance, n, miss)


def seed_words(recorded: Iterable[int], asked: Sequence[int]) -> str:
    """The recorded seeds; where there are none, the requested ones."""
    found = sorted(set(recorded))
    return seeds_words(found) if found else f"requested: {seeds_words(asked)}"


def seeds_words(seeds: Sequence[int]) -> str:
    """Seeds in words, such as: seed 0, seeds 0-2 or seeds 0, 3, 5."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    is_range = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]}-{seeds[-1]}" if is_range else f"seeds {', '.join(map(str, seeds))}"


def outcomes(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> list[Outcome]:
    """The outcome of every cell of a table, from records of this schedule and these seeds only."""
    return [outcome(cell, records, schedule, seeds) for cell in table.cells]


def outcome(cell: Cell, records: Records, schedule: Schedule, seeds: Sequence[int]) -> Outcome:
    runs = [record_for(records, id, cell.measure) for id in cell.run_ids(schedule, seeds)]
    found = [record for record in runs if record is not None]
    values = [(record, value) for record in found if (value := measured(record, cell.measure)) is not None]
    is_time = cell.measure not in ACCURACIES
    untimed = is_time and not values and any(not record.made_by.timed for record in found)
    return Outcome(
        cell, schedule, tuple(record for record, _ in values), tuple(value for _, value in values), untimed
    )  # fmt: skip


def measured(record: RunRecord, measure: Measure) -> float | None:
    """What a cell shows of a run; None where the run has no such phase, or its times do not count."""
    if measure == "accuracy":
        return record.final
    if measure == "our head":
        return (record.other_heads or {}).get(measure)
    if not record.made_by.timed:
        return None
    by_step = [{phase.name: phase.seconds / 60 for phase in step.phases} for step in record.steps]
    reference = [minutes["reference"] for minutes in by_step if "reference" in minutes]
    others = [sum(time for name, time in minutes.items() if name != "reference") for minutes in by_step]
    if measure == "learner":
        return mean(others)
    if measure == "minutes":
        return (sum(reference) + sum(others)) / len(by_step)
    if measure == "later reference":
        reference = reference[1:]
        return mean(reference) if reference else None
    return sum(reference) if reference else None  # pretraining, and the reference over all steps


def other_schedules(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> dict[str, int]:
    """How many runs of a table are recorded at other schedules, whose numbers are not mixed in."""
    recorded = {record.spec.schedule.name for record in records.values()}  # the ids of the others need not be made
    counts = {
        name: len({id for cell in table.cells for id in cell.run_ids(other, seeds) if id in records})
        for name, other in SCHEDULES.items()
        if other != schedule and name in recorded
    }
    return {name: count for name, count in counts.items() if count}
