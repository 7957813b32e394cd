"""What runs: a frozen spec, its id, and the named experiments."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from osscl.config import added_later, content_id, from_plain, plain, require
from osscl.errors import SpecError, unknown
from osscl.methods import CONFIGURATIONS, LABELS_ONLY, METHOD_TYPES, URSL, URSL_PLUS
from osscl.methods.base import DEMO, PAPER, SCHEDULES, SMOKE, Schedule
from osscl.methods.co2l import Co2lConfig
from osscl.runs.presets import demo_sized, on_small_net, sized
from osscl.stream.scenario import ScenarioSpec


@dataclass(frozen=True)
class Elsewhere:
    """The config of a method that is not of this package, as a record has it: enough to show and compare its runs."""

    kind: str
    written: str  # its fields, as JSON

    def fields(self) -> dict[str, Any]:
        return dict(json.loads(self.written))


def require_own_name(schedule: Schedule) -> None:
    """A schedule that was changed must not go by the name of one that is known."""
    name = schedule.name
    if schedule != SCHEDULES.get(name, schedule):
        raise SpecError(f"schedule.name={name} stands for another schedule; name this one, as by schedule.name=mine")


@dataclass(frozen=True)
class RunSpec:
    """One run, completely."""

    scenario: ScenarioSpec
    method: Any  # a config; its type picks the algorithm, its fields are the hyperparameters
    schedule: Schedule = PAPER  # never implied, always shown beside a number
    seed: int = 0
    stream: str | None = added_later(None, legacy=None)  # digest of rows that are not the ones scenario and seed give

    def __post_init__(self) -> None:
        require(isinstance(self.scenario, ScenarioSpec), self, "scenario", "a ScenarioSpec")
        require(type(self.seed) is int, self, "seed", "a whole number")
        require(isinstance(self.schedule, Schedule), self, "schedule", "a Schedule, as in osscl.SCHEDULES")
        given = is_dataclass(self.method) and not isinstance(self.method, type)
        require(given, self, "method", "a config, as in osscl.CONFIGURATIONS")
        require(0 <= self.seed < 2**63, self, "seed", "0 or more, and below 2^63")
        require_own_name(self.schedule)
        config = type(self.method)
        if config is not Elsewhere and config is not METHOD_TYPES.get(self.type, config):
            raise SpecError(f"{self.type} is a method of this package: rename {config.__qualname__}")

    @functools.cached_property
    def id(self) -> str:
        """Readable in front, unmistakable at the end."""
        return f"{self.type}-{self.scenario.main}-{self.schedule.name}-s{self.seed}-{content_id([self.type, self])}"

    @property
    def type(self) -> str:
        """How the method's type is written in files."""
        if isinstance(self.method, Elsewhere):
            return self.method.kind
        names = {kind: name for name, kind in METHOD_TYPES.items()}
        own = type(self.method).__qualname__.rpartition("<locals>.")[2].removesuffix(".Config")  # of a class elsewhere
        return names.get(type(self.method), own.lower())


EXPERIMENTS = {
    "cifar100-p05": ScenarioSpec("cifar100", ("cifar10",), labeled_fraction=0.05, memory=500),
    "cifar100-p10": ScenarioSpec("cifar100", ("cifar10",), labeled_fraction=0.1, memory=1000),
    "cifar10-p01": ScenarioSpec("cifar10", ("cifar100",), labeled_fraction=0.01, memory=50),
    "cifar10-p10": ScenarioSpec("cifar10", ("cifar100",), labeled_fraction=0.1, memory=200),
    "cifar100-full": ScenarioSpec("cifar100", labeled_fraction=1.0, memory=1000),
    "cifar10-full": ScenarioSpec("cifar10", labeled_fraction=1.0, memory=200),
    "tinyimagenet-p05": ScenarioSpec("tinyimagenet", ("cifar10",), labeled_fraction=0.05, memory=1000),
    "tinyimagenet-p10": ScenarioSpec("tinyimagenet", ("cifar10",), labeled_fraction=0.1, memory=2000),
    "digits": ScenarioSpec("digits", ("letters",), labels_per_class=3, memory=30),
}


def configuration(name: str) -> Any:
    """The method config of this name."""
    if name not in CONFIGURATIONS:
        raise unknown("method", name, CONFIGURATIONS)
    return CONFIGURATIONS[name]


def schedule(name: str) -> Schedule:
    """The schedule of this name."""
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def scheduled(given: Schedule | str) -> Schedule:
    """The schedule that is given, or the one of its name."""
    return schedule(given) if isinstance(given, str) else given


