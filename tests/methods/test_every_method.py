"""Every named configuration passes `check_method`; so do variants; broken methods do not; a new one is two files."""

from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

import osscl
from osscl.data.images import concat
from osscl.errors import Diverged, SpecError
from osscl.methods import CONFIGURATIONS, LABELS_ONLY, METHODS, method_class, method_name
from osscl.methods.dm import DmConfig
from osscl.methods.gd import GdConfig
from osscl.methods.gem import GemConfig
from osscl.methods.icarl import IcarlConfig
from osscl.methods.ursl import Ursl, UrslConfig
from osscl.runs.evaluate import evaluate, refuse_divergence
from osscl.runs.run import is_small
from osscl.runs.spec import demo_sized, on_small_net
from osscl.tools import battery
from osscl.tools.battery import ENOUGH, TOY, accuracy, maker, toy_stream
from osscl.vision.encoder import Classifier
from refusals import naming
from toy_agents import ALL_PASS, PLUS, SMALL, changed, learned, stream_for

# Agents that are equal whatever the global generator does are also equal if it does the same.
CHECKS = [check for check in battery.CHECKS if check is not battery.check_same_seed]


def quick(config):
    """A configuration on small networks, with fewer views for its prototypes."""
    config = on_small_net(config)
    return replace(config, gate=replace(config.gate, prototype_views=1)) if isinstance(config, UrslConfig) else config


def check(name, config, stream):
    stream = stream_for(config, stream)
    getattr(battery, f"check_{name}")(maker(method_class(config), config, stream), stream)


@pytest.mark.parametrize("name", [check.__name__.removeprefix("check_") for check in CHECKS])
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_battery(configuration, name, stream):
    check(name, quick(CONFIGURATIONS[configuration]), stream)


# What must be lost without a memory: the terms by which each method remembers.
FORGETFUL = {
    "ursl": ["gate.pseudo=none", "learner.gamma=0", "learner.lam=0"],
    "ursl-plus": ["gate.pseudo=none", "learner.gamma=0", "learner.lam=0", "statistics=false"],
    "co2l": ["unlabeled=none", "learner.gamma=0", "learner.lam=0"],
    "gd": ["distill=0"],
    "dm": ["distill=0", "consistency=0"],
    "gem": ["constrained=false"],
    "icarl": ["distill=false"],
    "supervised": [],
}


