"""What to run: a frozen spec, its id, the named experiments, and configurations resized for them."""

import functools
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from osscl.config import from_plain, identifying, identifying_text, plain, require, text_id
from osscl.errors import SpecError, require_known, unknown
from osscl.learn.linear_head import HeadConfig
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods import CONFIGURATIONS, LABELS_ONLY, METHODS, URSL, URSL_PLUS_UNLIMITED, method_name
from osscl.methods.base import DEMO, PAPER, SCHEDULES, SMOKE, Schedule
from osscl.methods.gate import GateConfig
from osscl.methods.reference import ReferenceConfig
from osscl.methods.ursl import LearnerConfig
from osscl.runs.kept import SPEC_FILE
from osscl.stream.scenario import ScenarioSpec
from osscl.vision.encoder import EncoderConfig

SEED_HERE = secrets.token_hex()  # placeholder for the seed in a text; random, so that no value of a spec equals it


@dataclass(frozen=True)
class ForeignConfig:
    """The config of a method of another package, as read from a record: enough to show and compare its runs."""

    kind: str
    written: str  # its fields, as JSON

    def fields(self) -> dict[str, Any]:
        return dict(json.loads(self.written))


def require_own_name(schedule: Schedule) -> None:
    """Refuse a changed schedule with the name of a predefined one."""
    name = schedule.name
    if schedule != SCHEDULES.get(name, schedule):
        raise SpecError(
            f"schedule.name={name} is a predefined schedule: give this one another name, e.g. schedule.name=mine"
        )


@dataclass(frozen=True)
class RunSpec:
    """The complete description of one run."""

    scenario: ScenarioSpec
    method: Any  # a config; its type picks the algorithm, its fields are the hyperparameters
    schedule: Schedule = PAPER  # never implied, always shown next to a number
    seed: int = 0
    stream: str | None = None  # digest of the rows if they come from a stream file

    def __post_init__(self) -> None:
        require(isinstance(self.scenario, ScenarioSpec), self, "scenario", "a ScenarioSpec")
        require(type(self.seed) is int, self, "seed", "a whole number")
        require(isinstance(self.schedule, Schedule), self, "schedule", "a Schedule, e.g. from osscl.SCHEDULES")
        given = is_dataclass(self.method) and not isinstance(self.method, type)
        require(given, self, "method", "a config, e.g. from osscl.CONFIGURATIONS")
        require(0 <= self.seed < 2**63, self, "seed", "0 or more, and below 2^63")
        require_own_name(self.schedule)
        own = METHODS.get(self.type)
        if own is not None and not isinstance(self.method, ForeignConfig) and own.Config is not type(self.method):
            raise SpecError(f"{self.type} is the name of a built-in method: rename {type(self.method).__qualname__}")

    @functools.cached_property
    def id(self) -> str:
        """The configuration's name (the method's, if the config has none), the setting, and a hash of all fields."""
        return self._id_with(self.seed)

    def _id_with(self, seed: int) -> str:
        if seed not in self._ids:
            name, before, after = self._id_parts
            self._ids[seed] = f"{name}-s{seed}-{text_id(f'{before}{seed}{after}')}"
        return self._ids[seed]

    @functools.cached_property
    def _ids(self) -> dict[int, str]:
        """Ids that were requested, by seed: a page looks up each of them several times."""
        return {}

    @functools.cached_property
    def _id_parts(self) -> tuple[str, str, str]:
        """The id before the seed, and what is hashed before and after it: most runs differ only in their seed."""
        name = configuration_name(self.method) or self.type
        text = identifying_text([self.type, {**identifying(self), "seed": SEED_HERE}])
        before, after = text.split(json.dumps(SEED_HERE))
        return f"{name}-{self.scenario.main}-{self.schedule.name}", before, after

    @property
    def type(self) -> str:
        """The method's name in files."""
        if isinstance(self.method, ForeignConfig):
            return self.method.kind
        own = type(self.method).__qualname__.rpartition("<locals>.")[2].removesuffix(".Config")
        return method_name(self.method) or own.lower()


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
    require_known("method", name, CONFIGURATIONS)
    return CONFIGURATIONS[name]


