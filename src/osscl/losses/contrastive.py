"""Contrastive losses over L2-normalised rows: SimCLR (Eq. 1) and the asymmetric supervised loss (Eq. 3)."""

import torch
import torch.nn.functional as F
from torch import Tensor

MASKED_LOGIT = -1e9  # finite stand-in for -inf: 0 * MASKED_LOGIT is 0, 0 * -inf is nan


def similarity_logits(z: Tensor, tau: float) -> Tensor:
    """Pairwise z_i . z_j / tau, (m, m) float32; the diagonal is excluded."""
    with torch.autocast(z.device.type, enabled=False):  # a small tau magnifies half-precision rounding
        z = z.float()
        return (z @ z.T / tau).fill_diagonal_(MASKED_LOGIT)


def nt_xent(z: Tensor, tau: float) -> Tensor:
    """SimCLR, Eq. 1. z is (2n, d), L2-normalised; rows i and i+n are two views of one image."""
    partner = torch.arange(len(z), device=z.device).roll(len(z) // 2)
    return F.cross_entropy(similarity_logits(z, tau), partner)


def asymmetric_supcon(
    z: Tensor,  # (m, d), L2-normalised
    labels: Tensor,  # (m,)
    anchors: Tensor,  # (m,) bool, label in O_t: rows of the outer sum; the other rows are their negatives or positives
    tau: float,
    *,
    base_temperature: float | None = None,
) -> Tensor:
    """Eq. 3, averaged over all m rows; base_temperature b scales the loss by tau / b.

    Deviation: Eq. 3 sums over the N images of a batch. Here both views of each are rows, m = 2N, as in Co2L's code.
    """
    log_p = similarity_logits(z, tau).log_softmax(dim=1)
    positives = (labels[:, None] == labels).fill_diagonal_(False)
    matched = torch.where(positives, log_p, 0.0).sum(1)
    # A row without a partner costs 0, not 0 / 0.
    loss = (-matched / positives.sum(1).clamp(min=1) * anchors).mean()
    return loss if base_temperature is None else loss * (tau / base_temperature)
