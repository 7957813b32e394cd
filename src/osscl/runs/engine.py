"""Where a list of specs is carried out: one after another here, or on a Ray cluster; records tell neither."""

import contextlib
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from osscl.errors import Diverged, Occupied, SpecError, Stopped, UserError, unknown
from osscl.paper.plan import reference_of
from osscl.runs.checkpoint import Options, Unwatched, Watcher
from osscl.runs.record import RunRecord, read_record, write_record
from osscl.runs.run import refuse_missing_sets, run
from osscl.runs.spec import RunSpec
from osscl.stream.step import Stream

ENGINES = ("local", "ray")
RETRIES = 3  # of a run whose worker is lost; it goes on from its last checkpoint
SECONDS_TO_ANSWER = 5.0
SECONDS_TO_SAVE = 30.0

Watch = Callable[[RunSpec], AbstractContextManager[Watcher]]  # who looks on at a run; for Ray it must pickle


@dataclass(frozen=True)
class Engine:
    """Where runs are carried out; none of it changes what comes out."""

    name: str = "local"
    address: str | None = None  # of a Ray cluster; None starts one here
    gpu_share: float | None = None  # of a GPU, for one run; None is a whole one where there are any

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise unknown("engine", self.name, ENGINES)
        if self.name == "local" and (self.address is not None or self.gpu_share is not None):
            raise SpecError("an address and a GPU share are Ray's: give --engine ray with them")
        share = self.gpu_share
        if share is not None and not (0 < share <= 1 or (share > 1 and share.is_integer())):
            raise SpecError(f"the GPU share must be in (0, 1], or a whole number, got {share}")


LOCAL = Engine()


def carry_out(
    specs: Sequence[RunSpec], options: Options, engine: Engine = LOCAL, watch: Watch | None = None
) -> Iterator[RunRecord]:
    """The record of each distinct spec, as it is finished; what is recorded already is not run again.

    A run that diverges, or that another process is at work on, does not keep the others from being carried out; it is
    told after them. `options.max_minutes` bounds all runs together here, and each of them on Ray.
    """
    distinct = list({spec.id: spec for spec in specs}.values())
    if engine.name == "ray":
        return _on_ray(distinct, options, engine, watch)
    refuse_missing_data(distinct, options)
    return _here(distinct, options, watch)


def _here(specs: Sequence[RunSpec], options: Options, watch: Watch | None) -> Iterator[RunRecord]:
    started, failed = time.monotonic(), Failed(len(specs))
    waiting = list(specs)
    for last in (False, True):  # a run of another process may be finished by the time that the others are
        occupied = []
        for spec in waiting:
            left = options.max_minutes
            if left is not None:
                left = max(0.0, left - (time.monotonic() - started) / 60)
            try:
                yield carry_out_one(spec, replace(options, max_minutes=left), watch)
            except Occupied as error:
                occupied.append(spec)
                if last or len(specs) == 1:
                    failed.add(spec, error)
            except Diverged as error:
                failed.add(spec, error)
        waiting = occupied
    failed.tell()


class Failed:
    """Runs of a list that came to nothing, to be told when the others are done."""

    def __init__(self, runs: int) -> None:
        self.runs, self.errors = runs, dict[str, UserError]()

    def add(self, spec: RunSpec, error: UserError) -> None:
        if self.runs == 1:
            raise error
        self.errors[spec.id] = error

    def tell(self) -> None:
        if self.errors:
            told = "; ".join(f"{name}: {error}" for name, error in self.errors.items())
            kind = Occupied if all(isinstance(error, Occupied) for error in self.errors.values()) else Diverged
            raise kind(f"{len(self.errors)} of {self.runs} runs came to nothing, the others are done: {told}")


def refuse_missing_data(specs: Sequence[RunSpec], options: Options) -> None:
    """Told before the first of many runs, not hours into them."""
    for spec in specs:
        if not _file(spec, options).exists():
            refuse_missing_sets(spec, options.data)


def carry_out_one(
    spec: RunSpec, options: Options, watch: Watch | None = None, stream: Stream | None = None
) -> RunRecord:
    """What every engine does with a spec."""
    with watch(spec) if watch is not None else nullcontext(options.watcher) as watcher:
        return run(spec, replace(options, watcher=watcher), stream=stream)


# ----- Ray


def _on_ray(specs: Sequence[RunSpec], options: Options, engine: Engine, watch: Watch | None) -> Iterator[RunRecord]:
    recorded = [spec for spec in specs if _file(spec, options).exists()]
    for spec in recorded:
        yield read_record(_file(spec, options), type(spec.method))
    missing = [spec for spec in specs if spec not in recorded]
    failed = Failed(len(specs))
    if not missing:
        return
    data = options.data.resolve() if options.data is not None else None
    sent = replace(options, out=options.out.resolve(), data=data, watcher=Unwatched())  # workers have folders of theirs
    with _cluster(engine.address) as ray:
        wanted = _wanted(ray, missing, options, engine)
        sent = replace(sent, shared_device=options.shared_device or part_of_a_gpu(wanted))
        waiting = _submit(ray, missing, sent, watch, wanted)
        try:
            while waiting:
                (done,), _ = ray.wait(list(waiting), num_returns=1)
                spec = waiting.pop(done)
                received = _received(ray, done, spec, sent)
                if isinstance(received, RunRecord):
                    yield received
                else:
                    failed.add(spec, received)
        except (KeyboardInterrupt, SystemExit):  # Ray makes a polite kill a SystemExit
            raise Stopped from None
        finally:
            _stop(ray, list(waiting))
    failed.tell()


