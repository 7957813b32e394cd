"""GEM: the projection against brute force, gradients of batch and memory, and batch norm statistics."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from osscl.data.images import columns_of
from osscl.learn.batches import Shuffled
from osscl.methods import CONFIGURATIONS
from osscl.methods.gem import GemConfig, GemUpdate, Statistics, dual_weights
from osscl.seeding import seeded
from osscl.tools.battery import held_out
from osscl.vision.encoder import Classifier, ImageFormat
from osscl.vision.randaugment import weak_view
from toy_agents import agent_of, learned

GEM, JOINT = GemConfig("small"), GemConfig("small", memory_statistics="joint")


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_gem_is_the_published_variant_and_gem_joint_ours():
    assert CONFIGURATIONS["gem"].memory_statistics == "shared"
    assert CONFIGURATIONS["gem-joint"] == replace(CONFIGURATIONS["gem"], memory_statistics="joint")


@pytest.mark.parametrize("seed", range(20))
def test_the_projected_gradient_raises_no_past_loss(seed):
    past, new = drawn(4, 30, seed=seed), drawn(30, seed=100 + seed)
    weights = dual_weights(past @ past.T, past @ new, margin=0.5)
    moved = new + weights @ past
    if (past @ new >= 0).all():
        assert torch.equal(moved, new)
    else:
        assert (weights >= 0.5 - 1e-5).all()
        assert (past @ moved >= -1e-2).all()


def test_the_projection_is_the_best_over_all_active_sets():
    past, new = drawn(3, 8, seed=3), drawn(8, seed=4)
    gram = (past @ past.T).double().numpy() + 1e-3 * np.eye(3)
    linear = (past @ new).double().numpy()
    best = np.inf
    for free in itertools.product([True, False], repeat=3):
        v, at = np.full(3, 0.5), np.array(free)
        if at.any():
            v[at] = np.linalg.solve(gram[np.ix_(at, at)], -(linear + gram @ np.where(at, 0, v))[at])
        if (v >= 0.5 - 1e-9).all() and v @ gram @ v / 2 + linear @ v < best:
            best, oracle = v @ gram @ v / 2 + linear @ v, v
    assert (past @ new < 0).any()
    assert dual_weights(past @ past.T, past @ new, 0.5).tolist() == pytest.approx(oracle.tolist(), abs=1e-4)


def test_without_a_violation_the_gradient_is_unchanged():
    assert not dual_weights(torch.eye(3), torch.tensor([0.0, 1.0, 2.0]), 0.5).any()


def test_nearly_equal_gradients_are_projected():
    rng = torch.Generator().manual_seed(0)
    for _ in range(200):
        past = 1e3 * torch.randn(1, 50, generator=rng) + 1e-4 * torch.randn(4, 50, generator=rng)
        new = -past[0] + torch.randn(50, generator=rng)
        weights = dual_weights(past @ past.T, past @ new, 0.5)
        assert weights.isfinite().all() and (weights >= 0.5 - 1e-5).all()


@pytest.mark.parametrize("config", [GEM, JOINT], ids=["gem", "gem-joint"])
def test_without_past_steps_gem_is_plain_descent(config, stream):
    configs = config, replace(config, constrained=False)
    assert torch.equal(*(learned(each, stream, steps=1)[0].predict(held_out(stream).images) for each in configs))


def test_merged_statistics_are_those_of_consecutive_passes():
    one, other = (Classifier("small", ImageFormat(1, 8, (0.5,), (0.25,)), torch.float32).train() for _ in range(2))
    other.load_state_dict(one.state_dict())
    batches = [torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    statistics = Statistics(other, 3)
    before = {name: value.clone() for name, value in other.state_dict().items() if "running" in name}
    for i in (2, 0, 1):  # in any order
        with statistics.at(i):
            other.features(batches[i])
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in before.items())
    statistics.fold(range(3))
    for batch in batches:
        one.features(batch)
    for name in before:
        assert torch.allclose(one.state_dict()[name], other.state_dict()[name], atol=1e-6), name
        assert not torch.equal(before[name], other.state_dict()[name])
    assert all(int(value) == 0 for name, value in other.state_dict().items() if "tracked" in name)


def test_the_memory_updates_the_running_statistics_unless_they_stay_apart(stream):
    shared, apart = (
        learned(replace(GEM, memory_statistics=mode), stream, steps=2)[0].model.state_dict()
        for mode in ("shared", "apart")
    )
    assert not all(torch.equal(shared[name], apart[name]) for name in shared if "running" in name)


@pytest.mark.parametrize("config", [GEM, JOINT], ids=["gem", "gem-joint"])
def test_batch_and_past_steps_have_separate_gradients_of_separate_or_joint_passes(config, stream, monkeypatch):
    seen, find = [], GemUpdate._find

    def watched(self, rows, u, past_u=None):
        before = {name: value.clone() for name, value in self.agent.model.state_dict().items()}
        products = find(self, rows, u, past_u)
        torch.testing.assert_close(products, self.gradients @ self.gradients.T, rtol=1e-4, atol=1e-5)
        seen.append((self, rows, u, past_u, before, self.gradients.clone()))
        return products

    monkeypatch.setattr(GemUpdate, "_find", watched)
    learned(config, stream)
    assert {len(gradients) for *_, gradients in seen} == {1, 2, 3}
    update, rows, u, past_u, before, gradients = seen[-1]
    model = update.agent.model
    model.load_state_dict(before)
    model.train().requires_grad_(True)
    images = [update.labeled.images[rows], *(part.images for part in update.past)]
    sizes, columns = [len(part) for part in images], [update.columns[rows], *update.past_columns]
    views = weak_view(torch.cat(images), torch.cat((u, past_u)), update.agent.views)
    joint = config.memory_statistics == "joint"
    logits = model(views).split(sizes) if joint else [model(part) for part in views.split(sizes)]
    for row, z, y in zip((-1, 0, 1), logits, columns, strict=True):
        parts = torch.autograd.grad(F.cross_entropy(z, y), list(model.parameters()), retain_graph=True)
        assert torch.allclose(gradients[row], torch.cat([part.flatten() for part in parts]), atol=1e-5)


def test_the_memory_is_split_by_step(stream):
    agent, _ = learned(GEM, stream)
    agent.sizes.append(0)  # as if a fourth step had begun
    parts = agent._past_steps()
    assert [sorted(set(part.labels.tolist())) for part in parts] == [sorted(rows.new_classes) for rows in stream.steps]
    assert sum(map(len, parts)) == len(agent.memory.labeled)


def test_an_update_moves_every_weight_against_its_own_gradient(stream):
    """Also where the memory layout of a weight is not that of its gradient."""
    config, step = replace(GEM, epochs=1, batch=8), stream.step(0)
    agent, again = learned(config, stream, steps=1, updates=1)[0], agent_of(config, stream)
    again.model.head.grow(2, seeded(0, "head", 0))
    before = {name: p.detach().clone() for name, p in again.model.named_parameters()}
    again.model.learning(True)
    batches = Shuffled(len(step.labeled), 8, 0, ("model", 0), torch.device("cpu"))
    rows, u = next(batches.with_draws(0, views=1))
    logits = again.model(weak_view(step.labeled.images[rows], u, again.views))
    F.cross_entropy(logits, columns_of(step.labeled.labels[rows], step.new_classes)).backward()
    for name, p in again.model.named_parameters():
        moved = dict(agent.model.named_parameters())[name]
        assert torch.allclose(moved, before[name] - 0.03 * p.grad, atol=1e-6), name
