"""The engine of runs does not change their results."""

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from osscl.errors import Diverged, Locked, SpecError, Stopped, UserError
from osscl.methods import CONFIGURATIONS, URSL
from osscl.methods.base import SMOKE
from osscl.runs import engine as engines
from osscl.runs.checkpoint import Options, Unwatched
from osscl.runs.engine import Engine, part_of_a_gpu, reference_key, run_specs
from osscl.runs.record import record_to_plain
from osscl.runs.spec import EXPERIMENTS, make_spec, with_seed
from osscl.storage import locked
from refusals import naming

TINY = replace(SMOKE, name="tiny", max_updates=1, row_cap=64)
BASE = make_spec(EXPERIMENTS["digits"], URSL, TINY, 0)
SOFTER = replace(BASE, method=replace(BASE.method, learner=replace(BASE.method.learner, gamma=0.1)))
SPECS = [BASE, SOFTER, with_seed(BASE, 1)]


def findings(record):
    """A record without where, when and how fast it was made."""
    plain = record_to_plain(record)
    del plain["made_by"]
    for step in plain["steps"]:
        for phase in step["phases"]:
            del phase["seconds"], phase["cached"]
    return plain


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OSSCL_COMMIT", "here")
    return tmp_path


# ----- which runs share a reference


def of(name, **changes):
    return replace(make_spec(EXPERIMENTS["digits"], CONFIGURATIONS[name], TINY, 0), **changes)


def test_ablations_of_the_learner_and_of_the_memory_share_a_reference():
    more = replace(BASE, scenario=replace(BASE.scenario, memory=40))
    assert reference_key(BASE) == reference_key(SOFTER) == reference_key(more)
    assert reference_key(of("ursl")) == reference_key(of("ursl-plus")) == reference_key(of("co2l-p"))


@pytest.mark.parametrize(
    "other",
    [
        with_seed(BASE, 1),
        replace(BASE, schedule=SMOKE),
        replace(BASE, scenario=replace(BASE.scenario, related=50)),
        replace(BASE, method=replace(BASE.method, reference=replace(BASE.method.reference, tau=0.5))),
    ],
    ids=["seed", "schedule", "world", "reference"],
)
def test_another_seed_schedule_world_or_recipe_is_another_reference(other):
    assert reference_key(BASE) != reference_key(other)


def test_methods_without_a_reference_wait_for_no_other_run():
    alone = [of("labels-only"), of("co2l"), of("co2l-j")]
    assert [reference_key(spec) for spec in alone] == [None] * len(alone)


# ----- here


@pytest.fixture
def calls(monkeypatch):
    seen = []
    monkeypatch.setattr(engines, "run", lambda spec, options, **_: seen.append(spec.id) or spec)
    return seen


def test_a_spec_that_is_listed_twice_runs_once(calls):
    assert list(run_specs([BASE, SOFTER, BASE], Options())) == [BASE, SOFTER]
    assert calls == [BASE.id, SOFTER.id]


def test_runs_start_one_by_one_as_their_records_are_requested(calls):
    records = run_specs(SPECS, Options())
    next(records)
    assert calls == [BASE.id]


def test_each_run_has_its_own_watcher(monkeypatch):
    watchers = []
    monkeypatch.setattr(engines, "run", lambda spec, options, **_: watchers.append(options.watcher))
    list(run_specs(SPECS, Options(), watch=lambda spec: contextlib.nullcontext(spec.id)))
    assert watchers == [spec.id for spec in SPECS]


def test_a_run_that_diverges_does_not_stop_the_others(monkeypatch):
    def run(spec, options, **_):
        if spec == BASE:
            raise Diverged("the loss is nan")
        return spec

    monkeypatch.setattr(engines, "run", run)
    done = []
    with pytest.raises(Diverged, match=naming(1, 3, BASE.id)):
        for record in run_specs(SPECS, Options()):
            done.append(record)
    assert done == SPECS[1:]
    with pytest.raises(Diverged) as alone:
        list(run_specs([BASE], Options()))
    assert BASE.id not in str(alone.value)


