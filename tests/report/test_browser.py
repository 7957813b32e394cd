"""The report as a person sees it: a real browser, a desktop's and a phone's width, light and dark."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

import chromium
from osscl.data.benchmarks import load_bank
from osscl.report.beside import beside_paper
from osscl.report.chapters import chapters_of
from osscl.report.page import build_page
from osscl.runs.checkpoint import Options
from osscl.runs.record import read_records
from osscl.runs.run import run
from osscl.runs.spec import demo_specs

pytestmark = pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium")
DESKTOP, PHONE = 1280, 390
WHOLE = 80_000  # pixels: so high that every figure is in sight
PAGES = ("results", "setting", "demo")
FIGURES = "[...document.querySelectorAll('.plot')].filter(plot => plot.checkVisibility())"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The page of all recorded runs, of those in one setting, and of a small demo with its pictures."""
    folder = tmp_path_factory.mktemp("pages")
    kept, _ = read_records(Path(__file__).parents[2] / "results" / "h200")
    (folder / "results.html").write_text(build_page(kept, beside=beside_paper(kept)), encoding="utf-8")
    longest = max(chapters_of(kept), key=lambda chapter: len(chapter.entries))
    (folder / "setting.html").write_text(build_page([entry.first for entry in longest.entries]), encoding="utf-8")
    options = Options(out=folder / "runs", device="cpu", share_references=False)
    records = [run(spec, options) for spec in demo_specs(0, smallest=True).values()]
    records += [replace(r, id=f"{r.id}-1", spec=replace(r.spec, seed=1)) for r in records]
    banks = {name: load_bank(name, folder) for name in ("digits", "letters")}
    (folder / "demo.html").write_text(build_page(records, banks), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in PAGES}


@pytest.mark.parametrize(("page", "width", "dark"), [*itertools.product(PAGES, [DESKTOP, PHONE], [False, True])])
def test_every_figure_is_drawn_without_an_error(browser, pages, page, width, dark):
    browser.open(pages[page], width, height=WHOLE, dark=dark)
    drawn = browser.evaluate(
        f"{FIGURES}.map(plot => ({{name: plot.closest('figure').querySelector('.title').textContent,"
        " width: plot.querySelector('svg.main-svg')?.getBoundingClientRect().width ?? 0, room: plot.clientWidth,"
        " marks: plot.querySelectorAll('.trace path, .heatmaplayer image, .bars path').length}))"
    )
    assert len(drawn) >= 8
    for figure in drawn:
        assert figure["marks"] > 0, f"{figure['name']} is empty"
        assert figure["width"] == pytest.approx(figure["room"], abs=1), figure["name"]
    assert browser.errors == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
@pytest.mark.parametrize("page", PAGES)
def test_nothing_sticks_out_sideways(browser, pages, page, width):
    browser.open(pages[page], width, height=WHOLE)
    browser.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    wide = browser.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => e.checkVisibility()"
        " && !e.closest('.scroll, pre, svg, nav')"
        " && e.getBoundingClientRect().left >= 0 && e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_tables_and_claims_beside_the_paper_are_read_without_scrolling(browser, pages, width):
    browser.open(pages["results"], width)
    browser.evaluate("document.querySelectorAll('#paper details, #claims details').forEach(box => box.open = true)")
    tables = "[...document.querySelectorAll(':is(#paper, #claims) .scroll:has(.cards)')]"
    assert browser.evaluate(f"{tables}.length") > 10
    wide = f"{tables}.filter(box => box.scrollWidth > box.clientWidth + 1).map(box => box.getAttribute('aria-label'))"
    assert browser.evaluate(wide) == []
    hidden = (
        "[...document.querySelectorAll(':is(#paper, #claims) td:is([data-label=verdict], [data-label^=paper])')]"
        ".filter(cell => cell.getBoundingClientRect().right > innerWidth || !cell.getBoundingClientRect().width)"
    )
    assert browser.evaluate(f"{hidden}.length") == 0


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_no_label_of_a_figure_is_cut_off(browser, pages, width):
    browser.open(pages["setting"], width, height=WHOLE)
    cut = browser.evaluate(
        f"{FIGURES}.flatMap(plot => {{ const room = plot.getBoundingClientRect();"
        " return [...plot.querySelectorAll('.xtick text, .ytick text, .annotation-text, .xtitle, .ytitle')]"
        ".filter(text => { const box = text.getBoundingClientRect(); return box.left < room.left - 1"
        " || box.right > room.right + 1 || box.bottom > room.bottom + 1 || box.top < room.top - 1; })"
        ".map(text => text.textContent + ' in ' + plot.closest('figure').querySelector('.title').textContent); })"
    )
    assert cut == []


