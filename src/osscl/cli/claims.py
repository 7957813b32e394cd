"""`osscl claims`: what the paper says of its method, held against the records."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from osscl.cli import wanted as ask
from osscl.cli.table import show_section

if TYPE_CHECKING:
    from osscl.paper.claims import Finding

HELP = "Records of one schedule alone, trials too. By default all but trials: smoke, demo, and the demo's data."
Only = Annotated[str | None, typer.Option("--schedule", help=HELP)]
RAW_HEADER = (
    "claim", "verdict", "schedule", "data", "comparison", "quantity", "difference", "std", "n", "seeds",
    "paper_difference", "needs",
)  # fmt: skip


def claims(
    schedule: Only = None,
    format: ask.Format = "text",
    results: ask.Results = None,
    out: ask.Out = Path("runs"),
) -> None:
    """Check the paper's comparative claims over recorded pairs on identical streams; nothing is run."""
    from osscl.paper.claims import CLAIMS, findings
    from osscl.report import verdicts
    from osscl.report.formats import TableSection
    from osscl.runs.spec import schedule as schedule_of

    ask.known_format(format)
    wanted, records = None if schedule is None else schedule_of(schedule), ask.recorded_in(results, out).records
    kept = {id: record for id, record in records.items() if wanted is None or record.spec.schedule == wanted}
    found = findings(CLAIMS, kept, trials=wanted is not None)
    found.sort(key=lambda finding: verdicts.ORDER.index(finding.verdict))
    if format == "csv":
        show_section(TableSection("Claims", RAW_HEADER, [row for one in found for row in raw_rows(one)]), format)
        return
    once = {record.id: record for record in kept.values()}  # however often a run was made
    whole = verdicts.section(once, trials=wanted is not None)
    note = f"{tally(found)}; {whole.note.partition('; ')[2]}"  # in place of a count of findings
    if format == "text":
        _show(found, note)
        return
    columns = (*verdicts.HEADER, "needs")
    show_section(TableSection(whole.title, columns, [row for one in found for row in rows(one)], note), format)


def told(finding: "Finding") -> tuple[list[tuple[str, ...]], str]:
    """The lines of a finding's comparisons, claim and verdict left out, and what would decide it."""
    from osscl.report import verdicts

    lines = [line[3:] for line in verdicts.rows([finding])]
    compared = len(finding.parts)
    return lines[:compared], "".join(line[0] for line in lines[compared:])


def head(finding: "Finding") -> tuple[str, ...]:
    """Claim, verdict and schedule, in words."""
    from osscl.report import verdicts

    return verdicts.rows([finding])[0][:3]


def rows(finding: "Finding") -> list[tuple[str, ...]]:
    """A row for each comparison that has pairs, whole: one can be read without those above it."""
    from osscl.report.formats import DASH

    compared, needs = told(finding)
    return [(*head(finding), *words, needs.removeprefix("needs ") or DASH) for words in compared or [(DASH,) * 4]]


def raw_rows(finding: "Finding") -> Iterator[tuple[str, ...]]:
    """The same for programs: a number a field, empty where there is none."""
    from statistics import mean, pstdev

    needs = told(finding)[1].removeprefix("needs ")
    place = (finding.schedule.name, finding.data or "") if finding.schedule is not None else ("", "")
    first = finding.claim.statement, finding.verdict, *place
    for part in finding.parts:
        n, theirs = len(part.differences), None if finding.trial else part.comparison.published
        numbers = mean(part.differences), pstdev(part.differences) if n > 1 else None
        told_of = *map(_raw, numbers), str(n), " ".join(map(str, part.seeds)), _raw(theirs)
        yield *first, part.comparison.words, finding.claim.quantity, *told_of, needs
    if not finding.parts:
        yield *first, "", finding.claim.quantity, "", "", "0", "", "", needs


def _raw(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")


def tally(found: "Sequence[Finding]") -> str:
    """How many claims there are, and the verdicts at each schedule: a claim may have pairs at several."""
    from osscl.report import verdicts

    by_schedule: dict[str, list[Finding]] = {}
    for finding in found:
        if finding.schedule is not None and not finding.trial:
            by_schedule.setdefault(head(finding)[2], []).append(finding)
    parts = [f"at {schedule} {verdicts.counts(those)}" for schedule, those in by_schedule.items()]
    alone = sum(finding.schedule is None for finding in found)
    tried = len({finding.claim.statement for finding in found if finding.trial})
    parts += [f"{count} {words}" for count, words in ((tried, "tried"), (alone, "without a pair")) if count]
    return f"{len({finding.claim.statement for finding in found})} claims: {'; '.join(parts)}"


def _show(found: "Sequence[Finding]", note: str) -> None:
    """A block for each claim, as wide as the terminal: its verdict, its comparisons, what it needs."""
    import textwrap

    from osscl.cli.show import console

    width = console().width
    for finding in found:
        for indent, line in _block(finding):
            typer.echo(textwrap.fill(line, width, **_hanging(indent)))
    typer.echo()
    for line in note.splitlines():
        typer.echo(textwrap.fill(line, width, break_on_hyphens=False))


def _hanging(indent: int) -> dict[str, Any]:
    """Lines that go on stand further in; what may be copied is not broken."""
    further = " " * (indent + 4)
    return {"initial_indent": " " * indent, "subsequent_indent": further, "break_on_hyphens": False}


def _block(finding: "Finding") -> Iterator[tuple[int, str]]:
    """The lines of a claim, and how far in each stands."""
    from osscl.report.formats import DASH

    claim, verdict, schedule = head(finding)
    compared, needs = told(finding)
    if not compared:
        yield 0, f"{claim}: {verdict}, {needs}"
        return
    yield 0, f"{claim}: {verdict} at {schedule}"
    for comparison, difference, seeds, theirs in compared:
        beside = "" if theirs == DASH else f"; paper's {theirs}"
        yield 2, f"{comparison}: {difference}, seed{'s' * (',' in seeds)} {seeds}{beside}"
    if needs:
        yield 2, needs
