"""run(spec) -> RunRecord: the only place that joins data and method. A run that was stopped goes on."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from osscl import __version__, metrics
from osscl.data.benchmarks import dataset, folder_of, load_bank
from osscl.data.cache import cache_dir, data_dir
from osscl.data.images import ImageBank
from osscl.device import pick_device, precision_of, prepare
from osscl.errors import SpecError, Stopped
from osscl.methods import METHODS
from osscl.methods.base import Method, Progress, Runtime, Schedule, Setting
from osscl.runs.checkpoint import Options, Position, Saver, divergence_set_aside, occupied
from osscl.runs.evaluate import evaluate, judge_gate, judge_known, refuse_divergence, refuse_divergent_loss
from osscl.runs.model import save_model
from osscl.runs.presets import is_small
from osscl.runs.progress import watched_options
from osscl.runs.record import (
    Provenance,
    RunRecord,
    StepRecord,
    python_version,
    read_record,
    write_record,
)  # fmt: skip
from osscl.runs.spec import RunSpec, name_of, spec_to_plain
from osscl.storage import write_text
from osscl.stream.build import build_stream, capped
from osscl.stream.manifest import rows_digest, to_manifest
from osscl.stream.step import Stream
from osscl.vision.encoder import ImageFormat


def run(
    spec: RunSpec, options: Options | None = None, *, method: type | None = None, stream: Stream | None = None,
    progress: bool | None = None,
) -> RunRecord:  # fmt: skip
    """Run a spec, resume it, or return its record if it is finished. `method` is a class of your own.

    `progress` is shown in a terminal or notebook (None), everywhere (True) or never (False); see `watched_options`.
    """
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
    else:
        banks = {name: bank.to(device) for name, bank in stream.banks.items()}
        stream = replace(stream, banks=banks)
    built = build_stream(spec.scenario, banks, spec.seed)
    stream = capped(checked(spec, stream, built) if stream is not None else built, spec.schedule.row_cap)
    title = f"{name_of(spec)} on {spec.scenario.main}, seed {spec.seed}"
    with (
        occupied(folder),
        divergence_set_aside(folder),
        threads_for(spec.method, spec.schedule),
        watched_options(options, title, progress) as options,
    ):
        if finished.exists():  # by now
            return read_record(finished, type(spec.method))
        if not (folder / "spec.json").exists():
            write_text(folder / "spec.json", as_json(spec))
        record, stopped = _carry_out(spec, options, folder, stream, device, kind)
        write_record(record, finished)
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    if stopped:  # too late for this run, not for those that would come after it
        raise Stopped
    return record


def _carry_out(
    spec: RunSpec, options: Options, folder: Path, stream: Stream, device: torch.device, kind: Any
) -> tuple[RunRecord, bool]:
    saver = Saver(folder, options, device, stream.content)
    reports: dict[str, Any] = {"t": 0}

    def progress(where: Progress) -> None:
        refuse_divergent_loss(where, reports["t"])
        options.watcher.progress(reports["t"], len(stream), where)

    cache = (options.references or cache_dir() / "references") if options.share_references else None
    runtime = Runtime(device, precision_of(device), saver.keep, progress, cache, options.shared_device)
    setting = setting_of(spec, stream)
    agent: Method = kind(spec.method, setting, runtime)
    position = saver.restore(agent)
    truth = predicted = torch.empty(0, dtype=torch.long)  # of the last step; a checkpoint is never after it
    with saver.listening():
        for t in range(position.next_step, len(stream)):
            reports["t"] = t
            report = agent.learn(stream.step(t))
            refuse_divergence(report, t)
            by_step, overall, truth, predicted = evaluate(agent, stream, t)
            gate = judge_gate(report.gate, stream.truth(t), stream, t) if report.gate is not None else None
            rows, known = stream.steps[t], judge_known(agent, stream, t)
            step = StepRecord(
                new_classes=rows.new_classes,
                labeled=len(rows.labeled),
                unlabeled=len(rows.unlabeled),
                asked=rows.asked,
                phases=report.phases,
                notes=report.notes,
                gate=gate,
                known=known,
            )
            position.accuracy.append(by_step)
            position.overall.append(overall)
            position.steps.append(step)
            position.next_step = t + 1
            options.watcher.stepped(t, len(stream), overall, step)
            if t + 1 < len(stream):
                saver.keep(True)
    save_model(folder, agent, setting, spec, stream)
    record = make_record(spec, stream, agent, position, saver, truth, predicted)
    return record, saver.told_to_stop


def make_record(
    spec: RunSpec, stream: Stream, agent: Method, position: Position, saver: Saver,
    truth: torch.Tensor, predicted: torch.Tensor,
) -> RunRecord:  # fmt: skip
    """Everything that is worth keeping of a finished run."""
    confusion = metrics.confusion(truth, predicted, len(agent.classes))
    device, now = saver.device, saver.session
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    made_by = Provenance(
        command=command_line(),
        commit=now.commit,
        device=now.device,
        precision=str(precision_of(device)).removeprefix("torch."),
        osscl=__version__,
        torch=now.torch,
        python=python_version(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(saver.seconds(), 2),
        sessions=position.sessions,
        peak_memory=peak,
        shared_device=saver.shared_device or any(phase.shared for step in position.steps for phase in step.phases),
        earlier=tuple(position.earlier),
    )
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
        content=stream.content,
        steps=tuple(position.steps),
        made_by=made_by,
    )


@contextlib.contextmanager
def threads_for(method: Any, schedule: Schedule) -> Iterator[None]:
    """One for small networks, which several slow down, on a busy machine ten times; and sums over several differ."""
    before = torch.get_num_threads()
    if is_small(method) or schedule.small_net:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def checked(spec: RunSpec, stream: Stream, built: Stream) -> Stream:
    """A stream from elsewhere, refused unless the spec says so: a run's id must tell which rows it saw."""
    digest = rows_digest(to_manifest(stream))
    if digest != (spec.stream or rows_digest(to_manifest(built))):
        raise SpecError(f"the stream's rows are not those of the spec; RunSpec(stream={digest!r}) says so")
    return stream


