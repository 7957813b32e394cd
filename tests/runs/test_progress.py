"""Progress of a run: a bar in terminals and notebooks, lines where asked for, otherwise nothing."""

import io
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import osscl
from osscl.methods.base import SMOKE, Progress
from osscl.runs import progress
from osscl.runs.checkpoint import Options, Unwatched
from osscl.runs.progress import PlainProgress, TerminalProgress, live_progress, watched_options

SPEC = osscl.make_spec("digits", "labels-only", SMOKE, 0)


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
def test_progress_is_shown_where_somebody_watches(monkeypatch, stderr, notebook, wanted, kind):
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
def test_a_run_from_python_is_silent_unless_progress_is_wanted(tmp_path, capsys, wanted):
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
