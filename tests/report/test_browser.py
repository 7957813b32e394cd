"""The report as a reader sees it: a real browser, at the width of a desktop and of a phone, light and dark."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from osscl.data.benchmarks import load_bank
from osscl.report.page import build_page
from osscl.report.paper_comparison import compare_with_paper
from osscl.runs.index import read_records

RESULTS = Path(__file__).parents[2] / "results"
DESKTOP, PHONE = (1280, 900), (390, 844)
SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
PAGES = pytest.mark.parametrize("page", ["three", "results", "many", "demo"])
CONCLUSION = "document.querySelector('.conclusion').textContent"
BARS = "[...document.querySelectorAll('#final g > title')].map(title => title.textContent)"
SHORT_CIFAR100 = "setting=cifar100-cifar10-p-0-05-m-500&schedule=short"


@pytest.fixture(scope="module")
def pages(tmp_path_factory, kept):
    """Pages of three records, of all recorded runs, of 400 runs, and of the demo's runs with their pictures."""
    folder = tmp_path_factory.mktemp("pages")
    results, _ = read_records(RESULTS / "h200")
    many = [at_seed(record, seed) for seed in range(10) for record in results][:400]
    demo, _ = read_records(RESULTS / "demo")
    banks = {name: load_bank(name, folder) for name in ("digits", "letters")}
    made = {
        "three": build_page(kept, paper=compare_with_paper(kept)),
        "results": build_page(results, paper=compare_with_paper(results)),
        "many": build_page(many, paper=compare_with_paper(many)),
        "demo": build_page(demo, banks, paper=compare_with_paper(demo), title="Digits among letters"),
    }
    for name, page in made.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def at_seed(record, seed):
    """The same run at another seed, a little better."""
    spec = replace(record.spec, seed=record.spec.seed + seed)
    by = 0.3 * seed * (1 if "plus" in record.configuration else -0.5)
    overall = tuple(min(100.0, value + by) for value in record.overall)
    return replace(record, id=spec.id, spec=spec, overall=overall, final=overall[-1])


def open_details(browser):
    browser.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    browser.settle()
    browser.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    browser.settle()


def choose(browser, select, place):
    browser.page.locator(f"#{select}").select_option(index=place)
    browser.settle()


def pin(browser, *names):
    for name in names:
        browser.page.locator(".pins").get_by_role("button", name=name, exact=True).click()
    browser.settle()


# ----- the first screen


@SIZES
@PAGES
def test_the_first_screen_has_the_conclusion_and_the_figure(browser, pages, page, size):
    browser.open(pages[page], *size)
    assert re.match(r"On .+ reaches a final accuracy of \d+\.\d", browser.evaluate(CONCLUSION))
    assert browser.evaluate("document.querySelector('.conclusion').getBoundingClientRect().bottom < innerHeight")
    drawn = browser.evaluate("document.querySelectorAll('#final svg g').length")
    in_sight = browser.evaluate(
        "[...document.querySelectorAll('#final svg g')]"
        ".filter(g => g.getBoundingClientRect().bottom <= innerHeight).length"
    )
    assert drawn >= in_sight >= min(drawn, 6) > 0
    assert browser.errors == []


def test_selectors_change_conclusion_and_figure(browser, pages):
    browser.open(pages["results"], *DESKTOP)
    before = browser.evaluate(CONCLUSION), browser.evaluate(BARS)
    assert (
        "the paper reports" in before[0] and browser.evaluate("document.querySelectorAll('#final .paper').length") > 3
    )
    choose(browser, "schedule", 1)
    after = browser.evaluate(CONCLUSION), browser.evaluate(BARS)
    assert "under the short schedule" in after[0] and after[1] != before[1]
    assert browser.evaluate("document.querySelectorAll('.paper').length") == 0  # another schedule than the paper's
    assert browser.evaluate(
        "[...document.querySelectorAll('[data-schedule]')].filter(d => !d.hidden).map(d => d.dataset.schedule)"
    ) == ["short", "short"]  # tables and claims
    choose(browser, "setting", 0)
    assert browser.evaluate(CONCLUSION).startswith("On CIFAR-10 among CIFAR-100")
    assert browser.errors == []


@PAGES
def test_a_page_stays_below_three_megabytes(pages, page):
    assert pages[page].stat().st_size < 3_000_000


# ----- every section


@SIZES
@PAGES
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_is_drawn_without_an_error_and_nothing_sticks_out(browser, pages, page, size, dark):
    browser.open(pages[page], *size, dark=dark)
    open_details(browser)
    empty = (
        "[...document.querySelectorAll('.drawn')].filter(box => !box.textContent.trim()"
        " && !box.matches('#compare, #paper *')).map(box => box.parentNode.id)"
    )
    assert browser.evaluate(empty) == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= size[0]
    wide = browser.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => e.checkVisibility()"
        " && !e.closest('.scroll, pre, svg, .unseen-words')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == [] and browser.errors == []


