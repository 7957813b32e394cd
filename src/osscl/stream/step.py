"""A stream: what the agent sees at each step and, separately, what only the evaluation may know."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from osscl.data.images import ImageBank, Labeled
from osscl.stream.scenario import ScenarioSpec


@dataclass(frozen=True)
class Step:
    """Everything the agent may know at time t."""

    index: int  # t, from 0
    new_classes: tuple[int, ...]  # O_t
    labeled: Labeled  # T_t
    unlabeled: Tensor  # U_t, (m, c, s, s) uint8; only Truth knows where a row came from
    further: Labeled | None = None  # more labelled images of earlier classes; the paper's streams have none


@dataclass(frozen=True)
class Truth:
    """The ground truth about the rows of U_t. No learner ever receives it."""

    labels: Tensor  # (m,) the class of a row of the main set, -1 for a foreign row
    seen: Tensor  # (m,) bool: of a class introduced up to t
    unseen: Tensor  # (m,) bool: of a class of a later step
    foreign: Tensor  # (m,) bool: of a peripheral set

    @property
    def related(self) -> Tensor:
        return ~self.foreign


@dataclass(frozen=True)
class StepRows:
    """A step as row numbers of the banks' training splits; no pixels."""

    new_classes: tuple[int, ...]
    labeled: Tensor  # rows of the main bank
    sources: Tensor  # (m,) of each unlabelled row: 0 the main bank, k the k-th peripheral one
    unlabeled: Tensor  # (m,) its row there
    asked: int  # unlabelled rows that the spec requests; in After and Before, fewer may be available


@dataclass(frozen=True)
class Stream:
    """The steps of one seed, over banks on the run's device."""

    spec: ScenarioSpec
    seed: int
    banks: Mapping[str, ImageBank]
    steps: tuple[StepRows, ...]
    held_out: Tensor  # rows that accuracy is measured on: of the main bank's test split, or of its training split
    validation: bool  # whether held_out are rows of the training split
    pool: Tensor  # rows of the main training split that are neither labelled nor held out

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def main(self) -> ImageBank:
        return self.banks[self.spec.main]

    @property
    def content(self) -> dict[str, str]:
        """Content hash of each data set."""
        return {name: bank.content for name, bank in self.banks.items()}

    def step(self, t: int) -> Step:
        rows = self.steps[t]
        labeled = self.main.train.rows(rows.labeled.to(self.device))
        return Step(t, rows.new_classes, labeled, self._gather(rows))

    def truth(self, t: int) -> Truth:
        rows = self.steps[t]
        foreign = rows.sources > 0
        labels = torch.full_like(rows.unlabeled, -1)
        labels[~foreign] = self.main.train.labels.cpu()[rows.unlabeled[~foreign]]
        met = torch.tensor([c for earlier in self.steps[: t + 1] for c in earlier.new_classes])
        seen = torch.isin(labels, met) & ~foreign
        return Truth(labels, seen, ~seen & ~foreign, foreign)

    @property
    def evaluated(self) -> Labeled:
        """The split that the held-out rows belong to."""
        return self.main.train if self.validation else self.main.test

    @property
    def held_out_classes(self) -> set[int]:
        """The classes of the held-out rows."""
        return set(self.evaluated.labels.cpu()[self.held_out].tolist())

    @property
    def all_evaluated(self) -> bool:
        """Whether every step has held-out rows of its classes."""
        classes = self.held_out_classes
        return all(classes & set(rows.new_classes) for rows in self.steps)

    def evaluation(self, t: int) -> Labeled:
        """The held-out rows of the classes that step t introduces."""
        rows = self.held_out.to(self.device)
        new = torch.tensor(self.steps[t].new_classes, device=self.device)
        return self.evaluated.rows(rows[torch.isin(self.evaluated.labels[rows], new)])

    def foreign_images(self, limit: int) -> Tensor:
        """Images of the peripheral sets that are in no U_t: at most `limit` of each set, evenly spaced."""
        parts = [self.main.train.images[:0]]
        for k, name in enumerate(self.spec.peripheral, start=1):
            images = self.banks[name].train.images
            unused = torch.ones(len(images), dtype=torch.bool)
            for rows in self.steps:
                unused[rows.unlabeled[rows.sources == k]] = False
            free = unused.nonzero().squeeze(1)
            picked = torch.linspace(0, len(free) - 1, min(limit, len(free))).long()
            parts.append(images[free[picked].to(self.device)])
        return torch.cat(parts)

    def whole_pool(self) -> Tensor:
        """All unlabelled images, for a reference that is trained before the first step."""
        related = [self.main.train.images[self.pool.to(self.device)]] if self.spec.related else []
        foreign = [self.banks[name].train.images for name in self.spec.peripheral if self.spec.unrelated]
        return torch.cat([self.main.train.images[:0], *related, *foreign])

    @property
    def device(self) -> torch.device:
        return self.main.train.images.device

    def _gather(self, rows: StepRows) -> Tensor:
        images = self.main.train.images
        gathered = images.new_empty(len(rows.unlabeled), *images.shape[1:])
        for k, name in enumerate((self.spec.main, *self.spec.peripheral)):
            mine = rows.sources == k
            gathered[mine.to(self.device)] = self.banks[name].train.images[rows.unlabeled[mine].to(self.device)]
        return gathered
