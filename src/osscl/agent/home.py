"""The folder that an agent lives in: what lies there, which of it is newest, and that none of it is lost."""

import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osscl import __version__
from osscl.errors import DataError
from osscl.experiments.checkpoint import set_aside
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
    checkpoint = checkpoint_file(place)
    interrupted = None if finished or not checkpoint.exists() else read_state(checkpoint)
    if interrupted is None:
        if checkpoint.exists() and not finished and not model_file(place).exists():
            raise DataError(f"{checkpoint} is damaged: move it away to begin again")
        return _agent_in(read_entry(place), place)
    if not model_file(place).exists():
        return _agent_in(interrupted, place)
    model = _agent_in(read_entry(place), place)
    return interrupted if contents_in(interrupted) == contents_in(model) else model


def _agent_in(entry: dict[str, Any], place: Path) -> dict[str, Any]:
    if "history" not in entry:
        raise DataError(f"{place} holds a run of `osscl run`, which learns no more: osscl.load reads it")
    return entry


def clear_checkpoint(place: Path, learned: list[str]) -> None:
    """Before a step begins anew: the checkpoint of one that is through goes, any other is set aside."""
    checkpoint = checkpoint_file(place)
    if not checkpoint.exists():
        return
    entry = read_state(checkpoint)
    if entry is not None and len(before := contents_in(entry)) < len(learned) and before == learned[: len(before)]:
        checkpoint.unlink()
        return
    kept = set_aside(checkpoint, "damaged" if entry is None else "given-up")
    logging.getLogger("osscl").warning("osscl: checkpoint of a step that is not gone on with, kept as %s", kept)


def keep_earlier(place: Path, learned: list[str]) -> None:
    """The model under a second name, of its number of steps, so that there is a model at every moment."""
    file = model_file(place)
    for number in range(1, 1000):
        name = place / f"model-{len(learned)}{f'-{number}' if number > 1 else ''}{SUFFIX}"
        if not name.exists():
            try:
                os.link(file, name)
            except OSError:  # a disk that knows no second names
                with aside(name) as draft:
                    shutil.copy2(file, draft)
            return
        if contents_in(read_state(name) or {}) == learned:
            return
