"""Phases run, report and resume training."""

import copy

import pytest
import torch
from torch import nn

from osscl.errors import UserError
from osscl.learn.batches import Shuffled
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods.base import PhaseReport, Runtime, Schedule, Setting
from osscl.methods.phases import PhaseLog, Phases
from osscl.tools.battery import held_out
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat
from refusals import naming
from toy_agents import SMALL, agent_of, learned

CPU = torch.device("cpu")


class Stop(Exception):
    pass


def phases_of(runtime=None, **schedule):
    images = ImageFormat(1, 8, (0.5,), (0.5,))
    return Phases(Setting(images, Augmentation(), 0, 0, Schedule("toy", **schedule)), runtime or Runtime())


def trained(phases, net, pool=10, epochs=3, optimiser=None, name="train", more=()):
    """Run a phase, and return the batches that it used."""
    rows = Shuffled(pool, 4, 0, ("toy", phases.t), CPU)
    config = optimiser or OptimiserConfig(rate=0.1)
    phase, seen = phases.train(name, [net], config, epochs, [(rows, 2), *more]), []
    for batch in phase.batches():
        assert net.training and net.weight.requires_grad
        loss = net(batch[0].float()[:, None]).square().mean()
        phase.step(loss)
        phase.report(loss.detach())
        seen.append(batch)
    return seen


def line(seed=0):
    net = nn.Linear(1, 1).requires_grad_(False).eval()
    nn.init.constant_(net.weight, 1.0 + seed)
    nn.init.zeros_(net.bias)
    return net


@pytest.mark.parametrize("stop", [0, 4, 8, 9])
def test_an_interrupted_phase_resumes_at_its_next_update_and_ends_in_the_same_bits(stop):
    """The calls: nine updates of three epochs, then the end of the phase."""
    calls, reported, left = [], [], iter(range(stop))
    phases, net = phases_of(Runtime(maybe_checkpoint=calls.append, progress=reported.append)), line()
    assert phases.begin_step(0)
    whole = trained(phases, net)
    assert calls == [False] * 9 + [True] and [at.update for at in reported] == list(range(1, 10))
    assert [(at.phase, at.updates, at.views) for at in reported] == [("train", 9, 8 * n) for n in range(1, 10)]
    assert all(at.loss is not None for at in reported) and not net.training and not net.weight.requires_grad

    def checkpoint(_):
        if next(left, None) is None:
            raise Stop

    first, other = phases_of(Runtime(maybe_checkpoint=checkpoint)), line()
    first.begin_step(0)
    with pytest.raises(Stop):
        trained(first, other)
    resumed, again = phases_of(), line(seed=5)
    again.load_state_dict(other.state_dict())
    resumed.load_state(first.state())
    assert not resumed.begin_step(0) and resumed.has_begun("train") and not resumed.has_begun("head")
    assert all(map(torch.equal, sum(trained(resumed, again), ()), sum(whole[stop + 1 :], ())))
    assert torch.equal(again.weight, net.weight) and torch.equal(again.bias, net.bias)
    assert [(r.name, r.updates, r.views) for r in resumed.reports()] == [("train", 9, 72)]


def test_a_finished_phase_runs_again_only_in_the_next_step():
    phases, net, done = phases_of(), line(), []
    for t in range(2):
        assert phases.begin_step(t)
        assert len(trained(phases, net)) == 9 and not trained(phases, net)
        for _ in range(2):
            phases.once("gate", lambda t=t: done.append(t))
        with phases.timed("head"):
            pass
        assert [report.name for report in phases.reports()] == ["train", "gate", "head"]
    assert done == [0, 1]


def test_a_cached_phase_counts_as_finished():
    edges = []
    phases, report = phases_of(Runtime(maybe_checkpoint=edges.append)), PhaseReport("train", 5.0, 7, 8, cached=True)
    phases.begin_step(0)
    phases.add_cached(report)
    assert phases.reports() == (report,) and edges == [True] and not trained(phases, line())


@pytest.mark.parametrize("fresh", [True, False])
def test_moments_are_kept_from_step_to_step_or_not(fresh):
    phases, config = phases_of(), OptimiserConfig(fresh=fresh)
    for t in range(2):
        phases.begin_step(t)
        trained(phases, line(), optimiser=config)
    assert {name: int(kept["0"]["step"]) for name, kept in phases.moments.items()} == ({} if fresh else {"train": 18})


def test_pools_are_iterated_side_by_side_and_their_views_counted():
    phases, other = phases_of(), Shuffled(7, 5, 0, ("other",), CPU)
    phases.begin_step(0)
    batches = trained(phases, line(), more=[(other, 1), (Shuffled(0, 5, 0, ("empty",), CPU), 1)])
    assert all([len(part) for part in batch] == [4, 8, 5, 5] for batch in batches)
    assert phases.reports()[0].views == 9 * (8 + 5)


@pytest.mark.parametrize(("guide", "compiles"), [(300, True), (255, False)])
def test_a_phase_is_compiled_if_its_smallest_batch_is_large_enough(guide, compiles):
    pools = [(Shuffled(n, n, 0, ("toy",), CPU), 2) for n in (1000, guide)]
    assert phases_of().train("train", [line()], OptimiserConfig(), 1, pools).compiles is compiles
    assert not phases_of().train("train", [line()], OptimiserConfig(), 1, pools, compiles=False).compiles


def test_a_phase_without_images_is_refused_by_name():
    with pytest.raises(UserError, match=naming("'train'")):
        phases_of().train("train", [line()], OptimiserConfig(), 1, [(Shuffled(0, 5, 0, ("toy",), CPU), 2)])


def test_seconds_and_sharing_accumulate_across_interruptions():
    first = PhaseLog(Runtime(shared_device=True))
    first.begin("train")
    first.started -= 100  # as if begun earlier
    again = PhaseLog(Runtime())
    again.load_state(first.state())
    again.begin("train")
    again.end(3, 4)
    report = again.reports["train"]
    assert 100 <= report.seconds < 110 and (report.updates, report.views, report.shared) == (3, 4, True)


def stopped_in_the_second_step(config, stream, at):
    """An agent whose second step was stopped at a checkpoint, and its state before that step."""
    calls = iter(range(at))

    def checkpoint(_):
        if agent.phases.t == 1 and next(calls, None) is None:
            raise Stop

    agent = agent_of(config, stream)
    agent.phases.runtime = Runtime(maybe_checkpoint=checkpoint)
    agent.learn(stream.step(0))
    before = copy.deepcopy(agent.state())
    with pytest.raises(Stop):
        agent.learn(stream.step(1))
    return agent, before


@pytest.mark.parametrize("at", [0, 4])  # in the reference's phase, in the learner's
@pytest.mark.parametrize("reload", [True, False])
def test_a_step_stopped_in_the_same_object_ends_in_the_same_bits(stream, at, reload):
    expected = learned(SMALL, stream, steps=2)[0].predict(held_out(stream).images)
    agent, before = stopped_in_the_second_step(SMALL, stream, at)
    agent.phases.runtime = Runtime()
    if reload:
        agent.load_state(before)
    agent.learn(stream.step(1))
    assert torch.equal(agent.predict(held_out(stream).images), expected)


def test_the_next_step_does_not_take_over_an_interrupted_phase(stream):
    agent, _ = stopped_in_the_second_step(SMALL, stream, at=4)
    assert agent.phases.begin_step(2) and agent.phases.open is None and agent.phases.descent is None
