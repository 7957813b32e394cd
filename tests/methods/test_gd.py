"""GD: the target Q against its definition, external images, and phases."""

import pytest
import torch

from osscl.learn.optimiser import rate_at
from osscl.methods.gd import Gd, GdConfig, global_target
from osscl.seeding import seeded
from osscl.tools.battery import held_out
from toy_agents import learned, weights


def rows(m, k, name):
    return torch.randn(m, k, generator=seeded(0, name)).softmax(1)


@pytest.mark.parametrize(("past", "current"), [(1, 1), (1, 4), (5, 2), (3, 10)])
def test_q_sums_to_one_and_keeps_ps_best_class(past, current):
    p, c = rows(6, past, "p"), rows(6, current, "c")
    q = global_target(p, c)
    assert torch.allclose(q.sum(1), torch.ones(6), atol=1e-6)
    assert torch.allclose(q.gather(1, p.argmax(1, keepdim=True)).squeeze(1), p.max(1).values)
    share = (1 - p.max(1).values) * current / (past + current - 1)
    assert torch.allclose(q[:, past:], share[:, None] * c, atol=1e-6)


def test_q_of_a_certain_p_is_p():
    q = global_target(torch.tensor([[0.0, 1.0, 0.0]]), torch.tensor([[0.5, 0.5]]))
    assert torch.equal(q, torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]]))


def test_external_rows_include_those_most_like_ps_classes(stream):
    agent, _ = learned(GdConfig("small", external="topk30_random70"), stream, steps=2)
    images = stream.step(2).unlabeled
    agent.past = agent.model
    agent.current.head.restart(0, seeded(0, "none"))  # all classes seen count as past ones
    chosen = agent._chosen(images, 20, 2)
    alike = agent.predict(images).topk(1, 0).indices.flatten().unique()  # 30 % of 20 for 4 classes: one each
    assert set(alike.tolist()) <= set(chosen.tolist())
    assert len(chosen) == 20


def test_q_takes_the_new_classes_from_c_or_p(stream):
    images = held_out(stream).images
    assert not torch.equal(*(learned(GdConfig("small", q_current=who), stream, steps=2)[0].predict(images)
                             for who in ("C", "P")))  # fmt: skip


def test_balancing_changes_only_the_head_and_is_skipped_at_the_first_step(stream, monkeypatch):
    agent, first = learned(GdConfig("small"), stream, steps=1)
    assert [phase.name for phase in first[0].phases] == ["teacher", "take over"]
    train, before = Gd.train, {}

    def watched(self, name, *more):
        before.update(weights(self.model))
        train(self, name, *more)

    monkeypatch.setattr(Gd, "train", watched)
    report = agent.learn(stream.step(1))
    assert [phase.name for phase in report.phases] == ["teacher", "model", "balance"]
    after = agent.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_the_rate_falls_at_the_epochs_of_the_authors_code():
    config = GdConfig()
    rates = [rate_at(config.optimiser, epoch, 180) for epoch in (119, 120, 159, 160, 169, 170)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001, 0.0001])
    assert [rate_at(config.teacher, epoch, 200) for epoch in (119, 120, 180)] == pytest.approx([0.1, 0.01, 0.0001])
