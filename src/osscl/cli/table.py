"""`osscl table`: the paper's tables, figures and stated limitations, with our numbers next to the paper's."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli import options as opt
from osscl.cli.specs import ScheduleName
from osscl.errors import SpecError, UserError, require_known
from osscl.text import counted

if TYPE_CHECKING:
    from osscl.paper.plan import Cost
    from osscl.report.formats import ResultTable, Row
    from osscl.runs.record import RunRecord
    from osscl.runs.spec import RunSpec

Name = Annotated[
    str,
    typer.Argument(
        metavar="list|main|T1..T18|F1|F2|L1..L3",
        help="A table, figure or limitation; `list` shows all of them, `main` the main results.",
    ),
]
Svg = Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the curves of F1 or F2.")]


def table(
    name: Name,
    seeds: opt.Seeds = "0-2",
    cells: opt.Cells = None,
    schedule: ScheduleName = None,
    shard: opt.Shard = None,
    on: opt.On = "paper",
    run: opt.Run = True,
    dry_run: opt.DryRun = False,
    format: opt.Format = "text",
    svg: Svg = None,
    results: opt.Results = None,
    device: opt.Device = "auto",
    data: opt.Data = None,
    out: opt.Out = Path("runs"),
    max_minutes: opt.MaxMinutes = None,
    engine: opt.EngineName = "local",
    address: opt.Address = None,
    gpu_share: opt.GpuShare = None,
    share_references: opt.ShareReferences = True,
    shared_device: opt.SharedDevice = False,
    track: opt.Track = None,
) -> None:
    """Print a table, figure or limitation of the paper with our numbers next to its own; run what is missing."""
    require_known("format", format, opt.TABLE_FORMATS)
    asked = opt.schedule_on(on, schedule)
    if name == "list":
        show_table(tables_list(seeds, asked, on, results, out), format)
        return
    from osscl.paper.tables import FIGURES, table_named
    from osscl.storage import refuse_to_overwrite

    request = opt.table_request(table_named(name), seeds, asked, on, cells, shard)
    if svg is not None and request.table.id not in FIGURES:
        raise SpecError(f"--svg draws the figures {' and '.join(FIGURES)}, not {request.table.id}")
    execution = opt.execution_options(
        out, data, device, max_minutes, engine, address, gpu_share, share_references, shared_device, track
    )  # fmt: skip
    refuse_to_overwrite(svg)
    recorded = opt.recorded_in(results, out)
    if dry_run:
        show_plan(request, recorded, execution)
        return
    made = opt.complete(request, recorded, execution, format != "text") if run else opt.RunResults(recorded.records)
    show_request(request, made.records, format, svg)
    if made.diverged is not None:
        raise made.diverged
    if made.locked:
        are = "is" if made.locked == 1 else "are"
        line = f"{counted(made.locked, 'run')} {are} locked by another process; run the same command again later"
        typer.echo(f"osscl: {line}", err=True)
        raise typer.Exit(opt.UNFINISHED)


def show_request(request: opt.TableRequest, records: "dict[str, RunRecord]", format: str, svg: Path | None) -> None:
    """Print the table or figure, and draw the figure where a file is given."""
    from osscl.paper.score import outcome
    from osscl.paper.tables import FIGURES, MAIN
    from osscl.report.curves import gate_svg
    from osscl.report.paper_comparison import figure_runs, figure_table, main_results, paper_table
    from osscl.storage import write_text

    asked = request.table
    if asked.id == MAIN.id:
        show_table(main_results(asked, records, request.schedule, request.seeds), format)
        return
    if asked.id not in FIGURES:
        show_table(paper_table(asked, records, request.schedule, request.seeds), format)
        return
    found = outcome(asked.cells[0], records, request.schedule, request.seeds)
    made = figure_table(asked, found, request.seeds)
    show_table(made, format)
    if svg is None:
        return
    if not found.records:
        raise UserError(
            f"nothing to draw in {svg}: no run of {asked.id} is recorded at schedule {request.schedule.name}"
        )
    write_text(svg, gate_svg(made.title, figure_runs(found, request.seeds), found.records))
    typer.echo(f"written to {svg}", err=True)


def show_table(table: "ResultTable", format: str) -> None:
    """Print a table in one of the formats; LaTeX has title and notes as comments, CSV has neither."""
    from osscl.cli.show import console
    from osscl.report.formats import to_csv, to_latex, to_markdown, to_rich

    if format == "text":
        screen = console()
        screen.print(to_rich(table, screen.width), highlight=False)
    elif format == "csv":
        typer.echo(to_csv(table), nl=False)
    else:
        comment, rendered = ("% ", to_latex(table)) if format == "latex" else ("", to_markdown(table))
        typer.echo(f"{comment}{table.title}\n\n{rendered}")
        for note in table.notes:
            typer.echo(f"{comment}{note}")


def show_plan(request: opt.TableRequest, recorded: opt.Recorded, execution: opt.ExecutionOptions) -> None:
    """Print the runs of a request and the expected cost of those that are missing."""
    from osscl.paper.plan import cells_by_run
    from osscl.report.formats import Column, ResultTable

    specs, missing = request.runs, recorded.missing(request, execution.timed)
    filled = cells_by_run(request.table.cells, request.schedule, request.seeds)
    rows = [
        (spec.id, ", ".join(filled[spec.id]), spec.seed, _state(spec, recorded, missing, execution)) for spec in specs
    ]
    columns = (Column("run"), Column("cells"), Column("seed", "number"), Column("state"))
    cost = missing.cost(recorded.timings)
    part = f", shard {request.shard[0]} of {request.shard[1]}" if request.shard else ""
    counts = f"{counted(len(specs), 'run')}, {len(missing.runs)} to run"
    title = f"{request.table.id}, schedule {request.schedule.name}{part}: {counts}"
    notes = [
        f"Reference networks to train or take from the cache: {cost.references}.",
        f"Expected minutes: {minutes_words(cost, len(missing.runs))}.",
    ]
    if missing.untimed:
        where = execution.for_timing().options.out
        notes.insert(0, f"Recorded without a valid time, to be repeated in {where}: {len(missing.untimed)}.")
    show_table(ResultTable(title, columns, rows, tuple(notes)), "text")


def _state(
    spec: "RunSpec", recorded: opt.Recorded, missing: opt.MissingRuns, execution: opt.ExecutionOptions
) -> str:  # fmt: skip
    from osscl.runs.kept import SPEC_FILE

    if spec in missing.unrecorded:
        return "started" if (execution.options.out / spec.id / SPEC_FILE).exists() else "to run"
    if spec in missing.untimed:
        folder = execution.for_timing().options.out / spec.id
        return "started again" if (folder / SPEC_FILE).exists() else "to time"
    return "recorded" if spec.id in recorded.records else "damaged record"


def minutes_words(cost: "Cost", runs: int) -> str:
    """Expected minutes, and the number of runs that cannot be estimated."""
    if cost.unknown == runs:
        return "unknown, no comparable run is recorded" if runs else "0"
    rest = f"; not included: {counted(cost.unknown, 'run')} without a comparable record" if cost.unknown else ""
    return ("less than 1" if 0 < cost.seconds < 60 else f"{cost.seconds / 60:.0f}") + rest


def tables_list(seeds: str, schedule: str, on: str, results: list[Path] | None, out: Path) -> "ResultTable":
    """Every table, figure and limitation: cells, runs, recorded runs, minutes for the rest; a summary first."""
    from osscl.report.formats import Column, ResultTable
    from osscl.runs.kept import KeptAnswer, record_files

    folders = opt.record_folders(results, out)
    question = json.dumps(["table list", seeds, schedule, on, [str(folder.absolute()) for folder in folders]])
    kept = KeptAnswer(question, [file for folder in folders for file in record_files(folder)])
    if (text := kept.get()) is None:
        recorded = opt.recorded_in(results, out)
        text = json.dumps(_counted_tables(seeds, schedule, on, recorded))
        if not recorded.has_problems:  # they are reported every time
            kept.put(text)
    rows, done, runs = json.loads(text)  # without importing torch, if it was kept
    names = ("cells", "runs", "recorded", "minutes", "unknown")
    columns = (Column("", fields=("id",)), Column("what it shows"), *(Column(name, "number") for name in names))
    place = " on demo data" if on == "demo" else ""
    title = f"{len(rows)} tables, figures and limitations{place}: {done} of {runs} runs recorded."
    notes = (
        "A run that several tables share counts in each of their rows, and once in the total.",
        f"Schedule {schedule}, seeds {seeds}. Where minutes are shown, a run counts as recorded once it is timed.",
        "Minutes: estimate for the missing runs from recorded timings, a shared reference counted once.",
        "Unknown: missing runs without a comparable record, not included in the minutes.",
    )
    return ResultTable(title, columns, [tuple(row) for row in rows], notes)


def _counted_tables(seeds: str, schedule: str, on: str, recorded: opt.Recorded) -> "tuple[list[Row], int, int]":
    """A row for each table, and the numbers of recorded runs and of all runs."""
    from osscl.paper.tables import ALL_TABLES

    rows, runs = list["Row"](), dict[str, bool]()
    for one in ALL_TABLES.values():
        request = opt.table_request(one, seeds, schedule, on)
        specs, missing = request.runs, recorded.missing(request)
        unfinished = {spec.id for spec in missing.runs}
        done = [spec.id for spec in specs if spec.id in recorded.records and spec.id not in unfinished]
        runs |= {spec.id: runs.get(spec.id, False) or spec.id in done for spec in specs}
        cost = missing.cost(recorded.timings)
        minutes = None if missing.runs and cost.unknown == len(missing.runs) else round(cost.seconds / 60 + 0.49)
        rows.append((one.id, one.brief, len(one.cells), len(specs), len(done), minutes, cost.unknown))
    return rows, sum(runs.values()), len(runs)
