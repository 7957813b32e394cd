"""What was read from record files, kept until they change, for commands that list thousands. Imports no torch."""

import contextlib
import functools
import json
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import osscl
from osscl.places import cache_dir

TIMED = "timed"  # folder, below that of all runs, of runs that were repeated for their time
MANY = 200  # files from which on something is kept: fewer are read in a moment
UNSETTLED = 2_000_000_000  # ns after a write in which another one may leave time and size of a file the same
PATIENCE = 2  # seconds to wait for another process that writes the index
DAMAGED = (sqlite3.Error, TypeError, AttributeError, UnicodeError, MemoryError, OverflowError)


def record_files(folder: Path) -> list[Path]:
    """The record files below a folder, repeated runs last; other JSON is skipped."""
    found = sorted(folder.rglob("*.json"), key=lambda path: (TIMED in path.relative_to(folder).parts, path))
    return [
        path
        for path in found
        if not (path.name.startswith(".") or path.name == "spec.json" or path.parent.name in ("bench", "studies"))
    ]


def index_file() -> Path:
    return cache_dir() / "records.sqlite"


class Kept:
    """Texts by file in one table of the index: each is valid while size, times and inode of the file, and the code of
    this package, are unchanged, and its digest is right. Without the index everything takes longer and is the same."""

    def __init__(self, table: str, paths: Sequence[Path]) -> None:
        self.table, self.is_used = table, len(paths) >= MANY
        self._known = self._read() if self.is_used else {}
        self._new: dict[bytes, tuple[str, str]] = {}

    def get(self, path: Path) -> str | None:
        """The text that was kept for a file, if the file has not changed since."""
        known = self._known.get(_key(path))
        return known[1] if known is not None and known[0] == stamp_of(path) else None

    def add(self, path: Path, stamp: str, text: str) -> None:
        """Keep a text that was made from a file, unless the file has changed since the stamp or a moment ago."""
        if self.is_used and _is_settled(path) and stamp_of(path) == stamp:
            self._new[_key(path)] = stamp, text

    def _read(self) -> Mapping[bytes, tuple[str, str]]:
        """The undamaged entries by file. A damaged database is deleted, to be made again."""
        file = index_file()
        if not file.exists():
            return {}
        try:
            with contextlib.closing(sqlite3.connect(file, timeout=PATIENCE)) as database:
                database.execute(self._creation)  # another table may be there
                rows = database.execute(f"SELECT file, stamp, digest, text FROM {self.table}").fetchall()
            return {key: (stamp, text) for key, stamp, digest, text in rows if digest == _digest(key, stamp, text)}
        except sqlite3.OperationalError as error:
            if "malformed" not in str(error) and "no such" not in str(error):
                return {}  # locked, or not to be opened
        except DAMAGED:
            pass
        for damaged in (file, file.with_name(f"{file.name}-journal")):
            with contextlib.suppress(OSError):
                damaged.unlink()
        return {}

    def write(self) -> None:
        """Write what was added, and remove what was kept for files that are gone."""
        if not self._new:
            return
        with contextlib.suppress(OSError, sqlite3.Error):
            index_file().parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(index_file(), timeout=PATIENCE)) as database, database:
                database.execute(self._creation)
                all_keys = [key for (key,) in database.execute(f"SELECT file FROM {self.table}")]
                gone = [(key,) for key in all_keys if not os.path.exists(key)]  # noqa: PTH110 - bytes
                database.executemany(f"DELETE FROM {self.table} WHERE file = ?", gone)
                database.executemany(
                    f"INSERT OR REPLACE INTO {self.table} VALUES (?, ?, ?, ?)",
                    [(key, stamp, _digest(key, stamp, text), text) for key, (stamp, text) in self._new.items()],
                )

    @property
    def _creation(self) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.table} (file BLOB PRIMARY KEY, stamp TEXT, digest BLOB, text TEXT)"


def _key(path: Path) -> bytes:
    return os.fsencode(path.absolute())


def stamp_of(path: Path) -> str:
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


def _digest(key: bytes, stamp: str, text: str) -> bytes:
    return blake2b(b"\n".join((key, stamp.encode(), text.encode())), digest_size=16).digest()
