"""An index of records, so that thousands are listed without parsing them again. The JSON files stay the truth."""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from osscl.errors import DataError
from osscl.methods.base import PhaseReport
from osscl.runs.kept import Kept, stamp_of
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


# ----- entries


def _encoded(record: RunRecord) -> Entry:
    whole = record_to_plain(record)
    spec, steps, confusion = (whole.pop(name) for name in ("spec", *LAZY))
    spec = json.dumps({**spec, "seed": 0})
    whole |= {"spec": spec, "seed": record.spec.seed, "minutes": record.minutes}
    return json.dumps(whole), json.dumps(steps), json.dumps(confusion)


def _decoded(entry: Entry) -> RunRecord:
    """A record that was checked when it was indexed, so that its fields need no second check."""
    fields = json.loads(entry[0])
    del fields["format"]
    spec = replace(_spec(fields.pop("spec")), seed=fields.pop("seed"))
    if not isinstance(spec.method, ForeignConfig):
        spec.__dict__["id"] = fields["id"]
    made_by = fields["made_by"]
    made_by["earlier"] = tuple(Session(**one) for one in made_by["earlier"])
    record: RunRecord = object.__new__(RunRecord)
    record.__dict__.update(
        fields, spec=spec, made_by=Provenance(**made_by), accuracy=_tuples(fields["accuracy"]),
        overall=tuple(fields["overall"]), class_order=tuple(fields["class_order"]),
        later={"steps": functools.partial(_steps, entry[1]), "confusion": functools.partial(_rows, entry[2])},
    )  # fmt: skip
    return record


@functools.lru_cache(maxsize=4096)
def _spec(text: str) -> RunSpec:
    """Most records differ from another one in nothing but their seed."""
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
        "phases": tuple(PhaseReport(**phase) for phase in fields["phases"]),
        "gate": None if gate is None else GateRecord(**gate),
        "known": None if known is None else KnownRecord(**known),
    }
    return StepRecord(**fields)
