"""The reference network: BYOL's target, pre-training, and sharing between runs."""

from dataclasses import replace

import pytest
import torch

from osscl.errors import SpecError
from osscl.methods.base import Runtime
from osscl.methods.phases import Phases
from osscl.methods.reference import Reference, ReferenceConfig, ema_at
from osscl.methods.ursl import Ursl
from osscl.tools.battery import FEW, held_out, maker
from toy_agents import SMALL, agent_of, changed, learned, same, weights


def reference_phases(reports):
    return [next(phase for phase in report.phases if phase.name == "reference") for report in reports]


def test_byols_target_is_a_moving_average_of_the_encoder(stream):
    agent = agent_of(changed("reference.ssl=byol"), stream, updates=1)
    target, start = agent.reference.target, weights(agent.reference.target)
    agent.learn(stream.step(0))
    now = dict(agent.reference.encoder.named_parameters())
    for name, value in target.named_parameters():
        assert torch.allclose(value, torch.lerp(start[name], now[name], 1 - 0.99), atol=1e-6)
    assert not same(start, weights(target))


def test_byols_momentum_rises_to_its_end_on_a_cosine():
    constant, rising = ReferenceConfig(ema=0.9), ReferenceConfig(ema=0.9, ema_end=1.0)
    assert [ema_at(constant, share) for share in (0, 0.5, 1)] == [0.9] * 3
    assert [ema_at(rising, share) for share in (0, 0.5, 1)] == pytest.approx([0.9, 0.95, 1.0])
    with pytest.raises(SpecError, match="ema_end"):
        ReferenceConfig(ema=0.9, ema_end=0.8)


def test_a_pretrained_reference_learns_once_from_the_whole_pool(stream):
    agent, pool = agent_of(changed("reference.pretrained=true", "reference.batch=1000"), stream), 6 * 20 + 4 * 24
    assert len(agent.setting.whole_pool) == pool
    reports, nets = [], []
    for t in range(3):
        reports.append({phase.name: phase for phase in agent.learn(stream.step(t)).phases})
        nets.append(weights(agent.reference.encoder))
    assert reports[0]["reference"].views == 2 * FEW * pool
    assert "reference" not in reports[1] and "reference" not in reports[2]
    assert same(nets[0], nets[1]) and same(nets[0], nets[2])
    assert agent.gate is not None


@pytest.mark.parametrize("ssl", ["simclr", "byol"])
def test_a_second_run_takes_the_reference_from_the_cache(ssl, stream, tmp_path):
    config, images = changed(f"reference.ssl={ssl}"), held_out(stream).images
    alone, _ = learned(config, stream)
    first, trained = learned(config, stream, runtime=Runtime(reference_cache=tmp_path))
    second, cached = learned(config, stream, runtime=Runtime(reference_cache=tmp_path))
    assert [phase.cached for phase in reference_phases(trained)] == [False] * 3
    assert reference_phases(cached) == [replace(phase, cached=True) for phase in reference_phases(trained)]
    assert torch.equal(alone.predict(images), first.predict(images))
    assert torch.equal(alone.predict(images), second.predict(images))
    other = changed(f"reference.ssl={ssl}", "learner.lam=0.7", "head.solver=sgd")
    _, shared = learned(other, stream, steps=2, runtime=Runtime(reference_cache=tmp_path))
    assert all(phase.cached for phase in reference_phases(shared))


def test_the_cache_key_covers_everything_that_the_weights_depend_on(stream):
    base = maker(Ursl, SMALL, stream).setting

    def key(config=SMALL, runtime=None, history="", **setting):
        told = replace(base, **setting)
        return Reference(config.reference, told, Phases(told, runtime or Runtime())).cache_key(history)

    changes = [
        "net.dim=32", "net.hidden=20", "net.projector_norm=false", "ssl=byol", "optimiser.kind=sgd",
        "optimiser.rate=0.004", "optimiser.min_rate=0.0001", "optimiser.decay=0.1", "optimiser.warmup=0.1", "batch=20",
        "optimiser.rate_per=epoch", "tau=0.2", "epochs_first=5", "epochs_later=5", "pretrained=true", "ema=0.9",
        "predictor=32", "ema_end=0.999", "net.output_norm=true",
    ]  # fmt: skip
    keys = [key(), *(key(changed(f"reference.{change}")) for change in changes)]
    keys.append(key(augmentation=replace(base.augmentation, flip=0.5)))
    keys.append(key(images=replace(base.images, mean=(0.1,))))
    keys.append(key(schedule=replace(base.schedule, max_updates=FEW + 1)))
    keys.append(key(schedule=replace(base.schedule, share=0.5)))
    keys.append(key(seed=1))
    keys.append(key(runtime=Runtime(precision=torch.bfloat16)))
    keys.append(key(history="other pixels"))
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_other_pixels_or_another_step_give_another_reference(stream, tmp_path):
    step, runtime = stream.step(0), Runtime(reference_cache=tmp_path)

    def learn(unlabeled, t):
        agent = agent_of(SMALL, stream, updates=1, runtime=runtime)
        if t > 0:
            agent.learn(replace(step, unlabeled=unlabeled[:0]))
        agent.learn(replace(stream.step(t), unlabeled=unlabeled))
        return len(list(tmp_path.iterdir()))

    pixels = step.unlabeled.clone()
    assert learn(pixels, 0) == 1 == learn(pixels, 0)
    pixels[-1, -1, -1, -1] ^= 1
    assert learn(pixels, 0) == 2
    assert learn(pixels, 1) == 3  # other batches are drawn at another step


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"x" * 4000])
def test_a_damaged_cache_file_is_ignored_and_replaced(damage, stream, tmp_path):
    runtime, images = Runtime(reference_cache=tmp_path), held_out(stream).images
    first, _ = learned(SMALL, stream, steps=1, updates=1, runtime=runtime)
    for file in tmp_path.iterdir():
        file.write_bytes(damage(file.read_bytes()))
    second, reports = learned(SMALL, stream, steps=1, updates=1, runtime=runtime)
    _, again = learned(SMALL, stream, steps=1, updates=1, runtime=runtime)
    assert not reference_phases(reports)[0].cached and reference_phases(again)[0].cached
    assert torch.equal(first.predict(images), second.predict(images))


def test_an_unwritable_cache_does_not_stop_a_run(stream, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    _, reports = learned(SMALL, stream, steps=2, updates=1, runtime=Runtime(reference_cache=file / "below"))
    assert len(reports) == 2
