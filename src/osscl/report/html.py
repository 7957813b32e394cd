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
Rows = list[tuple[str, ...]]
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
    body = "".join(f"<tr>{_cells(section.columns, row)}</tr>" for row in section.rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(section.title)}">'
        f'<table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cells(columns: Sequence[str], row: Sequence[str]) -> str:
    bar = bar_beside(dict(zip(columns, row, strict=True)))
    cells = [
        f'<td data-label="{escape(column)}">{cell(text)}{bar if column == "ours" else ""}</td>'
        for column, text in zip(columns, row, strict=True)
    ]
    return f'<th scope="row">{cell(row[0])}</th>{"".join(cells[1:])}' if row else ""


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
    """A verdict becomes a badge with a sign, so that its colour is not all that tells it."""
    for words, css, sign in ((GOOD, "good", "✓"), (BAD, "bad", "✗"), (OPEN, "open", "○")):
        if text.lower().startswith(words):
            return f'<span class="badge {css}"><span aria-hidden="true">{sign}</span> {prose(text)}</span>'
    return f'<span class="missing">{DASH}</span>' if text == DASH else prose(text)


def titled_table(section: TableSection) -> str:
    """A card. What has no number of ours is folded away, so that one sees what there is."""
    return f"<section class=card><h3>{prose(section.title)}</h3>{folding_table(section)}</section>"


def folding_table(section: TableSection) -> str:
    with_ours, without = measured(section)
    shown = table(replace(section, rows=list(chain(*with_ours)))) if with_ours else ""
    folded = ""
    if without:
        words = next(words for column, words in UNMEASURED.items() if column in section.columns)
        rest = table(replace(section, title=f"{section.title}: {words}", rows=list(chain(*without))))
        folded = details(f"{len(without)} of {len(with_ours) + len(without)} {words}", rest)
    note = f"<p class=note>{prose(section.note)}</p>" if section.note else ""
    return f"{shown}{folded}{note}"


def measured(section: TableSection) -> tuple[list[Rows], list[Rows]]:
    """Groups of rows with a number of ours, and those without; a row that begins empty goes with the one above."""
    groups: list[Rows] = []
    for row in section.rows:
        if row[0] or not groups:
            groups.append([])
        groups[-1].append(row)
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
