"""The folder that an agent lives in: what lies there, which of it is newest, and that none of it is lost."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osscl import __version__
from osscl.errors import DataError, SpecError, unknown
from osscl.experiments.checkpoint import occupied, set_aside
from osscl.experiments.saved import read_entry
from osscl.frozen import from_plain
from osscl.stored import SUFFIX, aside, read_state


@dataclass(frozen=True)
class Learned:
    """What one step brought."""

    classes: tuple[str, ...]
    labeled: int
    unlabeled: int
    let_in: int | None  # unlabelled images that the gate took for related; None for methods without one
    seconds: float
    content: str  # hash of all its images and labels
    date: str
    device: str
    osscl: str = __version__


def model_file(place: Path) -> Path:
    return place / f"model{SUFFIX}"


def checkpoint_file(place: Path) -> Path:
    return place / f"checkpoint{SUFFIX}"


def history_in(entry: Mapping[str, Any]) -> list[Learned]:
    return [from_plain(Learned, one) for one in entry.get("history", [])]


def contents_in(entry: Mapping[str, Any]) -> list[str]:
    """What it has learned, step by step, as hashes."""
    return [one.content for one in history_in(entry)]


def newest(place: Path, finished: bool = False) -> dict[str, Any]:
    """The middle of a step that was interrupted, where there is one that the model stands before; else the model."""
    model, checkpoint = model_file(place), checkpoint_file(place)
    if not model.is_file() and not checkpoint.is_file():
        raise DataError(f"no agent in {place}: `osscl fit` makes one")
    interrupted = None if finished or not checkpoint.is_file() else read_state(checkpoint)
    if interrupted is None:
        if not model.is_file():
            raise DataError(f"{checkpoint} is damaged: move it away to begin again")
        return _finished(place)
    if not model.is_file():
        return _agent_in(interrupted, checkpoint)
    there = _finished(place)
    return interrupted if contents_in(_agent_in(interrupted, checkpoint)) == contents_in(there) else there


def _finished(place: Path) -> dict[str, Any]:
    earlier = sorted(path.stem for path in place.glob(f"model-*{SUFFIX}"))
    if earlier and read_state(model_file(place)) is None:
        raise DataError(f"{model_file(place)} is damaged: `osscl back {place} {earlier[-1]}` takes an earlier one")
    return _agent_in(read_entry(place), model_file(place))


def _agent_in(entry: Any, file: Path) -> dict[str, Any]:
    """Refused where it is none."""
    if isinstance(entry, dict) and "history" not in entry and "spec" in entry:
        raise DataError(f"{file} is of a run of `osscl run`, which learns no more: osscl.load reads it")
    try:
        history_in(entry)
    except (AttributeError, KeyError, TypeError, ValueError, SpecError) as error:
        raise DataError(f"{file} is of another program or version ({type(error).__name__}: {error})") from None
    return dict(entry)


def go_back(place: Path, name: str) -> None:
    """Make an earlier model the one that is asked and taught; the newest stays under its number."""
    earlier = {path.stem: path for path in sorted(place.glob(f"model-*{SUFFIX}"), key=lambda path: path.stem)}
    if name not in earlier:
        raise unknown("model", name, earlier or ("none there",))
    with occupied(place):
        _agent_in(read_entry(place, name), earlier[name])
        if (now := read_state(model_file(place))) is not None:
            keep_earlier(place, contents_in(now))
        clear_checkpoint(place, learned=[])
        _copy(earlier[name], model_file(place))


def clear_checkpoint(place: Path, learned: list[str]) -> None:
    """Before a step begins anew: the checkpoint of one that is through goes, any other is set aside."""
    checkpoint = checkpoint_file(place)
    if not checkpoint.is_file():
        return
    entry = read_state(checkpoint)
    if entry is not None and len(before := contents_in(entry)) < len(learned) and before == learned[: len(before)]:
        checkpoint.unlink()
        return
    kept = set_aside(checkpoint, "damaged" if entry is None else "given-up")
    logging.getLogger("osscl").warning("osscl: checkpoint of a step that is not gone on with, kept as %s", kept)


def keep_earlier(place: Path, learned: list[str]) -> None:
    """The model under a second name, of its number of steps, so that there is a model at every moment."""
    for number in range(1, 1000):
        name = place / f"model-{len(learned)}{f'-{number}' if number > 1 else ''}{SUFFIX}"
        if not name.exists():
            return _copy(model_file(place), name)
        if contents_in(read_state(name) or {}) == learned:
            return None
    return None


def _copy(file: Path, name: Path) -> None:
    """A file of its own, whole or not at all: whoever copies over a second name of one file changes both."""
    with aside(name) as draft:
        shutil.copyfile(file, draft)
