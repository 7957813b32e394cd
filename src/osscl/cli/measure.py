"""`osscl bench`, `study` and `study-heads`: measure speed, and compare variants of a part of URSL."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.options import Data, Device
from osscl.errors import SpecError

if TYPE_CHECKING:
    import torch

    from osscl.tools.bench import BenchSpec

Out = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the results to this JSON file.")]


def bench(
    device: Device = "auto",
    backbone: Annotated[str, typer.Option(help="Backbone of the trained network.")] = "resnet18",
    batch: Annotated[int, typer.Option(min=2, help="Images per batch; each is seen in two views.")] = 512,
    updates: Annotated[int, typer.Option(min=1, help="Updates per timed repeat.")] = 100,
    repeats: Annotated[int, typer.Option(min=2, help="Timed repeats; the median is reported.")] = 5,
    against: Annotated[
        bool, typer.Option("--against", help="Also time common alternatives: a loader with workers, a plain loop.")
    ] = False,
    methods: Annotated[
        bool, typer.Option("--methods", help="Time one update of every method and its lower bound instead.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --methods: only this method; may be repeated.")
    ] = None,
    out: Out = None,
) -> None:
    """Time URSL's training loops and the fastest possible loop on the same device."""
    from osscl.device import pick_device
    from osscl.methods import URSL
    from osscl.storage import refuse_to_overwrite
    from osscl.tools.bench import BenchSpec

    refuse_to_overwrite(out)
    if methods:
        _bench_methods(pick_device(device), updates, repeats, backbone, only or [], out)
        return
    if only:
        raise SpecError("--only requires --methods")
    spec = BenchSpec(replace(URSL.reference.net, backbone=backbone), batch, updates=updates, repeats=repeats)
    _bench_loops(spec, pick_device(device), against, out)


