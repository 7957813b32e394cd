"""Sort pictures into one folder per class, and unknown pictures into groups that may be new classes."""

import contextlib
import csv
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from osscl.data.folders import Pictures
from osscl.errors import UserError
from osscl.learn.linear_head import placed
from osscl.runs.model import Model
from osscl.storage import write_text

UNKNOWN, TABLE, PAGE = "unknown", "sorted.csv", "index.html"
LONGEST_NAME = 255  # bytes
COLUMNS = ("file", "sorted_as", "class", "probability", "score", "looks_known")
FEWEST_TO_SPLIT = 8  # fewer unknown images form one group
MOST_GROUPS = 12  # searched unless the number is given
MOST_CLUSTERED = 4000  # rows compared with each other; the rest join the nearest group

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True)
class SortedPicture:
    """Where a picture goes, and why."""

    file: Path
    target: PurePosixPath  # relative to the output folder
    name: str  # the most likely class
    probability: float
    score: float | None
    known: bool | None  # None if the method does not say; the picture then goes to its class


def assign_folders(
    model: Model, pictures: Pictures, threshold: float | None, groups: int | None
) -> list[SortedPicture]:
    """The target of each picture by the model's prediction."""
    found = model.predict(pictures.images, threshold)
    known = [None] * len(pictures) if found.known is None else found.known.tolist()
    scores = [None] * len(pictures) if found.scores is None else found.scores.tolist()
    unknown = [row for row, looks_known in enumerate(known) if looks_known is False]
    group_of = dict(zip(unknown, _group_unknown(model, pictures, unknown, groups), strict=True))
    folder_of = class_folder_names(model.classes)
    folders = [
        PurePosixPath(folder_of[None], f"group-{group_of[row] + 1}")
        if row in group_of
        else PurePosixPath(folder_of[name])
        for row, name in enumerate(found.names)
    ]
    names = _without_clashes(folders, [file.name for file in pictures.files])
    rows = zip(pictures.files, folders, names, found.names, found.probabilities.tolist(), scores, known, strict=True)
    return [SortedPicture(file, folder / name, *rest) for file, folder, name, *rest in rows]


def _group_unknown(model: Model, pictures: Pictures, unknown: Sequence[int], groups: int | None) -> list[int]:
    if not unknown:
        return []
    features = model.features(pictures.images)
    return cluster(placed(features, features.mean(0))[list(unknown)], groups).tolist()


def cluster(rows: Tensor, groups: int | None = None) -> Tensor:
    """The group of each row of (n, d), numbered from the largest group; (n,).

    Ward's method. Unless `groups` is given, their number is the one with the best mean silhouette.
    """
    n = len(rows)
    if n < 2 or groups == 1 or (groups is None and n < FEWEST_TO_SPLIT):
        return torch.zeros(n, dtype=torch.long)
    from scipy.cluster.hierarchy import linkage

    picked = torch.linspace(0, n - 1, min(n, MOST_CLUSTERED)).long()
    sample = rows[picked].double().numpy()
    tree = linkage(sample, "ward")
    labels = _cut(tree, min(groups, n)) if groups is not None else _best_cut(tree, sample)
    labels = labels if len(picked) == n else _nearest_group(rows, rows[picked], labels)
    largest_first = labels.bincount().argsort(descending=True, stable=True)
    return largest_first.argsort()[labels]


def _cut(tree: Matrix, groups: int) -> Tensor:
    from scipy.cluster.hierarchy import fcluster

    return torch.from_numpy(fcluster(tree, groups, "maxclust").astype(np.int64) - 1)


def _best_cut(tree: Matrix, sample: Matrix) -> Tensor:
    from sklearn.metrics import silhouette_score

    cuts = [_cut(tree, k) for k in range(2, min(MOST_GROUPS, len(sample) // 2) + 1)]
    cuts = [cut for cut in cuts if len(cut.unique()) > 1]  # identical rows cannot be split
    if not cuts:
        return torch.zeros(len(sample), dtype=torch.long)
    return max(cuts, key=lambda cut: float(silhouette_score(sample, cut.numpy())))


def _nearest_group(rows: Tensor, sample: Tensor, labels: Tensor) -> Tensor:
    means = torch.stack([sample[labels == group].mean(0) for group in labels.unique()])
    return torch.cdist(rows.float(), means.float()).argmin(1)


def class_folder_names(classes: Sequence[str]) -> dict[str | None, str]:
    """A folder name for each class, and for unknown pictures under None; distinct also if case is ignored."""
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
    free = []
    for folder, name in zip(folders, names, strict=True):
        stem, dot, suffix = name.rpartition(".") if "." in name[1:] else (name, "", "")
        candidate, number = name, 1
        while (str(folder).lower(), candidate.lower()) in taken:
            number += 1
            candidate = f"{_truncated(stem, len(os.fsencode(f'-{number}{dot}{suffix}')))}-{number}{dot}{suffix}"
        taken.add((str(folder).lower(), candidate.lower()))
        free.append(candidate)
    return free


def _truncated(stem: str, more: int) -> str:
    """As much of a name as fits beside `more` bytes."""
    while len(os.fsencode(stem)) + more > LONGEST_NAME:
        stem = stem[:-1]
    return stem


def require_new_folder(into: Path, beside: Sequence[Path]) -> None:
    """The output folder must be new, and outside the pictures' folders and the agent's."""
    if into.is_symlink() or (into.exists() and (not into.is_dir() or any(into.iterdir()))):
        raise UserError(f"{into} already exists and is not overwritten: give a new folder")
    for path in beside:
        if path.is_dir() and into.resolve().is_relative_to(path.resolve()):
            raise UserError(f"{into} is inside {path}, where the copies would count as more pictures: give another")


@contextlib.contextmanager
def new_folder(into: Path) -> Iterator[Path]:
    """A draft folder that is renamed to `into` at the end, so that `into` is complete or absent."""
    draft = into.with_name(f".{into.name}-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        yield draft
        draft.rename(into)
    except OSError as error:
        raise UserError(f"{into} cannot be written: {error.strerror or error} ({error.filename})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


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
    write_text(into / TABLE, _as_csv(done))
    return done, missing


def _as_csv(pictures: Sequence[SortedPicture]) -> str:
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    for picture in pictures:
        score = "" if picture.score is None else f"{picture.score:.4f}"
        known = "" if picture.known is None else str(picture.known).lower()
        rows.writerow([picture.file, picture.target, picture.name, f"{picture.probability:.4f}", score, known])
    return text.getvalue().encode("utf-8", "replace").decode()  # file names need not be valid text
