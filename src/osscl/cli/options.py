"""Options of commands that need runs: which cells, where records are, how missing runs are executed."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from osscl.cli.specs import seeds_of
from osscl.errors import Diverged, Locked, UserError, require_known, unknown
from osscl.text import printable

if TYPE_CHECKING:
    from osscl.methods.base import Schedule
    from osscl.paper.cells import Table
    from osscl.paper.plan import Cost, Timings
    from osscl.runs.checkpoint import Options, Watcher
    from osscl.runs.engine import Engine, Watch
    from osscl.runs.record import RunRecord
    from osscl.runs.spec import RunSpec

PLACES = ("paper", "demo")
TABLE_FORMATS = ("text", "markdown", "csv", "latex")
RESULTS = Path("results")
UNFINISHED = 3  # exit code: run the same command again to continue

Seeds = Annotated[str, typer.Option(help="Seeds, as in 0-2 or 0,3,5.")]
Cells = Annotated[str | None, typer.Option(help="Comma-separated cells, rows or columns, with * and ?.")]
Shard = Annotated[str | None, typer.Option(metavar="I/N", help="Run only shard I of N.")]
On = Annotated[str, typer.Option(help="paper: the paper's data sets; demo: digits among letters, small networks.")]
Run = Annotated[bool, typer.Option("--run/--no-run", help="Run missing cells, or only show existing records.")]
DryRun = Annotated[bool, typer.Option(help="Show the runs and their expected cost, and exit.")]
Format = Annotated[str, typer.Option("--format", help="text, markdown, csv, latex.")]
Results = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="Folder of records (default: ./results); may be repeated. --out is also read."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Data = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Data folder. Default: $OSSCL_DATA, else data/ in the user's cache folder.",
        show_default=False,
    ),
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where run folders are written.")]
MaxMinutes = Annotated[
    float | None, typer.Option(min=0, help="Stop cleanly after this time, in total for all local runs.")
]
EngineName = Annotated[str, typer.Option("--engine", help="local: one run after another; ray: a Ray cluster.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of a Ray cluster. Default: start one locally.", show_default=False),
]
GpuShare = Annotated[
    float | None, typer.Option(help="GPUs per run with Ray (default 1); a fraction shares a GPU.", show_default=False)
]
SharedDevice = Annotated[
    bool, typer.Option("--shared-device", help="The device is shared with other work; exclude timings.")
]
ShareReferences = Annotated[bool, typer.Option(help="Share reference networks between runs.")]
Track = Annotated[str | None, typer.Option(metavar="tensorboard", help="Log metrics in each run folder.")]


TitleOf = Callable[["RunSpec"], str]  # gives the title of a run's progress


# ----- help


class GroupedHelp(TyperGroup):
    """Plain help with whole sentences, and commands grouped by panel; rich's help truncates long option names at 80
    columns."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            panels.setdefault(panel, []).append((name, command.get_short_help_str(limit=120)))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse an unknown command as every other unknown name is refused."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            raise unknown("command", name, self.list_commands(ctx))
        return super().resolve_command(ctx, args)


# ----- which cells


@dataclass(frozen=True)
class TableRequest:
    """Cells of a table at one schedule, for some seeds."""

    table: "Table"
    schedule: "Schedule"
    seeds: tuple[int, ...]
    shard: tuple[int, int] | None = None

    @functools.cached_property
    def runs(self) -> "list[RunSpec]":
        """The runs of these cells, or of one shard of them."""
        from osscl.paper.plan import runs_of, sharded

        specs = runs_of(self.table.cells, self.schedule, self.seeds)
        return specs if self.shard is None else sharded(specs, self.shard)


def schedule_on(place: str, schedule: str | None) -> str:
    """The given schedule; by default, the one named after the table's data, paper or demo."""
    require_known("place", place, PLACES)
    return place if schedule is None else schedule


