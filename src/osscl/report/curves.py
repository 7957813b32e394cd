"""The gate over time, from records: as rows of words, and as a drawing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean, pstdev

from osscl.report.formats import DASH, TableSection
from osscl.report.paper import sentences
from osscl.report.plots import BAND, Figure, Key, axis, curve, plot
from osscl.runs.record import GateRecord, RunRecord

HEADER = ("seen classes", "AUROC, related against foreign", "precision", "n")
WIDTH, HEIGHT, LEFT, TOP = 300, 200, 50, 70  # of a panel, and of what is left for words


@dataclass(frozen=True)
class Point:
    """One step of the stream, over the seeds that were recorded."""

    classes: int  # seen so far
    values: tuple[float, ...]  # one a seed

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def std(self) -> float:
        return pstdev(self.values) if len(self.values) > 1 else 0.0


def auroc(gate: GateRecord) -> float | None:
    return gate.auroc_related


def precision(gate: GateRecord) -> float | None:
    return gate.precision


def over_time(records: Sequence[RunRecord], value: Callable[[GateRecord], float | None]) -> list[Point]:
    """A value of the gate by the number of classes seen."""
    points = []
    for t in range(max((len(record.steps) for record in records), default=0)):
        classes = sum(len(step.new_classes) for step in records[0].steps[: t + 1])
        gates = [record.steps[t].gate for record in records]
        values = [value(gate) for gate in gates if gate is not None]
        points.append(Point(classes, tuple(one for one in values if one is not None)))
    return points


def section(title: str, said: str, notes: Sequence[str], records: Sequence[RunRecord]) -> TableSection:
    """Both curves as numbers; `said` names schedule and seeds."""
    about = f"Means over seeds, ± population std; {said}. Precision: share of U-hat that is of the main set."
    return TableSection(title, HEADER, rows(records) or [(DASH, DASH, DASH, "0")], sentences([about, *notes]))


def rows(records: Sequence[RunRecord]) -> list[tuple[str, ...]]:
    both = zip(over_time(records, auroc), over_time(records, precision), strict=True)
    return [(str(one.classes), words(one), words(other), counts(one, other)) for one, other in both]


def counts(one: Point, other: Point) -> str:
    """How many seeds are behind both numbers, or behind each."""
    here, there = len(one.values), len(other.values)
    return str(here) if here == there else f"{here}, {there}"


def words(point: Point) -> str:
    if point.mean is None:
        return DASH
    return f"{point.mean:.3f}" + (f" ± {point.std:.3f}" if len(point.values) > 1 else "")


def figure(title: str, said: str, notes: Sequence[str], records: Sequence[RunRecord]) -> Figure:
    """Both curves in one figure of a page."""
    told = section(title, said, notes, records)
    classes = [point.classes for point in over_time(records, auroc)]
    keys = (Key(HEADER[1], 0), Key(HEADER[2], 1))
    data = []
    for key, value in zip(keys, (auroc, precision), strict=True):
        by_seed = [[None if step.gate is None else value(step.gate) for step in run.steps] for run in records]
        data += curve(key, classes, by_seed, f"%{{x}} classes: {key.name} %{{y:.3f}}")
    drawn = plot(data, xaxis=axis("classes seen", tickvals=classes), yaxis=axis("", range=[0, 1.02]))
    caption = f"{told.note} {BAND}" if len(records) > 1 else told.note
    return Figure(title, caption, (drawn,), told, height=340, keys=keys)


def svg(title: str, said: str, records: Sequence[RunRecord]) -> str:
    """Both curves side by side; a band is one std over the seeds to either side."""
    panels = [
        _panel("AUROC, related against foreign", over_time(records, auroc), 0),
        _panel("precision", over_time(records, precision), WIDTH + 2 * LEFT),
    ]
    size = f'width="{2 * (WIDTH + 2 * LEFT)}" height="{HEIGHT + TOP + 50}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    lines = [f'<text x="{LEFT}" y="{y}">{escape(line)}</text>' for y, line in ((18, title), (34, said))]
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *lines, *panels, "</svg>"]) + "\n"


def _panel(name: str, points: Sequence[Point], shift: int) -> str:
    told = [point for point in points if point.mean is not None]
    most = max((point.classes for point in points), default=1)

    def at(classes: int, value: float) -> str:
        inside = min(1.0, max(0.0, value))
        return f"{shift + LEFT + WIDTH * classes / most:.1f},{TOP + HEIGHT * (1 - inside):.1f}"

    upper = [at(p.classes, (p.mean or 0) + p.std) for p in told]
    lower = [at(p.classes, (p.mean or 0) - p.std) for p in reversed(told)]
    line = [at(p.classes, p.mean or 0) for p in told]
    parts = [_axes(name, points, shift, most)]
    parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="#1f77b4" opacity="0.2"/>')
    parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="#1f77b4" stroke-width="2"/>')
    for place in line:
        x, y = place.split(",")
        parts.append(f'<circle cx="{x}" cy="{y}" r="3" fill="#1f77b4"/>')
    return "\n".join(parts)


def _axes(name: str, points: Sequence[Point], shift: int, most: int) -> str:
    """A frame from 0 to 1, a line each quarter, the number of classes below."""
    left, bottom = shift + LEFT, TOP + HEIGHT
    parts = [f'<rect x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>']
    for quarter in range(5):
        y = bottom - HEIGHT * quarter / 4
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{quarter / 4:g}</text>')
    for point in points:
        x = left + WIDTH * point.classes / most
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{point.classes}</text>')
    middle = left + WIDTH / 2
    parts.append(f'<text x="{middle}" y="{bottom + 34}" text-anchor="middle">classes seen</text>')
    parts.append(f'<text x="{middle}" y="{TOP - 8}" text-anchor="middle">{escape(name)}</text>')
    return "\n".join(parts)
