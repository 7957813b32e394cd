"""On a CUDA device: captured updates equal the same updates without capture, for every method."""

import gc
import math
import os
import weakref
from dataclasses import replace

import pytest
import torch

from osscl import device as devices
from osscl.agent.classifier import ContinualClassifier
from osscl.config import override
from osscl.learn.batches import Shuffled, zip_pools
from osscl.methods import CONFIGURATIONS, method_class, phases
from osscl.methods.base import Runtime
from osscl.methods.gem import GemUpdate
from osscl.runs.evaluate import judge_known
from osscl.runs.spec import on_small_net
from osscl.tools.battery import held_out, maker, toy_stream
from toy_agents import stream_for

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True, scope="module")
def same_again():
    """Deterministic kernels: two trainings then differ only by what is captured."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    yield
    torch.use_deterministic_algorithms(False)


class Called(devices.Replay):
    """Never captures."""

    def __init__(self, update, device):
        super().__init__(update, torch.device("cpu"))


def trained(name, precision, *changes):
    config = override(on_small_net(CONFIGURATIONS[name]), changes)
    stream = stream_for(config, toy_stream())
    banks = {key: in_colour(bank) for key, bank in stream.banks.items()}
    stream = replace(stream, banks={key: bank.to(torch.device("cuda")) for key, bank in banks.items()})
    make = replace(maker(method_class(config), config, stream), runtime=Runtime(torch.device("cuda"), precision))
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
def test_captured_updates_equal_plain_updates(name, precision, monkeypatch):
    captured = predicted(name, precision)
    monkeypatch.setattr(phases, "Replay", Called)
    called = predicted(name, precision)
    assert captured.isfinite().all()
    assert torch.equal(captured, called), (captured - called).abs().max()


def test_the_garbage_of_an_earlier_update_is_collected_before_a_capture():
    device = torch.device("cuda")
    weights, one = torch.rand(1 << 20, device=device), torch.ones((), device=device)

    def replay(update):
        made = devices.Replay(update, device)
        for _ in range(devices.CALLS_BEFORE_CAPTURE + 2):
            total = made(one)
        return made, float(total)

    def collects(x):
        if torch.cuda.is_current_stream_capturing():
            gc.collect()
        return (weights * x).sum()

    gc.collect()
    gc.disable()
    try:
        earlier, total = replay(lambda x: (weights * x).sum())
        earlier.itself = earlier  # only the garbage collector frees it
        watched = weakref.ref(earlier)
        del earlier
        assert watched() is not None
        assert replay(collects)[1] == total
        assert watched() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_statistics_of_past_labels_stay_on_the_device(precision):
    agent, stream = trained("ursl-plus-unlimited", precision)
    assert agent.predict(held_out(stream).images).isfinite().all()
    labels = sum(len(stream.step(t).labeled) for t in range(len(stream)))
    for network in ("learner", "reference"):
        found = agent.tracker.current[network]
        assert found.means.is_cuda and int(found.labels.sum()) == labels and bool(found.means.isfinite().all())


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["ursl", "ursl-plus-unlimited", "dm"])
def test_known_images_are_detected(name, precision):
    agent, stream = trained(name, precision)
    found = judge_known(agent, stream, len(stream) - 1)
    assert found is not None and math.isfinite(found.threshold) and found.auroc is not None


def test_compiled_gradients_of_gem_equal_plain_ones(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    agent, stream = trained("gem-joint", torch.float32)
    labeled, past, found = stream.step(len(stream) - 1).labeled, agent._past_steps(), {}
    kept = sum(map(len, past))
    pools = [
        (Shuffled(n, size, 0, ("gem",), labeled.images.device), 1) for n, size in ((len(labeled), 8), (kept, kept))
    ]
    phase = agent.phases.train("gradients", [agent.model], agent.config.optimiser, 1, pools)
    rows, u, _, past_u = next(zip_pools(pools, 0))
    agent.model.learning(True)
    for compiles in (True, False):
        phase.compiles = agent.model.compiles = compiles
        update = GemUpdate(agent, labeled, past, phase)
        update._find(rows, u, past_u)
        found[compiles] = update.gradients
    assert len(found[True]) == len(stream)
    for compiled, plain in zip(found[True], found[False], strict=True):
        assert float((compiled - plain).norm() / plain.norm()) < 1e-3


@pytest.mark.parametrize("name", ["ursl-plus-unlimited", "dm", "icarl"])
def test_an_agent_trained_on_the_device_predicts_anywhere(name, tmp_path):
    stream = toy_stream()
    made = ContinualClassifier(name, "smoke", memory=40, device="cuda")
    for t in range(2):
        step = stream.step(t)
        (made.update if t else made.fit)(step.labeled.images, step.labeled.labels.tolist(), step.unlabeled)
        made.save(tmp_path)
        made = ContinualClassifier.load(tmp_path, "cuda")
    images = stream.step(0).labeled.images
    here = made.predict_detailed(images)
    there = ContinualClassifier.load(tmp_path, "cpu").predict_detailed(images.cpu())
    assert made.class_names == ContinualClassifier.load(tmp_path, "cpu").class_names
    assert float((here.probabilities - there.probabilities).abs().max()) < 0.05  # bfloat16 there, float32 here
