"""What looks known: by what is carried, by the gate, by DM's second network."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from osscl.config import override
from osscl.data.images import Labeled, columns_of
from osscl.learn.linear_head import rank_in_class
from osscl.methods.class_statistics import Carried, no_past, summed_up
from osscl.methods.class_statistics import KNOWN, SOFTNESS, likeness, with_threshold, world_of
from osscl.learn.linear_head import HeadFit, likeness_on, placed_views
from osscl.methods import CONFIGURATIONS, METHODS, URSL
from osscl.methods.base import Discerning
from osscl.methods.ursl import Ursl
from osscl.runs.checkpoint import Options
from osscl.runs.evaluate import judge_known
from osscl.runs.presets import on_small_net
from osscl.runs.record import read_record
from osscl.runs.run import run
from osscl.runs.spec import SCHEDULES, RunSpec
from osscl.seeding import seeded
from osscl.stream.scenario import ScenarioSpec
from osscl.tools.battery import check_method, maker, toy_stream
from osscl.vision.encoder import in_chunks

LIKE_PLUS = ["head.carried=true", "head.reference=.5", "head.solver=ridge"]


def normal(*shape, name="x"):
    return torch.randn(*shape, generator=seeded(0, name), dtype=torch.float64)


def two_classes(labels=(5, 5)):
    means = torch.tensor([[1.0, 0, 0], [0, 1.0, 0]], dtype=torch.float64)
    return Carried(torch.tensor(labels), means, 0.01 * torch.eye(3, dtype=torch.float64))


def test_a_score_is_how_much_nearer_a_class_is_than_everything():
    carried, world, x = two_classes((5, 10)), normal(500, 3, name="world"), normal(7, 3)
    soft = SOFTNESS * torch.eye(3, dtype=torch.float64)
    spread = carried.spread * 20 / 17  # about means of the same rows, classes weighing alike: 1 - (1/5 + 1/10) / 2
    within, around = (torch.linalg.inv(part + soft) for part in (spread, world.T.cov(correction=0)))

    def distance(offset, inverse):
        return torch.einsum("ni,ij,nj->n", offset, inverse, offset)

    to_means = [distance(x - mean, within) / (1 + 1 / n) for mean, n in zip(carried.means, (5, 10), strict=True)]
    nearest = torch.stack(to_means).amin(0)
    nearer = (distance(x - world.mean(0), around) - nearest) / 3
    torch.testing.assert_close(likeness(carried, world_of(world)).score(x), (nearer / (1 + nearer.abs())).float())


def test_rows_of_a_class_look_more_known_than_others():
    found = likeness(two_classes(), world_of(normal(500, 3, name="world")))
    near, far = found.score(torch.tensor([[1.0, 0, 0], [0, 0, 1.0]]))
    assert -1 < far < 0 < near < 1


def test_a_class_without_a_label_has_no_place():
    found = likeness(two_classes((5, 0)), world_of(normal(500, 3, name="world")))
    near, unknown = found.score(torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))
    assert unknown < 0 < near


def test_a_share_of_the_labelled_rows_is_above_the_threshold():
    scores = torch.linspace(-0.5, 0.5, 100)[torch.randperm(100, generator=seeded(0, "order"))]
    found = with_threshold(likeness(two_classes(), world_of(normal(9, 3))), scores, torch.zeros(100, dtype=torch.long))
    assert float((scores > found.threshold).float().mean()) == pytest.approx(KNOWN, abs=0.01)


def test_for_the_threshold_a_large_class_weighs_what_a_small_one_does():
    scores = torch.cat((torch.zeros(90), torch.full((10,), 0.5)))
    targets = torch.cat((torch.zeros(90, dtype=torch.long), torch.ones(10, dtype=torch.long)))
    found = likeness(two_classes(), world_of(normal(9, 3)))
    assert with_threshold(found, scores, targets).threshold == 0
    few_below = torch.where(torch.arange(100) < 30, scores, 0.5)  # a third of the large class: a sixth of all
    assert with_threshold(found, few_below, targets).threshold == 0.5


# ----- in an agent


@pytest.fixture(scope="module")
def stream():
    return toy_stream()


def learned(config, stream, steps=None, memory=0):
    make = maker(METHODS[type(config)], config, stream)
    agent = replace(make, setting=replace(make.setting, memory=memory))()
    for t in range(len(stream) if steps is None else steps):
        agent.learn(stream.step(t))
    return agent


@pytest.fixture(scope="module")
def carrying(stream):
    return learned(override(on_small_net(URSL), LIKE_PLUS), stream)


def test_where_labels_are_carried_the_likeness_tells_what_looks_known(carrying, stream):
    t = len(stream) - 1
    found = judge_known(carrying, stream, t)
    assert found.threshold == carrying.known_above == carrying.heads.likeness.threshold
    plain = learned(on_small_net(URSL), stream)
    by_gate = judge_known(plain, stream, t)
    assert by_gate.threshold == plain.known_above == plain.gate.threshold
    assert found.auroc > 0.9 > by_gate.auroc  # without a memory, the gate knows the last classes alone
    assert found.recall > 0.5 > 0.1 > found.foreign


def test_new_images_are_judged_by_a_likeness_that_has_not_seen_them(carrying, stream):
    """Their scores by the likeness that they made themselves would set a higher threshold."""
    new = stream.step(len(stream) - 1).labeled
    own = with_threshold(
        carrying.heads.likeness, carrying.known_scores(new.images), columns_of(new.labels, carrying.classes)
    )
    assert carrying.known_above < own.threshold - 0.01


def fit_of(agent, stream, steps):
    """The reference's fit after the last of these steps, with the labels of all of them at hand."""
    parts = [stream.step(t).labeled for t in steps]
    data = Labeled(torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts]))
    encoder, setting = agent.reference.encoder, agent.setting
    fit = HeadFit(encoder, data, agent.classes, setting.augmentation, 0, ("head",), centre=agent.heads.reference.centre)
    return replace(fit, carried=agent.heads.carrier.before["reference"])


