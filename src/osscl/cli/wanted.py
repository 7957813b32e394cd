"""What a command about cells is asked for, the records that are there, and the runs that are not."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.errors import Diverged, Occupied, UserError, unknown

if TYPE_CHECKING:
    from osscl.cli.engine import How
    from osscl.methods.base import Schedule
    from osscl.paper.cells import Table
    from osscl.paper.plan import Cost
    from osscl.runs.record import RunRecord
    from osscl.runs.spec import RunSpec

PLACES = ("paper", "demo")
FORMATS = ("text", "markdown", "csv", "latex")
RESULTS = Path("results")
UNFINISHED = 3  # exit code where the same command, given again, goes on

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
        from osscl.paper.plan import runs_of, sharded

        specs = runs_of(self.table.cells, self.schedule, self.seeds)
        return specs if self.shard is None else sharded(specs, self.shard)


def wanted(
    table: "Table", seeds: str, schedule: str, on: str, cells: str | None = None, shard: str | None = None
) -> Wanted:
    """What was typed, checked."""
    from osscl.cli.specs import seeds_of
    from osscl.paper.plan import shard_of
    from osscl.paper.stand_in import on_demo
    from osscl.paper.tables import picked
    from osscl.runs.spec import schedule as schedule_of

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
class Left:
    """Runs that are still to be carried out."""

    missing: "list[RunSpec]"  # they have no record
    untimed: "list[RunSpec]"  # a time is asked for, and their record has none that counts: they are made anew

    @property
    def runs(self) -> "list[RunSpec]":
        return [*self.missing, *self.untimed]

    def cost(self, records: "Iterable[RunRecord]") -> "Cost":
        """What they will take; a run that is made anew trains a reference network of its own."""
        from osscl.paper.plan import Cost, cost_of

        known = list(records)
        parts = [cost_of(self.missing, known), *(cost_of([spec], known) for spec in self.untimed)]
        return Cost(*(sum(getattr(part, name) for part in parts) for name in ("seconds", "references", "unknown")))


@dataclass(frozen=True)
class Recorded:
    """The records that are there, and the files of all, damaged ones too."""

    records: "dict[str, RunRecord]"  # by id, see plan.Records
    files: frozenset[str]  # ids that a file is named after, likewise

    def left(self, asked: Wanted, timed: bool = True) -> Left:
        """What is to be run; made anew only where the device would be `timed`. A damaged record stays as it is, and its
        run is not carried out again."""
        from osscl.paper.plan import anew, to_be_timed

        specs = asked.runs()
        missing = [spec for spec in specs if spec.id not in self.records and spec.id not in self.files]
        wanted = to_be_timed(asked.table.cells, asked.schedule, asked.seeds) if timed else set()
        untimed = [spec for spec in specs if spec.id in wanted and spec.id in self.records]
        untimed = [spec for spec in untimed if not self.records[spec.id].made_by.timed]
        return Left(missing, [spec for spec in untimed if anew(spec.id) not in self.files])


def recorded_in(results: list[Path] | None, out: Path) -> Recorded:
    """Every record below these folders; damaged files are named and left alone."""
    from osscl.paper.plan import anew, known_records
    from osscl.runs.record import TIMED, record_files

    for folder in results or ():
        if not folder.is_dir():
            raise UserError(f"no folder {folder} to read records from")
    folders = [folder for folder in (*(results or [RESULTS]), out) if folder.is_dir()]
    records, problems = known_records(folders)
    for problem in problems:
        typer.echo(f"skipped: {problem}", err=True)
    paths = [path for folder in folders for path in record_files(folder)]
    names = {anew(path.stem) if TIMED in path.parts[:-1] else path.stem for path in paths}
    return Recorded(records, frozenset({*names, *records}))


@dataclass(frozen=True)
class Made:
    """Records, and what kept others from being made."""

    records: "dict[str, RunRecord]"
    occupied: int = 0  # runs that another process is at work on
    diverged: Diverged | None = None


def complete(asked: Wanted, there: Recorded, how: "How", quiet: bool) -> Made:
    """The records, and those of the runs that were missing, carried out now."""
    from osscl.device import pick_device
    from osscl.paper.plan import anew

    left = there.left(asked, how.timed)
    if not left.runs:
        return Made(there.records)
    if how.engine.name == "local":
        pick_device(how.options.device)  # a wrong one is told before anything is run
    found, done, occupied, failed = dict(there.records), 0, 0, None
    for specs, part, name in ((left.missing, how, str), (left.untimed, how.anew(), anew)):
        before = done
        try:
            for record in part.carry_out(specs, asked.table.id, quiet):
                found[name(record.id)] = record
                done += 1
                if not quiet:
                    told = f"run {done} of {len(left.runs)} done"
                    typer.echo(f"{asked.table.id}  {told}  {record.id}  {record.final:.1f} %")
        except Occupied:
            occupied += len(specs) - (done - before)
        except Diverged as error:
            failed = error
    return Made(found, occupied, failed)
