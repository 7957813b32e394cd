"""The paper's tables and claims compared with our records, as typed tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from osscl.methods.base import PAPER, SCHEDULES, Schedule
from osscl.paper.cells import ACCURACIES, Measure, Published, Table, on_demo
from osscl.paper.claims import CLAIMS, Compared, Finding, Needs, Quantity, findings, is_trial, world_of, worlds
from osscl.paper.plan import Records
from osscl.paper.score import (
    ENOUGH,
    Outcome,
    other_schedules,
    outcome,
    outcomes,
    seed_words,
    seeds_words,
)
from osscl.paper.tables import COMPARED, FIGURES, TABLES, chosen_rows, search_rows
from osscl.paper.verdict import VerdictKind
from osscl.report import curves
from osscl.report.chapters import FEW_UPDATES, is_shortened, mean_number
from osscl.report.formats import SPREAD, Column, Number, ResultTable, Row, verdict_text
from osscl.report.naming import device_words
from osscl.runs.record import RunRecord
from osscl.text import counted

CLAIM_ORDER: tuple[VerdictKind, ...] = ("holds", "refuted", "tried", "undecided")
PLURALS: dict[VerdictKind, str] = {"holds": "hold"}
QUANTITIES: dict[Quantity, tuple[str, int]] = {  # unit and decimals of a difference
    "accuracy": ("", 1),
    "minutes": ("min", 1),
    "auroc": ("", 3),
    "precision": ("", 3),
}
LEFT_OUT = "left out: these runs are on the demo's data or too short to learn much, and say nothing about the paper."


# ----- tables


def paper_table(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> ResultTable:
    """A table of the paper, one row per cell: ours, and at the paper's schedule the paper's number and a verdict."""
    title = f"{table.id}: {table.heading}"
    if table.id == "T7":
        tried = (Column("field"), Column("values"))
        return ResultTable(title, tried, search_rows(), sentences(["run by osscl tune", *table.all_notes]))
    if table.id == "T8":
        chosen = (Column("field"), Column("paper"), *map(Column, COMPARED))
        return ResultTable(title, chosen, chosen_rows(), sentences(table.all_notes))
    found, is_full = outcomes(table, records, schedule, seeds), schedule == PAPER
    has_published = is_full and any(cell.published for cell in table.cells)
    columns = (
        Column("table", only_csv=True), Column("row"), Column("column"), Column("measure", only_csv=True),
        Column("schedule", only_csv=True), Column("ours", "mean", ("mean", "std", "n"), ours=True),
        Column("seeds", "seeds"), Column("paper", "published", ("paper_mean", "paper_std"), only_csv=not has_published),
        Column("verdict", "verdict", ("verdict", "distance"), only_csv=not is_full),
    )  # fmt: skip
    rows = [_outcome_row(table.id, one, is_full) for one in found]
    return ResultTable(title, columns, rows, table_notes(table, found, records, schedule, seeds))


def _outcome_row(table: str, one: Outcome, is_full: bool) -> Row:
    cell = one.cell
    names = table, cell.row, cell.column, cell.measure, one.schedule.name
    theirs = published_number(cell.published, cell.measure) if is_full else None
    return *names, our_number(one), one.seeds, theirs, one.verdict


def our_number(one: Outcome) -> Number | None:
    """The mean over the seeds, with the paper's number at the paper's schedule only."""
    if one.mean is None:
        return None
    is_accuracy = one.cell.measure in ACCURACIES
    published = one.cell.published.mean if one.cell.published is not None and one.schedule == PAPER else None
    return Number(
        one.mean, one.std, len(one.values), unit_of(one.cell.measure),
        digits=1 if is_accuracy or one.mean >= 0.1 else 3,  # a smoke run takes less than 0.1 minutes
        is_percent=is_accuracy and one.schedule == PAPER, published=published,
    )  # fmt: skip


def published_number(published: Published | None, measure: Measure) -> Number | None:
    """The paper's number, with as many decimals as it prints."""
    if published is None:
        return None
    printed = [published.mean] if published.std is None else [published.mean, published.std]
    decimals = [len(f"{value:g}".partition(".")[2]) for value in printed]
    least = 0 if published.std is None else 1
    return Number(published.mean, published.std, None, unit_of(measure), max(least, *decimals))


