"""Every named configuration passes the battery; every ablation does what its name says; references are shared."""

import math
from dataclasses import replace

import pytest
import torch

import osscl
from osscl.config import override
from osscl.errors import SpecError
from osscl.learn.linear_head import fit_head
from osscl.methods import CONFIGURATIONS, LABELS_ONLY, METHODS, URSL, learner, two_heads
from osscl.methods.base import Runtime
from osscl.methods.co2l import Co2l
from osscl.methods.ursl import Learner
from osscl.methods.reference import Reference
from osscl.methods.two_heads import TwoHeads
from osscl.methods.ursl import Ursl
from osscl.runs.presets import demo_sized, on_small_net
from osscl.tools import battery
from osscl.tools.battery import ENOUGH, FEW, TOY, accuracy, held_out, maker, toy_stream
from osscl.vision.encoder import in_chunks

SMALL = on_small_net(URSL)
ALL_PASS = "gate.eta=[-1e6, -1e6]"  # every unlabelled row is let in and confident


@pytest.fixture(scope="module")
def stream():
    return toy_stream()


def learned(config, stream, updates=FEW, runtime=None, keep=lambda edge: None):
    """An agent after the whole stream, and its reports."""
    make = maker(METHODS[type(config)], config, stream)
    agent = replace(make, runtime=runtime or Runtime())(keep, updates)
    return agent, [agent.learn(stream.step(t)) for t in range(len(stream))]


def changed(*changes, config=SMALL):
    return override(config, changes)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


def weights(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


# ----- the battery


@pytest.mark.parametrize("check", battery.CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_battery(name, check, stream):
    config = on_small_net(CONFIGURATIONS[name])
    check(maker(METHODS[type(config)], config, stream), stream)


def test_check_method_runs_every_check(monkeypatch):
    ran = []
    monkeypatch.setattr(battery, "CHECKS", [lambda make, stream, i=i: ran.append(i) for i in range(3)])
    osscl.check_method(Ursl, SMALL)
    assert ran == [0, 1, 2]


def test_a_method_without_a_config_of_its_own_needs_one():
    with pytest.raises(TypeError, match="Ursl"):
        osscl.check_method(Ursl)


class Coin(Ursl):
    def predict(self, images):
        return torch.zeros(len(images), len(self.classes))


class Silent(Ursl):
    def learn(self, step):
        super().learn(step)


class Unseeded(Ursl):
    def fit_heads(self, step, found):
        super().fit_heads(step, found)
        self.heads.learner = replace(self.heads.learner, bias=self.heads.learner.bias + torch.rand(1))


class Counting(Ursl):
    def predict(self, images):
        self.asked = getattr(self, "asked", 0) + 1
        return super().predict(images)


class LeavesATrace(Ursl):
    def predict(self, images):
        if self.learner.past is not None:
            self.learner.past.train()
        return super().predict(images)


class GoesByTheBatch(Ursl):
    def predict(self, images):
        return super().predict(images) - super().predict(images).mean(0)


class Hoarder(Ursl):
    def _fit_head_and_remember(self, step, found):
        super()._fit_head_and_remember(step, found)
        self.memory.labeled = osscl.data.images.concat(self.memory.labeled, step.labeled)


class HoardsElsewhere(Ursl):
    hoard = ()

    def learn(self, step):
        report = super().learn(step)
        self.hoard = (*self.hoard, step.labeled.images)
        return report

    def state(self):
        return {**super().state(), "hoard": dict(enumerate(self.hoard))}


class NeverAtAGoodMoment(Ursl):
    def __init__(self, config, setting, runtime):
        super().__init__(config, setting, replace(runtime, keep=lambda edge: None))


class Vandal(Ursl):
    def learn(self, step):
        step.labeled.images[0, 0, 0, 0] += 1
        return super().learn(step)


class NeedsAWorld(Ursl):
    def learn(self, step):
        if not len(step.unlabeled):
            raise ValueError("no world")
        return super().learn(step)


class Unordered(Ursl):
    def learn(self, step):
        report = super().learn(step)
        self.classes.sort(reverse=True)
        return report


class Forgetful(Ursl):
    def load_state(self, state):
        super().load_state(state)
        self.memory.labeled = self.setting.no_images()


class Stateless(Ursl):
    def state(self):
        return {}


class StartsOver(Ursl):
    """Drops the cursor inside a phase: weights of the middle, updates from the first."""

    def load_state(self, state):
        super().load_state(state)
        self.learner.interrupted = None


class SwallowsStops(Ursl):
    def learn(self, step):
        try:
            return super().learn(step)
        except Exception:
            return super().learn(step)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Coin, "beats chance: "),
        (Silent, "reports: "),
        (Unseeded, "same seed: "),
        (Counting, "predict changes nothing: asked is"),
        (LeavesATrace, "predict changes nothing: learner.past.training"),
        (GoesByTheBatch, "rows are judged alone: "),
        (Hoarder, "memory: "),
        (HoardsElsewhere, "memory: "),
        (NeverAtAGoodMoment, "continues exactly: learn() never calls runtime.keep()"),
        (Vandal, "step unchanged: labeled.images"),
        (NeedsAWorld, "no world"),
        (Unordered, "classes met: "),
        (Forgetful, "saved and reloaded: memory"),
        (Stateless, "saved and reloaded: load_state() asks for '"),
        (StartsOver, "continues exactly: "),
        (SwallowsStops, "continues exactly: "),
    ],
)
def test_the_battery_finds_what_is_broken(broken, says):
    with pytest.raises((AssertionError, ValueError)) as caught:
        osscl.check_method(broken, on_small_net(LABELS_ONLY))
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert "check_" in caught.value.__notes__[0]


