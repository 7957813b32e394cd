"""URSL-plus: the start, two heads, pseudo-labels, statistics of past labels, and what looks known."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from osscl.config import override
from osscl.data.images import columns_of, concat
from osscl.errors import SpecError
from osscl.learn.linear_head import HeadFit, fit_head, rank_in_class
from osscl.learn.memory import Memory
from osscl.methods import CO2L, CONFIGURATIONS, LABELS_ONLY, ursl_plus
from osscl.methods.base import Discerning, Schedule, bytes_kept
from osscl.methods.class_statistics import StatisticsFit, StatisticsTracker, head_views
from osscl.methods.known_detector import background_of, detector_of, fit_detector, known_threshold
from osscl.methods.ursl import Ursl
from osscl.methods.ursl_plus import UrslPlus
from osscl.runs.checkpoint import Options
from osscl.runs.evaluate import judge_known
from osscl.runs.record import read_record
from osscl.runs.run import run
from osscl.runs.spec import EXPERIMENTS, RunSpec, on_small_net
from osscl.tools.battery import TOY, check_rows_are_judged_alone, held_out, maker, toy_stream
from osscl.vision.encoder import in_chunks
from refusals import naming
from toy_agents import ALL_PASS, PLUS, SMALL, agent_of, changed, learned, same, weights

ALONE = ["pseudo_labels=false", "statistics=false"]  # two heads, each from labels alone


def plus(*changes):
    return changed(*changes, config=PLUS)


@pytest.fixture
def fits(monkeypatch):
    """Every fit of a head, in order."""
    seen = []
    monkeypatch.setattr(ursl_plus, "fit_head", lambda config, fit: seen.append(fit) or fit_head(config, fit))
    return seen


def test_without_its_four_parts_it_is_ursl(stream):
    bare = plus("start=random", "reference_weight=0", *ALONE, "learner.epochs=200")
    assert torch.equal(learned(bare, stream)[0].predict(held_out(stream).images),
                       learned(SMALL, stream)[0].predict(held_out(stream).images))  # fmt: skip


def test_the_learner_starts_once_as_a_copy_of_the_reference(stream, monkeypatch):
    starts, train = [], Ursl.train_learner
    monkeypatch.setattr(
        Ursl, "train_learner", lambda self, *given: starts.append(weights(self.learner)) or train(self, *given)
    )
    agent, _ = learned(plus(), stream, steps=1)
    first, after = weights(agent.reference.encoder), weights(agent.learner)
    agent.learn(stream.step(1))
    assert same(starts[0], first) and same(starts[1], after) and not same(after, first)


def test_the_prediction_is_a_weighted_mean_of_two_heads_of_one_scale(stream, fits):
    images = held_out(stream).images
    agent, _ = learned(plus("reference_weight=0.25", *ALONE), stream, updates=12)
    assert [fit.encoder for fit in fits] == 3 * [agent.learner, agent.reference.encoder]
    assert all(own.data is other.data for own, other in zip(fits[::2], fits[1::2], strict=True))
    own = agent.head(in_chunks(agent.learner.features, images))
    other = agent.reference_head(in_chunks(agent.reference.encoder.features, images))
    torch.testing.assert_close(agent.predict(images), 0.75 * own + 0.25 * other)
    assert agent.reference_head.scale == agent.head.scale and not torch.allclose(own, other)
    alone, _ = learned(plus("reference_weight=0", *ALONE), stream, updates=12)
    assert alone.reference_head is None and torch.equal(alone.predict(images), own)


def test_pseudo_labels_are_own_answers_for_new_classes_and_previous_answers_for_past_ones(stream, fits, monkeypatch):
    agent = agent_of(plus("reference_weight=0", "statistics=false", ALL_PASS), stream)
    agent.learn(stream.step(0))
    rows, answers = stream.step(1).unlabeled, UrslPlus.answers
    before = agent.answers(rows).flip(0)  # wrong on purpose: to see which answers are used
    monkeypatch.setattr(
        UrslPlus, "answers", lambda self, x: answers(self, x).flip(0) if len(self.classes) == 2 else answers(self, x)
    )
    agent.learn(stream.step(1))
    assert len(fits) == 4 and fits[-1].scale is not None  # twice at each step; then at the scale of the first head
    first = fit_head(agent.config.head, fits[-2])
    own = torch.tensor(agent.classes)[first(in_chunks(agent.learner.features, rows)).argmax(1)]
    new = torch.isin(own, torch.tensor(stream.steps[1].new_classes))
    assert new.any() and not new.all() and not torch.equal(own[~new], before[~new])
    assert torch.equal(fits[-1].pseudo_labeled.labels, torch.where(new, own, before))


def test_heads_are_fitted_if_no_row_passes_the_gate(stream):
    agent, reports = learned(plus("gate.eta=[1e6,1e6]"), stream)
    assert not any(report.gate.passed.any() for report in reports) and agent.head is not None


def test_any_part_of_ours_needs_a_reference():
    bare = ["start=random", "reference_weight=0", *ALONE, "gate.pseudo=none", "learner.lam=0"]
    assert not override(PLUS, bare).needs_reference and not LABELS_ONLY.needs_reference
    for part in ("start=reference", "reference_weight=0.5", "pseudo_labels=true"):
        assert override(PLUS, [*bare, part]).needs_reference


@pytest.mark.parametrize(
    ("change", "field"),
    [("reference_weight=2", "reference_weight"), ("head.solver=sgd", "statistics"), ("learner.net.dim=32", "start")],
)
def test_contradictory_settings_are_refused_by_field(change, field):
    with pytest.raises(SpecError, match=naming(field)):
        plus(change)


def test_other_methods_have_none_of_its_fields():
    for field in ("start=reference", "reference_weight=0.5", "pseudo_labels=true", "statistics=true"):
        for config in (SMALL, CO2L):
            with pytest.raises(SpecError, match=field.partition("=")[0]):
                override(config, [field])


# ----- statistics of labels whose images are gone


def right_on_the_first_step(agent, stream):
    rows = stream.evaluation(0)
    return float((torch.tensor(agent.classes)[agent.predict(rows.images).argmax(1)] == rows.labels).float().mean())


@pytest.mark.parametrize("weight", [0, 0.5])
def test_without_a_memory_statistics_alone_preserve_old_classes(weight, stream):
    parts = ["start=random", f"reference_weight={weight}", "pseudo_labels=false"]
    lost, _ = learned(plus(*parts, "statistics=false"), stream, memory=0)
    kept, _ = learned(plus(*parts), stream, memory=0)
    assert right_on_the_first_step(lost, stream) == 0  # no row of them is left
    assert right_on_the_first_step(kept, stream) > 0.6
    current = kept.tracker.current
    assert set(current) == ({"learner", "reference"} if weight else {"learner"})
    labels = sum(len(stream.step(t).labeled) for t in range(len(stream)))
    assert all(int(statistics.labels.sum()) == labels for statistics in current.values())


def test_a_memory_that_holds_every_label_leaves_no_missing_rows(stream):
    agent, _ = learned(plus("reference_weight=0"), stream, memory=100)
    fit = HeadFit(agent.learner, agent.memory.labeled, agent.classes, agent.setting.augmentation, 0, ("head",))
    assert StatisticsFit(fit, agent.tracker.current["learner"]).missing(agent.config.head).rows.sum() == 0


def test_a_step_without_unlabelled_images_drops_the_statistics(stream):
    agent, _ = learned(plus(), stream, steps=1, memory=0)
    step = stream.step(1)
    agent.learn(replace(step, unlabeled=step.unlabeled[:0]))
    assert agent.tracker.current["learner"].labels[: len(stream.steps[0].new_classes)].sum() == 0


def test_what_only_a_step_needs_is_not_saved(stream):
    state = learned(plus(), stream, steps=2, memory=0)[0].state()
    assert state["previous_labels"] is None and not state["tracker"]["previous"] and not state["tracker"]["snapshots"]


# ----- what looks known


@pytest.fixture(scope="module")
def agent(stream):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StatisticsTracker, "end_step", lambda self: None)  # keep the earlier statistics to look at
        return learned(plus("start=random", "pseudo_labels=false"), stream, memory=0)[0]


def test_the_detector_decides_what_looks_known_and_the_gate_does_without_one(agent, stream):
    last = len(stream) - 1
    found, plain = judge_known(agent, stream, last), learned(SMALL, stream, memory=0)[0]
    assert found.threshold == agent.known_above == agent.detector.threshold
    by_gate = judge_known(plain, stream, last)
    assert by_gate.threshold == plain.known_above == plain.gate.threshold
    assert found.auroc > 0.9 > by_gate.auroc  # without a memory, the gate knows only the last classes
    assert found.recall > 0.5 > 0.1 > found.foreign


def test_new_images_are_scored_by_a_detector_that_has_not_seen_them(agent, stream):
    """Scored by a detector fitted to them, they would set a higher threshold."""
    new = stream.step(len(stream) - 1).labeled
    own = known_threshold(agent.known_scores(new.images), columns_of(new.labels, agent.classes))
    assert agent.known_above < own - 0.01


def fit_of(agent, stream, steps):
    """The reference's fit after the last step, with the labels of `steps` available."""
    data = concat(*(stream.step(t).labeled for t in steps))
    encoder, center = agent.reference.encoder, agent.reference_head.center
    fit = HeadFit(encoder, data, agent.classes, agent.setting.augmentation, 0, ("head",), center=center)
    return StatisticsFit(fit, agent.tracker.previous["reference"])


