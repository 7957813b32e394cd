"""Specs in words, by names and at a schedule's size; which methods they may have; threads of small networks."""

import json
from dataclasses import dataclass, make_dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from osscl.cli.measure import changes_of
from osscl.config import content_id, override
from osscl.errors import SpecError
from osscl.methods import CONFIGURATIONS, METHODS
from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE
from osscl.methods.gem import Gem, GemConfig
from osscl.paper.plan import known_records
from osscl.runs.checkpoint import Options
from osscl.runs.record import record_to_plain
from osscl.runs.run import class_of, run, setting_of
from osscl.runs.spec import (
    EXPERIMENTS,
    configuration,
    demo_specs,
    describe_schedule,
    experiment,
    ids_with_seeds,
    make_spec,
    sized,
    with_seed,
)
from osscl.tools.battery import toy_stream
from refusals import naming


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ursl", "paper (reference 400/100, learner 200 epochs)"),
        ("ursl-plus", "paper (reference 400/100, learner 50 epochs)"),
        ("labels-only", "paper (learner 200 epochs, at least 1200 learner updates per step)"),
        ("co2l", "paper (learner 200 epochs)"),
        ("co2l-j", "paper (learner 200 epochs)"),
        ("co2l-p", "paper (reference 400, learner 200 epochs)"),
    ],
)
def test_a_schedule_lists_the_phases_of_a_method(name, words):
    spec = make_spec(experiment("cifar100-p05"), configuration(name), PAPER, 0)
    assert describe_schedule(spec) == words


def test_a_pretrained_reference_has_one_number_of_epochs():
    config = override(configuration("ursl"), ["reference.pretrained=true"])
    spec = make_spec(experiment("cifar100-p05"), config, SHORT, 0)
    assert describe_schedule(spec) == "short (reference 100, learner 50 epochs)"


@dataclass(frozen=True)
class Own:
    rate: float = 0.1


@dataclass(frozen=True)
class OwnNetwork:
    backbone: str = "resnet18"


@pytest.mark.parametrize("config", [Own(), OwnNetwork()])
@pytest.mark.parametrize("schedule", [SMOKE, DEMO, PAPER])
def test_a_foreign_config_is_not_resized(config, schedule):
    assert make_spec(experiment("digits"), config, schedule, 0).method == config


