"""An agent's predictions compared with known classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osscl.errors import DataError
from osscl.metrics import auroc
from osscl.runs.model import Prediction


@dataclass(frozen=True)
class Evaluation:
    """Predictions beside the true classes."""

    prediction: Prediction
    labels: tuple[str, ...]
    learned: Tensor  # (n,) bool: the true class was learned
    right: Tensor  # (n,) bool

    @property
    def accuracy(self) -> float | None:
        """Share of correct predictions among images of learned classes; None without such images."""
        return float(self.right[self.learned].float().mean()) if bool(self.learned.any()) else None

    @property
    def auroc(self) -> float | None:
        """AUROC of the score, learned classes against others; None without scores or with one kind only."""
        return None if self.prediction.scores is None else auroc(self.prediction.scores, self.learned)


def compare_with_truth(prediction: Prediction, labels: tuple[str, ...], class_names: Sequence[str]) -> Evaluation:
    """Evaluate the predictions of an agent that has learned `class_names`."""
    if len(labels) != len(prediction.names):
        raise DataError(f"expected one label per image, got {len(labels)} labels for {len(prediction.names)} images")
    learned = torch.tensor([label in class_names for label in labels], dtype=torch.bool)
    pairs = zip(labels, prediction.names, strict=True)
    right = torch.tensor([label == name for label, name in pairs], dtype=torch.bool)
    return Evaluation(prediction, labels, learned, right)
