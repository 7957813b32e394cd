"""What somebody may type, leave lying about or do at the wrong moment: each was a traceback or a loss once."""

import json
import os
import signal
from dataclasses import replace

import pytest

from osscl.errors import Stopped
from osscl.methods.base import SMOKE
from osscl.paper.plan import known_records
from osscl.runs.checkpoint import Options, Unwatched
from osscl.runs.record import read_record, record_to_plain
from osscl.runs.run import run
from osscl.runs.spec import configuration, experiment, make_spec
from osscl.tools.search_space import changed, space_of

SPEC = make_spec(experiment("digits"), configuration("gem"), SMOKE, 0)


class StopsAtTheEnd(Unwatched):
    """A polite kill while the last step is being looked at."""

    def stepped(self, t, steps, overall, record):
        if t + 1 == steps:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_stop_at_the_very_end_keeps_the_run_and_starts_no_other(tmp_path):
    with pytest.raises(Stopped):
        run(SPEC, Options(tmp_path, device="cpu", watcher=StopsAtTheEnd()))
    assert read_record(tmp_path / SPEC.id / f"{SPEC.id}.json").id == SPEC.id


def test_hidden_files_of_the_user_stay_and_old_drafts_go(tmp_path):
    folder = tmp_path / SPEC.id
    folder.mkdir()
    (folder / ".notes.2024.txt").write_text("mine")
    (folder / ".folder.2024").mkdir()
    (folder / ".spec.json.4711").write_text("half a draft")
    run(SPEC, Options(tmp_path, device="cpu"))
    assert (folder / ".notes.2024.txt").read_text() == "mine" and (folder / ".folder.2024").is_dir()
    assert not (folder / ".spec.json.4711").exists()


def test_a_record_whose_id_is_not_its_specs_stands_in_no_cell(tmp_path):
    record = run(SPEC, Options(tmp_path, device="cpu"))
    forged = record_to_plain(replace(record, final=99.9))
    forged["spec"]["method"]["epochs"] = 1
    (tmp_path / "forged").mkdir()
    (tmp_path / "forged" / "x.json").write_text(json.dumps(forged))
    records, problems = known_records([tmp_path / "forged"])
    assert not records and "its id is not that of its spec" in problems[0]


@pytest.mark.parametrize("method", ["gd", "dm", "gem", "icarl"])
def test_a_backbone_that_is_none_is_refused_before_anything_runs(refuses, method):
    refuses("run", "digits", "--method", method, "--schedule", "smoke", "--dry-run", "--set", "backbone=foo",
            words=["unknown backbone 'foo'", "resnet18"])  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("batch=2020-99-99", "cannot read the value"),
        ("temperature=1e300", "temperature must be at most 1000"),
        ("schedule.share=1e308", "share must be in (0, 1000]"),
        ("batch=1", "batch must be at least 2"),
    ],
)
def test_values_that_no_run_survives(refuses, change, words):
    refuses("run", "digits", "--method", "dm", "--dry-run", "--set", change, words=words)


def test_dm_learns_from_a_single_image_at_first(typed):
    code, _, said = typed("run", "digits", "--method", "dm", "--schedule", "smoke", "--labels-per-class", 1,
                          "--memory", 0, "--set", "scenario.classes_per_step=[1,1,1]", "--device", "cpu")  # fmt: skip
    assert code == 0, said


def test_an_experiment_without_unlabelled_images_has_no_reference_to_study(refuses):
    refuses("study", "cifar10-full", "--schedule", "smoke", words="no unlabelled images")


def test_too_many_seeds_in_parts_are_too_many(refuses):
    refuses("run", "digits", "--seeds", "0-999,1000-1999", "--dry-run", words="at most 1000")


def test_a_search_lies_in_its_folder_whatever_that_is_called(typed, refuses, tmp_path):
    pytest.importorskip("optuna")
    search = ["tune", "digits", "--method", "gem", "--schedule", "smoke", "--search", "margin=[0,1]", "--trials", 1]
    folder = tmp_path / "what? a%41b"
    assert typed(*search, "--out", folder)[0] == 0
    assert list(folder.rglob("trials.sqlite3")) and [path.name for path in tmp_path.glob("what*")] == [folder.name]
    (tmp_path / "file").write_text("")
    refuses(*search, "--out", tmp_path / "file", words="cannot write to the output folder")
    refuses(*search[:-4], "--search", "margin=[2020-01-01]", "--out", tmp_path / "x", words="cannot read the values")


def test_a_closed_stdout_is_no_error(monkeypatch):
    from osscl.cli import show

    monkeypatch.setattr("sys.stdout", None)
    assert not show.on_terminal()


def test_a_field_may_follow_another_where_only_both_together_are_valid():
    config = configuration("gem")  # a constant rate: its least rate is its rate
    space = space_of(["optimiser.rate=0.001..0.1:log", "optimiser.min_rate=optimiser.rate"], None, config)
    made, changes = changed(config, space, {"optimiser.rate": "0.002"})
    assert made.optimiser.rate == made.optimiser.min_rate == 0.002
    assert changes == ("optimiser.rate=0.002", "optimiser.min_rate=0.002")
