"""What an agent knows about embeddings: sums per class and over the pile, a head, and a threshold.

Everything is immutable: a step, or a renamed, merged or removed class, makes a new `Knowledge`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from osscl.agent.examples import MakeExamples, no_examples, pack_examples, unpack_examples
from osscl.errors import DataError
from osscl.learn.embedded import (
    ClassSums,
    EmbeddingHead,
    Trials,
    fit_embedding_head,
    leave_out,
    summarise,
    weigh_candidates,
)
from osscl.learn.unknown import Calibration, PileSums, Unknown, fit_unknown, unknown_from

RULE = 2  # version of what stored numbers mean; raised when the same file would give other answers
Memory = tuple[Tensor, tuple[str, ...], tuple[bytes, ...]]  # labelled rows, their classes and example pictures


@dataclass(frozen=True)
class Knowledge:
    """Everything learned from embeddings of one encoder."""

    sums: ClassSums
    world: PileSums
    trials: Trials
    calibration: Calibration
    kept: Tensor  # (m, width) float32 labelled rows in memory
    kept_labels: tuple[str, ...]
    kept_examples: tuple[bytes, ...]  # a small JPEG of each, empty where there is none

    @property
    def classes(self) -> tuple[str, ...]:
        return self.sums.names

    @cached_property
    def head(self) -> EmbeddingHead:
        voices = weigh_candidates(self.trials, self.sums)
        return EmbeddingHead(self.sums, voices, self.trials)

    @cached_property
    def unknown(self) -> Unknown:
        return unknown_from(self.head, self.world, self.calibration)

    @property
    def remembers_all(self) -> bool:
        """Whether every labelled row is in memory, so that all can be judged again."""
        return len(self.kept) == round(float(self.sums.counts.sum()))

    def renamed(self, old: str, new: str) -> "Knowledge":
        """The same with a class renamed; answers change only in its name."""
        labels = tuple(new if name == old else name for name in self.kept_labels)
        scores = self.calibration.renamed(old, new)
        return replace(self, sums=self.sums.renamed(old, new), calibration=scores, kept_labels=labels)

    def merged(self, gone: str, into: str) -> "Knowledge":
        """The same, as if all rows of `gone` had been labelled `into`."""
        scores = self.calibration.renamed(gone, into)
        return self._edited(self.sums.merged(gone, into), scores, lambda name: into if name == gone else name)

    def removed(self, gone: str) -> "Knowledge":
        """The same without a class's sums, rows and calibration scores; sums are exact for rows that are in memory."""
        scores = self.calibration.without(gone)
        return self._edited(self._sums_without(gone), scores, lambda name: None if name == gone else name)

    def _sums_without(self, gone: str) -> ClassSums:
        if self.remembers_all:
            left = [i for i, label in enumerate(self.kept_labels) if label != gone]
            names = [name for name in self.classes if name != gone]
            targets = torch.tensor([names.index(self.kept_labels[i]) for i in left])
            return summarise(self.kept[left], targets, names, self.sums.widths)
        sums = self.sums
        for row in (kept for kept, label in self._memory() if label == gone):
            sums = sums.without_row(row, gone)
        return sums.without(gone) if gone in sums.names else sums

    def relabeled(self, row: Tensor, old: str, new: str | None) -> "Knowledge":
        """Take one labelled row (width,) out of a class, and into another one unless `new` is None."""
        sums = self.sums.without_row(row, old)
        if new is not None:
            added = summarise(row[None], torch.zeros(1, dtype=torch.long), [new], self.sums.widths)
            sums = sums.joined(added)
        same = [i for i, (kept, label) in enumerate(self._memory()) if label == old and torch.equal(row, kept)]
        labels = [new if i in same[:1] else label for i, label in enumerate(self.kept_labels)]
        left = [i for i, label in enumerate(labels) if label is not None]
        kept_labels = tuple(label for label in labels if label is not None)
        examples = tuple(self.kept_examples[i] for i in left)
        edited = replace(self, kept=self.kept[left], kept_labels=kept_labels, kept_examples=examples)
        scores = self.calibration if old in sums.names else self.calibration.without(old)
        return edited._edited(sums, scores, lambda name: name if name in sums.names else None)

    def _memory(self) -> Iterable[tuple[Tensor, str]]:
        return zip(self.kept, self.kept_labels, strict=True)

    def _edited(self, sums: ClassSums, calibration: Calibration, rename: Callable[[str], str | None]) -> "Knowledge":
        """The same with other sums and scores; rows in memory are renamed, and dropped if their name becomes None."""
        names = [rename(name) for name in self.kept_labels]
        left = [i for i, name in enumerate(names) if name is not None]
        kept, labels = self.kept[left], tuple(name for name in names if name is not None)
        memory = kept, labels, tuple(self.kept_examples[i] for i in left)
        edited = Knowledge(sums, self.world, self.trials, calibration, *memory)
        return _fitted(sums, self.world, kept, labels, memory) if edited.remembers_all else edited

    def state(self) -> dict[str, Any]:
        """As nested tensors and lists to store."""
        return {
            "rule": RULE,
            "names": list(self.sums.names),
            "sums": self.sums.state(),
            "world": self.world.state(),
            "trials": self.trials.state(),
            "calibration": {"names": list(self.calibration.names), **self.calibration.state()},
            "kept": self.kept,
            "kept_labels": list(self.kept_labels),
            "kept_examples": pack_examples(self.kept_examples),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Knowledge":
        """What `state` stored; numbers with another meaning are refused."""
        if state.get("rule") != RULE:
            raise DataError(
                "the agent was saved by a version of osscl that judges images by different rules: fit a new one"
            )
        scores = state["calibration"]
        return cls(
            ClassSums.from_state(state["names"], state["sums"]),
            PileSums.from_state(state["world"]),
            Trials.from_state(state["trials"]),
            Calibration(tuple(scores["names"]), scores["parts"], scores["owners"]),
            state["kept"],
            tuple(state["kept_labels"]),
            unpack_examples(state["kept_examples"], len(state["kept_labels"])),
        )


def learn_rows(
    before: Knowledge | None,
    rows: Tensor,
    labels: Sequence[str],
    pile: PileSums,
    widths: Sequence[int],
    memory: int,
    make_examples: MakeExamples = no_examples,
) -> Knowledge:
    """Learn labelled rows (n, width) and the sums of a pile; n may be 0 if there is knowledge from `before`.

    If all labelled rows are in memory, they are judged again with the new classes; else their stored results count.
    Example pictures are made only of new rows that stay in memory.
    """
    sums = before.sums if before is not None else None
    if labels:
        names = sorted(set(labels))
        targets = torch.tensor([names.index(label) for label in labels])
        more = summarise(rows, targets, names, widths)
        sums = more if sums is None else sums.joined(more)
    assert sums is not None
    world = pile if before is None else before.world.joined(pile)
    kept = rows if before is None else torch.cat((before.kept, rows))
    kept_labels = (*(() if before is None else before.kept_labels), *labels)
    in_memory = _balanced(kept_labels, memory)
    past: tuple[bytes, ...] = () if before is None else before.kept_examples
    new = make_examples([i - len(past) for i in in_memory if i >= len(past)])
    examples = (*(past[i] for i in in_memory if i < len(past)), *new)
    memorized = kept[in_memory], tuple(kept_labels[i] for i in in_memory), examples
    if before is None or before.remembers_all:
        return _fitted(sums, world, kept, kept_labels, memorized)
    if not len(rows):
        return Knowledge(sums, world, before.trials, before.calibration, *memorized)
    return _fitted(sums, world, rows, labels, memorized, before)


def _fitted(
    sums: ClassSums,
    world: PileSums,
    rows: Tensor,
    labels: Sequence[str],
    memory: Memory,
    before: Knowledge | None = None,
) -> Knowledge:
    """Weigh heads and calibrate on these rows, each left out, and on the results of earlier rows."""
    targets = torch.tensor([sums.names.index(label) for label in labels], dtype=torch.long)
    left = leave_out(sums, rows, targets)
    head = fit_embedding_head(sums, left, None if before is None else before.trials)
    unknown = fit_unknown(head, world, left, None if before is None else before.calibration)
    made = Knowledge(sums, world, head.trials, unknown.calibration, *memory)
    made.__dict__.update(head=head, unknown=unknown)  # computed already
    return made


def _balanced(labels: Sequence[str], memory: int) -> list[int]:
    """Rows to keep: spread over classes as evenly as possible, the earliest of each class."""
    if len(labels) <= memory:
        return [*range(len(labels))]
    seen: dict[str, int] = {}
    ranks = []
    for label in labels:
        ranks.append(seen.get(label, 0))
        seen[label] = ranks[-1] + 1
    order = sorted(range(len(labels)), key=lambda i: (ranks[i], i))
    return sorted(order[:memory])
