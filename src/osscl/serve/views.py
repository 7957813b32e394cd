"""Sorted piles and test results of a model, kept in the agent's folder so that they are computed once per model."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from osscl.agent.embeddings import Embedded
from osscl.agent.photos import PhotoModel, image_rows
from osscl.agent.sorting import group_unknown
from osscl.config import from_plain
from osscl.data.folders import ReadProgress, silent
from osscl.errors import DataError, UserError
from osscl.runs.model import Evaluation, compare_with_truth
from osscl.serve.answers import Accuracy, PileSection, TestedClass, TestState
from osscl.serve.folder import FolderContents, read_folder
from osscl.serve.served_agent import LoadedAgent
from osscl.storage import read_cached_state, read_sealed, write_sealed, write_state

MOST_KEPT = 4  # models whose results are kept
FIRST = 12  # pictures of a section shown at once
ROWS = 256  # pictures judged at a time: more take more memory and no less time


@dataclass(frozen=True)
class Section:
    """Pictures of a sorted pile that are shown together."""

    kind: Literal["known", "group"]
    title: str
    rows: list[int]


@dataclass(frozen=True)
class SortedPile:
    """What a model says about each picture of a pile."""

    version: str
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    label: Tensor  # (n,) int64, columns of `classes`
    probability: Tensor  # (n,)
    score: Tensor  # (n,) share of known pictures that look less known
    known: Tensor  # (n,) bool
    group: Tensor  # (n,) int64; -1 for known pictures
    is_grouped: bool = True  # else all unknown pictures are in group 0 until all have been judged

    @classmethod
    def unsorted(cls, agent: LoadedAgent, keys: tuple[str, ...]) -> "SortedPile":
        """An empty result for these pictures, to be filled in."""
        n = len(keys)
        numbers, shares, answers = torch.zeros(n, dtype=torch.long), torch.zeros(n), torch.zeros(n, dtype=torch.bool)
        return cls(agent.version, agent.model.classes, keys, numbers, shares, shares.clone(), answers, numbers - 1)

    def of_rows(self, rows: Tensor) -> "SortedPile":
        """Only these rows."""
        keys = tuple(self.keys[row] for row in rows.tolist())
        parts = {name: getattr(self, name)[rows] for name in ("label", "probability", "score", "known", "group")}
        return replace(self, keys=keys, **parts)

    @property
    def ungrouped(self) -> "SortedPile":
        """With all unknown pictures in one group."""
        return replace(self, group=torch.where(self.known, -1, 0), is_grouped=False)

    def among(self, contents: FolderContents) -> "SortedPile":
        """Without pictures that are no longer there."""
        there = [row for row, key in enumerate(self.keys) if key in contents.places]
        return self.of_rows(torch.tensor(there, dtype=torch.long))

    def __len__(self) -> int:
        return len(self.keys)

    def answer(self, row: int) -> str | None:
        """The class of a picture; None if it looks unknown."""
        return self.classes[int(self.label[row])] if bool(self.known[row]) else None

    @cached_property
    def sections(self) -> dict[str, Section]:
        """Sections by id: groups of unknown pictures, largest first; then known pictures by class, surest first."""
        found: dict[str, Section] = {}
        for number in range(int(self.group.max()) + 1 if len(self.group) else 0):
            title = f"Group {number + 1}" if self.is_grouped else "Not grouped yet"
            found[f"group-{number + 1}"] = Section("group", title, (self.group == number).nonzero().squeeze(1).tolist())
        for c, name in enumerate(self.classes):
            rows = ((self.label == c) & self.known).nonzero().squeeze(1)
            if len(rows):
                surest = rows[self.score[rows].argsort(descending=True, stable=True)]
                found[f"class-{c}"] = Section("known", name, surest.tolist())
        return found

    def section(self, id: str) -> PileSection:
        shown = self.sections[id]
        return PileSection(id, shown.kind, shown.title, len(shown.rows), [self.keys[row] for row in shown.rows[:FIRST]])


def _ignored(pile: SortedPile) -> None:
    pass


def sorted_pile(
    own: Path,
    agent: LoadedAgent,
    contents: FolderContents,
    progress: ReadProgress = silent,
    show: Callable[[SortedPile], None] = _ignored,
    judged: SortedPile | None = None,
) -> SortedPile:
    """The sorted pile; earlier answers of this model are read from the agent's folder, or given in `judged`.

    `show` is called with the pictures judged so far, which are grouped at the end.
    """
    file = own / f"pile-{agent.version}"
    saved = read_sorted(file)
    if saved is not None and saved.keys == contents.keys:
        return saved
    made = judged_pile(agent, contents, saved or judged, progress, show)
    made = replace(made, group=group_unknown(agent.model, contents.found, made.known), is_grouped=True)
    write_state(file, _state(made))
    _keep_few(own, "pile-*.safetensors")
    return made


def judged_pile(
    agent: LoadedAgent,
    contents: FolderContents,
    judged: SortedPile | None,
    progress: ReadProgress = silent,
    show: Callable[[SortedPile], None] = _ignored,
) -> SortedPile:
    """What the model says about each picture, without groups; pictures that were judged are not judged again."""
    made = SortedPile.unsorted(agent, contents.keys)
    left = _copy_judged(judged, made)
    is_done = torch.ones(len(made.keys), dtype=torch.bool)
    is_done[left] = False
    for rows in left.split(ROWS):
        _judge(agent.model, contents.found, rows, made)
        is_done[rows] = True
        progress(int(is_done.sum()), len(made.keys))
        show(made.of_rows(is_done.nonzero().squeeze(1)).ungrouped)
    return made.ungrouped


def _copy_judged(saved: SortedPile | None, made: SortedPile) -> Tensor:
    """Copy the saved answers for these pictures to `made`; returns the rows without one."""
    places = {} if saved is None else {key: row for row, key in enumerate(saved.keys)}
    known = torch.tensor([places.get(key, -1) for key in made.keys], dtype=torch.long)
    here = known >= 0
    for name in ("label", "probability", "score", "known") if saved is not None else ():
        getattr(made, name)[here] = getattr(saved, name)[known[here]]
    return (~here).nonzero().squeeze(1)


def _judge(model: PhotoModel, found: Embedded, rows: Tensor, made: SortedPile) -> None:
    taken = torch.from_numpy(found.store.take(found.rows[rows.numpy()])[:, 0])
    part = model.predict_rows(taken)
    assert part.scores is not None and part.known is not None
    made.label[rows], made.probability[rows] = part.labels, part.probabilities
    made.score[rows], made.known[rows] = part.scores, part.known


def _state(pile: SortedPile) -> dict[str, Any]:
    parts = {name: getattr(pile, name) for name in ("version", "label", "probability", "score", "known", "group")}
    return {**parts, "classes": list(pile.classes), "keys": list(pile.keys)}


def read_sorted(file: Path) -> SortedPile | None:
    saved = read_cached_state(file)
    try:
        return saved and SortedPile(**{**saved, "classes": tuple(saved["classes"]), "keys": tuple(saved["keys"])})  # type: ignore[return-value]
    except (KeyError, TypeError):
        return None


def newest_sorted(own: Path) -> SortedPile | None:
    """The newest sorted pile of any model."""
    files = sorted(own.glob("pile-*.safetensors"), key=lambda path: -path.stat().st_mtime_ns)
    return next((found for file in files if (found := read_sorted(file)) is not None), None)


def _keep_few(own: Path, pattern: str) -> None:
    for path in sorted(own.glob(pattern), key=lambda path: -path.stat().st_mtime_ns)[MOST_KEPT:]:
        path.unlink(missing_ok=True)


def tested_folder(own: Path, agent: LoadedAgent, root: Path, progress: ReadProgress = silent) -> TestState:
    """Accuracy and confusion on a folder of labelled pictures, from the agent's folder if nothing has changed."""
    contents = read_folder(root, own / "test.json", agent.learner, progress, labeled=True)
    file = own / f"test-{agent.version}.json"
    saved = _read_result(file, contents.keys)
    if saved is None:
        saved = _tested(agent, contents)
        write_sealed(file, {"keys": list(contents.keys), "result": asdict(saved)})
        _keep_few(own, "test-*.json")
    return saved


