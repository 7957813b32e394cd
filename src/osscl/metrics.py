"""Measures of a run, as pure functions; None means undefined."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import torch
from torch import Tensor

AccuracyMatrix = Sequence[Sequence[float]]  # [t][k]: % on step k's classes after learning step t, k <= t


def sample_std(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None with fewer than two values."""
    return stdev(values) if len(values) > 1 else None


def average_of_steps(overall: Sequence[float]) -> float | None:
    """Mean over t of the overall accuracy after step t."""
    return fmean(overall) if len(overall) > 1 else None


def drops(matrix: AccuracyMatrix) -> list[float]:
    """For each old step k: its best accuracy before the last step minus its accuracy after it."""
    last = len(matrix) - 1
    return [max(matrix[t][k] for t in range(k, last)) - matrix[last][k] for k in range(last)]


def forgetting(matrix: AccuracyMatrix) -> float | None:
    """Mean of the drops."""
    return fmean(lost) if (lost := drops(matrix)) else None


def backward_transfer(matrix: AccuracyMatrix) -> float | None:
    """Mean over the old steps k of the accuracy after the last step minus the one right after learning k."""
    last = len(matrix) - 1
    gains = [matrix[last][k] - matrix[k][k] for k in range(last)]
    return fmean(gains) if gains else None


def auroc(scores: Tensor, positive: Tensor) -> float | None:
    """Probability that a positive row scores above a negative one, ties counting half; (m,) scores and (m,) bool."""
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if pairs == 0 or bool(scores.isnan().any()):
        return None
    _, value, count = torch.unique(scores, return_inverse=True, return_counts=True)
    below = count.cumsum(0) - count
    # Twice the rank, so that half ranks of ties are integers and the sum is exact.
    twice_rank = (2 * below + count + 1)[value]
    twice_wins = int(twice_rank[positive].sum()) - positives * (positives + 1)
    return twice_wins / (2 * pairs)


def fpr_at_recall(scores: Tensor, positive: Tensor, recall: float = 0.95) -> float | None:
    """Share of negative rows at or above the highest threshold that keeps `recall` of the positive rows."""
    kept, rejected = scores[positive], scores[~positive]
    if len(kept) == 0 or len(rejected) == 0 or bool(scores.isnan().any()):
        return None
    needed = max(1, math.ceil(recall * len(kept) - 1e-9))  # 0.07 * 100 is slightly more than 7
    threshold = kept.sort(descending=True).values[needed - 1]
    return int((rejected >= threshold).sum()) / len(rejected)


def share(mask: Tensor, of: Tensor) -> float | None:
    """Share of the rows in `of` for which `mask` holds, both (m,) bool: precision is share(related, passed)."""
    total = int(of.sum())
    return int((mask & of).sum()) / total if total else None


def confusion(truth: Tensor, predicted: Tensor, k: int) -> Tensor:
    """Counts (k, k) int64: [i][j] rows of class i were predicted as j; truth and predicted are (m,) int64 below k."""
    return torch.bincount(truth * k + predicted, minlength=k * k).reshape(k, k)
