"""`osscl claims`: the paper's comparative claims, checked against the records."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli import options as opt
from osscl.cli.table import show_table

if TYPE_CHECKING:
    from osscl.paper.claims import Finding

HELP = "Use records of one schedule, including trials. Default: all but trials (smoke, demo, the demo's data)."


def claims(
    schedule: Annotated[str | None, typer.Option("--schedule", help=HELP)] = None,
    format: opt.Format = "text",
    results: opt.Results = None,
    out: opt.Out = Path("runs"),
) -> None:
    """Check the paper's comparative claims on recorded pairs of identical streams; nothing is run."""
    from osscl.report.paper_comparison import claim_notes, claims_table, sorted_findings, summary
    from osscl.runs.spec import schedule as schedule_of

    opt.refuse_format(format)
    only = None if schedule is None else schedule_of(schedule)
    records = opt.recorded_in(results, out).records
    kept = {id: record for id, record in records.items() if only is None or record.spec.schedule == only}
    found = sorted_findings(kept, trials=only is not None)
    if format == "text":
        _show(found, summary(found), claim_notes(kept, trials=only is not None))
    else:
        show_table(claims_table(found, kept, trials=only is not None), format)


def _show(found: "Sequence[Finding]", summary: str, notes: Sequence[str]) -> None:
    """The summary, a block for each claim as wide as the terminal, and the notes."""
    import textwrap

    from osscl.cli.show import console

    width = console().width

    def echo(line: str, indent: int = 0, hanging: int = 0) -> None:
        first, rest = " " * indent, " " * (indent + hanging)
        typer.echo(
            textwrap.fill(line, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
        )  # fmt: skip

    echo(summary)
    typer.echo()
    for finding in found:
        for indent, line in _block(finding):
            echo(line, indent, hanging=4)
    typer.echo()
    for note in notes:
        echo(note)


def _block(finding: "Finding") -> Iterator[tuple[int, str]]:
    """The lines of a claim and their indents: verdict, comparisons, and what it needs to be decided."""
    from osscl.report.formats import verdict_text
    from osscl.report.paper_comparison import difference_number, needs_words, published_difference, schedule_words

    claim, verdict, needs = finding.claim.statement, verdict_text(finding.verdict), needs_words(finding.needs)
    if not finding.compared:
        yield 0, f"{claim}: {verdict}, needs {needs}"
        return
    yield 0, f"{claim}: {verdict} at {schedule_words(finding)}"
    for one in finding.compared:
        theirs = published_difference(one, finding)
        beside = "" if theirs is None else f"; paper's {theirs}"
        seeds = f"seed{'s' * (len(one.seeds) > 1)} {', '.join(map(str, one.seeds))}"
        yield 2, f"{one.comparison.words}: {difference_number(one, finding)}, {seeds}{beside}"
    if needs:
        yield 2, f"needs {needs}"
