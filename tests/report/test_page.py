"""The page is one file, a function of records, and nothing in them can break it."""

import json
import re
from dataclasses import replace
from pathlib import Path

from osscl.report.formats import Column, Number, ResultTable
from osscl.report.page import build_page, is_demo_page
from osscl.report.paper_comparison import PaperComparison, compare_with_paper
from osscl.runs.index import read_records

RESULTS = Path(__file__).parents[2] / "results"
VILE = '</script><script>alert("x")</script>'


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_the_page_needs_nothing_but_itself(ursl):
    page = build_page([ursl])
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page)
    assert "@import" not in page


def test_all_recorded_runs_fit_in_three_megabytes():
    records, _ = read_records(RESULTS)
    assert len(records) > 100 and len(build_page(records, paper=compare_with_paper(records)).encode()) < 3_000_000


def test_nothing_in_a_record_can_break_out_of_its_place(ursl):
    vile = replace(ursl, configuration=VILE, made_by=replace(ursl.made_by, command=f"osscl {VILE} \udc80", device=VILE))
    page = build_page(
        [vile],
        title=VILE,
        paper=PaperComparison(claims={VILE: ResultTable(VILE, (Column(VILE),), [(VILE,)], (VILE,))}, summary=VILE),
    )
    assert 'alert("x")' not in page and "&lt;script&gt;alert(&#34;x&#34;)" in page
    assert data_of(page)["chapters"][0]["rows"][0]["runs"][0]["device"] == VILE
    page.encode()  # no half characters either


def test_each_run_says_how_it_was_made(kept):
    runs = [run for chapter in data_of(build_page(kept))["chapters"] for row in chapter["rows"] for run in row["runs"]]
    for record in kept:
        (run,) = [run for run in runs if run["id"] == record.id]
        assert (run["command"], run["commit"]) == (record.made_by.command, record.made_by.commit)


def test_the_same_records_make_the_same_page(kept):
    assert build_page(kept) == build_page(list(reversed(kept)))


def test_titles_and_ids_are_unique(kept):
    page = build_page(kept, paper=compare_with_paper(kept))
    titles = re.findall(r"<h2[^>]*>([^<#]+)", page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(titles) == len(set(titles)) > 10 and len(ids) == len(set(ids))


def test_the_conclusion_can_be_read_without_a_script(ursl):
    assert (
        'aria-live="polite">On CIFAR-10 among CIFAR-100 with 10\N{NO-BREAK SPACE}% labels, URSL reaches a final'
        in build_page([ursl])
    )


def test_tables_and_claims_reach_the_page(ursl):
    table = ResultTable("T2 <b>", (Column("cell"), Column("ours", ours=True)), [("5 %", 3), ("10 %", None)], ("n=3",))
    page = build_page([ursl], paper=PaperComparison(tables={"paper": [table]}))
    assert "T2 &lt;b&gt;" in page and "Comparison with the paper" in page and "The paper&#39;s claims" not in page
    assert "1 of 2 without our result" in page and '<div data-schedule="paper">' in page
    assert "Comparison with the paper" not in build_page([ursl])


def test_the_claims_begin_with_their_summary_and_schedules_are_apart(kept):
    tables = {
        name: ResultTable(name, (Column("claim"),), [(f"it helps {name}",)], ("its own",)) for name in ("paper", "")
    }
    page = build_page(kept, paper=PaperComparison(claims=tables, summary="2 claims.", claim_notes=("more",)))
    assert (
        page.index("2 claims.")
        < page.index("it helps paper")
        < page.index("its own</p>")
        < page.index("1 claims without")
        < page.index("more</p>")
    )


def test_cells_that_were_hardly_trained_at_a_short_schedule_are_named():
    records, _ = read_records(RESULTS / "h200")
    paper = compare_with_paper(records)
    (short,) = [table for table in paper.tables["short"] if table.title.startswith("T10")]
    assert (
        "few updates at this schedule: only-supervised/co2l (900 updates), only-supervised/ursl (900 updates)."
        in short.notes[-1]
    )
    assert "T10 only-unrelated/ursl − only-supervised/co2l" in paper.claims["short"].notes[-1]
    for table in (*paper.tables["paper"], paper.claims["paper"]):
        assert not [note for note in table.notes if "few updates" in note]


def test_bars_and_marks_are_drawn_at_the_papers_schedule_only():
    paper = compare_with_paper(read_records(RESULTS / "h200")[0])
    drawn = {
        schedule: {
            value.is_percent for table in tables for row in table.rows for value in row if isinstance(value, Number)
        }
        for schedule, tables in paper.tables.items()
    }
    assert drawn["short"] == {False} and True in drawn["paper"]


def test_only_a_watched_page_reloads_itself(ursl):
    assert 'name="osscl-refresh" content="10"' in build_page([ursl], refresh=10)
    assert 'name="osscl-refresh"' not in build_page([ursl])


def test_the_demos_page_is_recognised(ursl, tmp_path):
    for demo in (True, False):
        (tmp_path / "page.html").write_text(build_page([ursl], demo=demo), encoding="utf-8")
        assert is_demo_page(tmp_path / "page.html") == demo
    assert not is_demo_page(tmp_path / "none.html")


def test_every_method_that_can_be_a_row_is_explained():
    from osscl.methods import CONFIGURATIONS
    from osscl.report.naming import METHOD_WORDS, row_words

    assert {*METHOD_WORDS} <= {*CONFIGURATIONS} and all(row_words(name) for name in CONFIGURATIONS)
