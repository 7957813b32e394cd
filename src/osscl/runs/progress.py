"""Watch a run: a live bar in a terminal or notebook, plain lines elsewhere, scalars for TensorBoard."""

import contextlib
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from osscl.errors import UserError, require_known
from osscl.methods.base import Progress
from osscl.runs.checkpoint import Options, Unwatched, Watcher
from osscl.runs.record import StepRecord
from osscl.text import printable

if TYPE_CHECKING:  # rich is imported only where a bar is drawn: training itself does not need it
    from rich.console import Console
    from rich.live import Live

BAR_WIDTH = 16
TRACKERS = ("tensorboard",)
TRACKING_INTERVAL = 5.0  # seconds between two readings of the loss: each waits for the device


class PlainProgress:
    """Print a line at the start of a phase, every ten seconds, and after each step."""

    interval = 10.0  # seconds; each report of a loss waits for the device

    def __init__(self, title: str, file: TextIO | None = None) -> None:
        self.title = printable(title)
        self.file = file  # None: stdout at the time of printing
        self.phase = ("", -1)
        self.reported = 0.0
        self.first = Progress("", 0, 0, 0)  # report of the current phase, and its time
        self.phase_started = 0.0
        self.step_ends: list[tuple[int, float]] = []

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        now = time.monotonic()
        new_phase = (progress.phase, t) != self.phase
        if new_phase:
            self.phase = (progress.phase, t)
            self.first, self.phase_started = progress, now
        if new_phase or now - self.reported >= self.interval:
            self.reported = now
            rate = self._rate(progress, now)
            left = time_left(progress, rate, self._left(t, steps))
            self.update(describe_progress(self.title, t, steps, progress, rate), left, progress)

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        self.step_ends.append((t, time.monotonic()))
        gate = ""
        if record.gate is not None and record.gate.auroc_seen is not None:
            passed = f"{record.gate.passed} of {record.unlabeled} accepted"
            gate = f"  gate AUROC {record.gate.auroc_seen:.3f}, {passed}"
        self.print(f"{self.title}  step {t + 1}/{steps}  accuracy {overall:.1f} %{gate}")

    def update(self, line: str, left: str, progress: Progress) -> None:
        """Show the progress of the phase."""
        self.print("  ".join(part for part in (line, left) if part))

    def print(self, line: str) -> None:
        print(line, file=self.file, flush=True)

    def _rate(self, progress: Progress, now: float) -> float | None:
        """Views per second since the phase started or resumed."""
        seconds = now - self.phase_started
        return (progress.views - self.first.views) / seconds if seconds > 0.2 else None

    def _left(self, t: int, steps: int) -> float | None:
        """Seconds to the end of the run, estimated from all steps but the first, which takes longer."""
        if len(self.step_ends) < 2:
            return None
        (t0, first), (t1, last) = self.step_ends[0], self.step_ends[-1]
        per_step = (last - first) / (t1 - t0)
        return max(0.0, (steps - t) * per_step - (time.monotonic() - last))


class TerminalProgress(PlainProgress):
    """Redraw one line with a bar every second; keep a line for each finished step."""

    interval = 1.0

    def __init__(self, title: str, live: "Live") -> None:
        super().__init__(title)
        self.live = live

    def update(self, line: str, left: str, progress: Progress) -> None:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        share = progress.update / max(1, progress.updates)
        text = Text(line)  # truncated in a narrow terminal, so that the remaining time stays visible
        text.truncate(max(1, self.live.console.width - BAR_WIDTH - len(left) - 3), overflow="ellipsis")
        row = Table.grid(padding=(0, 1))
        row.add_column(width=BAR_WIDTH)
        row.add_column(no_wrap=True)
        row.add_column(no_wrap=True)
        row.add_row(ProgressBar(total=1.0, completed=share, width=BAR_WIDTH), text, Text(left))
        self.live.update(row, refresh=True)

    def print(self, line: str) -> None:
        self.live.console.print(line, highlight=False, markup=False)


@contextlib.contextmanager
def live_progress(title: str, console: "Console") -> Iterator[Watcher]:
    """A bar on this console; the terminal is restored however the run ends."""
    from rich.live import Live

    with Live(console=console, transient=True, auto_refresh=False) as live:
        yield TerminalProgress(title, live)


@contextlib.contextmanager
def watched_options(options: Options, title: str, progress: bool | None) -> Iterator[Options]:
    """The options with progress shown on stderr, unless they have a watcher already.

    None shows it in a terminal or notebook only, True everywhere, False nowhere.
    """
    if type(options.watcher) is not Unwatched:  # a subclass is the caller's own
        yield options
        return
    with _on_stderr(title, progress) as watcher:
        yield replace(options, watcher=watcher)


def _on_stderr(title: str, progress: bool | None) -> AbstractContextManager[Watcher]:
    in_terminal = sys.stderr is not None and sys.stderr.isatty()  # it is None under pythonw
    in_notebook = _is_kernel()
    if progress is False or (progress is None and not in_terminal and not in_notebook):
        return nullcontext(Unwatched())
    if in_terminal or (in_notebook and find_spec("ipywidgets") is not None):
        from rich.console import Console

        return live_progress(title, Console(stderr=True))
    return nullcontext(PlainProgress(title, sys.stderr))


def _is_kernel() -> bool:
    """Whether this process is the kernel of a notebook; to have imported ipykernel is not enough."""
    app = sys.modules.get("ipykernel.kernelapp")
    return app is not None and bool(app.IPKernelApp.initialized())


def describe_progress(title: str, t: int, steps: int, progress: Progress, rate: float | None) -> str:
    """Step, phase, updates, loss and speed."""
    parts = [title, f"step {t + 1}/{steps}", f"{progress.phase} {progress.update}/{progress.updates}"]
    if progress.loss is not None:
        parts.append(f"loss {float(progress.loss):.3f}")
    if rate is not None:
        parts.append(f"{rate:,.0f} views/s")
    return "  ".join(parts)


def time_left(progress: Progress, rate: float | None, of_run: float | None) -> str:
    """The remaining time of the run, or of the phase if that of the run is not known yet."""
    if of_run is not None:
        return f"run {clock(of_run)} left"
    views_left = progress.views / max(1, progress.update) * (progress.updates - progress.update)
    return f"phase {clock(views_left / rate)} left" if rate else ""


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


# ----- TensorBoard, which is imported when the first scalar is written


def refuse_tracker(name: str) -> None:
    """Refuse a tracker that is unknown or not installed."""
    require_known("tracker", name, TRACKERS)
    if find_spec("tensorboard") is None:
        raise UserError('--track tensorboard needs TensorBoard: pip install "osscl[track]"')


@contextlib.contextmanager
def tracking(folder: Path, beside: Watcher | None = None) -> Iterator[Watcher]:
    """A watcher that writes scalars to `folder`, together with the watcher `beside`."""
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
        if now - self.read_at < TRACKING_INTERVAL:
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
            self._write("gate/precision, seen", record.gate.precision_seen, t + 1)
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
