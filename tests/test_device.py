"""What a GPU does to the loops, on a CPU: within one update some batches are compiled and others are not."""

import functools
import shutil

import pytest
import torch

from osscl import device
from osscl.data.images import Labeled
from osscl.methods import gem, phases
from osscl.methods.base import Runtime, Schedule, Setting
from osscl.methods.gate import Segregated
from osscl.methods.reference import ReferenceConfig
from osscl.methods.ursl import LearnerConfig, Ursl, UrslConfig
from osscl.stream.build import Step
from osscl.tools.battery import toy_stream
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import Classifier, EncoderConfig, ImageFormat, build_on_device, features_of
from toy_agents import agent_of

FROM = 24  # rows from which a batch is compiled here


@pytest.fixture
def compiling(monkeypatch):
    """Compile as on a GPU, with a backend that needs no compiler and treats gradients the same way."""

    @functools.cache
    def compiled(function):
        return torch.compile(function, backend="aot_eager", dynamic=False)

    monkeypatch.setattr(device, "worth_compiling", lambda rows: len(rows) >= FROM)
    monkeypatch.setattr(device, "_compiled", compiled)
    monkeypatch.setattr(phases, "WORTH_COMPILING", FROM)
    yield
    torch.compiler.reset()


def trained(pool: int, related: int) -> Ursl:
    """A learner after two updates on `pool` labelled images, guided by them and `related` unlabelled ones."""
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    setting = Setting(ImageFormat(1, 8, (0.5,), (0.5,)), Augmentation(flip=0), 0, 0, Schedule("two", max_updates=2))
    net, labels = EncoderConfig("small", dim=8), torch.arange(pool) % 2
    agent = Ursl(UrslConfig(ReferenceConfig(net=net), learner=LearnerConfig(net, batch=32)), setting, Runtime())
    agent.reference.history["0"] = "as if trained"
    agent.phases.begin_step(0)
    step = Step(0, (0,), Labeled(images[:pool], labels), images[:0])
    agent.train_learner(step, Segregated(setting.no_images(), images[:related]))
    return agent


@pytest.mark.parametrize(("pool", "related"), [(6, 24), (30, 2), (6, 2)])
def test_a_small_batch_learns_together_with_a_large_one(compiling, pool, related):
    learner = trained(pool, related).learner
    assert learner.compiles, "the next step's teachers are copies of this network and see large batches"


def test_compiled_updates_equal_plain_ones(compiling, monkeypatch):
    compiled = trained(30, 2).learner
    monkeypatch.setattr(device, "worth_compiling", lambda rows: False)
    for a, b in zip(compiled.parameters(), trained(30, 2).learner.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_pass_gives_several_gradients():
    rng, images = torch.Generator().manual_seed(0), ImageFormat(3, 32, (0.5,) * 3, (0.5,) * 3)
    net = build_on_device(lambda: Classifier("small", images, torch.float32), rng, torch.device("cpu"))
    net.head.grow(4, rng)
    net.learning(True)
    x = torch.rand(30, 3, 32, 32, generator=rng)

    def gradients(features):
        losses = net.head(features(x, net)).logsumexp(1).split((10, 20))
        return [torch.autograd.grad(part.sum(), list(net.parameters()), retain_graph=True) for part in losses]

    with device.compiled_for_several_gradients():
        compiled = gradients(device._compiled(features_of.__wrapped__))
    torch.testing.assert_close(compiled, gradients(features_of.__wrapped__), rtol=1e-3, atol=1e-5)
    torch.compiler.reset()


def test_small_batches_are_compiled_only_inside_the_block():
    class OnCuda(torch.Tensor):
        is_cuda = True

    rows = torch.rand(4, 1).as_subclass(OnCuda)
    assert not device.worth_compiling(rows)
    with device.compiled_for_several_gradients():
        assert device.worth_compiling(rows)
    assert not device.worth_compiling(rows)


@pytest.mark.parametrize(("many", "compiles"), [(1, True), (1000, False)])
def test_gem_joint_compiles_if_there_are_many_updates(compiling, monkeypatch, many, compiles):
    monkeypatch.setattr(gem, "MANY", many)
    stream, counted, find = toy_stream(), [], gem.GemUpdate._find_together
    agent = agent_of(gem.GemConfig("small", memory_statistics="joint"), stream, updates=2)

    def watched(self, *inputs):
        counted.append((len(self.past) > 0, agent.model.compiles, self.phase.compiles))
        return find(self, *inputs)

    monkeypatch.setattr(gem.GemUpdate, "_find_together", watched)
    for t in range(2):
        agent.learn(stream.step(t))
    assert [past for past, _, _ in counted] == [False, False, True, True]
    assert all(model == phase == (compiles and past) for past, model, phase in counted)
    assert agent.model.compiles
