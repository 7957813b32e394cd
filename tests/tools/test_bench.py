"""Benchmarks and what they are compared with; no test of speed."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from osscl.cli.measure import bench as bench_command
from osscl.errors import SpecError
from osscl.methods import CONFIGURATIONS, method_class
from osscl.methods.base import Runtime, Schedule, Setting
from osscl.seeding import seeded
from osscl.tools import bench as tool
from osscl.tools.bench import CIFAR, MEMORY, PASSES, BenchSpec, _step, bench, bench_methods, on_backbone
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
