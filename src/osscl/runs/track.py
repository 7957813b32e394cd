"""Write scalars of a run for TensorBoard, which is imported when the first one is written."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osscl.errors import UserError, unknown
from osscl.methods.base import Progress
from osscl.runs.checkpoint import Watcher
from osscl.runs.record import StepRecord

TRACKERS = ("tensorboard",)
EVERY = 5.0  # seconds between two readings of the loss: each waits for the device


def refuse_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed."""
    from importlib.util import find_spec

    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    if find_spec("tensorboard") is None:
        raise UserError('--track tensorboard needs TensorBoard: pip install "osscl[track]"')


@contextlib.contextmanager
def tracking(folder: Path, beside: Watcher | None = None) -> Iterator[Watcher]:
    """A watcher that writes scalars to `folder`, together with the one `beside` it."""
    tracker = Tracker(folder)
    try:
        yield tracker if beside is None else BothWatchers(beside, tracker)
    finally:
        tracker.close()


class Tracker:
    """Loss and speed by thousandths of a step, so that schedules and resumed runs line up; the rest by step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writer: Any = None
        self.read_at = float("-inf")
        self.before: tuple[str, int, int, float] | None = None  # phase, step, views and time of the last reading

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        now = time.monotonic()
        if now - self.read_at < EVERY:
            return
        self.read_at, x = now, round(1000 * (t + progress.update / progress.updates))
        if progress.loss is not None:
            self._write(f"loss/{progress.phase}", float(progress.loss), x)
        phase, step, views, then = self.before or ("", -1, 0, now)
        if (phase, step) == (progress.phase, t) and now > then:
            self._write(f"views per second/{phase}", (progress.views - views) / (now - then), x)
        self.before = progress.phase, t, progress.views, now

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        self._write("accuracy/all classes seen", overall, t + 1)
        if record.gate is not None:
            self._write("gate/AUROC", record.gate.auroc_seen, t + 1)
            self._write("gate/precision", record.gate.precision_seen, t + 1)
        if record.known is not None:
            self._write("looks known/AUROC", record.known.auroc, t + 1)
        self.writer.flush()

    def _write(self, name: str, value: float | None, x: int) -> None:
        if self.writer is None:  # a finished run writes nothing, so its folder stays as it is
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.folder))
        if value is not None:
            self.writer.add_scalar(name, value, x)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class BothWatchers:
    """Two watchers of one run."""

    def __init__(self, first: Watcher, second: Watcher) -> None:
        self.both = first, second

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        for watcher in self.both:
            watcher.progress(t, steps, progress)

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        for watcher in self.both:
            watcher.stepped(t, steps, overall, record)
