"""A table of typed values, and one renderer each for the terminal, HTML, CSV, LaTeX and Markdown."""

import csv
import functools
import io
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from osscl.paper.verdict import Verdict
from osscl.text import csv_text, printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from rich.console import Group

DASH = "—"
SPREAD = "± is the sample standard deviation over seeds."
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "—": "---", "–": "--", "−": "$-$", "±": r"$\pm$", "→": r"$\to$", "×": r"$\times$", "≈": r"$\approx$",
    "≥": r"$\geq$", "≤": r"$\leq$", "·": r"$\cdot$", "γ": r"$\gamma$", "λ": r"$\lambda$", "τ": r"$\tau$",
    "η": r"$\eta$", "∪": r"$\cup$", "Û": r"$\hat U$", "²": "$^2$",
}  # fmt: skip
ROOM = 10  # terminal columns that a column of text needs
SYMBOLS = re.compile(r"\b(UR|SL|U|T|L|τ)_(t−1|[A-Za-z]+)\b")


@dataclass(frozen=True)
class Number:
    """A measured or published value; over several runs, their mean."""

    value: float
    spread: float | None = None  # sample standard deviation; None for fewer than two runs
    n: int | None = None  # runs; None where the number is not a mean over runs
    unit: str = ""  # shown after the value; % is part of the column's name
    digits: int = 1
    signed: bool = False
    is_percent: bool = False  # from 0 to 100, so that HTML can draw it as a bar
    published: float | None = None  # the paper's value of the same quantity, a mark on the bar
    remark: str = ""  # shown in parentheses, as in 58.2 ± 0.8 (URSL)

    def __str__(self) -> str:
        spread = "" if self.spread is None else f" ± {self.spread:.{self.digits}f}"
        runs = "" if self.n is None else f" (n={self.n})"
        sign, remark = "+" if self.signed else "", f" ({self.remark})" if self.remark else ""
        return f"{self.value:{sign}.{self.digits}f}{spread}{f' {self.unit}' if self.unit else ''}{runs}{remark}"


Value = str | int | Number | Verdict | tuple[int, ...] | None  # a tuple holds seeds; None is missing
Row = tuple[Value, ...]
Kind = Literal["text", "number", "mean", "published", "verdict", "seeds"]
FIELDS: dict[Kind, tuple[str, ...]] = {
    "mean": ("", "_std", "_n"),
    "published": ("", "_std"),
    "verdict": ("", "_distance"),
}


@dataclass(frozen=True)
class Column:
    """What a column is called and what its values are."""

    name: str
    kind: Kind = "text"
    fields: tuple[str, ...] = ()  # names in CSV, one a number; by default made from the column's name
    ours: bool = False  # holds the numbers of our runs: a row without one has nothing measured
    only_csv: bool = False

    @property
    def csv_fields(self) -> tuple[str, ...]:
        return self.fields or tuple(f"{self.name}{suffix}" for suffix in FIELDS.get(self.kind, ("",)))


@dataclass(frozen=True)
class ResultTable:
    """A table of typed values; `notes` are sentences, one item each, shown below it."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Row]
    notes: tuple[str, ...] = ()
    spanning: int = 0  # first columns that consecutive rows share, where they are equal

    def groups(self) -> list[list[Row]]:
        """Rows that share their first `spanning` values; each row by itself if no column spans rows."""
        if not self.spanning:
            return [[row] for row in self.rows]
        return [list(rows) for _, rows in groupby(self.rows, key=lambda row: row[: self.spanning])]

    def shown(self) -> "ResultTable":
        """Without the columns that only CSV has."""
        return self._with_columns([i for i, column in enumerate(self.columns) if not column.only_csv])

    def without_empty_columns(self) -> "ResultTable":
        """Without columns that have no value in any row."""
        return self._with_columns([i for i in range(len(self.columns)) if any(row[i] is not None for row in self.rows)])

    def _with_columns(self, kept: Sequence[int]) -> "ResultTable":
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=[tuple(row[i] for i in kept) for row in self.rows],
            spanning=sum(i < self.spanning for i in kept),
        )

    def split_measured(self) -> "tuple[ResultTable, ResultTable]":
        """Groups of rows with a number of ours, and those without; all are in the first where no column is `ours`."""
        ours = [i for i, column in enumerate(self.columns) if column.ours]
        measured, missing = list[Row](), list[Row]()
        for group in self.groups():
            has_ours = not ours or any(row[i] is not None for row in group for i in ours)
            (measured if has_ours else missing).extend(group)
        return replace(self, rows=measured), replace(self, rows=missing)


def value_text(value: Value) -> str:
    """A value as text; a dash if it is missing."""
    if value is None or value == ():
        return DASH
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return verdict_text(value) if isinstance(value, Verdict) else printable(str(value))


def verdict_text(verdict: Verdict) -> str:
    """A verdict in words, such as: reached; short by 0.4; n = 1, short by 2.0; undecided (1 of 12 compared)."""
    away = "" if verdict.distance is None else f" by {distance_text(verdict.distance)}"
    if verdict.kind == "few seeds":
        return f"n = {verdict.n}" + (f", {verdict.miss}{away}" if away else "")
    compared = f" ({verdict.compared} of {verdict.comparisons} compared)" if verdict.is_partial else ""
    return f"{verdict.kind}{away}{compared}"


def distance_text(distance: float) -> str:
    """One decimal; more where one would show 0.0."""
    return f"{distance:.1f}" if distance >= 0.05 else f"{distance:.1g}"


def to_markdown(table: ResultTable) -> str:
    shown = table.shown()
    lines = [[column.name for column in shown.columns], *([value_text(value) for value in row] for row in shown.rows)]
    first, *rest = ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]
    return "\n".join([first, "|---" * len(shown.columns) + "|", *rest]) + "\n"


def to_csv(table: ResultTable) -> str:
    """One number per field, empty where there is none; with the columns that only CSV has."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow([name for column in table.columns for name in column.csv_fields])
    for row in table.rows:
        writer.writerow(
            [text for column, value in zip(table.columns, row, strict=True) for text in _csv(column, value)]
        )
    return written.getvalue()


