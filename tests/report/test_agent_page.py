"""The page of an agent says what its history holds."""

import re
from pathlib import Path

import pytest
import torch

import chromium
from osscl.agent.store import HeadChoice, LearnedStep
from osscl.report.agent_page import agent_conclusion, build_agent_page, class_table, step_numbers, step_table
from osscl.report.formats import value_text

VILE = "<script>alert(1)</script>"


def step(*classes, **fields):
    usual = {
        "labeled": 30,
        "unlabeled": 100,
        "let_in": 40,
        "seconds": 2.0,
        "content": "c",
        "date": "2026-11-18T03:40:00",
    }
    return LearnedStep(classes=classes, device="cpu", **{**usual, **fields})


HISTORY = [
    step("cat", VILE, choice=HeadChoice("lda", 30, 90.0, 84.0, 88.0)),
    step("owl", further=("cat",), choice=HeadChoice("lda", 60, 92.5, 90.0, 93.0)),
    step(edit="renamed dog to wolf", labeled=0, unlabeled=0, let_in=None),
]
ENTRY = {
    "history": [vars(one) | {"choice": one.choice and vars(one.choice)} for one in HISTORY],
    "class_names": ["cat", VILE, "owl"],
}


def test_the_conclusion_says_what_it_knows_and_how_well_beside_a_baseline():
    assert agent_conclusion(HISTORY, ["cat", VILE, "owl"]) == (
        "The agent knows 3 classes after 2 steps and 60 labelled images. It names 92.5 % of 60 labelled images "
        "correctly when each is left out, 2.5 points above the nearest class mean (90.0 %)."
    )
    level = HeadChoice("lda", 1, 90.0, 90.0, 88.0)
    assert "level with the nearest class mean (90.0 %)" in agent_conclusion([step("cat", choice=level)], ["cat"])
    assert "was not measured" in agent_conclusion([step("cat")], ["cat"])


def test_classes_and_steps_are_tables():
    assert [row[:2] for row in class_table(["cat", "owl"], HISTORY, None).rows] == [("cat", 1), ("owl", 2)]
    rows = [[value_text(value) for value in row] for row in step_table(HISTORY).rows]
    assert rows[1][:6] == ["2", "owl, more of cat", "30", "100", "40", "92.5"]
    assert rows[2][:6] == ["3", "renamed dog to wolf", "—", "—", "—", "—"]


def test_only_what_was_measured_is_drawn():
    assert step_numbers([step("cat", let_in=None)]) == {}
    assert step_numbers(HISTORY)["known"] == {"looks known": [0.4, 0.4, None]}


def test_nothing_in_a_name_can_break_out_of_its_place():
    page = build_agent_page(ENTRY, VILE)
    assert VILE not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.skipif(chromium.PROGRAM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_drawn_without_an_error_and_nothing_sticks_out(tmp_path, width):
    (tmp_path / "agent.html").write_text(build_agent_page(ENTRY, "birds"), encoding="utf-8")
    with chromium.Browser(tmp_path / "profile") as browser:
        browser.open(tmp_path / "agent.html", width)
        assert browser.evaluate("document.querySelectorAll('#accuracy svg circle').length") == 6
        assert browser.evaluate("document.documentElement.scrollWidth") <= width and browser.errors == []


def test_the_command_makes_the_page_of_an_agent(typed, tmp_path):
    from osscl.agent.classifier import ContinualClassifier

    images = torch.randint(0, 256, (12, 1, 8, 8), dtype=torch.uint8)
    made = ContinualClassifier(schedule="smoke", device="cpu").fit(images, ["cat"] * 6 + ["owl"] * 6)
    made.save(tmp_path / "birds")
    code, shown, problems = typed("report", "birds")
    assert (code, problems) == (0, "") and shown == "Wrote report.html\n"
    page = Path(tmp_path / "report.html").read_text()
    assert re.search(r"The agent knows 2 classes after 1 step and 12 labelled images", page)
    assert typed("report", "birds", "--format", "csv", "--out", "x.csv")[0] == 2