@pytest.mark.parametrize("name", [name for name, config in CONFIGURATIONS.items() if method_name(config) in FORGETFUL])
def test_without_memory_and_distillation_a_method_is_worse(name):
    config = quick(CONFIGURATIONS[name])
    bare = changed(*FORGETFUL[method_name(config)], config=config)
    scores = []
    for spec, variant in ((TOY, config), (replace(TOY, memory=0), bare)):
        stream = stream_for(variant, toy_stream(spec))
        scores.append(accuracy(learned(variant, stream, updates=ENOUGH // 4)[0], stream))
    assert scores[0] > scores[1] + 0.3


# ----- variants run from an empty first step, and resume

URSL, OURS = quick(SMALL), quick(PLUS)
VARIANTS = {
    "pseudo all": (URSL, ["gate.pseudo=all", "gate.guide=all", ALL_PASS]),
    "pseudo without anchors": (URSL, ["gate.pseudo=all_but_no_anchor", ALL_PASS]),
    "plain prototypes": (URSL, ["gate.prototype_views=0", "gate.spread=std"]),
    "no past": (URSL, ["learner.gamma=0"]),
    "only the reference teaches": (URSL, ["learner.sup=0", "learner.gamma=0"]),
    "low": (URSL, ["memory.policy=low"]),
    "high": (URSL, ["memory.policy=high", "head.solver=sgd"]),
    "pretrained": (URSL, ["reference.pretrained=true"]),
    "byol": (URSL, ["reference.ssl=byol"]),
    "batch statistics": (URSL, ["learner.teacher_statistics=batch"]),
    "moments kept, sgd": (URSL, ["learner.optimiser.fresh=false", "learner.optimiser.kind=sgd",
                                  "reference.optimiser.kind=sgd", "reference.optimiser.fresh=false"]),
    "only the start": (OURS, ["reference_weight=0", "pseudo_labels=false", "statistics=false"]),
    "only two heads": (OURS, ["start=random", "pseudo_labels=false", "statistics=false"]),
    "only pseudo-labels": (OURS, ["start=random", "reference_weight=0", "statistics=false", ALL_PASS]),
    "only statistics": (OURS, ["start=random", "reference_weight=0", "pseudo_labels=false"]),
    "equal updates": (URSL, ["gate.epochs_as=all", ALL_PASS]),
    "two sgd heads": (OURS, ["statistics=false", "head.solver=sgd", ALL_PASS]),
    "gd": (GdConfig("small", external="topk30_random70", q_current="P"), []),
    "dm": (DmConfig("small", true_positives=0.9, perturbation="lowest", threshold=0.0), []),
    "gem": (GemConfig("small", memory_statistics="apart", margin=0.0), []),
    "icarl": (IcarlConfig("small", distill=False), []),
}  # fmt: skip
STATELESS = ["pseudo all", "pseudo without anchors", "plain prototypes", "no past", "only the reference teaches", "low",
             "high", "only the start", "two sgd heads"]  # fmt: skip


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_may_start_without_unlabelled_images(name, stream):
    config, changes = VARIANTS[name]
    check("empty_world", changed(*changes, config=config), stream)


@pytest.mark.parametrize("name", [name for name in VARIANTS if name not in STATELESS])
def test_a_variant_with_state_of_its_own_resumes_exactly(name, stream):
    config, changes = VARIANTS[name]
    check("continues_exactly", changed(*changes, config=config), stream)


@pytest.mark.parametrize("config", [GdConfig("small"), DmConfig("small"), GemConfig("small"), IcarlConfig("small")])
def test_a_divergent_rate_is_an_error(config, stream):
    mad = replace(config, optimiser=replace(config.optimiser, rate=1e30, min_rate=0.0))
    mad = replace(mad, teacher=mad.optimiser) if isinstance(mad, GdConfig) else mad
    agent = maker(method_class(mad), mad, stream)()
    with pytest.raises(Diverged):
        for t in range(3):
            refuse_divergence(agent.learn(stream.step(t)), t)
            evaluate(agent, stream, t)


# ----- sizes


def test_configurations_differ_at_every_size():
    for size in (on_small_net, demo_sized):
        sized = [size(config) for config in CONFIGURATIONS.values()]
        assert len(set(sized)) == len(sized)


def test_resizing_keeps_what_makes_a_method():
    plus, small = CONFIGURATIONS["ursl-plus"], demo_sized(CONFIGURATIONS["ursl-plus"])
    for field in ("start", "reference_weight", "pseudo_labels", "statistics"):
        assert getattr(small, field) == getattr(plus, field)
    for name in ("ursl", "ursl-as-printed"):
        assert demo_sized(CONFIGURATIONS[name]).head.solver == CONFIGURATIONS[name].head.solver


@pytest.mark.parametrize("method", ["gd", "dm", "gem", "icarl"])
def test_an_unknown_backbone_is_refused(method):
    with pytest.raises(SpecError, match=naming("backbone", "foo")):
        METHODS[method].Config("foo")


# ----- methods of your own


class Own:
    """A network of any size; learns nothing."""

    @dataclass(frozen=True)
    class Config:
        backbone: str = "small"

    def __init__(self, config, setting, runtime):
        self.network = Classifier(config.backbone, setting.images, runtime.precision)


@pytest.mark.parametrize(("backbone", "small"), [("small", True), ("resnet18", False)])
def test_check_method_runs_every_check_with_one_thread_for_small_networks(backbone, small, monkeypatch):
    threads = []
    checks = [lambda make, stream: threads.append(torch.get_num_threads())] * 3
    monkeypatch.setattr(battery, "CHECKS", checks)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        osscl.check_method(Own, Own.Config(backbone))
        assert torch.get_num_threads() == 2 and threads == [1 if small else 2] * 3
    finally:
        torch.set_num_threads(before)


def test_all_networks_of_an_agent_decide_whether_it_is_small(stream):
    for config in CONFIGURATIONS.values():
        assert is_small(maker(method_class(config), on_small_net(config), stream_for(config, stream))())
    for name in ("ursl", "gem"):  # in a part, and directly
        assert not is_small(maker(method_class(CONFIGURATIONS[name]), CONFIGURATIONS[name], stream)())


@pytest.mark.parametrize("hold", [
    lambda agent, net: setattr(agent, "nets", [net]),
    lambda agent, net: setattr(agent, "nets", {"a": ({"b": net},)}),
    lambda agent, net: setattr(agent, "part", SimpleNamespace(inner=SimpleNamespace(net=net))),
    lambda agent, net: setattr(agent, "slot", net),
])  # fmt: skip
def test_a_network_counts_wherever_an_agent_holds_it(hold):
    class Agent:
        __slots__ = ("__dict__", "slot")

    agent = Agent()
    assert not is_small(agent)  # it may create its networks later
    hold(agent, torch.nn.Linear(10, 10))
    assert is_small(agent)
    hold(agent, torch.nn.Linear(3000, 3000))
    assert not is_small(agent)


def test_a_method_without_a_config_needs_one():
    with pytest.raises(TypeError, match="Coin"):
        osscl.check_method(type("Coin", (), {}))


class Coin(Ursl):
    def predict(self, images):
        return torch.zeros(len(images), len(self.classes))


class Silent(Ursl):
    def learn(self, step):
        super().learn(step)


class Unseeded(Ursl):
    def fit_head(self, step, found):
        super().fit_head(step, found)
        self.head = replace(self.head, bias=self.head.bias + torch.rand(1))


class Counting(Ursl):
    def predict(self, images):
        self.asked = getattr(self, "asked", 0) + 1
        return super().predict(images)


class LeavesATrace(Ursl):
    def predict(self, images):
        if self.past is not None:
            self.past.train()
        return super().predict(images)


class DependsOnTheBatch(Ursl):
    def predict(self, images):
        return super().predict(images) - super().predict(images).mean(0)


class Hoarder(Ursl):
    def update_memory(self, step):
        super().update_memory(step)
        self.memory.labeled = concat(self.memory.labeled, step.labeled)


class HoardsElsewhere(Ursl):
    hoard = ()

    def learn(self, step):
        report = super().learn(step)
        self.hoard = (*self.hoard, step.labeled.images)
        return report

    def state(self):
        return {**super().state(), "hoard": dict(enumerate(self.hoard))}


class KeepsScores(Ursl):
    """Carries a number for every unlabelled image, and does not say so."""

    seen = torch.empty(0)

    def learn(self, step):
        report = super().learn(step)
        self.seen = torch.zeros(len(step.unlabeled))
        return report

    def state(self):
        return {**super().state(), "seen": self.seen}


class NeverCheckpoints(Ursl):
    def __init__(self, config, setting, runtime):
        super().__init__(config, setting, replace(runtime, maybe_checkpoint=lambda end: None))


class ChangesTheStep(Ursl):
    def learn(self, step):
        step.labeled.images[0, 0, 0, 0] += 1
        return super().learn(step)


class NeedsUnlabelled(Ursl):
    def learn(self, step):
        if not len(step.unlabeled):
            raise ValueError("no world")
        return super().learn(step)


class Unordered(Ursl):
    def learn(self, step):
        report = super().learn(step)
        self.classes.sort(reverse=True)
        return report


class NeverExtendsItsClasses(Ursl):
    def begin_step(self, step):
        super().begin_step(step)
        self.classes = []


class LosesItsMemory(Ursl):
    def load_state(self, state):
        super().load_state(state)
        self.memory.labeled = self.setting.no_images()


class Stateless(Ursl):
    def state(self):
        return {}


class StartsOver(Ursl):
    """Forgets the position inside a phase: weights of the middle, updates from the first."""

    def load_state(self, state):
        super().load_state(state)
        self.phases.interrupted = None


class SwallowsStops(Ursl):
    def learn(self, step):
        try:
            return super().learn(step)
        except Exception:
            return super().learn(step)


@pytest.mark.parametrize(
    ("broken", "name", "says"),
    [
        (Coin, "beats_chance", "beats chance: "),
        (Silent, "same_seed", "reports: "),
        (Unseeded, "same_seed", "same seed: "),
        (Unseeded, "no_global_randomness", "no global randomness: "),
        (Counting, "predict_changes_nothing", "predict changes nothing: asked is"),
        (LeavesATrace, "predict_changes_nothing", "predict changes nothing: past.training"),
        (DependsOnTheBatch, "rows_are_judged_alone", "rows are judged alone: "),
        (Hoarder, "memory", "memory: "),
        (HoardsElsewhere, "memory", "memory: "),
        (KeepsScores, "kept", "kept: seen grows with the data"),
        (NeverCheckpoints, "continues_exactly", "continues exactly: learn() never calls runtime.maybe_checkpoint()"),
        (ChangesTheStep, "step_unchanged", "step unchanged: labeled.images"),
        (NeedsUnlabelled, "empty_world", "no world"),
        (Unordered, "classes_met", "classes met: "),
        (NeverExtendsItsClasses, "classes_met", "label 4 is not among the classes []"),
        (LosesItsMemory, "saved_and_reloaded", "saved and reloaded: memory"),
        (Stateless, "saved_and_reloaded", "saved and reloaded: load_state() needs '"),
        (StartsOver, "continues_exactly", "continues exactly: "),
        (SwallowsStops, "continues_exactly", "continues exactly: "),
    ],
)
def test_check_method_reports_what_is_broken_in_one_line(broken, name, says, monkeypatch):
    monkeypatch.setattr(battery, "CHECKS", [getattr(battery, f"check_{name}")])
    with pytest.raises((AssertionError, ValueError)) as caught:
        osscl.check_method(broken, on_small_net(LABELS_ONLY))
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert f"check_{name}" in caught.value.__notes__[0]
