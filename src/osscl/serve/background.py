"""Work that takes longer than a request: done once for each version, by one thread, with its progress."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from osscl.data.folders import ReadProgress
from osscl.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class WorkState(Generic[T]):
    """How far the work is."""

    version: str = ""
    phase: str = ""
    done: int = 0
    of: int = 0
    value: T | None = None
    error: str = ""


class BackgroundWork(Generic[T]):
    """Computes a value for the newest version asked for."""

    def __init__(self, work: "Callable[[WorkReports[T]], T]") -> None:
        self.work = work
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.is_running, self.is_outdated = False, False  # outdated: asked for again while it runs
        self.now: WorkState[T] = WorkState()
        self.last: T | None = None  # value to show: of an earlier version or unfinished where there is no better one

    def state(self, version: str) -> WorkState[T]:
        """The state of the work for this version, which is started if it was not."""
        with self.lock:
            if self.now.version != version and not self.is_running:
                self.now = WorkState(version)
                self.thread = threading.Thread(target=self._run, args=(version,), daemon=True)
                self.thread.start()
                self.is_running = True
            return self.now if self.now.version == version else WorkState(version)

    def again(self) -> None:
        """Do the work again when it is next asked for; if it is running, after it has finished."""
        with self.lock:
            if self.is_running:
                self.is_outdated = True
            else:
                self.now = WorkState()

    def wait(self, seconds: float) -> None:
        """Give work that is nearly done the time to finish."""
        if self.thread is not None:
            self.thread.join(seconds)

    def _run(self, version: str) -> None:
        try:
            self.last = self.work(WorkReports(self, version))
            self._finish(WorkState(version, value=self.last))
        except UserError as error:
            self._finish(WorkState(version, error=str(error)))
        except BaseException:
            self._finish(WorkState(version, error="this failed unexpectedly; the terminal of `osscl serve` says more"))
            raise

    def _finish(self, end: WorkState[T]) -> None:
        with self.lock:
            self.now = WorkState() if self.is_outdated else end
            self.is_running, self.is_outdated = False, False


@dataclass(frozen=True)
class WorkReports(Generic[T]):
    """What work says about itself while it runs."""

    of: BackgroundWork[T]
    version: str

    def phase(self, name: str) -> ReadProgress:
        """A new phase, and a function that reports how far it is."""

        def count(done: int, of: int) -> None:
            self.of.now = WorkState(self.version, name, done, of)

        count(0, 0)
        return count

    def show(self, value: T) -> None:
        """A preliminary value."""
        self.of.last = value
