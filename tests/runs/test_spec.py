"""Specs in words and at a schedule's size; threads of small networks."""

from dataclasses import dataclass, replace

import pytest
import torch

from osscl.cli.measure import changes_of
from osscl.config import override
from osscl.errors import SpecError
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods.base import DEMO, PAPER, SHORT, SMOKE
from osscl.runs import presets as sizes
from osscl.runs.checkpoint import Options
from osscl.runs.run import run
from osscl.runs.spec import configuration, describe_schedule, experiment, make_spec


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ursl", "paper (reference 400/100, learner 200 epochs)"),
        ("ursl-plus", "paper (reference 400/100, learner 50 epochs)"),
        ("labels-only", "paper (learner 200 epochs, at least 1200 learner updates a step)"),
        ("co2l", "paper (learner 200 epochs)"),
        ("co2l-j", "paper (learner 200 epochs)"),
        ("co2l-p", "paper (reference 400, learner 200 epochs)"),
    ],
)
def test_a_schedule_names_the_phases_that_a_method_has(name, words):
    spec = make_spec(experiment("cifar100-p05"), configuration(name), PAPER, 0)
    assert describe_schedule(spec) == words


def test_a_reference_that_is_trained_once_has_one_number():
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
def test_a_config_from_elsewhere_stays_as_it_is_at_every_schedule(config, schedule):
    assert make_spec(experiment("digits"), config, schedule, 0).method == config


def test_small_networks_run_on_one_thread_wherever_they_are_started_and_threads_come_back(tmp_path):
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


def test_milestones_know_no_warm_up():
    with pytest.raises(SpecError, match="warmup must be 0 where there are milestones"):
        OptimiserConfig(milestones=(0.5,), warmup=0.1)
    assert replace(OptimiserConfig(), milestones=(0.5,)).warmup == 0


def test_a_config_of_another_make_is_run_at_the_size_that_it_says(monkeypatch):
    for config in (Own, OwnNetwork):
        monkeypatch.setitem(sizes.METHODS, config, object)
    for schedule in (SMOKE, DEMO, PAPER):
        assert sizes.sized(Own(), schedule) == Own()
    assert [sizes.sized(OwnNetwork(), s).backbone for s in (SMOKE, DEMO)] == ["small", "small-wide"]
