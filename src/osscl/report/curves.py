"""The gate over time, from records: as a table of numbers, and as a drawing."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import mean

from osscl.metrics import sample_std
from osscl.report.formats import SPREAD, Column, Number, ResultTable, Row
from osscl.runs.record import RunRecord

AUROC, PRECISION = "AUROC, related against foreign", "precision, main set"
WIDTH, HEIGHT, LEFT, TOP = 300, 200, 50, 70  # of a panel, and the margins for text


@dataclass(frozen=True)
class Point:
    """One step of the stream, over the recorded seeds."""

    classes: int  # seen so far
    values: tuple[float, ...]  # one per seed

    @property
    def number(self) -> Number | None:
        """Their mean and spread."""
        return Number(mean(self.values), sample_std(self.values), len(self.values), digits=3) if self.values else None


def gate_points(records: Sequence[RunRecord], field: str) -> list[Point]:
    """A field of the gate by the number of classes seen."""
    points = []
    for t in range(max((len(record.steps) for record in records), default=0)):
        classes = sum(len(step.new_classes) for step in records[0].steps[: t + 1])
        gates = [record.steps[t].gate for record in records]
        values = [getattr(gate, field) for gate in gates if gate is not None]
        points.append(Point(classes, tuple(one for one in values if one is not None)))
    return points


def gate_table(title: str, notes: Sequence[str], records: Sequence[RunRecord]) -> ResultTable:
    """Both curves as numbers."""
    auroc, precision = ((name, f"{name}_std", f"{name}_n") for name in ("auroc", "precision"))
    columns = Column("seen classes", "number"), Column(AUROC, "mean", auroc), Column(PRECISION, "mean", precision)
    both = zip(gate_points(records, "auroc_related"), gate_points(records, "precision"), strict=True)
    rows: list[Row] = [(one.classes, one.number, other.number) for one, other in both]
    about = f"Means over seeds; precision is the share of U-hat that is of the main set. {SPREAD}"
    return ResultTable(title, columns, rows or [(None, None, None)], (about, *notes))


def gate_svg(title: str, about: str, records: Sequence[RunRecord]) -> str:
    """Both curves side by side; a band is one standard deviation over the seeds to either side."""
    panels = [
        _panel(AUROC, gate_points(records, "auroc_related"), 0),
        _panel(PRECISION, gate_points(records, "precision"), WIDTH + 2 * LEFT),
    ]
    size = f'width="{2 * (WIDTH + 2 * LEFT)}" height="{HEIGHT + TOP + 50}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" role="img">'
    ground = '<rect width="100%" height="100%" fill="white"/>'
    lines = [f'<text x="{LEFT}" y="{y}">{escape(line)}</text>' for y, line in ((18, title), (34, about))]
    return "\n".join([head, f"<title>{escape(title)}</title>", ground, *lines, *panels, "</svg>"]) + "\n"


def _panel(name: str, points: Sequence[Point], shift: int) -> str:
    numbers = ((point.classes, point.number) for point in points)
    known = [(x, number.value, number.spread or 0.0) for x, number in numbers if number is not None]
    most = max((point.classes for point in points), default=1)

    def at(classes: int, value: float) -> tuple[float, float]:
        inside = min(1.0, max(0.0, value))
        return shift + LEFT + WIDTH * classes / most, TOP + HEIGHT * (1 - inside)

    def path(places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)

    band = [at(x, y + std) for x, y, std in known] + [at(x, y - std) for x, y, std in reversed(known)]
    line = [at(x, y) for x, y, _ in known]
    return "\n".join(
        [
            _axes(name, points, shift, most),
            f'<polygon points="{path(band)}" fill="#1f77b4" opacity="0.2"/>',
            f'<polyline points="{path(line)}" fill="none" stroke="#1f77b4" stroke-width="2"/>',
            *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f77b4"/>' for x, y in line),
        ]
    )


def _axes(name: str, points: Sequence[Point], shift: int, most: int) -> str:
    """A frame from 0 to 1, a line at each quarter, the number of classes below."""
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
