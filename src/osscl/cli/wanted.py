"""What a command about cells is asked for, the records that are there, and the runs that are not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.errors import UserError, unknown

if TYPE_CHECKING:
    from osscl.experiments.cells import Table
    from osscl.experiments.checkpoint import Options
    from osscl.experiments.engine import Engine
    from osscl.experiments.record import RunRecord
    from osscl.experiments.spec import RunSpec
    from osscl.methods.method import Schedule

PLACES = ("paper", "demo")
FORMATS = ("text", "markdown", "csv", "latex")
RESULTS = Path("results")

Seeds = Annotated[str, typer.Option(help="0-2 or 0,3,5.")]
Cells = Annotated[str | None, typer.Option(help="Some cells: cells, rows or columns, with * and ?, between commas.")]
ScheduleName = Annotated[str, typer.Option("--schedule", help="paper, short, smoke, demo.")]
Shard = Annotated[str | None, typer.Option(metavar="I/N", help="The I-th of N parts of the runs.")]
On = Annotated[str, typer.Option(help="paper: the paper's data sets; demo: digits among letters, small networks.")]
Run = Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing, or show what is there.")]
DryRun = Annotated[bool, typer.Option(help="Show the runs and what they will cost, and stop.")]
Format = Annotated[str, typer.Option("--format", help="text, markdown, csv, latex.")]
Results = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="DIR", help="Where records lie, in place of ./results; may be repeated. --out is read anyway."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")]
Data = Annotated[Path | None, typer.Option(metavar="DIR", help="Where data lies; else $OSSCL_DATA, else the cache.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where run folders go.")]
MaxMinutes = Annotated[float | None, typer.Option(min=0, help="Stop cleanly after so long; here, all runs together.")]


@dataclass(frozen=True)
class Wanted:
    """Cells of a table, at one schedule, for some seeds."""

    table: "Table"
    schedule: "Schedule"
    seeds: tuple[int, ...]
    shard: tuple[int, int] | None = None

    def runs(self) -> "list[RunSpec]":
        """The runs of these cells, or of a part of them."""
        from osscl.experiments.plan import runs_of, sharded

        specs = runs_of(self.table.cells, self.schedule, self.seeds)
        return specs if self.shard is None else sharded(specs, self.shard)


def wanted(
    table: "Table", seeds: str, schedule: str, on: str, cells: str | None = None, shard: str | None = None
) -> Wanted:
    """What was typed, checked."""
    from osscl.cli.specs import seeds_of
    from osscl.experiments.plan import shard_of
    from osscl.experiments.spec import schedule as schedule_of
    from osscl.experiments.stand_in import on_demo
    from osscl.experiments.tables import picked

    if on not in PLACES:
        raise unknown("place", on, PLACES)
    chosen = picked(table, cells)
    chosen = on_demo(chosen) if on == "demo" else chosen
    part = None if shard is None else shard_of(shard)
    return Wanted(chosen, schedule_of(schedule), tuple(seeds_of(None, seeds)), part)


def known_format(name: str) -> None:
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)


@dataclass(frozen=True)
class Recorded:
    """The records that are there, and the files of all, damaged ones too."""

    records: "dict[str, RunRecord]"  # by id
    files: frozenset[str]  # ids that a file is named after

    def missing(self, specs: "Sequence[RunSpec]") -> "list[RunSpec]":
        """Runs without a record. One that is damaged stays as it is, and its run is not carried out again."""
        return [spec for spec in specs if spec.id not in self.records and spec.id not in self.files]


def recorded_in(results: list[Path] | None, out: Path) -> Recorded:
    """Every record below these folders; damaged files are named and left alone."""
    from osscl.experiments.plan import known_records
    from osscl.experiments.record import record_files

    for folder in results or ():
        if not folder.is_dir():
            raise UserError(f"no folder {folder} to read records from")
    folders = [folder for folder in (*(results or [RESULTS]), out) if folder.is_dir()]
    records, problems = known_records(folders)
    for problem in problems:
        typer.echo(f"skipped: {problem}", err=True)
    return Recorded(records, frozenset(path.stem for folder in folders for path in record_files(folder)))


def complete(
    asked: Wanted, there: Recorded, options: "Options", engine: "Engine", quiet: bool
) -> "dict[str, RunRecord]":
    """The records, and those of the runs that were missing, carried out now."""
    from functools import partial

    from osscl.cli.show import watching
    from osscl.device import pick_device
    from osscl.experiments.engine import carry_out

    specs = there.missing(asked.runs())
    if not specs:
        return there.records
    if engine.name == "local":
        pick_device(options.device)  # a wrong one is told before anything is run
    found = dict(there.records)
    watch = None if quiet or engine.name != "local" else partial(_named, watching, asked.table.id)
    for done, record in enumerate(carry_out(specs, options, engine, watch), 1):
        found[record.id] = record
        if not quiet:
            typer.echo(f"{asked.table.id}  run {done} of {len(specs)} done  {record.id}  {record.final:.1f} %")
    return found


def _named(watching: "Callable[[str], Any]", title: str, spec: "RunSpec") -> "Any":
    return watching(f"{title} {spec.id}")
