"""Output of the commands: tables, specs and records as a terminal shows them."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import yaml
from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from osscl.config import flat, plain
from osscl.text import printable, printable_lines, unguarded

if TYPE_CHECKING:
    from osscl.runs.checkpoint import Watcher
    from osscl.runs.record import RunRecord, StepRecord
    from osscl.runs.spec import RunSpec

DASH = "—"


def console() -> Console:
    """As wide as the terminal; 160 columns for files and pipes, unless $COLUMNS says otherwise."""
    made = Console(markup=False) if on_terminal() or "COLUMNS" in os.environ else Console(width=160, markup=False)
    return made if made.width > 0 else Console(width=80, markup=False)


def on_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()  # it may be closed


def watching(title: str) -> "AbstractContextManager[Watcher]":
    """Show the progress of a command: a bar in a terminal, lines elsewhere."""
    from osscl.runs.progress import PlainProgress, live_progress

    shown = printable(title)
    screen = Console(file=unguarded(sys.stdout)) if on_terminal() else None
    return nullcontext(PlainProgress(shown)) if screen is None else live_progress(shown, screen)


class SafeTable(Table):
    """A table whose cells may hold names from files: control characters in them are escaped."""

    def add_row(self, *cells: Any, **style: Any) -> None:
        safe = (printable_lines(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*safe, **style)


def new_table(*columns: str, caption: str | None = None) -> SafeTable:
    """A table whose cells wrap in a narrow terminal: a truncated id would be useless."""
    made = SafeTable(caption=caption)
    for name in columns:
        made.add_column(printable(name), overflow="fold")
    return made


def quoted(*words: str | Path) -> str:
    """A command line to copy, quoted for the shell."""
    return shlex.join(map(str, words))


def number(value: float | None, digits: int = 1) -> str:
    """The number, or a dash if it is missing."""
    return DASH if value is None else f"{value:.{digits}f}"


def announce(specs: "Sequence[RunSpec]", out: Path) -> None:
    """Print the spec and ids of runs about to start, which differ in their seed; if all are finished, only ids."""
    finished = [(out / spec.id / f"{spec.id}.json").exists() for spec in specs]
    if not all(finished):
        print_spec(specs)
    print_ids(specs, out)
    if all(finished):
        run = "This run is finished; it is" if len(specs) == 1 else "These runs are finished; they are"
        typer.echo(f"# {run} not run again.")


def print_ids(specs: "Sequence[RunSpec]", out: Path) -> None:
    from osscl.runs.spec import describe_schedule, display_name

    typer.echo(f"# {display_name(specs[0])}, schedule {describe_schedule(specs[0])}")
    for spec in specs:
        typer.echo(f"# id: {spec.id}")
    typer.echo(f"# run folder: {out / specs[0].id}" if len(specs) == 1 else f"# run folders: in {out}, named by id")


class LineByLine(yaml.SafeDumper):
    """YAML with one line per field: lists are written as [a, b]."""


LineByLine.add_representer(
    list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
)


def print_spec(specs: "Sequence[RunSpec]", *, full: bool = False) -> None:
    """Print what differs from the defaults of the method, or the `full` first spec, which `osscl run --spec` reads."""
    from osscl.runs.spec import spec_to_plain

    spec, seeds = specs[0], [spec.seed for spec in specs]
    shown = spec_to_plain(spec) if full else _without_defaults(spec)
    if len(seeds) > 1 and not full:
        shown = {("seeds" if key == "seed" else key): (seeds if key == "seed" else shown[key]) for key in shown}
    typer.echo(yaml.dump(shown, Dumper=LineByLine, sort_keys=False, width=80).rstrip())
    if not full:
        changed, total = len(shown["method"]) - 1, len(_method_fields(spec.method))
        typer.echo(f"# {changed} of {total} method fields differ from their defaults; --dry-run --full shows all")


def _without_defaults(spec: "RunSpec") -> dict[str, Any]:
    """The fields of a spec that are not at their defaults; those of the method are dotted, as `--set` takes them."""
    from osscl.methods.base import SCHEDULES

    scenario, schedule = spec.scenario, spec.schedule
    kept = [field for field in fields(scenario) if getattr(scenario, field.name) != field.default]
    short = {
        "scenario": {field.name: plain(getattr(scenario, field.name)) for field in kept},
        "method": {"type": spec.type, **_changed_fields(spec.method)},
        "schedule": schedule.name if schedule == SCHEDULES.get(schedule.name) else plain(schedule),
        "seed": spec.seed,
    }
    return short if spec.stream is None else {**short, "stream": spec.stream}


def _method_fields(config: Any) -> dict[str, Any]:
    return flat(plain(config))


def _changed_fields(config: Any) -> dict[str, Any]:
    """The fields that differ from the defaults of the config's type; all of them if it has required fields."""
    try:
        defaults = _method_fields(type(config)())
    except TypeError:
        return _method_fields(config)
    missing = object()
    return {key: value for key, value in _method_fields(config).items() if defaults.get(key, missing) != value}