@SIZES
def test_no_label_of_a_figure_is_cut_off(browser, pages, size):
    for view in ("result", f"result?{SHORT_CIFAR100}"):
        browser.open(pages["results"], *size, view=view)
        open_details(browser)
        cut = browser.evaluate(
            "[...document.querySelectorAll('figure svg, .small svg')]"
            ".flatMap(svg => { const room = svg.getBoundingClientRect();"
            " return [...svg.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect();"
            " return box.left < room.left - 1 || box.right > room.right + 1"
            " || box.bottom > room.bottom + 2 || box.top < room.top - 1; })"
            ".map(text => text.textContent); })"
        )
        assert cut == []


@PAGES
def test_a_phone_shows_the_story_within_six_screens(browser, pages, page):
    browser.open(pages[page], *PHONE)
    assert browser.evaluate("document.getElementById('details').getBoundingClientRect().top") <= 6 * PHONE[1]


def test_every_drawing_has_a_label_and_its_numbers_in_a_table(browser, pages):
    browser.open(pages["results"], *DESKTOP)
    open_details(browser)
    assert browser.evaluate("document.querySelectorAll('figure').length") >= 7
    assert browser.evaluate(
        "[...document.querySelectorAll('figure')].every(f => f.firstChild.getAttribute('aria-label')"
        " && f.querySelector('details table tbody tr'))"
    )
    assert browser.evaluate("[...document.querySelectorAll('.small svg')].every(svg => svg.getAttribute('aria-label'))")


def test_titles_are_unique(browser, pages):
    browser.open(pages["results"], *DESKTOP)
    open_details(browser)
    titles = browser.evaluate("[...document.querySelectorAll('h2, h3')].map(h => h.textContent.trim())")
    assert len(titles) == len(set(titles)) > 20


def test_the_slider_moves_scores_and_pictures_through_the_steps(browser, pages):
    browser.open(pages["demo"], *DESKTOP, view="scores?open=scores,pictures")
    pictures = "document.querySelector('#pictures .tiles').innerHTML"
    threshold = "document.querySelector('#scores svg:has(.threshold)').textContent"
    before = browser.evaluate(threshold), browser.evaluate(pictures)
    assert "background-image" in before[1]
    browser.evaluate(
        "(s => { s.value = 1; s.dispatchEvent(new Event('input')); })(document.querySelector('#scores input'))"
    )
    browser.settle()
    after = browser.evaluate(threshold), browser.evaluate(pictures)
    assert after[0] != before[0] and after[1] != before[1]
    assert browser.evaluate("document.querySelector('#pictures output').textContent") == "Step 1 of 5"
    assert "step=1" in browser.evaluate("location.hash")


def test_without_the_data_the_page_says_how_to_see_the_pictures(browser, pages):
    browser.open(pages["results"], *DESKTOP, view="pictures")
    assert "--data DIR" in browser.evaluate("document.getElementById('pictures').textContent")


def test_an_ablation_is_a_difference_from_the_full_method_with_its_interval(browser, pages):
    browser.open(pages["many"], *DESKTOP, view=f"ablations?{SHORT_CIFAR100}")
    cells = browser.evaluate(
        "[...document.querySelectorAll('#ablations tbody tr:first-child > *')].map(cell => cell.textContent)"
    )
    assert re.fullmatch(r"[+−]\d+\.\d", cells[3]) and re.fullmatch(r"[+−]\d+\.\d to [+−]\d+\.\d|—", cells[4])
    assert int(cells[5]) >= 9 and browser.evaluate("document.querySelectorAll('#ablations circle').length") >= 8


def test_the_menu_leaves_out_what_is_empty(browser, pages):
    shown = "[...document.querySelectorAll('nav a')].filter(a => a.offsetParent).map(a => a.textContent)"
    browser.open(pages["demo"], *DESKTOP)
    assert not {"Ablations", "Paper"} & set(browser.evaluate(shown))
    browser.open(pages["results"], *DESKTOP, view=f"ablations?{SHORT_CIFAR100}")
    assert {"Ablations", "Paper"} <= set(browser.evaluate(shown))


def test_gates_with_one_reference_are_reported_as_the_same(browser, pages):
    browser.open(pages["demo"], *DESKTOP, view="pictures?open=pictures,scores")
    for part in ("pictures", "scores"):
        words = browser.evaluate(f"document.querySelector('#{part} .drawn').textContent")
        assert "The same for ursl and ursl-plus-unlimited: their gates share one reference network." in words


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("1.8 s", "duration([0.03])"), ("2.0 ± 1.4 min", "duration([1, 3])"), ("—", "duration([undefined])"),
        ("1.54 MB", "bytes([1536000])"), ("2.00 kB", "bytes([2000, 100])"), ("1.20 GB", "bytes([1.2e9])"),
        ("77 bytes", "bytes([77])"), ("—", "bytes([])"),
    ],
)  # fmt: skip
def test_times_and_bytes_have_a_unit_in_which_they_are_not_zero(browser, pages, words, call):
    browser.open(pages["demo"], *DESKTOP)
    assert browser.evaluate(call) == words


