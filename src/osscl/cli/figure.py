"""`osscl figure` and `osscl experiments`: the gate over time, and the limitations that the paper states."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli import wanted as ask
from osscl.cli.engine import Address, EngineName, GpuShare, SharedDevice, ShareReferences, Track, how_of
from osscl.cli.table import make, show_outcomes, show_section
from osscl.errors import UserError

if TYPE_CHECKING:
    from osscl.runs.record import RunRecord

Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the curves there.")]


def figure(
    name: Annotated[str, typer.Argument(metavar="F1|F2", help="A figure.")],
    seeds: ask.Seeds = "0-2",
    schedule: ask.ScheduleName = "paper",
    on: ask.On = "paper",
    run: ask.Run = True,
    dry_run: ask.DryRun = False,
    format: ask.Format = "text",
    svg: Svg = None,
    results: ask.Results = None,
    device: ask.Device = "auto",
    data: ask.Data = None,
    out: ask.Out = Path("runs"),
    max_minutes: ask.MaxMinutes = None,
    engine: EngineName = "local",
    address: Address = None,
    gpu_share: GpuShare = None,
    share_references: ShareReferences = True,
    shared_device: SharedDevice = False,
    track: Track = None,
) -> None:
    """Make a figure of the paper: AUROC and precision of the gate by the number of classes seen."""
    from osscl.paper.tables import FIGURES, one_of
    from osscl.storage import refuse_to_overwrite

    ask.known_format(format)
    asked = ask.wanted(one_of(FIGURES, "figure", name), seeds, schedule, on)
    how = how_of(
        out, data, device, max_minutes, engine, address, gpu_share, share_references, shared_device, track
    )  # fmt: skip
    refuse_to_overwrite(svg)
    there = ask.recorded_in(results, out)
    make(asked, there, how, partial(_show, asked, format, svg), run=run, dry_run=dry_run, quiet=format != "text")


def _show(asked: ask.Wanted, format: str, svg: Path | None, records: "dict[str, RunRecord]") -> None:
    """The curves as numbers, and drawn where that is asked for."""
    from osscl.paper.score import outcome, seeds_told
    from osscl.report import curves

    found = outcome(asked.table.cells[0], records, asked.schedule, asked.seeds)
    title = f"{asked.table.id}: {asked.table.heading}"
    said = f"schedule {asked.schedule.name}, {seeds_told(found.seeds, asked.seeds)}, n={len(found.records)}"
    notes = [f"{note[0].upper()}{note[1:]}." for note in asked.table.all_notes]
    show_section(curves.section(title, said, notes, found.records), format)
    if svg is not None:
        _draw(svg, curves.svg(title, said, found.records), bool(found.records))


def _draw(path: Path, drawing: str, recorded: bool) -> None:
    from osscl.storage import write_text

    if not recorded:
        raise UserError(f"nothing to draw in {path}: no run of this figure is recorded at this schedule")
    write_text(path, drawing)
    typer.echo(f"written to {path}", err=True)


def experiments(
    name: Annotated[str, typer.Argument(metavar="L1|L2|L3", help="Imbalanced classes, little data, little memory.")],
    seeds: ask.Seeds = "0-2",
    cells: ask.Cells = None,
    schedule: ask.ScheduleName = "paper",
    shard: ask.Shard = None,
    on: ask.On = "paper",
    run: ask.Run = True,
    dry_run: ask.DryRun = False,
    format: ask.Format = "text",
    results: ask.Results = None,
    device: ask.Device = "auto",
    data: ask.Data = None,
    out: ask.Out = Path("runs"),
    max_minutes: ask.MaxMinutes = None,
    engine: EngineName = "local",
    address: Address = None,
    gpu_share: GpuShare = None,
    share_references: ShareReferences = True,
    shared_device: SharedDevice = False,
    track: Track = None,
) -> None:
    """Run what the paper names as limitations: imbalanced classes, little unlabelled data, a very small memory."""
    from osscl.paper.tables import LIMITS, one_of

    ask.known_format(format)
    asked = ask.wanted(one_of(LIMITS, "limitation", name), seeds, schedule, on, cells, shard)
    how = how_of(
        out, data, device, max_minutes, engine, address, gpu_share, share_references, shared_device, track
    )  # fmt: skip
    there = ask.recorded_in(results, out)
    make(asked, there, how, partial(show_outcomes, asked, format), run=run, dry_run=dry_run, quiet=format != "text")
