"""Labels whose images are gone: class means and one covariance, which follow the network."""

from dataclasses import replace

import pytest
import torch

from osscl.config import override
from osscl.errors import SpecError
from osscl.methods.class_statistics import Carried, no_past, summed_up
from osscl.learn.linear_head import HeadConfig, HeadFit, weighted_ridge
from osscl.methods import CO2L, URSL
from osscl.methods.ursl import Ursl
from osscl.runs.presets import on_small_net
from osscl.seeding import seeded
from osscl.tools.battery import maker, toy_stream
from osscl.vision.augment import Augmentation


def normal(*shape, name="x"):
    return torch.randn(*shape, generator=seeded(0, name), dtype=torch.float64)


def alike(counts, d=5):
    """Rows of classes that spread alike about their means."""
    about = normal(max(counts), d, name="about")
    parts = [normal(1, d, name=f"mean {c}") + about[:n] - about[:n].mean(0) for c, n in enumerate(counts)]
    return torch.cat(parts), torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])


def assert_same(one, other, **room):
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, **room)


def test_sums_are_the_means_and_the_mean_covariance_of_the_classes():
    x, targets = normal(30, 4), torch.arange(30) % 3
    found = summed_up(x, targets, torch.tensor([10, 10, 10]), no_past(x, 3))
    parts = [x[targets == c] for c in range(3)]
    torch.testing.assert_close(found.means, torch.stack([part.mean(0) for part in parts]))
    torch.testing.assert_close(found.spread, sum(part.T.cov(correction=0) for part in parts) / 3)


def test_rows_that_are_gone_count_as_if_they_were_there():
    """Every row of two classes is there twice, and one of each pair goes; a third class is new."""
    x, targets = alike([7, 7, 9])
    old, new = targets < 2, targets == 2
    everything, of = torch.cat((x[old], x[old], x[new])), torch.cat((targets[old], targets[old], targets[new]))
    carried = summed_up(everything[of < 2], of[of < 2], torch.tensor([14, 14]), no_past(x, 2))
    past = carried.beside(torch.tensor([7, 7, 9]), copies=1)
    assert past.rows.tolist() == [7, 7, 0]
    assert_same(weighted_ridge(x, targets, 3, 2.0, past=past), weighted_ridge(everything, of, 3, 2.0))
    after = summed_up(x, targets, torch.tensor([14, 14, 9]), past)
    whole = summed_up(everything, of, torch.tensor([14, 14, 9]), no_past(x, 3))
    assert_same((after.means, after.spread), (whole.means, whole.spread))


def test_a_mean_is_of_all_labels_however_often_some_of_them_are_seen_again():
    """The images that stay have had their share in it; a hundred steps later the others still have theirs."""
    x, targets = normal(20, 4), torch.arange(20) % 2
    labels, kept = torch.tensor([10, 10]), torch.arange(4)
    first = carried = summed_up(x, targets, labels, no_past(x, 2))
    for _ in range(100):
        past = carried.beside(torch.tensor([2, 2]), copies=1)
        carried = summed_up(x[kept], targets[kept], labels, past)
    torch.testing.assert_close(carried.means, first.means)
    assert carried.labels.tolist() == [10, 10]


def test_a_class_whose_images_are_all_at_hand_is_where_they_are():
    x, targets = normal(20, 4), torch.arange(20) % 2
    before = summed_up(x, targets, torch.tensor([10, 10]), no_past(x, 2))
    moved = x + 3  # and nobody has told
    after = summed_up(moved, targets, torch.tensor([10, 10]), before.beside(torch.tensor([10, 10]), copies=1))
    torch.testing.assert_close(after.means, before.means + 3)


def test_what_is_at_hand_is_not_missing():
    x, targets = alike([4, 4])
    carried = summed_up(x, targets, torch.tensor([4, 4]), no_past(x, 2))
    past = carried.beside(torch.tensor([4, 4]), copies=3)
    assert_same(weighted_ridge(x, targets, 2, 1.0, past=past), weighted_ridge(x, targets, 2, 1.0))
    assert carried.beside(torch.tensor([1, 4, 7]), copies=3).rows.tolist() == [9, 0, 0]


