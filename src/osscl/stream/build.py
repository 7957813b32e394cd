"""A stream: what the agent sees at each step, what only the evaluation may know, and how a seed determines both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from osscl.data.images import ImageBank, Labeled
from osscl.errors import DataError, SpecError
from osscl.seeding import seeded
from osscl.stream.scenario import PARTIAL, ScenarioSpec, split_classes, unlabeled_classes


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
    unlabeled: Tensor  # (m,) row in that bank
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


def build_stream(spec: ScenarioSpec, banks: Mapping[str, ImageBank], seed: int, row_cap: int | None = None) -> Stream:
    """Draw class order, labelled rows, held-out rows and every U_t; `row_cap` limits |U_t| and the held-out rows."""
    main = banks[spec.main]
    _check(spec, banks)
    labels = main.train.labels.cpu()
    order = class_order(spec, len(main.class_names), seed)
    tasks = split_classes(order, spec.classes_per_step or ())
    labeled, held_out, pool = split_rows(spec, labels, order, seed)
    steps = []
    for t, task in enumerate(tasks):
        sources, rows, asked = draw_unlabeled(spec, banks, tasks, pool, t, seed)
        steps.append(StepRows(task, torch.cat([labeled[c] for c in task]), sources, rows, asked))
    if not spec.validation_share:
        held_out = torch.arange(len(main.test))[torch.isin(main.test.labels.cpu(), torch.tensor(order))]
    stream = Stream(spec, seed, banks, tuple(steps), held_out, spec.validation_share > 0, pool)
    if not stream.all_evaluated:
        raise SpecError(
            f"{spec.main} has no held-out rows for some step, so accuracy cannot be measured: raise validation_share"
        )
    return capped(stream, row_cap)


def class_order(spec: ScenarioSpec, classes: int, seed: int) -> list[int]:
    """The classes of a stream in the order in which they are learned."""
    if spec.class_order == "natural":
        return list(range(spec.classes))
    return torch.randperm(classes, generator=seeded(seed, "order"))[: spec.classes].tolist()


def capped(stream: Stream, row_cap: int | None) -> Stream:
    """The stream with at most `row_cap` rows in each U_t and among the held-out rows."""
    if row_cap is None:
        return stream
    steps = tuple(
        replace(rows, sources=rows.sources[:row_cap], unlabeled=rows.unlabeled[:row_cap]) for rows in stream.steps
    )
    order = torch.randperm(len(stream.held_out), generator=seeded(stream.seed, "cap"))
    fewer = replace(stream, steps=steps, held_out=stream.held_out[order[:row_cap]].sort().values)
    if not all(len(fewer.evaluation(t)) for t in range(len(fewer))):
        raise SpecError(f"row_cap={row_cap} leaves a step without held-out rows to measure accuracy on: raise it")
    return fewer


def split_rows(
    spec: ScenarioSpec, labels: Tensor, classes: Sequence[int], seed: int
) -> tuple[dict[int, Tensor], Tensor, Tensor]:
    """Labelled rows by class, validation rows and the pool of related unlabelled rows, all disjoint."""
    labeled, validation, pool = {}, [], []
    ranks = torch.randperm(len(classes), generator=seeded(seed, "imbalance")) / max(1, len(classes) - 1)
    for c, rank in zip(sorted(classes), ranks.tolist(), strict=True):
        rows = (labels == c).nonzero().squeeze(1)
        exist = max(1, round(len(rows) * spec.imbalance**-rank))  # an exponential tail in random class order
        rows = rows[torch.randperm(len(rows), generator=seeded(seed, "split", c))][:exist]
        n_validation = round(spec.validation_share * len(rows))
        if spec.labeled_fraction is not None:
            n_labeled = max(1, round(spec.labeled_fraction * len(rows)))
        else:
            n_labeled = spec.labels_per_class or 0
        if spec.labeled_fraction == 1:
            n_labeled -= n_validation
        if n_labeled < 1 or n_labeled + n_validation > len(rows):
            field = "labels_per_class" if spec.labeled_fraction is None else "labeled_fraction"
            raise SpecError(
                f"{field}: class {c} has {len(rows)} training images, {n_validation} of them held out; "
                f"labels must be 1 to {len(rows) - n_validation} of them, got {n_labeled}"
            )
        # Labelled rows first and validation rows last, so that holding rows out does not change the labels.
        end = len(rows) - n_validation
        labeled[c] = rows[:n_labeled]
        pool.append(rows[n_labeled:end])
        validation.append(rows[end:])
    return labeled, torch.cat(validation).sort().values, torch.cat(pool).sort().values


def draw_unlabeled(
    spec: ScenarioSpec, banks: Mapping[str, ImageBank], tasks: list[tuple[int, ...]], pool: Tensor, t: int, seed: int
) -> tuple[Tensor, Tensor, int]:
    """Draw U_t without replacement and independently of other steps; all sources are shuffled together."""
    labels = banks[spec.main].train.labels.cpu()
    allowed = unlabeled_classes(spec, tasks, t, seeded(seed, "world", t))
    candidates = pool[torch.isin(labels[pool], torch.tensor(allowed, dtype=torch.long))]
    related, unrelated = spec.related or 0, spec.unrelated or 0
    if related > len(candidates) and spec.regime not in PARTIAL:
        raise SpecError(
            f"related must be at most the {len(candidates)} unlabelled rows available at step {t + 1}, got {related}"
        )
    rows = [candidates[torch.randperm(len(candidates), generator=seeded(seed, "related", t))[:related]]]
    for name in spec.peripheral if unrelated else ():
        n = len(banks[name].train)
        if unrelated > n:
            raise SpecError(f"unrelated must be at most the {n} rows of {name}, got {unrelated}")
        rows.append(torch.randperm(n, generator=seeded(seed, "unrelated", name, t))[:unrelated])
    sources = torch.cat([torch.full((len(part),), k) for k, part in enumerate(rows)])
    mixed = torch.randperm(len(sources), generator=seeded(seed, "mix", t))
    return sources[mixed], torch.cat(rows)[mixed], related + unrelated * len(spec.peripheral)


def _check(spec: ScenarioSpec, banks: Mapping[str, ImageBank]) -> None:
    main = banks[spec.main]
    if spec.classes > len(main.class_names):
        raise SpecError(f"classes_per_step must add up to at most {len(main.class_names)} classes, got {spec.classes}")
    for name in spec.peripheral:
        if banks[name].train.images.shape[1:] != main.train.images.shape[1:]:
            shapes = [tuple(banks[n].train.images.shape[1:]) for n in (spec.main, name)]
            raise DataError(f"the images of {spec.main} and {name} differ in shape: {shapes[0]} and {shapes[1]}")
