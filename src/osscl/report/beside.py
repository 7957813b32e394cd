"""The comparison with the paper as tables of text, until the page takes typed tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from osscl.report.formats import TableSection, text_section
from osscl.report.paper_comparison import compare_with_paper
from osscl.report.plots import Figure
from osscl.runs.record import RunRecord


@dataclass(frozen=True)
class Beside:
    tables: Sequence[TableSection] = ()
    figures: Sequence[Figure] = ()
    values: Sequence[TableSection] = ()
    claims: Sequence[TableSection] = ()
    note: str = ""


def beside_paper(records: Sequence[RunRecord]) -> Beside:
    found = compare_with_paper(records)
    tables, values = ([text_section(table) for table in some] for some in (found.tables, found.values))
    claims = [] if found.claims is None else [text_section(found.claims)]
    return Beside(tables, found.figures, values, claims, " ".join(found.notes))
