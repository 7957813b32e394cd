"""Heads and known/unknown decisions fitted to labelled rows, each left out in turn."""

from torch import Tensor

from osscl.learn.embedded import ClassSums, EmbeddingHead, Trials, fit_embedding_head, leave_out
from osscl.learn.unknown import Calibration, PileSums, Unknown, fit_unknown


def fitted_head(sums: ClassSums, rows: Tensor, targets: Tensor, before: Trials | None = None) -> EmbeddingHead:
    return fit_embedding_head(sums, leave_out(sums, rows, targets), before)


def fitted_unknown(
    head: EmbeddingHead, pile: PileSums, rows: Tensor, targets: Tensor, before: Calibration | None = None
) -> Unknown:
    return fit_unknown(head, pile, leave_out(head.sums, rows, targets), before)