# ----- pins and addresses


def test_pinned_rows_are_compared_by_seed(browser, pages):
    browser.open(pages["demo"], *DESKTOP)
    assert browser.evaluate("document.querySelectorAll('#compare table').length") == 0
    pin(browser, "ursl-plus-unlimited")
    assert "Pin another row" in browser.evaluate("document.getElementById('compare').textContent")
    pin(browser, "labels-only")
    cells = browser.evaluate("[...document.querySelectorAll('#compare tbody tr > *')].map(cell => cell.textContent)")
    runs, _ = read_records(RESULTS / "demo")
    names = ("ursl-plus-unlimited", "labels-only")
    finals = {name: {r.spec.seed: r.final for r in runs if r.configuration == name} for name in names}
    gaps = [finals["ursl-plus-unlimited"][seed] - finals["labels-only"][seed] for seed in range(6)]
    assert cells[0] == "ursl-plus-unlimited − labels-only" and cells[3] == "6"
    assert cells[1].startswith(f"{sum(gaps) / 6:+.1f} ± ") and cells[4].startswith(
        f"0: {gaps[0]:+.1f}, 1: {gaps[1]:+.1f}"
    )
    names_of = "[...document.querySelectorAll('#steps text{}')].map(text => text.textContent).sort()"
    assert browser.evaluate(names_of.format("[font-weight]")) == ["labels-only", "ursl-plus-unlimited"]
    assert browser.evaluate(names_of.format("[style]")) == ["labels-only", "ursl", "ursl-plus-unlimited"]
    pin(browser, "labels-only")  # again: unpinned
    assert browser.evaluate("document.querySelectorAll('#compare table').length") == 0
    assert browser.errors == []


def differences(browser):
    return browser.evaluate(
        "[...document.querySelectorAll('#compare > .scroll tbody tr')]"
        ".map(row => [...row.children].map(cell => cell.textContent))"
    )


def test_rows_of_other_settings_are_compared_but_not_paired(browser, pages):
    main, related = "cifar100-cifar10-p-0-05-m-500", "cifar100-cifar10-p-0-05-m-500-only-related"
    view = f"result?setting={main}&schedule=short&pins=ursl@short@{main}"
    page = browser.open(pages["many"], *DESKTOP, view=view)
    page.locator("#setting").select_option(value=related)
    pin(browser, "ursl")
    ((rows, gap, interval, pairs, *_),) = differences(browser)
    assert rows == "1: ursl − 2: ursl" and re.fullmatch(r"[+−]\d+\.\d", gap) and (interval, pairs) == ("—", "—")
    said = browser.evaluate("document.getElementById('compare').textContent")
    assert "not paired by seed" in said and "classes and test images are the same as for 1: ursl" in said
    assert browser.evaluate("document.querySelectorAll('#compare svg circle').length") == 20  # two curves of ten steps
    restored = browser.evaluate("location.hash").removeprefix("#")
    browser.open(pages["many"], *DESKTOP, view=restored)
    assert browser.evaluate("document.getElementById('compare').textContent") == said and browser.errors == []


def test_rows_with_other_test_images_have_no_difference(browser, pages):
    view = "result?pins=ursl@paper@cifar100-cifar10-p-0-05-m-500,ursl@paper@cifar10-cifar100-p-0-1-m-200"
    browser.open(pages["results"], *DESKTOP, view=view)
    ((_, gap, *_),) = differences(browser)
    said = browser.evaluate("document.getElementById('compare').textContent")
    assert gap == "—" and "a difference in points would be meaningless" in said


def test_rows_of_different_schedules_are_not_compared(browser, pages):
    here = "cifar100-cifar10-p-0-05-m-500"
    browser.open(pages["results"], *DESKTOP, view=f"result?pins=ursl@paper@{here},ursl@short@{here}")
    assert differences(browser) == []
    assert "schedules never share a figure" in browser.evaluate("document.getElementById('compare').textContent")


def test_a_hardly_trained_method_is_not_drawn_as_a_baseline_until_it_is_pinned(browser, pages):
    browser.open(pages["results"], *DESKTOP, view=f"result?{SHORT_CIFAR100}")
    assert not [bar for bar in browser.evaluate(BARS) if bar.startswith("co2l")]
    note = "document.querySelector('#final .note').textContent"
    assert "because of few updates at this schedule: co2l (5.3 %, 900 updates" in browser.evaluate(note)
    pin(browser, "co2l")
    assert [bar for bar in browser.evaluate(BARS) if bar.startswith("co2l")]


