"""Benchmarks, what they are compared with, and studies of recipes; no test of speed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from osscl.cli.measure import bench as bench_command
from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.methods import CONFIGURATIONS, method_class
from osscl.methods.base import SMOKE, Runtime, Schedule, Setting
from osscl.runs.checkpoint import Options
from osscl.runs.run import run
from osscl.runs.spec import experiment, make_spec
from osscl.seeding import seeded
from osscl.tools import bench as tool
from osscl.tools.bench import CIFAR, MEMORY, PASSES, BenchSpec, _step, bench, bench_methods, on_backbone
from osscl.tools.study import effective_rank, nearest_mean_accuracy, study_heads, study_references
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import EncoderConfig
from refusals import naming

CPU = torch.device("cpu")
TINY = BenchSpec(EncoderConfig("small", dim=16), batch=8, pool=64, updates=1, repeats=2)


def test_bench_measures_every_number_and_its_ratios():
    found = bench(TINY, CPU, {"theirs": 1.0})
    assert min(found.ceiling, found.forward, found.augmentation, found.reference, found.learner_ms) > 0
    assert found.reference_share == pytest.approx(found.reference / found.ceiling)
    floor = 1000 * (2 * 16 / found.ceiling + 2 * 16 / found.forward)
    assert found.learner_floor_ms == pytest.approx(floor)
    assert found.learner_share == pytest.approx(floor / found.learner_ms)
    assert found.against == {"theirs": 1.0}


def test_the_pillow_view_has_the_same_size_and_range():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    views = torch.stack([tool.pillow_view(image) for _ in range(50)])
    assert views.shape == (50, 3, 32, 32)
    assert torch.all((views >= 0) & (views <= 1))
    assert len(views.unique(dim=0)) > 25  # unseeded, so two may coincide


def test_without_torchvision_pillow_is_used(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision", None)
    assert tool.user_transform() == ("Pillow", tool.pillow_view)


def test_the_plain_loop_trains(monkeypatch):
    losses, nt_xent = [], tool.nt_xent
    monkeypatch.setattr(tool, "nt_xent", lambda *given: losses.append(nt_xent(*given)) or losses[-1])
    update, x = tool.plain_update(TINY, CPU, torch.float32), torch.rand(16, 3, 32, 32, generator=seeded(0, "views"))
    for _ in range(8):
        update(x)
    assert losses[-1] < losses[0]


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


def test_invalid_recipes_are_refused_before_training():
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


def test_kornia_is_measured_if_it_is_installed(monkeypatch):
    asked = []
    monkeypatch.setattr(tool, "_rate", lambda *_: 1.0)
    monkeypatch.setattr(tool, "kornia_views", lambda: lambda x: asked.append(x.shape))
    found = tool.against(TINY, CPU)
    assert found["kornia's augmentation alone"] > 0 and set(asked) == {(2 * TINY.batch, 3, 32, 32)}
    monkeypatch.setattr(tool, "kornia_views", lambda: None)
    assert not any("kornia" in name for name in tool.against(TINY, CPU))


def test_a_method_is_compared_with_its_bare_passes():
    assert {*PASSES} == {"ursl", "co2l", "co2l-j", "co2l-p", "gd", "dm", "gem-joint", "icarl"}
    first, last = bench_methods(CPU, updates=1, repeats=1, backbone="small", names=["gem-joint", "icarl"])
    assert [row.name for row in last.methods] == ["gem-joint", "icarl"] and first.methods == last.methods[:1]
    for row in last.methods:
        assert row.milliseconds > 0 and row.ratio == pytest.approx(row.milliseconds / row.floor)


def test_every_measured_method_is_saved_at_once(monkeypatch, tmp_path, capsys):
    out, tiny = tmp_path / "methods.json", {"device": "cpu", "backbone": "small", "updates": 1, "repeats": 2}

    def cost(name, *_):
        if name == "gem-joint":
            raise KeyboardInterrupt
        return tool.MethodCost(name, 32, 2.0, 1.0, 2.0)

    monkeypatch.setattr(tool, "_cost", cost)
    with pytest.raises(KeyboardInterrupt):
        bench_command(
            device="cpu", methods=True, only=["icarl", "gem-joint"], out=out, backbone="small", updates=1, repeats=2
        )
    assert [row["name"] for row in json.loads(out.read_text())["methods"]] == ["icarl"]
    assert "icarl: 2.00 ms per update" in capsys.readouterr().err
    with pytest.raises(SpecError, match=naming("method", "ewc")):
        bench_command(**tiny, methods=True, only=["ewc"])
    with pytest.raises(SpecError, match=naming("--only", "--methods")):
        bench_command(**tiny, only=["gem"])


@pytest.mark.parametrize("name", ["co2l", "gd", "gem-joint", "icarl"])  # other batches are too slow on a CPU
def test_bare_passes_have_as_many_views_as_the_method_reports(name):
    """Views of an update, as the second step's phase counts them."""
    passes = PASSES[name]
    setting = Setting(CIFAR, Augmentation(), MEMORY, 0, Schedule("one", max_updates=1))
    agent = method_class(CONFIGURATIONS[name])(on_backbone(CONFIGURATIONS[name], "small"), setting, Runtime())
    agent.learn(_step(0, CPU))
    phases = {phase.name: phase for phase in agent.learn(_step(1, CPU)).phases}
    assert phases[passes.phase].views == sum(passes.trained)
