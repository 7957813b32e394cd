"""What an agent of one's own images is made by: set before its first step, and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osscl.config import from_plain, override, plain, require
from osscl.data.benchmarks import GLYPHS
from osscl.errors import SpecError, unknown
from osscl.methods import method_name
from osscl.methods.base import Schedule
from osscl.methods.co2l import Co2lConfig
from osscl.runs.presets import sized
from osscl.runs.spec import config_from_plain, configuration, require_own_name, scheduled
from osscl.vision.augment import Augmentation

AUGMENTATIONS = {"photos": Augmentation(), "glyphs": GLYPHS}  # what may be done to an image without making it another


@dataclass(frozen=True)
class Recipe:
    """Method, length, memory, seed, and what may be done to an image."""

    method: Any  # a config of this package
    schedule: Schedule
    memory: int  # labelled images kept over all classes
    seed: int
    augmentation: Augmentation

    def __post_init__(self) -> None:
        kind = type(self.method)
        if method_name(self.method) is None:
            raise SpecError(f"method must be a name or a config of this package, got {kind.__qualname__}")
        if getattr(self.method, "wants_whole_pool", False):
            raise SpecError("this method wants all unlabelled images before the first step; take another, as ursl-plus")
        require(type(self.memory) is int and self.memory >= 0, self, "memory", "a whole number, 0 or more")
        require(type(self.seed) is int and 0 <= self.seed < 2**63, self, "seed", "0 or more, and below 2^63")
        require(isinstance(self.augmentation, Augmentation), self, "augmentation", "an Augmentation, or its name")
        require_own_name(self.schedule)

    @property
    def learns_unlabeled(self) -> bool:
        """Whether unlabelled images of a later step change what is learned."""
        if isinstance(self.method, Co2lConfig):
            return self.method.unlabeled == "joint"
        return bool(getattr(self.method, "needs_reference", False))

    @property
    def carries_labels(self) -> bool:
        """Whether statistics stay of labels whose images are gone; only unlabelled images bring them up to date."""
        return bool(getattr(self.method, "statistics", False))

    def as_made(self) -> dict[str, Any]:
        """What a model's file says of how it was made."""
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
    """By names, or by what they stand for; the method as the schedule sizes it, then with fields changed."""
    if not isinstance(schedule, str | Schedule):
        raise SpecError(f"schedule must be a name or a Schedule, got {schedule!r}")
    if isinstance(changes, str) or not all(isinstance(change, str) for change in changes):
        raise SpecError(f"changes must be a list as ['learner.epochs=7'], got {changes!r}")
    length = scheduled(schedule)
    config = override(sized(configuration(method) if isinstance(method, str) else method, length), changes)
    if isinstance(augmentation, str):
        if augmentation not in AUGMENTATIONS:
            raise unknown("augmentation", augmentation, AUGMENTATIONS)
        augmentation = AUGMENTATIONS[augmentation]
    return Recipe(config, length, memory, seed, augmentation)


def recipe_in(entry: Mapping[str, Any]) -> Recipe:
    """The recipe of what a file holds, fields that are younger than it filled in."""
    made = entry["spec"]
    return Recipe(
        config_from_plain(made["method"]),
        from_plain(Schedule, made["schedule"]),
        entry["memory"],
        made["seed"],
        from_plain(Augmentation, entry["augmentation"]),
    )
