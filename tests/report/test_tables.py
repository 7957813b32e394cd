"""The headline table."""

from dataclasses import replace

import pytest

from osscl.config import override
from osscl.methods import CONFIGURATIONS
from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE
from osscl.paper.tables import cell_of
from osscl.report.tables import beside, headline, paper_of


@pytest.mark.parametrize("schedule", [PAPER, SHORT])
def test_the_papers_number_is_beside_an_ablation_that_a_table_has(ursl, schedule):
    cell = cell_of("T4", "without-td/ursl")
    record = replace(ursl, spec=cell.spec(schedule, 0))
    column = headline([record]).columns.index("the paper %")
    assert headline([record]).rows[0][column] == "28.4 ± 0.7" and beside(record) == (28.4, 0.7)
    assert paper_of(record) is None  # it is not URSL as it stands, whose mark a figure has
    fewer = replace(ursl, spec=cell_of("T12", "1000-9000/ursl").spec(schedule, 0))
    assert beside(fewer) == paper_of(fewer) == (21.0, 1.1)


def test_the_papers_number_is_not_beside_an_ablation_that_no_table_has(ursl):
    for config in (CONFIGURATIONS["labels-only"], override(CONFIGURATIONS["ursl"], ["learner.gamma=0"])):
        other = replace(ursl, spec=replace(ursl.spec, method=config))
        assert beside(other) is paper_of(other) is None
    plus = replace(ursl, spec=replace(ursl.spec, method=CONFIGURATIONS["ursl-plus"]))
    assert beside(plus) == (72.8, 0.9)
    column = headline([plus]).columns.index("the paper %")
    assert headline([plus]).rows[0][column] == "72.8 ± 0.9 (URSL)"  # whose it is, for it is not that of ours
    assert headline([ursl]).rows[0][column] == "72.8 ± 0.9"


@pytest.mark.parametrize("schedule", [SMOKE, DEMO, replace(PAPER, name="own", max_updates=3)])
def test_the_papers_number_is_not_beside_a_run_that_only_tries(ursl, schedule):
    tried = replace(ursl, spec=replace(ursl.spec, schedule=schedule))
    row = dict(zip(headline([tried]).columns, headline([tried]).rows[0], strict=True))
    assert row["the paper %"] == "—"


def test_missing_is_a_dash(ursl):
    blind = replace(ursl, forgetting=None, steps=tuple(replace(step, gate=None) for step in ursl.steps))
    row = dict(zip(headline([blind]).columns, headline([blind]).rows[0], strict=True))
    assert row["forgetting"] == row["gate AUROC, first → last step"] == "—"
