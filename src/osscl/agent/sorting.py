"""Sort pictures into a folder per class, unknown ones into groups that may be new classes; a page that shows them."""

import csv
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

import torch
from jinja2 import Environment
from torch import Tensor

from osscl.agent.embeddings import Embedded
from osscl.agent.photos import ROWS_AT_A_TIME, PhotoModel, chunks
from osscl.data.folders import Pictures
from osscl.data.pictures import data_url, read_photo, square_jpeg
from osscl.errors import DataError, UserError
from osscl.learn.grouping import find_groups, group, largest_first, sample_of
from osscl.learn.linear_head import center_and_normalize
from osscl.runs.model import Model
from osscl.text import counted, csv_text

UNKNOWN, TABLE, PAGE = "unknown", "sorted.csv", "index.html"
LONGEST_NAME = 255  # bytes
COLUMNS = ("file", "sorted_as", "class", "probability", "score", "looks_known")


@dataclass(frozen=True)
class SortedPicture:
    """The target of a picture, and the prediction behind it."""

    file: Path
    target: PurePosixPath  # relative to the output folder
    name: str  # the most likely class
    probability: float
    score: float | None
    known: bool | None  # None if the method does not say; the picture then goes to its class
    group: int | None = None  # of an unknown picture, from 0


def sort_files(files: Sequence[Path], predictions: "SortPredictions", classes: Sequence[str]) -> list[SortedPicture]:
    """The target of each file by its prediction."""
    folder_of = class_folder_names(classes)
    folders = [
        PurePosixPath(folder_of[name]) if group is None else PurePosixPath(folder_of[None], f"group-{group + 1}")
        for name, group in zip(predictions.names, predictions.groups, strict=True)
    ]
    names = _without_clashes(folders, [file.name for file in files])
    columns = predictions.names, predictions.probabilities, predictions.scores, predictions.known, predictions.groups
    rows = zip(files, folders, names, *columns, strict=True)
    return [SortedPicture(file, folder / name, *rest) for file, folder, name, *rest in rows]


@dataclass(frozen=True)
class SortPredictions:
    """A model's prediction for each file: plain lists, even for very many files."""

    names: list[str]
    probabilities: list[float]
    scores: list[float | None]
    known: list[bool | None]
    groups: list[int | None]  # of unknown pictures


def predict_pixels(model: Model, pictures: Pictures, threshold: float | None, groups: int | None) -> SortPredictions:
    """Predictions of a network trained from scratch; unknown pictures are grouped by its features."""
    found = model.predict(pictures.images, threshold)
    known = [None] * len(pictures) if found.known is None else found.known.tolist()
    scores = [None] * len(pictures) if found.scores is None else found.scores.tolist()
    unknown = [row for row, looks_known in enumerate(known) if looks_known is False]
    group_of: list[int | None] = [None] * len(pictures)
    if unknown:
        features = model.features(pictures.images)
        centered = center_and_normalize(features, features.mean(0))[unknown]
        for row, number in zip(unknown, group(centered, groups).tolist(), strict=True):
            group_of[row] = number
    return SortPredictions(list(found.names), found.probabilities.tolist(), scores, known, group_of)


def predict_embedded(model: PhotoModel, found: Embedded, reject: float | None, groups: int | None) -> SortPredictions:
    """Predictions of a photo agent, read in parts: time is linear in the number of pictures, memory hardly grows."""
    made = SortPredictions([], [], [], [], [None] * len(found))
    for rows in chunks(found):
        part = model.predict_rows(rows, reject)
        assert part.scores is not None and part.known is not None
        made.names.extend(part.names)
        made.probabilities.extend(part.probabilities.tolist())
        made.scores.extend(part.scores.tolist())
        made.known.extend(part.known.tolist())
    numbers = group_unknown(model, found, torch.tensor(made.known, dtype=torch.bool), groups)
    made.groups[:] = [None if number < 0 else number for number in numbers.tolist()]
    return made


