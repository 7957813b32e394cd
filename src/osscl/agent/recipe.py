"""The settings of an agent, fixed before its first step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from osscl.config import from_plain, override, plain, require
from osscl.data.benchmarks import GLYPHS
from osscl.errors import SpecError, require_known
from osscl.methods import method_name
from osscl.methods.base import Schedule
from osscl.methods.reference import ReferenceConfig
from osscl.runs.spec import config_display_name, config_from_plain, configuration, require_own_name, scheduled, sized
from osscl.vision.augment import Augmentation

AUGMENTATIONS = {"photos": Augmentation(), "glyphs": GLYPHS}  # glyphs change their meaning when mirrored or recoloured

REFERENCE_UPDATES = 400  # at least, per step


@dataclass(frozen=True)
class Recipe:
    """Method, schedule, memory, seed and augmentation of an agent."""

    method: Any  # a config of this package
    schedule: Schedule
    memory: int  # labelled images kept, over all classes
    seed: int
    augmentation: Augmentation

    def __post_init__(self) -> None:
        kind = type(self.method)
        if method_name(self.method) is None:
            raise SpecError(f"method must be a name or a config of this package, got {kind.__qualname__}")
        if getattr(self.method, "wants_whole_pool", False):
            raise SpecError(
                "this method needs all unlabelled images before the first step; choose another one, such as ursl"
            )
        require(type(self.memory) is int and self.memory >= 0, self, "memory", "a whole number, 0 or more")
        require(type(self.seed) is int and 0 <= self.seed < 2**63, self, "seed", "0 or more, and below 2^63")
        require(isinstance(self.augmentation, Augmentation), self, "augmentation", "an Augmentation, or its name")
        require_own_name(self.schedule)

    @property
    def display_name(self) -> str:
        """The configuration's name, regardless of the reference's minimum number of updates."""
        reference = getattr(self.method, "reference", None)
        if not isinstance(reference, ReferenceConfig):
            return config_display_name(self.method)
        return config_display_name(replace(self.method, reference=replace(reference, min_updates=0)))

    @property
    def needs_new_classes(self) -> bool:
        """Whether every step must bring a new class."""
        return bool(getattr(self.method, "needs_new_classes", False))

    @property
    def learns_unlabeled(self) -> bool:
        """Whether the unlabelled images of a later step change what is learned."""
        return bool(getattr(self.method, "learns_unlabeled", getattr(self.method, "needs_reference", False)))

    @property
    def carries_labels(self) -> bool:
        """Whether statistics of past classes are kept; only unlabelled images keep them up to date."""
        return bool(getattr(self.method, "statistics", False))

    def as_made(self) -> dict[str, Any]:
        """The part of a model file that says how the agent was made."""
        method = {"type": method_name(self.method), **plain(self.method)}
        return {"method": method, "schedule": plain(self.schedule), "seed": self.seed}


def make_recipe(
    method: Any,
    schedule: Schedule | str,
    changes: Sequence[str],
    memory: int,
    seed: int,
    augmentation: Augmentation | str,
) -> Recipe:
    """Resolve names, size the method for the schedule, then apply the changes."""
    if not isinstance(schedule, str | Schedule):
        raise SpecError(f"schedule must be a name or a Schedule, got {schedule!r}")
    if isinstance(changes, str) or not all(isinstance(change, str) for change in changes):
        raise SpecError(f"changes must be a list such as ['learner.epochs=7'], got {changes!r}")
    length = scheduled(schedule)
    config = sized(configuration(method) if isinstance(method, str) else method, length)
    config = override(_with_floor(config, length), changes)
    if isinstance(augmentation, str):
        require_known("augmentation", augmentation, AUGMENTATIONS)
        augmentation = AUGMENTATIONS[augmentation]
    return Recipe(config, length, memory, seed, augmentation)


def _with_floor(config: Any, schedule: Schedule) -> Any:
    """Ensure enough updates of the reference network on a small pile: an epoch of 243 photographs is one update."""
    reference = getattr(config, "reference", None)
    if not isinstance(reference, ReferenceConfig) or reference.min_updates:
        return config
    return replace(config, reference=replace(reference, min_updates=round(REFERENCE_UPDATES / schedule.share)))


def recipe_from_entry(entry: Mapping[str, Any]) -> Recipe:
    """The recipe of an agent's file."""
    made = entry["spec"]
    return Recipe(
        config_from_plain(made["method"]),
        from_plain(Schedule, made["schedule"]),
        entry["memory"],
        made["seed"],
        from_plain(Augmentation, entry["augmentation"]),
    )
