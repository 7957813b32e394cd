"""From cells to runs: list each once, group those that share a reference network, estimate the cost."""

import functools
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from osscl.config import flat, plain
from osscl.errors import DataError, SpecError
from osscl.methods.base import DEMO, Schedule
from osscl.paper.cells import ACCURACIES, Cell, Measure
from osscl.runs.engine import reference_key
from osscl.runs.index import is_retimed, read_files
from osscl.runs.kept import record_files
from osscl.runs.record import RunRecord
from osscl.runs.spec import RunSpec

Records = Mapping[str, RunRecord]  # by id; the second, timed record of a run by `retimed_id(id)`


@dataclass(frozen=True)
class Cost:
    """Expected cost of runs, from the timings of records."""

    seconds: float
    references: int  # networks to train, each counted once however many runs share it
    unknown: int  # runs without a comparable record; they are not in the seconds


def known_records(folders: Iterable[Path]) -> tuple[dict[str, RunRecord], list[str]]:
    """Every record below these folders, the first of each id, and one problem per file that is left out.

    If the first record has no valid time, the first one that has a valid time is kept as well.
    """
    records: dict[str, RunRecord] = {}
    problems: list[str] = []
    for folder in folders:
        met = set()  # two folders may hold different records of a run; one folder may not
        for path, record in read_files(record_files(folder)):
            if isinstance(record, DataError):
                problems.append(f"{record}; move it away to run it again")
                continue
            first = records.setdefault(record.id, record)
            if is_retimed(first, record):
                first = records.setdefault(retimed_id(record.id), record)
            if first is not record and record.id in met and first != record:
                problems.append(f"{path} is another record of {record.id}; the first one counts")
            met.add(record.id)
    return records, problems


def retimed_id(id: str) -> str:
    """The key, among records, of a second record with valid timings."""
    return f"{id}, retimed"


def record_for(records: Records, id: str, measure: Measure) -> RunRecord | None:
    """The record of a run for a measure: the first one, or for times the one whose time is valid."""
    first = records.get(id)
    return first if measure in ACCURACIES else records.get(retimed_id(id), first)


def runs_of(cells: Sequence[Cell], schedule: Schedule, seeds: Iterable[int]) -> list[RunSpec]:
    """The runs of cells, each once; all cells of a seed before the next seed."""
    specs = {(spec := cell.spec(schedule, seed)).id: spec for seed in seeds for cell in cells}
    return [spec for group in by_reference(list(specs.values())) for spec in group]


def cells_by_run(cells: Sequence[Cell], schedule: Schedule, seeds: Iterable[int]) -> dict[str, list[str]]:
    """The names of the cells that each run fills, by its id."""
    names: dict[str, list[str]] = {}
    wanted = list(seeds)
    for cell in cells:
        for id in cell.run_ids(schedule, wanted):
            names.setdefault(id, []).append(cell.name)
    return names


def to_be_timed(cells: Sequence[Cell], schedule: Schedule, seeds: Iterable[int]) -> set[str]:
    """Ids of the runs whose time a cell shows."""
    wanted, timed = list(seeds), [cell for cell in cells if cell.measure not in ACCURACIES]
    return {id for cell in timed for id in cell.run_ids(schedule, wanted)}


