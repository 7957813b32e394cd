"""Losses that learn from unlabeled rows without comparing them with each other."""

import torch.nn.functional as F
from torch import Tensor


def byol_regression(prediction: Tensor, target: Tensor) -> Tensor:
    """BYOL: mean of 2 - 2 cos over the rows of two (m, d) tensors; the target gets no gradient."""
    return 2 - 2 * F.cosine_similarity(prediction.float(), target.detach().float(), dim=1).mean()
