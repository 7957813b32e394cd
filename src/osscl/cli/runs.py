"""`osscl runs` and `list`: what there is, and how to go on with it."""

import re
from pathlib import Path
from typing import Annotated, get_args

import typer

from osscl.errors import UserError


def names() -> None:
    """Name whatever commands take by name."""
    from osscl.data.benchmarks import DATASETS
    from osscl.experiments.limits import LIMITS
    from osscl.experiments.spec import EXPERIMENTS
    from osscl.methods import CONFIGURATIONS
    from osscl.methods.method import SCHEDULES
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
) -> None:
    """Show finished and unfinished runs, and how to go on."""
    from osscl.cli.show import DASH, console, number, table
    from osscl.experiments.checkpoint import is_occupied
    from osscl.experiments.record import read_records
    from osscl.report import tables
    from osscl.report.naming import method_name, setting_words

    if not folder.is_dir():
        raise UserError(f"no folder {folder}; give the one that --out named")
    records, problems = read_records(folder)
    for problem in problems:
        typer.echo(f"skipped: {problem}", err=True)
    if markdown:
        typer.echo(tables.markdown(records), nl=False)
        return
    begun = sorted(folder.glob("*/spec.json"))
    unfinished = [spec for spec in begun if not (spec.parent / f"{spec.parent.name}.json").exists()]
    if not records and not unfinished:
        typer.echo(f"no runs in {folder}")
        return
    shown = table("run", "final %", "forgetting", "minutes")
    methods = [method_name(record) for record in records]
    for record, method in zip(records, methods, strict=True):
        how = f"{method}, {record.spec.schedule.name}, seed {record.spec.seed}"
        name = f"{setting_words(record.spec.scenario)}: {how}"
        final, minutes = f"{number(record.final)} {record.evaluated_on}", tables.minutes(record)
        shown.add_row(f"{name}\n{record.id}", final, number(record.forgetting), number(minutes))
    at_work = {spec for spec in unfinished if is_occupied(spec.parent)}
    for spec in unfinished:
        state = "at work" if spec in at_work else "unfinished"
        shown.add_row(f"{_begun_words(spec)}\n{spec.parent.name}", state, DASH, DASH)
    console().print(shown)
    if any(re.search(r" [0-9a-f]{6}$", method) for method in methods):
        typer.echo("NAME HASH: a configuration with several changes, which its record lists.")
    for spec in unfinished:
        if spec not in at_work:
            typer.echo(f"go on: {_going_on(spec, folder)}")


def _begun_words(file: Path) -> str:
    """What an unfinished run is a run of, where its spec can be read."""
    import json

    from osscl.experiments.spec import name_of, spec_from_plain
    from osscl.report.naming import setting_words

    try:
        spec = spec_from_plain(json.loads(file.read_text(encoding="utf-8")), recorded=True)
    except (OSError, ValueError, UserError):
        return "a spec that cannot be read"
    return f"{setting_words(spec.scenario)}: {name_of(spec)}, {spec.schedule.name}, seed {spec.seed}"


def _going_on(spec: Path, folder: Path) -> str:
    from osscl.cli.show import quoted

    rows = ["--stream", "FILE"] if '"stream": "' in spec.read_text(errors="replace") else []
    return quoted("osscl", "run", "--spec", spec, *rows, "--out", folder)
