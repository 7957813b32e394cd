"""A figure as data: what plotly.js draws, and the same numbers as a table. Colours are names that the page resolves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from osscl.report.formats import DASH, TableSection

SERIES = 8  # colours; the next eight lines are dashed
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
BAND = "Line: mean over seeds; band: lowest to highest seed."
DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Key:
    """A line of a legend; its name is the legendgroup of the traces that it shows and hides."""

    name: str
    place: int  # in the order of colours, symbols and dashes
    label: str = ""

    @property
    def color(self) -> str:
        return f"@series-{self.place % SERIES + 1}"

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.place % SERIES]

    @property
    def dash(self) -> str:
        return DASHES[self.place // SERIES % len(DASHES)]


@dataclass(frozen=True)
class Figure:
    """One figure; more than one plot means a slider between them."""

    title: str
    caption: str
    plots: tuple[dict[str, Any], ...]  # plotly's {"data": [...], "layout": {...}}
    table: TableSection  # the same for those who cannot see it
    height: int = 320
    keys: tuple[Key, ...] = ()  # a legend of its own; empty where the chapter's holds
    positions: tuple[str, ...] = field(default=())  # what the slider's places are called


def plot(data: Sequence[dict[str, Any]], **layout: Any) -> dict[str, Any]:
    return {"data": list(data), "layout": layout}


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title, "standoff": 10}, "automargin": True, "fixedrange": True, **more}


def step_axis(steps: int, title: str = "after step") -> dict[str, Any]:
    return axis(title, dtick=1, range=[0.8, steps + 0.2])


def line(key: Key, x: Sequence[float], y: Sequence[float | None], hover: str) -> dict[str, Any]:
    """A line with marks. `hover` is plotly's template of what a mark says."""
    return {
        "type": "scatter", "mode": "lines+markers", "name": key.name, "legendgroup": key.name, "x": list(x),
        "y": rounded(y), "line": {"color": key.color, "dash": key.dash, "width": 2.5},
        "marker": {"symbol": key.symbol, "size": 8, "color": key.color},
        "hovertemplate": f"{hover}<extra>{key.name}</extra>",
    }  # fmt: skip


def band(key: Key, x: Sequence[float], low: Sequence[float | None], high: Sequence[float | None]) -> dict[str, Any]:
    """From the lowest to the highest seed."""
    known = [(a, b, c) for a, b, c in zip(x, low, high, strict=True) if b is not None and c is not None]
    across = [a for a, _, _ in known] + [a for a, _, _ in reversed(known)]
    around = [b for _, b, _ in known] + [c for _, _, c in reversed(known)]
    return {
        "type": "scatter", "mode": "none", "name": key.name, "legendgroup": key.name, "fill": "toself",
        "x": across, "y": rounded(around), "fillcolor": f"{key.color}/0.2", "hoverinfo": "skip",
    }  # fmt: skip


def curve(key: Key, x: Sequence[float], by_seed: Sequence[Sequence[float | None]], hover: str) -> list[dict[str, Any]]:
    """The mean over seeds, and where there are several, the band that they fill."""
    columns = list(zip(*by_seed, strict=True))
    whole = [None not in column for column in columns]
    mean, low, high = (
        [of(column) if known else None for column, known in zip(columns, whole, strict=True)]
        for of in (lambda c: sum(c) / len(c), min, max)
    )
    several = [band(key, x, low, high)] if len(by_seed) > 1 else []
    return [*several, line(key, x, mean, hover)]


def rounded(values: Sequence[float | None], digits: int = 4) -> list[float | None]:
    return [None if value is None else round(value, digits) for value in values]


def shown(value: float | None, digits: int = 1) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def mean_and_range(values: Sequence[float | None], digits: int = 1) -> str:
    """Mean, and with several seeds the lowest and highest; a dash where one is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return DASH
    mean = f"{sum(known) / len(known):.{digits}f}"
    return mean if len(known) == 1 else f"{mean} ({min(known):.{digits}f}–{max(known):.{digits}f})"
