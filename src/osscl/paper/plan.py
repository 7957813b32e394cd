"""From cells to runs: each once, runs that share a reference network together, split among machines, and their cost."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

from osscl.config import content_id, flat, plain
from osscl.errors import DataError, SpecError
from osscl.methods.base import DEMO, Schedule
from osscl.paper.cells import Cell, Measure
from osscl.runs.record import RunRecord, is_timed_anew, read_record, record_files
from osscl.runs.spec import ForeignConfig, RunSpec

Records = Mapping[str, RunRecord]  # by id; of a run that was made anew for its time, that record by `anew(id)`


@dataclass(frozen=True)
class Cost:
    """What runs will take, by the records' own timings."""

    seconds: float
    references: int  # networks to be trained, each once however many runs share it
    unknown: int  # runs that no record speaks for; they are not in the seconds


def known_records(folders: Iterable[Path]) -> tuple[dict[str, RunRecord], list[str]]:
    """Every record below these folders, the first of each id, and what is wrong with the files that are left out. The
    first record that is timed is kept beside one that is not."""
    records: dict[str, RunRecord] = {}
    problems: list[str] = []
    for folder in folders:
        met = set()  # a folder may have a record of its own of a run that another has too, and not two that differ
        for path in record_files(folder):
            try:
                record = _own_record(path)
            except DataError as error:
                problems.append(f"{error}; move it away to run it again")
                continue
            first = records.setdefault(record.id, record)
            if is_timed_anew(first, record):
                first = records.setdefault(anew(record.id), record)
            if first != record and record.id in met:
                problems.append(f"{path} is another record of {record.id}; the first one counts")
            met.add(record.id)
    return records, problems


def _own_record(path: Path) -> RunRecord:
    record = read_record(path)
    if not isinstance(record.spec.method, ForeignConfig) and record.spec.id != record.id:
        raise DataError(f"{path}: its id is not that of its spec")
    return record


def anew(id: str) -> str:
    """The name, among records, of the one with the time that the first lacks."""
    return f"{id}, timed anew"


def told_by(records: Records, id: str, measure: Measure) -> RunRecord | None:
    """The record of a run that speaks of a measure: the first, of times one that is timed."""
    first = records.get(id)
    return first if measure == "accuracy" else records.get(anew(id), first)


def runs_of(cells: Sequence[Cell], schedule: Schedule, seeds: Iterable[int]) -> list[RunSpec]:
    """The runs that cells need, each once; all cells of a seed before the next seed."""
    specs = {(spec := cell.spec(schedule, seed)).id: spec for seed in seeds for cell in cells}
    return [spec for group in together(list(specs.values())) for spec in group]


def cells_by_run(cells: Sequence[Cell], schedule: Schedule, seeds: Iterable[int]) -> dict[str, list[str]]:
    """The names of the cells that each run makes, by its id."""
    names: dict[str, list[str]] = {}
    for seed in seeds:
        for cell in cells:
            names.setdefault(cell.spec(schedule, seed).id, []).append(cell.name)
    return names


def to_be_timed(cells: Sequence[Cell], schedule: Schedule, seeds: Iterable[int]) -> set[str]:
    """Ids of the runs whose time a cell shows."""
    return {cell.spec(schedule, seed).id for seed in seeds for cell in cells if cell.measure != "accuracy"}


def reference_of(spec: RunSpec) -> str | None:
    """The same for runs that train the same reference networks; None for a run that trains none."""
    method = spec.method
    if not getattr(method, "needs_reference", False) or not (spec.scenario.related or spec.scenario.unrelated):
        return None
    world = replace(spec.scenario, memory=0)  # everything else decides what U_t holds
    return content_id([world, method.reference, replace(spec.schedule, name="any"), spec.seed, spec.stream])


