"""Pictures into folders: one for each class that they look like, and groups of those that look like nothing learned."""

import contextlib
import csv
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePosixPath

from osscl.agent.groups import around_their_mean, grouped
from osscl.data.folders import Pictures
from osscl.errors import UserError
from osscl.runs.model import Model
from osscl.storage import write_text

UNKNOWN, TABLE, PAGE = "unknown", "sorted.csv", "index.html"
LONGEST_NAME = 255  # bytes
COLUMNS = ("file", "sorted_as", "class", "probability", "score", "looks_known")


@dataclass(frozen=True)
class Place:
    """Where a picture goes, and why."""

    file: Path
    to: PurePosixPath  # below the folder that all go to
    name: str  # the nearest class
    probability: float
    score: float | None
    known: bool | None  # None where the method does not tell; it goes to its class then


def places_for(model: Model, pictures: Pictures, threshold: float | None, groups: int | None) -> list[Place]:
    """Where each picture belongs, by what the model makes of it."""
    found = model.predict(pictures.images, threshold)
    known = [None] * len(pictures) if found.known is None else found.known.tolist()
    scores = [None] * len(pictures) if found.scores is None else found.scores.tolist()
    unknown = [row for row, sure in enumerate(known) if sure is False]
    group_of = dict(zip(unknown, _groups(model, pictures, unknown, groups), strict=True))
    folder_of = folders_of(model.classes)
    folders = [
        PurePosixPath(folder_of[None], f"group-{group_of[row] + 1}")
        if row in group_of
        else PurePosixPath(folder_of[name])
        for row, name in enumerate(found.names)
    ]
    names = _without_clashes(folders, [file.name for file in pictures.files])
    told = zip(pictures.files, folders, names, found.names, found.probabilities.tolist(), scores, known, strict=True)
    return [Place(file, folder / name, *rest) for file, folder, name, *rest in told]


def _groups(model: Model, pictures: Pictures, unknown: Sequence[int], groups: int | None) -> list[int]:
    if not unknown:
        return []
    everything = around_their_mean(model.features(pictures.images))
    return grouped(everything[list(unknown)], groups).tolist()


def folders_of(classes: Sequence[str]) -> dict[str | None, str]:
    """A folder for each class, and under None one for what is unknown; no two are one, wherever case counts or not."""
    found: dict[str | None, str] = {}
    taken = {TABLE, PAGE}
    for name in (*classes, None):
        free = plain = UNKNOWN if name is None else as_folder(name)
        number = 1
        while free.lower() in taken:
            number += 1
            free = f"{plain}-{number}"
        taken.add(free.lower())
        found[name] = free
    return found


def as_folder(name: str) -> str:
    """A class's name as that of a folder; an agent taught from Python may have any."""
    plain = "".join("_" if letter in '/\\:*?"<>|' or not letter.isprintable() else letter for letter in name).strip()
    return f"_{plain}" if plain in ("", ".", "..") else plain


def _without_clashes(folders: Sequence[PurePosixPath], names: Sequence[str]) -> list[str]:
    """Files of one name from several folders get a number where they meet; on some disks case does not count."""
    met: set[tuple[str, str]] = set()
    free = []
    for folder, name in zip(folders, names, strict=True):
        stem, dot, suffix = name.rpartition(".") if "." in name[1:] else (name, "", "")
        candidate, number = name, 1
        while (str(folder).lower(), candidate.lower()) in met:
            number += 1
            candidate = f"{_cut(stem, len(os.fsencode(f'-{number}{dot}{suffix}')))}-{number}{dot}{suffix}"
        met.add((str(folder).lower(), candidate.lower()))
        free.append(candidate)
    return free


def _cut(stem: str, more: int) -> str:
    """As much of a name as fits beside `more` bytes."""
    while len(os.fsencode(stem)) + more > LONGEST_NAME:
        stem = stem[:-1]
    return stem


def require_new(into: Path, beside: Sequence[Path]) -> None:
    """Sorted pictures go to a place of their own, not among those that are sorted or into an agent."""
    if into.is_symlink() or (into.exists() and (not into.is_dir() or any(into.iterdir()))):
        raise UserError(f"{into} is there already: pictures are sorted into a new folder, nothing is overwritten")
    for path in beside:
        if path.is_dir() and into.resolve().is_relative_to(path.resolve()):
            raise UserError(
                f"{into} is in {path}, where the copies would be taken for more pictures: give another folder"
            )


@contextlib.contextmanager
def new_folder(into: Path) -> Iterator[Path]:
    """A draft beside `into` that takes its place at the end: the folder is whole, or not there."""
    draft = into.with_name(f".{into.name}-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        yield draft
        draft.rename(into)
    except OSError as error:
        raise UserError(f"{into} cannot be written: {error.strerror or error} ({error.filename})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def bring(places: Sequence[Place], into: Path, *, link: bool) -> list[Place]:
    """A copy of each picture in its place, or a link to it, and a table of them; one whose file is gone is left out."""
    brought = []
    for place in places:
        target = into / place.to
        target.parent.mkdir(parents=True, exist_ok=True)
        if not place.file.is_file():
            continue
        if link:
            target.symlink_to(place.file.resolve())
        else:
            shutil.copy2(place.file, target)
        brought.append(place)
    write_text(into / TABLE, _table(brought))
    return brought


def _table(places: Sequence[Place]) -> str:
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for place in places:
        score = "" if place.score is None else f"{place.score:.4f}"
        known = "" if place.known is None else str(place.known).lower()
        rows.writerow([place.file, place.to, place.name, f"{place.probability:.4f}", score, known])
    return text.getvalue().encode("utf-8", "replace").decode()  # a file's name may be no text