def _bench_loops(spec: "BenchSpec", device: "torch.device", against: bool, out: Path | None) -> None:
    import json

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from osscl.config import plain
    from osscl.storage import write_text
    from osscl.tools import bench as tool

    found = tool.bench(spec, device, tool.against(spec, device) if against else {})
    where = f"{found.device}, {found.precision}, torch {found.torch}"
    caption = f"{where}; batch {spec.batch} x 2 views, median of {spec.repeats} x {spec.updates} updates"
    table = Table("", "measured", "of its limit", box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_row("bare training step (the limit)", f"{found.ceiling:,.0f} views/s", "")
    table.add_row("forward pass of the teacher", f"{found.forward:,.0f} views/s", "")
    table.add_row("augmentation alone", f"{found.augmentation:,.0f} views/s", "")
    table.add_row("reference loop", f"{found.reference:,.0f} views/s", f"{found.reference_share:.0%}")
    table.add_row("learner loop", f"{found.learner_ms:.1f} ms per update", f"{found.learner_share:.0%}")
    table.add_row("first updates (compile, capture)", f"{found.first_seconds:.0f} s", "")
    for name, rate in found.against.items():
        table.add_row(name, f"{rate:,.0f} views/s", f"ours is {found.reference / rate:.1f} x")
    if found.peak_bytes is not None:
        table.add_row("peak memory", f"{found.peak_bytes / 2**30:.1f} GiB", "")
    Console().print(table)
    if out is not None:
        write_text(out, json.dumps(plain(found), indent=1) + "\n")
        typer.echo(f"written to {out}")


def _bench_methods(
    device: "torch.device", updates: int, repeats: int, backbone: str, only: list[str], out: Path | None
) -> None:  # fmt: skip
    import json

    from osscl.cli.show import console, new_table
    from osscl.config import plain
    from osscl.storage import write_text
    from osscl.tools.bench import PASSES, bench_methods

    shown, record = new_table("method", "views/update", "ms/update", "bare passes, ms", "ratio"), None
    for record in bench_methods(device, updates, repeats, backbone, only or tuple(PASSES)):
        row = record.methods[-1]
        typer.echo(f"{row.name}: {row.milliseconds:.2f} ms per update", err=True)
        shown.add_row(row.name, str(row.views), f"{row.milliseconds:.2f}", f"{row.floor:.2f}", f"{row.ratio:.2f}")
        if out is not None:  # after each method, so that an interrupted bench keeps its results
            write_text(out, json.dumps(plain(record), indent=1) + "\n")
    assert record is not None
    console().print(shown)
    typer.echo(f"{record.device}, torch {record.torch}, {backbone}; median of {repeats} x {updates} updates")
    if out is not None:
        typer.echo(f"written to {out}")


def study(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A named experiment; see `osscl list`.")],
    variant: Annotated[
        list[str] | None, typer.Option(metavar="A.B=C[,D=E]", help="Fields to change; may be repeated.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs on U_1.")] = 60,
    schedule: Annotated[str, typer.Option(help="paper, or smoke for a quick check.")] = "paper",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the stream and the training.")] = 0,
    data: Data = None,
    device: Device = "auto",
    out: Out = None,
) -> None:  # fmt: skip
    """Train variants of the reference on U_1; compare n-shot accuracy and gate AUROC on validation rows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from osscl.cli.show import number
    from osscl.runs.spec import make_spec
    from osscl.storage import refuse_to_overwrite
    from osscl.tools.study import study_references

    refuse_to_overwrite(out)
    spec = make_spec(name, "ursl", schedule, seed)
    found = study_references(spec, changes_of(variant, "reference"), epochs, data, device)
    trained = f"{spec.schedule.epochs(epochs)} epochs on U_1"
    trained += f" (schedule {schedule}: {found[0].updates} updates for ursl's own reference)"
    caption = f"{name}, {trained}, seed {seed}; n-shot: nearest class mean in % over all classes, validation rows"
    columns = ("reference", "last loss", "25-shot", "5-shot", "AUROC, t=1", "seconds")
    table = Table(*columns, box=box.SIMPLE_HEAD, caption=caption)
    for row in found:
        shots = [number(row.shots[n]) for n in ("25", "5")]
        cells = number(row.loss, 3), *shots, number(row.auroc, 3), number(row.seconds, 0)
        table.add_row(", ".join(row.changes) or "as in ursl", *cells)
    Console().print(table)
    _write(out, {"experiment": name, "epochs": epochs, "schedule": schedule, "seed": seed}, found, device)


def study_heads(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run with --validation.")],
    variant: Annotated[
        list[str] | None, typer.Option(metavar="A=B[,C=D]", help="Fields to change; may be repeated.")
    ] = None,
    data: Data = None,
    device: Device = "auto",
    out: Out = None,
) -> None:
    """Refit variants of a trained run's head; compare accuracy on validation rows."""
    from osscl.cli.show import console, new_table, number
    from osscl.storage import refuse_to_overwrite
    from osscl.tools import study as tool

    refuse_to_overwrite(out)
    found = tool.study_heads(folder, changes_of(variant, "head"), data, device)
    shown = new_table("head", "final %", "seconds")
    for row in found:
        shown.add_row(", ".join(row.changes) or "as in the run", number(row.final), number(row.seconds, 1))
    console().print(shown)
    typer.echo(f"{folder.name}; validation rows; memory after the last step")
    _write(out, {"run": folder.name}, found, device)


def _write(out: Path | None, protocol: dict[str, object], variants: object, device: str) -> None:
    """Write the results and the settings that produced them, if a file was given."""
    import json

    from osscl.config import plain
    from osscl.device import device_name, pick_device
    from osscl.runs.record import commit
    from osscl.runs.run import command_line
    from osscl.storage import write_text

    if out is not None:
        made_by = {"command": command_line(), "commit": commit(), "device": device_name(pick_device(device))}
        write_text(out, json.dumps({**protocol, "made_by": made_by, "variants": plain(variants)}, indent=1) + "\n")


def changes_of(variants: list[str] | None, part: str) -> list[list[str]]:
    """The unchanged part, then each variant's changes, with or without the name of the part in front."""
    commas = re.compile(r",(?![^\[]*\])")  # not those inside a list
    given = ([change for change in commas.split(entry) if change] for entry in variants or [])
    return [[], *([change.strip().removeprefix(f"{part}.") for change in one] for one in given)]
