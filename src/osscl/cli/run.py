"""`osscl run` and `stream`: runs and what they are made of."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.cli.options import (
    Address,
    EngineName,
    GpuShare,
    MaxMinutes,
    SharedDevice,
    ShareReferences,
    Track,
    announce,
    watch_for,
)
from osscl.cli.specs import manifest_of, seeds_of, spec_from_file, spec_of
from osscl.errors import SpecError

if TYPE_CHECKING:
    from osscl.runs.checkpoint import Options
    from osscl.runs.engine import Engine
    from osscl.runs.spec import RunSpec
    from osscl.stream.step import Stream

Name = Annotated[str | None, typer.Argument(metavar="[EXPERIMENT]", help="A named experiment; see `osscl list`.")]
Main = Annotated[str | None, typer.Option(help="Main data set.")]
Peripheral = Annotated[list[str] | None, typer.Option(help="Peripheral data set; may be given several times.")]
Labeled = Annotated[float | None, typer.Option(help="P: share of the main training images that has labels.")]
PerClass = Annotated[int | None, typer.Option(help="Labels a class, in place of a share.")]
MemorySize = Annotated[int | None, typer.Option("--memory", help="|M|: labelled images kept; 0 for none.")]
Regime = Annotated[str | None, typer.Option(help="Which unlabelled images appear when; osscl by default.")]
Validation = Annotated[float | None, typer.Option(help="Share of the main training images held out to choose by.")]
Changes = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a field; may be repeated.")]
Data = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where data lies; else $OSSCL_DATA, else the cache.", show_default=False),
]


def run(
    name: Name = None,
    main: Main = None,
    peripheral: Peripheral = None,
    labeled: Labeled = None,
    labels_per_class: PerClass = None,
    memory: MemorySize = None,
    regime: Regime = None,
    validation: Validation = None,
    method: Annotated[str | None, typer.Option(help="A configuration; see `osscl list`; ursl by default.")] = None,
    schedule: Annotated[str | None, typer.Option(help="paper (the default), short, smoke, demo.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="One seed; 0 by default.", show_default=False)] = None,
    seeds: Annotated[str | None, typer.Option(help="Several: 0-2 or 0,3,5.")] = None,
    spec_file: Annotated[Path | None, typer.Option("--spec", metavar="FILE", help="A spec from a file.")] = None,
    stream_file: Annotated[Path | None, typer.Option("--stream", metavar="FILE", help="A stream from a file.")] = None,
    changes: Changes = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    data: Data = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where run folders go.")] = Path("runs"),
    max_minutes: MaxMinutes = None,
    share_references: ShareReferences = True,
    shared_device: SharedDevice = False,
    engine: EngineName = "local",
    address: Address = None,
    gpu_share: GpuShare = None,
    track: Track = None,
    dry_run: Annotated[bool, typer.Option(help="Show the spec and its id, and stop.")] = False,
) -> None:  # fmt: skip
    """Carry out one run, or one a seed. The same command, given again, goes on where it stopped."""
    from osscl.runs.checkpoint import Options
    from osscl.runs.engine import Engine
    from osscl.runs.spec import with_seed

    flags = {
        "main": main, "peripheral": peripheral, "labeled": labeled, "labels_per_class": labels_per_class,
        "memory": memory, "regime": regime, "validation": validation,
    }  # fmt: skip
    chosen = seeds_of(seed, seeds)
    said = {"experiment": name, **flags}
    manifest = manifest_of(stream_file, {**said, "seed": seed, "seeds": seeds})
    if spec_file is not None:
        base = spec_from_file(spec_file, {**said, "method": method, "schedule": schedule, "set": changes})
        chosen = [base.seed] if seed is None and seeds is None else chosen
    else:
        scenario = manifest["scenario"] if manifest is not None else None
        named = "ursl" if method is None else method, "paper" if schedule is None else schedule
        base = spec_of(name, flags, *named, changes or [], scenario)
        chosen = [manifest["seed"]] if manifest is not None else chosen
    specs = [with_seed(base, one) for one in chosen]
    options = Options(out, data, device, max_minutes, share_references=share_references, shared_device=shared_device)
    where = Engine(engine, address, gpu_share)
    if dry_run:
        specs, _ = _with_stream(specs, manifest, options, where)
        for spec in specs:
            announce(spec, out, whole=True)
        return
    _carry_out(specs, options, where, track, manifest)


def _carry_out(
    specs: "list[RunSpec]", options: "Options", engine: "Engine", track: str | None, manifest: dict[str, Any] | None
) -> None:
    from osscl.cli.show import comparison, console, quoted
    from osscl.device import pick_device
    from osscl.runs.engine import run_one, run_specs

    if engine.name == "local":
        pick_device(options.device)  # a wrong one is told before anything is shown
    watch = watch_for(engine, options, track)
    specs, stream = _with_stream(specs, manifest, options, engine)
    if engine.name == "ray":
        for spec in specs:
            announce(spec, options.out, whole=True)
    records = run_specs(specs, options, engine, watch)
    if stream is not None:
        records = iter([run_one(specs[0], options, watch, stream)])
    for record in records:
        console().print(comparison([(record.configuration, record)]))
        typer.echo(f"predict: {quoted('osscl', 'predict', options.out / record.id)}")


def _with_stream(
    specs: "list[RunSpec]", manifest: dict[str, Any] | None, options: "Options", engine: "Engine"
) -> "tuple[list[RunSpec], Stream | None]":
    if manifest is None:
        return specs, None
    if engine.name != "local":
        raise SpecError("a stream from a file stays on this machine: leave --engine out")
    spec, stream = _stream_of(specs[0], manifest, options)
    return [spec], stream


def _stream_of(spec: "RunSpec", manifest: dict[str, Any], options: "Options") -> tuple["RunSpec", "Stream"]:
    """The stream of a file; where its rows are not those that scenario and seed give, the spec says so."""
    from dataclasses import replace

    from osscl.device import pick_device
    from osscl.runs.run import load_banks
    from osscl.stream.build import build_stream
    from osscl.stream.manifest import from_manifest, rows_digest, to_manifest

    banks = load_banks(spec, options.data, pick_device(options.device))
    stream = from_manifest(manifest, banks)
    if (stream.spec, stream.seed) != (spec.scenario, spec.seed):
        raise SpecError("the stream is of another scenario or seed than the spec")
    digest = rows_digest(to_manifest(stream))
    if spec.stream is None and digest != rows_digest(to_manifest(build_stream(spec.scenario, banks, spec.seed))):
        spec = replace(spec, stream=digest)
    return spec, stream


def stream(
    name: Name = None,
    main: Main = None,
    peripheral: Peripheral = None,
    labeled: Labeled = None,
    labels_per_class: PerClass = None,
    memory: MemorySize = None,
    regime: Regime = None,
    validation: Validation = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    changes: Changes = None,
    data: Data = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the stream there.")] = None,
) -> None:
    """Show a stream, step by step; with --out, write it to a file that `osscl run --stream` reads."""
    import json

    from osscl.cli.show import console, table
    from osscl.device import pick_device
    from osscl.runs.run import load_banks
    from osscl.runs.spec import with_seed
    from osscl.storage import refuse_to_overwrite, write_text
    from osscl.stream.build import build_stream
    from osscl.stream.manifest import rows_digest, to_manifest

    flags = {
        "main": main, "peripheral": peripheral, "labeled": labeled, "labels_per_class": labels_per_class,
        "memory": memory, "regime": regime, "validation": validation,
    }  # fmt: skip
    for change in changes or []:
        if not change.strip().startswith("scenario."):
            raise SpecError(f"a stream has the fields of its scenario alone: leave --set {change} out")
    spec = with_seed(spec_of(name, flags, "ursl", "paper", changes or [], None), seed)
    refuse_to_overwrite(out)
    made = build_stream(spec.scenario, load_banks(spec, data, pick_device("cpu")), seed)
    manifest = to_manifest(made)
    shown = table("step", "new classes", "labels", "unlabelled", "seen", "unseen", "foreign")
    for t, rows in enumerate(made.steps):
        truth = made.truth(t)
        kinds = [str(int(kind.sum())) for kind in (truth.seen, truth.unseen, truth.foreign)]
        names = ", ".join(made.main.class_names[c] for c in rows.new_classes)
        shown.add_row(str(t + 1), names, str(len(rows.labeled)), str(len(rows.unlabeled)), *kinds)
    console().print(shown)
    kind = "validation" if made.validation else "test"
    typer.echo(f"rows: {rows_digest(manifest)}; accuracy on {len(made.held_out)} {kind} images")
    if out is not None:
        write_text(out, json.dumps(manifest))
        typer.echo(f"written to {out}")