def class_of(spec: RunSpec, method: type | None) -> Any:
    """The method that a config belongs to; a class of one's own has a config of its own, so that no run of it is taken
    for one of the package's."""
    kind = type(spec.method)
    if method is not None and isinstance(spec.method, tuple(METHODS)) and method is not METHODS.get(kind):
        raise SpecError(
            f"the config {kind.__qualname__} is of a method of this package; give your class one of its own"
        )
    if method is None and type(spec.method) not in METHODS:
        name = type(spec.method).__qualname__
        raise SpecError(f"no method of this package has the config {name}; give your class: run(spec, method=...)")
    return method or METHODS[type(spec.method)]


def load_banks(spec: RunSpec, data: Path | None, device: torch.device) -> Mapping[str, ImageBank]:
    """The sets that a scenario names, on the run's device."""
    return {name: load_bank(name, data_dir(data), cache_dir()).to(device) for name in _sets(spec)}


def refuse_missing_sets(spec: RunSpec, data: Path | None) -> None:
    """A look for the folders alone."""
    for name in _sets(spec):
        folder_of(name, data_dir(data))


def _sets(spec: RunSpec) -> tuple[str, ...]:
    return (spec.scenario.main, *spec.scenario.peripheral)


def setting_of(spec: RunSpec, stream: Stream) -> Setting:
    """What the method is told before the first step."""
    known, images = dataset(spec.scenario.main), stream.main.train.images
    shape = ImageFormat(images.shape[1], images.shape[-1], known.mean, known.std)
    pool = stream.whole_pool() if getattr(spec.method, "wants_whole_pool", False) else None
    return Setting(shape, known.augmentation, spec.scenario.memory, spec.seed, spec.schedule, pool)


def as_json(spec: RunSpec) -> str:
    return json.dumps(spec_to_plain(spec), indent=1) + "\n"


def command_line() -> str:
    """What was typed, without the folder that the program lies in."""
    return shlex.join([Path(sys.argv[0]).name.replace("__main__.py", "osscl"), *sys.argv[1:]])
