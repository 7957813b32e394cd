"""Groups of embeddings that may be kinds to come; how many is found from the data where nobody says."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from osscl.learn.embedded import Head, split_layers

Matrix = np.ndarray[tuple[int, int], np.dtype[np.float64]]
FEWEST = 6  # rows below which there is one group
MOST_GROUPS = 40  # that are looked for where nobody says how many
MOST_ROWS = 2000  # that are held against each other; the others join the nearest group
DIRECTIONS = 64  # principal directions that are compared
SHRINKAGE = 0.5  # of the within-class covariance that measures distances
ROUNDS = 10  # of k-means after the tree


def comparable(head: Head, rows: Tensor, layers: Sequence[int]) -> Tensor:
    """Rows (n, sum of widths) where what varies within the classes met counts little: (n, sum of chosen widths)."""
    x, parts = split_layers(rows, head.sums.widths), []
    for layer in layers:
        spread = head.spreads[layer]
        parts.append((x[layer] @ spread.vectors) * spread.weights(SHRINKAGE).sqrt())
    return torch.cat(parts, 1).float()


def group(rows: Tensor, groups: int | None = None) -> Tensor:
    """The group of each row (n, d), (n,) from 0, the largest first; as many as told, or as suit the rows best.

    Ward's tree on at most MOST_ROWS rows, refined by k-means; the number is that of the best mean silhouette. Every
    other row joins the nearest group, so time and memory are linear in n. The same rows always give the same groups.
    """
    n = len(rows)
    if n < 2 or groups == 1 or (groups is None and n < FEWEST):
        return torch.zeros(n, dtype=torch.long)
    from scipy.cluster.hierarchy import linkage

    picked = torch.linspace(0, n - 1, min(n, MOST_ROWS), dtype=torch.float64).long()
    directions = _Directions.of(rows[picked])
    sample = directions.place(rows[picked])
    tree = linkage(sample.numpy(), "ward")
    numbers = [min(groups, n)] if groups is not None else range(2, min(MOST_GROUPS, len(sample) // 2) + 1)
    centres = _best([_refined(sample, _cut(tree, k)) for k in numbers], sample)
    labels = torch.cat([torch.cdist(directions.place(part), centres).argmin(1) for part in rows.split(4096)])
    return _largest_first(labels)


@dataclass(frozen=True)
class _Directions:
    """The principal directions of some rows."""

    middle: Tensor  # (d,)
    vectors: Tensor  # (d, DIRECTIONS or fewer)

    @classmethod
    def of(cls, rows: Tensor) -> "_Directions":
        x = rows.double()
        _, _, vectors = torch.linalg.svd(x - x.mean(0), full_matrices=False)
        return cls(x.mean(0), vectors[:DIRECTIONS].T)

    def place(self, rows: Tensor) -> Tensor:
        """Rows (n, d) in these directions."""
        return (rows.double() - self.middle) @ self.vectors


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
    """The centres with the best mean silhouette of the rows that are nearest to each."""
    if len(found) == 1:
        return found[0]
    between = torch.cdist(sample, sample)
    return max(found, key=lambda centres: silhouette(between, torch.cdist(sample, centres).argmin(1)))


def silhouette(between: Tensor, labels: Tensor) -> float:
    """Mean silhouette (Rousseeuw, 1987) by distances (n, n); -1 where all rows are in one group, 0 for a row alone."""
    present, labels = labels.unique(return_inverse=True)
    if len(present) < 2:
        return -1.0
    each = torch.nn.functional.one_hot(labels).to(between.dtype)
    sizes = each.sum(0)
    sums = between @ each
    own = sums.gather(1, labels[:, None]).squeeze(1) / (sizes[labels] - 1).clamp(min=1)
    other = (sums / sizes).scatter(1, labels[:, None], torch.inf).min(1).values
    value = (other - own) / torch.maximum(own, other).clamp(min=1e-12)
    return float(value.masked_fill(sizes[labels] == 1, 0).mean())


def _largest_first(labels: Tensor) -> Tensor:
    present, labels = labels.unique(return_inverse=True)
    order = labels.bincount(minlength=len(present)).argsort(descending=True, stable=True)
    return order.argsort()[labels]
