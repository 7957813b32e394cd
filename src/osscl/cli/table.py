"""`osscl table`: the paper's tables, ours beside them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli import wanted as ask
from osscl.cli.engine import Address, EngineName, GpuShare, SharedDevice, ShareReferences, Track, how_of

if TYPE_CHECKING:
    from osscl.cli.engine import How
    from osscl.cli.wanted import Left, Recorded, Wanted
    from osscl.paper.plan import Cost
    from osscl.report.formats import TableSection
    from osscl.runs.record import RunRecord
    from osscl.runs.spec import RunSpec

    Show = Callable[[dict[str, RunRecord]], None]

Name = Annotated[str, typer.Argument(metavar="list|T1..T18", help="A table, or `list` for all of them.")]


def table(
    name: Name,
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
    """Make a table of the paper: run what is missing, nothing twice, and print ours beside the paper's."""
    from osscl.paper.tables import TABLES, one_of

    ask.known_format(format)
    if name == "list":
        _list(seeds, schedule, on, format, ask.recorded_in(results, out))
        return
    asked = ask.wanted(one_of(TABLES, "table", name, "list"), seeds, schedule, on, cells, shard)
    how = how_of(
        out, data, device, max_minutes, engine, address, gpu_share, share_references, shared_device, track
    )  # fmt: skip
    there = ask.recorded_in(results, out)
    make(asked, there, how, partial(show_outcomes, asked, format), run=run, dry_run=dry_run, quiet=format != "text")


def make(
    asked: "Wanted", there: "Recorded", how: "How", show: "Show", *, run: bool, dry_run: bool, quiet: bool
) -> None:
    """Show the plan; or carry out what is missing, show what is there then, and tell what is not."""
    from osscl.cli.show import counted

    if dry_run:
        show_plan(asked, there, how)
        return
    made = ask.complete(asked, there, how, quiet) if run else ask.Made(there.records)
    show(made.records)
    if made.diverged is not None:
        raise made.diverged
    if made.occupied:
        runs = f"{counted(made.occupied, 'run')} {'is' if made.occupied == 1 else 'are'}"
        typer.echo(f"osscl: {runs} being made by another process; the same command shows more later", err=True)
        raise typer.Exit(ask.UNFINISHED)


def show_outcomes(asked: "Wanted", format: str, records: "dict[str, RunRecord]") -> None:
    """Every cell, ours beside the paper's."""
    from osscl.report import paper

    raw = format == "csv" and asked.table.cells
    show_section(
        (paper.raw_section if raw else paper.section)(asked.table, records, asked.schedule, asked.seeds), format
    )


def show_section(section: "TableSection", format: str) -> None:
    """A table in one of the formats; in LaTeX words around it are comments, in CSV there are none."""
    from osscl.report.formats import as_csv, as_latex, as_markdown

    if format == "text":
        _show_text(section)
        return
    if format == "csv":
        typer.echo(as_csv(section), nl=False)
        return
    comment = "% " if format == "latex" else ""
    typer.echo(f"{comment}{section.title}\n")
    typer.echo((as_markdown if format == "markdown" else as_latex)(section))
    for line in section.note.splitlines():
        typer.echo(f"{comment}{line}")


def _show_text(section: "TableSection") -> None:
    """A table on the terminal; words around it wrap at its width."""
    import textwrap

    from osscl.cli import show

    console, shown = show.console(), show.narrow_table(*section.columns)
    for row in section.rows:
        shown.add_row(*row)
    typer.echo(textwrap.fill(section.title, console.width, break_on_hyphens=False) + "\n")
    console.print(show.unbroken(shown, 2, console.width))
    typer.echo()
    for line in section.note.splitlines():
        typer.echo(textwrap.fill(line, console.width, break_on_hyphens=False))


def show_plan(asked: "Wanted", there: "Recorded", how: "How") -> None:
    """The runs of a part of a table, and what those that are missing will cost."""
    from osscl.cli.show import console, counted, narrow_table, unbroken
    from osscl.paper.plan import cells_by_run

    specs, left = asked.runs(), there.left(asked, how.timed)
    made = cells_by_run(asked.table.cells, asked.schedule, asked.seeds)
    screen, shown = console(), narrow_table("run", "cells", "seed", "state")
    for spec in specs:
        shown.add_row(spec.id, ", ".join(made[spec.id]), str(spec.seed), _state(spec, there, left, how))
    screen.print(unbroken(shown, 1, screen.width))
    typer.echo()
    cost = left.cost(there.records.values())
    part = f", part {asked.shard[0]} of {asked.shard[1]}" if asked.shard else ""
    told = f"{counted(len(specs), 'run')}, {len(left.runs)} to run"
    typer.echo(f"{asked.table.id}, schedule {asked.schedule.name}{part}: {told}")
    if left.untimed:
        anew = f"{len(left.untimed)}, to be made anew in {how.anew().options.out}"
        typer.echo(f"of these, recorded without a time that counts: {anew}")
    typer.echo(f"reference networks to train or take from the cache: {cost.references}, each once")
    typer.echo(f"expected minutes: {minutes_words(cost, len(left.runs))}")


def _state(spec: "RunSpec", there: "Recorded", left: "Left", how: "How") -> str:
    out = how.options.out
    if spec in left.missing:
        return "begun" if (out / spec.id / "spec.json").exists() else "to run"
    if spec in left.untimed:
        return "begun anew" if (how.anew().options.out / spec.id / "spec.json").exists() else "to time"
    return "recorded" if spec.id in there.records else "damaged record"


def minutes_words(cost: "Cost", runs: int) -> str:
    """By the records' own timings, and how many runs there is no such record for."""
    from osscl.cli.show import counted

    if cost.unknown == runs:
        return "no record to estimate from" if runs else "0"
    rest = f"; {counted(cost.unknown, 'run')} with no record to estimate from" if cost.unknown else ""
    return minutes_number(cost.seconds) + rest


def minutes_number(seconds: float) -> str:
    return f"{seconds / 60:.0f}" if seconds >= 60 or not seconds else "less than 1"


def _list(seeds: str, schedule: str, on: str, format: str, there: "Recorded") -> None:
    """Every table and figure: what it shows, cells, runs, recorded, minutes for the rest."""
    from osscl.paper.tables import FIGURES, TABLES
    from osscl.report.formats import DASH, TableSection

    lines = []
    for one in (*TABLES.values(), *FIGURES.values()):
        asked = ask.wanted(one, seeds, schedule, on)
        runs, left = len(asked.runs()), there.left(asked)
        cost = left.cost(there.records.values())
        damaged = sum(spec.id not in there.records for spec in asked.runs()) - len(left.missing)
        counts = len(one.cells), runs, runs - len(left.runs) - damaged
        time = minutes_number(cost.seconds) if cost.unknown < len(left.runs) or not left.runs else DASH
        lines.append((one.id, one.brief, *map(str, counts), time, str(cost.unknown)))
    note = (
        f"Schedule {schedule}, seeds {seeds}. Where minutes are asked for, a run is recorded when it is timed. "
        "Minutes: of the runs that are not recorded, by the records' own timings, a shared reference once. Unknown: "
        "how many of them there is no record to estimate from; the minutes are without these."
    )
    columns = ("", "what it shows", "cells", "runs", "recorded", "minutes", "unknown")
    where = ", on digits among letters" if on == "demo" else ""
    show_section(TableSection(f"Tables and figures of the paper{where}", columns, lines, note), format)
