"""run(spec) -> RunRecord: train and evaluate a method on the data of a scenario. An interrupted run resumes."""

import contextlib
import json
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from osscl import __version__, metrics
from osscl.data.benchmarks import dataset, folder_of, load_bank
from osscl.data.images import ImageBank
from osscl.device import one_thread, pick_device, precision_of, prepare
from osscl.errors import SpecError, Stopped
from osscl.methods import METHODS, method_name
from osscl.methods.base import Method, Progress, Runtime, Setting, bytes_kept
from osscl.places import cache_dir, data_dir
from osscl.runs.checkpoint import Options, Position, RunCheckpointer, set_aside_on_divergence
from osscl.runs.evaluate import (
    evaluate,
    evaluate_other_heads,
    judge_gate,
    judge_known,
    refuse_divergence,
    refuse_divergent_loss,
)
from osscl.runs.kept import SPEC_FILE
from osscl.runs.model import save_model
from osscl.runs.progress import watched_options
from osscl.runs.record import (
    Provenance,
    RunRecord,
    StepRecord,
    read_record,
    write_record,
)  # fmt: skip
from osscl.runs.spec import RunSpec, display_name, spec_to_plain
from osscl.storage import locked, remove_state, write_text
from osscl.stream.build import Stream, build_stream, capped
from osscl.stream.manifest import rows_digest, to_manifest
from osscl.vision.encoder import ImageFormat

SMALL_NETWORKS = 5_000_000  # parameters of all networks of an agent together; a ResNet-18 has 11 million


def run(
    spec: RunSpec, options: Options | None = None, *, method: type | None = None, stream: Stream | None = None,
    progress: bool | None = None,
) -> RunRecord:  # fmt: skip
    """Run a spec, resume it, or return its record if it is finished. `method` is your own class.

    `progress` is shown in a terminal or notebook (None), everywhere (True) or never (False); see `watched_options`.
    """
    options = options or Options()
    folder = options.out / spec.id
    finished = folder / f"{spec.id}.json"
    if finished.exists():
        return read_record(finished, type(spec.method))
    if spec.stream is not None and stream is None:
        raise SpecError("this run uses a stream file: pass it with `--stream`, or in Python as run(spec, stream=...)")
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
    title = f"{display_name(spec)} on {spec.scenario.main}, seed {spec.seed}"
    with locked(folder), set_aside_on_divergence(folder), watched_options(options, title, progress) as options:
        if finished.exists():  # finished by another process in the meantime
            return read_record(finished, type(spec.method))
        _write_spec(spec, folder / SPEC_FILE)
        record, stopped = _train_and_evaluate(spec, options, folder, stream, device, kind)
        write_record(record, finished)
        remove_state(folder / "checkpoint")
    if stopped:  # this run has finished nevertheless; further ones must not start
        raise Stopped
    return record


def _train_and_evaluate(
    spec: RunSpec, options: Options, folder: Path, stream: Stream, device: torch.device, kind: Any
) -> tuple[RunRecord, bool]:
    saver = RunCheckpointer(folder, options, device, stream.content)
    reports: dict[str, Any] = {"t": 0}

    def progress(where: Progress) -> None:
        refuse_divergent_loss(where, reports["t"])
        options.watcher.progress(reports["t"], len(stream), where)

    cache = (options.references or cache_dir() / "references") if options.share_references else None
    runtime = Runtime(device, precision_of(device), saver.maybe_checkpoint, progress, cache, options.shared_device)
    setting = setting_of(spec, stream)
    agent: Method = kind(spec.method, setting, runtime)
    truth = predicted = torch.empty(0, dtype=torch.long)  # of the last step; a checkpoint is never after it
    with threads_for(agent):
        position = saver.restore(agent)
    with saver.listening(), threads_for(agent):
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
                saver.maybe_checkpoint(True)
    save_model(folder, agent, setting, spec, stream)
    record = make_record(spec, stream, agent, position, saver, truth, predicted)
    return record, saver.stop_requested


