"""Distillation of batch relations (Eqs. 4-6) and of logits; BYOL, FixMatch, confidence calibration."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.losses.contrastive import similarity_logits


def relation_distillation(
    student: Tensor,  # (m, d), L2-normalised
    teacher: Tensor,  # (m, d'), L2-normalised: the same views
    tau_student: float,
    tau_teacher: float,
) -> Tensor:
    """Eqs. 5 and 6: cross-entropy of each row's softmax over the other rows (Eq. 4); the teacher's is the target."""
    target = similarity_logits(teacher.detach(), tau_teacher).softmax(dim=1)
    # Deviation: Eqs. 5 and 6 are sums over rows. Averaging makes gamma and lambda independent of the batch size.
    return F.cross_entropy(similarity_logits(student, tau_student), target)


def logit_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of each row's softmax at a temperature, (m,), for logits (m, k) of the same classes."""
    target = (teacher.detach() / temperature).softmax(1)
    return F.kl_div((student / temperature).log_softmax(1), target, reduction="none").sum(1)


def sigmoid_distillation(logits: Tensor, old: Tensor, labels: Tensor) -> Tensor:
    """iCaRL: mean binary cross-entropy of (m, k) logits; the old network's sigmoids are the targets of its columns."""
    targets = F.one_hot(labels, logits.shape[1]).to(logits.dtype)
    targets = targets.index_copy(1, _columns(old), old.detach().sigmoid())
    return F.binary_cross_entropy_with_logits(logits, targets)


def _columns(logits: Tensor) -> Tensor:
    return torch.arange(logits.shape[1], device=logits.device)


def byol_regression(prediction: Tensor, target: Tensor) -> Tensor:
    """BYOL: mean of 2 - 2 cos over the rows of two (m, d) tensors; the target gets no gradient."""
    return 2 - 2 * F.cosine_similarity(prediction.float(), target.detach().float(), dim=1).mean()


def fixmatch(weak: Tensor, strong: Tensor, threshold: float) -> Tensor:
    """FixMatch: cross-entropy of the strong view (m, k) with the weak view's class, where that is confident.

    The sum is divided by all m rows: the fewer are confident, the less they weigh.
    """
    sure, label = weak.detach().softmax(1).max(1)
    return (F.cross_entropy(strong, label, reduction="none") * (sure >= threshold)).mean()


def distance_from_even(logits: Tensor) -> Tensor:
    """KL(uniform || p) of each row's softmax (m, k), (m,): high where a network is confident."""
    return -logits.log_softmax(1).mean(1) - math.log(logits.shape[1])
