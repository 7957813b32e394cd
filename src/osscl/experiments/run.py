"""run(spec) -> RunRecord: the only place that joins data and method. A run that was stopped goes on."""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from osscl import __version__, metrics
from osscl.data.benchmarks import dataset, load_bank
from osscl.data.images import ImageBank
from osscl.data.places import cache_dir, data_dir
from osscl.device import pick_device, precision_of, prepare, synchronise
from osscl.errors import SpecError, Stopped, UserError
from osscl.experiments.evaluate import evaluate, judge_gate
from osscl.experiments.record import (
    Provenance,
    RunRecord,
    StepRecord,
    commit,
    python_version,
    read_record,
    write_record,
)  # fmt: skip
from osscl.experiments.saved import save_model
from osscl.experiments.spec import RunSpec, name_of, spec_to_plain
from osscl.frozen import from_plain, plain
from osscl.methods import METHODS
from osscl.methods.method import Method, Progress, Runtime, Setting
from osscl.stored import read_state, write_state, write_text
from osscl.stream.build import build_stream
from osscl.stream.step import Stream
from osscl.vision.encoder import ImageFormat


class Watcher(Protocol):
    """Somebody who looks on."""

    def progress(self, t: int, steps: int, progress: Progress) -> None: ...

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None: ...


class Unwatched:
    """Nobody looks on."""

    def progress(self, t: int, steps: int, progress: Progress) -> None:
        pass

    def stepped(self, t: int, steps: int, overall: float, record: StepRecord) -> None:
        pass


@dataclass(frozen=True)
class Options:
    """How a run is carried out; none of it changes what comes out."""

    out: Path = Path("runs")
    data: Path | None = None
    device: str = "auto"
    max_minutes: float | None = None
    save_every: float = 60.0  # seconds between saves inside a phase
    share_references: bool = True
    watcher: Watcher = field(default_factory=Unwatched)


@dataclass
class Position:
    """How far a run has come: what its checkpoint holds beside the method's state."""

    next_step: int = 0
    accuracy: list[tuple[float, ...]] = field(default_factory=list)
    overall: list[float] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    seconds: float = 0.0
    sessions: int = 1


def run(
    spec: RunSpec, options: Options | None = None, *, method: type | None = None, stream: Stream | None = None
) -> RunRecord:
    """Carry a spec out, or go on with it, or hand back the record that is there. `method` is a class of your own."""
    options = options or Options()
    folder = options.out / spec.id
    finished = folder / f"{spec.id}.json"
    if finished.exists():
        return read_record(finished, type(spec.method))
    if spec.stream is not None and stream is None:
        raise SpecError("this run's rows came from a stream file; give that file with --stream")
    kind = class_of(spec, method)
    device = pick_device(options.device)
    prepare(device)
    if stream is None:
        banks = load_banks(spec, options.data, device)
        stream = build_stream(spec.scenario, banks, spec.seed, spec.schedule.row_cap)
    with occupied(folder):
        if finished.exists():  # by now
            return read_record(finished, type(spec.method))
        if not (folder / "spec.json").exists():
            write_text(folder / "spec.json", as_json(spec))
        record = _carry_out(spec, options, folder, stream, device, kind)
        write_record(record, finished)
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return record


def _carry_out(
    spec: RunSpec, options: Options, folder: Path, stream: Stream, device: torch.device, kind: Any
) -> RunRecord:
    saver = Saver(folder, options, device)
    reports: dict[str, Any] = {"t": 0}

    def progress(where: Progress) -> None:
        options.watcher.progress(reports["t"], len(stream), where)

    cache = cache_dir() / "references" if options.share_references else None
    runtime = Runtime(device, precision_of(device), saver.keep, progress, cache)
    setting = setting_of(spec, stream)
    agent: Method = kind(spec.method, setting, runtime)
    position = saver.restore(agent)
    truth = predicted = torch.empty(0, dtype=torch.long)
    with saver.listening():
        for t in range(position.next_step, len(stream)):
            reports["t"] = t
            report = agent.learn(stream.step(t))
            by_step, overall, truth, predicted = evaluate(agent, stream, t)
            gate = judge_gate(report.gate, stream.truth(t), stream, t) if report.gate is not None else None
            rows = stream.steps[t]
            step = StepRecord(
                rows.new_classes, len(rows.labeled), len(rows.unlabeled), rows.asked, report.phases, report.notes, gate
            )
            position.accuracy.append(by_step)
            position.overall.append(overall)
            position.steps.append(step)
            position.next_step = t + 1
            options.watcher.stepped(t, len(stream), overall, step)
            if t + 1 < len(stream):
                saver.keep(True)
    if not len(truth):
        _, _, truth, predicted = evaluate(agent, stream, len(stream) - 1)
    save_model(folder, agent, setting, spec, stream)
    return make_record(spec, stream, agent, position, saver.seconds(), truth, predicted, device)


