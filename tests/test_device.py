"""What a GPU does to the loops, tried on a CPU: some batches compiled, some not, within one update."""

import functools
import shutil

import pytest
import torch

from osscl import device
from osscl.data.images import Labeled
from osscl.methods import gem
from osscl.methods import learner as learners
from osscl.methods.base import PhaseLog, Runtime, Schedule, Setting
from osscl.methods.ursl import Learner, LearnerConfig, Lesson
from osscl.tools.battery import maker, toy_stream
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import Classifier, EncoderConfig, ImageFormat, features_of, placed

COLOUR = ImageFormat(3, 32, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
FROM = 24  # rows from which a batch is compiled here


@pytest.fixture
def compiling(monkeypatch):
    """Compile as on a GPU, by a backend that needs no compiler and keeps the bookkeeping of gradients."""

    @functools.cache
    def compiled(function):
        return torch.compile(function, backend="aot_eager", dynamic=False)

    monkeypatch.setattr(device, "worth_compiling", lambda rows: len(rows) >= FROM)
    monkeypatch.setattr(device, "_compiled", compiled)
    monkeypatch.setattr(learners, "WORTH_COMPILING", FROM)
    yield
    torch.compiler.reset()


def learn(pool: int, guide: int) -> Learner:
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    setting = Setting(ImageFormat(1, 8, (0.5,), (0.5,)), Augmentation(flip=0), 0, 0, Schedule("two", max_updates=2))
    config = LearnerConfig(net=EncoderConfig("small", dim=8), batch=32)
    learner = Learner(config, setting, Runtime())
    labels = torch.arange(pool) % 2
    lesson = Lesson(Labeled(images[:pool], labels), (pool, 0, 0), labels == 0, images[:guide], learner.encoder)
    learner.learn(lesson, 0, PhaseLog(Runtime()))
    return learner


@pytest.mark.parametrize(("pool", "guide"), [(6, 30), (30, 6), (30, 32), (6, 8)])
def test_a_small_batch_beside_a_large_one_still_learns(compiling, pool, guide):
    learner = learn(pool, guide)
    assert learner.encoder.compiles, "the next step's teachers are copies of this network, and large batches await them"


def test_compiled_updates_are_the_plain_ones(compiling, monkeypatch):
    compiled = learn(30, 32)
    monkeypatch.setattr(device, "worth_compiling", lambda rows: False)
    plain = learn(30, 32)
    for a, b in zip(compiled.encoder.parameters(), plain.encoder.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_a_compiled_pass_gives_several_gradients():
    rng = torch.Generator().manual_seed(0)
    net = placed(lambda: Classifier("small", COLOUR, torch.float32), rng, torch.device("cpu"))
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


def test_small_batches_are_compiled_inside_the_block_alone():
    class OnCuda(torch.Tensor):
        is_cuda = True

    rows = torch.rand(4, 1).as_subclass(OnCuda)
    assert not device.worth_compiling(rows)
    with device.compiled_for_several_gradients():
        assert device.worth_compiling(rows)
    assert not device.worth_compiling(rows)


@pytest.mark.parametrize(("many", "compiles"), [(1, True), (1000, False)])
def test_gem_compiles_what_many_updates_repay(compiling, monkeypatch, many, compiles):
    monkeypatch.setattr(gem, "MANY", many)
    stream = toy_stream()
    agent = maker(gem.Gem, gem.GemConfig("small"), stream)(updates=2)
    counted = []
    find = gem.GemUpdate._find_together

    def watched(self, *inputs):
        counted.append((len(self.past), agent.model.compiles, self.compiled))
        return find(self, *inputs)

    monkeypatch.setattr(gem.GemUpdate, "_find_together", watched)
    for t in range(2):
        agent.learn(stream.step(t))
    assert [past > 0 for past, _, _ in counted] == [False, False, True, True]
    assert all(now == then == (compiles and past > 0) for past, now, then in counted)
    assert agent.model.compiles
