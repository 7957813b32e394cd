"""A table as data, and as Markdown, CSV, LaTeX."""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

DASH = "—"
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "—": "---", "–": "--", "−": "$-$", "±": r"$\pm$", "→": r"$\to$", "×": r"$\times$", "≈": r"$\approx$",
    "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$", "γ": r"$\gamma$", "λ": r"$\lambda$", "τ": r"$\tau$",
    "η": r"$\eta$", "∪": r"$\cup$", "Û": r"$\hat U$", "²": "$^2$",
}  # fmt: skip


@dataclass(frozen=True)
class TableSection:
    """A table of a report: every cell is text that is ready to be read, missing ones are a dash."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""  # what the numbers are: schedule, seeds, n, and what a verdict means


def as_markdown(table: TableSection) -> str:
    lines = [table.columns, tuple("---" for _ in table.columns), *table.rows]
    first, rule, *rest = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([first, rule.replace(" ", ""), *rest]) + "\n"


def as_csv(table: TableSection) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows([table.columns, *table.rows])
    return written.getvalue()


def as_latex(table: TableSection) -> str:
    """A tabular that needs no package."""
    lines = [" & ".join(map(latex_text, line)) + r" \\" for line in (table.columns, *table.rows)]
    body = [lines[0], r"\hline", *lines[1:]]
    return "\n".join([rf"\begin{{tabular}}{{{'l' * len(table.columns)}}}", *body, r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    """`text` with what LaTeX would take for its own made harmless."""
    letters = re.findall(".\u0302?", unicodedata.normalize("NFC", text))  # T-hat is two code points
    return "".join(rf"$\hat {x[0]}$" if len(x) > 1 else LATEX.get(x, x) for x in letters)


FORMATS: dict[str, Callable[[TableSection], str]] = {"markdown": as_markdown, "csv": as_csv, "latex": as_latex}


def as_text(tables: Sequence[TableSection], form: str) -> str:
    """All tables in one of FORMATS, each under its title where there are several."""
    title = {"markdown": "## {}\n\n", "csv": "# {}\n", "latex": "% {}\n"}[form]
    heads = [title.format(table.title) if len(tables) > 1 else "" for table in tables]
    return "\n".join(head + FORMATS[form](table) for head, table in zip(heads, tables, strict=True))