def final_words(records: "Sequence[RunRecord]") -> str:
    """The final accuracy over seeds, as in: final 83.0 ± 2.0 % (n = 6 seeds, schedule demo)."""
    from statistics import mean, stdev

    finals = [record.final for record in records]
    return (
        f"final {mean(finals):.1f} ± {stdev(finals):.1f} % (n = {len(finals)} seeds, "
        f"schedule {records[0].spec.schedule.name})"
    )


def comparison(records: "Sequence[tuple[str, RunRecord]]") -> Group:
    """Runs side by side, a row per step: accuracy and gate, then forgetting and seconds."""
    from osscl.runs.spec import describe_schedule

    first = records[0][1]
    seeds = sorted({record.spec.seed for _, record in records})
    gated = [record for _, record in records if any(step.gate is not None for step in record.steps)][-1:]
    fullest = (gated or [first])[0]  # labels-only has no reference to describe
    caption = (
        f"Accuracy in % over all classes so far ({first.evaluated_rows} {first.evaluated_on} images in total); "
        f"schedule {describe_schedule(fullest.spec)}, seed {', '.join(map(str, seeds))}, "
        f"n = 1 run{' each' if len(records) > 1 else ''}."
    )
    if gated:
        caption += (
            " Gate AUROC: unlabelled images of known classes against all others. "
            "Precision, seen: share of known classes among the accepted images."
        )
    if any(phase.cached for _, record in records for step in record.steps for phase in step.phases):
        caption += " Seconds: a cached reference counts its original training time."
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("after step", no_wrap=True)
    for name, _ in records:
        table.add_column(printable(name), justify="right", min_width=5)  # in a narrow terminal, the name wraps
    for name in ("gate AUROC", "accepted", "precision,\nseen") if gated else ():
        table.add_column(name, justify="right", no_wrap=True)
    for t in range(max(len(record.overall) for _, record in records)):
        shown = [number(record.overall[t]) if t < len(record.overall) else DASH for _, record in records]
        table.add_row(str(t + 1), *shown, *_gate_cells(gated[0].steps[t] if gated else None))
    table.add_section()
    table.add_row("forgetting", *(number(record.forgetting) for _, record in records))
    timed = [record.minutes for _, record in records]
    table.add_row("seconds", *(number(None if one is None else 60 * one, 0) for one in timed))
    return Group(table, Text(printable(caption)))  # rich would wrap a table's own caption at the table's width


def _gate_cells(step: "StepRecord | None") -> list[str]:
    if step is None:
        return []
    if step.gate is None:
        return [DASH, DASH, DASH]
    accepted = f"{step.gate.passed} of {step.unlabeled}"
    return [number(step.gate.auroc_seen, 3), accepted, number(step.gate.precision_seen, 2)]