def test_what_is_carried_goes_where_unlabelled_rows_go():
    before, turn, shift = normal(4000, 5), normal(5, 5, name="turn"), normal(5, name="shift")
    carried = Carried(torch.tensor([3, 3]), normal(2, 5, name="means"), torch.eye(5, dtype=torch.float64))
    moved = carried.moved(before, before @ turn + shift)
    torch.testing.assert_close(moved.means, carried.means @ turn + shift, rtol=0, atol=1e-3)
    torch.testing.assert_close(moved.spread, turn.T @ turn, rtol=0, atol=1e-3)
    still = carried.moved(before, before)
    assert_same((still.means, still.spread), (carried.means, carried.spread))


def test_few_rows_move_little():
    """Two rows say nothing of the directions that they do not point in."""
    before = torch.zeros(2, 3, dtype=torch.float64)
    before[0, 0], before[1, 0] = 1, -1
    carried = Carried(torch.tensor([3]), torch.ones(1, 3, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    moved = carried.moved(before, 3 * before)
    assert 2.5 < moved.means[0, 0] < 3 and moved.means[0, 1:].tolist() == [1, 1]


def test_further_labels_join_the_mean_by_their_number():
    x, targets = normal(20, 4), torch.arange(20) % 2
    first = summed_up(x[:12], targets[:12], torch.tensor([6, 6]), no_past(x, 2))
    views = torch.cat((x[12:], x[12:]))  # each image as it is, and one copy of it
    joined = first.joined(views, targets[12:], copies=2)
    whole = summed_up(x, targets, torch.tensor([10, 10]), no_past(x, 2))
    assert joined.labels.tolist() == [10, 10]
    torch.testing.assert_close(joined.means, whole.means)


# ----- in an agent


@pytest.fixture(scope="module")
def stream():
    return toy_stream()


def learned(stream, *changes, memory=0, config=None):
    make = maker(Ursl, override(config or on_small_net(URSL), changes), stream)
    agent = replace(make, setting=replace(make.setting, memory=memory))()
    for t in range(len(stream)):
        agent.learn(stream.step(t))
    return agent


def right_on_the_first_step(agent, stream):
    rows = stream.evaluation(0)
    return float((torch.tensor(agent.classes)[agent.predict(rows.images).argmax(1)] == rows.labels).float().mean())


@pytest.mark.parametrize("share", [0, 0.5])
def test_without_any_memory_old_classes_are_still_told(share, stream):
    changes = [f"head.reference={share}", "head.solver=ridge"]
    lost = learned(stream, *changes)
    kept = learned(stream, *changes, "head.carried=true")
    assert right_on_the_first_step(lost, stream) == 0  # no row of them, no word for them
    assert right_on_the_first_step(kept, stream) > 0.6
    now = kept.heads.carrier.now
    assert set(now) == ({"learner", "reference"} if share else {"learner"})
    labels = sum(len(stream.step(t).labeled) for t in range(len(stream)))
    assert all(int(carried.labels.sum()) == labels for carried in now.values())


def test_a_memory_that_holds_every_label_leaves_nothing_to_carry(stream):
    everything = sum(len(stream.step(t).labeled) for t in range(len(stream)))
    agent = learned(stream, "head.carried=true", memory=everything)
    fit = HeadFit(agent.learner.encoder, agent.memory.labeled, agent.classes, Augmentation(), 0, ("head",))
    past = replace(fit, carried=agent.heads.carrier.now["learner"]).past(agent.config.head)
    assert past is not None and past.rows.sum() == 0


def test_a_step_without_unlabelled_images_drops_what_was_carried(stream):
    make = maker(Ursl, override(on_small_net(URSL), ["head.carried=true"]), stream)
    agent = replace(make, setting=replace(make.setting, memory=0))()
    agent.learn(stream.step(0))
    step = stream.step(1)
    agent.learn(replace(step, unlabeled=step.unlabeled[:0]))
    first = len(stream.steps[0].new_classes)
    assert agent.heads.carrier.now["learner"].labels[:first].sum() == 0


def test_heads_fitted_twice_carry_on_from_the_same(stream):
    """The study of heads fits them anew after a run's last step."""
    agent = learned(stream, "head.carried=true")
    step, once = stream.step(len(stream) - 1), agent.heads.carrier.now["learner"].means
    agent.fit_heads(step, agent.segregate(step))
    assert torch.equal(agent.heads.carrier.now["learner"].means, once)


def test_carrying_is_refused_where_nothing_would_carry():
    with pytest.raises(SpecError, match=r"carried.*sgd"):
        HeadConfig("sgd", carried=True)
    with pytest.raises(SpecError, match="carried"):
        replace(CO2L, head=replace(CO2L.head, carried=True))
