"""`osscl compare` and `claims`: methods compared on pairs of runs with identical streams."""

import functools
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli import options as opt
from osscl.cli.table import show_table
from osscl.errors import SpecError, UserError, require_known
from osscl.text import counted, printable

if TYPE_CHECKING:
    from rich.table import Table

    from osscl.paper.claims import Finding
    from osscl.runs.record import RunRecord
    from osscl.tools.compare import Pairs

ONE_SCHEDULE = (
    "Use only records of this schedule. Default: all records that can decide a claim, so none on the demo's data and "
    "none of a shortened schedule such as smoke."
)
SIDE = "A record, a folder of records, or a configuration as `osscl runs` names it, looked up in --results and --out."


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help=SIDE)],
    second: Annotated[str, typer.Argument(metavar="B", help="The other side, in the same form as A.")],
    results: opt.Results = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where run folders are.")] = Path("runs"),
    measure: Annotated[str, typer.Option(help="final, average or forgetting.")] = "final",
    confidence: Annotated[float, typer.Option(help="Confidence level of the interval.")] = 0.95,
    anyway: Annotated[bool, typer.Option("--anyway", help="Compare even if streams or schedules differ.")] = False,
) -> None:
    """Compare two methods over seeds on identical streams: difference, confidence interval, two tests."""
    import textwrap

    from osscl.cli.show import console
    from osscl.tools.compare import MEASURES, pair_by_setting

    require_known("measure", measure, MEASURES)
    if not 0 < confidence < 1:
        raise SpecError(f"confidence must be in (0, 1), got {confidence}")
    known = functools.cache(lambda: looked_up(results, out))
    left, right = records_of(first, known), records_of(second, known)
    found = pair_by_setting(left, right, anyway)
    found.sort(key=lambda pairs: (heading(pairs), schedule_names(pairs), pairs.seeds))
    screen = console()
    wrapped = functools.partial(
        textwrap.fill, width=screen.width, break_on_hyphens=False, break_long_words=False, subsequent_indent="  "
    )
    by_name = [side for side in (first, second) if not Path(side).exists()]
    read = f"; records in {known()[1]}" if by_name else ""
    typer.echo(wrapped(f"A: {first}, B: {second}; {measure} in {MEASURES[measure]}, paired by seed{read}"))
    for setting, some in groupby(found, heading):
        typer.echo(f"\n{wrapped(setting)}")
        screen.print(comparison_table(list(some), measure, confidence))
    paired = {record.id for pairs in found for record in (*pairs.first, *pairs.second)}
    alone = sorted({record.id for record in (*left, *right)} - paired)
    for note in notes(confidence, few_pairs(found, measure, confidence), alone, anyway):
        typer.echo(wrapped(note))


def heading(pairs: "Pairs") -> str:
    """The setting of both sides, or of each where they differ."""
    from dataclasses import replace

    from osscl.report.naming import setting_words

    first, second = ([record.spec.scenario for record in side] for side in (pairs.first, pairs.second))
    one, other = first[0], second[0]
    if any(replace(scenario, memory=one.memory) != one for scenario in (*first, *second)):
        both = [" and ".join(dict.fromkeys(map(setting_words, side))) for side in (first, second)]
        return f"A: {both[0]}; B: {both[1]}"
    memories = f"; M={one.memory} for A, M={other.memory} for B" if one.memory != other.memory else ""
    return setting_words(one) + memories


