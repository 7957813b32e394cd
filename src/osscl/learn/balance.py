"""Classes of unequal size: weights that make them count the same, and an even split of each."""

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.learn.optimiser import OptimiserConfig

# How a head alone is trained on, after its network.
BALANCING = OptimiserConfig("sgd", 0.01, decay=5e-4, nesterov=False, milestones=(0.5, 0.75))


def class_weights(columns: Tensor, k: int, *, smoothing: float = 0.0, most: float | None = None) -> Tensor:
    """n / (n_c k) for each of `k` classes, (k,): 1 where all are equal; `smoothing` is added to every count."""
    counts = torch.bincount(columns, minlength=k).float() + smoothing
    weights = counts.sum() / (counts.clamp(min=1) * k)
    return weights if most is None else weights.clamp(max=most)


def class_sums(rows: Tensor, columns: Tensor, k: int) -> Tensor:
    """Sum of the rows of each class, (k, d)."""
    return F.one_hot(columns, k).T.to(rows.dtype) @ rows  # index_add_ would not be reproducible on a GPU


def rank_in_class(columns: Tensor, k: int) -> Tensor:
    """0, 1, 2, ... along the rows of each class, (n,)."""
    return (F.one_hot(columns, k).cumsum(0) - 1).gather(1, columns[:, None]).squeeze(1)