def together(specs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """Runs that train the same reference in one group, in the order in which they are first met."""
    groups: dict[str, list[RunSpec]] = {}
    for spec in specs:
        groups.setdefault(reference_of(spec) or spec.id, []).append(spec)
    return list(groups.values())


def shard_of(text: str) -> tuple[int, int]:
    """`2/5` is the second of five parts."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise SpecError(f"a shard is written i/n with i from 1 to n, as in 2/5, got {text!r}")
    return int(found[1]), int(found[2])


def sharded(specs: Sequence[RunSpec], shard: tuple[int, int]) -> list[RunSpec]:
    """One part of the plan: groups are dealt whole, the largest first, each to the part that has least so far."""
    index, count = shard
    parts: list[list[RunSpec]] = [[] for _ in range(count)]
    for group in sorted(together(specs), key=len, reverse=True):
        min(parts, key=len).extend(group)
    mine = {spec.id for spec in parts[index - 1]}
    return [spec for spec in specs if spec.id in mine]


def cost_of(specs: Sequence[RunSpec], records: Iterable[RunRecord]) -> Cost:
    """Expected seconds of runs, those of a shared reference once."""
    evidence: dict[Hashable, list[RunRecord]] = {}
    for record in records:
        evidence.setdefault(weight_of(record.spec), []).append(record)
    rest, references, unknown = 0.0, dict[str, float](), 0
    for spec in specs:
        expected = _expected(spec, evidence.get(weight_of(spec), []))
        key = reference_of(spec)
        if key is not None:
            references[key] = max(references.get(key, 0.0), expected[0] if expected else 0.0)
        if expected is None:
            unknown += 1
        else:
            rest += expected[1]
    return Cost(rest + sum(references.values()), len(references), unknown)


def _expected(spec: RunSpec, alike: Sequence[RunRecord]) -> tuple[float, float] | None:
    """Seconds of the reference and of everything else, from those runs of its weight that speak best for it."""
    if not alike:
        return None
    best = max(_speaks_for(spec, record) for record in alike)
    times = [_scaled(record, spec) for record in alike if _speaks_for(spec, record) == best]
    return mean(reference for reference, _ in times), mean(rest for _, rest in times)


def _speaks_for(spec: RunSpec, record: RunRecord) -> tuple[bool, bool, bool]:
    """How well, what matters most first: other work on the device may double a time, which scaling does not, nor do
    other values of fields that cost nothing."""
    same_share = record.spec.schedule.share == spec.schedule.share
    return record.made_by.timed, same_share, record.spec.method == spec.method


def weight_of(spec: RunSpec) -> Hashable:
    """What decides the cost of a run, but for its schedule's share and how many unlabelled images it sees."""
    world, schedule = spec.scenario, spec.schedule
    labels = world.main, world.labeled_fraction, world.labels_per_class, world.steps
    sizes = tuple(sorted((name, repr(value)) for name, value in flat(plain(spec.method)).items() if _costs(name)))
    caps = schedule.max_updates, schedule.row_cap, schedule.small_net, schedule == DEMO
    return labels, type(spec.method), sizes, caps


def _costs(field: str) -> bool:
    name = field.rpartition(".")[2]
    return name in ("backbone", "ssl", "pretrained", "unlabeled", "batch", "min_updates") or name.startswith("epoch")


def _scaled(record: RunRecord, wanted: RunSpec) -> tuple[float, float]:
    """A record's seconds, of the reference by how many images it would see; both by the schedule's share."""
    share = wanted.schedule.share / record.spec.schedule.share
    images = _unlabeled(wanted) / _unlabeled(record.spec) if _unlabeled(record.spec) else 1.0
    reference, rest = split_seconds(record)
    return reference * share * images, rest * share


def _unlabeled(spec: RunSpec) -> int:
    world = spec.scenario
    return (world.related or 0) + (world.unrelated or 0) * len(world.peripheral)


def split_seconds(record: RunRecord) -> tuple[float, float]:
    """Of the reference network, whoever trained it, and of everything else."""
    phases = [phase for step in record.steps for phase in step.phases if phase.name == "reference"]
    own = sum(phase.seconds for phase in phases if not phase.cached)
    return sum(phase.seconds for phase in phases), max(0.0, record.made_by.seconds - own)
