"""A run that is killed or stopped resumes with the same command and ends in the same bits."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from osscl.errors import Locked, Stopped, UserError
from osscl.methods import URSL
from osscl.methods.base import SMOKE
from osscl.runs.checkpoint import Options, RunCheckpointer, Unwatched
from osscl.runs.record import read_record
from osscl.runs.run import run
from osscl.runs.spec import EXPERIMENTS, make_spec, spec_to_plain
from osscl.storage import locked, read_state
from refusals import naming

# One process imports torch and builds the stream once; each attempt at a run is a forked child.
DRIVER = '''
import json, os, signal, sys
from pathlib import Path

folder, given, names = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
os.environ["OSSCL_CACHE"], os.environ["OSSCL_COMMIT"] = str(folder / "cache"), "here"

import torch

torch.set_num_threads(1)
from osscl.errors import Stopped, UserError
from osscl.runs import run as runs
from osscl.runs.checkpoint import Options, Unwatched
from osscl.runs.spec import spec_from_plain
from osscl.methods import ursl
from osscl.stream.build import build_stream
from osscl.stream.build import Stream

for kind in (torch.optim.Adam, torch.optim.AdamW):  # importing on first use is slow; once for all children
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    kind([weight], 0.1, fused=True).step()

spec = spec_from_plain(given)
stream = build_stream(spec.scenario, runs.load_banks(spec, None, torch.device("cpu")), spec.seed)


def signalled(number):
    os.kill(os.getpid(), number)


def before(owner, name, when, number=signal.SIGKILL):
    """Send this process a signal before the call for which `when` holds."""
    function, calls = getattr(owner, name), []

    def call(*args, **kwargs):
        calls.append(args)
        if when(len(calls), *args):
            signalled(number)
        return function(*args, **kwargs)

    setattr(owner, name, call)


class Hook(Unwatched):
    """A watcher that acts at a given moment."""

    def __init__(self, phase="", step=-1, after=-1, number=signal.SIGKILL, every=0, do=None):
        self.at, self.after, self.number, self.every, self.seen = (phase, step), after, number, every, 0
        self.do = do or (lambda: signalled(number))

    def progress(self, t, steps, progress):
        self.seen += 1
        if (progress.phase, t) == self.at and progress.update == 2 or self.seen == self.every:
            self.do()

    def stepped(self, t, steps, overall, record):
        if t == self.after:
            self.do()


def replaced(name, count=1):
    """Kill before a draft replaces the file called `name`, for the count-th time."""
    seen = []

    def when(_, draft, target):
        seen.extend([1] * (Path(target).name == name))
        return Path(target).name == name and len(seen) == count

    before(Path, "replace", when)


def rival():
    """Start a second process at the same run."""
    if os.fork() == 0:
        try:
            carry_out("rival")
        except UserError as error:
            (folder / "rival.txt").write_text(str(error))
        os._exit(0)
    os.wait()


def carry_out(name, watcher=None, **options):
    where = Options(out=folder / name, save_every=0, watcher=watcher or Unwatched(), **options)
    os.environ["OSSCL_CACHE"] = str(folder / name / "cache")
    runs.run(spec, where, stream=stream)


PREPARATIONS = {
    "whole": lambda: None,
    "reference": lambda: Hook("reference", 1),
    "learner": lambda: Hook("learner", 1),
    "first update": lambda: Hook(every=1),
    "head": lambda: before(ursl, "fit_head", lambda n, *_: n == 2),
    "evaluation": lambda: before(runs, "evaluate", lambda n, *_: n == 2),
    "end of a step": lambda: Hook(after=1),
    "between steps": lambda: before(Stream, "step", lambda n, *_: n == 3),
    "checkpoint": lambda: replaced("checkpoint.safetensors", 13),
    "first checkpoint": lambda: replaced("checkpoint.safetensors"),
    "model": lambda: replaced("model.safetensors"),
    "record": lambda: replaced(f"{spec.id}.json"),
    "after the record": lambda: before(Path, "unlink", lambda _, path, **__: path.name == "checkpoint.safetensors"),
    "SIGTERM": lambda: Hook("learner", 1, number=signal.SIGTERM),
    "SIGTERM in the head": lambda: before(ursl, "fit_head", lambda n, *_: n == 2, signal.SIGTERM),
    "repeatedly": lambda: Hook(every=5),
    "rival": lambda: Hook("learner", 1, do=rival),
}


def attempt(name, plain):
    """Exit code of one process at a run, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            carry_out(name, None if plain else PREPARATIONS[name]())
            os._exit(0)
        except Stopped:
            os._exit(3)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


