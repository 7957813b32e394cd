"""The paper's claims and what records say of them, as rows of words."""

from collections.abc import Sequence
from statistics import mean, pstdev

from osscl.experiments.claims import ENOUGH, Finding, Part, Quantity, findings
from osscl.experiments.plan import Records
from osscl.experiments.stated import CLAIMS
from osscl.report.formats import DASH, TableSection

HEADER = ("claim", "verdict", "schedule", "comparison", "difference", "seeds", "paper's")
UNITS: dict[Quantity, tuple[str, int]] = {
    "accuracy": ("", 1),
    "minutes": (" min", 1),
    "auroc": ("", 3),
    "precision": ("", 3),
}


def section(records: Records) -> TableSection:
    """Every claim of the paper over these records."""
    found = findings(CLAIMS, records)
    note = (
        f"{counts(found)}; over {len(records)} records. A pair shares schedule, seed, classes and test rows.\n"
        f"Undecided: fewer than {ENOUGH} paired seeds. Differences are means over seeds, ± std; the paper's beside."
    )
    return TableSection("Claims", HEADER, rows(found), note)


def rows(findings: Sequence[Finding]) -> list[tuple[str, ...]]:
    """A claim's verdict on its first line, then a line for each comparison that has pairs."""
    made = []
    for finding in findings:
        verdict: str = finding.verdict
        if finding.comparisons > 1 and verdict == "undecided" and finding.parts:
            verdict += f" ({len(finding.parts)} of {finding.comparisons} compared)"
        schedule = DASH if finding.schedule is None else finding.schedule.name
        schedule += " on demo data" if finding.data == "demo" else ""
        parts = [_part_words(part, finding) for part in finding.parts] or [(DASH,) * 4]
        for i, words in enumerate(parts):
            made.append((*((finding.claim.statement, verdict, schedule) if i == 0 else ("", "", "")), *words))
    return made


def _part_words(part: Part, finding: Finding) -> tuple[str, ...]:
    unit, places = UNITS[finding.claim.quantity]
    spread = f" ± {pstdev(part.differences):.{places}f}" if len(part.differences) > 1 else ""
    ours = f"{mean(part.differences):+.{places}f}{spread}{unit} (n={len(part.seeds)})"
    theirs = part.comparison.published if finding.data == "paper" else None
    seeds = ", ".join(map(str, part.seeds))
    return part.comparison.words, ours, seeds, DASH if theirs is None else f"{theirs:+.1f}{unit}"


def counts(findings: Sequence[Finding]) -> str:
    verdicts = [finding.verdict for finding in findings]
    return ", ".join(f"{verdicts.count(word)} {word}" for word in ("holds", "refuted", "undecided"))