def part_of_a_gpu(wanted: Mapping[str, float]) -> bool:
    """Whether runs may find each other on one device, so that their times are no measure."""
    return 0 < wanted["GPU"] < 1


def _submit(
    ray: Any, specs: Sequence[RunSpec], options: Options, watch: Watch | None, wanted: Mapping[str, float]
) -> dict[Any, RunSpec]:
    """A task for each run. Of runs that share a reference network the first goes ahead and trains it; the others wait
    for that run and find the network in the cache, where at the same time each would have trained it anew."""
    task = ray.remote(max_retries=RETRIES, num_cpus=wanted["CPU"], num_gpus=wanted["GPU"])(_task)
    ahead: dict[str, Any] = {}
    tasks: dict[Any, RunSpec] = {}
    for spec in specs:
        key = (reference_of(spec) if options.share_references else None) or spec.id
        made = task.remote(spec, options, watch, _surroundings(), ahead.get(key))
        ahead.setdefault(key, made)
        tasks[made] = spec
    return tasks


def _task(
    spec: RunSpec, options: Options, watch: Watch | None, surroundings: Mapping[str, Any],
    after: RunRecord | UserError | None,
) -> RunRecord | UserError:  # fmt: skip
    """One run in a worker; Ray begins it once `after` is there. An error that was raised there would be this one's."""
    os.environ.update(surroundings["variables"])
    sys.argv = list(surroundings["command"])  # a record names what was typed, not how Ray starts its workers
    torch.set_num_threads(surroundings["threads"])  # sums over several threads differ in their last bits
    try:
        return carry_out_one(spec, options, watch)
    except (Diverged, Occupied) as error:
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
        raise UserError(f"the worker of {spec.id} was lost {tries} times; the same command goes on") from None
    if isinstance(record, RunRecord) and not _file(spec, options).exists():  # the worker's disk is not ours
        write_record(record, _file(spec, options))
    return record


def _stop(ray: Any, tasks: Sequence[Any]) -> None:
    """A polite interrupt, and time for what has begun to save its state."""
    for task in tasks:
        ray.cancel(task)
    if tasks:
        ray.wait(tasks, num_returns=len(tasks), timeout=SECONDS_TO_SAVE)


def _file(spec: RunSpec, options: Options) -> Path:
    return options.out / spec.id / f"{spec.id}.json"


@contextlib.contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected: to the cluster that the caller is connected to, to the one at `address`, or to one made here."""
    if address is not None:  # where whoever answers is not Ray, it would ask twenty times, 40 s each
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    try:
        import ray
    except ImportError:
        raise UserError('the engine ray needs Ray: pip install "osscl[ray]"') from None
    if address is not None:
        _refuse_silence(address)
    if ray.is_initialized():
        yield ray
        return
    try:
        _connect(ray, address)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise UserError(f"no Ray cluster at {address or 'this machine'}: {error}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    if address is not None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what runs here is nobody's business
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


def _refuse_silence(address: str) -> None:
    """Ray itself tries for minutes where nobody listens."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not colon or not port.isdecimal():
        raise UserError(f"a Ray address is written host:port, ray://host:port or auto, got {address!r}")
    try:
        socket.create_connection((host, int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray cluster at {address}: {getattr(error, 'strerror', None) or error}") from None


def _wanted(ray: Any, specs: Sequence[RunSpec], options: Options, engine: Engine) -> dict[str, float]:
    """What one run holds of a node, refused where no node has as much: Ray would wait for one for ever."""
    if options.device.startswith("cuda:"):
        raise SpecError(f"Ray hands out the GPUs: give auto, cpu or cuda for the device, got {options.device!r}")
    if options.device == "cpu" and engine.gpu_share is not None:
        raise SpecError("a GPU share goes with the device auto or cuda")
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    on_gpu = options.device == "cuda" or engine.gpu_share is not None or any(node.get("GPU") for node in nodes)
    share = 0.0 if options.device == "cpu" or not on_gpu else engine.gpu_share or 1.0
    threads = 1 if share or all(spec.schedule.small_net for spec in specs) else torch.get_num_threads()
    wanted = {"CPU": float(threads), "GPU": share}
    if not any(all(node.get(kind, 0) >= amount for kind, amount in wanted.items()) for node in nodes):
        raise UserError(f"no node of the Ray cluster has {threads} CPU and {share:g} GPU, which a run is to hold")
    return wanted
