"""How runs look: a live line on a terminal, plain lines elsewhere; records as tables."""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from osscl.methods.base import Progress
from osscl.report.tables import minutes
from osscl.runs.record import RunRecord, StepRecord
from osscl.runs.spec import describe_schedule

DASH = "—"
ROOM = 10  # columns of a terminal, which a column of a table needs for words


def console() -> Console:
    """Of the terminal's width; where there is none, wide enough for what goes to a file or another program."""
    made = Console(markup=False) if on_terminal() or "COLUMNS" in os.environ else Console(width=160, markup=False)
    return made if made.width > 0 else Console(width=80, markup=False)


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # it may be closed


def table(*columns: str, caption: str | None = None) -> Table:
    """A table whose cells fold where it is narrow: an id that is cut short is none."""
    made = Table(caption=caption)
    for name in columns:
        made.add_column(name, overflow="fold")
    return made


def narrow_table(*columns: str) -> Table:
    """The same without a frame, for many columns or rows of one line."""
    made = table(*columns)
    made.box, made.padding, made.pad_edge, made.show_edge = box.SIMPLE_HEAD, (0, 1, 0, 0), False, False
    return made


def unbroken(made: Table, columns: int, width: int) -> Table:
    """The table with its first columns never broken, as names that are copied must not be, if others have room left."""
    first = made.columns[:columns]
    longest = [max(cell_len(str(cell)) for cell in (column.header, *column.cells)) for column in first]
    if sum(longest) + ROOM * (len(made.columns) - columns) <= width:
        for column in first:
            column.no_wrap = True
    return made


def counted(n: int, noun: str) -> str:
    """As in 1 run, 2 runs."""
    return f"{n} {noun}{'' if n == 1 else 's'}"


def quoted(*words: str | Path) -> str:
    """A command to be typed or pasted."""
    return shlex.join(map(str, words))


@contextlib.contextmanager
def watching(title: str) -> "Iterator[PlainWatcher]":
    """Whoever looks on: at most one read of the device a second. The terminal is given back however the run ends."""
    if not on_terminal():
        yield PlainWatcher(title)
        return
    with Live(console=Console(), transient=True, auto_refresh=False) as live:
        yield LiveWatcher(title, live)


class PlainWatcher:
    """A line at the start of a phase, every ten seconds, and after each step."""

    every = 10.0

    def __init__(self, title: str) -> None:
        self.title = title
        self.phase = ("", -1)
        self.shown = 0.0
        self.meter = Meter()
        self.estimate = Estimate()

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        now = time.monotonic()
        fresh = (progress.phase, t) != self.phase
        if fresh:
            self.phase = (progress.phase, t)
            self.meter.start(progress, now)
        if fresh or now - self.shown >= self.every:
            self.shown = now
            self.line(
                describe(self.title, t, steps, progress, self.meter.rate(progress, now), self.estimate.left(t, steps))
            )

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        self.estimate.stepped(t)
        self.line(f"{self.title}  step {t + 1}/{steps}  accuracy {overall:.1f} %{gate_words(record)}")

    def line(self, text: str) -> None:
        print(text, flush=True)


class LiveWatcher(PlainWatcher):
    """The same lines, the last one rewritten in place once a second."""

    every = 1.0

    def __init__(self, title: str, live: Live) -> None:
        super().__init__(title)
        self.live = live

    def line(self, text: str) -> None:
        self.live.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        self.estimate.stepped(t)
        text = f"{self.title}  step {t + 1}/{steps}  accuracy {overall:.1f} %{gate_words(record)}"
        self.live.console.print(text, highlight=False)


class Meter:
    """Views a second since the phase began, or went on."""

    def start(self, progress: Progress, now: float) -> None:
        self.first, self.since = progress, now

    def rate(self, progress: Progress, now: float) -> float | None:
        seconds = now - self.since
        return (progress.views - self.first.views) / seconds if seconds > 0.2 else None


class Estimate:
    """Seconds to the end, from the steps after the first: the first is longer and would mislead."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, float]] = []

    def stepped(self, t: int) -> None:
        self.ends.append((t, time.monotonic()))

    def left(self, t: int, steps: int) -> float | None:
        if len(self.ends) < 2:
            return None
        (t0, first), (t1, last) = self.ends[0], self.ends[-1]
        a_step = (last - first) / (t1 - t0)
        return max(0.0, (steps - t) * a_step - (time.monotonic() - last))


def describe(title: str, t: int, steps: int, progress: Progress, rate: float | None, left: float | None) -> str:
    """Step of steps, phase, updates, loss, speed, time left."""
    parts = [title, f"step {t + 1}/{steps}", f"{progress.phase} {progress.update}/{progress.updates}"]
    if progress.loss is not None:
        parts.append(f"loss {float(progress.loss):.3f}")
    if rate is not None:
        parts.append(f"{rate:,.0f} views/s")
        views_left = progress.views / progress.update * (progress.updates - progress.update)
        parts.append(f"phase {clock(views_left / rate)} left" if rate else "")
    if left is not None:
        parts.append(f"run {clock(left)} left")
    return "  ".join(part for part in parts if part)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def gate_words(record: StepRecord) -> str:
    if record.gate is None or record.gate.auroc_seen is None:
        return ""
    return f"  gate AUROC {record.gate.auroc_seen:.3f}, {record.gate.passed} of {record.unlabeled} let in"


def number(value: float | None, digits: int = 1) -> str:
    """Missing is a dash."""
    return DASH if value is None else f"{value:.{digits}f}"


def comparison(records: Sequence[tuple[str, RunRecord]]) -> Group:
    """Runs side by side, a row a step: accuracy, what the gate did, and under them forgetting and seconds."""
    first = records[0][1]
    seeds = sorted({record.spec.seed for _, record in records})
    gated = [record for _, record in records if any(step.gate is not None for step in record.steps)][-1:]
    fullest = (gated or [first])[0]  # labels alone have no reference to speak of
    caption = (
        f"Accuracy in % over the classes met so far, {first.evaluated_rows} {first.evaluated_on} images in all; "
        f"schedule {describe_schedule(fullest.spec)}, seed {', '.join(map(str, seeds))}, "
        f"n = 1 run{' each' if len(records) > 1 else ''}."
    )
    if gated:
        caption += " Gate: unlabelled images of classes met against all others; precision: of those let in, share met."
    if any(phase.cached for _, record in records for step in record.steps for phase in step.phases):
        caption += " Seconds: a reference network that was there counts as it cost."
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("after step", no_wrap=True)
    for name, _ in records:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("gate AUROC", "let in", "precision") if gated else ():
        table.add_column(name, justify="right", no_wrap=True)
    for t in range(max(len(record.overall) for _, record in records)):
        shown = [number(record.overall[t]) if t < len(record.overall) else DASH for _, record in records]
        table.add_row(str(t + 1), *shown, *_gate_cells(gated[0].steps[t] if gated else None))
    table.add_section()
    table.add_row("forgetting", *(number(record.forgetting) for _, record in records))
    timed = [minutes(record) for _, record in records]
    table.add_row("seconds", *(number(None if one is None else 60 * one, 0) for one in timed))
    return Group(table, Text(caption))  # below it, not in it: a narrow table would break it into many short lines


def _gate_cells(step: StepRecord | None) -> list[str]:
    if step is None:
        return []
    if step.gate is None:
        return [DASH, DASH, DASH]
    return [
        number(step.gate.auroc_seen, 3),
        f"{step.gate.passed} of {step.unlabeled}",
        number(step.gate.precision_seen, 2),
    ]
