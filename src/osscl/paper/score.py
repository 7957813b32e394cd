"""What records say of a table's cells: our mean beside the paper's, and a verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, pstdev

from osscl.methods.base import PAPER, SCHEDULES, Schedule
from osscl.paper.cells import Cell, Measure, Table
from osscl.paper.plan import Records, told_by
from osscl.runs.record import RunRecord

POINT = 1.0  # of accuracy: the most that we may stay below the paper's mean
ROUNDING = 1e-6


@dataclass(frozen=True)
class Outcome:
    """One cell and the records of it, one a seed."""

    cell: Cell
    schedule: Schedule
    records: tuple[RunRecord, ...]
    values: tuple[float, ...]  # one a record
    untimed: bool = False  # a time is asked for, and its runs shared their device

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        return pstdev(self.values) if len(self.values) > 1 else None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.spec.seed for record in self.records)

    @property
    def verdict(self) -> str | None:
        """reached, short by x, over by x, not run, not timed; None at other schedules and where none is published."""
        if self.schedule != PAPER:
            return None
        if self.mean is None:
            return "not timed" if self.untimed else "not run"
        theirs = self.cell.published
        if theirs is None:
            return None
        if self.cell.measure != "accuracy":
            over = self.mean - theirs.mean
            return "reached" if over <= ROUNDING else f"over by {distance(over)}"
        short = theirs.mean - self.mean
        return "reached" if short <= min(theirs.std or 0.0, POINT) + ROUNDING else f"short by {distance(short)}"


def distance(gap: float) -> str:
    """With one decimal; with as many as show that it is not 0."""
    return f"{gap:.1f}" if gap >= 0.05 else f"{gap:.1g}"


def seeds_told(recorded: Iterable[int], asked: Sequence[int]) -> str:
    """The seeds that are recorded; where there is none, those that were asked for."""
    found = sorted(set(recorded))
    return seeds_words(found) if found else f"asked: {seeds_words(asked)}"


def seeds_words(seeds: Sequence[int]) -> str:
    """As in seed 0, seeds 0-2 or seeds 0, 3, 5."""
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    row = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
    return f"seeds {seeds[0]}-{seeds[-1]}" if row else f"seeds {', '.join(map(str, seeds))}"


def outcomes(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> list[Outcome]:
    """Every cell of a table, by the records of this schedule and these seeds alone."""
    return [outcome(cell, records, schedule, seeds) for cell in table.cells]


def outcome(cell: Cell, records: Records, schedule: Schedule, seeds: Sequence[int]) -> Outcome:
    runs = [told_by(records, cell.spec(schedule, seed).id, cell.measure) for seed in seeds]
    found = [record for record in runs if record is not None]
    values = [(record, value) for record in found if (value := measured(record, cell.measure)) is not None]
    told = tuple(value for _, value in values)
    untimed = not values and any(not record.made_by.timed for record in found)
    return Outcome(cell, schedule, tuple(record for record, _ in values), told, untimed)


def measured(record: RunRecord, measure: Measure) -> float | None:
    """What a cell shows of a run; None where it has no such phase, or time is asked for and its own is no measure."""
    if measure == "accuracy":
        return record.final
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
    """How many runs of a table are recorded under other schedules, whose numbers are not mixed in."""
    counts = {
        name: len({id for cell in table.cells for seed in seeds if (id := cell.spec(other, seed).id) in records})
        for name, other in SCHEDULES.items()
        if other != schedule
    }
    return {name: count for name, count in counts.items() if count}
