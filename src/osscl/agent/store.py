"""An agent's folder: its newest model, its earlier models, and the checkpoint of an interrupted step."""

import itertools
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from osscl import __version__
from osscl.agent.inputs import StepInput
from osscl.config import from_plain
from osscl.device import device_name
from osscl.errors import OTHER_VERSION, DataError, reason_of, shown, unknown
from osscl.runs.model import read_entry
from osscl.storage import SUFFIX, atomic_write, locked, read_state, remove_state, set_aside, write_text

FORMAT = 2  # of an agent's files


@dataclass(frozen=True)
class HeadChoice:
    """The head in use, and its accuracy and that of two baselines on images left out one at a time, in percent."""

    head: str
    tried: int  # images left out
    agent: float
    class_means: float
    discriminants: float


@dataclass(frozen=True)
class StepOutcome:
    """What a learner reports about a step."""

    unlabeled: int
    let_in: int | None  # unlabelled images that look known; None if the learner does not say
    seconds: float
    choice: HeadChoice | None = None


@dataclass(frozen=True)
class LearnedStep:
    """A row of an agent's history."""

    classes: tuple[str, ...]  # new ones
    labeled: int
    unlabeled: int
    let_in: int | None  # unlabelled images that look known; None if the learner does not say
    seconds: float
    content: str  # hash of all its images and labels
    date: str
    device: str
    osscl: str = __version__
    further: tuple[str, ...] = ()  # known classes that got more images
    repeated: int = 0  # labelled images skipped: learned before, or copies of another one
    choice: HeadChoice | None = None  # with a pretrained encoder
    edit: str = ""  # a change that learned nothing, such as "renamed cat to tiger"

    @property
    def words(self) -> str:
        """What it learned or changed, such as: owl; more of cat."""
        if self.edit:
            return self.edit
        more = [f"more of {', '.join(self.further)}"] if self.further else []
        return "; ".join([*([", ".join(self.classes)] if self.classes else []), *more]) or "unlabelled images only"

    @property
    def counts(self) -> tuple[int | None, int | None, int | None]:
        """Labelled and unlabelled images, and how many of these look known; a change learns from none."""
        return (None, None, None) if self.edit else (self.labeled, self.unlabeled, self.let_in)

    @property
    def measured(self) -> HeadChoice | None:
        """Its accuracies, where labelled images could be left out."""
        return self.choice if self.choice is not None and self.choice.tried else None

    @property
    def accuracies(self) -> tuple[float | None, float | None, float | None]:
        """Of the agent, class means and discriminants on images left out, in percent."""
        made = self.measured
        return (None, None, None) if made is None else (made.agent, made.class_means, made.discriminants)

    @property
    def minute(self) -> str:
        """When it was learned, such as: 2026-07-31 14:05."""
        return self.date[:16].replace("T", " ")


def summarize_step(given: StepInput, known: Sequence[str], outcome: StepOutcome, device: torch.device) -> LearnedStep:
    """The history row of a step learned by an agent that knew the classes `known`."""
    return LearnedStep(
        classes=tuple(name for name in given.classes if name not in known),
        further=tuple(name for name in given.classes if name in known),
        labeled=len(given.labels),
        repeated=given.skipped,
        unlabeled=outcome.unlabeled,
        let_in=outcome.let_in,
        seconds=round(outcome.seconds, 2),
        content=given.content,
        date=_now(),
        device=device_name(device),
        choice=outcome.choice,
    )


def summarize_edit(
    edit: str, before: Sequence[LearnedStep], device: torch.device, choice: HeadChoice | None
) -> LearnedStep:
    """The history row of a change that learned nothing, such as a renamed class."""
    previous = before[-1].content if before else ""
    content = blake2b(f"{previous} {len(before)} {edit}".encode(), digest_size=16).hexdigest()
    return LearnedStep((), 0, 0, None, 0.0, content, _now(), device_name(device), choice=choice, edit=edit)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def model_file(folder: Path) -> Path:
    return folder / f"model{SUFFIX}"


def checkpoint_file(folder: Path) -> Path:
    return folder / f"checkpoint{SUFFIX}"


def command_file(folder: Path) -> Path:
    return folder / "command.json"


def write_command(folder: Path, command: str) -> None:
    """Remember the command of a step until it has finished."""
    write_text(command_file(folder), json.dumps({"command": command}) + "\n")


