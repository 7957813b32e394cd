"""What records say about a cell or a claim, as a value. Does not import torch."""

from dataclasses import dataclass
from typing import Literal

# The first six are verdicts of a cell, the others of a claim.
VerdictKind = Literal[
    "reached", "short", "over", "few seeds", "not run", "not timed", "holds", "refuted", "undecided", "tried"
]
Mood = Literal["good", "bad", "open"]
MOODS: dict[VerdictKind, Mood] = {"reached": "good", "holds": "good", "short": "bad", "over": "bad", "refuted": "bad"}


@dataclass(frozen=True)
class Verdict:
    """What records say about a cell or a claim."""

    kind: VerdictKind
    distance: float | None = None  # how far the paper's mean is missed, in the cell's unit; None where it is not
    n: int | None = None  # seeds of a cell
    miss: Literal["short", "over"] = "short"  # what a distance means: accuracy is too low, minutes are too many
    compared: int | None = None  # comparisons of a claim that have pairs
    comparisons: int | None = None  # all comparisons of a claim

    @property
    def mood(self) -> Mood:
        """Whether it confirms the paper's number or claim, contradicts it, or leaves it open."""
        return MOODS.get(self.kind, "open")

    @property
    def is_partial(self) -> bool:
        """Whether an undecided claim has pairs for some of its comparisons, but not for all."""
        return self.kind == "undecided" and 0 < (self.compared or 0) < (self.comparisons or 0)
