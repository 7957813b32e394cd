"""Rows of words as Markdown, CSV or LaTeX."""

import csv
import io
from collections.abc import Sequence

from osscl.errors import unknown

FORMATS = ("text", "markdown", "csv", "latex")
LATEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "|": r"\textbar{}",
         "±": r"$\pm$", "—": "---", "→": r"$\to$", ">": r"\textgreater{}", "<": r"\textless{}"}  # fmt: skip

Rows = Sequence[Sequence[str]]


def known_format(name: str) -> str:
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    return name


def markdown(header: Sequence[str], rows: Rows) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def comma_separated(header: Sequence[str], rows: Rows) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([header, *rows])
    return written.getvalue()


def latex(header: Sequence[str], rows: Rows) -> str:
    """A bare tabular, to be put into a table of one's own."""
    first, *others = [" & ".join(_escaped(cell) for cell in line) + r" \\" for line in (header, *rows)]
    columns = "l" * len(header)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", first, r"\hline", *others, r"\hline", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)
