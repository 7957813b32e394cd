"""The scenario of a stream: its setting, and which classes may appear unlabelled at which step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator

from osscl.config import added_later, require, require_declared
from osscl.data.benchmarks import dataset
from osscl.errors import SpecError

Regime = Literal["osscl", "only_supervised", "after", "before", "only_related", "only_unrelated", "non_iid"]
PARTIAL = ("after", "before")  # regimes that draw all available rows if there are fewer than requested


@dataclass(frozen=True)
class ScenarioSpec:
    """An open world over time. `None` is replaced by the data set's default on construction, so specs are explicit."""

    main: str
    peripheral: tuple[str, ...] = ()
    labeled_fraction: float | None = None  # P, per class; or
    labels_per_class: int | None = None  # a count, per class
    memory: int = 0  # |M|, labelled images kept over all classes
    classes_per_step: tuple[int, ...] | None = None
    related: int | None = None  # unlabelled rows of the main set per step
    unrelated: int | None = None  # unlabelled rows of each peripheral set per step
    regime: Regime = "osscl"
    class_share: float = 1.0  # non_iid: share of the main classes present in each U_t
    before_first: Literal["current", "skip"] = "current"  # before, t = 1: there is no past class to draw from
    validation_share: float = 0.0  # of the main training rows; if > 0, accuracy is measured on them, not on test rows
    imbalance: float = 1.0  # training images of the largest class over those of the smallest
    class_order: Literal["random", "natural"] = added_later("random", legacy="random")  # natural: by class number

    def __post_init__(self) -> None:
        require(isinstance(self.peripheral, tuple), self, "peripheral", "a tuple of names")
        require_declared(self)
        self._fill_in_defaults()
        require(len(set(self.peripheral)) == len(self.peripheral), self, "peripheral", "without duplicates")
        require(self.main not in self.peripheral, self, "peripheral", f"without the main set {self.main!r}")
        if (self.labeled_fraction is None) == (self.labels_per_class is None):
            raise SpecError("set exactly one of labeled_fraction (a share in (0, 1]) and labels_per_class (a count)")
        if self.labeled_fraction is not None:
            require(0 < self.labeled_fraction <= 1, self, "labeled_fraction", "in (0, 1]")
        if self.labels_per_class is not None:
            require(self.labels_per_class > 0, self, "labels_per_class", "positive")
        assert self.classes_per_step is not None
        require(bool(self.classes_per_step) and min(self.classes_per_step) > 0, self, "classes_per_step", "positive")
        require(0 <= self.validation_share < 1, self, "validation_share", "in [0, 1)")
        require(0 < self.class_share <= 1, self, "class_share", "in (0, 1]")
        require(self.imbalance >= 1, self, "imbalance", "at least 1")
        require(self.related is not None and self.related >= 0, self, "related", "0 or more")
        require(self.unrelated is not None and self.unrelated >= 0, self, "unrelated", "0 or more")
        if self.memory != 0 and self.memory < self.classes:
            raise SpecError(f"memory must be 0 (none) or at least the {self.classes} classes, got {self.memory}")

    def _fill_in_defaults(self) -> None:
        if self.classes_per_step is None:
            known = dataset(self.main)
            size = known.classes_per_step
            sizes = [size] * (known.classes // size) + [known.classes % size] * (known.classes % size > 0)
            object.__setattr__(self, "classes_per_step", tuple(sizes))
        if self.related is None:
            wants = self.regime not in ("only_supervised", "only_unrelated") and self.labeled_fraction != 1
            object.__setattr__(self, "related", dataset(self.main).draws_per_step if wants else 0)
        if self.unrelated is None:
            # The paper's appendix: After and Before have no unrelated images.
            wants = bool(self.peripheral) and self.regime not in ("only_supervised", "only_related", *PARTIAL)
            draws = min((dataset(name).draws_per_step for name in self.peripheral), default=0)
            object.__setattr__(self, "unrelated", draws if wants else 0)
        if self.regime in ("only_supervised", "only_unrelated"):
            require(self.related == 0, self, "related", f"0 in the regime {self.regime}")
        if self.regime in ("only_supervised", "only_related"):
            require(self.unrelated == 0, self, "unrelated", f"0 in the regime {self.regime}")

    @property
    def steps(self) -> int:
        assert self.classes_per_step is not None
        return len(self.classes_per_step)

    @property
    def classes(self) -> int:
        assert self.classes_per_step is not None
        return sum(self.classes_per_step)


def split_classes(order: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """The classes of each step, in their order."""
    starts = [sum(sizes[:t]) for t in range(len(sizes))]
    return [tuple(order[start : start + size]) for start, size in zip(starts, sizes, strict=True)]


def unlabeled_classes(spec: ScenarioSpec, tasks: Sequence[Sequence[int]], t: int, rng: Generator) -> list[int]:
    """The main classes that U_t may contain, by regime."""
    everything = [c for task in tasks for c in task]
    if spec.regime == "after":
        return [c for task in tasks[t:] for c in task]
    if spec.regime == "before":
        past = [c for task in tasks[:t] for c in task]
        return past or (list(tasks[t]) if spec.before_first == "current" else [])
    if spec.regime == "non_iid":
        count = max(1, round(spec.class_share * len(everything)))
        return [everything[i] for i in torch.randperm(len(everything), generator=rng)[:count].tolist()]
    return everything
