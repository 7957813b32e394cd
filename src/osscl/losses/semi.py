"""Losses that learn from unlabelled rows without comparing them with each other."""

import math

import torch.nn.functional as F
from torch import Tensor


def byol_regression(prediction: Tensor, target: Tensor) -> Tensor:
    """BYOL: mean of 2 - 2 cos over the rows of two (m, d) tensors; the target gets no gradient."""
    return 2 - 2 * F.cosine_similarity(prediction.float(), target.detach().float(), dim=1).mean()


def fixmatch(weak: Tensor, strong: Tensor, threshold: float) -> Tensor:
    """FixMatch: the strong view's cross-entropy (m, k) against the weak view's class, where that is sure enough.

    The sum is divided by all m rows: the fewer are sure, the less they weigh.
    """
    sure, label = weak.detach().softmax(1).max(1)
    return (F.cross_entropy(strong, label, reduction="none") * (sure >= threshold)).mean()


def distance_from_even(logits: Tensor) -> Tensor:
    """KL(uniform || p) of each row's softmax (m, k), (m,): high where a network is sure; confidence calibration."""
    return -logits.log_softmax(1).mean(1) - math.log(logits.shape[1])
