"""`osscl compare`: two methods, seed by seed."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.errors import SpecError, UserError, unknown

if TYPE_CHECKING:
    from rich.table import Table

    from osscl.experiments.compare import Difference, Pairs
    from osscl.experiments.record import RunRecord

SIDE = "A record, a folder of records, or a configuration within --results, as `osscl runs` names it."


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where configurations are looked up.")] = Path("runs"),
    measure: Annotated[str, typer.Option(help="final, average or forgetting.")] = "final",
    confidence: Annotated[float, typer.Option(help="Of the interval.")] = 0.95,
    anyway: Annotated[bool, typer.Option("--anyway", help="Pair by seed, other streams or schedules or not.")] = False,
) -> None:
    """Compare two methods over seeds on identical streams: difference, confidence interval, two tests."""
    from osscl.cli.show import console
    from osscl.experiments.compare import MEASURES, paired

    if measure not in MEASURES:
        raise unknown("measure", measure, MEASURES)
    if not 0 < confidence < 1:
        raise SpecError(f"confidence must be in (0, 1), got {confidence}")
    left, right = records_of(first, results), records_of(second, results)
    found = sorted(paired(left, right, anyway), key=lambda pairs: (heading(pairs), schedules(pairs), pairs.seeds))
    typer.echo(f"A: {first}, B: {second}; {measure} in {MEASURES[measure]}, paired by seed")
    for setting, rows in groupby(found, heading):
        typer.echo(f"\n{setting}")
        console().print(rows_of(list(rows), measure, confidence))
    told = {record.id for pairs in found for record in (*pairs.first, *pairs.second)}
    typer.echo(notes(confidence, sorted({record.id for record in (*left, *right)} - told), anyway))


def heading(pairs: "Pairs") -> str:
    from osscl.report.naming import setting_words

    one, other = pairs.first[0].spec.scenario, pairs.second[0].spec.scenario
    memories = f"; M={one.memory} of A, M={other.memory} of B" if one.memory != other.memory else ""
    return setting_words(one) + memories


def rows_of(found: "Sequence[Pairs]", measure: str, confidence: float) -> "Table":
    """The rows of one setting, narrow enough for 80 columns."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    numbers = ("A", "B", "A - B", f"{100 * confidence:g} %\ninterval", "t-test\np", "sign test\np")
    for name in ("schedule", "seeds", *numbers):
        shown.add_column(name, overflow="fold", no_wrap=name in numbers)
    for pairs in found:
        shown.add_row(*row(pairs, measure, confidence))
    return shown


def row(pairs: "Pairs", measure: str, confidence: float) -> list[str]:
    from osscl.cli.show import DASH, number
    from osscl.report.naming import seeds_and_n

    known = [getattr(record, measure) for record in (*pairs.first, *pairs.second)]
    found = pairs.measured(measure, confidence)
    words = [schedules(pairs), seeds_and_n(pairs.first)]
    if found is None:
        return [*words, *[DASH] * 6]
    n = found.n
    means = [number(sum(side) / n, 2) for side in (known[:n], known[n:])]
    sign = f"{number(found.sign_test, 3)} ({found.wins} of {n})"
    return [*words, *means, f"{found.mean:+.2f}", interval(found), number(found.t_test, 3), sign]


def schedules(pairs: "Pairs") -> str:
    names = dict.fromkeys(record.spec.schedule.name for record in (*pairs.first, *pairs.second))
    return " / ".join(names)


def interval(found: "Difference") -> str:
    from osscl.cli.show import DASH

    return DASH if found.low is None or found.high is None else f"{found.low:+.2f} to {found.high:+.2f}"


def notes(confidence: float, alone: list[str], anyway: bool) -> str:
    """What the table does not say by itself."""
    import math

    least = 1 + math.ceil(-math.log2(1 - confidence) - 1e-9)
    lines = [
        f"The sign test needs {least} pairs that differ; interval and t-test need two. "
        "In brackets: seeds at which A is higher."
    ]
    if alone:
        lines.append(f"Not paired: {', '.join(alone)}")
    if anyway:
        lines.append("--anyway: streams or schedules may differ; these numbers say little about the methods.")
    return "\n".join(lines)


def records_of(side: str, results: Path) -> "list[RunRecord]":
    """The records that a file, a folder or the name of a configuration stands for; damaged files are named."""
    from osscl.experiments.record import read_record, read_records
    from osscl.report.naming import method_name

    path = Path(side)
    if path.is_file():
        return [read_record(path)]
    folder = path if path.is_dir() else results
    if not folder.is_dir():
        raise UserError(f"{side!r} is no file or folder, and there is no folder {results} to look it up in")
    records, problems = read_records(folder)
    for problem in problems:
        typer.echo(f"skipped: {problem}", err=True)
    if path.is_dir():
        if not records:
            raise UserError(f"no records in {folder}")
        return records
    found = [record for record in records if side in (known_as(record), method_name(record))]
    if not found:
        what = "no such file, and no records" if path.suffix == ".json" else "no records"
        names = {method_name(one) if known_as(one).endswith("*") else known_as(one) for one in records}
        there = "; ".join(sorted(names)) or "none"
        raise UserError(f"{what} of {side!r} in {folder}; there are: {there}")
    configs: dict[object, set[object]] = {}  # a schedule may size a configuration's networks
    for record in found:
        configs.setdefault((record.spec.scenario, record.spec.schedule), set()).add(record.spec.method)
    if any(len(config) > 1 for config in configs.values()):
        several = "; ".join(sorted(set(map(method_name, found))))
        raise UserError(f"{side!r} stands for several configurations in {folder}, name one: {several}")
    return found


def known_as(record: "RunRecord") -> str:
    """The configuration that its fields are now; of fields that are none, the name that it was recorded under, unless
    that name stands for others by now."""
    from osscl.experiments.spec import name_of as current
    from osscl.methods import CONFIGURATIONS

    name = current(record.spec)
    return record.configuration if name.endswith("*") and record.configuration not in CONFIGURATIONS else name
