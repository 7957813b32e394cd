"""What an agent says of images whose classes somebody knows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osscl.errors import DataError
from osscl.metrics import auroc
from osscl.runs.model import Prediction


@dataclass(frozen=True)
class Tested:
    """Predictions beside the truth."""

    found: Prediction
    labels: tuple[str, ...]
    learned: Tensor  # (n,) bool: of a class that was learned
    right: Tensor  # (n,) bool

    @property
    def accuracy(self) -> float | None:
        """Share that is right, of images of classes that were learned."""
        return float(self.right[self.learned].float().mean()) if bool(self.learned.any()) else None

    @property
    def auroc(self) -> float | None:
        """Of the score, classes learned against others; None where nothing tells, or there is one kind alone."""
        return None if self.found.scores is None else auroc(self.found.scores, self.learned)


def held_against(found: Prediction, labels: tuple[str, ...], class_names: Sequence[str]) -> Tested:
    """Predictions of an agent that has learned these classes, and what somebody knows of the same images."""
    if len(labels) != len(found.names):
        raise DataError(f"a label for each image is wanted, got {len(labels)} for {len(found.names)}")
    learned = torch.tensor([label in class_names for label in labels], dtype=torch.bool)
    right = torch.tensor([label == told for label, told in zip(labels, found.names, strict=True)], dtype=torch.bool)
    return Tested(found, labels, learned, right)
