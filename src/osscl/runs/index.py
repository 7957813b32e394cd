"""An index of records, to list thousands without parsing them again. The JSON files remain the source of truth."""

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from osscl.errors import DataError
from osscl.methods.base import PhaseReport
from osscl.runs.kept import Kept, record_files, stamp_of
from osscl.runs.record import (
    GateRecord,
    KnownRecord,
    Provenance,
    RunRecord,
    Session,
    StepRecord,
    read_record,
    record_to_plain,
)
from osscl.runs.spec import ForeignConfig, RunSpec, spec_from_plain

T = TypeVar("T")
LAZY = ("steps", "confusion")  # fields that are decoded when they are first used
Entry = tuple[str, str, str]  # the short fields of a record, its steps and its confusion, as JSON


def read_files(paths: Sequence[Path]) -> Iterator[tuple[Path, RunRecord | DataError]]:
    """The record in each file, or why there is none; from the index where the file has not changed since."""
    kept = Kept("records", paths)
    for path in paths:
        try:
            if (text := kept.get(path)) is not None:
                yield path, _decoded(tuple(text.split("\n")))  # type: ignore[arg-type]
                continue
            stamp, record = stamp_of(path), read_record(path)
            if kept.is_used:
                kept.add(path, stamp, "\n".join(_encoded(record)))
            yield path, record
        except OSError as error:
            yield path, DataError(f"{path} cannot be read as a record: {error.strerror}")
        except DataError as error:
            yield path, error
    kept.write()


def read_records(folder: Path) -> tuple[list[RunRecord], list[str]]:
    """Every record below a folder, once, and one problem per damaged file."""
    return distinct_records(read_files(record_files(folder)))


def distinct_records(found: Iterable[tuple[Path, RunRecord | DataError]]) -> tuple[list[RunRecord], list[str]]:
    """The records of these files, each once, and one problem per damaged file."""
    records: dict[str, RunRecord] = {}
    problems = []
    for path, record in found:
        if isinstance(record, DataError):
            problems.append(str(record))
            continue
        first = records.setdefault(record.id, record)
        if first is not record and first != record and not is_retimed(first, record):
            problems.append(f"{path} is another record of {record.id}")
    return list(records.values()), problems


def is_retimed(first: RunRecord, other: RunRecord) -> bool:
    """Whether another record of a run has the time that the first one lacks."""
    return other.made_by.timed and not first.made_by.timed


# ----- entries


def _encoded(record: RunRecord) -> Entry:
    whole = record_to_plain(record)
    spec, steps, confusion = (whole.pop(name) for name in ("spec", *LAZY))
    spec = json.dumps({**spec, "seed": 0})
    whole |= {"spec": spec, "seed": record.spec.seed, "minutes": record.minutes}
    return _json(whole), _json(steps), _json(confusion)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _decoded(entry: Entry) -> RunRecord:
    """A record that was checked when it was indexed, so that its fields need no second check."""
    fields = json.loads(entry[0])
    del fields["format"]
    spec = replace(_spec(fields.pop("spec")), seed=fields.pop("seed"))
    if not isinstance(spec.method, ForeignConfig):
        spec.__dict__["id"] = fields["id"]
    made_by = fields["made_by"]
    made_by["earlier"] = tuple(Session(**one) for one in made_by["earlier"])
    fields |= {
        "spec": spec, "made_by": Provenance(**made_by), "accuracy": _tuples(fields["accuracy"]),
        "overall": tuple(fields["overall"]), "class_order": tuple(fields["class_order"]),
        "later": {"steps": functools.partial(_steps, entry[1]), "confusion": functools.partial(_rows, entry[2])},
    }  # fmt: skip
    return _unchecked(RunRecord, fields)


@functools.lru_cache(maxsize=4096)
def _spec(text: str) -> RunSpec:
    """The spec in a text without its seed, cached: most records differ from others only in their seed."""
    return spec_from_plain(json.loads(text), recorded=True)


def _tuples(rows: Sequence[Sequence[Any]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, rows))


def _rows(text: str) -> tuple[tuple[int, ...], ...]:
    return _tuples(json.loads(text))


def _steps(text: str) -> tuple[StepRecord, ...]:
    return tuple(map(_step, json.loads(text)))


def _step(fields: dict[str, Any]) -> StepRecord:
    gate, known = fields["gate"], fields["known"]
    if gate is not None:
        gate["histograms"] = {kind: tuple(counts) for kind, counts in gate["histograms"].items()}
        gate |= {"let_in": _tuples(gate["let_in"]), "kept_out": _tuples(gate["kept_out"])}
    fields |= {
        "new_classes": tuple(fields["new_classes"]),
        "phases": tuple(_unchecked(PhaseReport, phase) for phase in fields["phases"]),
        "gate": None if gate is None else _unchecked(GateRecord, gate),
        "known": None if known is None else _unchecked(KnownRecord, known),
    }
    return _unchecked(StepRecord, fields)


def _unchecked(kind: type[T], fields: dict[str, Any]) -> T:
    """A frozen dataclass with all of its fields, several times faster than by its constructor."""
    made = object.__new__(kind)
    made.__dict__.update(fields)
    return made
