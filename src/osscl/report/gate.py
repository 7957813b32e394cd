"""Figures of the gate: how well it tells, whom it lets in, where its thresholds lie. And of what looks known."""

from collections.abc import Callable, Sequence
from typing import Any

from osscl.report.chapters import Chapter, Entry
from osscl.report.figures import band_words
from osscl.report.formats import TableSection
from osscl.report.plots import Figure, Key, axis, curve, mean_and_range, plot, rounded, shown, step_axis
from osscl.runs.record import BINS, GateRecord, StepRecord

Reading = Callable[[StepRecord], float | None]
QUALITY: dict[str, Reading] = {
    "AUROC seen / rest": lambda step: step.gate.auroc_seen if step.gate else None,
    "AUROC main / foreign": lambda step: step.gate.auroc_related if step.gate else None,
    "precision": lambda step: step.gate.precision if step.gate else None,
    "pseudo-label accuracy": lambda step: step.gate.pseudo_accuracy if step.gate else None,
    "FPR95": lambda step: step.gate.fpr95 if step.gate else None,
}
PASSING: dict[str, Reading] = {
    "seen": lambda step: step.gate.pass_rates.get("seen") if step.gate else None,
    "unseen": lambda step: step.gate.pass_rates.get("unseen") if step.gate else None,
    "foreign": lambda step: step.gate.pass_rates.get("foreign") if step.gate else None,
}
KNOWN: dict[str, Reading] = {
    "seen": lambda step: step.known.recall if step.known else None,
    "foreign": lambda step: step.known.foreign if step.known else None,
    "AUROC seen / rest": lambda step: step.known.auroc if step.known else None,
    "FPR95": lambda step: step.known.fpr95 if step.known else None,
}
QUALITY_WORDS = (
    "AUROC of the score: classes met against the rest of U_t, and main set against foreign sets. Precision: share of Û "
    "that is of the main set. FPR95, lower is better: share of the rest that passes where 95 % of the classes met do."
)
PASSING_WORDS = "Share of the rows of classes met, of classes to come and of foreign sets that passes τ_id."
KNOWN_WORDS = (
    "What the model says, after each step, of images that no step has shown it: share of the classes met and of "
    "foreign sets that looks known; AUROC and FPR95 (lower is better) of its score, classes met against classes to "
    "come and foreign sets."
)
ROWS_WORDS = "unlabelled rows U_t"  # the gate never sees a test row
KINDS = {"seen": 0, "unseen": 4, "foreign": 1}  # place in the order of colours


def gate_over_time(chapter: Chapter, entry: Entry) -> Figure:
    return _over_time(chapter, entry, ("How well the gate tells", QUALITY_WORDS), QUALITY)


def pass_rates(chapter: Chapter, entry: Entry) -> Figure:
    return _over_time(chapter, entry, ("Whom the gate lets in", PASSING_WORDS), PASSING)


def looks_known(chapter: Chapter, entry: Entry) -> Figure:
    rows = f"{chapter.rows_words} of the main set, foreign rows that no U_t holds"
    return _over_time(chapter, entry, ("What looks known", KNOWN_WORDS), KNOWN, rows, "after step")


def _over_time(
    chapter: Chapter, entry: Entry, words: tuple[str, str], readings: dict[str, Reading],
    rows_words: str = ROWS_WORDS, when: str = "at step",
) -> Figure:  # fmt: skip
    """One line a reading, over the steps."""
    steps = len(entry.first.steps)
    keys, data, columns = [], [], []
    for i, (name, read) in enumerate(readings.items()):
        by_seed = [[read(step) for step in run.steps] for run in entry.runs]
        if all(value is None for seed in by_seed for value in seed):
            continue
        keys.append(Key(name, KINDS.get(name, i), name))
        data += curve(keys[-1], range(1, steps + 1), by_seed, "step %{x}: %{y:.3f}")
        columns.append([mean_and_range(column, 3) for column in zip(*by_seed, strict=True)])
    rows = [(str(t + 1), *(column[t] for column in columns)) for t in range(steps)]
    return Figure(
        words[0],
        f"{words[1]} {entry.label}; {chapter.conditions}; {rows_words}.{band_words([entry])}",
        (plot(data, xaxis=step_axis(steps, when), yaxis=axis("share", range=[-0.03, 1.03])),),
        TableSection(words[0], ("step", *(key.name for key in keys)), rows),
        keys=tuple(keys),
    )


