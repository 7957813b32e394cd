"""Figures of the final model's mistakes: which class was taken for which."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from osscl.report.chapters import Chapter, Entry
from osscl.report.figures import MOST_NUMBERS, category, heat
from osscl.report.formats import TableSection
from osscl.report.plots import Figure, plot
from osscl.runs.record import RunRecord

Counts = Sequence[Sequence[int]]


def confusion(chapter: Chapter, entry: Entry, class_names: Sequence[str] | None) -> Figure:
    """Of the lowest seed, classes in the order they were met; many classes also by the steps that they came in."""
    run = entry.first
    names = [class_names[c] if class_names else f"class {c}" for c in run.class_order]
    plots: tuple[dict[str, Any], ...] = (_plot(run.confusion, names),)
    positions: tuple[str, ...] = ()
    words = "; numbers: % of the row"
    if len(names) > MOST_NUMBERS:
        steps = [f"step {t + 1}" for t in range(len(run.steps))]
        plots = (*plots, _plot(by_step(run), steps))
        positions, words = ("by class", "by step"), " in %; by step: the classes of a step as one"
    return Figure(
        "Confusion of the final model",
        f"Truth (row) and prediction (column), classes in the order they were met; colour: share of the row{words}. "
        f"{entry.name}, seed {run.spec.seed} (n=1), {run.evaluated_rows:,} {chapter.rows_words}, "
        f"schedule {run.spec.schedule.name}.",
        plots,
        _table(run, names),
        height=400,
        positions=positions,
    )


def by_step(run: RunRecord) -> list[list[int]]:
    """The confusion with the classes of each step added up."""
    ends = list(accumulate(len(step.new_classes) for step in run.steps))
    spans = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    return [[sum(run.confusion[i][j] for i in rows for j in columns) for columns in spans] for rows in spans]


def _plot(counts: Counts, names: Sequence[str]) -> dict[str, Any]:
    k = len(names)
    shares = [[100 * count / max(1, sum(row)) for count in row] for row in counts]
    top = 100 if k <= MOST_NUMBERS else 50  # of many classes most cells are nearly empty
    trace = {
        **heat(
            [[round(share, 1) if k <= MOST_NUMBERS else round(share) for share in row] for row in shares],
            names,
            k,
            "%{text}",
            top,
        ),
        "hovertemplate": "%{y} taken for %{x}: %{z} % of its rows<extra></extra>",
    }
    if k <= MOST_NUMBERS:
        trace["text"] = [[f"{share:.0f}" if share >= 0.5 else "" for share in row] for row in shares]
    turned = -45 if max(map(len, names)) > 2 else 0
    few = k <= 30
    return plot(
        [trace],
        xaxis=category("prediction", showticklabels=few, tickangle=turned),
        yaxis=category("truth", turned=True, showticklabels=few),
    )


def _table(run: RunRecord, names: Sequence[str]) -> TableSection:
    """Small ones whole; of large ones, what each class is taken for most often."""
    if len(names) <= MOST_NUMBERS:
        rows = [(name, *map(str, counts)) for name, counts in zip(names, run.confusion, strict=True)]
        return TableSection("Rows of each class by prediction", ("truth", *names), rows)
    rows = []
    for i, (name, counts) in enumerate(zip(names, run.confusion, strict=True)):
        wrong = max((j for j in range(len(names)) if j != i), key=lambda j: counts[j])
        rows.append((name, str(sum(counts)), str(counts[i]), f"{names[wrong]} ({counts[wrong]})"))
    return TableSection("Rows of each class by prediction", ("truth", "rows", "right", "most often taken for"), rows)