def comparison_table(found: "Sequence[Pairs]", measure: str, confidence: float) -> "Table":
    """The rows of one setting, narrow enough for 80 columns."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    numbers = ("A", "B", "A - B", f"{100 * confidence:g} %\ninterval", "t-test\np", "sign test\np")
    for name in ("schedule", "seeds", *numbers):
        shown.add_column(name, overflow="fold", no_wrap=name in numbers)
    for pairs in found:
        shown.add_row(*comparison_row(pairs, measure, confidence))
    return shown


def comparison_row(pairs: "Pairs", measure: str, confidence: float) -> list[str]:
    from statistics import mean

    from osscl.cli.show import DASH, number
    from osscl.report.naming import seeds_and_n

    found, words = pairs.difference(attrgetter(measure)), [schedule_names(pairs), seeds_and_n(pairs.first)]
    if not found.n:
        return [*words, *[DASH] * 6]
    ends = found.interval(confidence)
    interval = DASH if ends is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}"
    sign = f"{number(found.sign_test(confidence), 3)} ({found.wins} of {found.n})"
    means = [number(mean(side), 2) for side in (found.first, found.second)]
    return [*words, *means, f"{found.mean:+.2f}", interval, number(found.t_test, 3), sign]


def schedule_names(pairs: "Pairs") -> str:
    return " / ".join(dict.fromkeys(record.spec.schedule.name for record in (*pairs.first, *pairs.second)))


def few_pairs(found: "Sequence[Pairs]", measure: str, confidence: float) -> list[str]:
    """For each comparison with too few pairs for the sign test: how many of them differ."""
    lines = []
    for pairs in found:
        difference = pairs.difference(attrgetter(measure))
        differ = difference.wins + difference.losses
        ties = difference.n - differ
        if difference.n and difference.sign_test(confidence) is None:
            tied = f", {counted(ties, 'tie')}" if ties else ""
            lines.append(f"{differ} of {difference.n} differ{tied} ({schedule_names(pairs)})")
    return lines


def notes(confidence: float, few: list[str], alone: list[str], anyway: bool) -> list[str]:
    """What the tests need, what they lack here, and which records are not paired."""
    import math

    least = 1 + math.ceil(-math.log2(1 - confidence) - 1e-9)
    here = f"; here, {'; '.join(few)}" if few else ""
    lines = [
        f"The sign test needs at least {least} pairs that differ{here}. The interval and the t-test need at least two. "
        "In parentheses: the number of seeds for which A is higher."
    ]
    if alone:
        lines.append(f"Not paired: {', '.join(alone)}")
    if anyway:
        lines.append("--anyway: streams or schedules may differ, so these numbers say little about the methods.")
    return lines


def looked_up(results: list[Path] | None, out: Path) -> "tuple[list[RunRecord], str]":
    """The records in which a name is looked up, and the names of their folders."""
    places = [*(results or [opt.RESULTS]), out]
    folders = [folder for folder in places if folder.is_dir()]
    if not folders and not results:
        raise UserError(f"no records found: there is no folder {' or '.join(map(str, places))}; give --results")
    records = opt.recorded_in(results, out).records  # refuses a named folder that does not exist
    return list({record.id: record for record in reversed(records.values())}.values()), " and ".join(map(str, folders))


def records_of(side: str, known: "Callable[[], tuple[list[RunRecord], str]]") -> "list[RunRecord]":
    """The records of a file, a folder or a configuration; damaged files are reported and skipped."""
    from osscl.runs.index import read_records
    from osscl.runs.record import read_record

    path = Path(side)
    if path.is_file():
        return [read_record(path)]
    if not path.is_dir():
        return named(side, *known())
    records, problems = read_records(path)
    for problem in problems:
        typer.echo(f"skipped: {printable(problem)}", err=True)
    if not records:
        raise UserError(f"no records in {path}")
    return records


def named(side: str, records: "Sequence[RunRecord]", places: str) -> "list[RunRecord]":
    """The records of one configuration."""
    from osscl.report.naming import method_label

    found = [record for record in records if side in (str(method_label(record)), recorded_name(record))]
    if not found:
        what = "no such file, and no records" if Path(side).suffix == ".json" else "no records"
        names = labels_of(records) or "none"
        raise UserError(f"{what} of {side!r} in {places}; found: {names}")
    configs: dict[object, set[object]] = {}  # a schedule may size a configuration's networks
    for record in found:
        configs.setdefault((record.spec.scenario, record.spec.schedule), set()).add(record.spec.method)
    if any(len(config) > 1 for config in configs.values()):
        raise UserError(f"{side!r} matches several configurations in {places}; choose one of: {labels_of(found)}")
    return found


def labels_of(records: "Sequence[RunRecord]") -> str:
    from osscl.report.naming import method_label

    return "; ".join(sorted({str(method_label(record)) for record in records}))


def recorded_name(record: "RunRecord") -> str | None:
    """The name a run was recorded under, unless it is now the name of a configuration with other fields."""
    from osscl.methods import CONFIGURATIONS
    from osscl.report.naming import method_label

    name = record.configuration
    return name if name not in CONFIGURATIONS or name == str(method_label(record)) else None


# ----- the paper's claims


def claims(
    schedule: Annotated[str | None, typer.Option("--schedule", help=ONE_SCHEDULE)] = None,
    format: opt.Format = "text",
    results: opt.Results = None,
    out: opt.Out = Path("runs"),
) -> None:
    """Check the paper's comparative claims on recorded pairs of runs with identical streams; nothing is run."""
    from osscl.report.paper_comparison import claim_notes, claims_table, sorted_findings, summary
    from osscl.runs.spec import schedule as schedule_of

    require_known("format", format, opt.TABLE_FORMATS)
    only = None if schedule is None else schedule_of(schedule)
    records = opt.recorded_in(results, out).records
    kept = {id: record for id, record in records.items() if only is None or record.spec.schedule == only}
    found = sorted_findings(kept, trials=only is not None)
    if format == "text":
        _show_claims(found, summary(found), claim_notes(kept, trials=only is not None))
    else:
        show_table(claims_table(found, kept, trials=only is not None), format)


def _show_claims(found: "Sequence[Finding]", summary: str, notes: Sequence[str]) -> None:
    """The summary, a block for each claim as wide as the terminal, and the notes."""
    import textwrap

    from osscl.cli.show import console
    from osscl.report.paper_comparison import claim_lines

    width = console().width

    def echo(line: str, indent: int = 0, hanging: int = 0) -> None:
        first, rest = " " * indent, " " * (indent + hanging)
        typer.echo(
            textwrap.fill(line, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
        )  # fmt: skip

    echo(summary)
    typer.echo()
    for finding in found:
        for indent, line in claim_lines(finding):
            echo(line, indent, hanging=4)
    typer.echo()
    for note in notes:
        echo(note)
