"""Whether a row looks like a class met: how much nearer it is to a class than to all that is unlabelled."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from osscl.learn.carried import Carried

SOFTNESS = 0.005  # added to every direction's variance; rows are of unit length
KNOWN = 0.8  # share of the labelled rows that is to look known, classes weighing the same


@dataclass(frozen=True)
class World:
    """The Gaussian of everything unlabelled."""

    middle: Tensor  # (d,)
    around: Tensor  # (d, d) inverse covariance


@dataclass(frozen=True)
class Likeness:
    """Gaussians in a head's space: one for each class, all of one shape, and one for everything unlabelled.

    The difference of the two squared Mahalanobis distances is that of Ren et al. (arXiv:2106.09022), who subtract a
    Gaussian of all training rows.
    """

    means: Tensor  # (k, d) of the classes that have a label
    width: Tensor  # (k,) 1 + 1 / labels: so much wider is where a new row may lie when the mean itself is a guess
    within: Tensor  # (d, d) inverse covariance of a class
    middle: Tensor  # (d,) of the world
    around: Tensor  # (d, d) inverse covariance of the world
    threshold: float = 0.0  # a row above it looks known

    def score(self, x: Tensor) -> Tensor:
        """Of rows (n, d), in (-1, 1): higher is more like a class met."""
        x = x.double()
        y = x @ self.within
        near = (y * x).sum(1)[:, None] - 2 * y @ self.means.T + ((self.means @ self.within) * self.means).sum(1)
        near = near / self.width
        off = x - self.middle
        nearer = (((off @ self.around) * off).sum(1) - near.min(1).values) / x.shape[1]
        return (nearer / (1 + nearer.abs())).float()


def world_of(unlabeled: Tensor) -> World:
    """Of unlabelled rows (m, d)."""
    x = unlabeled.double()
    return World(x.mean(0), _inverse(x.T.cov(correction=0)))


def likeness(carried: Carried, world: World) -> Likeness:
    """By all labels that were met, and by everything unlabelled."""
    labels = carried.labels[carried.labels > 0].double()
    freedom = 1 - (1 / labels).mean()  # spread is about means of the same few rows: Bessel's share, classes alike
    spread = carried.spread / freedom if freedom > 0 else carried.spread
    return Likeness(carried.means[carried.labels > 0], 1 + 1 / labels, _inverse(spread), world.middle, world.around)


def _inverse(covariance: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.inv(covariance + SOFTNESS * torch.eye(len(covariance)).to(covariance))
    return inverse


def with_threshold(found: Likeness, scores: Tensor, targets: Tensor) -> Likeness:
    """So that KNOWN of labelled rows that score so, (n,), are above it, or a little less where they are few."""
    shares = (1.0 / torch.bincount(targets).clamp(min=1).double())[targets]
    order = scores.argsort()
    below = shares[order].cumsum(0) / shares.sum()
    place = int((below < 1 - KNOWN).sum())
    return replace(found, threshold=float(scores[order[min(place, len(order) - 1)]]))
