"""Pieces of a page as HTML: text is escaped here and nowhere else."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from osscl.report.formats import DASH, TableSection
from osscl.report.plots import Figure, Key

SYMBOLS = ("UR", "SL", "U", "T", "L", "τ")
UNMEASURED = {"ours": "cells without a number of ours", "difference": "claims of which no pair of runs is recorded"}
NAMED_BY = {"ours": 2, "difference": 1}  # how many of the first columns tell one thing counted from another
Rows = list[tuple[str, ...]]
Lines = list[str]  # of one cell
GOOD, BAD, OPEN = ("reached", "holds"), ("short by", "refuted"), ("undecided", "not run", "not timed")


def escape(text: object) -> str:
    whole = str(text).encode("utf-8", "replace").decode()  # a command may hold bytes that are no text
    return html.escape(whole, quote=True)


def prose(text: str) -> str:
    """Escaped, with the paper's symbols as it prints them."""
    return re.sub(rf"\b({'|'.join(SYMBOLS)})_(t−1|[A-Za-z]+)\b", r"<i>\1</i><sub>\2</sub>", escape(text))


def as_json(value: object) -> str:
    """For a script element: nothing in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def table(section: TableSection, css: str = "") -> str:
    """A table in a box of its own that scrolls, by keyboard too; the first column names the row."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in section.columns)
    body = "".join(_group(section.columns, rows) for rows in groups_of(section.rows))
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(section.title)}">'
        f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def groups_of(rows: Sequence[tuple[str, ...]]) -> list[Rows]:
    """A row that begins empty goes with the one above."""
    groups: list[Rows] = []
    for row in rows:
        if row[0] or not groups:
            groups.append([])
        groups[-1].append(row)
    return groups


def _group(columns: Sequence[str], rows: Rows) -> str:
    """What the first row says of all of them spans them."""
    lines = with_further_lines(rows)
    later = [[cell for cell in row if cell != [""]] for row in lines[1:]]
    spanning = len(columns) - max((len(row) for row in later), default=len(columns))
    first = _cells(columns, lines[0], len(lines), spanning)
    more = (f"<tr class=more>{_cells(columns[-len(row) :], row)}</tr>" for row in later)
    return f"<tr>{first}</tr>{''.join(more)}"


def with_further_lines(rows: Rows) -> list[list[Lines]]:
    """Cells as lines: a row that begins empty and says one thing alone is a further line of the cell above."""
    made: list[list[Lines]] = []
    for row in rows:
        told = [i for i, text in enumerate(row) if text not in ("", DASH)]
        if made and not row[0] and len(told) == 1:
            made[-1][told[0]].append(row[told[0]])
        else:
            made.append([[text] for text in row])
    return made


def _cells(columns: Sequence[str], row: Sequence[Lines], height: int = 0, spanning: int = 0) -> str:
    """The cells of a row; `height` is that of those that span it, and of a row with a name."""
    bar = bar_beside({column: lines[0] for column, lines in zip(columns, row, strict=True)})
    cells = []
    for i, (column, (text, *further)) in enumerate(zip(columns, row, strict=True)):
        tag, marks = ("th", 'scope="row"') if height and i == 0 else ("td", f'data-label="{escape(column)}"')
        marks += f' rowspan="{height}"' if i < spanning and height > 1 else ""
        more = "".join(f"<span class=further>{prose(line)}</span>" for line in further)
        cells.append(f"<{tag} {marks}>{cell(text)}{bar if column == 'ours' else ''}{more}</{tag}>")
    return "".join(cells)


def bar_beside(row: Mapping[str, str]) -> str:
    """Our accuracy as a bar, with the paper's as a mark on it; nothing where there is none of ours, or it is a time."""
    numbers = {name: re.match(r"\d+(\.\d+)?(?! min)\b(?!.* min)", row.get(name, "")) for name in ("ours", "paper")}
    if numbers["ours"] is None:
        return ""
    return bar(float(numbers["ours"][0]), float(numbers["paper"][0]) if numbers["paper"] else None)


def bar(ours: float, theirs: float | None) -> str:
    """In % of its length."""
    mark = "" if theirs is None else f";--paper:{theirs:.1f}%"
    return f'<span class="bar{" marked" if mark else ""}" style="--ours:{ours:.1f}%{mark}"></span>'