def threshold_of(agent, data, stream):
    config, head = agent.config.head, agent.reference_head
    world = head.transform(in_chunks(data.fit.encoder.features, stream.step(len(stream) - 1).unlabeled))
    found = fit_detector(config, data, head_views(config, data.fit, head), background_of(world))
    return None if found is None else found.threshold


def test_with_every_label_available_all_images_set_the_threshold_without_the_statistics(agent, stream):
    """The statistics have seen them."""
    whole, few = fit_of(agent, stream, range(3)), fit_of(agent, stream, [2])
    expected = threshold_of(agent, StatisticsFit(whole.fit), stream)
    assert threshold_of(agent, whole, stream) == expected
    assert few.missing(agent.config.head).rows.any() and threshold_of(agent, few, stream) != expected


def test_the_only_image_of_a_class_does_not_set_the_threshold(agent, stream):
    fit = fit_of(agent, stream, range(3)).fit

    def threshold(rows):
        return threshold_of(agent, StatisticsFit(replace(fit, data=fit.data.rows(rows))), stream)

    lone = fit.targets() == 0
    others = (~lone).nonzero()[:, 0]
    assert abs(threshold(torch.cat((lone.nonzero()[:1, 0], others))) - threshold(others)) < 0.02
    assert threshold(rank_in_class(fit.targets(), len(fit.classes)).eq(0).nonzero()[:, 0]) is None