def schedule(name: str) -> Schedule:
    """The schedule of this name."""
    require_known("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def usual_schedule(scenario: ScenarioSpec) -> str:
    """The name of the default schedule in a scenario; `demo` has the sizes that suit digits."""
    return DEMO.name if scenario.main == "digits" else PAPER.name


def scheduled(given: Schedule | str) -> Schedule:
    """A schedule, or the one of this name."""
    return schedule(given) if isinstance(given, str) else given


def experiment(name: str) -> ScenarioSpec:
    """The scenario of this name."""
    require_known("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]


# ----- sizes that need no GPU: to check that everything runs, and to learn the digits

SMALL = EncoderConfig("small-wide", dim=128)
QUICK = OptimiserConfig("adam", rate=2e-3, min_rate=1e-5, decay=1e-6)

# What changes in each part of a config, by its type. Thresholds by std: the variance of these scores is so small that
# mean - 4 var would reject most known digits.
DEMO_CHANGES: dict[type, dict[str, Any]] = {
    ReferenceConfig: {
        "net": SMALL, "tau": 0.5, "epochs_first": 30, "epochs_later": 10, "batch": 128, "optimiser": QUICK
    },
    GateConfig: {"eta": (-2.0, -1.0), "spread": "std"},
    LearnerConfig: {"net": SMALL, "epochs": 1, "min_updates": 200, "batch": 64, "optimiser": QUICK},
    HeadConfig: {"penalty": 1.0},
}  # fmt: skip


def sized(config: Any, schedule: Schedule) -> Any:
    """`config` resized as a schedule requires; configs of foreign methods stay as they are."""
    if method_name(config) is None:
        return config
    if schedule == DEMO:
        return demo_sized(config)
    return on_small_net(config) if schedule.small_net else config


def on_small_net(config: Any) -> Any:
    """`config` with small networks, for schedules that only check that everything runs."""
    if hasattr(config, "backbone"):
        return replace(config, backbone="small")
    parts = {name: part for name, part in vars(config).items() if isinstance(part, ReferenceConfig | LearnerConfig)}
    small = {
        name: replace(part, net=replace(part.net, backbone="small", hidden=None, dim=64))
        for name, part in parts.items()
    }
    return replace(config, **small)


def demo_sized(config: Any) -> Any:
    """`config` with networks, batches, epochs and optimisers that suit digits."""
    # With a handful of labels an epoch is one or two updates: methods name the epochs that they need.
    own = getattr(config, "demo_changes", {})
    if hasattr(config, "backbone"):
        return replace(config, backbone=SMALL.backbone, **own)
    parts = {name: part for name, part in vars(config).items() if type(part) in DEMO_CHANGES}
    return replace(config, **{name: replace(part, **DEMO_CHANGES[type(part)]) for name, part in parts.items()}, **own)


# ----- specs and names


def make_spec(scenario: ScenarioSpec | str, method: Any, schedule: Schedule | str, seed: int) -> RunSpec:
    """A spec with the method resized as the schedule requires; all arguments but the seed may be names."""
    world = experiment(scenario) if isinstance(scenario, str) else scenario
    config = configuration(method) if isinstance(method, str) else method
    asked = RunSpec(world, config, scheduled(schedule), seed)
    return replace(asked, method=sized(config, asked.schedule))


def configuration_name(config: Any) -> str | None:
    """The named configuration that a config equals, at any of its sizes; None if it has no name."""
    for name, usual in CONFIGURATIONS.items():
        if type(usual) is type(config) and config in sizes_of(usual).values():
            return name
    return None


@functools.cache
def sizes_of(config: Any) -> dict[str, Any]:
    """A configuration at each of its sizes, by the name of the size."""
    return {"full size": config, "small networks": on_small_net(config), "sized for digits": demo_sized(config)}


def is_changed(config: Any) -> bool:
    """Whether a config of this package equals no named configuration."""
    return method_name(config) is not None and configuration_name(config) is None


def display_name(spec: RunSpec) -> str:
    """The configuration's name; a changed configuration of a method of this package gets a star."""
    if method_name(spec.method) is None:
        return spec.type  # the usual configuration of a foreign method is unknown
    return config_display_name(spec.method)


def config_display_name(config: Any) -> str:
    """The display name of a config of this package."""
    return configuration_name(config) or f"{method_name(config)}*"


def describe_schedule(spec: RunSpec) -> str:
    """The schedule in words: its share of the epochs of each phase."""
    schedule, config = spec.schedule, spec.method
    if schedule.max_updates is not None:
        rows = "" if schedule.row_cap is None else f" and {schedule.row_cap} unlabelled images per step"
        return f"{schedule.name} (at most {schedule.max_updates} updates per phase{rows})"
    method = plain(config)
    lengths, least = dict[str, tuple[int, ...]](), ""  # epochs of each phase: of the first step, then of later ones
    if "reference" in method and getattr(config, "needs_reference", True):
        first, later = (schedule.epochs(method["reference"][key]) for key in ("epochs_first", "epochs_later"))
        once = getattr(config, "reference_once", False) or method["reference"].get("pretrained")
        lengths["reference"] = (first,) if once else (first, later)
    if "learner" in method:
        longer = (schedule.epochs(method["epochs_first"]),) if method.get("epochs_first") else ()
        lengths["learner"] = (*longer, schedule.epochs(method["learner"]["epochs"]))
        floor = round(schedule.share * method["learner"]["min_updates"])
        least = f", at least {floor} learner updates per step" if floor else ""
    if not lengths:
        own = {key: value for key, value in method.items() if key.startswith("epochs")}
        lengths = {key.removeprefix("epochs").strip("_"): (schedule.epochs(value),) for key, value in own.items()}
    if not lengths:
        return schedule.name
    parts = [f"{name} {'/'.join(map(str, counts))}".strip() for name, counts in lengths.items()]
    unit = "epoch" if [*lengths.values()][-1] == (1,) else "epochs"
    return f"{schedule.name} ({', '.join(parts)} {unit}{least})"


def spec_to_plain(spec: RunSpec) -> dict[str, Any]:
    """A spec as JSON and YAML hold it."""
    method = spec.method.fields() if isinstance(spec.method, ForeignConfig) else plain(spec.method)
    return {**plain(spec), "method": {"type": spec.type, **method}}


def config_from_plain(data: Mapping[str, Any], config: type | None = None, *, recorded: bool = False) -> Any:
    """A method's config from a file, where the method's name is the field `type`."""
    method = dict(data)
    kind = method.pop("type", None)
    if config is None and kind not in [*METHODS]:  # a list: values from a file may be unhashable
        if not recorded or not isinstance(kind, str):
            raise unknown("method type", kind, METHODS)
        return ForeignConfig(kind, json.dumps(method, sort_keys=True))
    return from_plain(config or METHODS[kind].Config, method, "method")


def spec_from_plain(data: Mapping[str, Any], config: type | None = None, *, recorded: bool = False) -> RunSpec:
    """The spec in a file; unknown keys are refused by name. `config` is the config type of a foreign method.

    A `recorded` spec may be of a foreign method whose type is not given.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("method"), Mapping):
        raise SpecError("a spec is a mapping with the fields scenario, method, schedule and seed")
    made = config_from_plain(data["method"], config, recorded=recorded)
    fields = {**data, "method": made}
    if isinstance(fields.get("schedule"), str):
        fields["schedule"] = schedule(fields["schedule"])
    return from_plain(RunSpec, fields)


def is_misplaced(spec: RunSpec, file: Path) -> bool:
    """Whether a spec file is in the folder of another run, since it was edited there or is damaged."""
    folder = file.resolve().parent.name
    is_run = re.search("-s[0-9]+-[0-9a-f]{12}$", folder) is not None
    return file.name == SPEC_FILE and is_run and not isinstance(spec.method, ForeignConfig) and folder != spec.id


def with_seed(spec: RunSpec, seed: int) -> RunSpec:
    made = replace(spec, seed=seed)
    made.__dict__["_id_parts"] = spec._id_parts
    return made


def ids_with_seeds(spec: RunSpec, seeds: Iterable[int]) -> list[str]:
    """The ids of a spec with other seeds."""
    return [spec._id_with(seed) for seed in seeds]


def demo_specs(seed: int, smallest: bool = False) -> dict[str, RunSpec]:
    """The runs of the demo, on one stream with the same network, memory and number of updates."""
    schedule = SMOKE if smallest else DEMO
    configs = {"labels only": LABELS_ONLY, "URSL": URSL, "URSL-plus unlimited": URSL_PLUS_UNLIMITED}
    return {name: make_spec("digits", config, schedule, seed) for name, config in configs.items()}


def on_validation_rows(spec: RunSpec) -> RunSpec:
    """Hold out a tenth of the main training set, as the paper did to choose its hyperparameters."""
    if spec.scenario.validation_share:
        return spec
    return replace(spec, scenario=replace(spec.scenario, validation_share=0.1))
