"""Run a list of specs, on this machine or on a Ray cluster; records are the same either way."""

import atexit
import contextlib
import functools
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from osscl.config import content_id
from osscl.errors import Diverged, Locked, SpecError, Stopped, UserError, reason_of, require_known
from osscl.runs.checkpoint import Options, Unwatched, Watcher
from osscl.runs.record import RunRecord, read_record, write_record
from osscl.runs.run import refuse_missing_sets, run
from osscl.runs.spec import RunSpec
from osscl.stream.build import Stream

ENGINES = ("local", "ray")
RETRIES = 3  # of a run whose worker is lost; it resumes from its last checkpoint
SECONDS_TO_ANSWER = 5.0
SETTINGS_FRAME = 4  # its type in HTTP/2
SECONDS_TO_SAVE = 30.0
SECONDS_BETWEEN_LOOKS = 2.0  # between checks that the head of a Ray cluster answers
SECONDS_WITHOUT_HEAD = 8.0  # after which a cluster is lost; Ray itself would wait a minute and then end this process

Watch = Callable[[RunSpec], AbstractContextManager[Watcher]]  # makes the watcher of a run; must be picklable for Ray


@dataclass(frozen=True)
class Engine:
    """Where runs are executed, which does not change their results."""

    name: str = "local"
    address: str | None = None  # of a Ray cluster; None starts one here
    gpu_share: float | None = None  # share of a GPU per run; None: a whole one if there are any

    def __post_init__(self) -> None:
        require_known("engine", self.name, ENGINES)
        if self.name == "local" and (self.address is not None or self.gpu_share is not None):
            raise SpecError("--address and --gpu-share require --engine ray")
        share = self.gpu_share
        if share is not None and not (0 < share <= 1 or (share > 1 and share.is_integer())):
            raise SpecError(f"gpu_share must be in (0, 1] or a whole number, got {share}")


LOCAL = Engine()


@functools.cache
def reference_key(spec: RunSpec) -> str | None:
    """A key that is equal for runs that train the same reference networks; None for a run that trains none."""
    method = spec.method
    if not getattr(method, "needs_reference", False) or not (spec.scenario.related or spec.scenario.unrelated):
        return None
    world = replace(spec.scenario, memory=0)  # everything else decides what U_t holds
    return content_id([world, method.reference, replace(spec.schedule, name="any"), spec.seed, spec.stream])


def run_specs(
    specs: Sequence[RunSpec], options: Options, engine: Engine = LOCAL, watch: Watch | None = None
) -> Iterator[RunRecord]:
    """Run each distinct spec that has no record yet, and yield the record of each when it is finished.

    Runs that diverge or are locked by another process are reported after the others have finished.
    `options.max_minutes` bounds all runs together, or with Ray each of them.
    """
    distinct = list({spec.id: spec for spec in specs}.values())
    if engine.name == "ray":
        return _on_ray(distinct, options, engine, watch)
    refuse_missing_data(distinct, options)
    return _here(distinct, options, watch)


def _here(specs: Sequence[RunSpec], options: Options, watch: Watch | None) -> Iterator[RunRecord]:
    started, failed = time.monotonic(), Failures(len(specs))
    waiting = list(specs)
    for last in (False, True):  # another process may finish a run while the others are running
        locked_specs = []
        for spec in waiting:
            try:
                yield run_one(spec, options.since(started), watch)
            except Locked as error:
                locked_specs.append(spec)
                if last or len(specs) == 1:
                    failed.add(spec, error)
            except Diverged as error:
                failed.add(spec, error)
        waiting = locked_specs
    failed.raise_any()


class Failures:
    """Failed runs of a list, raised as one error after the others have finished."""

    def __init__(self, runs: int) -> None:
        self.runs, self.errors = runs, dict[str, UserError]()

    def add(self, spec: RunSpec, error: UserError) -> None:
        if self.runs == 1:
            raise error
        self.errors[spec.id] = error

    def raise_any(self) -> None:
        if self.errors:
            reasons = "; ".join(f"{name}: {error}" for name, error in self.errors.items())
            kind = Locked if all(isinstance(error, Locked) for error in self.errors.values()) else Diverged
            raise kind(f"{len(self.errors)} of {self.runs} runs failed: {reasons}")


def refuse_missing_data(specs: Sequence[RunSpec], options: Options) -> None:
    """Check that all data sets exist before the first run."""
    for spec in specs:
        if not _file(spec, options).exists():
            refuse_missing_sets(spec, options.data)


