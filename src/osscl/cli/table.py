"""`osscl table`: the paper's tables, ours beside them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli import wanted as ask
from osscl.cli.engine import Address, EngineName, GpuShare, SharedDevice, ShareReferences

if TYPE_CHECKING:
    from osscl.cli.wanted import Recorded, Wanted
    from osscl.experiments.record import RunRecord
    from osscl.report.formats import TableSection

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
) -> None:
    """Make a table of the paper: run what is missing, nothing twice, and print ours beside the paper's."""
    from osscl.experiments.checkpoint import Options
    from osscl.experiments.engine import Engine
    from osscl.experiments.tables import TABLES, one_of

    ask.known_format(format)
    if name == "list":
        _list(seeds, schedule, on, format, ask.recorded_in(results, out))
        return
    chosen = one_of(TABLES, "table", name)
    asked = ask.wanted(chosen, seeds, schedule, on, cells, shard)
    there = ask.recorded_in(results, out)
    records = there.records
    if dry_run:
        show_plan(asked, there, out)
        return
    if run:
        options = Options(
            out, data, device, max_minutes, share_references=share_references, shared_device=shared_device
        )
        where = Engine(engine, address, gpu_share)
        records = ask.complete(asked, there, options, where, quiet=format != "text")
    show_outcomes(asked, records, format)


def show_outcomes(asked: "Wanted", records: "dict[str, RunRecord]", format: str) -> None:
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

    console, shown = show.console(), show.table(*section.columns)
    for row in section.rows:
        shown.add_row(*row)
    typer.echo(textwrap.fill(section.title, console.width, break_on_hyphens=False) + "\n")
    console.print(shown)
    for line in section.note.splitlines():
        typer.echo(textwrap.fill(line, console.width, break_on_hyphens=False))


def show_plan(asked: "Wanted", there: "Recorded", out: Path) -> None:
    """The runs of a part of a table, and what those that are missing will cost."""
    from osscl.cli import show
    from osscl.experiments.plan import cells_by_run, cost_of

    specs = asked.runs()
    left = there.missing(specs)
    made = cells_by_run(asked.table.cells, asked.schedule, asked.seeds)
    waiting = {spec.id for spec in left}
    shown = show.table("run", "cells", "seed", "state")
    for spec in specs:
        begun = "begun" if (out / spec.id / "spec.json").exists() else "to run"
        state = begun if spec.id in waiting else "recorded" if spec.id in there.records else "damaged record"
        shown.add_row(spec.id, ", ".join(made[spec.id]), str(spec.seed), state)
    show.console().print(shown)
    cost = cost_of(left, there.records.values())
    part = f", part {asked.shard[0]} of {asked.shard[1]}" if asked.shard else ""
    typer.echo(f"{asked.table.id}, schedule {asked.schedule.name}{part}: {len(specs)} runs, {len(left)} to run")
    typer.echo(f"reference networks to train or take from the cache: {cost.references}, each once")
    typer.echo(f"expected minutes: {minutes_words(cost.seconds, cost.unknown, len(left))}")


def minutes_words(seconds: float, unknown: int, runs: int) -> str:
    """By the records' own timings; a dash where no record speaks for any of the runs."""
    if not runs:
        return "0"
    if unknown == runs:
        return "—"
    return f"{seconds / 60:.0f}" + (f" and {unknown} runs that no record speaks for" if unknown else "")


def _list(seeds: str, schedule: str, on: str, format: str, there: "Recorded") -> None:
    """Every table and figure: what it shows, cells, runs, recorded, minutes for the rest."""
    from osscl.experiments.plan import cost_of
    from osscl.experiments.tables import FIGURES, TABLES
    from osscl.report.formats import TableSection

    lines = []
    for one in (*TABLES.values(), *FIGURES.values()):
        asked = ask.wanted(one, seeds, schedule, on)
        specs = asked.runs()
        left = there.missing(specs)
        cost = cost_of(left, there.records.values())
        time = minutes_words(cost.seconds, cost.unknown, len(left)) if specs else "0"
        counts = len(one.cells), len(specs), sum(spec.id in there.records for spec in specs)
        lines.append((one.id, asked.table.heading, *map(str, counts), time))
    note = f"Schedule {schedule}, seeds {seeds}; minutes by the records' own timings, a shared reference once."
    columns = ("", "what it shows", "cells", "runs", "recorded", "minutes for the rest")
    show_section(TableSection("Tables and figures of the paper", columns, lines, note), format)
