"""The exemplar memory M: labelled images of past classes, equally many per class."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from osscl.config import require_declared
from osscl.data.images import Labeled, concat

Policy = Literal["random", "low", "high", "rainbow", "first"]


@dataclass(frozen=True)
class MemoryConfig:
    """Which images of a class are kept (the paper's table of selection algorithms)."""

    policy: Literal["random", "low", "high", "rainbow"] = "random"  # the others rank by cosine to the prototype

    def __post_init__(self) -> None:
        require_declared(self)


def quotas(budget: int, classes: int) -> list[int]:
    """Images per class, in the order in which classes were seen: equal shares, the remainder to the newest."""
    share, rest = divmod(budget, classes)
    return [share + (i >= classes - rest) for i in range(classes)]


def choose(policy: Policy, k: int, n: int, confidence: Tensor | None, rng: Generator) -> Tensor:
    """Select `k` of a class's `n` images, (min(k, n),)."""
    if k >= n or policy == "first":  # "first": the caller has sorted the rows by preference
        return torch.arange(min(k, n))
    if policy == "random":
        return torch.randperm(n, generator=rng)[:k].sort().values
    assert confidence is not None
    ranked = confidence.argsort(stable=True).cpu()  # least confident first
    if policy == "low":
        return ranked[:k]
    if policy == "high":
        return ranked[n - k :]
    # Rainbow: ranks evenly spaced from the least to the most confident. Deviation: Rainbow Memory's code takes every
    # (n // k)-th, which is the k least confident ones whenever more than half of a class stays.
    return ranked[torch.linspace(0, n - 1, k).round().long()] if k != 1 else ranked[n // 2 :][:1]


class Memory:
    """At most `budget` labelled images of the classes seen so far."""

    def __init__(self, budget: int, empty: Labeled) -> None:
        self.budget, self.labeled = budget, empty

    def add(self, further: Labeled | None) -> None:
        """Add images of classes already stored, over budget until the next `update`."""
        if further is not None:
            self.labeled = concat(self.labeled, further)

    def update(
        self,
        new: Labeled,
        classes: Sequence[int],
        rng: Generator,
        policy: Policy = "random",
        confidence: Callable[[Labeled], Tensor] | None = None,
    ) -> None:
        """Shrink the old classes and add the new ones (Algorithm 1, line 16); images once dropped cannot return."""
        everything = concat(self.labeled, new)
        kept = []
        for c, k in zip(classes, quotas(self.budget, len(classes)), strict=True):
            rows = (everything.labels == c).nonzero().squeeze(1)
            ranks = confidence is not None and policy != "random" and len(rows) > k
            sure = confidence(everything.rows(rows)) if confidence is not None and ranks else None
            kept.append(rows[choose(policy, k, len(rows), sure, rng).to(rows.device)])
        self.labeled = everything.rows(torch.cat(kept)) if kept else everything

    def forget(self, c: int) -> None:
        """Delete the images of class c; the ids of later classes move down."""
        kept = self.labeled.rows((self.labeled.labels != c).nonzero().squeeze(1))
        self.labeled = Labeled(kept.images, kept.labels - (kept.labels > c).long())

    def state(self) -> dict[str, Tensor]:
        return {"images": self.labeled.images, "labels": self.labeled.labels}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Load stored images, to the device of this memory."""
        self.labeled = Labeled(**state).to(self.labeled.images.device)

    def without(self, classes: Sequence[int]) -> Labeled:
        """Stored images of classes other than these."""
        others = ~torch.isin(self.labeled.labels, self.labeled.labels.new_tensor(classes))
        return self.labeled.rows(others.nonzero().squeeze(1))


def herded(features: Tensor, k: int) -> Tensor:
    """iCaRL's herding: k of the rows (n, d), chosen so that their running mean stays closest to the mean of all."""
    mean, total = features.mean(0), torch.zeros_like(features[0])
    free, order = torch.ones(len(features), dtype=torch.bool, device=features.device), []
    for chosen in range(min(k, len(features))):
        gaps = (mean - (total + features) / (chosen + 1)).norm(dim=1)
        order.append(gaps.masked_fill(~free, torch.inf).argmin())
        free[order[-1]] = False
        total = total + features[order[-1]]
    return torch.stack(order) if order else torch.empty(0, dtype=torch.long, device=features.device)
