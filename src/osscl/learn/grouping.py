"""Group embeddings of unknown images; the number of groups is found from the data unless it is given."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from osscl.learn.embedded import EmbeddingHead, split_layers

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
FEWEST = 6  # fewer rows are one group
MOST_GROUPS = 40  # that are tried, unless the number is given
MOST_ROWS = 2000  # compared with each other; the others join the nearest group
MOST_TURNED = 512  # rows that principal directions are found from
DIRECTIONS = 24  # principal directions that are compared
PENALTY = 1.5  # factor of the criterion's penalty on further groups; 1 is the usual one
ENOUGH = 500  # rows that count in the choice of a number: cutting a round group in two gains a share of all rows
LAYERS = 2  # first layers of the embedding, which are compared unless others are given
SHRINKAGE = 0.9  # of the within-class covariance that measures distances
ROUNDS = 10  # of k-means after the tree


def comparable(head: EmbeddingHead, rows: Tensor) -> Tensor:
    """Rows (n, sum of widths) whitened by the within-class covariance: (n, sum of the first widths)."""
    x, parts = split_layers(rows, head.sums.widths), []
    for layer in range(min(LAYERS, len(x))):
        spread = head.sums.spread(layer)
        parts.append((x[layer] @ spread.vectors) * spread.weights(SHRINKAGE).sqrt())
    return torch.cat(parts, 1).float()


def group(rows: Tensor, groups: int | None = None) -> Tensor:
    """The group of each row (n, d), (n,) from 0, the largest first; as many as given, or as fit the rows best.

    Ward's tree on at most MOST_ROWS rows, refined by k-means; the number is that of the best `criterion`. Every
    other row joins the nearest group, so time and memory are linear in n. The same rows always give the same groups.
    """
    found = find_groups(rows[sample_of(len(rows))], groups)
    labels = [found.assign(part) for part in rows.split(4096)] if len(rows) else [torch.zeros(0, dtype=torch.long)]
    return largest_first(torch.cat(labels))


def sample_of(n: int) -> Tensor:
    """Rows that groups are found from: all, or MOST_ROWS of them, evenly spaced."""
    return evenly(n, MOST_ROWS)


def find_groups(rows: Tensor, groups: int | None = None) -> "Groups":
    """Groups of a sample of rows (n, d), to which others can be assigned."""
    n = len(rows)
    if n < 2 or groups == 1 or (groups is None and n < FEWEST):
        return Groups(None, torch.zeros(1, 0, dtype=torch.float64))
    from scipy.cluster.hierarchy import linkage

    directions = _Directions.of(rows)
    sample = directions.place(rows)
    tree = linkage(sample.numpy(), "ward")
    numbers = [min(groups, n)] if groups is not None else range(1, min(MOST_GROUPS, len(sample) // 2) + 1)
    return Groups(directions, _best([_refined(sample, _cut(tree, k)) for k in numbers], sample))


@dataclass(frozen=True)
class Groups:
    """Centres of groups in some directions; None for a single group."""

    directions: "_Directions | None"
    centres: Tensor  # (k, directions)

    def assign(self, rows: Tensor) -> Tensor:
        """The nearest group of each row (n, d), (n,)."""
        if self.directions is None:
            return torch.zeros(len(rows), dtype=torch.long)
        return torch.cdist(self.directions.place(rows), self.centres).argmin(1)


@dataclass(frozen=True)
class _Directions:
    """The principal directions of some rows."""

    middle: Tensor  # (d,)
    vectors: Tensor  # (d, DIRECTIONS or fewer)

    @classmethod
    def of(cls, rows: Tensor) -> "_Directions":
        x = rows[evenly(len(rows), MOST_TURNED)].double()
        off = x - x.mean(0)
        values, turned = torch.linalg.eigh(off @ off.T)  # small however wide rows are, unlike their own decomposition
        values, turned = values[-DIRECTIONS:].flip(0), turned[:, -DIRECTIONS:].flip(1)
        return cls(x.mean(0), off.T @ (turned / values.clamp(min=max(1e-12 * float(values[0]), 1e-300)).sqrt()))

    def place(self, rows: Tensor) -> Tensor:
        """Rows (n, d) in these directions."""
        return (rows.double() - self.middle) @ self.vectors


def evenly(n: int, most: int) -> Tensor:
    """At most `most` of n row numbers, evenly spaced."""
    return torch.linspace(0, n - 1, min(n, most), dtype=torch.float64).long()


def _cut(tree: Matrix, groups: int) -> Tensor:
    from scipy.cluster.hierarchy import fcluster

    return torch.from_numpy(fcluster(tree, groups, "maxclust").astype(np.int64) - 1)


def _refined(sample: Tensor, labels: Tensor) -> Tensor:
    """Centres (k, d) after some rounds of k-means from the groups of a tree."""
    centres = _centres(sample, labels)
    for _ in range(ROUNDS):
        labels = torch.cdist(sample, centres).argmin(1)
        centres = _centres(sample, labels)
    return centres


def _centres(sample: Tensor, labels: Tensor) -> Tensor:
    return torch.stack([sample[labels == i].mean(0) for i in labels.unique()])


def _best(found: Sequence[Tensor], sample: Tensor) -> Tensor:
    """The centres with the lowest criterion."""
    return found[0] if len(found) == 1 else min(found, key=lambda centres: criterion(sample, centres))


def criterion(sample: Tensor, centres: Tensor) -> float:
    """Bayesian information criterion of equal round Gaussians with a higher penalty; lower is better.

    Deviation: the penalty is half as high again since classes are not spherical, and the plain criterion splits them.
    """
    n, d = min(len(sample), ENOUGH), sample.shape[1]
    inside = float(torch.cdist(sample, centres).min(1).values.square().mean()) / max(d, 1)
    total = float(sample.var(0, correction=0).mean())
    level = max(inside, 1e-6 * total, 1e-12)  # identical rows do not justify more groups
    return n * d * math.log(level) + PENALTY * len(centres) * (d + 1) * math.log(n)


def largest_first(labels: Tensor) -> Tensor:
    present, labels = labels.unique(return_inverse=True)
    order = labels.bincount(minlength=len(present)).argsort(descending=True, stable=True)
    return order.argsort()[labels]
