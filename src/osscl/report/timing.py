"""Where the time went, phase by phase."""

from collections.abc import Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

from osscl.report.chapters import Chapter, Entry
from osscl.report.formats import DASH, TableSection
from osscl.report.plots import Figure, Key, axis, plot, rounded, shown

BAR = 20  # pixels
LETTERS = 40  # of a line above a bar: what a phone has room for
Seconds = dict[str, float]  # by phase


def phase_seconds(entry: Entry) -> Seconds:
    """Mean over the runs of the seconds of each phase, over all steps."""
    total: Seconds = {}
    for run in entry.runs:
        for step in run.steps:
            for phase in step.phases:
                total[phase.name] = total.get(phase.name, 0.0) + phase.seconds / len(entry.runs)
    return total


def time_by_phase(chapter: Chapter) -> Figure | None:
    """What came from the cache counts as it cost when it was made; runs whose seconds are no measure are left out; None
    where no phase was timed."""
    timed = [(entry, tuple(run for run in entry.runs if run.made_by.timed)) for entry in chapter.entries]
    entries = [replace(entry, runs=runs) for entry, runs in timed if runs]
    totals = [phase_seconds(entry) for entry in entries]
    keys = tuple(Key(name, i) for i, name in enumerate(dict.fromkeys(name for total in totals for name in total)))
    if not keys:
        return None
    unit, size = ("minutes", 60.0) if max(sum(total.values()) for total in totals) > 120 else ("seconds", 1.0)
    scaled = [{name: seconds / size for name, seconds in total.items()} for total in totals]
    labels = [wrap(entry.label, LETTERS) for entry in entries]
    room = 2 * BAR + 16 * max(map(len, labels))  # pixels of a bar and what stands above it
    devices = ", ".join(dict.fromkeys(run.made_by.device for entry in entries for run in entry.runs))
    return Figure(
        "Time by phase",
        f"{unit.capitalize()} over all steps, mean over seeds, on {devices}; a reference network from the cache counts "
        f"as it cost when it was made. {chapter.words}.{untimed_words(chapter)}",
        (_plot(keys, scaled, labels, unit, BAR / room),),
        _table(entries, keys, scaled, unit),
        height=90 + room * len(totals),
        keys=keys,
    )


def untimed_words(chapter: Chapter) -> str:
    """How many runs have no bar, and why; empty where all have one."""
    runs = [run for entry in chapter.entries for run in entry.runs]
    shared = sum(run.made_by.shared_device for run in runs)
    moved = sum(not run.made_by.timed for run in runs) - shared
    reasons = {"with other work on the device": shared, "begun on another device": moved}
    told = [f"{count} {why}" for why, count in reasons.items() if count]
    return f" Not timed: {' and '.join(told)}, of {len(runs)} run{'s' * (len(runs) > 1)}." if told else ""


def _plot(
    keys: Sequence[Key], totals: Sequence[Seconds], labels: Sequence[list[str]], unit: str, bar: float
) -> dict[str, Any]:
    data = [
        {
            "type": "bar", "orientation": "h", "name": key.name, "legendgroup": key.name, "width": bar,
            "x": rounded([total.get(key.name, 0.0) for total in totals], 3), "y": list(range(len(totals))),
            "marker": {"color": key.color}, "customdata": [" ".join(lines) for lines in labels],
            "hovertemplate": f"{key.name}: %{{x:.2f}} {unit}<extra>%{{customdata}}</extra>",
        }
        for key in keys
    ]  # fmt: skip
    return plot(
        data,
        barmode="stack",
        annotations=[_above_bar(i, lines, bar) for i, lines in enumerate(labels)],
        xaxis=axis(unit, rangemode="tozero"),
        yaxis=axis("", showticklabels=False, showgrid=False, zeroline=False, range=[len(totals) - 0.6, -0.75]),
    )


def _above_bar(place: int, lines: Sequence[str], bar: float) -> dict[str, Any]:
    return {
        "xref": "paper", "x": 0, "xanchor": "left", "y": place - bar / 2, "yanchor": "bottom", "align": "left",
        "text": "<br>".join(lines), "showarrow": False, "font": {"size": 12},
    }  # fmt: skip


def _table(entries: Sequence[Entry], keys: Sequence[Key], totals: Sequence[Seconds], unit: str) -> TableSection:
    rows = [
        (entry.label, *(shown(total[key.name], 2) if key.name in total else DASH for key in keys),
         entry.first.made_by.device)
        for entry, total in zip(entries, totals, strict=True)
    ]  # fmt: skip
    return TableSection(f"Time by phase, {unit}", ("method", *(key.name for key in keys), "device"), rows)
