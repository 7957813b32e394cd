"""Co2L and its variants: what each uses of the unlabelled images, and which settings it refuses."""

from dataclasses import replace

import pytest
import torch

from osscl.config import override
from osscl.errors import SpecError
from osscl.methods import CONFIGURATIONS, co2l
from osscl.methods.base import Runtime
from osscl.methods.co2l import Co2l
from osscl.runs.spec import on_small_net
from refusals import naming
from toy_agents import agent_of, changed, learned, same, weights

CO2L, CO2L_J, CO2L_P = (on_small_net(CONFIGURATIONS[name]) for name in ("co2l", "co2l-j", "co2l-p"))


def predicted(config, stream, shades):
    """Predictions of an agent that sees every U_t in one shade, or as it is where None."""
    agent = agent_of(config, stream)
    for t, shade in enumerate(shades):
        step = stream.step(t)
        agent.learn(step if shade is None else replace(step, unlabeled=torch.full_like(step.unlabeled, shade)))
    return agent.predict(stream.evaluation(0).images)


def test_co2l_never_uses_unlabelled_images(stream):
    assert torch.equal(predicted(CO2L, stream, [0] * 3), predicted(CO2L, stream, [255] * 3))


def test_co2l_p_uses_only_the_first_unlabelled_images(stream):
    usual = predicted(CO2L_P, stream, [None] * 3)
    assert torch.equal(usual, predicted(CO2L_P, stream, [None, 0, 255]))
    assert not torch.equal(usual, predicted(CO2L_P, stream, [0, None, None]))


def test_co2l_p_starts_from_the_pretrained_network_including_its_projector(stream, monkeypatch):
    monkeypatch.setattr(Co2l, "train", lambda *_: {})
    agent = agent_of(CO2L_P, stream)
    agent.learn(stream.step(0))
    assert same(weights(agent.pretrained.encoder), weights(agent.encoder))


def first_loss(config, stream):
    seen = []
    agent = agent_of(config, stream, runtime=Runtime(progress=lambda at: seen.append(float(at.loss))))
    agent.learn(stream.step(0))
    return seen[0]


def test_co2l_j_adds_lam_times_nt_xent_of_the_unlabelled_batch(stream, monkeypatch):
    apart, own = [], co2l.nt_xent
    monkeypatch.setattr(co2l, "nt_xent", lambda z, tau: apart.append((len(z), tau, value := own(z, tau))) or value)
    losses = [first_loss(changed(f"learner.lam={lam}", config=CO2L_J), stream) for lam in (0.5, 1.0, 2.0)]
    views, tau, value = apart[0]
    assert (views, tau) == (2 * min(CO2L_J.learner.batch, len(stream.step(0).unlabeled)), CO2L_J.learner.tau)
    assert losses[1] - losses[0] == pytest.approx(0.5 * float(value.detach()), rel=1e-4)
    assert losses[2] - losses[1] == pytest.approx(float(value.detach()), rel=1e-4)


def test_the_base_temperature_scales_supcon(stream):
    scaled, plain = (first_loss(changed(f"base_temperature={b}", config=CO2L), stream) for b in ("0.1", "null"))
    assert scaled == pytest.approx(plain * CO2L.learner.tau / 0.1, rel=1e-5)


@pytest.mark.parametrize(
    ("config", "change", "field"),
    [
        (CO2L, "learner.lam=1", "lam"),
        (CO2L, "reference.pretrained=true", "pretrained"),
        (CO2L, "base_temperature=0", "base_temperature"),
        (CO2L_P, "learner.net.dim=32", "learner.net"),
    ],
)
def test_settings_without_effect_are_refused_by_field(config, change, field):
    with pytest.raises(SpecError, match=naming(field)):
        changed(change, config=config)


def test_the_first_step_may_be_longer_with_a_warm_up_of_the_same_epochs(stream):
    config = CONFIGURATIONS["co2l-authors"]
    (first, early), (later, usual) = config.length_of(0), config.length_of(1)
    assert (first, later) == (500, 100) and first * early.warmup == pytest.approx(later * usual.warmup) == 10
    assert CONFIGURATIONS["co2l"].length_of(0) == CONFIGURATIONS["co2l"].length_of(1)
    small = override(on_small_net(config), ["epochs_first=6", "learner.epochs=2", "learner.batch=8", "head.epochs=1"])
    _, reports = learned(small, stream, updates=None)
    per_epoch = [report.notes["updates_per_epoch"] for report in reports]
    updates = [next(phase.updates for phase in report.phases if phase.name == "learner") for report in reports]
    assert updates == [6 * per_epoch[0], 2 * per_epoch[1], 2 * per_epoch[2]]


def test_a_warm_up_longer_than_the_first_step_is_refused():
    with pytest.raises(SpecError, match="warmup"):
        override(CONFIGURATIONS["co2l-authors"], ["epochs_first=10"])
