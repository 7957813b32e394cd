"""Names tell apart whatever differs."""

from dataclasses import replace

import pytest

from osscl.config import override
from osscl.methods import CONFIGURATIONS, URSL
from osscl.methods.base import DEMO, PAPER, SMOKE
from osscl.report.naming import MethodLabel, method_label, setting_words, unusual_in_prose, unusual_words
from osscl.runs.spec import demo_sized, on_small_net, sized


def test_a_record_keeps_the_name_that_it_ran_under(ursl):
    config = override(CONFIGURATIONS["ursl-plus"], ["learner.epochs=200"])
    changed = replace(ursl, configuration="ursl-plus", spec=replace(ursl.spec, method=config))
    assert str(method_label(changed)) == "ursl-plus, learner.epochs=200"


def test_a_changed_method_is_named_by_what_was_changed(ursl):
    method = replace(ursl.spec.method, learner=replace(ursl.spec.method.learner, gamma=0.0))
    changed = replace(ursl, configuration="ursl*", spec=replace(ursl.spec, method=method))
    assert str(method_label(changed)) == "ursl, learner.gamma=0"
    assert str(method_label(ursl)) == "ursl"


def test_settings_that_differ_in_any_field_differ_in_words(ursl):
    usual = ursl.spec.scenario
    others = [replace(usual, **{field: value}) for field, value in
              {"related": 4500, "imbalance": 10.0, "regime": "non_iid", "validation_share": 0.1}.items()]  # fmt: skip
    assert len({setting_words(scenario) for scenario in [usual, *others]}) == 5


@pytest.mark.parametrize("schedule", [PAPER, SMOKE, DEMO])
def test_the_same_configuration_at_two_sizes_has_two_names(ursl, schedule):
    sizes = (URSL, on_small_net(URSL), demo_sized(URSL))
    labels = [str(method_label(run_of(ursl, size, schedule))) for size in sizes]
    assert len(set(labels)) == 3
    assert labels[sizes.index(sized(URSL, schedule))] == "ursl"
    changed = [str(method_label(run_of(ursl, override(size, ["learner.gamma=0"]), schedule))) for size in sizes]
    assert changed == [f"{label}, learner.gamma=0" for label in labels]


def test_a_changed_list_is_one_change_in_a_label(ursl):
    changed = run_of(ursl, override(ursl.spec.method, ["gate.eta=[-2, 2]", "learner.gamma=0"]), ursl.spec.schedule)
    label = method_label(changed)
    assert label.changes == (("gate.eta", "[-2.0, 2.0]"), ("learner.gamma", "0"))
    assert str(label) == "ursl, gate.eta=[-2.0, 2.0], learner.gamma=0"
    assert label.in_prose == "ursl, gate.eta=[-2.0, 2.0], without L_TD"


def test_only_changes_are_put_into_the_papers_terms():
    label = MethodLabel("learner.gamma=0, learner.lam=0", changes=(("learner.lam", "0"),))
    assert label.in_prose == "learner.gamma=0, learner.lam=0, without L_KD"


def test_unusual_fields_are_named_as_they_are_set_and_in_prose(ursl):
    unusual = {"related": 4500, "imbalance": 10.0, "regime": "non_iid", "validation_share": 0.1}
    scenario = replace(ursl.spec.scenario, **unusual)
    held_out = "10 % held out as validation rows"
    assert unusual_words(scenario) == ["non_iid", "related=4500", "imbalance=10", held_out]
    assert unusual_in_prose(scenario) == [
        "unlabelled images of changing classes", "4,500 unlabelled images of the main set", "imbalance=10", held_out
    ]  # fmt: skip


def run_of(record, method, schedule):
    return replace(record, spec=replace(record.spec, method=method, schedule=schedule))