def run_one(spec: RunSpec, options: Options, watch: Watch | None = None, stream: Stream | None = None) -> RunRecord:
    """Run one spec, in this process or in a worker."""
    with watch(spec) if watch is not None else nullcontext(options.watcher) as watcher:
        return run(spec, replace(options, watcher=watcher), stream=stream, progress=False)


# ----- Ray


def _on_ray(specs: Sequence[RunSpec], options: Options, engine: Engine, watch: Watch | None) -> Iterator[RunRecord]:
    recorded = [spec for spec in specs if _file(spec, options).exists()]
    for spec in recorded:
        yield read_record(_file(spec, options), type(spec.method))
    missing = [spec for spec in specs if spec not in recorded]
    failed = Failures(len(specs))
    if not missing:
        return
    data = options.data.resolve() if options.data is not None else None
    sent = replace(
        options, out=options.out.resolve(), data=data, watcher=Unwatched()
    )  # workers have their own working directory
    with ray_cluster(engine.address) as ray:
        resources = _resources(ray, missing, options, engine)
        sent = replace(sent, shared_device=options.shared_device or part_of_a_gpu(resources))
        waiting = _submit(ray, missing, sent, watch, resources)
        try:
            while waiting:
                spec = waiting.pop(done := _next_done(ray, list(waiting), engine.address))
                received = _received(ray, done, spec, sent)
                if isinstance(received, RunRecord):
                    yield received
                else:
                    failed.add(spec, received)
        except (KeyboardInterrupt, SystemExit):  # Ray turns SIGTERM into SystemExit
            raise Stopped from None
        except LostCluster:
            waiting.clear()  # no worker is left to stop
            raise
        finally:
            _stop(ray, list(waiting))
    failed.raise_any()


class LostCluster(UserError):
    """The head of a Ray cluster has stopped answering."""


def _next_done(ray: Any, tasks: list[Any], address: str | None) -> Any:
    """The next task that ends; raises LostCluster if the head of the cluster is gone."""
    while True:
        done, _ = ray.wait(tasks, num_returns=1, timeout=SECONDS_BETWEEN_LOOKS)
        if done:
            return done[0]
        _require_head(_head_address(ray, address))


def _head_address(ray: Any, address: str | None) -> str:
    return address if address not in (None, "auto") else str(ray.get_runtime_context().gcs_address)


def _require_head(address: str) -> None:
    until = time.monotonic() + SECONDS_WITHOUT_HEAD
    while True:
        try:
            return _refuse_silence(address)
        except UserError:
            if time.monotonic() > until:
                raise LostCluster(
                    f"the Ray cluster at {address} has stopped answering; run the same command again to resume"
                ) from None
            time.sleep(1)


def part_of_a_gpu(resources: Mapping[str, float]) -> bool:
    """Whether several runs may share one device, so that their timings are not comparable."""
    return 0 < resources["GPU"] < 1


def _submit(
    ray: Any, specs: Sequence[RunSpec], options: Options, watch: Watch | None, resources: Mapping[str, float]
) -> dict[Any, RunSpec]:
    """A task for each run. Of runs that share a reference network, one trains it and the others wait for that run."""
    task = ray.remote(max_retries=RETRIES, num_cpus=resources["CPU"], num_gpus=resources["GPU"])(_task)
    ahead: dict[str, Any] = {}
    tasks: dict[Any, RunSpec] = {}
    for spec in specs:
        key = (reference_key(spec) if options.share_references else None) or spec.id
        made = task.remote(spec, options, watch, _surroundings(), ahead.get(key))
        ahead.setdefault(key, made)
        tasks[made] = spec
    return tasks


def _task(
    spec: RunSpec, options: Options, watch: Watch | None, surroundings: Mapping[str, Any],
    after: RunRecord | UserError | None,
) -> RunRecord | UserError:  # fmt: skip
    """One run in a worker, started by Ray once `after` is finished; returned errors do not stop the runs that wait."""
    os.environ.update(surroundings["variables"])
    sys.argv = list(surroundings["command"])  # a record names the user's command, not Ray's
    torch.set_num_threads(surroundings["threads"])  # sums over several threads differ in their last bits
    try:
        return run_one(spec, options, watch)
    except (Diverged, Locked) as error:
        return error


