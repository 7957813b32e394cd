"""An index of records, so that thousands are listed without parsing them again. The JSON files stay the truth."""

import contextlib
import functools
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import osscl
from osscl.data.cache import cache_dir
from osscl.errors import DataError
from osscl.methods.base import PhaseReport
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

MANY = 200  # records from which on the index is used: fewer are read in a moment
UNSETTLED = 2_000_000_000  # ns after a write in which another one may leave time and size of a file the same
PATIENCE = 2  # seconds to wait for another process that writes the index
LAZY = ("steps", "confusion")  # fields that are decoded when they are first used
TABLE = "CREATE TABLE IF NOT EXISTS records (file BLOB PRIMARY KEY, stamp TEXT, digest BLOB, parts TEXT)"

Entry = tuple[str, str, str]  # the short fields of a record, its steps and its confusion, as JSON


def read_files(paths: Sequence[Path]) -> Iterator[tuple[Path, RunRecord | DataError]]:
    """The record in each file, or why there is none; from the index where the file has not changed since."""
    file = cache_dir() / "records.sqlite" if len(paths) >= MANY else None
    known = _stored(file) if file is not None else {}
    fresh: dict[bytes, tuple[str, Entry]] = {}
    for path in paths:
        try:
            key, stamp = _key(path), _stamp(path)
            if (entry := known.get(key)) is not None and entry[0] == stamp:
                yield path, _decoded(entry[1])
                continue
            record = read_record(path)
            if file is not None and _is_settled(path) and _stamp(path) == stamp:
                fresh[key] = stamp, _encoded(record)
            yield path, record
        except OSError as error:
            yield path, DataError(f"{path} cannot be read as a record: {error.strerror}")
        except DataError as error:
            yield path, error
    if file is not None and fresh:
        _store(file, fresh)


def _key(path: Path) -> bytes:
    return os.fsencode(path.absolute())


def _stamp(path: Path) -> str:
    """What changes with a file, or with the code that reads it."""
    found = path.stat()
    return f"{_code()} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"


@functools.cache
def _code() -> str:
    """Name, size and time of this package's modules: other code may refuse a record or read it in another way."""
    package = Path(osscl.__file__).parent
    stats = [(str(path.relative_to(package)), path.stat()) for path in sorted(package.rglob("*.py"))]
    text = json.dumps([[name, found.st_size, found.st_mtime_ns] for name, found in stats])
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _is_settled(path: Path) -> bool:
    return time.time_ns() - path.stat().st_mtime_ns > UNSETTLED


# ----- the database; without it, everything takes longer and is the same


def _stored(file: Path) -> dict[bytes, tuple[str, Entry]]:
    """The undamaged entries by file. A damaged database is deleted, to be made again."""
    if not file.exists():
        return {}
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=PATIENCE)) as database:
            rows = database.execute("SELECT file, stamp, digest, parts FROM records").fetchall()
        return {
            key: (stamp, tuple(parts.split("\n")))  # type: ignore[misc]
            for key, stamp, digest, parts in rows
            if digest == _digest(key, stamp, parts)
        }
    except sqlite3.OperationalError as error:
        if "malformed" not in str(error) and "no such" not in str(error):
            return {}  # locked, or not to be opened
    except (sqlite3.Error, TypeError, AttributeError, UnicodeError, MemoryError, OverflowError):
        pass
    for damaged in (file, file.with_name(f"{file.name}-journal")):
        with contextlib.suppress(OSError):
            damaged.unlink()
    return {}


def _store(file: Path, entries: dict[bytes, tuple[str, Entry]]) -> None:
    """Add entries, and remove those of files that are gone."""
    rows = [(key, stamp, "\n".join(entry)) for key, (stamp, entry) in entries.items()]
    with contextlib.suppress(OSError, sqlite3.Error):
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(file, timeout=PATIENCE)) as database, database:
            database.execute(TABLE)
            gone = [key for (key,) in database.execute("SELECT file FROM records") if not os.path.exists(key)]  # noqa: PTH110 - bytes
            database.executemany("DELETE FROM records WHERE file = ?", [(key,) for key in gone])
            database.executemany(
                "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)",
                [(key, stamp, _digest(key, stamp, parts), parts) for key, stamp, parts in rows],
            )


def _digest(key: bytes, stamp: str, parts: str) -> bytes:
    return blake2b(b"\n".join((key, stamp.encode(), parts.encode())), digest_size=16).digest()


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
