"""The pictures below a folder by their content; unchanged files are not read again, links outside are not followed."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from osscl.agent.embeddings import Embedded, file_key
from osscl.agent.photos import PhotoLearner
from osscl.data.folders import ReadProgress, silent, suffixes
from osscl.data.pictures import read_content
from osscl.errors import DamagedFile, DataError, UserError
from osscl.storage import read_sealed, write_sealed

FORMAT = 1
FIRST_PART = 64  # new pictures that are read before anything is shown


@dataclass(frozen=True)
class FolderContents:
    """The readable pictures of a folder, each content once, in the order of their paths."""

    root: Path
    files: tuple[str, ...]  # relative
    keys: tuple[str, ...]  # of their content, hexadecimal
    learner: PhotoLearner
    problems: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    @cached_property
    def found(self) -> Embedded:
        """Their embeddings, looked up when they are needed; pictures that the store has lost are embedded again."""
        store, paths = self.learner.store, [self.root / file for file in self.files]
        store.refresh()
        rows = [store.find(bytes.fromhex(key)) for key in self.keys]
        if lost := [paths[i] for i, row in enumerate(rows) if row < 0]:
            self.learner.embed(lost)
            rows = [store.find(bytes.fromhex(key)) for key in self.keys]
        if -1 in rows:
            raise DataError(f"{paths[rows.index(-1)]} changed while it was being read: refresh the pile")
        return Embedded(store, np.arange(len(rows)), np.array(rows, np.int64), (), (), paths.__getitem__)

    @cached_property
    def places(self) -> dict[str, int]:
        return {key: i for i, key in enumerate(self.keys)}

    @property
    def labels(self) -> tuple[str, ...]:
        """The folder that each picture is in, as in a folder of labelled pictures."""
        return tuple(file.partition("/")[0] for file in self.files)

    def path_of(self, key: str) -> Path | None:
        """The file with this content; None if there is none, or if it has become a link to somewhere else."""
        place = self.places.get(key)
        path = None if place is None else self.root / self.files[place]
        return path if path is not None and is_inside(self.root, path) else None


def unchanged_content(path: Path, key: str) -> bytes:
    """The content of an image file; refused if it is no longer the one with this key."""
    content = read_content(path)
    if file_key(content).hex() != key:
        raise DataError("the picture has changed since it was read")
    return content


def is_inside(root: Path, path: Path) -> bool:
    """Whether a file is below a folder after following links."""
    try:
        return path.resolve(strict=True).is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def read_folder(
    root: Path,
    index: Path,
    learner: PhotoLearner,
    progress: ReadProgress = silent,
    *,
    labeled: bool = False,
    as_read: Callable[[FolderContents], None] | None = None,
) -> FolderContents:
    """Embed the pictures below a folder; what is known about each file is kept in the file `index`.

    With `labeled`, only pictures that are directly in a folder of the root count, as `--labeled` reads them.
    `as_read` is called with what has been read before each part of the new pictures; there may be none.
    """
    known = _read_index(index, learner.store.content_hash)
    listed = dict(_listed(root, labeled=labeled))
    entries = {file: known[file] for file in listed if file in known and known[file][:2] == listed[file]}
    new = [file for file in listed if file not in entries]
    for start, part in _growing(new) if as_read is not None else [(0, new)]:
        if as_read is not None:
            as_read(_contents(root, learner, listed, entries))
        made = learner.embed([root / file for file in part], _shifted(progress, start, len(new)))
        for i, row in zip(made.indices.tolist(), made.rows.tolist(), strict=True):
            entries[part[i]] = (*listed[part[i]], learner.store.key(row).hex(), "")
        for one in made.skipped:
            entries[part[one.index]] = (*listed[part[one.index]], "", one.reason)
        if entries != known:
            _write_index(index, learner.store.content_hash, entries)
    return _contents(root, learner, listed, entries)


def _shifted(progress: ReadProgress, start: int, of: int) -> ReadProgress:
    """The progress of a part, reported as progress of the whole."""
    return lambda done, _: progress(start + done, of)


def _growing(files: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Parts of a list with their start indices, each twice as long as the one before, so that results appear early."""
    start, size = 0, FIRST_PART
    while start < len(files):
        yield start, files[start : start + size]
        start, size = start + size, 2 * size


Entry = tuple[int, int, str, str]  # size, time of the last change in ns, key, problem


def _contents(root: Path, learner: PhotoLearner, listed: Iterable[str], entries: Mapping[str, Entry]) -> FolderContents:
    first: dict[str, str] = {}
    there = [(file, entries[file]) for file in listed if file in entries]
    for file, (_, _, key, _) in there:
        if key:
            first.setdefault(key, file)
    problems = tuple(problem for _, (_, _, _, problem) in there if problem)
    return FolderContents(root, tuple(first.values()), tuple(first), learner, problems)


def _listed(root: Path, *, labeled: bool) -> Iterator[tuple[str, tuple[int, int]]]:
    """Every image below a folder with its size and time, without hidden ones and links that lead outside."""
    if not root.is_dir():
        raise UserError(f"{root} is not a folder")
    known = suffixes() | {".heic", ".heif"}  # HEIC is listed and explained where its package is missing
    for place, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        inside = os.path.relpath(place, root)
        depth = 0 if inside == "." else inside.count(os.sep) + 1
        if labeled and depth != 1:
            continue
        for name in sorted(files):
            path = os.path.join(place, name)  # noqa: PTH118 - ten times faster for many files
            if name.startswith(".") or os.path.splitext(name)[1].lower() not in known:  # noqa: PTH122
                continue
            if os.path.islink(path) and not is_inside(root, Path(path)):  # noqa: PTH114
                continue
            try:
                about = os.stat(path)  # noqa: PTH116
            except OSError:
                continue
            yield name if depth == 0 else f"{inside}/{name}", (about.st_size, about.st_mtime_ns)


def _read_index(index: Path, encoder: str) -> dict[str, Entry]:
    """What is known about each file; nothing if the index is missing, damaged, or of another encoder."""
    try:
        saved = read_sealed(index)
        if (saved["format"], saved["encoder"]) != (FORMAT, encoder):
            return {}
        return {str(file): (int(a), int(b), str(key), str(why)) for file, (a, b, key, why) in saved["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DamagedFile):
        return {}


def _write_index(index: Path, encoder: str, entries: dict[str, Entry]) -> None:
    write_sealed(index, {"format": FORMAT, "encoder": encoder, "files": entries})
