"""Cached contents of record files, valid until these change, for commands that list many. Does not import torch."""

import contextlib
import functools
import gc
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import osscl
from osscl.places import cache_dir

SPEC_FILE = "spec.json"  # in the folder of each run
TIMED = "timed"  # folder, below that of all runs, of runs that were repeated for their time
MANY = 50  # number of files from which something is kept: fewer are read quickly
UNSETTLED = 2_000_000_000  # ns after a write; another one within them may leave a file's time and size the same
PATIENCE = 2  # seconds to wait for another process that writes the index
DAMAGED = (sqlite3.Error, TypeError, AttributeError, UnicodeError, MemoryError, OverflowError)


def record_files(folder: Path) -> list[Path]:
    """The record files below a folder, repeated runs last; other JSON is skipped."""
    found = sorted(folder.rglob("*.json"), key=lambda path: (TIMED in path.relative_to(folder).parts, path))
    return [
        path
        for path in found
        if not (path.name.startswith(".") or path.name == SPEC_FILE or path.parent.name in ("bench", "studies"))
    ]


def index_file() -> Path:
    return cache_dir() / "records.sqlite"


class Kept:
    """Texts by file in one table of the index: each is valid while size, times and inode of the file, and the code of
    this package, are unchanged, and its digest matches. The index only saves time."""

    def __init__(self, table: str, paths: Sequence[Path]) -> None:
        self.table, self.is_used = table, len(paths) >= MANY
        self._known = self._read(sorted(map(_key, paths))) if self.is_used else {}
        self._new: dict[bytes, tuple[str, str]] = {}

    def get(self, path: Path) -> str | None:
        """The text that was kept for a file, if the file has not changed since."""
        with contextlib.suppress(OSError):  # the file may have been deleted
            return self.text(_key(path), stamp_of(path))
        return None

    def text(self, key: bytes, stamp: str) -> str | None:
        """The text that was kept by this key, if its stamp is the same."""
        known = self._known.get(key)
        return known[1] if known is not None and known[0] == stamp else None

    def add(self, path: Path, stamp: str, text: str) -> None:
        """Keep a text that was made from a file, unless the file has changed since the stamp or was just written."""
        with contextlib.suppress(OSError):  # the file may have been deleted
            if self.is_used and _is_settled(path) and stamp_of(path) == stamp:
                self.put(_key(path), stamp, text)

    def put(self, key: bytes, stamp: str, text: str) -> None:
        self._new[key] = stamp, text

    def _read(self, keys: Sequence[bytes]) -> Mapping[bytes, tuple[str, str]]:
        """The undamaged entries by file, from the first to the last of these keys, which are sorted: other folders may
        have thousands. A damaged database is deleted, to be made again."""
        file = index_file()
        if not file.exists():
            return {}
        try:
            with contextlib.closing(sqlite3.connect(file, timeout=PATIENCE)) as database:
                database.execute(self._creation)  # another table may be there
                wanted = f"SELECT file, stamp, digest, text FROM {self.table} WHERE file BETWEEN ? AND ?"
                rows = database.execute(wanted, (keys[0], keys[-1] + b"\xff")).fetchall()
            return {key: (stamp, text) for key, stamp, digest, text in rows if digest == _digest(key, stamp, text)}
        except sqlite3.OperationalError as error:
            if "malformed" not in str(error) and "no such" not in str(error):
                return {}  # locked, or it cannot be opened
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
                gone = [(key,) for key in all_keys if not os.path.exists(key.partition(b"\n")[0])]  # noqa: PTH110 - bytes
                database.executemany(f"DELETE FROM {self.table} WHERE file = ?", gone)
                database.executemany(
                    f"INSERT OR REPLACE INTO {self.table} VALUES (?, ?, ?, ?)",
                    [(key, stamp, _digest(key, stamp, text), text) for key, (stamp, text) in self._new.items()],
                )

    @property
    def _creation(self) -> str:
        return f"CREATE TABLE IF NOT EXISTS {self.table} (file BLOB PRIMARY KEY, stamp TEXT, digest BLOB, text TEXT)"


class KeptAnswer:
    """The answer to a question about record files, kept until one of them, or the code of this package, changes."""

    def __init__(self, question: str, files: Sequence[Path]) -> None:
        self._files, self._kept = files, Kept("answers", files)
        self._key = _key(files[0]) + b"\n" + question.encode(errors="surrogateescape") if files else b""
        self._stamp = self._stamp_now()

    def get(self) -> str | None:
        return None if self._stamp is None else self._kept.text(self._key, self._stamp)

    def put(self, text: str) -> None:
        """Keep an answer, unless a file has changed since the question was asked or just before it."""
        if self._stamp is not None and self._stamp_now() == self._stamp and all(map(_is_settled, self._files)):
            self._kept.put(self._key, self._stamp, text)
            self._kept.write()

    def _stamp_now(self) -> str | None:
        """A digest of all files; None if nothing is kept, or if a file has just been removed."""
        digest = blake2b(digest_size=16)
        try:
            for path in self._files if self._kept.is_used else ():
                digest.update(b"%b\n%b\n" % (_key(path), stamp_of(path).encode()))
        except OSError:
            return None
        return digest.hexdigest() if self._kept.is_used else None


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the garbage collector: records have no cycles, and searching thousands takes a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _key(path: Path) -> bytes:
    return os.fsencode(path.absolute())


def stamp_of(path: Path) -> str:
    """A text that changes with a file, and with the code that reads it."""
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
    """Whether a file exists and was last written more than two seconds ago."""
    with contextlib.suppress(OSError):
        return time.time_ns() - path.stat().st_mtime_ns > UNSETTLED
    return False


def _digest(key: bytes, stamp: str, text: str) -> bytes:
    return blake2b(b"\n".join((key, stamp.encode(), text.encode())), digest_size=16).digest()
