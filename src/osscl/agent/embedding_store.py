"""An on-disk store of embeddings, keyed by picture content: append-only, safe for several processes.

A store is a folder for one encoder and one number of views:

    store.json  what the rows are
    index       one record of 32 bytes per row: the picture's key, and a digest of key and row
    rows        float32 (n, views, dim)

Rows are written and synced before their records, so that a process that is killed leaves at most rows without a
record, which the next writer overwrites. A row counts only if it matches its digest: the picture of a damaged row is
embedded again and appended, and a lookup finds the newest row of a key.
"""

import contextlib
import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from osscl.data.images import Array
from osscl.errors import DataError, Locked, UserError
from osscl.storage import write_text

FORMAT = 1
KEY = 16  # bytes
RECORD = 2 * KEY
SECONDS_TO_WAIT = 60.0  # for other writers; each holds the lock for one batch
RECENT = 8192  # keys found by a dictionary before they are sorted in


class EmbeddingStore:
    """The embeddings of one encoder and one number of views, in a separate folder."""

    def __init__(self, root: Path, content_hash: str, dim: int, views: int = 1) -> None:
        """Open or create the store; stores of several encoders share a root."""
        self.folder = root / f"{content_hash[:16]}-{views}"
        self.content_hash, self.dim, self.views = content_hash, dim, views
        self._row_bytes = 4 * dim * views
        self._require_same({"format": FORMAT, "encoder": content_hash, "dim": dim, "views": views})
        self._lock = filelock.FileLock(self.folder / ".lock", timeout=SECONDS_TO_WAIT)
        self._index = KeyIndex()
        self._map: mmap.mmap | None = None
        self._read_new_records()

    def __len__(self) -> int:
        """Number of rows, including damaged and superseded ones."""
        return len(self._index)

    @property
    def rows(self) -> Array:
        """All rows, float32 (n, views, dim), memory-mapped and read-only; `take` checks what it returns."""
        return self._mapped(len(self)).view()

    def take(self, rows: Sequence[int] | Array) -> Array:
        """These rows, float32 (n, views, dim), each checked against its digest."""
        every = self.rows
        taken = np.empty((len(rows), self.views, self.dim), np.float32)
        for i, row in enumerate(rows):
            taken[i] = every[row]
            if self._digest(self._index.key(int(row)), taken[i]) != self._index.digest(int(row)):
                raise DataError(f"{self.folder}: row {row} is damaged; embed its picture again")
        return taken

    def find(self, key: bytes) -> int:
        """The row of a picture; -1 if there is none or if it is damaged."""
        row = self._index.find(key)
        if row < 0 or self._digest(key, self._mapped(row + 1)[row]) != self._index.digest(row):
            return -1
        return row

    def append(self, keys: Sequence[bytes], values: Array) -> list[int]:
        """Add rows, which are complete and synced on return; a picture that another process added keeps its row.

        Args:
            keys: of the pictures.
            values: float32 (n, views, dim).
        """
        values = np.ascontiguousarray(values, np.float32)
        if values.shape != (len(keys), self.views, self.dim):
            raise ValueError(f"expected rows of shape {(self.views, self.dim)}, got {values.shape}")
        if not np.isfinite(values).all():
            raise DataError("the encoder returned values that are not finite")
        with self._writing():
            self._read_new_records()
            new = [i for i, key in enumerate(keys) if self.find(key) < 0]
            records = b"".join(keys[i] + self._digest(keys[i], values[i]) for i in new)
            if new:
                self._write("rows", len(self) * self._row_bytes, values[new].tobytes())
                self._write("index", len(self) * RECORD, records)
                self._read_new_records()
        return [self._index.find(key) for key in keys]

    def key(self, row: int) -> bytes:
        """The key of a row's picture."""
        return self._index.key(row)

    def refresh(self) -> None:
        """Read rows that other processes have added."""
        self._read_new_records()

    def keys(self) -> Array:
        """The keys of all sound rows, uint8 (n, 16)."""
        keys = self._index.keys()
        return keys[[self.find(key.tobytes()) >= 0 for key in keys]]

    def _require_same(self, meant: dict[str, Any]) -> None:
        path = self.folder / "store.json"
        if not path.exists():
            write_text(path, json.dumps(meant))
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise DataError(f"{path} is damaged: delete the folder; its pictures will be embedded again") from None
        if found != meant:
            raise DataError(f"{self.folder} was written by another version of osscl: delete it, or choose another one")

    def _digest(self, key: bytes, row: Array) -> bytes:
        return hashlib.blake2b(key + row.tobytes(), digest_size=KEY).digest()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except filelock.Timeout:
            raise Locked(f"{self.folder} is locked by another process") from None
        except OSError as error:
            raise UserError(f"cannot write embeddings to {self.folder}: {error.strerror}") from None

    def _write(self, name: str, offset: int, content: bytes) -> None:
        """Write after the committed bytes, overwrite what a killed process may have left there, and sync."""
        with os.fdopen(os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            file.truncate(offset)
            file.seek(offset)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def _read_new_records(self) -> None:
        """Read the records after the last known one; earlier ones never change."""
        try:
            with (self.folder / "index").open("rb") as file:
                file.seek(len(self) * RECORD)
                content = file.read()
            whole = (self.folder / "rows").stat().st_size // self._row_bytes  # fewer than records in a damaged store
        except FileNotFoundError:
            return
        count = min(len(content) // RECORD, whole - len(self))
        if count > 0:
            self._index.extend(np.frombuffer(content, np.uint8, count * RECORD).reshape(-1, RECORD))

    def _mapped(self, rows: int) -> Array:
        """A memory map of at least this many rows, renewed when the file has grown."""
        if rows == 0:
            return np.empty((0, self.views, self.dim), np.float32)
        held = self._map
        if held is None or len(held) < rows * self._row_bytes:
            with (self.folder / "rows").open("rb") as file:
                held = mmap.mmap(file.fileno(), len(self) * self._row_bytes, access=mmap.ACCESS_READ)
            self._map = held  # arrays that use the old map keep it alive
        count = min(len(held) // self._row_bytes, len(self))
        shape = count, self.views, self.dim
        return np.frombuffer(held, np.float32, count * self.views * self.dim).reshape(shape)


class KeyIndex:
    """The row of each key: sorted numbers, and a dictionary of the keys added since the last sort.

    A picture takes 32 bytes for its record and 16 for its place in the order.
    """

    def __init__(self) -> None:
        self._records = np.empty((0, RECORD), np.uint8)  # with room at the end
        self._count = 0
        self._sorted = np.empty(0, np.uint64), np.empty(0, np.int64)  # first halves of keys, and their rows
        self._recent: dict[bytes, int] = {}

    def __len__(self) -> int:
        return self._count

    def key(self, row: int) -> bytes:
        return self._records[row, :KEY].tobytes()

    def digest(self, row: int) -> bytes:
        return self._records[row, KEY:].tobytes()

    def keys(self) -> Array:
        return self._records[: self._count, :KEY]

    def extend(self, records: Array) -> None:
        first, self._count = self._count, self._count + len(records)
        if self._count > len(self._records):
            grown = np.empty((max(self._count, 3 * len(self._records) // 2), RECORD), np.uint8)
            grown[:first] = self._records[:first]
            self._records = grown
        self._records[first : self._count] = records
        if len(self._recent) + len(records) > max(RECENT, len(self._sorted[0]) // 8):
            self._sort()
        else:
            self._recent |= {self.key(row): row for row in range(first, self._count)}

    def find(self, key: bytes) -> int:
        """The newest row of a key; -1 where there is none."""
        if (row := self._recent.get(key)) is not None:
            return row
        halves, rows = self._sorted
        half = np.frombuffer(key, np.uint64, 1)[0]
        at = int(np.searchsorted(halves, half, side="right")) - 1
        while at >= 0 and halves[at] == half:  # several for a damaged row and its successor
            if self.key(int(rows[at])) == key:
                return int(rows[at])
            at -= 1
        return -1

    def _sort(self) -> None:
        halves = np.ascontiguousarray(self._records[: self._count, :8]).view(np.uint64).reshape(-1)
        order = np.argsort(halves, kind="stable")
        self._sorted = halves[order], order
        self._recent = {}