def test_without_unlabelled_images_in_the_last_step_the_gate_decides(agent, stream):
    made, _ = learned(agent.config, stream, steps=1, memory=0)
    assert made.detector is not None
    step = stream.step(1)
    made.learn(replace(step, unlabeled=step.unlabeled[:0]))
    assert made.detector is None and made.known_above == made.gate.threshold
    assert made.known_scores(step.labeled.images).shape == (len(step.labeled),)


def test_dm_uses_its_novelty_network_and_labels_only_cannot_tell(stream):
    dm, _ = learned(on_small_net(CONFIGURATIONS["dm"]), stream, memory=8)
    found = judge_known(dm, stream, len(stream) - 1)
    assert found is not None and found.threshold == dm.passing and found.auroc is not None
    blind, _ = learned(on_small_net(LABELS_ONLY), stream, steps=1)
    assert blind.known_above is None and judge_known(blind, stream, 0) is None
    assert not isinstance(SimpleNamespace(classes=[0]), Discerning)


def test_check_method_checks_the_shape_of_scores(stream):
    class Loose(UrslPlus):
        def known_scores(self, images):
            return super().known_scores(images)[:, None]

    with pytest.raises(AssertionError, match=r"\(\d+, 1\)"):
        check_rows_are_judged_alone(maker(Loose, PLUS, stream), stream)


def test_a_run_records_what_looked_known(tmp_path):
    digits = replace(EXPERIMENTS["digits"], classes_per_step=(2, 2), related=48, unrelated=48)
    tiny = Schedule("tiny", max_updates=1, row_cap=96, small_net=True)
    record = run(RunSpec(digits, PLUS, tiny), Options(tmp_path, device="cpu", share_references=False))
    assert all(step.known is not None and step.known.recall is not None for step in record.steps)
    again = read_record(tmp_path / record.id / f"{record.id}.json")
    assert [step.known for step in again.steps] == [step.known for step in record.steps]