def test_a_locked_run_is_tried_again_after_the_others(monkeypatch):
    calls = []

    def run(spec, options, **_):
        calls.append(spec.id)
        if spec == BASE and (len(calls) == 1 or busy):
            raise Locked("locked by another process")
        return spec

    monkeypatch.setattr(engines, "run", run)
    busy = False
    assert list(run_specs(SPECS, Options())) == [*SPECS[1:], BASE]
    assert calls == [*(spec.id for spec in SPECS), BASE.id]
    busy = True
    with pytest.raises(Locked, match=naming(1, 3, BASE.id)):
        list(run_specs(SPECS, Options()))


def test_minutes_bound_all_runs_together(monkeypatch):
    clock, left = iter(range(0, 6000, 30)), []
    monkeypatch.setattr(engines.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(engines, "run", lambda spec, options, **_: left.append(options.max_minutes))
    list(run_specs(SPECS, Options(max_minutes=1.2)))
    assert left == pytest.approx([0.7, 0.2, 0.0])


def test_times_on_part_of_a_gpu_do_not_count():
    assert [part_of_a_gpu({"CPU": 1.0, "GPU": share}) for share in (0.0, 0.25, 1.0, 2.0)] == [False, True, False, False]


@pytest.mark.parametrize(
    "fields", [{"name": "slurm"}, {"address": "a:1"}, {"gpu_share": 0.5}, {"name": "ray", "gpu_share": 1.5},
               {"name": "ray", "gpu_share": 0.0}, {"name": "ray", "gpu_share": float("nan")}]
)  # fmt: skip
def test_an_invalid_engine_is_refused(fields):
    with pytest.raises(SpecError):
        Engine(**fields)


# ----- on Ray


@pytest.fixture(scope="module")
def cluster():
    """A Ray of two CPUs, for every test of this file that needs one."""
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


class Killer(Unwatched):
    """Kills the process of its run, once."""

    def __init__(self, mark):
        self.mark = mark

    def progress(self, t, steps, progress):
        if (t, progress.phase) == (1, "learner") and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def killed_once(folder, spec):
    return contextlib.nullcontext(Killer(folder / spec.id) if spec.id == BASE.id else Unwatched())


class Refuser(Unwatched):
    def __init__(self, error):
        self.error = error

    def stepped(self, t, steps, overall, record):
        raise self.error


def refused(error, spec):
    return contextlib.nullcontext(Refuser(error))


def test_records_are_the_same_on_ray_though_a_worker_is_killed(cluster, here, monkeypatch):
    local = {record.id: record for record in run_specs(SPECS, Options(out=here / "local"))}
    monkeypatch.setenv("OSSCL_CACHE", str(here / "another cache"))
    marks = here / "marks"
    marks.mkdir()
    out = Options(out=here / "ray")
    made = {record.id: record for record in run_specs(SPECS, out, Engine("ray"), functools.partial(killed_once, marks))}
    assert [path.name for path in marks.iterdir()] == [BASE.id]
    assert made.keys() == local.keys()
    for name, record in made.items():
        assert findings(record) == findings(local[name])
        assert len(list((here / "ray" / name).glob(f"{name}.json"))) == 1
    assert made[BASE.id].made_by.sessions == 2
    assert made[BASE.id].made_by.command == local[BASE.id].made_by.command
    # The run that shares the reference waited for it.
    assert all(phase.cached for step in made[SOFTER.id].steps for phase in step.phases if phase.name == "reference")
    # The second time nothing runs: these watchers would fail.
    again = run_specs(SPECS, out, Engine("ray"), functools.partial(refused, UserError("ran again")))
    assert {record.id: record for record in again} == made


@pytest.mark.parametrize("error", [UserError("told so"), Stopped()], ids=["mistake", "stop"])
def test_an_error_on_ray_is_the_error_of_a_local_run(cluster, here, error):
    watch = functools.partial(refused, error)
    with pytest.raises(type(error)) as ended:
        list(run_specs([BASE], Options(out=here / "ray"), Engine("ray"), watch))
    assert type(ended.value) is type(error) and str(ended.value) == str(error)


def test_our_own_bug_on_ray_keeps_its_traceback(cluster, here):
    watch = functools.partial(refused, ZeroDivisionError("a bug"))
    with pytest.raises(cluster.exceptions.RayTaskError, match=naming("ZeroDivisionError")):
        list(run_specs([BASE], Options(out=here / "ray"), Engine("ray"), watch))


def test_a_run_that_is_locked_by_another_process_is_left_alone(cluster, here):
    with locked(here / "ray" / BASE.id), pytest.raises(Locked, match=naming(BASE.id)):
        list(run_specs([BASE], Options(out=here / "ray"), Engine("ray")))
    assert not (here / "ray" / BASE.id / f"{BASE.id}.json").exists()


def diverges_first(spec):
    if spec.id == BASE.id:
        raise Diverged("the loss is nan")
    return contextlib.nullcontext(Unwatched())


def test_a_run_that_diverges_on_ray_is_reported_after_those_that_waited_for_it(cluster, here):
    done = []
    with pytest.raises(Diverged, match=naming(1, 2, BASE.id)):
        for record in run_specs([BASE, SOFTER], Options(out=here / "ray"), Engine("ray"), diverges_first):
            done.append(record.id)
    assert done == [SOFTER.id]


class Slow(Unwatched):
    def progress(self, t, steps, progress):
        time.sleep(0.3)


def slowly(spec):
    return contextlib.nullcontext(Slow())


def test_interrupted_runs_on_ray_save_their_state_and_resume(cluster, here, monkeypatch):
    wait, spec = cluster.wait, with_seed(BASE, 5)
    folder = here / "ray" / spec.id

    def interrupted(*args, **kwargs):
        while not (folder / "checkpoint.safetensors").exists():  # it has started
            time.sleep(0.05)
        monkeypatch.setattr(cluster, "wait", wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "wait", interrupted)
    with pytest.raises(Stopped):
        list(run_specs([spec], Options(out=here / "ray"), Engine("ray"), slowly))
    assert (folder / "checkpoint.safetensors").exists() and not (folder / f"{spec.id}.json").exists()
    (record,) = run_specs([spec], Options(out=here / "ray"))  # its folder is no longer locked
    assert record.made_by.sessions == 2


@pytest.mark.parametrize(
    ("engine", "device", "error", "about"),
    [
        (Engine("ray", gpu_share=0.5), "auto", UserError, "0.5 GPU"),
        (Engine("ray"), "cuda", UserError, "1 GPU"),
        (Engine("ray"), "cuda:1", SpecError, "'cuda:1'"),
        (Engine("ray", gpu_share=0.5), "cpu", SpecError, "--gpu-share"),
    ],
    ids=["share", "cuda", "numbered", "cpu"],
)
def test_a_gpu_that_the_cluster_lacks_is_refused_at_once(cluster, here, engine, device, error, about):
    with pytest.raises(error, match=naming(about)):
        list(run_specs([BASE], Options(out=here, device=device), engine))


def test_a_command_joins_the_cluster_at_an_address(cluster, here):
    address = cluster.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "osscl", "run", "digits", "--schedule", "smoke", "--seeds", "3"]
    small = ["--set", "schedule.name=tiny", "--set", "schedule.max_updates=1", "--set", "schedule.row_cap=64"]
    told = [*command, *small, "--engine", "ray", "--address", address, "--out", "runs"]
    done = subprocess.run(told, cwd=here, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(list((here / "runs").glob("*/ursl-digits-tiny-s3-*.json"))) == 1


ON_RAY = ("run", "digits", "--schedule", "smoke", "--engine", "ray")


def test_without_ray_the_command_says_how_to_install_it(refuses, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refuses(*ON_RAY, "--seeds", "0-1", error=UserError, about='pip install "osscl[ray]"')


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nowhere", "127.0.0.1:99999", "no.such.host.invalid:6379"]
)
def test_an_address_without_a_cluster_is_refused_in_one_line(refuses, address):
    pytest.importorskip("ray")
    refuses(*ON_RAY, "--address", address, error=UserError, about=["Ray", address])


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["silent", "closed", "other"])
def test_a_server_that_is_not_ray_is_refused_in_one_line_and_soon(refuses, monkeypatch, scheme, answer):
    pytest.importorskip("ray")
    monkeypatch.setattr(engines, "SECONDS_TO_ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        if answer is not None:
            threading.Thread(target=answers_once, args=(server, answer), daemon=True).start()
        address, began = f"{scheme}127.0.0.1:{server.getsockname()[1]}", time.monotonic()
        refuses(*ON_RAY, "--address", address, error=UserError, about=["Ray", address])
        assert time.monotonic() - began < 20


def answers_once(server, answer):
    connection, _ = server.accept()
    with connection:
        connection.sendall(answer)


@contextlib.contextmanager
def ray_head(folder):
    """The address of a Ray cluster of one CPU in processes of its own, and the ids of those processes.

    Since 2.59 Ray asks for a token; this cluster and the commands of the test share one that is made for it."""
    ray = shutil.which("ray", path=str(Path(sys.executable).parent))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    variables = os.environ | {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "OMP_NUM_THREADS": "1",
        "OSSCL_CACHE": str(folder / "cache"), "OSSCL_COMMIT": "here",
    }  # fmt: skip
    command = [ray, "start", "--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
    command += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    head = subprocess.Popen(command, env=variables, start_new_session=True, **quiet)

    def processes():
        """Those that name the folder of the cluster, without the commands that join it."""
        found = [head.pid]
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = place.read_bytes()
                if os.fsencode(f"{folder}/session") in words:
                    found.append(int(place.parent.name))
        return found

    try:
        yield f"127.0.0.1:{port}", variables, processes
    finally:
        kill_all(processes())
        head.wait()


def kill_all(processes):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def answers(address):
    with contextlib.suppress(UserError):
        engines._refuse_silence(address)
        return True
    return False


def wait_for(what, words):
    until = time.monotonic() + 120
    while not what():
        assert time.monotonic() < until, words()
        time.sleep(0.05)


def test_a_table_whose_cluster_is_killed_says_so_and_resumes_with_each_record_once(tmp_path):
    pytest.importorskip("ray")
    table = ["table", "T1", "--on", "demo", "--schedule", "smoke", "--seeds", "0-9", "--cells", "p10-cifar100/co2l"]
    hasty = "from osscl.cli import main; from osscl.runs import engine; engine.SECONDS_WITHOUT_HEAD = 1; main()"

    def records():
        return {path: path.read_bytes() for path in sorted(tmp_path.glob("runs/*/*-s?-*.json"))}

    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as short:  # Ray's sockets need short paths
        with ray_head(Path(short)) as (address, variables, processes), (tmp_path / "out").open("w") as out:
            wait_for(functools.partial(answers, address), lambda: "no head")
            told = [sys.executable, "-c", hasty, *table, "--engine", "ray", "--address", address]
            command = subprocess.Popen(told, cwd=tmp_path, env=variables, stdout=out, stderr=out)
            wait_for(records, (tmp_path / "out").read_text)
            kill_all(processes())
            assert command.wait(60) == 2
        last = (tmp_path / "out").read_text().splitlines()[-1]
        assert last.startswith("osscl: ") and "again to resume" in last
        before = records()
        assert 1 <= len(before) < 10
        done = subprocess.run([sys.executable, "-m", "osscl", *table], cwd=tmp_path, env=variables, capture_output=True)
    after = records()
    assert done.returncode == 0 and len(after) == 10 and after.items() >= before.items()


@pytest.mark.parametrize(
    ("flags", "about"),
    [
        (["--engine", "slurm"], ["engine", "slurm", "local", "ray"]),
        (["--address", "a:1"], ["--address", "--engine ray"]),
        (["--gpu-share", "0.5"], ["--gpu-share", "--engine ray"]),
        (["--engine", "ray", "--gpu-share", "-1"], ["gpu_share", "-1.0"]),
    ],
)
def test_invalid_engine_options_are_refused(refuses, flags, about):
    refuses("run", "digits", "--schedule", "smoke", *flags, error=SpecError, about=about)