def unit_of(measure: Measure) -> str:
    return "" if measure in ACCURACIES else "min"


def table_notes(
    table: Table, found: Sequence[Outcome], records: Records, schedule: Schedule, seeds: Sequence[int]
) -> tuple[str, ...]:
    """What the numbers are: measure, schedule, seeds, devices; then the table's own notes."""
    devices = sorted({device_words(record.made_by.device) for one in found for record in one.records})
    timed = {one.cell.measure not in ACCURACIES for one in found}
    what = "Minutes" if timed == {True} else f"Final accuracy in %{' (min: minutes)' if True in timed else ''}"
    recorded = seed_words((seed for one in found for seed in one.seeds), seeds)
    made_on = f"; recorded on {', '.join(devices)}" if devices else ""
    notes = [f"{what}; schedule {schedule.name}, {recorded}{made_on}."]
    if any(one.std is not None for one in found):
        notes.append(SPREAD)
    if schedule == PAPER and any(one.cell.published and one.cell.published.std is not None for one in found):
        notes.append("The paper's numbers are mean ± std of 3 runs.")
    if schedule != PAPER and any(one.cell.published for one in found):
        notes.append("The paper used its full schedule, so its numbers are not shown.")
    if any(one.untimed for one in found):
        notes.append("Not timed: the device was shared with other work. Without --no-run, such a run is repeated.")
    others = other_schedules(table, records, schedule, seeds)
    if counts := ", ".join(f"{count} at {name} (--schedule {name})" for name, count in others.items()):
        notes.append(f"Not included, recorded at other schedules: {counts}.")
    return (*notes, *sentences(table.all_notes))


def sentences(notes: Sequence[str]) -> tuple[str, ...]:
    """Notes as sentences, with a capital letter and a full stop."""
    return tuple(note if note.endswith(".") else f"{note[0].upper()}{note[1:]}." for note in notes)


# ----- the main results

MEGABYTE = 1e6
MAIN_COLUMNS = (
    Column("setting"), Column("method"), Column("ours", "mean", ("mean", "std", "n"), ours=True),
    Column("paper", "published", ("paper_mean", "paper_std")), Column("kept", "number", ("kept_megabytes",)),
    Column("minutes", "number"), Column("seeds", "seeds", only_csv=True),
)  # fmt: skip


