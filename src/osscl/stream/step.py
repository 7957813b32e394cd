"""A stream: what the agent may see at each step, and, apart from it, what only the evaluation may know."""

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
    unlabeled: Tensor  # U_t, (m, c, s, s) uint8; where a row came from is Truth's to know
    further: Labeled | None = None  # more labelled images of classes met before; the paper's streams have none


@dataclass(frozen=True)
class Truth:
    """What is true of the rows of U_t. No learner is ever handed one."""

    labels: Tensor  # (m,) the class of a row of the main set, -1 for a foreign row
    seen: Tensor  # (m,) bool: of a class met up to t
    unseen: Tensor  # (m,) bool: of a class still to come
    foreign: Tensor  # (m,) bool: of a peripheral set

    @property
    def related(self) -> Tensor:
        return ~self.foreign


@dataclass(frozen=True)
class StepRows:
    """A step as rows of the banks' training parts; no pixels."""

    new_classes: tuple[int, ...]
    labeled: Tensor  # rows of the main bank
    sources: Tensor  # (m,) of each unlabelled row: 0 the main bank, k the k-th peripheral one
    unlabeled: Tensor  # (m,) its row there
    asked: int  # unlabelled rows that the spec asked for; more than m where After or Before ran short


@dataclass(frozen=True)
class Stream:
    """The steps of one seed, over banks that lie on the run's device."""

    spec: ScenarioSpec
    seed: int
    banks: Mapping[str, ImageBank]
    steps: tuple[StepRows, ...]
    held_out: Tensor  # rows that accuracy is taken on: of the main test part, or of its training part
    validation: bool  # whether held_out is a validation split of the training part
    pool: Tensor  # rows of the main training part that are neither labelled nor held out

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def main(self) -> ImageBank:
        return self.banks[self.spec.main]

    @property
    def content(self) -> dict[str, str]:
        """Hash of each data set."""
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
        """The split that held-out rows are of."""
        return self.main.train if self.validation else self.main.test

    @property
    def held_out_classes(self) -> set[int]:
        """The classes that there are held-out rows of."""
        return set(self.evaluated.labels.cpu()[self.held_out].tolist())

    @property
    def all_evaluated(self) -> bool:
        """Whether there are held-out rows of every step's classes."""
        told = self.held_out_classes
        return all(told & set(rows.new_classes) for rows in self.steps)

    def evaluation(self, t: int) -> Labeled:
        """The held-out rows of the classes that step t brings."""
        part = self.evaluated
        labels = part.labels[self.held_out.to(self.device)]
        wanted = torch.isin(labels, torch.tensor(self.steps[t].new_classes, device=self.device))
        return part.rows(self.held_out.to(self.device)[wanted])

    def strangers(self, most: int) -> Tensor:
        """Images of the peripheral sets that no U_t holds: evenly over each set, at most so many of it."""
        parts = [self.main.train.images[:0]]
        for k, name in enumerate(self.spec.peripheral, start=1):
            images = self.banks[name].train.images
            unmet = torch.ones(len(images), dtype=torch.bool)
            for rows in self.steps:
                unmet[rows.unlabeled[rows.sources == k]] = False
            left = unmet.nonzero().squeeze(1)
            picked = torch.linspace(0, len(left) - 1, min(most, len(left))).long()
            parts.append(images[left[picked].to(self.device)])
        return torch.cat(parts)

    def whole_pool(self) -> Tensor:
        """All unlabelled images that there are, for a reference trained before the first step."""
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
