"""Scalars of a run: what is written, how rarely the device is read, and no cost without the option."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from osscl.methods.base import Progress
from osscl.runs import track
from osscl.runs.track import BothWatchers, Tracker, tracking

TINIER = [f"--set=schedule.{change}" for change in ("name=tiny", "max_updates=1", "row_cap=64")]
SMALL = ["digits", "--schedule", "smoke", *TINIER]


class Loss:
    """Counts how often it is read."""

    reads = 0

    def __float__(self):
        Loss.reads += 1
        return 1.5


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(track.time, "monotonic", lambda: now.seconds)
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
    assert Loss.reads <= 10 / track.EVERY + 1
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
    assert {"accuracy/all classes seen", "gate/AUROC", "gate/precision"} <= set(events.Tags()["scalars"])
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
    refuses("run", *SMALL, "--track", "wandb", words="unknown tracker 'wandb'; allowed: tensorboard")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refuses("run", *SMALL, "--track", "tensorboard", words='pip install "osscl[track]"')