def test_small_networks_run_on_one_thread_and_the_setting_is_restored(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        record = run(
            make_spec(experiment("digits"), configuration("labels-only"), SMOKE, 0), Options(tmp_path, device="cpu")
        )
        assert record.made_by.device.endswith("1 threads") and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_variants_are_split_at_commas_but_not_within_lists():
    assert changes_of(["optimiser.milestones=[0.5, 0.75],batch=64", "reference.tau=.2"], "reference") == [
        [], ["optimiser.milestones=[0.5, 0.75]", "batch=64"], ["tau=.2"]
    ]  # fmt: skip


def test_a_method_in_the_table_is_resized_by_its_backbone(monkeypatch):
    for config in (Own, OwnNetwork):
        monkeypatch.setitem(METHODS, config.__name__, SimpleNamespace(Config=config))
    for schedule in (SMOKE, DEMO, PAPER):
        assert sized(Own(), schedule) == Own()
    assert [sized(OwnNetwork(), s).backbone for s in (SMOKE, DEMO)] == ["small", "small-wide"]


def test_a_record_under_another_id_is_left_out_and_reported(tmp_path):
    tiny = replace(SMOKE, name="tiny", max_updates=1, row_cap=96)
    record = run(make_spec("digits", "gem", tiny, 0), Options(tmp_path, device="cpu"))
    forged = record_to_plain(record)
    forged["spec"]["method"]["epochs"] = 1
    (tmp_path / "forged").mkdir()
    (tmp_path / "forged" / "x.json").write_text(json.dumps(forged))
    records, problems = known_records([tmp_path / "forged"])
    assert not records and "does not match the spec" in problems[0]


@pytest.mark.parametrize("name", ["ursl", "co2l", "gem", "icarl", "dm", "gd"])
def test_the_id_of_another_seed_is_the_one_of_the_whole_spec(name):
    spec = make_spec("cifar100-p05", name, "short", 0)
    for seed in (1, 12, 2**63 - 1):
        other = replace(spec, seed=seed)
        assert other.id.endswith(content_id([other.type, other]))
        assert ids_with_seeds(spec, [seed]) == [other.id] == [with_seed(spec, seed).id]


@pytest.mark.parametrize(
    ("name", "schedule", "words"),
    [
        ("ursl", SMOKE, "smoke (at most 3 updates per phase and 512 unlabelled images per step)"),
        ("ursl", replace(SMOKE, name="mine", row_cap=None), "mine (at most 3 updates per phase)"),
        ("ursl", DEMO, "demo (reference 30/10, learner 1 epoch, at least 200 learner updates per step)"),
        ("gem", replace(PAPER, name="hundredth", share=0.01), "hundredth (1 epoch)"),
    ],
)
def test_a_schedule_in_words_names_its_caps_and_counts_in_the_singular(name, schedule, words):
    assert describe_schedule(make_spec("digits", name, schedule, 0)) == words


@pytest.mark.parametrize(("smallest", "schedule"), [(True, "smoke"), (False, "demo")])
def test_the_runs_of_the_demo_are_those_of_the_run_command(smallest, schedule):
    names = ("labels-only", "ursl", "ursl-plus-unlimited")
    by_name = [make_spec("digits", name, schedule, 3) for name in names]
    assert list(demo_specs(3, smallest).values()) == by_name


def test_the_demo_keeps_its_ids():
    assert [spec.id.rpartition("-")[2] for spec in demo_specs(0).values()][2] == "2354089647b1"  # as in results/demo


# ----- which method a spec may have


class Mine(Gem):
    pass


def test_a_users_method_does_not_take_a_config_of_the_package():
    spec = make_spec(EXPERIMENTS["digits"], CONFIGURATIONS["gem"], SMOKE, 0)
    assert class_of(spec, None) is class_of(spec, Gem) is Gem
    with pytest.raises(SpecError, match=naming("GemConfig")):
        class_of(spec, Mine)


def test_a_users_class_is_not_named_like_a_method_of_the_package():
    namesake = make_dataclass("Config", [], frozen=True)
    namesake.__qualname__ = "Icarl.Config"
    with pytest.raises(SpecError, match=naming("icarl", "Icarl.Config")):
        make_spec(EXPERIMENTS["digits"], namesake(), SMOKE, 0)


def test_a_spec_by_names_is_the_spec_of_what_they_name():
    assert make_spec("digits", "gem", "smoke", 0) == make_spec(EXPERIMENTS["digits"], CONFIGURATIONS["gem"], SMOKE, 0)


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ({"method": "gem"}, ["method", "osscl.CONFIGURATIONS"]),
        ({"schedule": "smoke"}, ["schedule", "Schedule"]),
        ({"method": GemConfig}, ["method", "osscl.CONFIGURATIONS"]),
        ({"scenario": "digits"}, ["scenario", "ScenarioSpec"]),
        ({"seed": "0"}, ["seed", "'0'"]),
        ({"seed": True}, ["seed", "True"]),
    ],
)
def test_a_spec_of_the_wrong_kinds_is_refused(change, about):
    with pytest.raises(SpecError, match=naming(*about)):
        replace(make_spec(EXPERIMENTS["digits"], "gem", "smoke", 0), **change)


def test_a_single_name_is_not_taken_for_a_tuple_of_names():
    with pytest.raises(SpecError, match=naming("peripheral", "'letters'")):
        replace(EXPERIMENTS["digits"], peripheral="letters")


def test_the_seed_reaches_the_method():
    spec, stream = make_spec(EXPERIMENTS["digits"], CONFIGURATIONS["gem"], SMOKE, 3), toy_stream()
    assert setting_of(spec, stream).seed == 3