def _csv(column: Column, value: Value) -> list[str]:
    """The fields of one value."""
    count = len(column.csv_fields)
    if value is None:
        return ["0" if column.kind == "mean" and i == 2 else "" for i in range(count)]
    if isinstance(value, Number):
        return [_csv_number(value.value), _csv_number(value.spread), str(value.n or "")][:count]
    if isinstance(value, Verdict):
        return [value.kind, _csv_number(value.distance)][:count]
    if isinstance(value, tuple):
        return [" ".join(map(str, value))]
    return [csv_text(value) if isinstance(value, str) else str(value)]


def _csv_number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}".rstrip("0").rstrip(".")


def to_latex(table: ResultTable) -> str:
    """A tabular that needs no package."""
    shown = table.shown()
    lines = [[column.name for column in shown.columns], *([value_text(value) for value in row] for row in shown.rows)]
    first, *rest = [" & ".join(map(latex_text, line)) + r" \\" for line in lines]
    begin = rf"\begin{{tabular}}{{{'l' * len(shown.columns)}}}"
    return "\n".join([begin, first, r"\hline", *rest, r"\end{tabular}"]) + "\n"


def latex_text(text: str) -> str:
    """Escape what LaTeX would interpret."""
    letters = re.findall(".\u0302?", unicodedata.normalize("NFC", text))  # T-hat is two code points
    return "".join(rf"$\hat {x[0]}$" if len(x) > 1 else LATEX.get(x, x) for x in letters)


def to_rich(table: ResultTable, width: int) -> "Group":
    """Title, table and notes for a terminal of this width."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = table.shown()
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    cells = [[value_text(value) for value in row] for row in shown.rows]
    whole = _unbroken(shown, cells, width)
    for i, column in enumerate(shown.columns):
        justify: Any = "right" if column.kind == "number" else "left"
        made.add_column(column.name, overflow="fold", justify=justify, no_wrap=i in whole)
    for row in cells:
        made.add_row(*row)
    notes = (Text(printable(note)) for note in table.notes)
    return Group(Text(printable(table.title)), Text(), made, Text(), *notes)


def _unbroken(table: ResultTable, cells: Sequence[Sequence[str]], width: int) -> list[int]:
    """The first two text columns, or the first, if the others have room: names that are copied are not broken."""
    from rich.cells import cell_len

    names = [i for i, column in enumerate(table.columns) if column.kind == "text"]
    for kept in (names[:2], names[:1]):
        longest = [max(map(cell_len, [table.columns[i].name, *(row[i] for row in cells)])) for i in kept]
        if sum(longest) + ROOM * (len(table.columns) - len(kept)) <= width:
            return kept
    return []


@functools.cache
def environment() -> "Environment":
    """Templates of the report; text in them is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("osscl", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.filters |= {"prose": prose, "value_text": value_text}
    made.tests |= {
        "number": lambda value: isinstance(value, Number),
        "verdict": lambda value: isinstance(value, Verdict),
    }
    return made


def prose(text: object) -> str:
    """Escaped text with the paper's symbols as it prints them."""
    from markupsafe import Markup, escape

    whole = str(text).encode("utf-8", "replace").decode()  # a command may contain bytes that are not valid text
    return Markup(SYMBOLS.sub(r"<i>\1</i><sub>\2</sub>", str(escape(whole))))


def to_html(table: ResultTable, css: str = "") -> str:
    """A table in a box that scrolls, by keyboard too; the first column names the row. Notes are not part of it."""
    shown = table.shown()
    return environment().get_template("table.html").render(table=shown, groups=shown.groups(), css=css)


RENDERERS: dict[str, Callable[[ResultTable], str]] = {"markdown": to_markdown, "csv": to_csv, "latex": to_latex}
