"""GD, DM, GEM and iCaRL: the mathematics of each against an oracle, and what its parts do."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from osscl.data.images import columns_of
from osscl.errors import Diverged
from osscl.learn.linear_head import class_weights, rank_in_class
from osscl.learn.memory import Memory, herded
from osscl.learn.optimiser import rate_at
from osscl.losses.distillation import distance_from_even, fixmatch, logit_distillation, sigmoid_distillation
from osscl.methods.dm import NONE, Dm, DmConfig, calibrated, novelty_scores
from osscl.methods.gd import Gd, GdConfig, global_target
from osscl.methods.gem import Gem, GemConfig, GemUpdate, Statistics, dual_weights
from osscl.methods.icarl import Icarl, IcarlConfig
from osscl.runs.evaluate import evaluate, refuse_divergence
from osscl.seeding import seeded
from osscl.tools import battery
from osscl.tools.battery import FEW, TOY, held_out, maker, toy_stream
from osscl.vision.encoder import Classifier, Deconfident, ImageFormat, Rows
from osscl.vision.randaugment import weak_view

GREY = ImageFormat(1, 8, (0.5,), (0.25,))


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def stream():
    return toy_stream()


def learned(kind, config, stream, updates=FEW, steps=3):
    agent = maker(kind, config, stream)(updates=updates)
    return agent, [agent.learn(stream.step(t)) for t in range(steps)]


# ----- shared pieces


def test_logit_distillation_is_a_divergence_at_a_temperature():
    student, teacher = drawn(5, 4), drawn(5, 4, seed=1)
    for row, value in enumerate(logit_distillation(student, teacher, 2.0)):
        p, q = (teacher[row] / 2).softmax(0), (student[row] / 2).softmax(0)
        assert value.item() == pytest.approx(sum(float(a * (a / b).log()) for a, b in zip(p, q, strict=True)), abs=1e-6)
    assert logit_distillation(student, student, 3.0).abs().max() < 1e-6


def test_sigmoid_distillation_takes_old_columns_from_the_old_network():
    logits, old, labels = drawn(3, 4), drawn(3, 2, seed=1), torch.tensor([0, 2, 3])
    targets = torch.zeros(3, 4)
    targets[range(3), labels] = 1
    targets[:, :2] = old.sigmoid()
    slow = -(targets * logits.sigmoid().log() + (1 - targets) * (1 - logits.sigmoid()).log()).mean()
    assert sigmoid_distillation(logits, old, labels).item() == pytest.approx(slow.item(), abs=1e-6)
    alone = F.binary_cross_entropy_with_logits(logits, F.one_hot(labels, 4).float())
    assert sigmoid_distillation(logits, old[:, :0], labels).item() == pytest.approx(alone.item())


def test_fixmatch_ignores_rows_below_the_threshold_and_divides_by_all():
    weak = torch.tensor([[9.0, 0.0], [0.1, 0.0], [0.0, 9.0]])
    strong = drawn(3, 2).requires_grad_()
    loss = fixmatch(weak, strong, 0.95)
    sure = F.cross_entropy(strong[[0, 2]], torch.tensor([0, 1]), reduction="sum") / 3
    assert loss.item() == pytest.approx(sure.item())
    loss.backward()
    assert not strong.grad[1].any() and strong.grad[[0, 2]].any(1).all()
    assert fixmatch(weak.requires_grad_(), strong, 0.99999).item() == 0
    assert not fixmatch(weak, strong.detach(), 0.5).requires_grad  # the weak view teaches, it does not learn


def test_distance_from_even_is_zero_for_even_rows_and_grows_with_confidence():
    rows = distance_from_even(torch.tensor([[1.0, 1.0, 1.0], [3.0, 0.0, 0.0], [9.0, 0.0, 0.0]]))
    p = torch.tensor([3.0, 0.0, 0.0]).softmax(0)
    assert rows[0].item() == pytest.approx(0, abs=1e-6)
    assert rows[1].item() == pytest.approx(sum(math.log((1 / 3) / float(q)) / 3 for q in p), abs=1e-6)
    assert rows[2] > rows[1] > 0


def test_class_weights_make_classes_count_the_same():
    columns = torch.tensor([0, 0, 0, 1, 2, 2])
    weights = class_weights(columns, 3)
    assert torch.allclose(torch.bincount(columns) * weights, torch.full((3,), 2.0))
    assert class_weights(torch.tensor([0] * 99 + [1]), 2, smoothing=1, most=10).tolist() == pytest.approx([0.51, 10.0])
    assert rank_in_class(columns, 3).tolist() == [0, 1, 2, 0, 0, 1]


def test_herding_keeps_the_running_mean_nearest_to_the_mean():
    features = drawn(12, 3)
    order = herded(features, 5).tolist()
    chosen = []
    for _ in range(5):
        gaps = {
            i: float((features.mean(0) - features[[*chosen, i]].mean(0)).norm()) for i in range(12) if i not in chosen
        }
        chosen.append(min(gaps, key=gaps.get))
    assert order == chosen
    assert sorted(herded(features, 50).tolist()) == list(range(12))
    assert herded(features, 0).tolist() == []


def test_a_head_grows_and_its_old_rows_stay():
    head = Rows(5)
    head.grow(2, seeded(0, "a"))
    before = head.weight.clone(), head.bias.clone()
    head.grow(3, seeded(0, "b"))
    assert head(torch.zeros(4, 5)).shape == (4, 5)
    assert torch.equal(head.weight[:2], before[0]) and torch.equal(head.bias[:2], before[1])
    assert head.weight.abs().max() <= 1 / math.sqrt(5) and head.weight[2:].std() > 0.1


def test_a_classifier_takes_over_a_state_with_other_classes():
    small, large = Classifier("small", GREY, torch.float32), Classifier("small", GREY, torch.float32)
    large.head.grow(7, seeded(0, "a"))
    small.load(large.state_dict())
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(small.eval()(x), large.eval()(x))


# ----- GD


@pytest.mark.parametrize(("past", "current"), [(1, 1), (1, 4), (5, 2), (3, 10)])
def test_q_sums_to_one_and_keeps_what_p_is_sure_of(past, current):
    p, c = drawn(6, past).softmax(1), drawn(6, current, seed=1).softmax(1)
    q = global_target(p, c)
    assert torch.allclose(q.sum(1), torch.ones(6), atol=1e-6)
    assert torch.allclose(q.gather(1, p.argmax(1, keepdim=True)).squeeze(1), p.max(1).values)
    share = (1 - p.max(1).values) * current / (past + current - 1)
    assert torch.allclose(q[:, past:], share[:, None] * c, atol=1e-6)


def test_q_of_a_certain_p_is_p():
    p = torch.tensor([[0.0, 1.0, 0.0]])
    assert torch.equal(global_target(p, torch.tensor([[0.5, 0.5]])), torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.0]]))


def test_gd_takes_the_external_rows_that_p_finds_most_alike(stream):
    agent, _ = learned(Gd, GdConfig("small", external="topk30_random70"), stream, steps=2)
    images = stream.step(2).unlabeled
    agent.past = agent.model
    agent.current.head.restart(0, seeded(0, "none"))  # all classes met count as past ones
    chosen = agent._chosen(images, 20, 2)
    alike = agent.predict(images).topk(1, 0).indices.flatten().unique()  # 30 % of 20 for 4 classes: one each
    assert set(alike.tolist()) <= set(chosen.tolist())
    assert len(chosen) == 20


def test_gd_may_ask_c_or_p_about_the_new_classes(stream):
    images = held_out(stream).images
    answers = [learned(Gd, GdConfig("small", q_current=who), stream)[0].predict(images) for who in ("C", "P")]
    assert not torch.equal(*answers)


def test_gd_balances_the_head_alone_and_not_at_the_first_step(stream):
    agent, first = learned(Gd, GdConfig("small"), stream, steps=1)
    assert [phase.name for phase in first[0].phases] == ["teacher", "take over"]
    before = {}
    balance = agent._balance

    def spied(pool):
        before.update({name: value.clone() for name, value in agent.model.state_dict().items()})
        return balance(pool)

    agent._balance = spied
    agent.learn(stream.step(1))
    after = agent.model.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_gd_steps_down_when_its_authors_do():
    config = GdConfig()
    rates = [rate_at(config.optimiser, epoch, 180) for epoch in (119, 120, 159, 160, 169, 170)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001, 0.0001])
    assert [rate_at(config.teacher, epoch, 200) for epoch in (119, 120, 180)] == pytest.approx([0.1, 0.01, 0.0001])


# ----- DM


def test_deconf_is_a_scaled_cosine_over_a_divisor():
    net = Deconfident("small", GREY, torch.float32).eval()
    net.rows.grow(3, seeded(0, "a"))
    x = torch.rand(5, 1, 8, 8)
    features = net.features(x)
    cosine = F.cosine_similarity(features[:, None], net.rows.weight[None], dim=2)
    h = net.scale_norm(features @ net.scale.weight.T).exp() * cosine
    assert torch.allclose(net.scores(features), h, atol=1e-5)
    g = torch.sigmoid(net.divisor_norm(net.divisor(features)))
    assert torch.allclose(net(x), h / g, atol=1e-5)


def test_calibration_lets_the_wanted_share_pass_and_takes_the_best_perturbation():
    net = Deconfident("small", GREY, torch.float32).learning(False)
    net.rows.grow(3, seeded(0, "a"))
    images = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    epsilon, cut = calibrated(net, images, 0.25, strengths=(0.001, 0.02))
    assert epsilon == 0.01
    assert int((novelty_scores(net, images, epsilon) > cut).sum()) == 10
    assert calibrated(net, images, 0.25, highest=False, strengths=(0.001, 0.02))[0] == 0.0005
    assert novelty_scores(net, images, 0.02).mean() > novelty_scores(net, images, 0.0).mean()
    assert calibrated(net, images[:0], 0.25) == (0.0, math.inf)


def test_dm_uses_no_unlabelled_image_at_the_first_step(stream):
    answers = []
    for shade in (None, 0):
        agent, step = maker(Dm, DmConfig("small"), stream)(), stream.step(0)
        agent.learn(step if shade is None else replace(step, unlabeled=torch.zeros_like(step.unlabeled)))
        answers.append(agent.predict(held_out(stream).images))
    assert torch.equal(*answers)


def test_dm_pseudo_labels_what_passes_with_the_classes_before_the_step(stream):
    agent, _ = learned(Dm, DmConfig("small", true_positives=1.0), stream, steps=1)
    images = stream.step(1).unlabeled
    named = agent.predict(images).argmax(1)
    scores, cut = novelty_scores(agent.novelty, images, agent.epsilon), agent.passing
    report = agent.learn(stream.step(1))
    assert torch.equal(agent.pseudo, torch.where(scores > cut, named, NONE))
    assert 0 < report.notes["pseudo_labeled"] <= len(images)


def test_dm_distils_each_past_step_by_itself():
    agent = maker(Dm, DmConfig("small"), toy_stream())()
    agent.sizes, agent.classes = [2, 3, 1], list(range(6))
    logits, old = drawn(4, 6), drawn(4, 5, seed=1)
    parts = [logit_distillation(logits[:, :2], old[:, :2], 2.0).mean() * 2 / 6]
    parts.append(logit_distillation(logits[:, 2:5], old[:, 2:5], 2.0).mean() * 3 / 6)
    assert agent._kept(logits, old).item() == pytest.approx(float(sum(parts)))


# ----- GEM


@pytest.mark.parametrize("seed", range(20))
def test_the_projected_gradient_offends_no_past_step(seed):
    past, new = drawn(4, 30, seed=seed), drawn(30, seed=100 + seed)
    weights = dual_weights(past @ past.T, past @ new, margin=0.5)
    moved = new + weights @ past
    if (past @ new >= 0).all():
        assert torch.equal(moved, new)
    else:
        assert (weights >= 0.5 - 1e-5).all()
        assert (past @ moved >= -1e-2).all()


def test_the_projection_is_the_best_of_all_active_sets():
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


def test_without_a_violation_the_gradient_stays_as_it_is():
    past = torch.eye(3)
    assert not dual_weights(past, torch.tensor([0.0, 1.0, 2.0]), 0.5).any()


def test_without_past_steps_gem_is_plain_descent(stream):
    answers = [
        learned(Gem, GemConfig("small", constrained=on), stream, steps=1)[0].predict(held_out(stream).images)
        for on in (True, False)
    ]
    assert torch.equal(*answers)


def test_folded_statistics_are_those_of_passes_one_after_another():
    one, other = (Classifier("small", GREY, torch.float32).train() for _ in range(2))
    other.load_state_dict(one.state_dict())
    batches = [torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    statistics = Statistics(other, 3)
    before = {name: value.clone() for name, value in other.state_dict().items() if "running" in name}
    for i in (2, 0, 1):  # in whatever order
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


def test_the_memory_moves_the_running_statistics_unless_they_stay_apart(stream):
    shared, apart = (
        learned(Gem, GemConfig("small", memory_statistics=mode), stream, steps=2)[0].model.state_dict()
        for mode in ("shared", "apart")
    )
    assert not all(torch.equal(shared[name], apart[name]) for name in shared if "running" in name)


def test_batch_and_memory_are_normalised_together_and_each_part_has_its_gradient(stream, monkeypatch):
    seen = []
    find = GemUpdate._find_together

    def watched(self, rows, u, past_u):
        model = self.agent.model
        before = {name: value.clone() for name, value in model.state_dict().items()}
        loss = find(self, rows, u, past_u)
        seen.append((self, rows, u, past_u, before, self.gradients.clone()))
        return loss

    monkeypatch.setattr(GemUpdate, "_find_together", watched)
    learned(Gem, GemConfig("small"), stream, steps=3)
    update, rows, u, past_u, before, gradients = seen[-1]
    model = update.agent.model
    model.load_state_dict(before)
    model.train().requires_grad_(True)
    images = torch.cat((update.labeled.images[rows], *(part.images for part in update.past)))
    columns = torch.cat((update.columns[rows], *update.past_columns))
    logits = model(weak_view(images, torch.cat((u, past_u)), update.agent.views))
    sizes = [len(rows), *(len(part) for part in update.past)]
    assert len(sizes) == 3 and sum(sizes) == len(images)
    for row, z, y in zip((-1, 0, 1), logits.split(sizes), columns.split(sizes), strict=True):
        parts = torch.autograd.grad(F.cross_entropy(z, y), list(model.parameters()), retain_graph=True)
        assert torch.allclose(gradients[row], torch.cat([part.flatten() for part in parts]), atol=1e-5)


@pytest.mark.parametrize("statistics", ["joint", "shared"])
def test_products_are_of_every_pair_of_gradients(stream, monkeypatch, statistics):
    seen = []
    find = GemUpdate._find

    def watched(self, *inputs):
        products = find(self, *inputs)
        seen.append((products, self.gradients @ self.gradients.T))
        return products

    monkeypatch.setattr(GemUpdate, "_find", watched)
    learned(Gem, GemConfig("small", memory_statistics=statistics), stream, steps=3)
    assert {len(products) for products, _ in seen} == {1, 2, 3}
    for products, expected in seen:
        torch.testing.assert_close(products, expected, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_alike_are_projected_all_the_same():
    rng = torch.Generator().manual_seed(0)
    for _ in range(200):
        past = 1e3 * torch.randn(1, 50, generator=rng) + 1e-4 * torch.randn(4, 50, generator=rng)
        new = -past[0] + torch.randn(50, generator=rng)
        weights = dual_weights(past @ past.T, past @ new, 0.5)
        assert weights.isfinite().all() and (weights >= 0.5 - 1e-5).all()


def test_gem_keeps_the_past_steps_apart(stream):
    agent, _ = learned(Gem, GemConfig("small"), stream)
    agent.sizes.append(0)  # as if a fourth step were open
    parts = agent._past_steps()
    assert [sorted(set(part.labels.tolist())) for part in parts] == [sorted(rows.new_classes) for rows in stream.steps]
    assert sum(map(len, parts)) == len(agent.memory.labeled)


# ----- iCaRL


def test_icarl_goes_by_the_nearest_mean_of_exemplars(stream):
    agent, _ = learned(Icarl, IcarlConfig("small"), stream)
    images = held_out(stream).images
    features = F.normalize(agent.model.features(images), dim=1)
    kept = agent.memory.labeled
    stored = F.normalize(agent.model.features(kept.images), dim=1)
    means = torch.stack([F.normalize(stored[kept.labels == c].mean(0), dim=0) for c in agent.classes])
    assert torch.equal(agent.predict(images).argmax(1), torch.cdist(features, means).argmin(1))


def test_icarl_stores_herded_rows_and_shrinks_from_the_end(stream):
    agent, _ = learned(Icarl, IcarlConfig("small"), stream, steps=1)
    first = {c: agent.memory.labeled.images[agent.memory.labeled.labels == c] for c in agent.classes}
    rows = stream.step(0).labeled
    for c, kept in first.items():
        mine = rows.images[rows.labels == c]
        features = F.normalize(agent.model.features(mine), dim=1)
        assert torch.equal(kept, mine[herded(features, len(kept))])
    agent.learn(stream.step(1))
    for c, kept in first.items():
        left = agent.memory.labeled.images[agent.memory.labeled.labels == c]
        assert torch.equal(left, kept[: len(left)])
    memory = Memory(4, rows)
    memory.update(rows.rows(torch.empty(0, dtype=torch.long)), sorted(set(rows.labels.tolist())), "first", seeded(0))
    assert len(memory.labeled) == 4


def test_icarl_predicts_without_a_memory():
    stream = toy_stream(replace(TOY, memory=0))
    agent, _ = learned(Icarl, IcarlConfig("small"), stream)
    assert agent.predict(held_out(stream).images).shape[1] == 6


# ----- variants run, and go on where they were stopped


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (Gd, GdConfig("small", external="topk30_random70", q_current="P")),
        (Dm, DmConfig("small", true_positives=0.9, perturbation="lowest", threshold=0.0)),
        (Gem, GemConfig("small", memory_statistics="apart", margin=0.0)),
        (Icarl, IcarlConfig("small", distill=False)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_variant_continues_exactly_and_may_start_in_an_empty_world(kind, config, stream):
    make = maker(kind, config, stream)
    battery.check_continues_exactly(make, stream)
    battery.check_empty_world(make, stream)


def test_a_gem_update_moves_every_weight_against_its_own_gradient(stream):
    """Also where a weight lies in another order in memory than its gradient."""
    agent, step = maker(Gem, GemConfig("small", epochs=1, batch=8), stream)(updates=1), stream.step(0)
    agent.learn(step)
    again = maker(Gem, GemConfig("small", epochs=1, batch=8), stream)(updates=1)
    again.model.head.grow(2, seeded(0, "head", 0))
    again.classes = list(step.new_classes)
    before = {name: p.detach().clone() for name, p in again.model.named_parameters()}
    again.model.learning(True)
    again.sizes, again.phases.step = [2], 0
    training = again._training(step)
    rows, u = next(training.batches(0))
    logits = again.model(weak_view(step.labeled.images[rows], u, again.views))
    F.cross_entropy(logits, columns_of(step.labeled.labels[rows], again.classes)).backward()
    for name, p in again.model.named_parameters():
        moved = dict(agent.model.named_parameters())[name]
        assert torch.allclose(moved, before[name] - 0.03 * p.grad, atol=1e-6), name


@pytest.mark.parametrize(
    ("kind", "config"),
    [(Gd, GdConfig("small")), (Dm, DmConfig("small")), (Gem, GemConfig("small")), (Icarl, IcarlConfig("small"))],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_rate_that_no_network_learns_with_is_told_and_not_recorded(kind, config, stream):
    mad = replace(config, optimiser=replace(config.optimiser, rate=1e30, min_rate=0.0))
    mad = replace(mad, teacher=mad.optimiser) if kind is Gd else mad
    agent = maker(kind, mad, stream)(updates=FEW)
    with pytest.raises(Diverged):
        for t in range(3):
            refuse_divergence(agent.learn(stream.step(t)), t)
            evaluate(agent, stream, t)