def group_unknown(model: PhotoModel, found: Embedded, known: Tensor, groups: int | None = None) -> Tensor:
    """The group of each picture that looks unknown, (n,) from 0, the largest first; -1 for known ones."""
    numbers = torch.full((len(known),), -1, dtype=torch.long)
    unknown = (~known).nonzero().squeeze(1)
    if len(unknown):
        parts = find_groups(_features(model, found, unknown[sample_of(len(unknown))]), groups)
        labels = torch.cat([parts.assign(_features(model, found, rows)) for rows in unknown.split(ROWS_AT_A_TIME)])
        numbers[unknown] = largest_first(labels)
    return numbers


def _features(model: PhotoModel, found: Embedded, rows: Tensor) -> Tensor:
    taken = found.store.take(found.rows[rows.numpy()])
    return model.features(torch.from_numpy(taken[:, 0]))


def class_folder_names(classes: Sequence[str]) -> dict[str | None, str]:
    """A folder name for each class, and for unknown pictures under None; distinct even if case is ignored."""
    found: dict[str | None, str] = {}
    taken = {TABLE, PAGE}
    for name in (*classes, None):
        free = safe = UNKNOWN if name is None else as_folder_name(name)
        number = 1
        while free.lower() in taken:
            number += 1
            free = f"{safe}-{number}"
        taken.add(free.lower())
        found[name] = free
    return found


def as_folder_name(name: str) -> str:
    """A class name as a valid folder name; classes taught from Python may have any name."""
    safe = "".join("_" if letter in '/\\:*?"<>|' or not letter.isprintable() else letter for letter in name).strip()
    return f"_{safe}" if safe in ("", ".", "..") else safe


def _without_clashes(folders: Sequence[PurePosixPath], names: Sequence[str]) -> list[str]:
    """Number the files that would have the same name in one folder, ignoring case."""
    taken: set[tuple[str, str]] = set()
    last: dict[tuple[str, str], int] = {}  # number used for a name, so that many equal names take linear time
    free = []
    for folder, name in zip(folders, names, strict=True):
        place = str(folder).lower()
        stem, dot, suffix = name.rpartition(".") if "." in name[1:] else (name, "", "")
        candidate, number = name, last.get((place, name.lower()), 1)
        while (place, candidate.lower()) in taken:
            number += 1
            candidate = f"{_truncated(stem, len(os.fsencode(f'-{number}{dot}{suffix}')))}-{number}{dot}{suffix}"
        last[place, name.lower()] = number
        taken.add((place, candidate.lower()))
        free.append(candidate)
    return free


def _truncated(stem: str, more: int) -> str:
    """As much of a name as fits together with `more` bytes."""
    while len(os.fsencode(stem)) + more > LONGEST_NAME:
        stem = stem[:-1]
    return stem


def require_new_folder(into: Path, beside: Sequence[Path]) -> None:
    """The output folder must be new, and outside the pictures' folders and the agent's."""
    if into.is_symlink() or (into.exists() and (not into.is_dir() or any(into.iterdir()))):
        raise UserError(f"{into} already exists and is not overwritten: give a new folder")
    for path in beside:
        if path.is_dir() and into.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{into} is inside {path}: give an output folder outside it")


def place_pictures(
    pictures: Sequence[SortedPicture], into: Path, *, link: bool
) -> tuple[list[SortedPicture], list[SortedPicture]]:
    """Copy or link each picture to its target and write a table of them; returns those placed and those missing."""
    done: list[SortedPicture] = []
    missing: list[SortedPicture] = []
    for picture in pictures:
        target = into / picture.target
        target.parent.mkdir(parents=True, exist_ok=True)
        if not picture.file.is_file():
            missing.append(picture)
            continue
        if link:
            target.symlink_to(picture.file.resolve())
        else:
            shutil.copy2(picture.file, target)
        done.append(picture)
    _write_csv(into / TABLE, done)
    return done, missing


def _write_csv(file: Path, pictures: Iterable[SortedPicture]) -> None:
    """Write row by row: the text of a million pictures would take more memory than everything else."""
    with file.open("w", encoding="utf-8", errors="replace", newline="") as text:  # file names need not be valid text
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for picture in pictures:
            score = "" if picture.score is None else f"{picture.score:.4f}"
            known = "" if picture.known is None else str(picture.known).lower()
            names = (csv_text(str(name)) for name in (picture.file, picture.target, picture.name))
            rows.writerow([*names, f"{picture.probability:.4f}", score, known])


