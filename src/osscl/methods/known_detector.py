"""Detect known images: Gaussians of the classes seen, from their statistics, against one of all unlabelled rows."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from osscl.learn.linear_head import HeadConfig, drop_row, rank_in_class
from osscl.methods.class_statistics import (
    ClassStatistics,
    StatisticsFit,
    approximate_covariance,
    compact_covariance,
    expanded_covariance,
)

SOFTNESS = 0.005  # added to the variance of every direction; rows are of unit length
KNOWN = 0.8  # share of labelled rows that should look known, classes weighted equally
FOLDS = 5  # of a class's images, each scored without its labels to find the threshold


@dataclass(frozen=True)
class Background:
    """The Gaussian of all unlabelled rows."""

    mean: Tensor  # (d,)
    covariance: Tensor  # (d, d)

    def approximate(self, rank: int) -> "Background":
        return Background(self.mean, approximate_covariance(self.covariance, rank))

    def compact(self, rank: int, threshold: float) -> "CompactBackground":
        return CompactBackground(self.mean.half(), *compact_covariance(self.covariance, rank), threshold)


@dataclass(frozen=True)
class CompactBackground:
    """What a detector needs besides class statistics, in the form that is kept within a byte budget."""

    mean: Tensor  # (d,) float16
    diagonal: Tensor  # (d,) float16
    directions: Tensor  # (rank, d) float16
    threshold: float

    def detector(self, statistics: ClassStatistics) -> "KnownDetector":
        covariance = expanded_covariance(self.diagonal, self.directions)
        return detector_of(statistics, Background(self.mean.double(), covariance), self.threshold)


@dataclass(frozen=True)
class KnownDetector:
    """Gaussians in a head's space: one per class, with a shared covariance, and one of all unlabelled rows.

    The score is the relative Mahalanobis distance of Ren et al. (arXiv:2106.09022), with a background of unlabelled
    rows instead of all training rows.
    """

    means: Tensor  # (k, d) of the classes that have a label
    width: Tensor  # (k,) 1 + 1 / labels: the mean itself is uncertain
    class_precision: Tensor  # (d, d) inverse covariance of a class
    background_mean: Tensor  # (d,)
    background_precision: Tensor  # (d, d)
    threshold: float = 0.0  # a row above it looks known

    def without(self, row: int) -> "KnownDetector":
        """The same without one of its Gaussians; the threshold stays."""
        return replace(self, means=drop_row(self.means, row), width=drop_row(self.width, row))

    def score(self, x: Tensor) -> Tensor:
        """Scores of rows (n, d), in (-1, 1): higher is more like a seen class."""
        x = x.double()
        y = x @ self.class_precision
        own = ((self.means @ self.class_precision) * self.means).sum(1)
        near = ((y * x).sum(1)[:, None] - 2 * y @ self.means.T + own) / self.width
        off = x - self.background_mean
        gain = (((off @ self.background_precision) * off).sum(1) - near.min(1).values) / x.shape[1]
        return (gain / (1 + gain.abs())).float()


def background_of(unlabeled: Tensor) -> Background:
    """Fit the background to unlabelled rows (m, d)."""
    x = unlabeled.double()
    return Background(x.mean(0), x.T.cov(correction=0))


def detector_of(statistics: ClassStatistics, background: Background, threshold: float = 0.0) -> KnownDetector:
    """The detector of these Gaussians."""
    labels = statistics.labels[statistics.labels > 0].double()
    freedom = 1 - (1 / labels).mean()  # Bessel's correction, averaged over classes: means come from the same few rows
    spread = statistics.spread / freedom if freedom > 0 else statistics.spread
    means = statistics.means[statistics.labels > 0]
    precisions = _inverse(spread), background.mean, _inverse(background.covariance)
    return KnownDetector(means, 1 + 1 / labels, *precisions, threshold)


def _inverse(covariance: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.inv(covariance + SOFTNESS * torch.eye(len(covariance)).to(covariance))
    return inverse


def known_threshold(scores: Tensor, targets: Tensor) -> float:
    """The score that a share KNOWN of labelled rows exceeds, classes weighted equally."""
    shares = (1.0 / torch.bincount(targets).clamp(min=1).double())[targets]
    order = scores.argsort()
    below = shares[order].cumsum(0) / shares.sum()
    place = int((below < 1 - KNOWN).sum())
    return float(scores[order[min(place, len(order) - 1)]])


def fit_detector(
    config: HeadConfig, data: StatisticsFit, x: Tensor, background: Background, last: float | None = None,
    rank: int | None = None,
) -> KnownDetector | None:  # fmt: skip
    """Fit a detector; its threshold comes from images scored by a detector that has not seen them.

    `x` has all views of the data, in the same space. If no image can be scored that way, the `last` threshold is kept;
    None is returned if there is none (every class of the first step has a single label). With a `rank`, all covariances
    are reduced to that many directions.
    """
    fit, targets = data.fit, data.fit.targets()
    background = background if rank is None else background.approximate(rank)
    detector = detector_of(_approximate(data.summarize(config, x), rank), background)
    fair, judge = _fair_rows(data)
    if not fair.any():
        return None if last is None else replace(detector, threshold=last)
    fold, views = rank_in_class(targets, len(fit.classes)) % FOLDS, fit.copies(config) + 1
    scores = torch.zeros_like(targets, dtype=torch.float)
    for i in range(FOLDS):
        held_out = fair & (fold == i)
        if held_out.any():
            rest = replace(judge, fit=replace(fit, data=fit.data.rows((~held_out).nonzero().squeeze(1))))
            seen = rest.summarize(config, x[~held_out.repeat(views)])
            without = detector_of(_approximate(seen, rank), background)
            scores[held_out] = without.score(x[: len(held_out)][held_out])
    return replace(detector, threshold=known_threshold(scores[fair], targets[fair]))


def _approximate(statistics: ClassStatistics, rank: int | None) -> ClassStatistics:
    return statistics if rank is None else statistics.compact(rank).expanded()


def _fair_rows(data: StatisticsFit) -> tuple[Tensor, StatisticsFit]:
    """Which images (n,) can be scored without having been seen, and the data to score them with.

    If images have been dropped, the earlier statistics include those that remain, so only new classes qualify. Without
    its only image, a class could not be scored.
    """
    targets, images = data.fit.targets(), data.fit.images_by_class()
    in_company = images[targets] > 1
    if data.earlier is None or bool((images[: len(data.earlier.labels)] >= data.earlier.labels).all()):
        return in_company, StatisticsFit(data.fit)
    return in_company & (targets >= len(data.earlier.labels)), data