codes = {}
for name in names:
    codes[name] = [attempt(name, False)]
    while codes[name][-1] not in (0, 1) and len(codes[name]) < 12:
        codes[name].append(attempt(name, plain=name != "repeatedly"))
print(json.dumps(codes))
'''

DIGITS = replace(EXPERIMENTS["digits"], classes_per_step=(2, 2, 2), related=48, unrelated=48)
SPEC = make_spec(DIGITS, URSL, replace(SMOKE, name="tiny", row_cap=96), 0)
KILLED = [
    "reference", "learner", "first update", "head", "evaluation", "end of a step", "between steps", "checkpoint",
    "first checkpoint", "model", "record", "after the record",
]  # fmt: skip
STOPPED = ["SIGTERM", "SIGTERM in the head"]
SHARES = [["whole", *STOPPED, *KILLED[:5], "rival"], [*KILLED[5:], "repeatedly"]]  # one a core


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def codes(folder):
    """How each attempt at each run ended."""
    given = json.dumps(spec_to_plain(SPEC))

    def drive(names):
        done = subprocess.run([sys.executable, "-c", DRIVER, folder, given, *names], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return json.loads(done.stdout)

    with ThreadPoolExecutor(len(SHARES)) as pool:
        return {name: ended for part in pool.map(drive, SHARES) for name, ended in part.items()}


def outcome(folder):
    """Record and model of a run without timings, and its provenance."""
    record = json.loads((folder / SPEC.id / f"{SPEC.id}.json").read_text())
    made_by = record.pop("made_by")
    del record["digest"]  # covers the timings
    for step in record["steps"]:
        for phase in step["phases"]:
            del phase["seconds"]
    model = read_state(folder / SPEC.id / "model")
    del model["method"]["phases"]["log"]
    return record, leaves(model), made_by


def leaves(value, place=""):
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, f"{place}/{key}")]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, f"{place}/{i}")]
    return [(place, value)]


def assert_same_run(one, other):
    (record, model, _), (other_record, other_model, _) = outcome(one), outcome(other)
    assert record == other_record
    assert [place for place, _ in model] == [place for place, _ in other_model]
    for (place, a), (_, b) in zip(model, other_model, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, place


def files(folder):
    return sorted(path.name for path in (folder / SPEC.id).iterdir())


@pytest.mark.parametrize("name", KILLED)
def test_a_killed_run_resumes_to_the_same_bits(name, codes, folder):
    assert codes["whole"] == [0]
    assert codes[name] == [-9, 0]
    assert_same_run(folder / name, folder / "whole")


@pytest.mark.parametrize("name", STOPPED)
def test_sigterm_stops_at_the_next_checkpoint(name, codes, folder):
    assert codes[name] == [3, 0]
    assert_same_run(folder / name, folder / "whole")


def test_a_run_that_is_killed_repeatedly_finishes(codes, folder):
    assert codes["repeatedly"] == [-9] * 4 + [0]
    assert_same_run(folder / "repeatedly", folder / "whole")
    assert outcome(folder / "repeatedly")[2]["sessions"] == 5


def test_sessions_are_counted(codes, folder):
    assert outcome(folder / "whole")[2]["sessions"] == 1
    assert outcome(folder / "learner")[2]["sessions"] == 2


def test_no_draft_and_no_checkpoint_is_left_behind(codes, folder):
    expected = [".lock", "model.safetensors", "spec.json", f"{SPEC.id}.json"]
    for name in ("whole", *KILLED[:-1], *STOPPED):
        assert files(folder / name) == sorted(expected), name


def test_a_second_process_at_the_same_run_is_refused(codes, folder):
    said = (folder / "rival.txt").read_text()
    assert "is locked by another process" in said and "\n" not in said
    assert codes["rival"] == [0]
    assert_same_run(folder / "rival", folder / "whole")


def test_a_lock_ends_with_its_owner(tmp_path):
    with locked(tmp_path), pytest.raises(Locked, match=naming(tmp_path)), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


class NeverBuilt:
    def __init__(self, *_):
        raise AssertionError("a finished run was run again")


def test_a_finished_run_is_not_run_again(codes, folder):
    whole = folder / "whole"
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (whole / SPEC.id).iterdir()}
    record = run(SPEC, Options(out=whole, device="cpu"), method=NeverBuilt)
    assert record.id == SPEC.id and record.final == outcome(whole)[0]["final"]
    assert before == {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (whole / SPEC.id).iterdir()}


def test_a_run_out_of_time_stops_and_resumes(codes, folder, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(folder / "slow" / "cache"))
    slow = folder / "slow"
    for _ in range(3):
        with pytest.raises(Stopped):
            run(SPEC, Options(out=slow, device="cpu", max_minutes=0))
        assert (slow / SPEC.id / "checkpoint.safetensors").exists()
        assert not (slow / SPEC.id / f"{SPEC.id}.json").exists()
    run(SPEC, Options(out=slow, device="cpu"))
    assert_same_run(slow, folder / "whole")
    assert outcome(slow)[2]["sessions"] == 4


def test_a_resumed_run_has_one_device_in_its_record_and_so_keeps_its_time(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # the networks are small, so the run itself uses one
    try:
        with pytest.raises(Stopped):
            run(SPEC, Options(tmp_path, device="cpu", max_minutes=0, share_references=False))
        record = run(SPEC, Options(tmp_path, device="cpu", share_references=False))
    finally:
        torch.set_num_threads(before)
    assert record.made_by.sessions == 2 and record.made_by.device.endswith("1 threads") and not record.made_by.earlier


def test_a_damaged_checkpoint_starts_the_run_over(codes, folder, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(folder / "damaged" / "cache"))
    damaged = folder / "damaged"
    with pytest.raises(Stopped):
        run(SPEC, Options(out=damaged, device="cpu", max_minutes=0))
    checkpoint = damaged / SPEC.id / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    run(SPEC, Options(out=damaged, device="cpu"))
    assert_same_run(damaged, folder / "whole")


class Remembers:
    """An agent whose state is a number."""

    number = 7

    def state(self):
        return {"number": self.number}

    def load_state(self, state):
        self.number = state["number"]


def saver(folder, content, **options):
    return RunCheckpointer(folder, Options(**options), torch.device("cpu"), {"digits": content})


def test_a_checkpoint_keeps_seconds_and_shared_device(tmp_path):
    first = saver(tmp_path, "abc", shared_device=True)
    first.restore(Remembers())
    first.before = 100.0
    first.maybe_checkpoint(True)
    again, agent = saver(tmp_path, "abc"), Remembers()
    agent.number = 0
    assert again.restore(agent).sessions == 2 and agent.number == 7
    assert again.seconds() >= 100 and again.shared_device


def test_a_run_does_not_resume_with_other_data(tmp_path):
    first = saver(tmp_path, "abc")
    first.restore(Remembers())
    first.maybe_checkpoint(True)
    with pytest.raises(UserError, match=naming("data", tmp_path)):
        saver(tmp_path, "xyz").restore(Remembers())
    assert (tmp_path / "checkpoint.safetensors").exists()


class StopsAtTheEnd(Unwatched):
    """Sends SIGTERM while the last step is evaluated."""

    def stepped(self, t, steps, overall, record):
        if t + 1 == steps:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_at_the_very_end_keeps_the_finished_run_and_the_users_files(tmp_path):
    folder = tmp_path / SPEC.id
    (folder / ".folder.2024").mkdir(parents=True)
    (folder / ".notes.2024.txt").write_text("mine")
    (folder / ".spec.json.0a1b2c3d.draft").write_text("half a draft")
    with pytest.raises(Stopped):
        run(SPEC, Options(tmp_path, device="cpu", watcher=StopsAtTheEnd(), share_references=False))
    assert read_record(folder / f"{SPEC.id}.json").id == SPEC.id
    assert (folder / ".notes.2024.txt").read_text() == "mine" and (folder / ".folder.2024").is_dir()
    assert not (folder / ".spec.json.0a1b2c3d.draft").exists()