def threshold_of(config, fit, head, world):
    """By images of U_t, as an agent does it."""
    found = likeness_on(
        config, fit, placed_views(config, fit, head), head.placed(in_chunks(fit.encoder.features, world))
    )
    return None if found is None else found.threshold


def test_where_every_label_is_at_hand_all_images_set_the_threshold(carrying, stream):
    """And they are judged by each other alone, not by what is carried, which has seen them."""
    config, head = carrying.config.head, carrying.heads.reference
    last = len(stream) - 1
    world = stream.step(last).unlabeled
    whole, few = fit_of(carrying, stream, range(last + 1)), fit_of(carrying, stream, [last])
    same = threshold_of(config, replace(whole, carried=None), head, world)
    assert threshold_of(config, whole, head, world) == same
    new_alone = replace(whole, data=few.data)  # images of the past are gone
    assert new_alone.past(config).rows.any()
    assert threshold_of(config, new_alone, head, world) != same


def test_bessels_share_is_right_for_classes_of_any_size():
    """Rows of unit variance; of the correction's mean over many draws."""
    counts, found = (100, 3, 3, 3), []
    for draw in range(300):
        x, targets = normal(sum(counts), 2, name=f"draw {draw}"), torch.repeat_interleave(torch.tensor(counts))
        carried = summed_up(x, targets, torch.tensor(counts), no_past(x, len(counts)))
        within = likeness(carried, world_of(normal(9, 2))).within
        found.append(float(torch.linalg.inv(within).diagonal().mean()) - SOFTNESS)
    assert sum(found) / len(found) == pytest.approx(1, abs=0.05)


def test_an_image_that_is_alone_in_its_class_does_not_set_the_threshold(carrying, stream):
    config, head, last = carrying.config.head, carrying.heads.reference, len(stream) - 1
    world, fit = stream.step(last).unlabeled, replace(fit_of(carrying, stream, range(last + 1)), carried=None)
    lone = fit.targets() == 0
    rows = torch.cat((lone.nonzero()[:1, 0], (~lone).nonzero()[:, 0]))
    one, none = (replace(fit, data=fit.data.rows(kept)) for kept in (rows, (~lone).nonzero()[:, 0]))
    with_lone, without = (threshold_of(config, each, head, world) for each in (one, none))
    assert abs(with_lone - without) < 0.02
    single = fit.data.rows(rank_in_class(fit.targets(), len(fit.classes)).eq(0).nonzero()[:, 0])
    assert threshold_of(config, replace(fit, data=single), head, world) is None