def by_reference(specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """Groups of runs that train the same reference, in order of first appearance."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(reference_key(spec) or spec.id, []).append(spec)
    return list(groups.values())


def shard_of(text: str) -> tuple[int, int]:
    """Parse `2/5`, the second of five parts."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise SpecError(f"shard must be i/n with i from 1 to n, as in 2/5, got {text!r}")
    return int(found[1]), int(found[2])


def sharded(specs: Sequence[RunSpec], shard: tuple[int, int]) -> list[RunSpec]:
    """One part of the runs: whole groups, largest first, each to the part with the fewest runs so far."""
    index, count = shard
    parts: list[list[RunSpec]] = [[] for _ in range(count)]
    for group in sorted(by_reference(specs), key=len, reverse=True):
        min(parts, key=len).extend(group)
    mine = {spec.id for spec in parts[index - 1]}
    return [spec for spec in specs if spec.id in mine]


class Timings:
    """Recorded times, from which those of other runs are estimated."""

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self._alike: dict[Hashable, dict[_Kind, list[RunRecord]]] = {}
        for record in records:
            kinds = self._alike.setdefault(weight_of(record.spec), {})
            kinds.setdefault(_kind_of(record), []).append(record)

    def cost(self, specs: Sequence[RunSpec]) -> Cost:
        """Expected cost of runs, with a shared reference counted once."""
        rest, references, unknown = 0.0, dict[str, float](), 0
        for spec in specs:
            expected = self._expected(spec)
            key = reference_key(spec)
            if key is not None:
                references[key] = max(references.get(key, 0.0), expected[0] if expected else 0.0)
            if expected is None:
                unknown += 1
            else:
                rest += expected[1]
        return Cost(rest + sum(references.values()), len(references), unknown)

    def _expected(self, spec: RunSpec) -> tuple[float, float] | None:
        """Seconds of the reference and of everything else, from the most comparable runs of the same weight."""
        kinds = self._alike.get(weight_of(spec))
        if not kinds:
            return None
        best = max(_comparability(spec, kind) for kind in kinds)
        chosen = [(kind, runs) for kind, runs in kinds.items() if _comparability(spec, kind) == best]
        times = [_scaled(split_seconds(run), kind, spec) for kind, runs in chosen for run in runs]
        return fmean(reference for reference, _ in times), fmean(rest for _, rest in times)


class _Kind(NamedTuple):
    """What decides how well the time of a run predicts that of another one, and how it is scaled."""

    timed: bool
    share: float  # of the schedule
    method: Hashable
    unlabeled: int


def _kind_of(record: RunRecord) -> _Kind:
    spec = record.spec
    return _Kind(record.made_by.timed, spec.schedule.share, spec.method, _unlabeled(spec))


def _comparability(spec: RunSpec, kind: _Kind) -> tuple[bool, bool, bool]:
    """How well such runs predict one, most important first: other work on the device may double a time."""
    return kind.timed, kind.share == spec.schedule.share, kind.method == spec.method


def weight_of(spec: RunSpec) -> Hashable:
    """What decides the cost of a run, apart from its schedule's share and the number of unlabelled images."""
    world, schedule = spec.scenario, spec.schedule
    labels = world.main, world.labeled_fraction, world.labels_per_class, world.steps
    caps = schedule.max_updates, schedule.row_cap, schedule.small_net, schedule == DEMO
    return labels, type(spec.method), _sizes(spec.method), caps


@functools.cache
def _sizes(method: Hashable) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in flat(plain(method)).items() if _costs(name)))


def _costs(field: str) -> bool:
    name = field.rpartition(".")[2]
    return name in ("backbone", "ssl", "pretrained", "unlabeled", "batch", "min_updates") or name.startswith("epoch")


def _scaled(seconds: tuple[float, float], kind: _Kind, wanted: RunSpec) -> tuple[float, float]:
    """A run's seconds, scaled by the schedule's share, and for the reference by the number of images."""
    share = wanted.schedule.share / kind.share
    images = _unlabeled(wanted) / kind.unlabeled if kind.unlabeled else 1.0
    return seconds[0] * share * images, seconds[1] * share


def _unlabeled(spec: RunSpec) -> int:
    world = spec.scenario
    return (world.related or 0) + (world.unrelated or 0) * len(world.peripheral)


def split_seconds(record: RunRecord) -> tuple[float, float]:
    """Seconds of the reference network, whichever run trained it, and of everything else."""
    phases = [phase for step in record.steps for phase in step.phases if phase.name == "reference"]
    own = sum(phase.seconds for phase in phases if not phase.cached)
    return sum(phase.seconds for phase in phases), max(0.0, record.made_by.seconds - own)