def make_record(
    spec: RunSpec, stream: Stream, agent: Method, position: Position, saver: RunCheckpointer,
    truth: torch.Tensor, predicted: torch.Tensor,
) -> RunRecord:  # fmt: skip
    """The record of a finished run."""
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
        python=platform.python_version(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(saver.seconds(), 2),
        sessions=position.sessions,
        peak_memory=peak,
        shared_device=saver.shared_device or any(phase.shared for step in position.steps for phase in step.phases),
        earlier=tuple(position.earlier),
    )
    return RunRecord(
        id=spec.id,
        configuration=display_name(spec),
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
        memory_bytes=bytes_kept(agent),
        other_heads=evaluate_other_heads(agent, stream),
    )


def threads_for(agent: Any) -> contextlib.AbstractContextManager[None]:
    """One thread for small networks: more slow them down, up to ten times on a busy machine."""
    return one_thread() if is_small(agent) else contextlib.nullcontext()


def is_small(agent: Any) -> bool:
    """Whether the networks of an agent are small; False if there are none yet: `learn` may create large ones."""
    parameters = {id(p): p.numel() for network in _networks(agent, set()) for p in network.parameters()}
    return 0 < sum(parameters.values()) < SMALL_NETWORKS


def _networks(part: Any, seen: set[int]) -> Iterator[nn.Module]:
    """The networks in an object, its attributes and its containers, however deep."""
    if id(part) in seen or isinstance(part, torch.Tensor | type | ModuleType):
        return
    seen.add(id(part))
    if isinstance(part, nn.Module):
        yield part
        return
    items = part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple | set) else ()
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    attributes = [*getattr(part, "__dict__", {}).values(), *(getattr(part, name, None) for name in slots)]
    for inner in (*items, *attributes):
        yield from _networks(inner, seen)


def checked(spec: RunSpec, stream: Stream, built: Stream) -> Stream:
    """A stream from a file; raises unless the spec's digest matches its rows, because ids must identify the rows."""
    digest = rows_digest(to_manifest(stream))
    if digest != (spec.stream or rows_digest(to_manifest(built))):
        raise SpecError(f"the rows of the stream differ from those of the spec; use RunSpec(stream={digest!r})")
    return stream


def class_of(spec: RunSpec, method: type | None) -> Any:
    """The method of a spec: of this package, or the class given by the user, which must have its own config."""
    own = method_name(spec.method)
    if method is not None and own is not None and METHODS[own] is not method:
        kind = type(spec.method).__qualname__
        raise SpecError(f"{kind} is the config of a method of this package; give your class its own config")
    if method is None and own is None:
        name = type(spec.method).__qualname__
        raise SpecError(f"no method of this package has the config {name}; pass your class: run(spec, method=...)")
    return method or METHODS[own or ""]


def load_banks(spec: RunSpec, data: Path | None, device: torch.device) -> Mapping[str, ImageBank]:
    """The data sets of a scenario, on the run's device."""
    return {name: load_bank(name, data_dir(data), cache_dir()).to(device) for name in _sets(spec)}


def refuse_missing_sets(spec: RunSpec, data: Path | None) -> None:
    """Refuse missing data sets, without reading them."""
    for name in _sets(spec):
        folder_of(name, data_dir(data))


def _sets(spec: RunSpec) -> tuple[str, ...]:
    return (spec.scenario.main, *spec.scenario.peripheral)


def setting_of(spec: RunSpec, stream: Stream) -> Setting:
    """What the method knows before the first step."""
    known, images = dataset(spec.scenario.main), stream.main.train.images
    shape = ImageFormat(images.shape[1], images.shape[-1], known.mean, known.std)
    pool = stream.whole_pool() if getattr(spec.method, "wants_whole_pool", False) else None
    return Setting(shape, known.augmentation, spec.scenario.memory, spec.seed, spec.schedule, pool)


def _write_spec(spec: RunSpec, file: Path) -> None:
    """Write the spec of a run, unless it is there and undamaged."""
    text = as_json(spec)
    with contextlib.suppress(OSError, UnicodeError):
        if file.read_text(encoding="utf-8") == text:
            return
    write_text(file, text)


def as_json(spec: RunSpec) -> str:
    return json.dumps(spec_to_plain(spec), indent=1) + "\n"


def command_line() -> str:
    """The command line, without the folder of the program."""
    return shlex.join([Path(sys.argv[0]).name.replace("__main__.py", "osscl"), *sys.argv[1:]])
