"""Learning rates, decay and momentum as configured; a phase resumes from its saved state to the same bits."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from osscl.errors import SpecError
from osscl.learn.optimiser import Descent, OptimiserConfig, rate_at
from osscl.seeding import seeded
from osscl.storage import read_state, write_state
from refusals import naming

COSINE = OptimiserConfig(rate=1.0, min_rate=0.2)


def test_the_rate_falls_from_rate_to_min_rate_as_a_cosine():
    assert rate_at(COSINE, 0, 100) == 1.0
    assert rate_at(COSINE, 50, 100) == pytest.approx(0.6)
    assert rate_at(COSINE, 25, 100) == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert rate_at(COSINE, 75, 100) == pytest.approx(0.2 + 0.8 * (1 - math.sqrt(0.5)) / 2)
    assert rate_at(COSINE, 100, 100) == pytest.approx(0.2)
    assert {rate_at(replace(COSINE, min_rate=1.0), update, 10) for update in range(10)} == {1.0}


def test_warm_up_is_linear_and_the_cosine_starts_after_it():
    rates = [rate_at(replace(COSINE, warmup=0.1), update, 100) for update in range(100)]
    assert rates[:10] == pytest.approx([(update + 1) / 11 for update in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.6)  # halfway between 10 and 100
    assert all(a < b for a, b in itertools.pairwise(rates[:11]))
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))


def test_rate_per_epoch_is_constant_within_an_epoch():
    stepped = replace(COSINE, rate_per="epoch")
    rates = [rate_at(stepped, update, 12, per_epoch=4) for update in range(12)]
    assert rates == [rate_at(COSINE, update // 4 * 4, 12) for update in range(12)]
    assert len(set(rates)) == 3


def test_milestones_divide_the_rate_by_ten_and_exclude_warm_up():
    config = OptimiserConfig("sgd", rate=1.0, milestones=(0.5, 0.75))
    assert [rate_at(config, update, 8) for update in (0, 3, 4, 5, 6, 7)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    with pytest.raises(SpecError, match=naming("warmup", "milestones")):
        OptimiserConfig(milestones=(0.5,), warmup=0.1)


def net(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
        return made.to(memory_format=torch.channels_last)


def descend(model: nn.Module, descent: Descent, until: int) -> None:
    """Updates on a loss that depends only on the number of the update."""
    while descent.done < until:
        x = torch.randn(6, 2, 4, 4, generator=seeded(descent.done, "x"))
        descent.set_rate()
        descent.step(model(x).square().mean())
        descent.done += 1


OPTIMISERS = {
    "adam": OptimiserConfig("adam", rate=0.05, warmup=0.2),
    "adamw": OptimiserConfig("adamw", rate=0.05, decay=0.1),
    "sgd": OptimiserConfig("sgd", rate=0.05),
    "sgd without momentum": OptimiserConfig("sgd", rate=0.05, momentum=0.0),
}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("stop", [0, 1, 7])
def test_a_phase_resumes_from_its_saved_state_to_the_same_bits(name, stop, tmp_path):
    config, straight, first, second = OPTIMISERS[name], net(), net(), net(1)
    descend(straight, Descent([straight], config, 12), 12)
    descent = Descent([first], config, 12)
    descend(first, descent, stop)
    write_state(tmp_path / "state", {"descent": descent.state(), "net": first.state_dict()})
    state = read_state(tmp_path / "state")
    second.load_state_dict(state["net"])
    again = Descent([second], config, 12)
    again.load_state(state["descent"])
    assert again.done == stop
    descend(second, again, 12)
    assert all(map(torch.equal, straight.state_dict().values(), second.state_dict().values()))


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_without_its_moments_a_phase_ends_elsewhere(name):
    config, straight, forgetful = OPTIMISERS[name], net(), net()
    descend(straight, Descent([straight], config, 12), 12)
    descend(forgetful, Descent([forgetful], config, 12), 7)
    again = Descent([forgetful], config, 12)
    again.load_state({"done": 7, "moments": {}})
    descend(forgetful, again, 12)
    assert not torch.equal(straight[3].weight, forgetful[3].weight)


def test_loaded_moments_are_copies():
    model = net()
    descent = Descent([model], OPTIMISERS["adam"], 12)
    descend(model, descent, 2)
    other = Descent([net()], OPTIMISERS["adam"], 12)
    other.load_moments(descent.moments())
    held = {key: value.clone() for key, value in other.moments()["0"].items()}
    assert set(held) == {"step", "exp_avg", "exp_avg_sq"}
    descend(model, descent, 4)
    assert all(torch.equal(other.moments()["0"][key], value) for key, value in held.items())


def test_moments_of_another_shape_are_refused():
    """A fused optimiser would write beyond the end of them."""
    small = nn.Linear(8, 2)
    descent = Descent([small], OPTIMISERS["adam"], 12)
    small(torch.ones(1, 8)).sum().backward()
    descent.optimiser.step()
    with pytest.raises(ValueError, match=naming((2, 8), (4, 8))):
        Descent([nn.Linear(8, 4)], OPTIMISERS["adam"], 12).load_state(descent.state())


def decayed(config: OptimiserConfig) -> dict[str, float]:
    """Parameters of 1 after an update by a loss without slope: only decay moves them."""
    model = net()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
    descent = Descent([model], config, 10)
    descent.set_rate()
    descent.step(sum((p * 0).sum() for p in model.parameters()))
    return {name: float(p.detach().flatten()[0]) for name, p in model.named_parameters()}


def test_adamw_decays_only_weights_and_decouples_decay_from_the_gradient():
    after = decayed(OptimiserConfig("adamw", rate=0.1, decay=0.5))
    kept = {"0.bias": 1, "1.weight": 1, "1.bias": 1, "3.bias": 1}
    assert after == pytest.approx({"0.weight": 1 - 0.1 * 0.5, "3.weight": 1 - 0.1 * 0.5, **kept})


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_adam_and_sgd_decay_everything(kind):
    assert all(value < 1 for value in decayed(OptimiserConfig(kind, rate=0.1, decay=0.5)).values())
    assert all(value == 1 for value in decayed(OptimiserConfig(kind, rate=0.1, decay=0.0)).values())


def line(**settings) -> tuple[nn.Linear, Descent]:
    """One weight at 0, on which a loss of slope -1 moves by the rate."""
    model, config = nn.Linear(1, 1, bias=False), OptimiserConfig("sgd", decay=0.0, **settings)
    nn.init.zeros_(model.weight)
    return model, Descent([model], config, 4)


def test_every_update_uses_its_own_rate():
    model, descent = line(rate=1.0, min_rate=0.0, momentum=0.0)
    for update in range(4):
        descent.set_rate()
        before = model.weight.item()
        descent.step(-model.weight.sum())
        descent.done += 1
        assert model.weight.item() - before == pytest.approx(rate_at(descent.config, update, 4))


def test_sgd_has_nesterov_momentum():
    model, descent = line(rate=1.0, min_rate=1.0, momentum=0.5)
    for expected in (1.5, 1.5 + 1.75):  # the slope, plus half of the momentum that includes it
        descent.step(-model.weight.sum())
        assert model.weight.item() == pytest.approx(expected)


@pytest.mark.parametrize(("longest", "moved"), [(None, 6.0), (100.0, 6.0), (0.5, 0.5)])
def test_gradients_are_clipped_to_a_norm(longest, moved):
    layer = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(layer.weight)
    config = OptimiserConfig("sgd", rate=1.0, min_rate=1.0, decay=0.0, momentum=0.0, nesterov=False)
    Descent([layer], config, 1).step(layer(torch.full((1, 4), 3.0)).sum(), longest)
    assert float(layer.weight.detach().norm()) == pytest.approx(moved, rel=1e-4)


def test_frozen_parameters_do_not_change():
    model = net()
    model[0].requires_grad_(False)
    before = model[0].weight.clone(), model[3].weight.clone()
    descend(model, Descent([model], OptimiserConfig(decay=0.5), 3), 3)
    assert torch.equal(model[0].weight, before[0])
    assert not torch.equal(model[3].weight, before[1])


@pytest.mark.parametrize(
    "wrong",
    [{"rate": 0.0}, {"min_rate": 1.0}, {"min_rate": -1.0}, {"decay": -1.0}, {"warmup": 1.0}, {"momentum": 1.0},
     {"kind": "adagrad"}, {"rate_per": "step"}, {"milestones": (1.5,)}],
)  # fmt: skip
def test_invalid_optimiser_settings_are_refused_by_field(wrong):
    with pytest.raises(SpecError, match=naming(next(iter(wrong)))):
        OptimiserConfig(**wrong)


def test_rates_of_co2l_are_those_of_its_code():
    """Warm-up by batch from 0.01 over ten of 100 epochs, then lr_min + (lr - lr_min)(1 + cos(pi e / 100)) / 2."""
    config, batches = OptimiserConfig("sgd", 0.5, min_rate=5e-4, warmup=0.1, rate_per="co2l"), 20

    def cosine(epoch):
        return 5e-4 + (0.5 - 5e-4) * (1 + math.cos(math.pi * epoch / 100)) / 2

    assert cosine(10) == pytest.approx(0.4878, abs=1e-4)
    for epoch, batch in ((1, 0), (1, 7), (10, 19)):
        share = (batch + (epoch - 1) * batches) / (10 * batches)
        expected = 0.01 + share * (cosine(10) - 0.01)
        assert rate_at(config, (epoch - 1) * batches + batch, 100 * batches, batches) == pytest.approx(expected)
    for epoch, batch in ((11, 0), (11, 19), (60, 3), (100, 19)):
        assert rate_at(config, (epoch - 1) * batches + batch, 100 * batches, batches) == pytest.approx(cosine(epoch))
