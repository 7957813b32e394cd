"""The paper's claims and what records say of them, as rows of words."""

from collections.abc import Sequence
from statistics import mean, pstdev

from osscl.methods.base import SCHEDULES, Schedule
from osscl.paper.claims import CLAIMS, ENOUGH, Finding, Part, Quantity, Verdict, findings, is_trial, world_of
from osscl.paper.plan import Records
from osscl.paper.score import seeds_words
from osscl.report.formats import DASH, TableSection

HEADER = ("claim", "verdict", "schedule", "comparison", "difference", "seeds", "paper's")
ORDER: tuple[Verdict, ...] = ("holds", "refuted", "tried", "undecided")
UNITS: dict[Quantity, tuple[str, int]] = {
    "accuracy": ("", 1),
    "minutes": (" min", 1),
    "auroc": ("", 3),
    "precision": ("", 3),
}


def section(records: Records, trials: bool = False) -> TableSection:
    """Every claim of the paper over these records, trials among them where asked for; those that are decided first."""
    found = sorted(findings(CLAIMS, records, trials), key=lambda finding: ORDER.index(finding.verdict))
    note = (
        f"{counts(found)}; {_over(records, trials)} A pair shares schedule, seed, classes and test rows.\n"
        f"Undecided: fewer than {ENOUGH} paired seeds, or a mean less than its standard error from what decides. "
        "Differences are means over seeds, ± population std; the paper's beside."
    )
    return TableSection("Claims", HEADER, rows(found), note)


def _over(records: Records, trials: bool) -> str:
    """How many records there are, and what becomes of those that say nothing about the paper."""
    tried = sum(is_trial(*world_of(record)) for record in records.values())
    kind = f"{tried} on the demo's data, at the schedules smoke and demo, or at one that caps updates or rows"
    if trials:
        return f"over {len(records)} records." + (f" Tried: {kind}, which decide nothing." if tried else "")
    return f"over {len(records) - tried} records." + (f" Left out: {kind}." if tried else "")


def rows(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """A claim's verdict on its first line, a line for each comparison that has pairs, and what would decide it."""
    made = []
    for finding in findings:
        verdict: str = finding.verdict
        if len(finding.comparisons) > 1 and verdict == "undecided" and finding.parts:
            verdict += f" ({len(finding.parts)} of {len(finding.comparisons)} compared)"
        schedule = DASH if finding.schedule is None else _schedule_words(finding.schedule)
        schedule += " on demo data" if finding.data == "demo" else ""
        parts = [_part_words(part, finding) for part in finding.parts]
        needs = [(_needs(finding), DASH, DASH, DASH)] if finding.verdict == "undecided" else []
        for i, words in enumerate([*parts, *needs]):
            made.append((*((finding.claim.statement, verdict, schedule) if i == 0 else ("", "", "")), *words))
    return made


def _needs(finding: Finding) -> str:
    """As in: needs T4, seeds 0-2."""
    if finding.claim.unsettled:
        return finding.claim.unsettled
    tables, seeds = finding.needed
    timed = ", timed on one kind of device with no other work on it" if finding.claim.quantity == "minutes" else ""
    return f"needs {', '.join(tables)}, {seeds_words(seeds)}{timed}"


def _schedule_words(schedule: Schedule) -> str:
    """Its name; two of one's own making may share theirs."""
    return schedule.name if schedule.name in SCHEDULES else f"{schedule.name} ({schedule.share:g} of the epochs)"


def _part_words(part: Part, finding: Finding) -> tuple[str, ...]:
    unit, places = UNITS[finding.claim.quantity]
    spread = f" ± {pstdev(part.differences):.{places}f}" if len(part.differences) > 1 else ""
    ours = f"{mean(part.differences):+.{places}f}{spread}{unit} (n={len(part.seeds)})"
    theirs = None if finding.trial else part.comparison.published
    seeds = ", ".join(map(str, part.seeds))
    return part.comparison.words, ours, seeds, DASH if theirs is None else f"{theirs:+.1f}{unit}"


def counts(findings: Sequence[Finding]) -> str:
    """How many claims have each verdict, each claim once; a trial has none."""
    told: dict[str, Finding] = {}
    for finding in sorted(findings, key=_weight):
        told.setdefault(finding.claim.statement, finding)
    verdicts = [finding.verdict for finding in told.values()]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in ("holds", "refuted", "undecided"))


def _weight(finding: Finding) -> tuple[bool, bool, float]:
    """Of several schedules, one that decides tells of a claim; of those that do, the longest."""
    share = 0.0 if finding.schedule is None else finding.schedule.share
    return finding.trial, finding.verdict == "undecided", -share
