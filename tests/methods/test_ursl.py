"""URSL: Algorithm 1, part by part, and what its options change."""

import ast
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from osscl.config import plain
from osscl.errors import SpecError
from osscl.learn.linear_head import fit_head
from osscl.losses.distillation import relation_distillation
from osscl.methods import LABELS_ONLY, ursl
from osscl.methods.base import Runtime
from osscl.methods.ursl import LearnerConfig, Ursl, UrslConfig
from osscl.runs.spec import on_small_net
from osscl.tools.battery import FEW, TOY, held_out, toy_stream
from refusals import naming
from toy_agents import ALL_PASS, SMALL, agent_of, changed, learned, same, weights


def leaves(value):
    return sum(map(leaves, value.values())) if isinstance(value, dict) else 1


def test_ursl_contains_nothing_of_ursl_plus_and_few_settings():
    tree = ast.parse(Path(ursl.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"osscl.methods.ursl_plus", "osscl.methods.class_statistics"}
    assert leaves(plain(UrslConfig())) <= 65


@pytest.fixture
def lessons(monkeypatch):
    """What the first update of every step uses; batches are larger than the pools."""
    seen, train, supcon, views = [], Ursl.train_learner, ursl.asymmetric_supcon, ursl.two_views

    def watch_step(self, step, found):
        known = torch.cat((step.labeled.labels, self.memory.labeled.labels))
        seen.append({"new": step.new_classes, "known": known, "labeled": len(step.labeled), "views": []})
        train(self, step, found)

    def watch_labels(z, y, anchors, tau):
        half = len(y) // 2
        seen[-1].setdefault("labels", y[:half])
        seen[-1].setdefault("anchors", anchors[:half])
        return supcon(z, y, anchors, tau)

    monkeypatch.setattr(Ursl, "train_learner", watch_step)
    monkeypatch.setattr(ursl, "asymmetric_supcon", watch_labels)
    monkeypatch.setattr(ursl, "two_views", lambda x, *more: seen[-1]["views"].append(len(x)) or views(x, *more))
    return seen


def pseudo_labels(lesson):
    return Counter(lesson["labels"].tolist()) - Counter(lesson["known"].tolist())


@pytest.mark.parametrize("mode", ["gated", "all"])
def test_l_kd_uses_labels_memory_and_what_passed_the_gate_or_all_of_u(mode, stream, lessons):
    _, reports = learned(changed(f"gate.guide={mode}"), stream)
    for t, lesson in enumerate(lessons):
        passed = int(reports[t].gate.passed.sum()) if mode == "gated" else len(stream.step(t).unlabeled)
        assert lesson["views"][1] == len(lesson["known"]) + passed
    assert mode == "gated" or passed == 32


@pytest.mark.parametrize("mode", ["none", "past_only", "all", "all_but_no_anchor"])
def test_l_sup_uses_pseudo_labels_as_the_gate_says(mode, stream, lessons):
    learned(changed(f"gate.pseudo={mode}", ALL_PASS), stream)
    for lesson in lessons:
        found, anchors = pseudo_labels(lesson), int(lesson["anchors"].sum())
        new = torch.isin(lesson["labels"], torch.tensor(lesson["new"]))
        assert not (lesson["anchors"] & ~new).any()
        assert found.total() == {"none": 0, "all": 32, "all_but_no_anchor": 32}.get(mode, found.total())
        assert (anchors == int(new.sum())) if mode == "all" else (anchors == lesson["labeled"])
        assert mode not in ("none", "past_only") or not set(found) & set(lesson["new"])
    if mode == "past_only":
        assert pseudo_labels(lessons[0]).total() == 0 < pseudo_labels(lessons[2]).total()


def test_the_three_losses_have_their_weights_and_l_td_starts_at_the_second_step(stream, monkeypatch):
    """By the first update of a step; the network is the same for all weights."""
    parts = []

    def watched(*given):
        parts.append(float((value := relation_distillation(*given)).detach()))
        return value

    monkeypatch.setattr(ursl, "relation_distillation", watched)
    first = {}
    for name, sup, gamma, lam in (("all", 1, 0.2, 0.2), ("sup", 1, 0, 0), ("td", 0, 0.5, 0), ("kd", 0, 0, 0.5)):
        agent, seen = agent_of(changed("gate.pseudo=none", "gate.guide=all"), stream), []
        agent.learn(stream.step(0))
        hp = replace(agent.config.learner, sup=sup, gamma=gamma, lam=lam)
        agent.config = replace(agent.config, learner=hp)
        parts.clear()
        agent.phases.runtime = Runtime(progress=lambda at, seen=seen: seen.append(at))
        agent.learn(stream.step(1))
        first[name] = next(float(at.loss) for at in seen if at.phase == "learner")
        assert len(parts) == FEW * ((gamma > 0) + (lam > 0))
        if name in ("td", "kd"):
            assert first[name] == pytest.approx(0.5 * parts[0], rel=1e-5)
    assert first["all"] == pytest.approx(first["sup"] + 0.4 * first["td"] + 0.4 * first["kd"], rel=1e-4)
    parts.clear()
    learned(changed("learner.lam=0"), stream, steps=1)
    assert not parts


def test_labels_only_never_uses_unlabelled_images(stream):
    agents = []
    for shade in (None, 0, 255):
        agent = agent_of(on_small_net(LABELS_ONLY), stream)
        for t in range(len(stream)):
            step = stream.step(t)
            pixels = step.unlabeled if shade is None else torch.full_like(step.unlabeled[: shade + 2], shade)
            agent.learn(replace(step, unlabeled=pixels))
        agents.append(agent)
    images = held_out(stream).images
    assert agents[0].reference is None
    assert all(torch.equal(agents[0].predict(images), agent.predict(images)) for agent in agents)
    assert all(same(weights(agents[0].learner), weights(agent.learner)) for agent in agents)


@pytest.mark.parametrize(("policy", "ranks"), [("low", [0, 1, 2]), ("high", [5, 6, 7]), ("rainbow", [0, 4, 7])])
def test_memory_policies_rank_by_cosine_to_the_prototype(policy, ranks):
    stream = toy_stream(replace(TOY, labels_per_class=8, memory=6))
    agent, _ = learned(changed(f"memory.policy={policy}"), stream, steps=1)
    step = stream.step(0)
    for column, c in enumerate(step.new_classes):
        rows = step.labeled.rows((step.labeled.labels == c).nonzero().squeeze(1))
        with torch.no_grad():
            cosines = agent.reference.encoder(rows.images) @ agent.gate.prototypes[column]
        ranked = rows.images[cosines.argsort(stable=True)]
        assert torch.equal(agent.memory.labeled.images[agent.memory.labeled.labels == c], ranked[ranks])


@pytest.mark.parametrize(("solver", "centred"), [("sgd", False), ("ridge", True)])
def test_both_heads_fit_the_labels(solver, centred, stream):
    agent, _ = learned(changed(f"head.solver={solver}"), stream, updates=12)
    assert (len(agent.head.center) > 0) == centred
    known = agent.memory.labeled
    right = torch.tensor(agent.classes)[agent.predict(known.images).argmax(1)] == known.labels
    assert right.float().mean() > 0.9


def test_the_head_uses_the_memory_before_its_update(stream, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        ursl, "fit_head", lambda config, fit: sizes.append(fit.images_by_class().tolist()) or fit_head(config, fit)
    )
    learned(SMALL, stream)
    assert sizes == [[4, 4], [4, 4, 4, 4], [3, 3, 3, 4, 4, 4]]  # 13 images in M: at most 4 each, then 3, 3, 3, 4


@pytest.mark.parametrize("mode", ["eval", "batch"])
def test_teachers_use_their_own_or_the_batchs_statistics(mode, stream):
    agent, _ = learned(changed(f"learner.teacher_statistics={mode}"), stream, steps=2)
    norms = [module for module in agent.past.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    assert norms and all((norm.running_mean is None) == (mode == "batch") for norm in norms)


@pytest.mark.parametrize("fresh", [True, False])
def test_the_learners_moments_are_fresh_or_kept(fresh, stream):
    agent, _ = learned(changed(f"learner.optimiser.fresh={fresh}"), stream)
    steps = {name: int(moments["0"]["step"]) for name, moments in agent.phases.moments.items()}
    assert steps == ({} if fresh else {"learner": 3 * FEW})


def test_an_epoch_is_one_pass_over_labels_memory_and_pseudo_labels(stream):
    few = ["reference.epochs_first=1", "reference.epochs_later=1", "learner.epochs=1", "head.copies=0"]

    def updates(*changes, **options):
        _, reports = learned(changed(*few, *changes), stream, **{"updates": None, **options})
        return [next(phase.updates for phase in report.phases if phase.name == "learner") for report in reports]

    assert updates("learner.batch=8", "gate.pseudo=all", ALL_PASS) == [math.ceil((n + 32) / 8) for n in (8, 16, 21)]
    assert updates("learner.min_updates=9") == [9, 9, 9]
    assert updates("learner.min_updates=9", updates=5) == [5, 5, 5]


@pytest.mark.parametrize("pseudo", ["past_only", "none"])
def test_epochs_as_long_as_with_another_t_hat_give_equal_updates_at_every_step(pseudo, stream):
    few = [
        "reference.epochs_first=1",
        "reference.epochs_later=1",
        "learner.epochs=2",
        "head.copies=0",
        "gate.eta=[-9,-6]",
    ]

    def updates(*changes):
        _, reports = learned(changed(*few, "learner.batch=8", *changes), stream, updates=None)
        return [next(phase.updates for phase in report.phases if phase.name == "learner") for report in reports]

    more, fewer = updates("gate.pseudo=all"), updates(f"gate.pseudo={pseudo}")
    assert updates(f"gate.pseudo={pseudo}", "gate.epochs_as=all") == more != fewer
    assert updates("gate.pseudo=none", "gate.epochs_as=past_only") == updates("gate.pseudo=past_only")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (["gate.epochs_as=all", "gate.pseudo=none", "learner.lam=0"], "epochs_as"),
        (["reference.pretrained=true", "gate.pseudo=none", "learner.lam=0"], "pretrained"),
        (["memory.policy=low", "gate.pseudo=none", "learner.lam=0"], "policy"),
    ],
)
def test_settings_without_effect_are_refused_by_field(changes, field):
    with pytest.raises(SpecError, match=naming(field)):
        changed(*changes)


@pytest.mark.parametrize(
    "wrong", [{"gamma": -1.0}, {"sup": 0.0, "gamma": 0.0, "lam": 0.0}, {"tau": 0.0}, {"epochs": 0}, {"batch": 1}]
)
def test_invalid_learner_settings_are_refused_by_field(wrong):
    with pytest.raises(SpecError, match=naming(next(iter(wrong)))):
        LearnerConfig(**wrong)