def cell(text: str) -> str:
    """A verdict becomes a badge with a sign, so that its colour is not all that tells it; what it adds stands below."""
    for words, css, sign in ((GOOD, "good", "✓"), (BAD, "bad", "✗"), (OPEN, "open", "○")):
        if text.lower().startswith(words):
            verdict, _, added = text.partition(" (")
            below = f"<span class=further>({prose(added)}</span>" if added else ""
            return f'<span class="badge {css}"><span aria-hidden="true">{sign}</span> {prose(verdict)}</span>{below}'
    return f'<span class="missing">{DASH}</span>' if text == DASH else prose(text)


def titled_table(section: TableSection) -> str:
    """A card. What has no number of ours is folded away, so that one sees what there is."""
    return f"<section class=card><h3>{prose(section.title)}</h3>{folding_table(section)}</section>"


def folding_table(section: TableSection) -> str:
    """On a phone its rows are cards."""
    with_ours, without = measured(section)
    shown = table(replace(section, rows=list(chain(*with_ours))), "cards") if with_ours else ""
    folded = ""
    if without:
        column = next(column for column in UNMEASURED if column in section.columns)
        words, whole = UNMEASURED[column], NAMED_BY[column]
        missing, all_there_are = (len({g[0][:whole] for g in groups}) for groups in (without, with_ours + without))
        rest = replace(section, title=f"{section.title}: {words}", rows=list(chain(*without)))
        folded = details(f"{missing} of {all_there_are} {words}", table(without_empty_columns(rest), "cards"))
    note = f"<p class=note>{prose(section.note)}</p>" if section.note else ""
    return f"{shown}{folded}{note}"


def without_empty_columns(section: TableSection) -> TableSection:
    """Columns that have nothing but dashes are left out."""
    kept = [i for i in range(len(section.columns)) if any(row[i] not in ("", DASH) for row in section.rows)]
    rows = [tuple(row[i] for i in kept) for row in section.rows]
    return replace(section, columns=tuple(section.columns[i] for i in kept), rows=rows)


def measured(section: TableSection) -> tuple[list[Rows], list[Rows]]:
    """Groups of rows with a number of ours, and those without."""
    groups = groups_of(section.rows)
    places = [section.columns.index(column) for column in UNMEASURED if column in section.columns]
    without = [group for group in groups if places and all(row[places[0]] == DASH for row in group)]
    return [group for group in groups if group not in without], without


def details(summary: str, inside: str, css: str = "") -> str:
    marked = f' class="{css}"' if css else ""
    return f"<details{marked}><summary>{escape(summary)}</summary>{inside}</details>"


def legend(keys: Sequence[Key]) -> str:
    """Buttons that show and hide their lines in every figure of the nearest scope."""
    return f'<div class=legend role=group aria-label="Lines shown">{"".join(map(_legend_button, keys))}</div>'


def _legend_button(key: Key) -> str:
    return (
        f'<button type=button aria-pressed=true data-key="{escape(key.name)}">'
        f'<span class="swatch {key.dash}" style="--c:var(--{key.color[1:]})" aria-hidden=true></span>'
        f"{escape(key.label or key.name)}</button>"
    )


def figure(drawn: Figure, level: int = 4) -> str:
    """A figure that plotly.js fills in, with its numbers as a table beneath; `level` is its heading's."""
    scope = " legend-scope" if drawn.keys else ""
    keys = legend(drawn.keys) if len(drawn.keys) > 1 else ""
    title = f"<h{level} class=title>{escape(drawn.title)}</h{level}>"
    alternative = f"{drawn.title}. {drawn.caption} The numbers are in the table below the figure."
    return (
        f'<figure class="card{scope}"><figcaption>{title}</figcaption>{keys}'
        f'<div class=plot style="height:{drawn.height}px" role=img aria-label="{escape(alternative)}"></div>'
        f'{_slider(drawn)}<script type="application/json">{as_json(drawn.plots)}</script>'
        f"<p class=note>{prose(drawn.caption)}</p>{details('The numbers', table(drawn.table))}</figure>"
    )


def _slider(drawn: Figure) -> str:
    last = len(drawn.plots) - 1
    if last < 1:
        return ""
    names = escape(as_json(drawn.positions))
    return (
        f'<label class=slider data-names="{names}"><output>{escape(drawn.positions[-1])}</output>'
        f'<input type=range min=0 max={last} step=1 value={last} aria-label="{escape(drawn.title)}: step"></label>'
    )
