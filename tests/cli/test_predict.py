"""Predictions are shown alike in a table, in CSV and in JSON, whatever classes and images are called."""

import json
import re

import pytest
import torch

from osscl.cli.predict import _show
from osscl.runs.model import Prediction


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def prediction(calibrated):
    shares = torch.tensor([[0.75, 0.25]])
    names = ("class_1", "probability_2, score")
    known = torch.tensor([True])
    return Prediction(
        torch.tensor([0]), names[:1], shares[:, 0], torch.tensor([0.4567]), known, names, shares, calibrated
    )


def cells(shown):
    return [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in shown.splitlines() if line[0] in "┃│"]


def test_a_table_has_one_column_for_further_classes(capsys):
    _show(prediction(calibrated=True), ["class_1.png"], [], 2, "table")
    head, row = cells(capsys.readouterr().out)
    assert head == ["image", "class", "probability", "then", "known %", "looks known"]
    assert row == ["class_1.png", "class_1", "0.75", "probability_2, score 0.25", "45.7", "yes"]


def test_csv_and_json_have_two_columns_for_each_further_class(capsys):
    _show(prediction(calibrated=False), ["class_1.png"], ["class_2"], 2, "json")
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "image": "class_1.png", "truth": "class_2", "class": "class_1", "probability": 0.75,
        "class_2": "probability_2, score", "probability_2": 0.25, "score": pytest.approx(0.4567), "looks_known": True,
    }  # fmt: skip
    _show(prediction(calibrated=True), ["class_1.png"], [], 2, "csv")
    head, line = capsys.readouterr().out.splitlines()
    assert head == "image,class,probability,class_2,probability_2,known_percent,looks_known"
    assert line == 'class_1.png,class_1,0.75,"probability_2, score",0.25,45.7,True'


def test_without_scores_the_answer_is_a_dash_or_empty(capsys):
    made = Prediction(torch.tensor([0]), ("cat",), torch.tensor([0.5]), None, None)
    _show(made, ["a"], [], 1, "table")
    assert cells(capsys.readouterr().out)[1] == ["a", "cat", "0.50", "—", "—"]
    _show(made, ["a"], [], 1, "csv")
    assert capsys.readouterr().out.splitlines() == ["image,class,probability,score,looks_known", "a,cat,0.5,,"]
