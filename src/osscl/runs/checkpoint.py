"""Where a run is: its state on disk, the folder that it holds, and the moments at which it may stop."""

import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from osscl.config import from_plain, plain
from osscl.device import device_name, synchronise
from osscl.errors import OTHER_VERSION, DataError, Diverged, Stopped, UserError, memory_told
from osscl.methods.base import Method, Progress
from osscl.runs.record import Session, StepRecord, commit
from osscl.storage import SUFFIX, is_locked, locked, read_state, set_aside, write_state

UNTOLD = Session("unknown", "unknown", "unknown")  # of checkpoints of older versions


class Watcher(Protocol):
    """Somebody who looks on."""

    def progress(self, t: int, steps: int, progress: Progress) -> None: ...

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None: ...


class Unwatched:
    """Nobody looks on."""

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        pass

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        pass


@dataclass(frozen=True)
class Options:
    """How a run is carried out; none of it changes what comes out."""

    out: Path = Path("runs")
    data: Path | None = None
    device: str = "auto"
    max_minutes: float | None = None
    save_every: float = 60.0  # seconds between saves inside a phase
    share_references: bool = True
    references: Path | None = None  # where they are shared; the cache where None
    shared_device: bool = False  # other work goes on there: a record's times are not shown as a measure of the method
    watcher: Watcher = field(default_factory=Unwatched)

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", Path(self.out))  # from Python, a string will do
        for name in ("data", "references"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else Path(given))


@dataclass
class Position:
    """How far a run has come: what its checkpoint holds beside the method's state."""

    next_step: int = 0
    accuracy: list[tuple[float, ...]] = field(default_factory=list)
    overall: list[float] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    sessions: int = 1
    earlier: list[Session] = field(default_factory=list)  # those that had another commit, device or torch


@contextlib.contextmanager
def divergence_set_aside(folder: Path) -> Iterator[None]:
    """What has diverged is not gone on with: the same command begins again."""
    try:
        yield
    except Diverged:
        if (checkpoint := folder / f"checkpoint{SUFFIX}").exists():
            set_aside(checkpoint, "diverged")
        raise


class Keeper:
    """Keeps the state of what learns at good moments, and stops it when it is told to."""

    def __init__(
        self, folder: Path, options: Options, device: torch.device, contents: Callable[[], dict[str, Any]]
    ) -> None:
        self.path, self.options, self.device = folder / "checkpoint", options, device
        self.contents = contents  # all that going on needs
        self.started = self.saved = time.monotonic()
        self.before = 0.0
        self.told_to_stop = False

    def seconds(self) -> float:
        """Wall-clock time over all sessions."""
        synchronise(self.device)
        return self.before + time.monotonic() - self.started

    def keep(self, edge: bool) -> None:
        """Called by the method at good moments: at the edges of phases, and after every update."""
        now = time.monotonic()
        limit = self.options.max_minutes
        out_of_time = limit is not None and now - self.started > 60 * limit
        if edge or out_of_time or self.told_to_stop or now - self.saved > self.options.save_every:
            write_state(self.path, self.contents())
            self.saved = time.monotonic()
        if out_of_time or self.told_to_stop:
            raise Stopped

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C and a polite kill end the work at the next good moment; a second one ends it at once."""

        def told(number: int, _: Any) -> None:
            self.told_to_stop = True
            signal.signal(number, old[number])

        old: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # signals belong to the main thread
            for polite in (signal.SIGINT, signal.SIGTERM):
                old[polite] = signal.signal(polite, told)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


class Saver(Keeper):
    """The keeper of a run, which also puts it back where it was."""

    def __init__(self, folder: Path, options: Options, device: torch.device, content: dict[str, str]) -> None:
        super().__init__(folder, options, device, self._state)
        self.content = content  # hash of each data set
        self.shared_device = options.shared_device
        self.position = Position()
        self.agent: Method | None = None

    def restore(self, agent: Method) -> Position:
        """Put the agent where the last save left it; a fresh start where there is none."""
        self.agent = agent
        saved, file = read_state(self.path, damaged_as_none=True), self.path.with_suffix(SUFFIX)
        if saved is None:
            if file.exists():
                kept = set_aside(file, "damaged")
                logging.getLogger("osscl").warning("osscl: damaged checkpoint, kept as %s; the run begins again", kept)
            return self.position
        try:
            self.position = self._restored(agent, saved)
        except OTHER_VERSION as error:
            why = f"{type(error).__name__}: {error}"
            raise DataError(f"{file} is of another version ({why}): move it away to begin again") from error
        self.before = saved["seconds"]
        self.shared_device |= saved.get("shared_device", False)
        return self.position

    def _restored(self, agent: Method, saved: dict[str, Any]) -> Position:
        if saved["content"] != self.content:
            raise UserError(f"the data is not what this run began with; delete {self.path.parent} to begin again")
        with memory_told():
            agent.load_state(saved["method"])
        steps = [from_plain(StepRecord, step) for step in saved["steps"]]
        parts = [from_plain(Session, part) for part in saved["carried_out"]] if "carried_out" in saved else [UNTOLD]
        return Position(
            saved["next_step"], [tuple(row) for row in saved["accuracy"]], saved["overall"], steps,
            saved["sessions"] + 1, [part for part in parts if part != self.session],
        )  # fmt: skip

    @functools.cached_property
    def session(self) -> Session:
        """With what this part of the run is carried out."""
        return Session(commit(), device_name(self.device), torch.__version__)

    def _state(self) -> dict[str, Any]:
        assert self.agent is not None
        position = self.position
        return {
            "method": self.agent.state(), "next_step": position.next_step, "steps": plain(position.steps),
            "accuracy": position.accuracy, "overall": position.overall,
            "seconds": self.seconds(), "sessions": position.sessions, "content": self.content,
            "shared_device": self.shared_device, "carried_out": plain([*position.earlier, self.session]),
        }  # fmt: skip


occupied, is_occupied = locked, is_locked  # former names, until all callers use the new ones