def experiment(name: str) -> ScenarioSpec:
    """The scenario of this name."""
    if name not in EXPERIMENTS:
        raise unknown("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


def make_spec(scenario: ScenarioSpec | str, method: Any, schedule: Schedule | str, seed: int) -> RunSpec:
    """A spec in which the schedule's own demands on the method are carried out; all may be given by name."""
    world = experiment(scenario) if isinstance(scenario, str) else scenario
    config = configuration(method) if isinstance(method, str) else method
    asked = RunSpec(world, config, scheduled(schedule), seed)
    return replace(asked, method=sized(config, asked.schedule))


def name_of(spec: RunSpec) -> str:
    """The configuration that a spec's method is, by its fields; one that is none of them gets a star. Of a method
    elsewhere nobody here knows what its usual fields are."""
    return spec.type if type(spec.method) not in METHOD_TYPES.values() else name_of_config(spec.method)


def type_of(config: Any) -> str:
    """How a method of this package is written in files."""
    return next(name for name, kind in METHOD_TYPES.items() if kind is type(config))


def name_of_config(config: Any) -> str:
    for name, usual in CONFIGURATIONS.items():
        if type(usual) is type(config) and config in (usual, on_small_net(usual), demo_sized(usual)):
            return name
    return f"{type_of(config)}*"


def describe_schedule(spec: RunSpec) -> str:
    """The schedule in words: what share of which epochs."""
    if spec.schedule.max_updates is not None:
        return f"{spec.schedule.name} (at most {spec.schedule.max_updates} updates a phase)"
    method = plain(spec.method)
    parts, least = [], ""
    if "reference" in method and getattr(spec.method, "needs_reference", True):
        first, later = (spec.schedule.epochs(method["reference"][key]) for key in ("epochs_first", "epochs_later"))
        once = isinstance(spec.method, Co2lConfig) or method["reference"].get("pretrained")
        parts.append(f"reference {first}" if once else f"reference {first}/{later}")
    if "learner" in method:
        parts.append(f"learner {spec.schedule.epochs(method['learner']['epochs'])}")
        floor = round(spec.schedule.share * method["learner"]["min_updates"])
        least = f", at least {floor} learner updates a step" if floor else ""
    if not parts:
        epochs = {key: spec.schedule.epochs(value) for key, value in method.items() if key.startswith("epochs")}
        parts = [f"{key.removeprefix('epochs').strip('_') or 'model'} {count}" for key, count in epochs.items()]
    return f"{spec.schedule.name} ({', '.join(parts)} epochs{least})" if parts else spec.schedule.name


def spec_to_plain(spec: RunSpec) -> dict[str, Any]:
    """What JSON and YAML hold of a spec."""
    method = spec.method.fields() if isinstance(spec.method, Elsewhere) else plain(spec.method)
    return {**plain(spec), "method": {"type": spec.type, **method}}


def config_from_plain(data: Mapping[str, Any], config: type | None = None, *, recorded: bool = False) -> Any:
    """A method's config as a file holds it, with its type beside its fields."""
    method = dict(data)
    kind = method.pop("type", None)
    if config is None and kind not in [*METHOD_TYPES]:  # a list: what a file says may have no hash
        if not recorded or not isinstance(kind, str):
            raise unknown("method type", kind, METHOD_TYPES)
        return Elsewhere(kind, json.dumps(method, sort_keys=True))
    return from_plain(config or METHOD_TYPES[kind], method, "method")


def spec_from_plain(data: Mapping[str, Any], config: type | None = None, *, recorded: bool = False) -> RunSpec:
    """The spec that a file holds; unknown keys are refused by name. `config` is the type of a method elsewhere.

    What is `recorded` may be of a method elsewhere without it.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("method"), Mapping):
        raise SpecError("a spec is a mapping with the fields scenario, method, schedule and seed")
    made = config_from_plain(data["method"], config, recorded=recorded)
    fields = {**data, "method": made}
    if isinstance(fields.get("schedule"), str):
        fields["schedule"] = schedule(fields["schedule"])
    return from_plain(RunSpec, fields)


def with_seed(spec: RunSpec, seed: int) -> RunSpec:
    return replace(spec, seed=seed)


def demo_specs(seed: int, smallest: bool = False) -> dict[str, RunSpec]:
    """The runs of the demo, on one stream: the same network, memory and number of updates."""
    schedule: Schedule = SMOKE if smallest else DEMO
    scenario = EXPERIMENTS["digits"]
    return {
        "labels only": RunSpec(scenario, demo_sized(LABELS_ONLY), schedule, seed),
        "URSL": RunSpec(scenario, demo_sized(URSL), schedule, seed),
        "URSL-plus": RunSpec(scenario, demo_sized(URSL_PLUS), schedule, seed),
    }
