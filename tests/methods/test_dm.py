"""DM: the novelty network, pseudo-labels, and distillation step by step."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from osscl.errors import SpecError
from osscl.losses.distillation import logit_distillation
from osscl.methods.dm import NONE, Dm, DmConfig, calibrate_novelty, novelty_scores
from osscl.seeding import seeded
from osscl.tools.battery import held_out
from osscl.vision.encoder import Deconfident, ImageFormat
from refusals import naming
from toy_agents import agent_of, learned

DM = DmConfig("small")


def novelty():
    net = Deconfident("small", ImageFormat(1, 8, (0.5,), (0.25,)), torch.float32).learning(False)
    net.rows.grow(3, seeded(0, "a"))
    return net


def test_the_novelty_network_is_a_scaled_cosine_over_a_divisor():
    net, x = novelty(), torch.rand(5, 1, 8, 8)
    features = net.features(x)
    cosine = F.cosine_similarity(features[:, None], net.rows.weight[None], dim=2)
    h = net.scale_norm(features @ net.scale.weight.T).exp() * cosine
    assert torch.allclose(net.scores(features), h, atol=1e-5)
    assert torch.allclose(net(x), h / torch.sigmoid(net.divisor_norm(net.divisor(features))), atol=1e-5)


def test_calibration_passes_the_given_share_and_picks_the_best_perturbation():
    net, images = novelty(), torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=seeded(0, "pixels"))
    epsilon, cut = calibrate_novelty(net, images, 0.25, strengths=(0.001, 0.02))
    assert epsilon == 0.01
    assert int((novelty_scores(net, images, epsilon) > cut).sum()) == 10
    assert calibrate_novelty(net, images, 0.25, highest=False, strengths=(0.001, 0.02))[0] == 0.0005
    assert novelty_scores(net, images, 0.02).mean() > novelty_scores(net, images, 0.0).mean()
    assert calibrate_novelty(net, images[:0], 0.25) == (0.0, math.inf)


def test_the_first_step_uses_no_unlabelled_image(stream):
    answers = []
    for change in (lambda x: x, torch.zeros_like):
        agent, step = agent_of(DM, stream), stream.step(0)
        agent.learn(replace(step, unlabeled=change(step.unlabeled)))
        answers.append(agent.predict(held_out(stream).images))
    assert torch.equal(*answers)


def test_images_that_are_not_novel_get_the_class_predicted_before_the_step(stream, monkeypatch):
    given, train = [], Dm.train_network
    monkeypatch.setattr(
        Dm, "train_network", lambda self, name, pool: given.append(pool.pseudo) or train(self, name, pool)
    )
    agent, _ = learned(replace(DM, true_positives=1.0), stream, steps=1)
    images = stream.step(1).unlabeled
    named = agent.predict(images).argmax(1)
    scores, cut = novelty_scores(agent.novelty, images, agent.epsilon), agent.passing
    report = agent.learn(stream.step(1))
    assert agent.pseudo is None and torch.equal(given[-1], torch.where(scores > cut, named, NONE))
    assert 0 < report.notes["pseudo_labeled"] <= len(images)


def test_each_past_step_is_distilled_separately(stream):
    agent = agent_of(DM, stream)
    agent.sizes, agent.classes = [2, 3, 1], list(range(6))
    logits, old = (torch.randn(4, k, generator=seeded(k, "logits")) for k in (6, 5))
    parts = [logit_distillation(logits[:, :2], old[:, :2], 2.0).mean() * 2 / 6]
    parts.append(logit_distillation(logits[:, 2:5], old[:, 2:5], 2.0).mean() * 3 / 6)
    assert agent._kept(logits, old).item() == pytest.approx(float(sum(parts)))


def test_a_first_step_with_a_single_image_is_learned(stream):
    agent = agent_of(DM, stream, memory=0)
    for t in range(2):
        step = stream.step(t)
        one = replace(step, new_classes=step.new_classes[:1], labeled=step.labeled.rows(torch.tensor([0])))
        agent.learn(replace(one, labeled=replace(one.labeled, labels=torch.tensor(one.new_classes))))
    assert agent.predict(held_out(stream).images).shape[1] == 2


@pytest.mark.parametrize("wrong", [{"temperature": 1e300}, {"batch": 1}, {"threshold": 1.5}, {"distill": -1.0}])
def test_invalid_settings_are_refused_by_field(wrong):
    with pytest.raises(SpecError, match=naming(next(iter(wrong)))):
        DmConfig(**wrong)
