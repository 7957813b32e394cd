"""The page of an agent says what its history holds."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from osscl.agent.knowledge import learn_rows
from osscl.agent.store import HeadChoice, LearnedStep
from osscl.learn.unknown import summarise_pile
from osscl.report.agent_page import (
    agent_conclusion,
    build_agent_page,
    calibration_numbers,
    calibration_words,
    class_cards,
    example_pictures,
    step_numbers,
    step_table,
    why_no_pictures,
)
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


def test_the_conclusion_says_what_it_knows_and_how_well_compared_with_a_baseline():
    assert agent_conclusion(HISTORY, ["cat", VILE, "owl"]) == (
        "The agent knows 3 classes after 2 steps and 60 labelled images. It names 92.5 % of 60 labelled images "
        "correctly when each is left out, 2.5 points above the nearest class mean (90.0 %)."
    )
    level = HeadChoice("lda", 1, 90.0, 90.0, 88.0)
    assert "level with the nearest class mean (90.0 %)" in agent_conclusion([step("cat", choice=level)], ["cat"])
    assert "was not measured" in agent_conclusion([step("cat")], ["cat"])


def test_every_class_shows_the_step_that_added_it():
    cards = class_cards(["cat", "owl", "wolf"], HISTORY, None)
    assert {card.name: card.facts for card in cards} == {"cat": "since step 1", "owl": "since step 2", "wolf": ""}


def test_a_step_is_worded_by_its_classes_or_by_what_was_changed():
    assert step("cat", "a, b", further=("owl", "fox")).words == "cat, a, b; more of owl, fox"
    assert step(further=("owl",)).words == "more of owl" and HISTORY[2].words == "renamed dog to wolf"
    assert step().words == "unlabelled images only"


def test_steps_are_a_table():
    rows = [[value_text(value) for value in row] for row in step_table(HISTORY).rows]
    assert rows[1][:6] == ["2", "owl; more of cat", "30", "100", "40", "92.5"]
    assert rows[2][:6] == ["3", "renamed dog to wolf", "—", "—", "—", "—"]


def test_an_accuracy_on_no_images_is_missing_rather_than_0():
    unmeasured = step("cat", choice=HeadChoice("means", 0, 0.0, 0.0, 0.0))
    assert [column.name for column in step_table([unmeasured]).columns][5:] == ["seconds", "date"]
    assert value_text(step_table([unmeasured, *HISTORY]).rows[0][5]) == "—"
    assert "was not measured" in agent_conclusion([unmeasured], ["cat"])
    assert step_numbers([unmeasured]).keys() == {"known"}


def test_only_what_was_measured_is_drawn():
    assert step_numbers([step("cat", let_in=None)]) == {}
    assert step_numbers(HISTORY)["known"] == {"looks known": [0.4, 0.4, None]}


def test_nothing_in_a_name_can_break_out_of_its_place():
    page = build_agent_page(ENTRY, VILE)
    assert VILE not in page and "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_drawn_without_an_error_and_nothing_sticks_out(tmp_path, browser, width):
    (tmp_path / "agent.html").write_text(build_agent_page(ENTRY, "birds"), encoding="utf-8")
    browser.open(tmp_path / "agent.html", width)
    assert browser.evaluate("document.querySelectorAll('#accuracy svg circle').length") == 6
    assert browser.evaluate("document.documentElement.scrollWidth") <= width and browser.errors == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_serious_barrier(tmp_path, browser, dark):
    pytest.importorskip("axe_playwright_python")
    (tmp_path / "agent.html").write_text(build_agent_page(ENTRY, "birds"), encoding="utf-8")
    browser.open(tmp_path / "agent.html", 1280, dark=dark)
    assert browser.barriers() == []


# ----- agents that learned photographs


@pytest.fixture(scope="module")
def knowledge():
    """Three classes of twenty rows, with a picture of every second row."""
    rng = torch.Generator().manual_seed(0)
    labels = [name for name in ("cat", "dog", "owl") for _ in range(20)]
    rows = torch.randn(60, 8, generator=rng) + 4 * torch.eye(8)[torch.arange(3).repeat_interleave(20)]
    pile = summarise_pile([torch.randn(50, 8, generator=rng)], [8])
    return learn_rows(None, rows, labels, pile, [8], 60, lambda rows: [b"jpeg" * (i % 2) for i in rows])


def test_the_page_shows_the_calibration_and_pictures_of_each_class(knowledge, browser, tmp_path):
    entry = {
        "history": [vars(step("cat", "dog", "owl"))],
        "class_names": ["cat", "dog", "owl"],
        "knowledge": knowledge.state(),
        "settings": {"reject": 0.05},
    }
    numbers = calibration_numbers(entry, knowledge)["scores"]
    assert sum(numbers["counts"]) == 60 and numbers["interval"][0] < numbers["threshold"] < numbers["interval"][1]
    (tmp_path / "agent.html").write_text(build_agent_page(entry, "birds"), encoding="utf-8")
    page = browser.open(tmp_path / "agent.html", 390)
    assert page.locator("#unknown .threshold").count() == 1 and "of 60 labelled images" in calibration_words(
        entry, knowledge
    ).replace("Of", "of")
    assert page.locator("#classes li").first.locator("img").count() == 6
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390 and browser.errors == []


def test_pictures_stay_within_their_budget_and_every_class_gets_one_first(knowledge):
    assert {name: len(some) for name, some in example_pictures(knowledge, 16).items()} == {"cat": 2, "dog": 1, "owl": 1}


def test_without_pictures_the_page_says_why(knowledge):
    assert why_no_pictures(knowledge) is None
    assert "trains its own network" in why_no_pictures(None)
    assert "--memory 0" in why_no_pictures(replace(knowledge, kept_labels=(), kept_examples=()))
    assert "version that did not keep pictures" in why_no_pictures(replace(knowledge, kept_examples=(b"",) * 60))


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