def test_the_page_follows_the_system_and_the_button(browser, pages):
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    browser.open(pages["demo"], DESKTOP, height=3000)
    browser.evaluate("localStorage.clear()")
    light = browser.evaluate(ground), browser.evaluate(ink)
    browser.evaluate("document.getElementById('theme').click()")
    browser.settle()
    dark = browser.evaluate(ground), browser.evaluate(ink)
    assert light[0] != dark[0] and light[1] != dark[1]
    browser.evaluate("localStorage.clear()")
    browser.open(pages["demo"], DESKTOP, height=3000, dark=True)
    assert (browser.evaluate(ground), browser.evaluate(ink)) == dark
    assert browser.errors == []


def test_choosing_a_method_shows_its_figures(browser, pages):
    browser.open(pages["setting"], DESKTOP, height=WHOLE)
    shown = "[...document.querySelectorAll('.panel')].filter(p => p.checkVisibility()).map(p => p.id)"
    before = browser.evaluate(shown)
    chooser = "[...document.querySelectorAll('select')].find(s => s.options.length > 1)"
    first, second = browser.evaluate(f"[...{chooser}.options].slice(0, 2).map(o => o.value)")
    browser.evaluate(f"(s => {{ s.selectedIndex = 1; s.dispatchEvent(new Event('change')); }})({chooser})")
    browser.settle()
    after = browser.evaluate(shown)
    assert first in before and second not in before and second in after and first not in after
    assert browser.evaluate(f"document.querySelectorAll('#{second} .plot svg.main-svg').length") > 0
    assert browser.errors == []


def test_a_page_of_many_settings_is_folded_and_opens(browser, pages):
    """All recorded runs once made a page of 59,000 pixels, of which nobody saw the end."""
    browser.open(pages["results"], DESKTOP, height=1000)
    height = "document.documentElement.scrollHeight"
    folded = browser.evaluate(height)
    assert browser.evaluate("[...document.querySelectorAll('.panel')].filter(p => p.checkVisibility()).length") == 0
    inside = "document.querySelector('#setting-2 .inside')"
    assert browser.evaluate(f"{inside}.querySelectorAll('.plot svg.main-svg').length") == 0
    browser.evaluate(f"{inside}.querySelector('summary').click(), {inside}.scrollIntoView(), 0")
    browser.wait(f"{inside}.querySelectorAll('.plot svg.main-svg').length > 0")
    browser.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    assert browser.evaluate(height) > 2 * folded
    assert browser.errors == []


def test_the_slider_moves_through_the_steps(browser, pages):
    browser.open(pages["setting"], DESKTOP, height=WHOLE)
    slider = "document.querySelector('.panel:not([hidden]) .slider input[aria-label^=Scores]')"
    threshold = f"{slider}.closest('figure').querySelector('.annotation-text').textContent"
    last = browser.evaluate(threshold)
    browser.evaluate(f"(s => {{ s.value = 0; s.dispatchEvent(new Event('input')); }})({slider})")
    assert browser.evaluate(threshold) != last
    assert browser.evaluate(f"{slider}.closest('.slider').querySelector('output').value") == "step 1 of 10"


def test_a_legend_hides_its_lines(browser, pages):
    browser.open(pages["demo"], DESKTOP, height=WHOLE)
    lines = "document.querySelector('section.legend-scope .two .plot').querySelectorAll('.scatterlayer .trace').length"
    before = browser.evaluate(lines)
    browser.evaluate("document.querySelector('section.legend-scope > .legend button').click()")
    browser.settle()
    assert 0 < browser.evaluate(lines) < before


