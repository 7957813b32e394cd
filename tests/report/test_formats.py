"""A table as Markdown, CSV and LaTeX."""

import csv
import io

from osscl.report.formats import TableSection, as_csv, as_latex, as_markdown, as_text

TABLE = TableSection("T̂ & U", ("a|b", "50 %"), [("x_1", "—"), ("72.8 ± 0.9", "Û, T̂ → {γ}")], "a note")


def test_markdown_keeps_its_columns():
    lines = as_markdown(TABLE).splitlines()
    assert lines[:2] == ["| a\\|b | 50 % |", "|---|---|"]
    assert len(lines) == 4


def test_csv_reads_back():
    assert list(csv.reader(io.StringIO(as_csv(TABLE)))) == [list(TABLE.columns), *map(list, TABLE.rows)]


def test_latex_makes_its_own_signs_harmless():
    text = as_latex(TABLE)
    assert r"x\_1 & --- \\" in text and r"72.8 $\pm$ 0.9 & $\hat U$, $\hat T$ $\to$ \{$\gamma$\} \\" in text
    assert text.startswith(r"\begin{tabular}{ll}")


def test_several_tables_are_told_apart_by_their_titles():
    assert as_text([TABLE, TABLE], "markdown").count("## T̂ & U") == 2
    assert "##" not in as_text([TABLE], "markdown")