def test_a_link_restores_the_view(browser, pages):
    browser.open(pages["results"], *DESKTOP)
    choose(browser, "schedule", 1)
    pin(browser, "ursl", "co2l")
    browser.evaluate("document.getElementById('confusion').open = true")
    browser.wait("location.hash.includes('open=confusion')")
    seen = [browser.evaluate(words) for words in (CONCLUSION, BARS, "document.getElementById('compare').textContent")]
    view = browser.evaluate("document.querySelector('#confusion .link').hash").removeprefix("#")
    browser.open(pages["results"], *DESKTOP, view=view)
    assert [
        browser.evaluate(words) for words in (CONCLUSION, BARS, "document.getElementById('compare').textContent")
    ] == seen
    assert browser.evaluate("document.getElementById('confusion').open")
    assert browser.evaluate(
        "Math.abs(document.getElementById('confusion').getBoundingClientRect().top) < innerHeight / 2"
    )


def test_every_section_has_a_link_that_leads_there(browser, pages):
    browser.open(pages["results"], *DESKTOP)
    links = browser.evaluate("[...document.querySelectorAll('nav a')].map(link => link.dataset.to)")
    assert links == browser.evaluate(
        "[...document.querySelectorAll('main > section, .pair > section, .part')].map(part => part.id)"
    )
    for link in links:
        browser.evaluate(f"document.querySelector('nav a[data-to={link}]').click()")
        assert browser.evaluate(f"document.getElementById('{link}').getBoundingClientRect().top < innerHeight")
    assert browser.errors == []


@pytest.mark.parametrize(
    "view", ["nowhere?setting=x&schedule=y&pins=z,,&step=99&open=nothing", "?", "%ff", "gate?step=-1"]
)
def test_an_invalid_address_opens_the_page_as_usual(browser, pages, view):
    browser.open(pages["results"], *DESKTOP, view=view)
    assert browser.evaluate(CONCLUSION).startswith("On ") and browser.errors == []


# ----- print, colours, keyboard


def test_everything_but_the_runs_is_printed(browser, pages):
    browser.open(pages["demo"], *DESKTOP, dark=True)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"  # on white paper
    closed = "[...document.querySelectorAll('.part')].filter(part => !part.open).map(part => part.id)"
    assert browser.evaluate(closed) == ["runs"]
    assert browser.evaluate("document.querySelectorAll('#scores svg, #confusion table').length") >= 4
    browser.page.emulate_media(media="print")
    assert not browser.evaluate("document.querySelector('.bar').checkVisibility()")


def test_the_page_follows_the_system_and_the_button(browser, pages):
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(pages["demo"], *DESKTOP)
    light = browser.evaluate(ground)
    browser.page.get_by_role("button", name="Switch between light and dark").click()
    dark = browser.evaluate(ground)
    browser.page.reload()
    assert browser.evaluate(ground) == dark  # it is remembered
    browser.open(pages["demo"], *DESKTOP, dark=True)
    assert light != dark == browser.evaluate(ground)


@SIZES
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", ["results", "demo"])
def test_axe_finds_no_serious_barrier(browser, pages, page, size, dark):
    pytest.importorskip("axe_playwright_python")
    browser.open(pages[page], *size, dark=dark)
    open_details(browser)
    assert browser.barriers() == []


def test_the_keyboard_reaches_controls_in_order_and_shows_where_it_is(browser, pages):
    browser.open(pages["demo"], *DESKTOP)
    reached = []
    for _ in range(36):
        browser.page.keyboard.press("Tab")
        reached.append(
            browser.evaluate(
                "(e => e.id || e.className || e.dataset.pin?.split('@')[0] || e.dataset.to || e.tagName)"
                "(document.activeElement)"
            )
        )
        assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert reached[:4] == ["skip", "theme", "setting", "schedule"]
    assert reached.index("ursl-plus-unlimited") > reached.index("runs") > 4  # navigation, then the pins


def test_a_watched_page_keeps_its_view_when_it_reloads(browser, pages, tmp_path):
    page = (
        pages["demo"]
        .read_text(encoding="utf-8")
        .replace("</title>", '</title><meta name="osscl-refresh" content="1">', 1)
    )
    (tmp_path / "watched.html").write_text(page, encoding="utf-8")
    browser.open(tmp_path / "watched.html", *DESKTOP)
    pin(browser, "labels-only")
    browser.evaluate("window.before = true")
    browser.wait(
        "window.before === undefined && document.readyState === 'complete' && !!document.querySelector('.pins button')"
    )
    assert browser.evaluate("document.querySelector('[data-pin^=labels-only]').getAttribute('aria-pressed')") == "true"
