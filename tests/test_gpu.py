"""On a CUDA device: every method's captured updates are what the same updates are without capture."""

import math
import os
from dataclasses import replace

import pytest
import torch

from osscl import device as devices
from osscl.agent.classifier import ContinualClassifier
from osscl.config import override
from osscl.learn.optimiser import Descent
from osscl.methods import CONFIGURATIONS, METHODS, learner, reference
from osscl.methods import base as phases
from osscl.methods import gem as gem_method
from osscl.methods.base import Runtime
from osscl.runs.evaluate import judge_known
from osscl.runs.presets import on_small_net
from osscl.tools.battery import held_out, maker, toy_stream

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True, scope="module")
def same_again():
    """Kernels that give the same bits twice: two trainings then differ by what is captured, and by nothing else."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.use_deterministic_algorithms(False)


class Called(devices.Replay):
    """Never captures."""

    def __init__(self, update, device, calls_before=0):
        super().__init__(update, torch.device("cpu"))


def trained(name, precision, *changes):
    stream = toy_stream()
    banks = {key: in_colour(bank) for key, bank in stream.banks.items()}
    stream = replace(stream, banks={key: bank.to(torch.device("cuda")) for key, bank in banks.items()})
    config = override(on_small_net(CONFIGURATIONS[name]), changes)
    make = replace(maker(METHODS[type(config)], config, stream), runtime=Runtime(torch.device("cuda"), precision))
    agent = make(updates=8)
    for t in range(len(stream)):
        agent.learn(stream.step(t))
    return agent, stream


def predicted(name, precision, *changes):
    agent, stream = trained(name, precision, *changes)
    return agent.predict(held_out(stream).images)


def in_colour(bank):
    train, test = (replace(part, images=part.images.expand(-1, 3, -1, -1)) for part in (bank.train, bank.test))
    return replace(bank, train=train, test=test)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_captured_updates_are_the_updates(name, precision, monkeypatch):
    captured = predicted(name, precision)
    for module in (learner, reference, phases, gem_method):
        monkeypatch.setattr(module, "Replay", Called)
    called = predicted(name, precision)
    assert captured.isfinite().all()
    assert torch.equal(captured, called), (captured - called).abs().max()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_labels_are_carried_along(precision):
    agent, stream = trained("ursl-plus", precision, "head.carried=true")
    assert agent.predict(held_out(stream).images).isfinite().all()
    labels = sum(len(stream.step(t).labeled) for t in range(len(stream)))
    for network in ("learner", "reference"):
        now = agent.heads.carrier.now[network]
        assert now.means.is_cuda and int(now.labels.sum()) == labels and bool(now.means.isfinite().all())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "changes"), [("ursl", []), ("ursl-plus", ["head.carried=true"]), ("dm", [])])
def test_what_looks_known_is_told(name, changes, precision):
    agent, stream = trained(name, precision, *changes)
    found = judge_known(agent, stream, len(stream) - 1)
    assert found is not None and math.isfinite(found.threshold) and found.auroc is not None


def test_gradients_of_gem_compiled_are_the_plain_ones(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    agent, stream = trained("gem", torch.float32)
    step = stream.step(len(stream) - 1)
    rows, u, _, past_u = next(iter(agent._training(step).batches(0)))
    agent.model.learning(True)
    found = {}
    for many in (1, 100):
        monkeypatch.setattr(gem_method, "MANY", many)
        update = gem_method.GemUpdate(agent, step.labeled, agent._past_steps())
        update.starting(Descent([agent.model], agent.config.optimiser, 8))
        update._find(rows, u, past_u)
        found[update.compiled] = update.gradients
    assert set(found) == {True, False} and len(found[True]) == len(stream)
    for compiled, plain in zip(found[True], found[False], strict=True):
        assert float((compiled - plain).norm() / plain.norm()) < 1e-3


@pytest.mark.parametrize("name", ["ursl-plus", "dm", "icarl"])
def test_an_agent_learns_on_the_device_and_is_asked_anywhere(name, tmp_path):
    stream = toy_stream()
    made = ContinualClassifier(name, "smoke", memory=40, device="cuda")
    for t in range(2):
        step = stream.step(t)
        (made.update if t else made.fit)(step.labeled.images, step.labeled.labels.tolist(), step.unlabeled)
        made.save(tmp_path)
        made = ContinualClassifier.load(tmp_path, "cuda")
    images = stream.step(0).labeled.images
    here, there = made.predict(images), ContinualClassifier.load(tmp_path, "cpu").predict(images.cpu())
    assert made.class_names == ContinualClassifier.load(tmp_path, "cpu").class_names
    assert float((here.probabilities - there.probabilities).abs().max()) < 0.05  # bfloat16 there, float32 here
