"""Typed tables: one value in every format, escaped where a format needs it."""

import csv
import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from osscl.paper.verdict import Verdict
from osscl.report.formats import (
    Column,
    Number,
    ResultTable,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_rich,
    value_text,
)

COLUMNS = (
    Column("row"), Column("verdict", "verdict"), Column("ours", "mean", ours=True), Column("paper", "published"),
    Column("seeds", "seeds"), Column("steps", "number"), Column("schedule", only_csv=True),
)  # fmt: skip
OURS = Number(36.62, 0.44, 3, is_percent=True, published=30.4)
TABLE = ResultTable(
    "T̂ & <U_t>", COLUMNS,
    [
        ("50 % of a|b", Verdict("reached", None, 3), OURS, Number(30.4, 0.2), (0, 1, 2), 10, "paper"),
        ("=1+1", Verdict("not run"), None, None, (), 0, "paper"),
    ],
    ("A note.", "Another one."),
)  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        ((), "—"),
        ((0, 2), "0, 2"),
        (0, "0"),
        (Number(3.25), "3.2"),
        (Number(3.0, n=1), "3.0 (n=1)"),
        (Number(1.5, 0.25, 2, "min", signed=True), "+1.5 ± 0.2 min (n=2)"),
        (Number(58.2, 0.8, remark="URSL"), "58.2 ± 0.8 (URSL)"),
        (Verdict("reached", n=3), "reached"),
        (Verdict("short", 0.42, 3), "short by 0.4"),
        (Verdict("short", 0.04, 3), "short by 0.04"),
        (Verdict("few seeds", None, 1), "n = 1"),
        (Verdict("few seeds", 2.0, 2), "n = 2, short by 2.0"),
        (Verdict("few seeds", 2.0, 2, "over"), "n = 2, over by 2.0"),
        (Verdict("undecided", compared=1, comparisons=12), "undecided (1 of 12 compared)"),
        (Verdict("undecided", compared=2, comparisons=2), "undecided"),
    ],
)
def test_a_value_as_text(value, text):
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("kind", "mood"), [("reached", "good"), ("holds", "good"), ("short", "bad"), ("over", "bad"), ("refuted", "bad"),
                       ("few seeds", "open"), ("not run", "open"), ("undecided", "open"), ("tried", "open")]
)  # fmt: skip
def test_a_verdict_has_a_mood(kind, mood):
    assert Verdict(kind).mood == mood


def test_csv_has_one_number_per_field_and_no_formula():
    head, first, second = csv.reader(io.StringIO(to_csv(TABLE)))
    assert head == ["row", "verdict", "verdict_distance", "ours", "ours_std", "ours_n", "paper", "paper_std", "seeds",
                    "steps", "schedule"]  # fmt: skip
    assert first == ["50 % of a|b", "reached", "", "36.62", "0.44", "3", "30.4", "0.2", "0 1 2", "10", "paper"]
    assert second == ["'=1+1", "not run", "", "", "", "0", "", "", "", "0", "paper"]


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@x", "\tx"])
def test_csv_text_that_starts_a_formula_is_quoted_and_a_negative_number_is_not(text):
    table = ResultTable("", (Column("a"), Column("b", "number")), [(text, Number(-1.5))])
    assert list(csv.reader(io.StringIO(to_csv(table))))[1] == [f"'{text}", "-1.5"]


def test_markdown_and_latex_escape_their_own_signs_and_leave_out_what_is_only_for_csv():
    lines = to_markdown(TABLE).splitlines()
    assert lines[0] == "| row | verdict | ours | paper | seeds | steps |" and lines[1] == "|---|---|---|---|---|---|"
    assert lines[2] == "| 50 % of a\\|b | reached | 36.6 ± 0.4 (n=3) | 30.4 ± 0.2 | 0, 1, 2 | 10 |"
    latex = to_latex(TABLE)
    assert r"50 \% of a$|$b & reached & 36.6 $\pm$ 0.4 (n=3)" in latex and latex.count("tabular") == 2
    assert r"$\hat T$ \& $\hat U$" in to_latex(ResultTable("", (Column("T̂ & Û"),), []))


class Cells(HTMLParser):
    """The cells of a table: tag, attributes and text."""

    def __init__(self, page):
        super().__init__()
        self.cells = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th"):
            self.cells.append([tag, dict(attrs), ""])
        elif self.cells:
            self.cells[-1][1].setdefault("inside", []).append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cells:
            self.cells[-1][2] += data.strip("\n")


def test_html_has_badges_bars_and_escaped_text():
    page = to_html(TABLE, "cards")
    assert 'aria-label="T̂ &amp; &lt;U_t&gt;"' in page and "schedule" not in page
    cells = Cells(page).cells
    head, first = cells[:6], cells[6:12]
    assert [cell[2] for cell in head] == ["row", "verdict", "ours", "paper", "seeds", "steps"]
    assert first[0][:2] == ["th", {"scope": "row"}] and first[1][1]["data-label"] == "verdict"
    assert ("span", {"class": "badge good"}) in first[1][1]["inside"]
    assert ("span", {"class": "bar marked", "style": "--ours:36.6%;--paper:30.4%"}) in first[2][1]["inside"]
    assert "inside" not in first[3][1]  # the paper's number has no bar of its own
    hostile = ResultTable("", (Column("<b>"),), [("<script>U_t</script>",)])
    assert "&lt;script&gt;<i>U</i><sub>t</sub>&lt;/script&gt;" in to_html(hostile) and "<b>" not in to_html(hostile)


def test_html_rows_of_one_group_share_their_first_cells():
    rows = [("a", "x", 1), ("a", "x", 2), ("b", "x", 3)]
    table = ResultTable("", (Column("claim"), Column("verdict"), Column("n", "number")), rows, spanning=2)
    body = Cells(to_html(table)).cells[3:]
    assert [(cell[1].get("rowspan"), cell[2]) for cell in body] == [
        ("2", "a"), ("2", "x"), (None, "1"), (None, "2"), (None, "b"), (None, "x"), (None, "3"),
    ]  # fmt: skip


def test_rows_without_a_number_of_ours_can_be_split_off():
    measured, missing = TABLE.split_measured()
    assert [row[0] for row in measured.rows] == ["50 % of a|b"] and [row[0] for row in missing.rows] == ["=1+1"]
    kept = [column.name for column in missing.without_empty_columns().columns]
    assert "ours" not in kept and "verdict" in kept
    plain = ResultTable("", (Column("a"),), [("x",)])
    assert plain.split_measured()[0].rows == [("x",)]


@pytest.mark.parametrize("width", [60, 80, 160])
def test_a_terminal_shows_title_rows_and_notes_within_its_width(width):
    console = Console(width=width, file=io.StringIO(), markup=False)
    console.print(to_rich(TABLE, width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width and lines[0] == "T̂ & <U_t>" and lines[-1] == "Another one."


def test_a_table_can_be_scrolled_by_keyboard_and_shows_the_papers_symbols():
    page = to_html(ResultTable("T & U", (Column("set"),), [("τ_id, SL_t−1, learner_batch",)]))
    assert 'tabindex="0" role="region" aria-label="T &amp; U"' in page
    assert "<i>τ</i><sub>id</sub>, <i>SL</i><sub>t−1</sub>, learner_batch" in page
