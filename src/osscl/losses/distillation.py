"""Distillation: what a student keeps of the relations its teacher sees between the rows of a batch (Eqs. 4-6)."""

import torch.nn.functional as F
from torch import Tensor

from osscl.losses.contrastive import similarity_logits


def relation_distillation(
    student: Tensor,  # (m, d) unit rows
    teacher: Tensor,  # (m, d') unit rows of the same views
    tau_student: float,
    tau_teacher: float,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Eqs. 5 and 6: cross-entropy of each row's softmax over the other rows (Eq. 4), the teacher's as the target."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction must be 'mean' or 'sum', got {reduction!r}")
    target = similarity_logits(teacher.detach(), tau_teacher).softmax(dim=1)
    # Deviation: Eqs. 5 and 6 sum over rows; the default averages, so the weights keep their meaning in a small batch.
    return F.cross_entropy(similarity_logits(student, tau_student), target, reduction=reduction)