MOST_SHOWN = 60  # pictures of a folder on the page
THUMBNAIL = 128  # pixels per side
SHEET = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
h2 small { font-weight: normal; opacity: .7; }
ul { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; padding: 0; margin: 0; }
li { width: 6rem; font-size: .7rem; overflow-wrap: anywhere; }
img { width: 6rem; height: 6rem; object-fit: cover; border: 1px solid var(--line); border-radius: 4px; display: block; }
</style></head><body><h1>{{ title }}</h1>
{% for note in notes %}<p>{{ note }}</p>{% endfor %}
{% for folder, count, pictures in folders %}<section><h2>{{ folder }} <small>{{ count }}</small></h2><ul>
{% for picture in pictures %}<li><a href="{{ picture.address }}"><img src="{{ picture.thumbnail }}" \
alt="{{ picture.path.name }}" title="{{ picture.details }}" loading="lazy"></a>{{ picture.caption }}</li>
{% endfor %}</ul></section>{% endfor %}</body></html>
"""


@dataclass(frozen=True)
class ShownPicture:
    """A picture on a contact sheet."""

    path: PurePosixPath  # relative to the page
    caption: str
    details: str  # shown as a tooltip
    file: Path  # that the thumbnail is made from

    @property
    def address(self) -> str:
        return quote(os.fsencode(str(self.path)))

    @property
    def thumbnail(self) -> str:
        """A small JPEG inside the page: browsers cannot show every format that Pillow reads."""
        try:
            picture = read_photo(self.file, THUMBNAIL).image
        except DataError:
            return self.address
        return data_url(square_jpeg(picture, THUMBNAIL))


def contact_sheet(
    title: str, notes: Sequence[str], folders: Mapping[str, Sequence[ShownPicture]], counts: Mapping[str, int]
) -> str:
    """Render the page, which is stored next to the folders it shows; `counts` are the pictures in each folder."""
    parts = [(folder, _count(counts[folder]), pictures[:MOST_SHOWN]) for folder, pictures in folders.items()]
    page = Environment(autoescape=True).from_string(SHEET).render(title=title, notes=notes, folders=parts)
    return page.encode("utf-8", "replace").decode()  # file names need not be valid text


def _count(n: int) -> str:
    return counted(n, "picture") + (f", the first {MOST_SHOWN} shown" if n > MOST_SHOWN else "")


def sheet_of(pictures: Sequence[SortedPicture]) -> str:
    """The contact sheet of sorted pictures, unknown ones first."""
    folders: dict[str, list[ShownPicture]] = {}
    counts = Counter(str(picture.target.parent) for picture in pictures)
    for picture in sorted(pictures, key=lambda picture: (picture.known is not False, *rank(picture))):
        shown = folders.setdefault(str(picture.target.parent), [])
        if len(shown) == MOST_SHOWN:
            continue
        caption = f"nearest: {picture.name}" if picture.known is False else f"{picture.probability:.2f}"
        score = "" if picture.score is None else f", score {picture.score:.3f}"
        details = f"{picture.file}: {picture.name} {picture.probability:.2f}{score}"
        shown.append(ShownPicture(picture.target, caption, details, picture.file))
    notes = ["Captions: the probability of the class, or the nearest class of an unknown picture."]
    if any(picture.known is None for picture in pictures):
        notes.append("This method does not detect unknown pictures: each went to its most likely class.")
    return contact_sheet(f"{len(pictures)} sorted pictures", notes, folders, counts)


def rank(picture: SortedPicture) -> tuple[bool, str, int, float]:
    """Classes by name, then groups by number; the most certain picture of a folder first."""
    certainty = picture.score if picture.score is not None else picture.probability
    is_unknown = picture.group is not None
    return is_unknown, "" if is_unknown else str(picture.target.parent), picture.group or 0, -certainty
