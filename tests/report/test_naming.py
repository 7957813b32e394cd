"""Names tell apart whatever differs."""

from dataclasses import replace

from osscl.config import override
from osscl.methods import CONFIGURATIONS
from osscl.report.naming import method_label, setting_words


def test_a_record_keeps_the_name_that_it_ran_under(ursl):
    config = override(CONFIGURATIONS["ursl-plus"], ["learner.epochs=200"])
    changed = replace(ursl, configuration="ursl-plus", spec=replace(ursl.spec, method=config))
    assert method_label(changed) == "ursl-plus, learner.epochs=200"


def test_a_changed_method_is_named_by_what_was_changed(ursl):
    method = replace(ursl.spec.method, learner=replace(ursl.spec.method.learner, gamma=0.0))
    changed = replace(ursl, configuration="ursl*", spec=replace(ursl.spec, method=method))
    assert method_label(changed) == "ursl, learner.gamma=0"
    assert method_label(ursl) == "ursl"


def test_settings_that_differ_in_any_field_differ_in_words(ursl):
    usual = ursl.spec.scenario
    others = [replace(usual, **{field: value}) for field, value in
              {"related": 4500, "imbalance": 10.0, "regime": "non_iid", "validation_share": 0.1}.items()]  # fmt: skip
    assert len({setting_words(scenario) for scenario in [usual, *others]}) == 5