def table_request(
    table: "Table", seeds: str, schedule: str, on: str, cells: str | None = None, shard: str | None = None
) -> TableRequest:
    """Check the options that select cells."""
    from osscl.paper.cells import on_demo
    from osscl.paper.plan import shard_of
    from osscl.paper.tables import picked
    from osscl.runs.spec import schedule as schedule_of

    if on == "demo":
        picked(on_demo(table), cells)  # refuse a cell that does not exist there
    chosen = on_demo(picked(table, cells)) if on == "demo" else picked(table, cells)
    part = None if shard is None else shard_of(shard)
    return TableRequest(chosen, schedule_of(schedule), tuple(seeds_of(None, seeds)), part)


# ----- which records exist


@dataclass(frozen=True)
class MissingRuns:
    """Runs of a request that have yet to be executed."""

    unrecorded: "list[RunSpec]"
    untimed: "list[RunSpec]"  # a cell shows their time, but the recorded time does not count

    @property
    def runs(self) -> "list[RunSpec]":
        return [*self.unrecorded, *self.untimed]

    def cost(self, timings: "Timings") -> "Cost":
        """Expected cost; a run that is repeated for its time trains its own reference network."""
        from osscl.paper.plan import Cost

        parts = [timings.cost(self.unrecorded), *(timings.cost([spec]) for spec in self.untimed)]
        return Cost(*(sum(getattr(part, name) for part in parts) for name in ("seconds", "references", "unknown")))


@dataclass(frozen=True)
class Recorded:
    """Existing records, and the ids of all record files, damaged ones included."""

    records: "dict[str, RunRecord]"  # by id, see plan.Records
    files: frozenset[str]
    has_problems: bool  # a file was skipped

    @functools.cached_property
    def timings(self) -> "Timings":
        from osscl.paper.plan import Timings

        return Timings(self.records.values())

    def missing(self, request: TableRequest, timed: bool = True) -> MissingRuns:
        """Runs still to execute, including reruns for timing if timings are valid. A damaged record is kept, and its
        run is not repeated."""
        from osscl.paper.plan import retimed_id, to_be_timed

        specs = request.runs
        unrecorded = [spec for spec in specs if spec.id not in self.records and spec.id not in self.files]
        shown = to_be_timed(request.table.cells, request.schedule, request.seeds) if timed else set()
        untimed = [spec for spec in specs if spec.id in shown and spec.id in self.records]
        untimed = [spec for spec in untimed if not self.records[spec.id].made_by.timed]
        return MissingRuns(unrecorded, [spec for spec in untimed if retimed_id(spec.id) not in self.files])


def recorded_in(results: list[Path] | None, out: Path) -> Recorded:
    """Read every record below these folders; damaged files are reported and skipped."""
    from osscl.paper.plan import known_records, retimed_id
    from osscl.runs.kept import TIMED, record_files

    folders = record_folders(results, out)
    records, problems = known_records(folders)
    for problem in problems:
        typer.echo(f"skipped: {printable(problem)}", err=True)
    paths = [path for folder in folders for path in record_files(folder)]
    names = {retimed_id(path.stem) if TIMED in path.parts[:-1] else path.stem for path in paths}
    return Recorded(records, frozenset({*names, *records}), bool(problems))


def record_folders(results: list[Path] | None, out: Path) -> list[Path]:
    """The folders to read records from."""
    for folder in results or ():
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: --results needs a folder of records")
    return [folder for folder in (*(results or [RESULTS]), out) if folder.is_dir()]


# ----- how missing runs are executed


@dataclass(frozen=True)
class ExecutionOptions:
    """Where and how runs are executed."""

    options: "Options"
    engine: "Engine"
    track: str | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def timed(self) -> bool:
        """Whether the times of the runs are valid: nothing else runs on their device."""
        share = self.engine.gpu_share
        return not self.options.shared_device and (share is None or share >= 1)

    def for_timing(self) -> "ExecutionOptions":
        """Repeat runs in a separate folder, so that existing records are kept, and train new reference networks: a
        cached one may have been timed on a shared device."""
        from osscl.runs.kept import TIMED

        return replace(self, options=replace(self.options, out=self.options.out / TIMED, share_references=False))

    def execute(self, specs: "Sequence[RunSpec]", title: TitleOf, quiet: bool) -> "Iterator[RunRecord]":
        """Yield the record of each run when it is finished; local runs share one limit of minutes."""
        from osscl.runs.engine import run_specs

        options = self.options.since(self.started) if self.engine.name == "local" else self.options
        return run_specs(specs, options, self.engine, watch_for(self.engine, options, self.track, title, quiet))