# ----- on which images


def test_foreign_images_are_of_peripheral_sets_and_in_no_step(stream):
    bank = stream.banks["foreign toy"]
    shown = {int(row) for rows in stream.steps for row in rows.unlabeled[rows.sources == 1]}
    unmet = [row for row in range(len(bank.train)) if row not in shown]
    assert 5 < len(unmet) < len(bank.train)
    assert torch.equal(stream.foreign_images(1000), bank.train.images[unmet])
    few = stream.foreign_images(5)
    assert torch.equal(few[0], bank.train.images[unmet[0]]) and torch.equal(few[4], bank.train.images[unmet[-1]])
    assert len(replace(stream, spec=replace(stream.spec, peripheral=())).foreign_images(5)) == 0


class Oracle:
    """Knows exactly the held-out images of the first steps."""

    classes = ()
    known_above = 0.5

    def __init__(self, stream, t):
        self.met = torch.cat([stream.evaluation(k).images for k in range(t + 1)])

    def known_scores(self, images):
        return torch.tensor([float((self.met == image).flatten(1).all(1).any()) for image in images])


@pytest.mark.parametrize("t", [0, 2])
def test_images_of_seen_classes_are_judged_against_future_and_foreign_ones(t, stream):
    found = judge_known(Oracle(stream, t), stream, t)
    assert (found.auroc, found.fpr95, found.recall, found.foreign) == (1, 0, 1, 0)
    late = judge_known(Oracle(stream, 0), stream, 2)  # knows a third of the classes seen by then
    assert late.recall == pytest.approx(1 / 3) and late.foreign == 0


def test_what_is_kept_of_past_data_is_counted_in_bytes(stream):
    plain, ours = learned(SMALL, stream)[0], learned(PLUS, stream)[0]
    images, kept = plain.memory.labeled.images.numel(), ours.kept()
    gate = sum(4 * x.numel() for x in (plain.gate.prototypes, plain.gate.labeled_scores))
    assert bytes_kept(plain) == images + gate
    statistics = sum(x.numel() * x.element_size() for name, x in kept.items() if name.startswith("statistics"))
    assert {name.partition(".")[0] for name in kept} == {"memory", "gate", "statistics", "detector"}
    assert bytes_kept(ours) > images + statistics > images


# ----- within the bytes of |M| images

LIMITED = on_small_net(CONFIGURATIONS["ursl-plus"])


@pytest.fixture(scope="module")
def roomy():
    """A stream whose images are larger than a class mean."""
    return toy_stream(replace(TOY, memory=24, labels_per_class=8), size=32)


def test_images_and_statistics_stay_within_the_bytes_of_the_memory_at_every_step(roomy):
    agent, budget = agent_of(LIMITED, roomy), 24 * 32 * 32
    images = []
    for t in range(len(roomy)):
        agent.learn(roomy.step(t))
        assert bytes_kept(agent) <= budget == agent.byte_budget
        plan = agent.byte_plan(len(agent.classes))
        statistics = sum(x.numel() * x.element_size() for name, x in agent.kept().items() if name != "memory")
        assert statistics == plan.statistics
        images.append(len(agent.memory.labeled))
        assert images[-1] == min(plan.images, 8 * len(agent.classes))
    assert images[-1] < 24  # fewer than the same memory without statistics
    assert not any(name.startswith("gate") for name in agent.kept()) and agent.gate is None
    assert all(x.dtype in (torch.uint8, torch.float16, torch.int32) for x in agent.kept().values())


def test_a_step_that_keeps_more_than_its_budget_raises(roomy, monkeypatch):
    def hoard(self, new, *_):
        self.labeled = concat(self.labeled, new)

    monkeypatch.setattr(Memory, "update", hoard)
    agent = agent_of(LIMITED, roomy, memory=20)
    with pytest.raises(RuntimeError, match=naming("20,480")):
        for t in range(len(roomy)):
            agent.learn(roomy.step(t))