# ----- what the parts are for


WITHOUT_DISTILLATION = {
    "UrslConfig": ["gate.pseudo=none", "learner.gamma=0", "learner.lam=0", "head.carried=false"],  # a memory, too
    "Co2lConfig": ["unlabeled=none", "learner.gamma=0", "learner.lam=0"],
    "GdConfig": ["distill=0"],
    "DmConfig": ["distill=0", "consistency=0"],
    "GemConfig": ["constrained=false"],
    "IcarlConfig": ["distill=false"],
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_without_memory_and_distillation_a_method_is_worse(name):
    config = on_small_net(CONFIGURATIONS[name])
    bare = changed(*WITHOUT_DISTILLATION[type(config).__name__], config=config)
    scores = []
    for spec, variant in ((TOY, config), (replace(TOY, memory=0), bare)):
        streams = [toy_stream(spec, seed) for seed in range(2)]
        scores.append([accuracy(learned(variant, stream, updates=ENOUGH // 2)[0], stream) for stream in streams])
    assert sum(scores[0]) / 2 > sum(scores[1]) / 2 + 0.2


def test_labels_only_never_looks_at_unlabelled_images(stream):
    agents = []
    for shade in (None, 0, 255):
        agent = maker(Ursl, on_small_net(LABELS_ONLY), stream)()
        for t in range(len(stream)):
            step = stream.step(t)
            pixels = step.unlabeled if shade is None else torch.full_like(step.unlabeled[: shade + 2], shade)
            agent.learn(replace(step, unlabeled=pixels))
        agents.append(agent)
    assert agents[0].reference is None
    images = held_out(stream).images
    assert all(torch.equal(agents[0].predict(images), agent.predict(images)) for agent in agents)
    assert all(same(weights(agents[0].learner.encoder), weights(agent.learner.encoder)) for agent in agents)


# ----- ablations run, and go on where they were stopped

ABLATIONS = {
    "guide all": ["gate.guide=all"],
    "pseudo all": ["gate.pseudo=all", ALL_PASS],
    "pseudo without anchors": ["gate.pseudo=all_but_no_anchor", ALL_PASS],
    "leave one out": ["gate.leave_one_out=true", "gate.spread=std"],
    "raw prototypes": ["gate.unit_first=false", "gate.score_views=augmented"],
    "plain prototypes": ["gate.prototype_views=0"],
    "pretrained": ["reference.pretrained=true"],
    "byol": ["reference.ssl=byol"],
    "slower later": ["reference.later_rate=0.1"],
    "whole epochs": ["reference.drop_last=false", "reference.batch=20"],
    "starts as reference": ["learner.start=reference"],
    "starts as reference each time": ["learner.start=reference_each_step"],
    "past on both batches": ["learner.past_on=both"],
    "goes back": ["learner.merge=0.5"],
    "batch statistics": ["learner.teacher_statistics=batch"],
    "joint forward": ["learner.joint_forward=true"],
    "balanced sources": ["learner.sampler=balanced_sources", ALL_PASS],
    "moments kept": ["learner.optimiser.fresh=false"],
    "sgd": ["learner.optimiser.kind=sgd", "reference.optimiser.kind=sgd"],
    "sum": ["learner.distill_reduction=sum"],
    "anchors": ["learner.sup_norm=anchors", "learner.base_temperature=0.07"],
    "all anchors": ["learner.anchors=all", "gate.pseudo=all", ALL_PASS],
    "head by the gate": ["head.pseudo=gate", ALL_PASS],
    "head by itself": ["head.pseudo=self", ALL_PASS],
    "head by the past": ["head.pseudo=past", ALL_PASS],
    "two heads": ["head.reference=0.5"],
    "two heads by the past": ["head.pseudo=past", "head.reference=0.5", ALL_PASS],
    "labelled epochs": ["learner.epoch=labeled", "learner.batch=8"],
    "sgd head": ["head.solver=sgd"],
    "head after": ["head.memory=after"],
    "low": ["memory.policy=low"],
    "high by head": ["memory.policy=high", "memory.confidence=head_probability"],
    "no past": ["learner.gamma=0"],
    "only the reference teaches": ["learner.sup=0", "learner.gamma=0"],
}
OWN_STATE = [
    "head by the past",
    "two heads by the past",
    "two heads",
    "goes back",
    "starts as reference each time",
    "byol",
    "pretrained",
    "batch statistics",
    "moments kept",
    "sgd",
    "balanced sources",
    "head after",
]


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_runs_and_may_start_in_an_empty_world(name, stream):
    battery.check_empty_world(maker(Ursl, changed(*ABLATIONS[name]), stream), stream)


def test_what_looks_known_by_augmented_views_does_not_depend_on_its_company(stream):
    battery.check_rows_are_judged_alone(maker(Ursl, changed("gate.score_views=augmented"), stream), stream)


@pytest.mark.parametrize("name", OWN_STATE)
def test_an_ablation_continues_exactly(name, stream):
    battery.check_continues_exactly(maker(Ursl, changed(*ABLATIONS[name]), stream), stream)


# ----- ablations do what they say


@pytest.fixture
def lessons(monkeypatch):
    """What the learner is handed, step by step, with the weights that it then has."""
    seen = []
    learn = Learner.learn

    def spy(self, lesson, t, log):
        seen.append((lesson, weights(self.encoder)))
        return learn(self, lesson, t, log)

    monkeypatch.setattr(Learner, "learn", spy)
    return seen


def test_the_guide_is_what_passes_or_everything(stream, lessons):
    for mode in ("gated", "all"):
        lessons.clear()
        _, reports = learned(changed(f"gate.guide={mode}"), stream)
        for t, (lesson, _) in enumerate(lessons):
            passed = int(reports[t].gate.passed.sum()) if mode == "gated" else len(stream.step(t).unlabeled)
            assert len(lesson.guide) == lesson.sizes[0] + lesson.sizes[1] + passed
    assert passed == 32


def test_pseudo_labels_by_mode(stream, lessons):
    learned(changed("gate.pseudo=none", ALL_PASS), stream)
    learned(changed("gate.pseudo=past_only", ALL_PASS), stream)
    learned(changed("gate.pseudo=all", ALL_PASS), stream)
    learned(changed("gate.pseudo=all_but_no_anchor", ALL_PASS), stream)
    parts = [lesson.pool.labels[lesson.sizes[0] + lesson.sizes[1] :] for lesson, _ in lessons]
    anchors = [lesson.anchors[lesson.sizes[0] + lesson.sizes[1] :] for lesson, _ in lessons]
    none, past, everything, mute = (slice(start, start + 3) for start in (0, 3, 6, 9))
    assert [len(part) for part in parts[none]] == [0, 0, 0]
    for t, part in enumerate(parts[past]):
        assert not set(part.tolist()) & set(stream.steps[t].new_classes)
    assert len(parts[past][0]) == 0 < len(parts[past][2])
    assert [len(part) for part in parts[everything]] == [32, 32, 32] == [len(part) for part in parts[mute]]
    assert all(anchored.any() for anchored in anchors[everything])
    assert not any(anchored.any() for anchored in anchors[past] + anchors[mute])
    labeled = [lesson.anchors[: lesson.sizes[0]] for lesson, _ in lessons]
    assert all(own.all() for own in labeled)


def test_past_classes_are_anchors_where_asked(stream, lessons):
    learned(changed("learner.anchors=all", ALL_PASS), stream)
    assert len(lessons) == 3 and all(lesson.anchors.all() for lesson, _ in lessons)
    assert lessons[2][0].sizes[2] > 0


@pytest.mark.parametrize(("mode", "labeled_by"), [("gate", "prototypes"), ("self", "head")])
def test_the_head_takes_in_what_the_gate_lets_in(mode, labeled_by, stream, monkeypatch):
    fitted = []
    monkeypatch.setattr(two_heads, "fit_head", lambda config, fit: fitted.append(fit) or fit_head(config, fit))
    agent, reports = learned(changed(f"head.pseudo={mode}", ALL_PASS), stream)
    step, gate = stream.step(2), reports[2].gate
    assert gate.passed.all() and gate.confident.all()
    pseudo = fitted[-1].believed.labels
    assert len(pseudo) == len(step.unlabeled)
    if labeled_by == "prototypes":
        assert torch.equal(pseudo, gate.pseudo_labels)
    else:
        first = fit_head(agent.config.head, fitted[-2])
        features = in_chunks(agent.learner.encoder.features, step.unlabeled)
        assert torch.equal(pseudo, torch.tensor(agent.classes)[first(features).argmax(1)])


def test_the_head_takes_in_past_classes_as_the_agent_called_them_before(stream, monkeypatch):
    fitted, call = [], TwoHeads._call

    def confused_before(self, images, networks):
        return call(self, images, networks).flip(0) if self.called is None else call(self, images, networks)

    monkeypatch.setattr(two_heads, "fit_head", lambda config, fit: fitted.append(fit) or fit_head(config, fit))
    agent = maker(Ursl, changed("head.pseudo=past", ALL_PASS), stream)()
    agent.learn(stream.step(0))
    rows = stream.step(1).unlabeled
    before = torch.tensor(agent.classes)[agent.predict(rows).argmax(1)].flip(0)
    monkeypatch.setattr(TwoHeads, "_call", confused_before)
    agent.learn(stream.step(1))
    first = fit_head(agent.config.head, fitted[-2])
    called = torch.tensor(agent.classes)[first(in_chunks(agent.learner.encoder.features, rows)).argmax(1)]
    new = torch.isin(called, torch.tensor(stream.steps[1].new_classes))
    assert new.any() and not new.all() and not torch.equal(called[~new], before[~new])
    assert torch.equal(fitted[-1].believed.labels, torch.where(new, called, before))


@pytest.mark.parametrize("mode", ["gate", "self", "past"])
def test_a_head_does_without_unlabelled_rows_where_none_is_let_in(mode, stream):
    agent, reports = learned(changed(f"head.pseudo={mode}", "head.reference=0.5", "gate.eta=[1e6,1e6]"), stream)
    assert not any(report.gate.passed.any() for report in reports) and agent.heads.learner is not None


def test_the_learner_starts_as_the_reference_once(stream, lessons):
    make = maker(Ursl, changed("learner.start=reference"), stream)
    agent = make()
    agent.learn(stream.step(0))
    first = weights(agent.reference.encoder)
    after = weights(agent.learner.encoder)
    agent.learn(stream.step(1))
    assert same(lessons[0][1], first)
    assert same(lessons[1][1], after) and not same(after, first)


def test_the_learner_starts_as_the_reference_at_every_step(stream, lessons):
    agent = maker(Ursl, changed("learner.start=reference_each_step"), stream)()
    for t in range(2):
        agent.learn(stream.step(t))
        assert same(lessons[t][1], weights(agent.reference.encoder))


def test_a_learner_goes_back_half_of_its_way_once_it_is_trained(stream, monkeypatch):
    before, trained = [], []
    go_back = Learner._go_back_towards_past

    def watched(self, lesson, t):
        before.append(None if self.past is None else dict(self.past.named_parameters()))
        trained.append(weights(self.encoder))
        go_back(self, lesson, t)

    monkeypatch.setattr(Learner, "_go_back_towards_past", watched)
    agent = maker(Ursl, changed("learner.merge=0.5"), stream)()
    agent.learn(stream.step(0))
    assert before[0] is None and same(trained[0], weights(agent.learner.encoder))
    agent.learn(stream.step(1))
    merged, net = weights(agent.learner.encoder), agent.learner.encoder
    for name, _ in net.named_parameters():
        torch.testing.assert_close(merged[name], (before[1][name] + trained[1][name]) / 2)
    norms = [name for name, _ in net.named_buffers() if name.endswith("running_mean")]
    assert norms and all(not torch.equal(merged[name], trained[1][name]) for name in norms)


def test_the_past_teaches_on_the_second_batch_too_where_it_is_asked_to(stream, monkeypatch):
    taught = []
    by = learner._taught_by
    monkeypatch.setattr(learner, "_taught_by", lambda teacher, x: taught.append(teacher) or by(teacher, x))
    counts = {}
    for change in ("learner.past_on=pool", "learner.past_on=both"):
        agent = maker(Ursl, changed(change), stream)()
        agent.learn(stream.step(0))
        taught.clear()
        report = agent.learn(stream.step(1))
        updates = next(phase.updates for phase in report.phases if phase.name == "learner")
        past = sum(teacher is agent.learner.past for teacher in taught)
        counts[change] = past / updates, (len(taught) - past) / updates
    assert counts == {"learner.past_on=pool": (1, 1), "learner.past_on=both": (2, 1)}


def test_a_pretrained_reference_learns_once_from_the_whole_pool(stream):
    config = changed("reference.pretrained=true", "reference.batch=1000")
    make = maker(Ursl, config, stream)
    assert len(make.setting.whole_pool) == 6 * 20 + 4 * 24
    agent = make()
    reports, nets = [], []
    for t in range(3):
        reports.append({phase.name: phase for phase in agent.learn(stream.step(t)).phases})
        nets.append(weights(agent.reference.encoder))
    assert reports[0]["reference"].views == 2 * FEW * (6 * 20 + 4 * 24)
    assert "reference" not in reports[1] and "reference" not in reports[2]
    assert same(nets[0], nets[1]) and same(nets[0], nets[2])
    assert agent.gate is not None


def test_byol_has_a_target_that_follows(stream):
    agent = maker(Ursl, changed("reference.ssl=byol"), stream)(updates=1)
    target, start = agent.reference.target, weights(agent.reference.target)
    agent.learn(stream.step(0))
    now = dict(agent.reference.encoder.named_parameters())
    for name, value in target.named_parameters():
        assert torch.allclose(value, torch.lerp(start[name], now[name], 1 - 0.99), atol=1e-6)
    assert not same(start, weights(target))


@pytest.mark.parametrize("confidence", ["prototype_cosine", "head_probability"])
@pytest.mark.parametrize(("policy", "ranks"), [("low", [0, 1, 2]), ("high", [5, 6, 7]), ("rainbow", [0, 2, 5])])
def test_memory_policies_sort_by_confidence(policy, ranks, confidence):
    stream = toy_stream(replace(TOY, labels_per_class=8, memory=6))
    agent = maker(Ursl, changed(f"memory.policy={policy}", f"memory.confidence={confidence}"), stream)()
    step = stream.step(0)
    agent.learn(step)
    for c in step.new_classes:
        rows = step.labeled.rows((step.labeled.labels == c).nonzero().squeeze(1))
        ranked = rows.images[agent._confidence(rows).argsort(stable=True)]
        assert torch.equal(agent.memory.labeled.images[agent.memory.labeled.labels == c], ranked[ranks])


def test_both_heads_fit_the_labels(stream):
    for solver, centred in (("sgd", False), ("ridge", True)):
        agent, _ = learned(changed(f"head.solver={solver}"), stream, updates=12)
        assert (len(agent.heads.learner.centre) > 0) == centred
        known = agent.memory.labeled
        right = torch.tensor(agent.classes)[agent.predict(known.images).argmax(1)] == known.labels
        assert right.float().mean() > 0.9


def test_a_head_on_the_reference_has_its_share_in_the_prediction(stream, monkeypatch):
    fitted = []
    monkeypatch.setattr(two_heads, "fit_head", lambda config, fit: fitted.append(fit) or fit_head(config, fit))
    images = held_out(stream).images
    agent, _ = learned(changed("head.reference=0.25"), stream, updates=12)
    assert [fit.encoder for fit in fitted] == 3 * [agent.learner.encoder, agent.reference.encoder]
    assert all(own.data is other.data for own, other in zip(fitted[::2], fitted[1::2], strict=True))
    own = agent.heads.learner(in_chunks(agent.learner.encoder.features, images))
    other = agent.heads.reference(in_chunks(agent.reference.encoder.features, images))
    torch.testing.assert_close(agent.predict(images), 0.75 * own + 0.25 * other)
    assert agent.heads.reference.scale == agent.heads.learner.scale and not torch.allclose(own, other)
    alone, _ = learned(SMALL, stream, updates=12)
    assert alone.heads.reference is None and torch.equal(alone.predict(images), own)


def test_the_head_sees_the_memory_of_before_or_after_the_step(stream, monkeypatch):
    sizes = []

    def spy(config, fit):
        sizes.append(torch.bincount(fit.targets()).tolist())
        return fit_head(config, fit)

    monkeypatch.setattr(two_heads, "fit_head", spy)
    for when in ("before", "after"):
        learned(changed(f"head.memory={when}"), stream)
    # 13 images: 4 of each of two classes, all there are; then 3, 3, 3, 4; then 2, 2, 2, 2, 2, 3.
    assert sizes[:3] == [[4, 4], [4, 4, 4, 4], [3, 3, 3, 4, 4, 4]]
    assert sizes[3:] == [[4, 4], [3, 3, 4, 4], [2, 2, 2, 2, 4, 4]]


def test_teachers_go_by_their_own_or_the_batch_s_statistics(stream):
    for mode in ("eval", "batch"):
        agent, _ = learned(changed(f"learner.teacher_statistics={mode}"), stream)
        norms = [module for module in agent.learner.past.modules() if isinstance(module, torch.nn.BatchNorm2d)]
        assert norms and all((norm.running_mean is None) == (mode == "batch") for norm in norms)


def test_a_joint_forward_is_one_pass_an_update(stream):
    calls = {}
    for joint in (False, True):
        agent = maker(Ursl, changed(f"learner.joint_forward={joint}"), stream)()
        rows = calls[joint] = []
        agent.learner.encoder.register_forward_hook(lambda net, x, z, rows=rows: rows.append(len(z)))
        agent.learn(stream.step(0))
    assert len(calls[False]) == 2 * FEW and len(calls[True]) == FEW
    assert sum(calls[False]) == sum(calls[True])


def test_balanced_sources_share_a_batch(stream, monkeypatch):
    drawn = []
    descend = Learner._descend

    def spy(self, descent, lesson, batches, t):
        drawn.append((next(batches.starting(0)), lesson.sizes))
        return descend(self, descent, lesson, batches, t)

    monkeypatch.setattr(Learner, "_descend", spy)
    learned(changed("learner.sampler=balanced_sources", "learner.batch=12", "gate.pseudo=all", ALL_PASS), stream)
    for rows, sizes in drawn:
        ends = torch.tensor(sizes).cumsum(0)
        parts = [int((rows < ends[0]).sum()), int(((rows >= ends[0]) & (rows < ends[1])).sum())]
        assert [*parts, len(rows) - sum(parts)] == ([6, 0, 6] if sizes[1] == 0 else [4, 4, 4])


def test_moments_are_kept_or_fresh(stream):
    kept, _ = learned(changed("learner.optimiser.fresh=false"), stream)
    fresh, _ = learned(SMALL, stream)
    assert int(kept.learner.moments["0"]["step"]) == 3 * FEW
    assert fresh.learner.moments is None


def test_a_sum_is_as_many_means_as_there_are_views(stream):
    losses = {}
    for reduction in ("mean", "sum"):
        seen = losses[reduction] = []
        runtime = Runtime(progress=lambda at, seen=seen: seen.append((at.phase, at.loss)))
        changes = ["learner.sup=0", "learner.gamma=0", "gate.guide=all", f"learner.distill_reduction={reduction}"]
        learned(changed(*changes), stream, runtime=runtime)
    mean, summed = (next(loss for phase, loss in seen if phase == "learner") for seen in losses.values())
    assert float(summed) == pytest.approx(2 * (8 + 32) * float(mean), rel=1e-4)


def learner_updates(stream, *changes, updates=None):
    """Updates of the learner at each step of a schedule of its own epochs: one of the reference, one of the learner."""
    few = ["reference.epochs_first=1", "reference.epochs_later=1", "learner.epochs=1", "head.copies=0"]
    _, reports = learned(changed(*few, *changes), stream, updates=updates)
    return [next(phase.updates for phase in report.phases if phase.name == "learner") for report in reports]


def test_an_epoch_is_one_pass_over_the_union_or_the_labels(stream):
    whole = ["learner.batch=8", "gate.pseudo=all", ALL_PASS]
    sizes = [8, 16, 21]  # T_t and M
    assert learner_updates(stream, *whole) == [math.ceil((n + 32) / 8) for n in sizes]
    assert learner_updates(stream, *whole, "learner.epoch=labeled") == [math.ceil(n / 8) for n in sizes]
    assert learner_updates(stream, *whole, "learner.max_updates_per_epoch=2") == [2, 2, 2]


def test_the_floor_on_updates_holds_below_the_cap(stream):
    assert learner_updates(stream, "learner.min_updates=9") == [9, 9, 9]
    assert learner_updates(stream, "learner.min_updates=9", updates=5) == [5, 5, 5]
    assert learner_updates(stream, "learner.min_updates=9", "learner.epochs=11") == [11, 11, 11]


# ----- references are shared


def reference_phases(reports):
    return [next(phase for phase in report.phases if phase.name == "reference") for report in reports]


@pytest.mark.parametrize("ssl", ["simclr", "byol"])
def test_a_second_run_takes_the_reference_from_the_cache(ssl, stream, tmp_path):
    config, images = changed(f"reference.ssl={ssl}"), held_out(stream).images
    alone, _ = learned(config, stream)
    first, trained = learned(config, stream, runtime=Runtime(reference_cache=tmp_path))
    second, taken = learned(config, stream, runtime=Runtime(reference_cache=tmp_path))
    assert [phase.cached for phase in reference_phases(trained)] == [False] * 3
    assert reference_phases(taken) == [replace(phase, cached=True) for phase in reference_phases(trained)]
    assert torch.equal(alone.predict(images), first.predict(images))
    assert torch.equal(alone.predict(images), second.predict(images))
    other = changed(f"reference.ssl={ssl}", "learner.lam=0.7", "head.solver=sgd")
    _, shared = learned(other, stream, runtime=Runtime(reference_cache=tmp_path))
    assert all(phase.cached for phase in reference_phases(shared))


def test_the_cache_key_covers_all_that_the_weights_depend_on(stream):
    base = maker(Ursl, SMALL, stream)

    def key(config=SMALL, runtime=None, history="", **setting):
        told = replace(base.setting, **setting)
        return Reference(config.reference, told, runtime or Runtime()).cache_key(history)

    changes = [
        "net.dim=32", "net.hidden=20", "net.projector_norm=false", "ssl=byol", "optimiser.kind=sgd",
        "optimiser.rate=0.004", "optimiser.min_rate=0.0001", "optimiser.decay=0.1", "optimiser.warmup=0.1", "batch=20",
        "optimiser.rate_per=epoch", "tau=0.2", "epochs_first=5", "epochs_later=5", "drop_last=false", "later_rate=0.5",
        "pretrained=true", "ema=0.9", "predictor=32",
    ]  # fmt: skip
    keys = [key(), *(key(changed(f"reference.{change}")) for change in changes)]
    keys.append(key(augmentation=replace(base.setting.augmentation, flip=0.5)))
    keys.append(key(images=replace(base.setting.images, mean=(0.1,))))
    keys.append(key(schedule=replace(base.setting.schedule, max_updates=FEW + 1)))
    keys.append(key(schedule=replace(base.setting.schedule, share=0.5)))
    keys.append(key(seed=1))
    keys.append(key(runtime=Runtime(precision=torch.bfloat16)))
    keys.append(key(history="other pixels"))
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_other_pixels_or_another_step_are_another_reference(stream, tmp_path):
    step, runtime = stream.step(0), Runtime(reference_cache=tmp_path)

    def learn(unlabeled, t):
        make = replace(maker(Ursl, SMALL, stream), runtime=runtime)
        agent = make(updates=1)
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
    first, _ = learned(SMALL, stream, runtime=runtime)
    for file in tmp_path.iterdir():
        file.write_bytes(damage(file.read_bytes()))
    second, reports = learned(SMALL, stream, runtime=runtime)
    _, again = learned(SMALL, stream, runtime=runtime)
    assert not any(phase.cached for phase in reference_phases(reports))
    assert all(phase.cached for phase in reference_phases(again))
    assert torch.equal(first.predict(images), second.predict(images))


def test_a_cache_that_cannot_be_written_costs_no_run(stream, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    _, reports = learned(SMALL, stream, runtime=Runtime(reference_cache=file / "below"))
    assert len(reports) == 3


# ----- Co2L and its variants


def test_co2l_by_itself_never_looks_at_unlabelled_images(stream):
    predictions = []
    for shade in (0, 255):
        agent = maker(Co2l, on_small_net(CONFIGURATIONS["co2l"]), stream)()
        for t in range(len(stream)):
            step = stream.step(t)
            agent.learn(replace(step, unlabeled=torch.full_like(step.unlabeled, shade)))
        predictions.append(agent.predict(stream.evaluation(0).images))
    assert torch.equal(*predictions)


def test_co2l_p_looks_at_the_first_world_alone(stream):
    def learned_with(shades):
        agent = maker(Co2l, on_small_net(CONFIGURATIONS["co2l-p"]), stream)()
        for t, shade in enumerate(shades):
            step = stream.step(t)
            agent.learn(step if shade is None else replace(step, unlabeled=torch.full_like(step.unlabeled, shade)))
        return agent.predict(stream.evaluation(0).images)

    as_it_is = learned_with([None] * len(stream))
    assert torch.equal(as_it_is, learned_with([None, 0, 255]))
    assert not torch.equal(as_it_is, learned_with([0, None, None]))


def test_co2l_p_starts_from_the_pretrained_network_projector_included(stream):
    agent = maker(Co2l, on_small_net(CONFIGURATIONS["co2l-p"]), stream)()
    agent.learner.learn = lambda *_: {}
    agent.learn(stream.step(0))
    theirs, ours = agent.pretrained.encoder.state_dict(), agent.learner.encoder.state_dict()
    assert all(torch.equal(theirs[key], ours[key]) for key in ours)


def test_co2l_j_adds_nt_xent_of_the_guide_batch(stream, monkeypatch):
    """The joint loss of the first update is SupCon of the labels plus lam times NT-Xent of the unlabelled views."""
    losses, apart = {}, []
    own = learner.nt_xent
    monkeypatch.setattr(learner, "nt_xent", lambda z, tau: apart.append((len(z), tau, value := own(z, tau))) or value)
    for lam in (0.5, 1.0, 2.0):
        apart.clear()
        config = changed(f"learner.lam={lam}", config=on_small_net(CONFIGURATIONS["co2l-j"]))
        seen = []
        watched = Runtime(progress=lambda p, seen=seen: seen.append(float(p.loss)))
        agent = replace(maker(Co2l, config, stream), runtime=watched)()
        agent.learn(stream.step(0))
        losses[lam] = seen[0]
        views, tau, value = apart[0]
        assert views == 2 * min(config.learner.batch, len(stream.step(0).unlabeled)) and tau == config.learner.tau
    assert losses[1.0] - losses[0.5] == pytest.approx(0.5 * float(value.detach()), rel=1e-4)
    assert losses[2.0] - losses[1.0] == pytest.approx(2 * (losses[1.0] - losses[0.5]), rel=1e-4)
    assert losses[1.0] > losses[0.5]


@pytest.mark.parametrize(
    "changes",
    [
        ["reference.pretrained=true", "gate.pseudo=none", "learner.lam=0"],
        ["learner.merge=0.5", "learner.start=reference_each_step"],
    ],
)
def test_ursl_refuses_what_it_would_not_heed(changes):
    with pytest.raises(SpecError):
        changed(*changes)


def test_a_head_by_the_gate_brings_a_reference():
    assert not LABELS_ONLY.needs_reference
    assert override(LABELS_ONLY, ["head.pseudo=gate"]).needs_reference
    assert not override(LABELS_ONLY, ["learner.past_on=both", "learner.gamma=0"]).needs_reference


@pytest.mark.parametrize("name", ["ursl-plus", "ursl-as-printed"])
def test_the_demos_size_leaves_what_makes_a_method(name):
    config, small = CONFIGURATIONS[name], demo_sized(CONFIGURATIONS[name])
    for part, field in (("learner", "start"), ("head", "reference"), ("head", "pseudo"), ("head", "solver")):
        assert getattr(getattr(small, part), field) == getattr(getattr(config, part), field)


def test_a_head_by_the_gate_is_fitted_once(stream, monkeypatch):
    fitted = []
    monkeypatch.setattr(two_heads, "fit_head", lambda config, fit: fitted.append(fit) or fit_head(config, fit))
    learned(changed("head.pseudo=gate", ALL_PASS), stream)
    assert len(fitted) == len(stream) and all(fit.believed is not None for fit in fitted)


def test_at_every_size_a_configuration_is_itself():
    for size in (on_small_net, demo_sized):
        sized = [size(config) for config in CONFIGURATIONS.values()]
        assert len(set(sized)) == len(sized)


def test_co2l_honours_what_it_takes_and_refuses_what_it_has_not(stream):
    base = on_small_net(CONFIGURATIONS["co2l"])
    images = held_out(stream).images
    plain = learned(base, stream)[0].predict(images)
    for change in ("learner.anchors=all", "head.memory=after"):
        assert not torch.equal(learned(changed(change, config=base), stream)[0].predict(images), plain), change
    ignored = ("head.pseudo=self", "head.reference=0.5", "learner.start=reference", "learner.lam=1",
               "learner.past_on=both", "reference.pretrained=true")  # fmt: skip
    for change in ignored:
        with pytest.raises(SpecError):
            changed(change, config=base)
    with pytest.raises(SpecError, match="of one shape"):
        changed("learner.net.dim=32", config=on_small_net(CONFIGURATIONS["co2l-p"]))


def test_a_model_of_version_0_1_0_keeps_both_of_its_heads(stream):
    agent, _ = learned(changed("head.reference=0.5", "head.pseudo=past"), stream)
    images, state = held_out(stream).images, agent.state()
    heads = state.pop("heads")
    old = state | {"head": heads["learner"], "second": heads["reference"], "before": heads["called"]}
    for layout, head in ((old, agent.heads.reference), ({**old, "second": None}, None)):
        other = maker(Ursl, agent.config, stream)()
        other.load_state(layout)
        assert (other.heads.reference is None) == (head is None)
        if head is not None:
            assert torch.equal(other.predict(images), agent.predict(images))
