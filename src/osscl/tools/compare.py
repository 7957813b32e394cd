"""Two methods on identical streams, seed by seed: the difference, how sure it is, and two tests of it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from scipy import stats

from osscl.errors import UserError
from osscl.runs.record import RunRecord
from osscl.runs.spec import describe_schedule

MEASURES = {"final": "%", "average": "%", "forgetting": "points"}  # and what each is in
SAME = 1e-4  # points: less is the rounding of a record's numbers


@dataclass(frozen=True)
class Difference:
    """First minus second, over pairs. None where there are too few pairs, or all differ by the same."""

    differences: tuple[float, ...]
    mean: float
    low: float | None  # ends of the confidence interval of the mean, by Student's t
    high: float | None
    t_test: float | None  # p of the paired t-test, two-sided
    sign_test: float | None  # p of the exact sign test, two-sided; None where no outcome could be significant
    wins: int
    losses: int

    @property
    def n(self) -> int:
        return len(self.differences)


def difference(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Difference:
    """Paired: first[i] and second[i] are of one seed."""
    gaps = tuple(a - b for a, b in zip(first, second, strict=True))
    wins, losses = sum(gap > SAME for gap in gaps), sum(gap < -SAME for gap in gaps)
    centre = mean(gaps)
    low, high, p = None, None, None
    if len(gaps) > 1 and stdev(gaps) > SAME:
        error, freedom = stdev(gaps) / len(gaps) ** 0.5, len(gaps) - 1
        half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error
        low, high, p = centre - half, centre + half, float(2 * stats.t.sf(abs(centre) / error, freedom))
    return Difference(gaps, centre, low, high, p, sign_test(wins, losses, 1 - confidence), wins, losses)


def sign_test(wins: int, losses: int, level: float = 0.05) -> float | None:
    """Exact and two-sided, ties left out; None where even n wins of n would not reach the level."""
    n = wins + losses
    if 2.0 ** (1 - n) > level + 1e-12:
        return None
    return float(stats.binomtest(wins, n).pvalue)


@dataclass(frozen=True)
class Pairs:
    """Records of one setting, two a seed."""

    first: tuple[RunRecord, ...]
    second: tuple[RunRecord, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.spec.seed for record in self.first)

    def measured(self, measure: str, confidence: float = 0.95) -> Difference | None:
        """The difference in one of MEASURES; None where a record lacks it."""
        values = [[getattr(record, measure) for record in side] for side in (self.first, self.second)]
        return None if None in [*values[0], *values[1]] else difference(values[0], values[1], confidence)


def setting(record: RunRecord) -> Hashable:
    """What two runs share, seed aside, that differ in their method alone."""
    spec = record.spec
    return spec.scenario, spec.stream, spec.schedule, record.evaluated_on, tuple(sorted(record.content.items()))


def stream_of(record: RunRecord) -> Hashable:
    """What two runs must share, seed aside, for their streams and schedules to be the same: no row of a stream depends
    on the memory."""
    spec = record.spec
    return setting(replace(record, spec=replace(spec, scenario=replace(spec.scenario, memory=0))))


def paired(first: Sequence[RunRecord], second: Sequence[RunRecord], anyway: bool = False) -> list[Pairs]:
    """Pairs by seed in each setting that both sides have, with other memories where there is none; refuses where the
    streams are others, too, unless told to go on."""
    for alike in (setting, stream_of):
        sides = [_by(alike, records) for records in (first, second)]
        shared = [key for key in sides[0] if key in sides[1]]
        found = [pairs for key in shared if (pairs := _pairs(sides[0][key], sides[1][key], anyway)).first]
        if found:
            return found
    if shared:
        raise UserError("the two sides have no seed in common")
    if not anyway:
        raise UserError(f"nothing to pair: {_what_differs(first[0], second[0])}; --anyway pairs by seed alone")
    pairs = _pairs(list(first), list(second), anyway)
    if not pairs.first:
        raise UserError("the two sides have no seed in common")
    return [pairs]


def _by(alike: Callable[[RunRecord], Hashable], records: Sequence[RunRecord]) -> dict[Hashable, list[RunRecord]]:
    found: dict[Hashable, list[RunRecord]] = {}
    for record in records:
        found.setdefault(alike(record), []).append(record)
    return found


def _pairs(first: Sequence[RunRecord], second: Sequence[RunRecord], anyway: bool) -> Pairs:
    left, right = _by_seed(first), _by_seed(second)
    seeds = sorted(set(left) & set(right))
    for seed in seeds:
        if left[seed].class_order != right[seed].class_order and not anyway:
            raise UserError(f"{left[seed].id} and {right[seed].id} met other classes: another stream; --anyway goes on")
    return Pairs(tuple(left[seed] for seed in seeds), tuple(right[seed] for seed in seeds))


def _by_seed(records: Sequence[RunRecord]) -> dict[int, RunRecord]:
    found: dict[int, RunRecord] = {}
    for record in records:
        other = found.setdefault(record.spec.seed, record)
        if other is not record and other.id != record.id:
            raise UserError(f"two runs of one seed on one side, {other.id} and {record.id}: name one file or folder")
    return found


def _what_differs(first: RunRecord, second: RunRecord) -> str:
    """The first thing that two runs, of all that they must share, do not."""
    a, b = first.spec, second.spec
    if a.schedule != b.schedule:
        return f"schedules differ, {describe_schedule(a)} against {describe_schedule(b)}"
    if first.evaluated_on != second.evaluated_on:
        return f"accuracy is on {first.evaluated_on} rows against {second.evaluated_on} rows"
    if a.stream != b.stream or a.scenario != b.scenario:
        return f"streams differ, that of {first.id} and that of {second.id}"
    return f"the data of {first.id} is not that of {second.id}"
