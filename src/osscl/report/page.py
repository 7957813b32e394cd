"""The report: one HTML file that needs nothing else, as a function of records."""

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from osscl import __version__
from osscl.data.images import ImageBank
from osscl.errors import UserError
from osscl.experiments.record import RunRecord
from osscl.report.chapters import Chapter, chapters_of
from osscl.report.formats import TableSection
from osscl.report.html import escape
from osscl.report.sections import (
    chapter_section,
    claims_section,
    headline_section,
    method_section,
    runs_section,
    sprites_style,
    tables_section,
)
from osscl.report.thumbnails import strips_of

DEMO = '<meta name="osscl-report" content="demo">'  # what the demo may overwrite

FEW = 2  # settings on a page up to which every method is shown from inside


def build_page(
    records: Sequence[RunRecord],
    banks: Mapping[str, ImageBank] | None = None,
    sections: Sequence[TableSection] = (),
    title: str = "Continual learning in an open world",
    demo: bool = False,
) -> str:
    """The whole page. `banks`: the data sets at hand, for pictures and class names; `sections`: further tables."""
    chapters = chapters_of(records)
    gated = [entry.first for chapter in chapters for entry in chapter.entries if entry.gated]
    pictures = strips_of(gated, banks or {})
    parts = [
        headline_section(records),
        method_section(),
        *(chapter_section(chapter, banks or {}, pictures.strips, folded=len(chapters) > FEW) for chapter in chapters),
        tables_section([one for one in sections if not is_claims(one)]),
        claims_section([one for one in sections if is_claims(one)]),
        runs_section(records),
    ]
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>{escape(title)}</title>{DEMO if demo else ''}"
        '<meta name=viewport content="width=device-width,initial-scale=1"><link rel=icon href="data:,">'
        f"<style>{_part('page.css')}</style>{sprites_style(pictures.sprites)}</head>"
        f"<body>{_top(title, records, chapters, bool(sections))}<main id=main>{''.join(parts)}</main>"
        f"<footer>Made by osscl {escape(__version__)} from "
        f"{len(records)} records. Figures drawn by plotly.js (MIT licence), which is part of this file.</footer>"
        f"<script>{plotly_js()}</script><script>{_part('page.js')}</script></body></html>\n"
    )


def is_claims(section: TableSection) -> bool:
    return section.columns[0] == "claim"


def is_demo_page(path: Path) -> bool:
    """Whether a file is a page that the demo wrote."""
    try:
        with path.open(encoding="utf-8") as file:
            return DEMO in file.read(2000)
    except (OSError, UnicodeDecodeError):
        return False


def _top(title: str, records: Sequence[RunRecord], chapters: Sequence[Chapter], paper: bool) -> str:
    links = [("headline", "Results"), ("method", "Method")]
    links += [(f"setting-{c.number}", f"{c.setting}, {c.first.spec.schedule.name}") for c in chapters]
    links += [("paper", "Beside the paper")] * paper + [("runs", "Runs")]
    shown = "".join(f'<a href="#{where}">{escape(words)}</a>' for where, words in links)
    methods = {entry.name for chapter in chapters for entry in chapter.entries}
    counts = ", ".join(
        _count(number, word)
        for number, word in ((len(records), "run"), (len(methods), "method"), (len(chapters), "setting"))
    )
    return (
        '<a class=skip href="#main">To the content</a>'
        f"<header><div><h1>{escape(title)}</h1><p>{counts}. Schedules: {escape(_schedules(records))}.</p></div>"
        '<button type=button id=theme title="Light or dark colours">Dark</button></header>'
        f'<nav aria-label="Sections" class=top>{shown}</nav>'
        "<noscript><p class=note>Figures need JavaScript; the numbers of each lie in the table under it.</p></noscript>"
    )


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
