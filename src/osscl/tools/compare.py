"""Pair the runs of two methods by seed on identical streams, and test the difference between them."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from osscl.errors import UserError
from osscl.metrics import sample_std
from osscl.runs.record import RunRecord
from osscl.runs.spec import describe_schedule

MEASURES = {"final": "%", "average": "%", "forgetting": "points"}  # measure: unit
SAME = 1e-4  # points: a smaller difference is the rounding of a record's numbers

ValueOf = Callable[[RunRecord], float | None]
Alike = Callable[[RunRecord, RunRecord], bool]


@dataclass(frozen=True)
class PairedDifference:
    """First minus second, one value of each per seed."""

    seeds: tuple[int, ...]
    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.seeds)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(a - b for a, b in zip(self.first, self.second, strict=True))

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def std(self) -> float | None:
        return sample_std(self.values)

    @property
    def standard_error(self) -> float | None:
        return None if self.std is None else self.std / math.sqrt(self.n)

    @property
    def wins(self) -> int:
        return sum(value > SAME for value in self.values)

    @property
    def losses(self) -> int:
        return sum(value < -SAME for value in self.values)

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """Confidence interval of the mean by Student's t; None for fewer than two pairs, or equal differences."""
        from scipy.special import stdtrit  # importing scipy.stats takes half a second

        if (error := self._nonzero_error) is None:
            return None
        half = float(stdtrit(self.n - 1, (1 + confidence) / 2)) * error
        return self.mean - half, self.mean + half

    @property
    def t_test(self) -> float | None:
        """Two-sided p-value of the paired t-test."""
        from scipy import stats

        error = self._nonzero_error
        return None if error is None else float(2 * stats.t.sf(abs(self.mean) / error, self.n - 1))

    def sign_test(self, confidence: float = 0.95) -> float | None:
        return sign_test(self.wins, self.losses, 1 - confidence)

    @property
    def _nonzero_error(self) -> float | None:
        return None if self.std is None or self.std <= SAME else self.standard_error


def sign_test(wins: int, losses: int, level: float = 0.05) -> float | None:
    """Exact two-sided p-value, ties left out; None where even n wins out of n would not reach the level."""
    from scipy import stats

    n = wins + losses
    return None if 2.0 ** (1 - n) > level + 1e-12 else float(stats.binomtest(wins, n).pvalue)


@dataclass(frozen=True)
class Pairs:
    """Records of two methods, paired by seed."""

    first: tuple[RunRecord, ...]
    second: tuple[RunRecord, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.spec.seed for record in self.first)

    def difference(self, of_first: ValueOf, of_second: ValueOf | None = None) -> PairedDifference:
        """The difference in a value, over the pairs in which both records have it."""
        pairs = zip(self.first, self.second, strict=True)
        both = [(a.spec.seed, of_first(a), (of_second or of_first)(b)) for a, b in pairs]
        known = [(seed, a, b) for seed, a, b in both if a is not None and b is not None]
        return PairedDifference(*(tuple(row[i] for row in known) for i in range(3)))  # type: ignore[arg-type]


def same_stream(one: RunRecord, other: RunRecord) -> bool:
    """Whether two runs met the same classes in the same order and were tested on the same rows of the same data.

    Unlabelled rows may differ, because some comparisons are about them.
    """
    shared = set(one.content) & set(other.content)
    return (
        one.class_order == other.class_order
        and (one.evaluated_on, one.evaluated_rows) == (other.evaluated_on, other.evaluated_rows)
        and one.spec.stream == other.spec.stream
        and all(one.content[name] == other.content[name] for name in shared)
    )


def pair_by_seed(first: Sequence[RunRecord], second: Sequence[RunRecord], alike: Alike = same_stream) -> Pairs:
    """Pairs of runs with the same seed that are `alike`."""
    left, right = _by_seed(first), _by_seed(second)
    seeds = [seed for seed in sorted(left.keys() & right.keys()) if alike(left[seed], right[seed])]
    return Pairs(tuple(left[seed] for seed in seeds), tuple(right[seed] for seed in seeds))


def _by_seed(records: Sequence[RunRecord]) -> dict[int, RunRecord]:
    found: dict[int, RunRecord] = {}
    for record in records:
        other = found.setdefault(record.spec.seed, record)
        if other.id != record.id:
            raise UserError(
                f"one side has two runs with the same seed, {other.id} and {record.id}: give one file or folder"
            )
    return found


def pair_by_setting(first: Sequence[RunRecord], second: Sequence[RunRecord], anyway: bool = False) -> list[Pairs]:
    """Pairs by seed in each setting that both sides have; where they share none, in settings that differ in memory.

    Different streams are refused, or paired by seed alone with `anyway`.
    """
    for setting_key in (comparison_setting, comparison_stream):
        left, right = (_grouped(setting_key, records) for records in (first, second))
        shared = [key for key in left if key in right]
        found = [_checked_pairs(left[key], right[key], anyway) for key in shared]
        if found := [pairs for pairs in found if pairs.first]:
            return found
    if not shared and not anyway:
        raise UserError(f"nothing to pair: {_what_differs(first[0], second[0])}; --anyway pairs by seed alone")
    pairs = pair_by_seed(first, second, lambda a, b: True) if not shared else Pairs((), ())
    if not pairs.first:
        raise UserError("the two sides have no seed in common")
    return [pairs]


def comparison_setting(record: RunRecord) -> Hashable:
    """What runs have in common that differ only in method and seed."""
    spec = record.spec
    return spec.scenario, spec.stream, spec.schedule, record.evaluated_on, tuple(sorted(record.content.items()))


def comparison_stream(record: RunRecord) -> Hashable:
    """The setting without the memory, on which no row of a stream depends."""
    spec = record.spec
    return comparison_setting(replace(record, spec=replace(spec, scenario=replace(spec.scenario, memory=0))))


def _grouped(key: Callable[[RunRecord], Hashable], records: Sequence[RunRecord]) -> dict[Hashable, list[RunRecord]]:
    found: dict[Hashable, list[RunRecord]] = {}
    for record in records:
        found.setdefault(key(record), []).append(record)
    return found


def _checked_pairs(first: Sequence[RunRecord], second: Sequence[RunRecord], anyway: bool) -> Pairs:
    pairs = pair_by_seed(first, second, lambda a, b: True)
    for one, other in () if anyway else zip(pairs.first, pairs.second, strict=True):
        if not same_stream(one, other):
            raise UserError(f"{one.id} and {other.id} have different streams; --anyway pairs them regardless")
    return pairs


def _what_differs(first: RunRecord, second: RunRecord) -> str:
    """The first difference between two runs that cannot be paired."""
    a, b = first.spec, second.spec
    if a.schedule != b.schedule:
        return f"schedules differ, {describe_schedule(a)} and {describe_schedule(b)}"
    if first.evaluated_on != second.evaluated_on:
        return f"accuracy is on {first.evaluated_on} rows and on {second.evaluated_on} rows"
    if a.stream != b.stream or a.scenario != b.scenario:
        return f"{first.id} and {second.id} have different streams"
    return f"{first.id} and {second.id} have different data"
