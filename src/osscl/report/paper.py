"""Tables of the paper, ours beside it, as tables of words."""

from collections.abc import Sequence

from osscl.methods.base import PAPER, Schedule
from osscl.paper.cells import Measure, Published, Table
from osscl.paper.plan import Records
from osscl.paper.score import Outcome, other_schedules, outcomes, seeds_told
from osscl.paper.tables import COMPARED, chosen_rows, search_rows
from osscl.report.formats import DASH, TableSection

HEADER = ("row", "column", "ours", "seeds", "paper", "verdict")
RAW_HEADER = (
    "table", "row", "column", "measure", "schedule", "mean", "std", "n", "seeds", "paper_mean", "paper_std", "verdict"
)  # fmt: skip


def section(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> TableSection:
    """A table as it is read: one row a cell, ours beside the paper's; a verdict at the paper's schedule alone."""
    title, found = f"{table.id}: {table.heading}", outcomes(table, records, schedule, seeds)
    if table.id == "T7":
        return TableSection(
            title, ("field", "values"), search_rows(), sentences(["Run by osscl tune.", *table.all_notes])
        )
    if table.id == "T8":
        return TableSection(title, ("field", "paper", *COMPARED), chosen_rows(), sentences(table.all_notes))
    others = other_schedules(table, records, schedule, seeds)
    counts = ", ".join(f"{count} at {name} (--schedule {name})" for name, count in others.items())
    said = [f"Recorded at other schedules and not mixed in: {counts}."] if counts else []
    note = sentences([caption(found, schedule, seeds), *said, *table.all_notes])
    shown = len(HEADER) if schedule == PAPER else HEADER.index("verdict")
    return TableSection(title, HEADER[:shown], [row(one)[:shown] for one in found], note)


def raw_section(table: Table, records: Records, schedule: Schedule, seeds: Sequence[int]) -> TableSection:
    """A table as a program reads it: a number a field, empty where there is none."""
    found = outcomes(table, records, schedule, seeds)
    return TableSection(table.id, RAW_HEADER, [raw_row(table.id, one) for one in found])


def row(one: Outcome) -> tuple[str, ...]:
    theirs = published_words(one.cell.published, one.cell.measure)
    seeds = ", ".join(map(str, one.seeds)) or DASH
    return one.cell.row, one.cell.column, ours_words(one), seeds, theirs, one.verdict or DASH


def raw_row(table: str, one: Outcome) -> tuple[str, ...]:
    theirs = one.cell.published or Published(float("nan"))
    numbers = [_raw(one.mean), _raw(one.std), str(len(one.values)), " ".join(map(str, one.seeds))]
    published = [_raw(theirs.mean), _raw(theirs.std)]
    names = table, one.cell.row, one.cell.column, one.cell.measure, one.schedule.name
    return (*names, *numbers, *published, one.verdict or "")


def ours_words(one: Outcome) -> str:
    """Mean and std over the seeds, and how many those are."""
    if one.mean is None:
        return DASH
    places = 1 if one.cell.measure == "accuracy" or one.mean >= 0.1 else 3  # three updates are no minute
    spread = f" ± {one.std:.{places}f}" if one.std is not None else ""
    return f"{one.mean:.{places}f}{spread}{_unit(one.cell.measure)} (n={len(one.values)})"


def published_words(published: Published | None, measure: Measure) -> str:
    if published is None:
        return DASH
    if published.std is None:
        return f"{published.mean:g}{_unit(measure)}"
    return " ± ".join(f"{x:.1f}" if round(x, 1) == x else f"{x:g}" for x in (published.mean, published.std))


def caption(found: Sequence[Outcome], schedule: Schedule, seeds: Sequence[int]) -> str:
    """What the numbers are: measure, schedule, seeds, devices."""
    devices = sorted({record.made_by.device for one in found for record in one.records})
    made = f"; made on {', '.join(devices)}" if devices else ""
    spread = any(one.cell.published is not None and one.cell.published.std is not None for one in found)
    theirs = " The paper's: mean ± std of 3 runs." if spread else ""
    timed = {one.cell.measure != "accuracy" for one in found}
    what = "Minutes" if timed == {True} else f"Final accuracy in %{' (min: minutes)' if True in timed else ''}"
    told = seeds_told((seed for one in found for seed in one.seeds), seeds)
    words = f"schedule {schedule.name}, {told}, mean ± population std over seeds"
    untimed = (
        " Not timed: other work went on on the device; without --no-run such a run is made and timed anew."
        if any(one.untimed for one in found)
        else ""
    )
    return f"{what}; {words}{made}.{theirs}{untimed}"


def sentences(notes: Sequence[str]) -> str:
    """One sentence a line."""
    return "\n".join(note if note.endswith(".") else f"{note[0].upper()}{note[1:]}." for note in notes)


def _unit(measure: Measure) -> str:
    return "" if measure == "accuracy" else " min"


def _raw(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.4f}".rstrip("0").rstrip(".")