def test_a_memory_too_small_for_its_class_means_is_refused_by_name(stream, roomy):
    with pytest.raises(SpecError, match=naming(64, 512, "ursl-plus-unlimited", "statistics_share=null")):
        agent_of(LIMITED, stream)
    for memory, bytes_of_memory in ((3, "3,072"), (5, "5,120")):  # five leave no room for an image
        agent, begun = agent_of(LIMITED, roomy, memory=memory), []
        agent.runtime = agent.phases.runtime = replace(agent.runtime, progress=begun.append)
        for _ in range(2):
            with pytest.raises(SpecError, match=naming(2, "4,112", "1,024", memory, bytes_of_memory)):
                agent.learn(roomy.step(0))
        assert not begun  # nothing is trained
    kept, _ = learned(LIMITED, roomy, steps=1, memory=6)
    assert len(kept.memory.labeled) == 1


def test_a_step_whose_gate_leaves_no_room_is_refused_as_well():
    one_label = toy_stream(replace(TOY, labels_per_class=1), size=32)  # no detector, so the gate is kept
    with pytest.raises(SpecError, match=naming(2, "3,600", "1,024", "4,096")):
        learned(LIMITED, one_label, steps=1, memory=4)
    agent, _ = learned(LIMITED, one_label, steps=1, memory=5)
    assert agent.detector is None and len(agent.memory.labeled) == 1 and bytes_kept(agent) == 3600 + 1024


def test_a_later_step_without_unlabelled_images_that_leaves_no_room_is_refused(roomy):
    agent, _ = learned(LIMITED, roomy, steps=1, memory=6)
    alone = replace(roomy.step(1), unlabeled=roomy.step(1).unlabeled[:0])
    with pytest.raises(SpecError, match=naming(4, "6,176", "6,144")):
        agent.learn(alone)
    agent, _ = learned(LIMITED, roomy, steps=1, memory=8)
    agent.learn(alone)
    assert len(agent.memory.labeled) == 1 and bytes_kept(agent) == 6176 + 1024


def test_without_unlabelled_images_only_the_learner_has_statistics(roomy):
    agent, step = agent_of(LIMITED, roomy, memory=4), roomy.step(0)
    agent.learn(replace(step, unlabeled=step.unlabeled[:0]))
    assert [*agent.tracker.current] == ["learner"] and 0 < bytes_kept(agent) <= agent.byte_budget
    assert len(agent.memory.labeled) == (agent.byte_budget - agent.byte_plan(2).statistics) // 1024


def test_compact_statistics_still_remember_classes_whose_images_are_gone(roomy):
    spare = ["start=random", "pseudo_labels=false", "statistics_share=0.9"]
    kept, _ = learned(override(LIMITED, spare), roomy, memory=14)
    assert len(kept.memory.labeled) < 6 and right_on_the_first_step(kept, roomy) > 0.6
    lost, _ = learned(override(LIMITED, [*spare, "statistics=false"]), roomy, memory=0)
    assert right_on_the_first_step(lost, roomy) == 0


def test_the_share_is_refused_outside_its_range():
    for wrong in (0, 1, -0.5):
        with pytest.raises(SpecError, match="statistics_share"):
            plus(f"statistics_share={wrong}")


def test_a_share_leaves_ids_of_runs_without_one_unchanged():
    name = "ursl-plus-unlimited-cifar100-paper-s0-a8f2c0e2fd96"
    assert RunSpec(EXPERIMENTS["cifar100-p05"], CONFIGURATIONS["ursl-plus-unlimited"]).id == name
    limited = RunSpec(EXPERIMENTS["cifar100-p05"], CONFIGURATIONS["ursl-plus"]).id
    assert limited.startswith("ursl-plus-cifar100-paper-s0-") and limited[-12:] != name[-12:]


def test_forgetting_a_class_removes_its_own_gaussian_although_another_class_has_none(stream):
    """A class whose labels are all gone has statistics without labels and no Gaussian in the detector."""
    agent, _ = learned(PLUS, stream)
    statistics = agent.tracker.current["reference"]
    labels = statistics.labels.clone()
    labels[0] = 0
    agent.tracker.current["reference"] = replace(statistics, labels=labels)
    agent.detector = detector_of(
        agent.tracker.current["reference"], background_of(torch.eye(statistics.means.shape[1]))
    )
    agent.classes = [*range(len(agent.classes))]  # as an agent for own images has them
    left = agent.detector.means
    agent.forget(2)
    assert torch.equal(agent.detector.means, left[[0, *range(2, len(left))]])
    agent.forget(0)
    assert len(agent.detector.means) == len(left) - 1  # it had none
