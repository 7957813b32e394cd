"""Figures of accuracy: records in, figures out."""

from collections.abc import Sequence
from typing import Any

from osscl.metrics import drops
from osscl.report.chapters import Chapter, Entry
from osscl.report.formats import TableSection
from osscl.report.plots import BAND, Figure, Key, axis, curve, mean_and_range, plot, rounded, shown, step_axis

MOST_NUMBERS = 12  # rows and columns of a heat map that still has numbers in its cells
HEAT = [[i / 4, f"@heat-{i}"] for i in range(5)]


def keys_of(chapter: Chapter) -> tuple[Key, ...]:
    """The chapter's legend: a colour a method."""
    return tuple(Key(entry.label, i, entry.label) for i, entry in enumerate(chapter.entries))


def band_words(entries: Sequence[Entry]) -> str:
    """What a band is, where one is drawn."""
    return f" {BAND}" if any(len(entry.runs) > 1 for entry in entries) else ""


def accuracy_curves(chapter: Chapter) -> Figure:
    """Accuracy over the classes met so far, after each step, for every method."""
    steps = len(chapter.first.overall)
    x = list(range(1, steps + 1))
    data: list[dict[str, Any]] = []
    for key, entry in zip(keys_of(chapter), chapter.entries, strict=True):
        data += curve(key, x, [run.overall for run in entry.runs], "step %{x}: %{y:.1f} %")
    paper = ""
    if chapter.paper:
        data.append(_paper_mark(steps, *chapter.paper))
        paper = f" Hollow diamond: the paper's URSL, {chapter.paper[0]} ± {chapter.paper[1]} (paper schedule, n=3)."
    columns = ("after step", *(entry.label for entry in chapter.entries))
    rows = [
        (str(t + 1), *(mean_and_range([run.overall[t] for run in entry.runs]) for entry in chapter.entries))
        for t in range(steps)
    ]
    return Figure(
        "Accuracy after each step",
        f"Over all classes met so far, in %. {chapter.words}.{band_words(chapter.entries)}{paper}",
        (plot(data, xaxis=step_axis(steps), yaxis=axis("accuracy, %")),),
        TableSection("Accuracy after each step, %", columns, rows),
        height=360,
    )


def _paper_mark(steps: int, mean: float, std: float) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": "the paper's URSL", "x": [steps], "y": [mean],
        "error_y": {"array": [std], "color": "@ink", "thickness": 1.5, "width": 5},
        "marker": {"symbol": "diamond-open", "size": 13, "color": "@ink", "line": {"width": 2}},
        "hovertemplate": f"{mean} ± {std} % (paper schedule, n=3)<extra>the paper's URSL</extra>",
    }  # fmt: skip


def forgetting_curves(chapter: Chapter) -> Figure | None:
    """Which classes were forgotten, and how much; None where there was one step and nothing to forget."""
    old = len(chapter.first.accuracy) - 1
    if old < 1:
        return None
    data: list[dict[str, Any]] = []
    lost = [[drops(run.accuracy) for run in entry.runs] for entry in chapter.entries]
    for key, losses in zip(keys_of(chapter), lost, strict=True):
        data += curve(key, range(1, old + 1), losses, "classes of step %{x}: %{y:.1f} points")
    columns = ("classes of step", *(entry.label for entry in chapter.entries))
    rows = [(str(k + 1), *(mean_and_range([run[k] for run in runs]) for runs in lost)) for k in range(old)]
    rows.append(("mean", *(mean_and_range([run.forgetting for run in entry.runs]) for entry in chapter.entries)))
    return Figure(
        "Forgetting",
        "Points of accuracy lost by the end, from the best that a step's classes had before the last step. "
        f"{chapter.words}.{band_words(chapter.entries)}",
        (plot(data, xaxis=step_axis(old, "classes of step"), yaxis=axis("points lost", zeroline=True)),),
        TableSection("Forgetting, points", columns, rows),
        height=360,
    )


def accuracy_matrix(chapter: Chapter, entry: Entry) -> Figure:
    """How well each step's classes are known after each later step."""
    steps = len(entry.first.accuracy)
    means = [
        [sum(run.accuracy[t][k] for run in entry.runs) / len(entry.runs) if k <= t else None for k in range(steps)]
        for t in range(steps)
    ]
    places = [str(t + 1) for t in range(steps)]
    trace = {
        **heat(means, places, steps, "%{z:.0f}", 100),
        "hovertemplate": "after step %{y}, classes of step %{x}: %{z:.1f} %<extra></extra>",
    }
    rows = [(str(t + 1), *(shown(value) for value in means[t])) for t in range(steps)]
    return Figure(
        "Accuracy matrix",
        f"After step (row), accuracy in % on the classes of step (column). {entry.label}; {chapter.words}.",
        (plot([trace], xaxis=category("classes of step", side="top"), yaxis=category("after step", turned=True)),),
        TableSection("Accuracy after step (row) on the classes of step (column), %", ("after step", *places), rows),
        height=400,
    )


def heat(z: Any, names: Sequence[str], size: int, text: str, top: float) -> dict[str, Any]:
    """A heat map of a square; a small one has its numbers in it."""
    numbers = {"texttemplate": text, "textfont": {"size": 11}} if size <= MOST_NUMBERS else {}
    small = size <= MOST_NUMBERS
    return {
        "type": "heatmap", "z": [rounded(row, 2) for row in z], "x": list(names), "y": list(names),
        "zmin": 0, "zmax": top,
        "colorscale": HEAT, "showscale": not small, "xgap": 2 * small, "ygap": 2 * small, "hoverongaps": False,
        "colorbar": {"thickness": 10, "outlinewidth": 0, "ticksuffix": " %", "tickfont": {"size": 11}}, **numbers,
    }  # fmt: skip


def category(title: str, turned: bool = False, **more: Any) -> dict[str, Any]:
    direction = {"autorange": "reversed"} if turned else {}
    return axis(title, type="category", showgrid=False, zeroline=False, ticks="", **direction, **more)