def main_results(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> ResultTable:
    """A row per cell that has a number of ours or of the paper; the others are listed below the table."""
    found = outcomes(table, records, schedule, seeds)
    shown, missing = list[Row](), dict[str, list[str]]()
    for one in found:
        row = _main_row(one)
        if row[2] is None and row[3] is None:  # neither ours nor the paper's
            missing.setdefault(one.cell.column, []).append(one.cell.row)
        else:
            shown.append(row)
    notes = table_notes(table, found, records, schedule, seeds)
    if missing:
        words = "; ".join(f"{method} ({', '.join(settings)})" for method, settings in missing.items())
        notes = (*notes, f"Not run yet: {words}.")
    return ResultTable(table.heading, MAIN_COLUMNS, shown, notes)


def _main_row(one: Outcome) -> Row:
    cell = one.cell
    theirs = published_number(cell.published, cell.measure) if one.schedule == PAPER else None
    minutes = mean_number([record.minutes for record in one.records])
    return cell.row, cell.column, our_number(one), theirs, megabytes_kept(one.records), minutes, one.seeds


def megabytes_kept(records: Sequence[RunRecord]) -> Number | None:
    """Mean megabytes of past data kept after the last step, where every record says so."""
    bytes_kept = [record.memory_bytes for record in records]
    found = mean_number([None if count is None else count / MEGABYTE for count in bytes_kept], 2)
    return None if found is None else Number(found.value, unit="MB", digits=2)


# ----- claims


def sorted_findings(records: Records, trials: bool = False) -> list[Finding]:
    """What records say about every claim of the paper, decided claims first."""
    return sorted(findings(CLAIMS, records, trials), key=lambda finding: CLAIM_ORDER.index(finding.verdict.kind))


def claims_table(found: Sequence[Finding], records: Records, trials: bool = False) -> ResultTable:
    """A row for each comparison that has pairs; claims without any have one row that says what they need."""
    columns = (
        Column("claim"), Column("verdict", "verdict", ("verdict",)), Column("schedule"), Column("data", only_csv=True),
        Column("needs"), Column("comparison"), Column("quantity", only_csv=True),
        Column("difference", "mean", ("difference", "std", "n"), ours=True), Column("seeds", "seeds"),
        Column("paper's", "published", ("paper_difference",)),
    )  # fmt: skip
    rows = [row for finding in found for row in _finding_rows(finding)]
    return ResultTable("Claims", columns, rows, (summary(found), *claim_notes(records, trials)), spanning=5)


def _finding_rows(finding: Finding) -> Iterator[Row]:
    schedule = None if finding.schedule is None else schedule_words(finding)
    shared = finding.claim.statement, finding.verdict, schedule, finding.data, needs_words(finding.needs)
    quantity = finding.claim.quantity
    for one in finding.compared:
        numbers = difference_number(one, finding), one.seeds, published_difference(one, finding)
        yield *shared, one.comparison.words, quantity, *numbers
    if not finding.compared:
        yield *shared, None, quantity, None, (), None


def difference_number(one: Compared, finding: Finding) -> Number:
    unit, digits = QUANTITIES[finding.claim.quantity]
    found = one.difference
    return Number(found.mean, found.std, found.n, unit, digits, signed=True)


def published_difference(one: Compared, finding: Finding) -> Number | None:
    """The paper's difference, only for runs with its schedule and data."""
    theirs = one.comparison.published
    if theirs is None or not finding.is_beside_paper:
        return None
    return Number(theirs, unit=QUANTITIES[finding.claim.quantity][0], signed=True)


def schedule_words(finding: Finding) -> str:
    """The schedule's name, with its share if it is user-defined: two of these may have the same name."""
    schedule = finding.schedule
    if schedule is None:
        return ""
    name = schedule.name if schedule.name in SCHEDULES else f"{schedule.name} ({schedule.share:g} of the epochs)"
    return name + (" on demo data" if finding.data == "demo" else "")


def needs_words(needs: Needs | None) -> str | None:
    """What is needed in words, such as: T4, seeds 0-2."""
    if needs is None:
        return None
    if needs.reason:
        return needs.reason
    timed = ", timed on one kind of device that runs nothing else" if needs.timed else ""
    return f"{', '.join(needs.tables)}, {seeds_words(needs.seeds)}{timed}"


def claim_lines(finding: Finding) -> Iterator[tuple[int, str]]:
    """A finding as lines of text and their indents: verdict, comparisons, and what is needed to decide it."""
    claim, verdict, needs = finding.claim.statement, verdict_text(finding.verdict), needs_words(finding.needs)
    if not finding.compared:
        yield 0, f"{claim}: {verdict}, needs {needs}"
        return
    yield 0, f"{claim}: {verdict} at {schedule_words(finding)}"
    for one in finding.compared:
        theirs = published_difference(one, finding)
        paper = "" if theirs is None else f"; paper's {theirs}"
        yield 2, f"{one.comparison.words}: {difference_number(one, finding)}, {seeds_words(one.seeds)}{paper}"
    if needs:
        yield 2, f"needs {needs}"


def summary(found: Sequence[Finding]) -> str:
    """One line that counts each claim once, by the finding that says most about it."""
    by_claim: dict[str, list[Finding]] = {}
    for finding in found:
        by_claim.setdefault(finding.claim.statement, []).append(finding)
    most = [min(some, key=_most_telling_first) for some in by_claim.values()]
    kinds = [finding.verdict.kind for finding in most if finding.schedule is not None]
    parts = [counted(kinds.count(kind), kind, PLURALS.get(kind, kind)) for kind in CLAIM_ORDER if kind in kinds]
    alone = [f"{len(most) - len(kinds)} without pairs"] if len(most) > len(kinds) else []
    return f"{counted(len(most), 'claim')}: {', '.join([*parts, *alone])}."


def _most_telling_first(finding: Finding) -> tuple[bool, bool, bool, bool, float]:
    """A sort key: decided claims first, then real runs before trials; of these, the paper's schedule or the longest."""
    decided, share = finding.verdict.kind in ("holds", "refuted"), finding.schedule.share if finding.schedule else 0.0
    return not decided, finding.schedule is None, finding.is_trial, not finding.is_beside_paper, -share


def claim_notes(records: Records, trials: bool) -> tuple[str, ...]:
    """What pairs and verdicts are, and how many records say nothing about the paper."""
    once = {record.id: record for record in records.values()}  # a run may have a second, timed record
    tried = sum(is_trial(*world_of(record)) for record in once.values())
    kind = f"{tried} on the demo's data, at the schedules smoke and demo, or at a schedule that caps updates or rows"
    if trials:
        over = f"Based on {len(once)} records." + (f" Tried (decides nothing): {kind}." if tried else "")
    else:
        over = f"Based on {len(once) - tried} of {len(once)} records." + (f" Left out: {kind}." if tried else "")
    return (
        f"{over} The runs of a pair share schedule, seed, classes and test rows.",
        f"Undecided: fewer than {ENOUGH} paired seeds, or a mean within one standard error of the bound.",
        "The summary counts each claim once: where it is decided, else at the paper's schedule, else at the longest.",
        f"{SPREAD} The paper's differences are shown only for runs at its full schedule.",
    )


# ----- a page


@dataclass(frozen=True)
class PaperComparison:
    """What a page shows to compare records with the paper."""

    tables: Mapping[str, Sequence[ResultTable]] = field(default_factory=dict)  # with a number of ours, by schedule
    values: Sequence[ResultTable] = ()  # tables that need no run
    claims: Mapping[str, ResultTable] = field(default_factory=dict)  # by schedule; "" for those without a pair
    summary: str = ""  # of the claims
    claim_notes: tuple[str, ...] = ()  # what holds for all of them
    notes: tuple[str, ...] = ()  # what is missing, and why


@dataclass(frozen=True)
class _Shown:
    """A table or figure with a recorded cell, and the schedule and seeds it is shown at."""

    table: Table
    schedule: Schedule
    seeds: Sequence[int]
    is_trial: bool


def compare_with_paper(records: Sequence[RunRecord]) -> PaperComparison:
    """Tables once per schedule, claims unless every run is a trial, and a note on what is missing."""
    known = {record.id: record for record in records}
    recorded = list(_recorded(known))
    tables: dict[str, list[ResultTable]] = {}
    for shown in recorded:
        tables.setdefault(shown.schedule.name, []).append(_shown_table(known, shown))
    if all(shown.is_trial for shown in recorded):
        return PaperComparison(tables, notes=_missing_notes(records, recorded))
    values = [paper_table(table, known, PAPER, ()) for table in TABLES.values() if not table.cells]
    found = sorted_findings(known)
    by_schedule: dict[str, list[Finding]] = {}
    for finding in found:
        by_schedule.setdefault("" if finding.schedule is None else finding.schedule.name, []).append(finding)
    claims = {name: _page_claims(some, known, name) for name, some in by_schedule.items()}
    told = summary(found), claim_notes(known, trials=False)
    return PaperComparison(tables, values, claims, *told, _missing_notes(records, recorded))


def _page_claims(found: Sequence[Finding], known: Records, schedule: str) -> ResultTable:
    """The claims of one schedule; notes that hold for all are shown once on the page."""
    made = claims_table(found, known)
    title = f"Claims at the schedule {schedule}" if schedule else "Claims without a pair of runs"
    weak = [one.comparison.words for finding in found for one in finding.compared if _is_weak(one, finding, known)]
    note = f"One side made few updates at this schedule, so the difference says little: {', '.join(weak)}."
    return replace(made.without_empty_columns(), title=title, notes=(note,) if weak else ())


def _is_weak(one: Compared, finding: Finding, known: Records) -> bool:
    """Whether one of the two runs made a fraction of the other's updates, at a shortened schedule."""
    cells, schedule = (one.comparison.better, one.comparison.worse), finding.schedule
    if schedule is None:
        return False
    return bool(hardly_trained([outcome(cell, known, schedule, one.seeds) for cell in cells]))


def hardly_trained(found: Sequence[Outcome]) -> dict[str, int]:
    """Cells of a shortened schedule whose runs made a fraction of the most updates among them, with their updates."""
    updates = {one.cell.name: one.records[0].updates for one in found if one.records and is_shortened(one.schedule)}
    most = max(updates.values(), default=0)
    return {name: count for name, count in updates.items() if count < FEW_UPDATES * most}


def _recorded(known: Records) -> Iterator[_Shown]:
    """Every table and figure with a recorded cell, once per schedule."""
    for (data, schedule), seeds in worlds(known).items():
        for table in (*TABLES.values(), *FIGURES.values()):
            here = on_demo(table) if data == "demo" else table
            if any(outcome(cell, known, schedule, seeds).records for cell in here.cells):
                yield _Shown(here, schedule, seeds, is_trial(data, schedule))


def _shown_table(known: Records, shown: _Shown) -> ResultTable:
    if shown.table.id in TABLES:
        made = paper_table(shown.table, known, shown.schedule, shown.seeds)
        few = hardly_trained(outcomes(shown.table, known, shown.schedule, shown.seeds))
        words = ", ".join(f"{name} ({count:,} updates)" for name, count in few.items())
        note = f"Not baselines, because they made few updates at this schedule: {words}."
        return replace(made, notes=(*made.notes, *([note] if few else [])))
    return figure_table(shown.table, outcome(shown.table.cells[0], known, shown.schedule, shown.seeds), shown.seeds)


def figure_table(table: Table, found: Outcome, seeds: Sequence[int]) -> ResultTable:
    """A figure of the paper as numbers."""
    notes = [figure_runs(found, seeds), *sentences(table.all_notes)]
    return curves.gate_table(f"{table.id}: {table.heading}", notes, found.records)


def figure_runs(found: Outcome, seeds: Sequence[int]) -> str:
    """Which runs a figure shows."""
    return f"Schedule {found.schedule.name}, {seed_words(found.seeds, seeds)}, n={len(found.records)}."


def _missing_notes(records: Sequence[RunRecord], recorded: Sequence[_Shown]) -> tuple[str, ...]:
    """Which parts of the paper are missing, and why."""
    if not recorded:
        only_trials = all(is_trial(*world_of(record)) for record in records)
        why = LEFT_OUT if only_trials else "left out: none of these runs fills a cell of a table."
        return (f"The paper's tables and claims are {why}",)
    there = {shown.table.id for shown in recorded}
    missing = [one.id for one in (*TABLES.values(), *FIGURES.values()) if one.cells and one.id not in there]
    absent = [f"Not recorded: {', '.join(missing)}."] if missing else []
    return *absent, *([f"The paper's claims are {LEFT_OUT}"] if all(shown.is_trial for shown in recorded) else [])