def read_command(folder: Path) -> str | None:
    """The command of an interrupted step, if there is one."""
    try:
        return str(json.loads(command_file(folder).read_text(encoding="utf-8"))["command"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_command(folder: Path) -> None:
    command_file(folder).unlink(missing_ok=True)


def history_of(entry: Mapping[str, Any]) -> list[LearnedStep]:
    return [from_plain(LearnedStep, row) for row in entry.get("history", [])]


def contents_of(entry: Mapping[str, Any]) -> list[str]:
    """The content hash of every step learned."""
    return [step.content for step in history_of(entry)]


def read_newest(folder: Path, finished: bool = False, *, tensors: bool = True) -> dict[str, Any]:
    """The checkpoint of an interrupted step if there is one that continues the model, else the model."""
    return read_entry(folder, "checkpoint" if is_interrupted(folder, finished) else "model", tensors=tensors)


def is_interrupted(folder: Path, finished: bool = False) -> bool:
    """Whether a checkpoint can be resumed from; False if only `finished` steps are requested."""
    model, checkpoint = model_file(folder), checkpoint_file(folder)
    if not model.is_file() and not checkpoint.is_file():
        raise DataError(f"no agent in {folder}: `osscl fit` creates one")
    saved = (
        None if finished or not checkpoint.is_file() else read_state(checkpoint, tensors=False, damaged_as_none=True)
    )
    if saved is None and not model.is_file():
        raise DataError(f"{checkpoint} is damaged: delete or rename it to start over")
    learned = contents_of(_read_finished(folder)) if model.is_file() else None
    return saved is not None and (learned is None or contents_of(require_agent(saved, checkpoint)) == learned)


def earlier_models(folder: Path) -> dict[str, Path]:
    """Earlier models by name, ordered by their number of steps."""

    def numbers(path: Path) -> list[int]:
        return [int(part) for part in path.stem.split("-")[1:] if part.isdigit()]

    return {path.stem: path for path in sorted(folder.glob(f"model-*{SUFFIX}"), key=numbers)}


def _read_finished(folder: Path) -> dict[str, Any]:
    earlier = [*earlier_models(folder)]
    if earlier and read_state(model_file(folder), tensors=False, damaged_as_none=True) is None:
        raise DataError(f"{model_file(folder)} is damaged: `osscl back {folder} {earlier[-1]}` restores an earlier one")
    return require_agent(read_entry(folder, tensors=False), model_file(folder))


def require_agent(entry: Any, file: Path) -> dict[str, Any]:
    """The entry itself; refuse files of runs, of other programs and of other versions."""
    if isinstance(entry, dict) and "history" not in entry and "spec" in entry:
        raise DataError(f"{file} is the model of an `osscl run`, not an agent; osscl.load reads it")
    if isinstance(entry, dict) and "history" in entry and entry.get("format") != FORMAT:
        version = f"another version of osscl (format {shown(entry.get('format'))})"
        raise DataError(f"{file} was saved by {version}: open it with that version, or fit a new agent")
    try:
        history_of(entry)
    except OTHER_VERSION as error:
        raise DataError(f"{file} is not an agent's file ({reason_of(error)})") from None
    return dict(entry)


def go_back(folder: Path, name: str, require_loadable: Callable[[dict[str, Any]], Any]) -> str:
    """Restore an earlier model by its name or number, and return its name; the newest one is kept under its number."""
    read_state(model_file(folder), tensors=False, damaged_as_none=True)  # refuses an agent of another version
    earlier = earlier_models(folder)
    name = f"model-{name}" if name.isdecimal() else name.removesuffix(SUFFIX)
    if name not in earlier:
        raise unknown("model", name, earlier or ("none yet",))
    with locked(folder):
        try:
            require_loadable(require_agent(read_entry(folder, name), earlier[name]))
        except OTHER_VERSION as error:
            raise DataError(f"{earlier[name]} was saved by another version ({reason_of(error)})") from None
        now = read_state(model_file(folder), tensors=False, damaged_as_none=True)
        if now is not None:
            keep_earlier(folder, contents_of(require_agent(now, model_file(folder))))
        elif model_file(folder).is_file():
            set_aside(model_file(folder), "damaged")
        _copy(earlier[name], model_file(folder))
    return name


def checkpoint_of_step(folder: Path, learned: list[str], content: str) -> dict[str, Any] | None:
    """The checkpoint of this step; that of another step is set aside, that of a finished step is deleted."""
    checkpoint = checkpoint_file(folder)
    if not checkpoint.is_file():
        return None
    entry = read_state(checkpoint, tensors=False, damaged_as_none=True)
    sound = isinstance(entry, dict) and isinstance(entry.get("history"), list)
    before, begun = (contents_of(entry), entry.get("begun")) if entry and sound else (None, None)
    if before == learned and begun == content:
        return read_entry(folder, "checkpoint")
    if before is not None and [*before, begun] == learned[: len(before) + 1]:
        remove_state(checkpoint)  # that step is finished
        return None
    kept = set_aside(checkpoint, "given-up" if sound else "damaged")
    logging.getLogger("osscl").warning("osscl: checkpoint of another step kept as %s", kept)
    return None


def keep_earlier(folder: Path, learned: list[str]) -> None:
    """Copy the model to a name with its number of steps, so that a model exists at every moment."""
    for number in itertools.count(1):
        name = folder / f"model-{len(learned)}{f'-{number}' if number > 1 else ''}{SUFFIX}"
        if not name.exists():
            _copy(model_file(folder), name)
            return
        if contents_of(read_state(name, tensors=False, damaged_as_none=True) or {}) == learned:
            return


def _copy(file: Path, name: Path) -> None:
    """A real copy, written atomically: with a hard link, a later write to one name would change both."""
    with atomic_write(name) as draft:
        shutil.copyfile(file, draft)
