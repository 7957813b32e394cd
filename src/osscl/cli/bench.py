"""`osscl bench`: how fast this device trains, against its own limit."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.errors import SpecError

if TYPE_CHECKING:
    import torch

    from osscl.tools.bench import BenchSpec


def bench(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    backbone: Annotated[str, typer.Option(help="Of the network that is trained.")] = "resnet18",
    batch: Annotated[int, typer.Option(min=2, help="Images a batch; each is seen in two views.")] = 512,
    updates: Annotated[int, typer.Option(min=1, help="A timed stretch.")] = 100,
    repeats: Annotated[int, typer.Option(min=2, help="Stretches; the median counts.")] = 5,
    against: Annotated[
        bool, typer.Option(help="Also what one would write otherwise: loader workers, a plain loop.")
    ] = False,
    methods: Annotated[
        bool, typer.Option(help="Milliseconds an update of every method instead, and its floor.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="With --methods: this one; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the record there, as JSON.")] = None,
) -> None:
    """Measure the loops of URSL and the ceiling of the same card, in one run."""
    from osscl.device import pick_device
    from osscl.methods import URSL
    from osscl.storage import refuse_to_overwrite
    from osscl.tools.bench import BenchSpec

    refuse_to_overwrite(out)
    if methods:
        _methods(pick_device(device), updates, repeats, backbone, only or [], out)
        return
    if only:
        raise SpecError("--only goes with --methods")
    spec = BenchSpec(replace(URSL.reference.net, backbone=backbone), batch, updates=updates, repeats=repeats)
    _loops(spec, pick_device(device), against, out)


def _loops(spec: "BenchSpec", device: "torch.device", against: bool, out: Path | None) -> None:
    import json

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from osscl.config import plain
    from osscl.storage import write_text
    from osscl.tools.bench import bench as measure

    others = {}
    if against:
        from osscl.tools.bench import against as measure_others

        others = measure_others(spec, device)
    found = measure(spec, device, others)
    where = f"{found.device}, {found.precision}, torch {found.torch}"
    caption = f"{where}; batch {spec.batch} x 2 views, median of {spec.repeats} x {spec.updates} updates"
    table = Table("", "measured", "of its limit", box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_row("bare training step (the ceiling)", f"{found.ceiling:,.0f} views/s", "")
    table.add_row("teacher's forward pass", f"{found.forward:,.0f} views/s", "")
    table.add_row("augmentation alone", f"{found.augmentation:,.0f} views/s", "")
    table.add_row("reference loop", f"{found.reference:,.0f} views/s", f"{found.reference_share:.0%}")
    table.add_row("learner loop", f"{found.learner_ms:.1f} ms an update", f"{found.learner_share:.0%}")
    table.add_row("first updates: compiling, capturing", f"{found.first_seconds:.0f} s", "")
    for name, rate in found.against.items():
        table.add_row(name, f"{rate:,.0f} views/s", f"ours is {found.reference / rate:.1f} x")
    if found.peak_bytes is not None:
        table.add_row("peak memory", f"{found.peak_bytes / 2**30:.1f} GiB", "")
    Console().print(table)
    if out is not None:
        write_text(out, json.dumps(plain(found), indent=1) + "\n")
        typer.echo(f"written to {out}")


def _methods(
    device: "torch.device", updates: int, repeats: int, backbone: str, only: list[str], out: Path | None
) -> None:  # fmt: skip
    import json

    from osscl.cli.show import console, table
    from osscl.config import plain
    from osscl.storage import write_text
    from osscl.tools.bench_methods import PASSES, bench_methods

    shown, record = table("method", "views an update", "ms an update", "its bare passes", "ratio"), None
    for record in bench_methods(device, updates, repeats, backbone, only or tuple(PASSES)):
        row = record.methods[-1]
        typer.echo(f"{row.name}: {row.milliseconds:.2f} ms an update", err=True)
        shown.add_row(row.name, str(row.views), f"{row.milliseconds:.2f}", f"{row.floor:.2f}", f"{row.ratio:.2f}")
        if out is not None:  # after each, so that a bench that is stopped leaves what it has
            write_text(out, json.dumps(plain(record), indent=1) + "\n")
    assert record is not None
    console().print(shown)
    typer.echo(f"{record.device}, torch {record.torch}, {backbone}; median of {repeats} x {updates} updates")
    if out is not None:
        typer.echo(f"written to {out}")