def test_what_looks_known_is_kept_with_the_agent(carrying, stream):
    make = maker(Ursl, carrying.config, stream)
    again = replace(make, setting=carrying.setting)()
    again.load_state(carrying.state())
    images = stream.step(0).unlabeled
    assert again.known_above == carrying.known_above
    assert torch.equal(again.known_scores(images), carrying.known_scores(images))
    earlier = carrying.state()
    del earlier["heads"]["likeness"]  # a model of before
    again.load_state(earlier)
    assert again.known_above == carrying.gate.threshold


def test_a_last_step_without_unlabelled_images_goes_back_to_the_gate(carrying, stream):
    agent = learned(carrying.config, stream, steps=1)
    assert agent.heads.likeness is not None
    step = stream.step(1)
    agent.learn(replace(step, unlabeled=step.unlabeled[:0]))
    assert agent.heads.likeness is None and agent.known_above == agent.gate.threshold
    assert agent.known_scores(step.labeled.images).shape == (len(step.labeled),)


def test_dm_tells_by_its_second_network_and_the_labels_alone_do_not_tell(stream):
    dm = learned(on_small_net(CONFIGURATIONS["dm"]), stream, memory=8)
    found = judge_known(dm, stream, len(stream) - 1)
    assert found is not None and found.threshold == dm.passing and found.auroc is not None
    blind = learned(on_small_net(CONFIGURATIONS["labels-only"]), stream, steps=1)
    assert blind.known_above is None and judge_known(blind, stream, 0) is None


def test_who_does_not_tell_is_not_asked(stream):
    silent = SimpleNamespace(classes=[0])
    assert not isinstance(silent, Discerning) and judge_known(silent, stream, 0) is None


def test_carrying_and_telling_pass_the_battery():
    check_method(Ursl, override(on_small_net(URSL), LIKE_PLUS))


def test_the_battery_asks_who_tells():
    class Loose(Ursl):
        def known_scores(self, images):
            return super().known_scores(images)[:, None]

    with pytest.raises(AssertionError, match=r"known scores: they are \(\d+, 1\) of"):
        check_method(Loose, on_small_net(URSL))


# ----- who is asked


def test_strangers_are_of_peripheral_sets_and_in_no_step(stream):
    bank = stream.banks["foreign toy"]
    shown = {int(row) for rows in stream.steps for row in rows.unlabeled[rows.sources == 1]}
    unmet = [row for row in range(len(bank.train)) if row not in shown]
    assert 5 < len(unmet) < len(bank.train)
    assert torch.equal(stream.strangers(1000), bank.train.images[unmet])
    few = stream.strangers(5)
    assert torch.equal(few[0], bank.train.images[unmet[0]]) and torch.equal(few[4], bank.train.images[unmet[-1]])
    assert len(replace(stream, spec=replace(stream.spec, peripheral=())).strangers(5)) == 0


class Oracle:
    """Knows what it is shown by the hand that shows it."""

    classes = ()
    known_above = 0.5

    def __init__(self, stream, t):
        self.met = torch.cat([stream.evaluation(k).images for k in range(t + 1)])

    def known_scores(self, images):
        return torch.tensor([float((self.met == image).flatten(1).all(1).any()) for image in images])


@pytest.mark.parametrize("t", [0, 2])
def test_met_to_come_and_foreign_rows_are_told_apart(t, stream):
    found = judge_known(Oracle(stream, t), stream, t)
    assert (found.auroc, found.fpr95, found.recall, found.foreign) == (1, 0, 1, 0)
    late = judge_known(Oracle(stream, 0), stream, 2)  # a third of the rows met by then
    assert late.recall == pytest.approx(1 / 3) and late.foreign == 0


def test_a_run_records_what_looked_known(tmp_path):
    digits = ScenarioSpec("digits", ("letters",), labels_per_class=3, memory=30)
    config = override(on_small_net(URSL), LIKE_PLUS)
    record = run(RunSpec(digits, config, SCHEDULES["smoke"], seed=0), Options(out=tmp_path, device="cpu"))
    assert all(step.known is not None and step.known.recall is not None for step in record.steps)
    again = read_record(tmp_path / record.id / f"{record.id}.json")
    assert [step.known for step in again.steps] == [step.known for step in record.steps]
