"""The report: one HTML file that needs nothing else, as a function of records."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from osscl import __version__
from osscl.data.images import ImageBank
from osscl.errors import UserError
from osscl.report.beside import Beside
from osscl.report.chapters import Chapter, chapters_of
from osscl.report.html import details, escape
from osscl.report.sections import (
    chapter_section,
    claims_section,
    headline_section,
    method_section,
    paper_section,
    runs_section,
    sprites_style,
)
from osscl.report.thumbnails import strips_of
from osscl.runs.record import RunRecord

DEMO = '<meta name="osscl-report" content="demo">'  # what the demo may overwrite

FEW = 2  # settings on a page up to which every method is shown from inside


def build_page(
    records: Sequence[RunRecord],
    banks: Mapping[str, ImageBank] | None = None,
    beside: Beside | None = None,
    title: str = "Continual learning in an open world",
    demo: bool = False,
) -> str:
    """The whole page. `banks`: the data sets at hand, for pictures and class names; `beside`: the paper."""
    chapters = chapters_of(records)
    gated = [entry.first for chapter in chapters for entry in chapter.entries if entry.gated]
    pictures = strips_of(gated, banks or {})
    parts = [
        headline_section(records),
        method_section(),
        *(chapter_section(chapter, banks or {}, pictures.strips, folded=len(chapters) > FEW) for chapter in chapters),
        paper_section(beside) if beside else "",
        claims_section(beside.claims) if beside else "",
        runs_section(records),
    ]
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>{DEMO if demo else ''}"
        '<meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">'
        f"<style>{_part('page.css')}</style>{sprites_style(pictures.sprites)}</head>"
        f"<body>{_top(title, records, chapters, beside)}<main id=main>{''.join(parts)}</main>"
        f"<footer>Made by osscl {escape(__version__)} from "
        f"{len(records)} records. Figures drawn by plotly.js (MIT licence), which is part of this file.</footer>"
        f"<script>{plotly_js()}</script><script>{_part('page.js')}</script></body></html>\n"
    )


def is_demo_page(path: Path) -> bool:
    """Whether a file is a page that the demo wrote."""
    try:
        with path.open(encoding="utf-8") as file:
            return DEMO in file.read(2000)
    except (OSError, UnicodeDecodeError):
        return False


def _top(title: str, records: Sequence[RunRecord], chapters: Sequence[Chapter], beside: Beside | None) -> str:
    methods = {entry.name for chapter in chapters for entry in chapter.entries}
    counts = ", ".join(
        _count(number, word)
        for number, word in ((len(records), "run"), (len(methods), "method"), (len(chapters), "setting"))
    )
    return (
        '<a class=skip href="#main">To the content</a>'
        f"<header><div><h1>{escape(title)}</h1><p>{counts}. Schedules: {escape(_schedules(records))}.</p></div>"
        '<button type=button id=theme title="Light or dark colours">Dark</button></header>'
        f'<nav aria-label="Sections" class=top>{_links(chapters, beside)}</nav>'
        "<noscript><p class=note>Figures need JavaScript; the numbers of each lie in the table under it.</p></noscript>"
    )


def _links(chapters: Sequence[Chapter], beside: Beside | None) -> str:
    """What every page has first; then its settings, in a menu where they are many."""
    fixed = [("headline", "Results"), ("method", "Method")]
    fixed += [("paper", "Beside the paper")] * (beside is not None)
    fixed += [("claims", "Claims")] * bool(beside and beside.claims) + [("runs", "Runs")]
    settings = [(f"setting-{c.number}", f"{c.setting}, {c.first.spec.schedule.name}") for c in chapters]
    if len(settings) <= FEW:
        return "".join(_link(*one) for one in (*fixed, *settings))
    listed = "".join(f"<li>{_link(*one)}</li>" for one in settings)
    menu = details(f"Settings ({len(settings)})", f"<ul>{listed}</ul>", "menu")
    return "".join(_link(*one) for one in fixed) + menu


def _link(where: str, words: str) -> str:
    return f'<a href="#{where}">{escape(words)}</a>'


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _schedules(records: Iterable[RunRecord]) -> str:
    return ", ".join(sorted({record.spec.schedule.name for record in records}))


def _part(name: str) -> str:
    return files("osscl.report").joinpath(name).read_text(encoding="utf-8")


def plotly_js() -> str:
    """The script that draws, from the installed package."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise UserError("the report draws with plotly, which is not installed: pip install plotly") from None
    return str(get_plotlyjs())
