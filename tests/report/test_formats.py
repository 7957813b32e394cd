"""A typed table as Markdown, CSV, LaTeX and HTML."""

import csv
import io

import pytest

from osscl.paper.score import Verdict
from osscl.report.formats import Column, Number, ResultTable, prose, to_csv, to_html, to_latex, to_markdown

TABLE = ResultTable(
    "T̂ & U", (Column("a|b"), Column("50 %")), [("x_1", None), ("72.8 ± 0.9", "Û, T̂ → {γ}")], ("a note",)
)


def test_markdown_keeps_its_columns():
    lines = to_markdown(TABLE).splitlines()
    assert lines[:2] == ["| a\\|b | 50 % |", "|---|---|"]
    assert len(lines) == 4


def test_csv_reads_back():
    rows = [["a|b", "50 %"], ["x_1", ""], ["72.8 ± 0.9", "Û, T̂ → {γ}"]]
    assert list(csv.reader(io.StringIO(to_csv(TABLE)))) == rows


def test_latex_escapes_its_own_signs():
    text = to_latex(TABLE)
    assert r"x\_1 & --- \\" in text and r"72.8 $\pm$ 0.9 & $\hat U$, $\hat T$ $\to$ \{$\gamma$\} \\" in text
    assert text.startswith(r"\begin{tabular}{ll}")


@pytest.mark.parametrize(
    ("verdict", "sign"), [(Verdict("reached"), "✓"), (Verdict("short", distance=1.2), "✗"), (Verdict("undecided"), "○")]
)
def test_a_verdict_has_a_sign_beside_its_colour(verdict, sign):
    page = to_html(ResultTable("T", (Column("verdict", "verdict"),), [(verdict,)]))
    assert sign in page and "badge" in page and "badge" not in to_html(TABLE)


@pytest.mark.parametrize(
    ("ours", "drawn"),
    [
        (
            Number(27.3, n=1, is_percent=True, published=30.4),
            '<span class="bar marked" style="--ours:27.3%;--paper:30.4%">',
        ),
        (Number(36.6, 0.4, 3, is_percent=True), '<span class="bar" style="--ours:36.6%">'),
        (Number(11.4, 0.2, 3, "min"), None),
        (None, None),
    ],
)
def test_an_accuracy_beside_the_papers_is_a_bar(ours, drawn):
    page = to_html(ResultTable("T", (Column("row"), Column("ours", "mean", ours=True)), [("p05", ours)]))
    assert drawn in page if drawn else 'class="bar' not in page


def test_rows_without_a_number_of_ours_are_told_apart():
    columns = (Column("claim"), Column("needs"), Column("difference", "mean", ours=True))
    rows = [("L_sup helps", None, Number(6.5)), ("L_sup helps", None, None), ("BYOL", None, None)]
    measured, missing = ResultTable("Claims", columns, rows, spanning=1).split_measured()
    assert len(measured.rows) == 2 and [row[0] for row in missing.rows] == ["BYOL"]
    assert [column.name for column in missing.without_empty_columns().columns] == ["claim"]


def test_rows_of_one_group_share_their_first_cells():
    rows = [("T-hat", "T5 3 − 1"), ("T-hat", "T5 4 − 2")]
    page = to_html(ResultTable("Claims", (Column("claim"), Column("comparison")), rows, spanning=1))
    assert page.count("T-hat") == 1 and 'rowspan="2"' in page


def test_a_table_can_be_scrolled_by_keyboard():
    assert 'tabindex="0" role="region" aria-label="T̂ &amp; U"' in to_html(TABLE)


def test_symbols_are_set_low_and_other_words_left_alone():
    assert prose("τ_id, SL_t−1, learner_batch") == "<i>τ</i><sub>id</sub>, <i>SL</i><sub>t−1</sub>, learner_batch"