def score_histograms(chapter: Chapter, entry: Entry) -> Figure:
    """Scores by true kind, a plot a step, with both thresholds; of the lowest seed."""
    run = entry.first
    gates = [(t, step.gate) for t, step in enumerate(run.steps) if step.gate is not None]
    low, high = _range_of_bins([gate for _, gate in gates])
    plots = tuple(_histogram(gate, low, high) for _, gate in gates)
    columns = ("step", "τ_id", "τ_pl", "rows in Û", "rows in T̂", "unlabelled rows")
    rows = [
        (str(t + 1), shown(gate.threshold, 3), shown(gate.pseudo_threshold, 3), str(gate.passed),
         str(gate.pseudo_labeled), str(run.steps[t].unlabeled))
        for t, gate in gates
    ]  # fmt: skip
    return Figure(
        "Scores and thresholds",
        "Score S(x): largest cosine to a prototype. Above τ_id a row enters Û; above τ_pl, if it looks like a past "
        f"class, also T̂. {entry.name}, seed {run.spec.seed} (n=1); {chapter.conditions}; {ROWS_WORDS}.",
        plots,
        TableSection("Thresholds and sizes", columns, rows),
        keys=tuple(Key(kind, place, kind) for kind, place in KINDS.items()),
        positions=tuple(f"step {t + 1} of {len(run.steps)}" for t, _ in gates),
    )


def _range_of_bins(gates: Sequence[GateRecord]) -> tuple[int, int]:
    """The bins that hold more than a hair of a kind at any step, and one more on each side."""
    counts = [kind for gate in gates for kind in gate.histograms.values()]
    used = [i for kind in counts for i, count in enumerate(kind) if count > 0.001 * sum(kind)]
    return (max(0, min(used) - 1), min(BINS, max(used) + 2)) if used else (0, BINS)


def _histogram(gate: GateRecord, low: int, high: int) -> dict[str, Any]:
    width = 2 / BINS
    centres = [round(-1 + (i + 0.5) * width, 4) for i in range(low, high)]
    data = []
    for kind, place in KINDS.items():
        counts = gate.histograms.get(kind, ())
        total = sum(counts)
        if total:
            data.append(_steps_of(Key(kind, place), centres, [count / total for count in counts[low:high]], total))
    ends = sorted([centres[0], centres[-1], gate.threshold, gate.pseudo_threshold])
    middle = (ends[0] + ends[-1]) / 2
    marks = [_threshold(gate.threshold, "τ_id", 1, middle), _threshold(gate.pseudo_threshold, "τ_pl", 0, middle)]
    return plot(
        data,
        shapes=[shape for shape, _ in marks],
        annotations=[words for _, words in marks],
        xaxis=axis("score S(x)", range=[ends[0] - width / 2, ends[-1] + width / 2]),
        yaxis=axis("share of its kind", rangemode="tozero"),
        margin={"t": 44},
    )


def _steps_of(key: Key, x: Sequence[float], y: Sequence[float], total: int) -> dict[str, Any]:
    dash = {"seen": "solid", "unseen": "dash", "foreign": "dot"}[key.name]
    return {
        "type": "scatter", "mode": "lines", "name": key.name, "legendgroup": key.name, "x": list(x), "y": rounded(y),
        "line": {"shape": "hvh", "color": key.color, "width": 2, "dash": dash}, "fill": "tozeroy",
        "fillcolor": f"{key.color}/0.16",
        "hovertemplate": f"S = %{{x:.2f}}: %{{y:.1%}} of {total} rows<extra>{key.name}</extra>",
    }  # fmt: skip


def _threshold(value: float, name: str, row: int, middle: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """A line over the whole height, its name in a row of its own above it, on the side that has room."""
    shape = {
        "type": "line", "xref": "x", "yref": "paper", "x0": value, "x1": value, "y0": 0, "y1": 1,
        "line": {"color": "@ink", "width": 1.5, "dash": "dash" if name == "τ_id" else "solid"},
    }  # fmt: skip
    words = {
        "xref": "x", "yref": "paper", "x": value, "y": 1, "yanchor": "bottom", "yshift": 16 * row,
        "xanchor": "left" if value < middle else "right", "showarrow": False,
        "text": f"{name.replace('_', '<sub>')}</sub> = {value:.3f}", "font": {"size": 12},
    }  # fmt: skip
    return shape, words