def _surroundings() -> dict[str, Any]:
    ours = {name: value for name, value in os.environ.items() if name.startswith("OSSCL_")}
    return {"variables": ours, "command": sys.argv, "threads": torch.get_num_threads()}


def _received(ray: Any, task: Any, spec: RunSpec, options: Options) -> RunRecord | UserError:
    try:
        record: RunRecord | UserError = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, UserError | Stopped):
            raise error.cause from None
        raise
    except ray.exceptions.WorkerCrashedError:
        tries = RETRIES + 1
        raise UserError(
            f"the worker of {spec.id} was lost {tries} times; run the same command again to resume"
        ) from None
    except ray.exceptions.RayError as error:  # its machine, or the cluster
        raise LostCluster(
            f"Ray has lost {spec.id} ({reason_of(error)}); run the same command again to resume"
        ) from None
    if isinstance(record, RunRecord) and not _file(spec, options).exists():  # the worker wrote to another disk
        write_record(record, _file(spec, options))
    return record


def _stop(ray: Any, tasks: Sequence[Any]) -> None:
    """Interrupt the tasks, and wait until those that are running have saved their state."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=SECONDS_TO_SAVE)


def _file(spec: RunSpec, options: Options) -> Path:
    return options.out / spec.id / f"{spec.id}.json"


@contextlib.contextmanager
def ray_cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected to the caller's cluster, to the one at `address`, or to a new local one."""
    if address is not None:  # by default Ray tries a server that is not Ray twenty times, for 40 s each
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    try:
        import ray
    except ImportError:
        raise UserError('the ray engine needs Ray: pip install "osscl[ray]"') from None
    if address is not None:
        _refuse_silence(address)
    if ray.is_initialized():
        yield ray
        return
    try:
        _connect(ray, address)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        what = "cannot start Ray on this machine" if address is None else f"cannot connect to Ray at {address}"
        raise UserError(f"{what}: {error}") from None
    try:
        yield ray
    except LostCluster:
        _leave(ray)
        raise
    except BaseException:
        ray.shutdown()
        raise
    ray.shutdown()


def _leave(ray: Any) -> None:
    """Disconnect from a cluster that is gone, in the background: Ray waits a minute for it, here and at exit."""
    atexit.unregister(ray.shutdown)
    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    leaving.start()
    leaving.join(SECONDS_TO_ANSWER)


def _connect(ray: Any, address: str | None) -> None:
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


def _refuse_silence(address: str) -> None:
    """Refuse an address at which no Ray server answers; Ray itself would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdecimal():
        raise UserError(f"a Ray address must be host:port, ray://host:port or auto, got {address!r}")
    try:
        with socket.create_connection((host, int(port)), SECONDS_TO_ANSWER) as connection:
            if not _speaks_http2(connection):
                raise UserError(f"no Ray cluster at {address}: another program is listening there")
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster at {address}: {getattr(error, 'strerror', None) or error}") from None


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether a server answers as gRPC does, which Ray uses: with settings, as HTTP/2 (RFC 9113, 3.4) requires."""
    if os.environ.get("RAY_USE_TLS") == "1":
        return True  # it would not answer in plain text
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, SETTINGS_FRAME, 0, 0, 0, 0, 0)))
    return connection.recv(4)[3:] == bytes((SETTINGS_FRAME,))


def _resources(ray: Any, specs: Sequence[RunSpec], options: Options, engine: Engine) -> dict[str, float]:
    """The resources of one run; refused where no node has them, because Ray would wait forever."""
    if options.device.startswith("cuda:"):
        raise SpecError(f"with --engine ray, device must be auto, cpu or cuda, got {options.device!r}")
    if options.device == "cpu" and engine.gpu_share is not None:
        raise SpecError("--gpu-share requires the device auto or cuda")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    on_gpu = options.device == "cuda" or engine.gpu_share is not None or any(node.get("GPU") for node in nodes)
    share = 0.0 if options.device == "cpu" or not on_gpu else engine.gpu_share or 1.0
    threads = 1 if share or all(spec.schedule.small_net for spec in specs) else torch.get_num_threads()
    resources = {"CPU": float(threads), "GPU": share}
    if not any(all(node.get(kind, 0) >= amount for kind, amount in resources.items()) for node in nodes):
        raise UserError(f"a run needs {threads} CPU and {share:g} GPU, more than any node of the Ray cluster has")
    return resources
