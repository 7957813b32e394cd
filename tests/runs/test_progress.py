"""Progress of a run: a bar in terminals and notebooks, lines where asked for, otherwise nothing; and TensorBoard."""

import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import osscl
from osscl.errors import SpecError, UserError
from osscl.methods.base import SMOKE, Progress
from osscl.runs import progress
from osscl.runs.checkpoint import Options, Unwatched
from osscl.runs.progress import (
    BothWatchers,
    PlainProgress,
    TerminalProgress,
    Tracker,
    live_progress,
    tracking,
    watched_options,
)

SPEC = osscl.make_spec("digits", "labels-only", SMOKE, 0)
TINIER = [f"--set=schedule.{change}" for change in ("name=tiny", "max_updates=1", "row_cap=64")]
SMALL = ["digits", "--schedule", "smoke", *TINIER]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watcher_of(options, wanted):
    with watched_options(options, "title", wanted) as watched:
        return type(watched.watcher)


def kernel(runs):
    """A stand-in for `ipykernel.kernelapp`, in a process that is a kernel or has only imported it."""
    return SimpleNamespace(IPKernelApp=SimpleNamespace(initialized=lambda: runs))


@pytest.mark.parametrize(
    ("stderr", "notebook", "wanted", "kind"),
    [
        (Terminal, False, None, TerminalProgress),
        (Terminal, False, False, Unwatched),
        (io.StringIO, False, None, Unwatched),
        (io.StringIO, False, True, PlainProgress),
        (io.StringIO, True, None, TerminalProgress),
        (io.StringIO, True, False, Unwatched),
        (lambda: None, False, None, Unwatched),
    ],
)
def test_progress_is_shown_where_it_can_be_seen(monkeypatch, stderr, notebook, wanted, kind):
    monkeypatch.setattr(sys, "stderr", stderr())
    monkeypatch.setattr(progress, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", kernel(notebook))
    assert watcher_of(Options(), wanted) is kind
    own = PlainProgress("own")
    assert watcher_of(Options(watcher=own), wanted) is PlainProgress  # a caller's watcher is never replaced


def test_a_notebook_without_ipywidgets_gets_lines(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel.kernelapp", kernel(True))
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert watcher_of(Options(), None) is PlainProgress


@pytest.mark.parametrize("wanted", [None, False, True])
def test_a_run_from_python_is_silent_unless_progress_is_requested(tmp_path, capsys, wanted):
    osscl.run(SPEC, Options(tmp_path, device="cpu"), progress=wanted)
    shown, errors = capsys.readouterr()
    assert shown == "" and bool(errors) == bool(wanted)
    assert not wanted or "labels-only on digits, seed 0  step 5/5  accuracy" in errors


def test_a_bar_is_drawn_and_the_title_cannot_control_the_terminal():
    drawn = Terminal()
    with live_progress("red\x1b[31m", Console(file=drawn, force_terminal=True, width=120)) as watcher:
        watcher.progress(0, 5, Progress("learner", 3, 6, 96, torch.tensor(1.5)))
    assert "━" in drawn.getvalue() and "red\\x1b[31m  step 1/5  learner 3/6  loss 1.500" in drawn.getvalue()


def test_time_left_is_estimated_from_the_steps_after_the_first(monkeypatch):
    clock = iter([100.0, 110.0, 112.0])
    watcher = PlainProgress("title")
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    for t in (0, 1):
        watcher.step_ends.append((t, progress.time.monotonic()))
    assert watcher._left(2, 5) == 28.0  # three steps of 10 s, of which 2 s have passed
    assert progress.clock(28.0) == "0:28" and progress.clock(3725) == "1:02:05"


def test_a_narrow_terminal_shows_the_time_left_in_full():
    drawn = Terminal()
    title = "T4 without-td/ursl-plus-unlimited, seed 0 (2 of 7)"
    with live_progress(title, Console(file=drawn, force_terminal=True, width=80)) as watcher:
        watcher.update(f"{title}  step 3/5  learner 3/6  loss 1.500  12,345 views/s", "run 1:02:03 left", HALF)
    drawing = [line for line in drawn.getvalue().splitlines() if "T4" in line]
    assert drawing and all("run 1:02:03 left" in line and "…" in line for line in drawing)


HALF = Progress("learner", 3, 6, 96)


def test_the_time_left_is_the_runs_or_else_the_phases():
    assert progress.time_left(HALF, 48.0, 65.0) == "run 1:05 left"
    assert progress.time_left(HALF, 48.0, None) == "phase 0:02 left"
    assert progress.time_left(HALF, None, None) == ""


# ----- TensorBoard


class Loss:
    """Counts how often it is read."""

    reads = 0

    def __float__(self):
        Loss.reads += 1
        return 1.5


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.seconds)
    return now


@pytest.fixture
def scalars(monkeypatch):
    """Collect what a tracker would write."""
    written = []
    monkeypatch.setattr(Tracker, "_write", lambda self, *scalar: written.append(scalar))
    return written


def test_the_loss_is_read_at_most_once_every_few_seconds(clock, scalars, monkeypatch):
    monkeypatch.setattr(Loss, "reads", 0)
    tracker = Tracker(None)
    for update in range(1, 1001):  # of ten milliseconds each
        clock.seconds += 0.01
        tracker.progress(0, 2, Progress("reference", update, 1000, 1024 * update, Loss()))
    assert Loss.reads <= 10 / progress.TRACKING_INTERVAL + 1
    speeds = [value for name, value, _ in scalars if name == "views per second/reference"]
    assert speeds == pytest.approx([1024 / 0.01] * len(speeds)) and speeds


def test_speed_is_measured_within_one_phase(clock, scalars):
    tracker = Tracker(None)
    for phase, views in (("reference", 5000), ("learner", 100)):
        clock.seconds += 10
        tracker.progress(0, 2, Progress(phase, 1, 2, views, torch.tensor(1.0)))
    assert {name for name, *_ in scalars} == {"loss/reference", "loss/learner"}


def test_both_watchers_see_everything():
    seen = []
    watcher = SimpleNamespace(progress=lambda *a: seen.append(a), stepped=lambda *a: seen.append(a))
    both = BothWatchers(watcher, watcher)
    both.progress(0, 2, None)
    both.stepped(0, 2, 50.0, None)
    assert seen == [(0, 2, None)] * 2 + [(0, 2, 50.0, None)] * 2


def test_a_finished_run_gets_no_file(tmp_path):
    with tracking(tmp_path / "tensorboard"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_tracked_run_can_be_read_by_tensorboard(typed, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    code, shown, _ = typed("run", *SMALL, "--track", "tensorboard")
    assert code == 0 and "accuracy" in shown
    (folder,) = (tmp_path / "runs").glob("*/tensorboard")
    events = EventAccumulator(str(folder)).Reload()
    assert {"accuracy/all classes seen", "gate/AUROC", "gate/precision, seen"} <= set(events.Tags()["scalars"])
    assert any(name.startswith("loss/") for name in events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("accuracy/all classes seen")] == [1, 2, 3, 4, 5]


def test_without_the_option_nothing_is_imported(tmp_path):
    code = (
        "import sys; sys.argv = ['osscl', *sys.argv[1:]]\n"
        "from osscl.cli import main\n"
        "try: main()\n"
        "except SystemExit as ended: assert not ended.code, ended.code\n"
        "found = {name.split('.')[0] for name in sys.modules} & {'tensorboard', 'ray', 'optuna', 'sqlalchemy'}\n"
        "assert not found, found"
    )
    alone = {**os.environ, "OSSCL_CACHE": str(tmp_path / "cache"), "OSSCL_COMMIT": "here", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", code, "run", *SMALL], cwd=tmp_path, env=alone, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()


def test_a_tracker_that_is_unknown_or_not_installed_is_refused(refuses, monkeypatch):
    refuses("run", *SMALL, "--track", "wandb", error=SpecError, about=["wandb", "tensorboard"])
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    refuses("run", *SMALL, "--track", "tensorboard", error=UserError, about='pip install "osscl[track]"')
