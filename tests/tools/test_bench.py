"""The tools that measure: bench, what it is held against, and the study of reference recipes. No test of speed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from osscl.cli.measure import bench as bench_command
from osscl.config import override
from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.methods import CONFIGURATIONS, METHODS
from osscl.methods.base import SMOKE, Runtime, Schedule, Setting
from osscl.runs.checkpoint import Options
from osscl.runs.run import run
from osscl.runs.spec import configuration, experiment, make_spec
from osscl.seeding import seeded
from osscl.tools import bench as against
from osscl.tools import bench_methods as measured
from osscl.tools.bench import CIFAR, BenchSpec, bench
from osscl.tools.bench_methods import MEMORY, PASSES, _step, bench_methods, on_backbone
from osscl.tools.study import nearest_mean_accuracy, study_heads, study_references
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import EncoderConfig

CPU = torch.device("cpu")
TINY = BenchSpec(EncoderConfig("small", dim=16), batch=8, pool=64, updates=1, repeats=2)


def test_bench_fills_in_every_number_and_its_ratios():
    found = bench(TINY, CPU, {"theirs": 1.0})
    assert min(found.ceiling, found.forward, found.augmentation, found.reference, found.learner_ms) > 0
    assert found.reference_share == pytest.approx(found.reference / found.ceiling)
    floor = 1000 * (2 * 16 / found.ceiling + 2 * 16 / found.forward)
    assert found.learner_floor_ms == pytest.approx(floor)
    assert found.learner_share == pytest.approx(floor / found.learner_ms)
    assert found.against == {"theirs": 1.0}


def test_the_pillow_view_is_an_image_of_the_same_size_in_zero_to_one():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))
    views = torch.stack([against.pillow_view(image) for _ in range(50)])
    assert views.shape == (50, 3, 32, 32)
    assert torch.all((views >= 0) & (views <= 1))
    assert len(views.unique(dim=0)) > 25  # unseeded, so two may coincide


def test_a_torchvision_that_cannot_be_imported_leaves_pillow(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchvision", None)
    assert against.user_transform() == ("Pillow", against.pillow_view)


def test_the_plain_loop_trains(monkeypatch):
    losses, nt_xent = [], against.nt_xent
    monkeypatch.setattr(against, "nt_xent", lambda *given: losses.append(nt_xent(*given)) or losses[-1])
    update, x = against.plain_update(TINY, CPU, torch.float32), torch.rand(16, 3, 32, 32, generator=seeded(0, "views"))
    for _ in range(8):
        update(x)
    assert losses[-1] < losses[0]


def test_nearest_mean_goes_by_the_first_n_labels_of_each_class():
    features = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    known = Labeled(torch.empty(4, 1), torch.tensor([3, 7, 3, 7]))
    tests = torch.tensor([[1.0, 0.1], [0.1, 1.0], [0.0, 1.0]])
    asked = Labeled(torch.empty(3, 1), torch.tensor([3, 7, 7]))
    assert nearest_mean_accuracy(features, known, tests, asked, 1) == 1
    assert nearest_mean_accuracy(features, known, tests, asked, 2) == pytest.approx(1 / 3)


def test_a_study_judges_each_recipe_on_validation_rows():
    spec = make_spec(experiment("digits"), configuration("ursl"), SMOKE, 0)
    found = study_references(spec, [[], ["tau=.5"]], epochs=1, device="cpu")
    assert [variant.changes for variant in found] == [(), ("tau=.5",)]
    assert found[0].loss != found[1].loss
    for variant in found:
        assert variant.shots == {"25": None, "5": None}  # three labels a class
        assert variant.updates == 1  # 512 rows, batches of 512


def test_a_wrong_recipe_is_refused_before_the_first_is_trained():
    spec = make_spec(experiment("digits"), configuration("ursl"), SMOKE, 0)
    for change in ("temperatur=1", "epochs_first=3", "pretrained=true"):
        with pytest.raises(SpecError, match=change.partition("=")[0]):
            study_references(spec, [[], [change]], epochs=1, device="cpu")


def test_shots_are_those_there_are():
    scenario = replace(experiment("digits"), labels_per_class=6)
    (found,) = study_references(make_spec(scenario, configuration("ursl"), SMOKE, 0), [[]], epochs=1, device="cpu")
    assert found.shots["25"] is None and 0 <= found.shots["5"] <= 100


def test_heads_are_studied_on_the_network_of_a_run_and_on_validation_rows_alone(tmp_path):
    scenario = replace(experiment("digits"), validation_share=0.1)
    for chosen in (scenario, experiment("digits")):
        spec = make_spec(chosen, configuration("ursl"), SMOKE, 0)
        record = run(spec, Options(tmp_path, device="cpu"))
        if chosen is scenario:
            found = study_heads(tmp_path / spec.id, [["copies=0"], ["penalty=1e6"], ["reference=.5"]], device="cpu")
            assert [variant.changes[0] for variant in found] == ["copies=0", "penalty=1e6", "reference=.5"]
            assert record.evaluated_on == "validation" and all(0 <= variant.final <= 100 for variant in found)
        else:
            with pytest.raises(SpecError, match="--validation"):
                study_heads(tmp_path / spec.id, [[]], device="cpu")


def test_heads_of_co2l_are_studied_and_those_it_has_no_means_for_refused(tmp_path):
    scenario = replace(experiment("digits"), validation_share=0.1)
    spec = make_spec(scenario, override(configuration("co2l"), ["head.memory=after"]), SMOKE, 0)
    record = run(spec, Options(tmp_path, device="cpu"))
    as_it_was, broken = study_heads(tmp_path / spec.id, [[], ["penalty=1e9"]], device="cpu")
    assert as_it_was.final == pytest.approx(record.final), "the memory is as it was when this head was fitted"
    assert broken.final != as_it_was.final
    for change in ("reference=.5", "pseudo=gate", "carried=true", "memory=before"):
        with pytest.raises(SpecError, match=change.partition("=")[0]):
            study_heads(tmp_path / spec.id, [[change]], device="cpu")
    other = make_spec(scenario, configuration("gem"), SMOKE, 0)
    run(other, Options(tmp_path, device="cpu"))
    with pytest.raises(SpecError, match="ursl or co2l"):
        study_heads(tmp_path / other.id, [[]], device="cpu")


def test_a_study_of_heads_is_kept_where_asked_and_overwrites_nothing(typed, tmp_path):
    assert typed("run", "digits", "--validation", ".1", "--schedule", "smoke")[0] == 0
    (folder,) = (tmp_path / "runs").glob("ursl-*")
    assert typed("study-heads", folder, "--variant", "copies=0", "--out", "heads.json")[0] == 0
    kept = json.loads((tmp_path / "heads.json").read_text())
    assert kept["run"] == folder.name and [row["changes"] for row in kept["variants"]] == [[], ["copies=0"]]
    assert set(kept["made_by"]) == {"command", "commit", "device"} and all(kept["made_by"].values())
    code, _, error = typed("study-heads", folder, "--out", "heads.json")
    assert code == 2 and "heads.json exists" in error


def test_the_past_is_asked_where_a_run_has_kept_it(tmp_path):
    scenario = replace(experiment("digits"), validation_share=0.1)
    for name in ("ursl", "ursl-plus"):
        spec = make_spec(scenario, configuration(name), SMOKE, 0)
        run(spec, Options(tmp_path, device="cpu"))
        if name == "ursl-plus":
            assert len(study_heads(tmp_path / spec.id, [[], ["pseudo=none"]], device="cpu")) == 2
        else:
            with pytest.raises(SpecError, match="which this run has not kept"):
                study_heads(tmp_path / spec.id, [["pseudo=past"]], device="cpu")


def test_heads_that_a_run_has_no_means_for_are_refused(tmp_path):
    scenario = replace(experiment("digits"), validation_share=0.1)
    spec = make_spec(scenario, configuration("labels-only"), SMOKE, 0)
    run(spec, Options(tmp_path, device="cpu"))
    for change in ("reference=.5", "pseudo=gate", "pseudo=past", "memory=before", "carried=true"):
        with pytest.raises(SpecError, match=change.partition("=")[0]):
            study_heads(tmp_path / spec.id, [[], [change]], device="cpu")


def test_kornia_is_measured_where_it_is_installed_and_on_a_cpu(monkeypatch):
    asked = []
    monkeypatch.setattr(against, "_rate", lambda *_: 1.0)
    monkeypatch.setattr(against, "kornia_views", lambda: lambda x: asked.append(x.shape))
    found = against.against(TINY, CPU)
    assert found["kornia's augmentation alone"] > 0 and set(asked) == {(2 * TINY.batch, 3, 32, 32)}
    monkeypatch.setattr(against, "kornia_views", lambda: None)
    assert not any("kornia" in name for name in against.against(TINY, CPU))


def test_a_method_is_held_against_its_own_bare_passes():
    assert set(PASSES) >= {"ursl", "co2l", "co2l-j", "co2l-p", "gd", "dm", "gem", "icarl"}
    first, last = bench_methods(CPU, updates=1, repeats=1, backbone="small", names=["gem", "icarl"])
    assert [row.name for row in last.methods] == ["gem", "icarl"] and first.methods == last.methods[:1]
    for row in last.methods:
        assert row.milliseconds > 0 and row.ratio == pytest.approx(row.milliseconds / row.floor)


def test_methods_are_measured_one_by_one_and_kept_after_each(monkeypatch, tmp_path, capsys):
    out, tiny = tmp_path / "methods.json", {"device": "cpu", "backbone": "small", "updates": 1, "repeats": 2}

    def cost(name, *_):
        if name == "gem":
            raise KeyboardInterrupt
        return measured.MethodCost(name, 32, 2.0, 1.0, 2.0)

    monkeypatch.setattr(measured, "_cost", cost)
    with pytest.raises(KeyboardInterrupt):
        bench_command(
            device="cpu", methods=True, only=["icarl", "gem"], out=out, backbone="small", updates=1, repeats=2
        )
    assert [row["name"] for row in json.loads(out.read_text())["methods"]] == ["icarl"]
    assert "icarl: 2.00 ms per update" in capsys.readouterr().err
    with pytest.raises(SpecError, match="unknown method 'ewc'"):
        bench_command(**tiny, methods=True, only=["ewc"])
    with pytest.raises(SpecError, match="--methods"):
        bench_command(**tiny, only=["gem"])


@pytest.mark.parametrize("name", ["co2l", "gd", "gem", "icarl"])  # the others' batches take a CPU too long
def test_the_bare_passes_are_those_that_the_method_reports(name):
    """Views of an update, as the second step's phase counts them."""
    passes = PASSES[name]
    setting = Setting(CIFAR, Augmentation(), MEMORY, 0, Schedule("one", max_updates=1))
    agent = METHODS[type(CONFIGURATIONS[name])](on_backbone(CONFIGURATIONS[name], "small"), setting, Runtime())
    agent.learn(_step(0, CPU))
    phases = {phase.name: phase for phase in agent.learn(_step(1, CPU)).phases}
    assert phases[passes.phase].views == sum(passes.trained)
