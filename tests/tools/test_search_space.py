"""Search spaces: fields that follow others, and folders of any name."""

import pytest

from osscl.runs.spec import configuration
from osscl.tools.search_space import changed, space_of


def test_a_field_may_follow_another_if_only_both_together_are_valid():
    config = configuration("gem")  # a constant rate: min_rate equals rate
    space = space_of(["optimiser.rate=0.001..0.1:log", "optimiser.min_rate=optimiser.rate"], None, config)
    made, changes = changed(config, space, {"optimiser.rate": "0.002"})
    assert made.optimiser.rate == made.optimiser.min_rate == 0.002
    assert changes == ("optimiser.rate=0.002", "optimiser.min_rate=0.002")


def test_the_folder_of_a_search_may_have_any_name(typed, refuses, tmp_path):
    pytest.importorskip("optuna")
    search = ["tune", "digits", "--method", "gem", "--schedule", "smoke", "--search", "margin=[0,1]", "--trials", 1]
    folder = tmp_path / "what? a%41b"
    assert typed(*search, "--out", folder)[0] == 0
    assert list(folder.rglob("trials.sqlite3")) and [path.name for path in tmp_path.glob("what*")] == [folder.name]
    (tmp_path / "file").write_text("")
    refuses(*search, "--out", tmp_path / "file", words="cannot write to the output folder")
    refuses(*search[:-4], "--search", "margin=[2020-01-01]", "--out", tmp_path / "x", words="cannot read the values")
