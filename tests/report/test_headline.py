"""The headline table: one row per setting and method, the paper's number beside its own method and schedule only."""

from dataclasses import replace

import pytest

from osscl.config import override
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE
from osscl.paper.tables import cell_of
from osscl.report.chapters import headline_table, published_beside
from osscl.report.formats import value_text


def row_of(record):
    table = headline_table([record])
    return {column.name: value_text(value) for column, value in zip(table.columns, table.rows[0], strict=True)}


def test_schedules_never_share_a_row(ursl):
    short = replace(ursl, spec=replace(ursl.spec, schedule=SHORT))
    assert len(headline_table([ursl, short]).rows) == 2


def test_the_papers_number_is_shown_for_an_ablation_in_a_table(ursl):
    record = replace(ursl, spec=cell_of("T4", "without-td/ursl").spec(PAPER, 0))
    assert row_of(record)["paper %"] == "28.4 ± 0.7" and published_beside(record) == (28.4, 0.7)
    fewer = replace(ursl, spec=cell_of("T12", "1000-9000/ursl").spec(PAPER, 0))
    assert published_beside(fewer) == (21.0, 1.1)


def test_the_papers_number_is_not_shown_for_an_ablation_in_no_table(ursl, named):
    for config in (CONFIGURATIONS["labels-only"], override(CONFIGURATIONS["ursl"], ["learner.gamma=0"])):
        other = replace(ursl, spec=replace(ursl.spec, method=config))
        assert published_beside(other) is None


def test_the_papers_number_next_to_ours_names_its_method(ursl, named):
    assert row_of(named(ursl, "ursl-plus"))["paper %"] == "72.8 ± 0.9 (URSL)"
    assert row_of(ursl)["paper %"] == "72.8 ± 0.9"


@pytest.mark.parametrize("schedule", [SHORT, SMOKE, DEMO, replace(PAPER, name="own", max_updates=3)])
def test_the_papers_number_is_not_shown_for_another_schedule(ursl, schedule):
    assert row_of(replace(ursl, spec=replace(ursl.spec, schedule=schedule)))["paper %"] == "—"


def test_missing_is_a_dash(ursl):
    blind = replace(ursl, forgetting=None, steps=tuple(replace(step, gate=None) for step in ursl.steps))
    assert row_of(blind)["forgetting"] == row_of(blind)["gate AUROC, first step"] == "—"
