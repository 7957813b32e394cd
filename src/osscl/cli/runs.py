"""`osscl runs` and `list`: what there is, and how to go on with it."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from osscl.errors import UserError, unknown

if TYPE_CHECKING:
    from osscl.runs.spec import RunSpec


def names() -> None:
    """Name whatever commands take by name."""
    from osscl.data.benchmarks import DATASETS
    from osscl.methods import CONFIGURATIONS
    from osscl.methods.base import SCHEDULES
    from osscl.paper.tables import LIMITS
    from osscl.runs.spec import EXPERIMENTS
    from osscl.stream.scenario import Regime
    from osscl.vision.backbones import BACKBONES

    typer.echo("experiments (osscl run NAME):")
    for name, scenario in EXPERIMENTS.items():
        count = f"{scenario.labels_per_class} labels a class"
        share = f"P={scenario.labeled_fraction}" if scenario.labeled_fraction else count
        world = f"{scenario.main} among {', '.join(scenario.peripheral)}" if scenario.peripheral else scenario.main
        typer.echo(f"  {name:<18} {world}; {share}, memory {scenario.memory}, {scenario.steps} steps")
    typer.echo(f"methods (--method):     {', '.join(CONFIGURATIONS)}")
    typer.echo(f"schedules (--schedule): {', '.join(SCHEDULES)}")
    typer.echo(f"data sets:              {', '.join(DATASETS)}")
    typer.echo(f"regimes (--regime):     {', '.join(get_args(Regime))}")
    typer.echo(f"backbones:              {', '.join(BACKBONES)}")
    typer.echo("fields (--set):         as `osscl run NAME --dry-run` shows them")
    typer.echo(f"limitations:            {', '.join(LIMITS)} (osscl experiments L1)")
    typer.echo("tables and figures:     osscl table list")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where run folders or records lie.")] = Path("runs"),
    markdown: Annotated[
        bool, typer.Option(help="As a Markdown table, runs that differ in their seed together.")
    ] = False,
    schedule: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Runs of these schedules alone, between commas.")
    ] = None,
) -> None:
    """Show finished and unfinished runs, and how to go on."""
    from osscl.cli.show import DASH, console, number, table
    from osscl.report import tables
    from osscl.report.naming import method_name
    from osscl.runs.checkpoint import is_occupied
    from osscl.runs.record import read_records
    from osscl.runs.spec import display_name

    if not folder.is_dir():
        raise UserError(f"no folder {folder}; give the one that --out named")
    records, problems = read_records(folder)
    for problem in problems:
        typer.echo(f"skipped: {problem}", err=True)
    begun = sorted(folder.glob("*/spec.json"))
    specs = {file: _begun(file) for file in begun if not (file.parent / f"{file.parent.name}.json").exists()}
    if schedule is not None:
        there = {record.spec.schedule.name for record in records}
        there |= {spec.schedule.name for spec in specs.values() if spec is not None}
        wanted = _schedules(schedule, there)
        records = [record for record in records if record.spec.schedule.name in wanted]
        specs = {file: spec for file, spec in specs.items() if spec is not None and spec.schedule.name in wanted}
    if markdown:
        typer.echo(tables.markdown(records), nl=False)
        return
    if not records and not specs:
        typer.echo(f"no runs in {folder}")
        return
    shown = table("run", "final %", "forgetting", "minutes")
    methods = [method_name(record) for record in records]
    for record, method in zip(records, methods, strict=True):
        final, minutes = f"{number(record.final)} {record.evaluated_on}", tables.minutes(record)
        shown.add_row(f"{_words(record.spec, method)}\n{record.id}", final, number(record.forgetting), number(minutes))
    at_work = {file for file in specs if is_occupied(file.parent)}
    for file, spec in specs.items():
        state = "at work" if file in at_work else "diverged" if _diverged(file.parent) else "unfinished"
        words = "a spec that cannot be read" if spec is None else _words(spec, display_name(spec))
        shown.add_row(f"{words}\n{file.parent.name}", state, DASH, DASH)
    console().print(shown)
    if any(re.search(r" [0-9a-f]{6}$", method) for method in methods):
        typer.echo("NAME HASH: a configuration with several changes, or of a method elsewhere; its record lists them.")
    for file, spec in specs.items():
        if file not in at_work and not _diverged(file.parent):
            typer.echo(f"go on: {_going_on(file, spec, folder)}")


def _diverged(folder: Path) -> bool:
    """Whether the same command would only diverge again."""
    return any(folder.glob("checkpoint.diverged*")) and not any(folder.glob("checkpoint.safetensors"))


def _schedules(asked: str, there: set[str]) -> set[str]:
    wanted = {name.strip() for name in asked.split(",")}
    if there and (missing := wanted - there):
        raise unknown("schedule", min(missing), sorted(there))
    return wanted


def _begun(file: Path) -> "RunSpec | None":
    """The spec of a run that has begun, where it can be read."""
    import json

    from osscl.runs.spec import spec_from_plain

    try:
        return spec_from_plain(json.loads(file.read_text(encoding="utf-8")), recorded=True)
    except (OSError, ValueError, RecursionError, UserError):
        return None


def _words(spec: "RunSpec", method: str) -> str:
    from osscl.report.naming import setting_words

    return f"{setting_words(spec.scenario)}: {method}, {spec.schedule.name}, seed {spec.seed}"


def _going_on(file: Path, spec: "RunSpec | None", folder: Path) -> str:
    from osscl.cli.show import quoted
    from osscl.runs.spec import ForeignConfig

    if spec is not None and isinstance(spec.method, ForeignConfig):
        return f"from Python, osscl.run(spec, method=...) with the class of {spec.type}: {file.parent.name}"
    rows = ["--stream", "FILE"] if spec is not None and spec.stream is not None else []
    return quoted("osscl", "run", "--spec", file, *rows, "--out", folder)