def make_record(
    spec: RunSpec, stream: Stream, agent: Method, position: Position, seconds: float,
    truth: torch.Tensor, predicted: torch.Tensor, device: torch.device,
) -> RunRecord:  # fmt: skip
    """Everything that is worth keeping of a finished run."""
    confusion = metrics.confusion(truth, predicted, len(agent.classes))
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    made_by = Provenance(
        command_line(), commit(), device_name(device), str(precision_of(device)).removeprefix("torch."), __version__,
        torch.__version__, python_version(), datetime.now(UTC).isoformat(timespec="seconds"),
        round(seconds, 2), position.sessions, peak,
    )  # fmt: skip
    return RunRecord(
        id=spec.id,
        configuration=name_of(spec),
        spec=spec,
        accuracy=tuple(position.accuracy),
        overall=tuple(position.overall),
        final=position.overall[-1],
        average=metrics.average_of_steps(position.overall),
        forgetting=metrics.forgetting(position.accuracy),
        backward_transfer=metrics.backward_transfer(position.accuracy),
        evaluated_on="validation" if stream.validation else "test",
        evaluated_rows=len(stream.held_out),
        confusion=tuple(tuple(row) for row in confusion.tolist()),
        class_order=tuple(agent.classes),
        content={name: bank.content for name, bank in stream.banks.items()},
        steps=tuple(position.steps),
        made_by=made_by,
    )


def class_of(spec: RunSpec, method: type | None) -> Any:
    """The method that a config belongs to."""
    if method is None and type(spec.method) not in METHODS:
        name = type(spec.method).__qualname__
        raise SpecError(f"no method of this package has the config {name}; give your class: run(spec, method=...)")
    return method or METHODS[type(spec.method)]


def load_banks(spec: RunSpec, data: Path | None, device: torch.device) -> Mapping[str, ImageBank]:
    """The sets that a scenario names, on the run's device; peripheral ones only where they are drawn from."""
    names = (spec.scenario.main, *spec.scenario.peripheral)
    return {name: load_bank(name, data_dir(data), cache_dir()).to(device) for name in names}


def setting_of(spec: RunSpec, stream: Stream) -> Setting:
    """What the method is told before the first step."""
    known, images = dataset(spec.scenario.main), stream.main.train.images
    shape = ImageFormat(images.shape[1], images.shape[-1], known.mean, known.std)
    pool = stream.whole_pool() if getattr(spec.method, "wants_whole_pool", False) else None
    return Setting(shape, known.augmentation, spec.scenario.memory, spec.seed, spec.schedule, pool)


class Saver:
    """Saves the state of a run at good moments, restores it, and stops the run when it is told to."""

    def __init__(self, folder: Path, options: Options, device: torch.device) -> None:
        self.path, self.options, self.device = folder / "checkpoint", options, device
        self.started = self.saved = time.monotonic()
        self.before = 0.0
        self.told_to_stop = False
        self.position = Position()
        self.agent: Method | None = None

    def restore(self, agent: Method) -> Position:
        """Put the agent where the last save left it; a fresh start where there is none."""
        self.agent = agent
        saved = read_state(self.path)
        if saved is not None:
            agent.load_state(saved["method"])
            steps = [from_plain(StepRecord, step) for step in saved["steps"]]
            self.position = Position(
                saved["next_step"], [tuple(row) for row in saved["accuracy"]], saved["overall"], steps,
                saved["seconds"], saved["sessions"] + 1,
            )  # fmt: skip
            self.before = saved["seconds"]
        return self.position

    def seconds(self) -> float:
        """Wall-clock time of the run over all its sessions."""
        synchronise(self.device)
        return self.before + time.monotonic() - self.started

    def keep(self, edge: bool) -> None:
        """Called by the method at good moments: at the edges of phases, and after every update."""
        now = time.monotonic()
        limit = self.options.max_minutes
        out_of_time = limit is not None and now - self.started > 60 * limit
        if edge or out_of_time or self.told_to_stop or now - self.saved > self.options.save_every:
            self._save()
        if out_of_time or self.told_to_stop:
            raise Stopped

    def _save(self) -> None:
        assert self.agent is not None
        position = self.position
        state = {
            "method": self.agent.state(), "next_step": position.next_step, "steps": plain(position.steps),
            "accuracy": position.accuracy, "overall": position.overall,
            "seconds": self.seconds(), "sessions": position.sessions,
        }  # fmt: skip
        write_state(self.path, state)
        self.saved = time.monotonic()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C and a polite kill end the run at the next good moment; a second one ends it at once."""

        def told(number: int, _: Any) -> None:
            self.told_to_stop = True
            signal.signal(number, old[number])

        old: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # signals belong to the main thread
            for polite in (signal.SIGINT, signal.SIGTERM):
                old[polite] = signal.signal(polite, told)
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def occupied(folder: Path) -> Iterator[None]:
    """The folder for this process alone; the lock goes with the process, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
    except OSError as error:
        raise UserError(f"cannot write to the output folder {folder}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is at work on this run, in {folder}") from None
        for draft in folder.glob(".*.[0-9]*"):  # of a process that was killed while it wrote, see `aside`
            draft.unlink(missing_ok=True)
        yield


def as_json(spec: RunSpec) -> str:
    return json.dumps(spec_to_plain(spec), indent=1) + "\n"


def command_line() -> str:
    """What was typed, without the folder that the program lies in."""
    return shlex.join([Path(sys.argv[0]).name.replace("__main__.py", "osscl"), *sys.argv[1:]])


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
