"""Tables of the paper, ours beside it, as rows of words."""

from collections.abc import Sequence

from osscl.experiments.cells import Measure, Published
from osscl.experiments.outcomes import Outcome
from osscl.report.tables import DASH

HEADER = ("row", "column", "ours", "seeds", "paper", "verdict")
RAW_HEADER = (
    "table", "row", "column", "measure", "schedule", "mean", "std", "n", "seeds", "paper_mean", "paper_std", "verdict"
)  # fmt: skip


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row a cell, as it is read."""
    return [
        (
            one.cell.row, one.cell.column, ours_words(one), seeds_words(one.seeds),
            published_words(one.cell.published, one.cell.measure), one.verdict or DASH,
        )
        for one in outcomes
    ]  # fmt: skip


def raw_rows(table: str, outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """One row a cell, as a program reads it: a number a field, empty where there is none."""
    return [
        (
            table, one.cell.row, one.cell.column, one.cell.measure, one.schedule.name, _raw(one.mean), _raw(one.std),
            str(len(one.values)), " ".join(map(str, one.seeds)),
            _raw(one.cell.published.mean if one.cell.published else None),
            _raw(one.cell.published.std if one.cell.published else None), one.verdict or "",
        )
        for one in outcomes
    ]  # fmt: skip


def ours_words(one: Outcome) -> str:
    """Mean and std over the seeds, and how many those are."""
    if one.mean is None:
        return DASH
    spread = f" ± {one.std:.1f}" if one.std is not None else ""
    return f"{one.mean:.1f}{spread}{_unit(one.cell.measure)} (n={len(one.values)})"


def published_words(published: Published | None, measure: Measure) -> str:
    if published is None:
        return DASH
    spread = f" ± {published.std:g}" if published.std is not None else ""
    mean = f"{published.mean:g}" if measure != "accuracy" else f"{published.mean:.1f}"
    return f"{mean}{spread}{_unit(measure)}"


def seeds_words(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or DASH


def caption(outcomes: Sequence[Outcome], seeds: Sequence[int]) -> str:
    """What the numbers are: measure, schedule, seeds, devices."""
    schedule = outcomes[0].schedule.name if outcomes else DASH
    devices = sorted({record.made_by.device for one in outcomes for record in one.records})
    made = f"; made on {', '.join(devices)}" if devices else ""
    theirs = " The paper's: mean ± std of 3 runs." if any(one.cell.published for one in outcomes) else ""
    wanted = ", ".join(map(str, seeds))
    return (
        f"Final accuracy in % (min: minutes); schedule {schedule}, seeds {wanted}, mean ± std over seeds{made}.{theirs}"
    )


def _unit(measure: Measure) -> str:
    return "" if measure == "accuracy" else " min"


def _raw(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")