def execution_options(
    out: Path, data: Path | None, device: str, max_minutes: float | None, engine: str, address: str | None,
    gpu_share: float | None, share_references: bool, shared_device: bool, track: str | None,
) -> ExecutionOptions:  # fmt: skip
    """Check the options that say how runs are executed."""
    from osscl.runs.checkpoint import Options
    from osscl.runs.engine import Engine
    from osscl.runs.progress import refuse_tracker

    if track is not None:
        refuse_tracker(track)
    options = Options(out, data, device, max_minutes, share_references=share_references, shared_device=shared_device)
    return ExecutionOptions(options, Engine(engine, address, gpu_share), track)


@dataclass(frozen=True)
class RunResults:
    """Records, and why others are missing."""

    records: "dict[str, RunRecord]"
    locked: int = 0  # runs that another process is executing
    diverged: Diverged | None = None


def complete(request: TableRequest, recorded: Recorded, execution: ExecutionOptions, quiet: bool) -> RunResults:
    """Execute the missing runs of a request, and return all records."""
    from osscl.device import pick_device
    from osscl.paper.plan import cells_by_run, retimed_id

    missing = recorded.missing(request, execution.timed)
    if not missing.runs:
        return RunResults(recorded.records)
    if execution.engine.name == "local":
        pick_device(execution.options.device)  # refuse a wrong one before the first run
    found, done, locked, diverged = dict(recorded.records), 0, 0, None
    cells = cells_by_run(request.table.cells, request.schedule, request.seeds)
    places = {spec.id: i for i, spec in enumerate(missing.runs, 1)}

    def title(spec: "RunSpec") -> str:
        first, *others = cells[spec.id]
        more = f" + {len(others)}" if others else ""
        return f"{request.table.id} {first}{more}, seed {spec.seed} ({places[spec.id]} of {len(places)})"

    parts = ((missing.unrecorded, execution, str), (missing.untimed, execution.for_timing(), retimed_id))
    for specs, part, key in parts:
        before = done
        try:
            for record in part.execute(specs, title, quiet):
                found[key(record.id)] = record
                done += 1
                if not quiet:
                    progress = f"run {done} of {len(missing.runs)} done"
                    typer.echo(f"{request.table.id}  {progress}  {record.id}  {record.final:.1f} %")
        except Locked:
            locked += len(specs) - (done - before)
        except Diverged as error:
            diverged = error
    return RunResults(found, locked, diverged)


# ----- who watches a run


def watch_for(
    engine: "Engine", options: "Options", track: str | None, title: TitleOf, quiet: bool = False
) -> "Watch | None":
    """The watcher of each run: local runs print progress under their title; with Ray or `quiet`, nothing is printed.
    Metrics are logged in all cases."""
    from functools import partial

    from osscl.runs.progress import refuse_tracker

    if track is not None:
        refuse_tracker(track)
    if engine.name == "ray" or quiet:
        return partial(tracked, options.out.resolve()) if track is not None else None
    return partial(watched, options.out, track, title)


@contextlib.contextmanager
def watched(out: Path, track: str | None, title: TitleOf, spec: "RunSpec") -> "Iterator[Watcher]":
    """Print the progress of a run."""
    from osscl.cli.show import watching
    from osscl.device import naming_batches

    with (
        naming_batches(spec.method),
        watching(title(spec)) as watcher,
        tracked(out, spec, watcher) if track else contextlib.nullcontext(watcher) as both,
    ):
        yield both


def tracked(out: Path, spec: "RunSpec", beside: "Watcher | None" = None) -> Any:
    """Log metrics of a run; a module-level function, because Ray pickles it by name."""
    from osscl.runs.progress import tracking

    return tracking(out / spec.id / "tensorboard", beside)