def _read_result(file: Path, keys: Sequence[str]) -> TestState | None:
    try:
        saved: dict[str, Any] = read_sealed(file)
        return from_plain(TestState, saved["result"]) if saved["keys"] == list(keys) else None
    except (OSError, ValueError, KeyError, TypeError, UserError):
        return None


def _tested(agent: LoadedAgent, contents: FolderContents) -> TestState:
    if not len(contents):
        raise DataError(f"{contents.root} contains no readable pictures in folders of their classes")
    rows, labels = image_rows(contents.found), contents.labels
    learned = agent.model.classes
    result = compare_with_truth(agent.model.predict_rows(rows), labels, learned)
    assert result.prediction.known is not None
    names = sorted(set(labels), key=lambda name: (name not in learned, name))
    others = ~result.learned
    return TestState(
        "ready",
        accuracy=_accuracy(result, agent.model, rows),
        auroc=result.auroc,
        others=int(others.sum()),
        others_known_percent=_percent(result.prediction.known[others]),
        learned_pictures=sum(name is not None for name in agent.learned_as([*contents.keys])),
        classes=[_tested_class(name, name in learned, result, result.prediction.known) for name in names],
        predicted=list(learned),
        confusion=result.confusion(names, learned),
    )


def _accuracy(result: Evaluation, model: PhotoModel, rows: Tensor) -> Accuracy | None:
    if result.accuracy is None:
        return None
    means = result.accuracy_of(model.baseline_names(rows)["class means"])
    assert means is not None
    return Accuracy(round(100 * result.accuracy, 2), round(100 * means, 2), int(result.learned.sum()))


def _tested_class(name: str, learned: bool, result: Evaluation, known: Tensor) -> TestedClass:
    own = result.rows_of(name)
    right = _percent(result.right[own]) if learned else None
    return TestedClass(name, learned, int(own.sum()), right, _percent(known[own]) or 0.0)


def _percent(values: Tensor) -> float | None:
    return round(100 * float(values.float().mean()), 1) if len(values) else None
