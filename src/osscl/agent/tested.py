"""What an agent says of images whose classes somebody knows."""

from dataclasses import dataclass

from torch import Tensor

from osscl.experiments.saved import Prediction
from osscl.metrics import auroc


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
