"""Studies of recipes on validation rows."""

import json
from dataclasses import replace

import pytest
import torch

from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.methods.base import SMOKE
from osscl.runs.checkpoint import Options
from osscl.runs.run import run
from osscl.runs.spec import experiment, make_spec
from osscl.seeding import seeded
from osscl.tools import study
from osscl.tools.study import effective_rank, nearest_mean_accuracy, study_heads, study_references
from refusals import naming


def test_nearest_mean_uses_the_first_n_labels_of_each_class():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    known = Labeled(torch.empty(4, 1), torch.tensor([3, 7, 3, 7]))
    tests = torch.tensor([[1.0, 0.1], [0.1, 1.0], [0.0, 1.0]])
    asked = Labeled(torch.empty(3, 1), torch.tensor([3, 7, 7]))
    assert nearest_mean_accuracy(features, known, tests, asked, 1) == 1
    assert nearest_mean_accuracy(features, known, tests, asked, 2) == pytest.approx(1 / 3)


TINY_RUN = replace(SMOKE, name="tiny", max_updates=1, row_cap=96)
VALIDATED = replace(experiment("digits"), classes_per_step=(2, 2), related=48, unrelated=48, validation_share=0.1)


def test_reference_recipes_are_compared_with_random_weights_on_validation_rows():
    spec = make_spec("digits", "ursl", SMOKE, 0)
    random, *found = study_references(spec, [[], ["tau=.5"]], epochs=1, device="cpu")
    assert random.changes == ("random weights",) and random.loss is None and random.updates == 0
    assert [variant.changes for variant in found] == [(), ("tau=.5",)]
    assert found[0].loss != found[1].loss
    for variant in found:
        assert variant.shots == {"25": None, "5": None} == variant.centered_shots  # three labels per class
        assert variant.updates == 1  # 512 rows, batches of 512
        assert 1 <= variant.effective_rank <= variant.width


def test_the_effective_rank_is_the_number_of_equal_directions():
    x = torch.randn(2000, 3, generator=seeded(0, "x"))
    assert effective_rank(x) == pytest.approx(3, abs=0.05)
    assert effective_rank(x[:, :1] @ torch.ones(1, 5)) == pytest.approx(1, abs=1e-3)


def test_invalid_recipes_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(study, "_study", lambda *_, **__: pytest.fail("trained"))
    spec = make_spec("digits", "ursl", SMOKE, 0)
    for change in ("temperatur=1", "epochs_first=3", "pretrained=true"):
        with pytest.raises(SpecError, match=naming(change.partition("=")[0])):
            study_references(spec, [[], [change]], epochs=1, device="cpu")
    with pytest.raises(SpecError, match=naming("U_1")):
        study_references(make_spec("cifar10-full", "ursl", SMOKE, 0), [[]], epochs=1, device="cpu")


def test_n_shot_accuracy_needs_n_labels():
    spec = make_spec(replace(VALIDATED, labels_per_class=6), "ursl", TINY_RUN, 0)
    _, found = study_references(spec, [[]], epochs=1, device="cpu")
    assert found.shots["25"] is None and 0 <= found.shots["5"] <= 100


@pytest.mark.parametrize("method", ["ursl", "labels-only", "co2l"])
def test_heads_of_a_finished_run_are_refitted_on_validation_rows(method, tmp_path):
    spec = make_spec(VALIDATED, method, TINY_RUN, 0)
    record = run(spec, Options(tmp_path, device="cpu", share_references=False))
    found = study_heads(tmp_path / spec.id, [[], ["copies=0"], ["penalty=1e9"]], device="cpu")
    assert [variant.changes for variant in found] == [(), ("copies=0",), ("penalty=1e9",)]
    assert record.evaluated_on == "validation" and all(0 <= variant.final <= 100 for variant in found)
    assert found[0].final != found[2].final
    with pytest.raises(SpecError, match=naming("head.reference_weight")):
        study_heads(tmp_path / spec.id, [["reference_weight=.5"]], device="cpu")


@pytest.mark.parametrize(("method", "share"), [("gem", 0.1), ("ursl-plus-unlimited", 0.1), ("ursl", 0.0)])
def test_other_runs_and_runs_without_validation_rows_have_no_heads_to_study(method, share, tmp_path):
    spec = make_spec(replace(VALIDATED, validation_share=share), method, TINY_RUN, 0)
    run(spec, Options(tmp_path, device="cpu", share_references=False))
    with pytest.raises(SpecError, match=naming("ursl", "co2l", "--validation", tmp_path / spec.id)):
        study_heads(tmp_path / spec.id, [[]], device="cpu")


def test_a_study_of_heads_writes_a_file_and_never_overwrites_one(typed, tmp_path):
    assert typed("run", "digits", "--validation", ".1", "--schedule", "smoke", "--method", "labels-only")[0] == 0
    (folder,) = (tmp_path / "runs").glob("labels-only-*")
    assert typed("study-heads", folder, "--variant", "copies=0", "--out", "heads.json")[0] == 0
    kept = json.loads((tmp_path / "heads.json").read_text())
    assert kept["run"] == folder.name and [row["changes"] for row in kept["variants"]] == [[], ["copies=0"]]
    assert set(kept["made_by"]) == {"command", "commit", "device"} and all(kept["made_by"].values())
    code, _, error = typed("study-heads", folder, "--out", "heads.json")
    assert code == 2 and "heads.json already exists" in error