def test_the_keyboard_reaches_everything_in_order(browser, pages):
    browser.open(pages["demo"], DESKTOP, height=3000)
    reached = []
    for _ in range(14):
        for kind in ("keyDown", "keyUp"):
            browser.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.append(browser.evaluate("document.activeElement.className + ' ' + document.activeElement.id + ' ' "
                                        "+ document.activeElement.tagName"))  # fmt: skip
    assert reached[0].startswith("skip") and "theme BUTTON" in reached[1]
    assert any(one.startswith("scroll") for one in reached) and any("SUMMARY" in one for one in reached)
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert browser.evaluate(outline) != "none"


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_every_section_is_a_link_in_sight_and_settings_are_a_menu(browser, pages, width):
    """Fifteen settings once made a strip of 4772 pixels, with what comes after them far out of sight."""
    browser.open(pages["results"], width, height=500)  # less than the list has on a phone
    inside = "(box => box.left >= 0 && box.right <= innerWidth && box.width > 0)(link.getBoundingClientRect())"
    links = f"[...document.querySelectorAll('nav.top > a')].filter(link => {inside}).map(link => link.hash)"
    assert browser.evaluate(links) == ["#headline", "#method", "#paper", "#claims", "#runs"]
    settings = "document.querySelectorAll('main > section[id^=setting]').length"
    listed = f"[...document.querySelectorAll('.menu a')].filter(link => link.checkVisibility() && {inside}).length"
    assert browser.evaluate(listed) == 0
    browser.evaluate("document.querySelector('.menu summary').focus()")
    press(browser, "Enter", 13)
    assert browser.evaluate(listed) == browser.evaluate(settings) > 10
    press(browser, "Escape", 27)
    assert browser.evaluate(listed) == 0 and browser.evaluate("document.activeElement.tagName") == "SUMMARY"
    press(browser, "Enter", 13)
    browser.evaluate("document.querySelector('.menu li:last-child a').click()")
    assert browser.evaluate(listed) == 0 and browser.evaluate("location.hash").startswith("#setting-")
    assert browser.evaluate("[...document.querySelectorAll('nav.top a')].every(a => document.querySelector(a.hash))")
    assert browser.errors == []


def test_few_settings_are_links_of_their_own(browser, pages):
    browser.open(pages["demo"], PHONE)
    links = browser.evaluate("[...document.querySelectorAll('nav.top > a')].map(link => link.hash)")
    assert links == ["#headline", "#method", "#runs", "#setting-1"]
    assert browser.evaluate("document.querySelector('.menu')") is None


def press(browser, key, code):
    text = {"text": "\r"} if key == "Enter" else {}
    browser.ask("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
    browser.ask("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)


def test_every_figure_has_words_and_a_table(browser, pages):
    browser.open(pages["results"], DESKTOP, height=WHOLE)
    assert browser.evaluate(
        "[...document.querySelectorAll('figure')].every(f => f.querySelector('.plot').getAttribute('aria-label')"
        " && f.querySelector('details table tbody tr'))"
    )
    assert browser.evaluate("document.querySelector('svg.drawing').getAttribute('aria-label').length") > 100


def test_pictures_are_shown_where_the_data_is_at_hand(browser, pages):
    browser.open(pages["demo"], DESKTOP, height=WHOLE)
    pictures = (
        "[...document.querySelectorAll('.tile[role=img]')].filter(t => getComputedStyle(t).backgroundImage != 'none')"
    )
    assert browser.evaluate(f"{pictures}.length") >= 16
    browser.open(pages["results"], DESKTOP, height=WHOLE)
    assert browser.evaluate(f"{pictures}.length") == 0
    assert browser.evaluate("document.querySelectorAll('.strip').length") == 0
    assert "--data DIR" in browser.evaluate("document.querySelector('.panel > .note').textContent")
