"""Pictures into folders: one for each class that they look like, and groups of those that look like nothing learned."""

import csv
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from osscl.agent.groups import around_their_mean, grouped
from osscl.data.folders import Pictures
from osscl.errors import UserError
from osscl.experiments.saved import Model
from osscl.stored import write_text

UNKNOWN = "unknown"
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
    apart = _folder_of_unknown(model.classes)
    folders = [
        PurePosixPath(apart, f"group-{group_of[row] + 1}") if row in group_of else PurePosixPath(as_folder(name))
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


def _folder_of_unknown(classes: Sequence[str]) -> str:
    """Beside the classes' folders, and none of them."""
    taken, name = {as_folder(one).lower() for one in classes}, UNKNOWN
    while name in taken:
        name += "-"
    return name


def as_folder(name: str) -> str:
    """A class's name as that of a folder; an agent taught from Python may have any."""
    plain = "".join("_" if letter in '/\\:*?"<>|' or not letter.isprintable() else letter for letter in name).strip()
    return f"_{plain}" if plain in ("", ".", "..") else plain


def _without_clashes(folders: Sequence[PurePosixPath], names: Sequence[str]) -> list[str]:
    """Files of one name from several folders get a number where they meet; on some disks case does not count."""
    met: Counter[tuple[str, str]] = Counter()
    free = []
    for folder, name in zip(folders, names, strict=True):
        stem, dot, suffix = name.rpartition(".")
        candidate, number = name, 1
        while met[str(folder).lower(), candidate.lower()]:
            number += 1
            candidate = f"{stem or suffix}-{number}{dot + suffix if stem else ''}"
        met[str(folder).lower(), candidate.lower()] += 1
        free.append(candidate)
    return free


def require_empty(into: Path) -> None:
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UserError(f"{into} is there already: pictures are sorted into a new folder, nothing is overwritten")


def bring(places: Sequence[Place], into: Path, *, link: bool) -> None:
    """A copy of each picture in its place, or a link to it; a table of all of them beside the folders."""
    for place in places:
        target = into / place.to
        target.parent.mkdir(parents=True, exist_ok=True)
        if link:
            target.symlink_to(place.file.resolve())
        else:
            shutil.copy2(place.file, target)
    _write_table(places, into / "sorted.csv")


def _write_table(places: Sequence[Place], file: Path) -> None:
    from io import StringIO

    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for place in places:
        score = "" if place.score is None else f"{place.score:.4f}"
        known = "" if place.known is None else str(place.known).lower()
        rows.writerow([place.file, place.to, place.name, f"{place.probability:.4f}", score, known])
    write_text(file, text.getvalue())
