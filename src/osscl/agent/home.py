"""The folder that an agent lives in: what lies there, which of it is newest, and that none of it is lost."""

import itertools
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from osscl import __version__
from osscl.agent.lesson import Arrived
from osscl.config import from_plain
from osscl.device import device_name
from osscl.errors import OTHER_VERSION, DataError, unknown
from osscl.methods.base import Runtime, StepReport
from osscl.runs.checkpoint import occupied
from osscl.runs.model import agent_of, read_entry
from osscl.storage import SUFFIX, aside, read_state, set_aside


@dataclass(frozen=True)
class Learned:
    """What one step brought."""

    classes: tuple[str, ...]  # new ones
    labeled: int
    unlabeled: int
    let_in: int | None  # unlabelled images that the gate took for related; None for methods without one
    seconds: float
    content: str  # hash of all its images and labels
    date: str
    device: str
    osscl: str = __version__
    further: tuple[str, ...] = ()  # classes met before that it brought more images of
    repeated: int = 0  # labelled images that had been learned before, left out


def learned_by(
    arrived: Arrived, known: Sequence[str], unlabeled: int, report: StepReport, device: torch.device
) -> Learned:
    """What a step brought to an agent that knew these classes; of unlabelled images so many were looked at."""
    return Learned(
        classes=tuple(name for name in arrived.classes if name not in known),
        further=tuple(name for name in arrived.classes if name in known),
        labeled=len(arrived.images),
        repeated=arrived.left_out,
        unlabeled=unlabeled,
        let_in=None if report.gate is None or not unlabeled else int(report.gate.passed.sum()),
        seconds=round(sum(phase.seconds for phase in report.phases), 2),
        content=arrived.content,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device_name(device),
    )


def model_file(place: Path) -> Path:
    return place / f"model{SUFFIX}"


def checkpoint_file(place: Path) -> Path:
    return place / f"checkpoint{SUFFIX}"


def history_in(entry: Mapping[str, Any]) -> list[Learned]:
    return [from_plain(Learned, one) for one in entry.get("history", [])]


def contents_in(entry: Mapping[str, Any]) -> list[str]:
    """What it has learned, step by step, as hashes."""
    return [one.content for one in history_in(entry)]


def newest(place: Path, finished: bool = False, *, tensors: bool = True) -> dict[str, Any]:
    """The middle of a step that was interrupted, where there is one that the model stands before; else the model."""
    return read_entry(place, "checkpoint" if is_interrupted(place, finished) else "model", tensors=tensors)


def is_interrupted(place: Path, finished: bool = False) -> bool:
    """Whether the middle of a step lies there that can be gone on with; never where what is `finished` is wanted."""
    model, checkpoint = model_file(place), checkpoint_file(place)
    if not model.is_file() and not checkpoint.is_file():
        raise DataError(f"no agent in {place}: `osscl fit` makes one")
    middle = (
        None if finished or not checkpoint.is_file() else read_state(checkpoint, tensors=False, damaged_as_none=True)
    )
    if middle is None and not model.is_file():
        raise DataError(f"{checkpoint} is damaged: move it away to begin again")
    learned = contents_in(_finished(place)) if model.is_file() else None
    return middle is not None and (learned is None or contents_in(_agent_in(middle, checkpoint)) == learned)


def earlier_models(place: Path) -> dict[str, Path]:
    """By name, in the order of their steps."""

    def numbers(path: Path) -> list[int]:
        return [int(part) for part in path.stem.split("-")[1:] if part.isdigit()]

    return {path.stem: path for path in sorted(place.glob(f"model-*{SUFFIX}"), key=numbers)}


def _finished(place: Path) -> dict[str, Any]:
    earlier = [*earlier_models(place)]
    if earlier and read_state(model_file(place), tensors=False, damaged_as_none=True) is None:
        raise DataError(f"{model_file(place)} is damaged: `osscl back {place} {earlier[-1]}` takes an earlier one")
    return _agent_in(read_entry(place, tensors=False), model_file(place))


def _agent_in(entry: Any, file: Path) -> dict[str, Any]:
    """Refused where it is none."""
    if isinstance(entry, dict) and "history" not in entry and "spec" in entry:
        raise DataError(f"{file} is of a run of `osscl run`, which learns no more: osscl.load reads it")
    try:
        history_in(entry)
    except OTHER_VERSION as error:
        raise DataError(f"{file} is of another program or version ({type(error).__name__}: {error})") from None
    return dict(entry)


def go_back(place: Path, name: str) -> None:
    """Make an earlier model the one that is asked and taught; the newest stays under its number."""
    earlier = earlier_models(place)
    name = name.removesuffix(SUFFIX)
    if name not in earlier:
        raise unknown("model", name, earlier or ("none there",))
    with occupied(place):
        _require_loadable(read_entry(place, name), earlier[name])
        now = read_state(model_file(place), tensors=False, damaged_as_none=True)
        if now is not None:
            keep_earlier(place, contents_in(_agent_in(now, model_file(place))))
        elif model_file(place).is_file():
            set_aside(model_file(place), "damaged")
        _copy(earlier[name], model_file(place))


def _require_loadable(entry: dict[str, Any], file: Path) -> None:
    """Before anything is put in its place."""
    try:
        agent_of(_agent_in(entry, file), Runtime())
    except OTHER_VERSION as error:
        raise DataError(f"{file} is of another version ({type(error).__name__}: {error})") from None


def begun_there(place: Path, learned: list[str], content: str) -> dict[str, Any] | None:
    """The middle of the step that would now begin, where it was interrupted; else what lies there makes room."""
    checkpoint = checkpoint_file(place)
    if not checkpoint.is_file():
        return None
    entry = read_state(checkpoint, tensors=False, damaged_as_none=True)
    told = isinstance(entry, dict) and isinstance(entry.get("history"), list)
    before, begun = (contents_in(entry), entry.get("begun")) if entry and told else (None, None)
    if before == learned and begun == content:
        return read_entry(place, "checkpoint")
    if before is not None and [*before, begun] == learned[: len(before) + 1]:
        checkpoint.unlink()  # that step is through
        return None
    kept = set_aside(checkpoint, "given-up" if told else "damaged")
    logging.getLogger("osscl").warning("osscl: checkpoint of a step that is not gone on with, kept as %s", kept)
    return None


def keep_earlier(place: Path, learned: list[str]) -> None:
    """The model under a second name, of its number of steps, so that there is a model at every moment."""
    for number in itertools.count(1):
        name = place / f"model-{len(learned)}{f'-{number}' if number > 1 else ''}{SUFFIX}"
        if not name.exists():
            _copy(model_file(place), name)
            return
        if contents_in(read_state(name, tensors=False, damaged_as_none=True) or {}) == learned:
            return


def _copy(file: Path, name: Path) -> None:
    """A file of its own, whole or not at all: whoever copies over a second name of one file changes both."""
    with aside(name) as draft:
        shutil.copyfile(file, draft)
