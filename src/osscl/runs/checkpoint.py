"""Checkpoints: the state of a run on disk, when to save it, and when to stop."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from osscl.config import from_plain, plain
from osscl.device import device_name, synchronise
from osscl.errors import OTHER_VERSION, DataError, Diverged, Stopped, UserError, as_memory_error, reason_of
from osscl.methods.base import Method, Progress
from osscl.runs.record import Session, StepRecord, commit
from osscl.storage import SUFFIX, read_newest_state, remove_state, set_aside, write_state


class Watcher(Protocol):
    """Receives the progress of a run."""

    def progress(self, t: int, steps: int, progress: Progress) -> None: ...

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None: ...


class Unwatched:
    """Ignores all progress."""

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        pass

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        pass


@dataclass(frozen=True)
class Options:
    """How a run is executed; none of it changes the result."""

    out: Path = Path("runs")
    data: Path | None = None
    device: str = "auto"
    max_minutes: float | None = None
    save_every: float = 60.0  # seconds between saves inside a phase
    share_references: bool = True
    references: Path | None = None  # folder where they are shared; None: the cache folder
    shared_device: bool = False  # the device is shared: timings are excluded from comparisons
    watcher: Watcher = field(default_factory=Unwatched)

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", Path(self.out))  # strings are accepted, too
        for name in ("data", "references"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else Path(given))

    def since(self, started: float) -> "Options":
        """The same with what is left of `max_minutes` since `started`, a value of `time.monotonic`."""
        if self.max_minutes is None:
            return self
        return replace(self, max_minutes=max(0.0, self.max_minutes - (time.monotonic() - started) / 60))


@dataclass
class Position:
    """Progress of a run: what its checkpoint holds besides the method's state."""

    next_step: int = 0
    accuracy: list[tuple[float, ...]] = field(default_factory=list)
    overall: list[float] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    sessions: int = 1
    earlier: list[Session] = field(default_factory=list)  # with another commit, device or torch


@contextlib.contextmanager
def set_aside_on_divergence(folder: Path) -> Iterator[None]:
    """Set the checkpoint aside if the block diverges, so that the same command starts over instead of resuming."""
    try:
        yield
    except Diverged:
        if (checkpoint := folder / f"checkpoint{SUFFIX}").exists():
            set_aside(checkpoint, "diverged")
        remove_state(folder / "checkpoint")  # also the previous one
        raise


class Checkpointer:
    """Saves the state of a learner between updates, and stops it there on request."""

    def __init__(
        self, folder: Path, options: Options, device: torch.device, contents: Callable[[], dict[str, Any]]
    ) -> None:
        self.path, self.options, self.device = folder / "checkpoint", options, device
        self.contents = contents  # everything needed to resume
        self.started = self.saved = time.monotonic()
        self.before = 0.0
        self.stop_requested = False

    def seconds(self) -> float:
        """Wall-clock time over all sessions."""
        synchronise(self.device)
        return self.before + time.monotonic() - self.started

    def maybe_checkpoint(self, end_of_phase: bool) -> None:
        """Called by the method after every update and at the end of every phase."""
        now = time.monotonic()
        limit = self.options.max_minutes
        out_of_time = limit is not None and now - self.started > 60 * limit
        if end_of_phase or out_of_time or self.stop_requested or now - self.saved > self.options.save_every:
            write_state(self.path, self.contents(), keep_previous=True)
            self.saved = time.monotonic()
        if out_of_time or self.stop_requested:
            raise Stopped

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM stops at the next safe point; a second one stops at once."""

        def request_stop(number: int, _: Any) -> None:
            self.stop_requested = True
            signal.signal(number, old[number])

        old: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # only the main thread may set handlers
            for caught in (signal.SIGINT, signal.SIGTERM):
                old[caught] = signal.signal(caught, request_stop)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


class RunCheckpointer(Checkpointer):
    """The checkpointer of a run, which also restores it."""

    session: Session  # from `restore` on, which is called with as many threads as the run uses

    def __init__(self, folder: Path, options: Options, device: torch.device, content: dict[str, str]) -> None:
        super().__init__(folder, options, device, self._state)
        self.content = content  # hash of each data set
        self.shared_device = options.shared_device
        self.position = Position()
        self.agent: Method | None = None

    def restore(self, agent: Method) -> Position:
        """Restore the agent from the last checkpoint; start from the beginning if there is none."""
        self.agent, self.session = agent, Session(commit(), device_name(self.device), torch.__version__)
        saved, file = read_newest_state(self.path), self.path.with_suffix(SUFFIX)
        if saved is None:
            return self.position
        try:
            self.position = self._restored(agent, saved)
        except OTHER_VERSION as error:
            why = reason_of(error)
            raise DataError(
                f"{file} was written by another version ({why}): delete or rename it to start over"
            ) from error
        self.before = saved["seconds"]
        self.shared_device |= saved["shared_device"]
        return self.position

    def _restored(self, agent: Method, saved: dict[str, Any]) -> Position:
        if saved["content"] != self.content:
            raise UserError(f"the data has changed since this run started; delete {self.path.parent} to start over")
        with as_memory_error():
            agent.load_state(saved["method"])
        steps = [from_plain(StepRecord, step) for step in saved["steps"]]
        parts = [from_plain(Session, part) for part in saved["executed_with"]]
        return Position(
            saved["next_step"], [tuple(row) for row in saved["accuracy"]], saved["overall"], steps,
            saved["sessions"] + 1, [part for part in parts if part != self.session],
        )  # fmt: skip

    def _state(self) -> dict[str, Any]:
        assert self.agent is not None
        position = self.position
        return {
            "method": self.agent.state(), "next_step": position.next_step, "steps": plain(position.steps),
            "accuracy": position.accuracy, "overall": position.overall,
            "seconds": self.seconds(), "sessions": position.sessions, "content": self.content,
            "shared_device": self.shared_device, "executed_with": plain([*position.earlier, self.session]),
        }  # fmt: skip
