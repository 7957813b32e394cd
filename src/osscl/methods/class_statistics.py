"""Labels whose images are gone, as class means and one covariance; and what looks known by them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from osscl.learn.linear_head import (
    Head,
    HeadConfig,
    HeadFit,
    MissingRows,
    balanced_weights,
    center_and_normalize,
    class_sums,
    no_missing_rows,
    rank_in_class,
)
from osscl.methods.base import State, on_device
from osscl.stream.step import Step
from osscl.vision.encoder import Encoder, eval_mode, in_chunks

STIFFNESS = 0.1  # rows in every direction that the assumption of no drift weighs
SOFTNESS = 0.005  # added to the variance of every direction; rows are of unit length
KNOWN = 0.8  # share of labelled rows that should look known, classes weighted equally
FOLDS = 5  # of a class's images, each scored without its labels to find the threshold


@dataclass(frozen=True)
class ClassStatistics:
    """All labels of the first k classes, in the space of one head: sums, no images."""

    labels: Tensor  # (k,) labelled images behind each mean
    means: Tensor  # (k, d)
    spread: Tensor  # (d, d) within-class covariance, all classes weighted equally

    def moved(self, before: Tensor, after: Tensor) -> "ClassStatistics":
        """Follow the network's drift: apply the linear map that takes unlabelled rows (m, d) `before` to `after`.

        Semantic Drift Compensation (Yu et al., CVPR 2020) moves prototypes by the drift of current rows. Deviation: one
        map, near the identity, is fitted to unlabelled rows, and the covariance is moved with the means.
        """
        before, after = before.double(), after.double()
        start, end = before.mean(0), after.mean(0)
        x = before - start
        identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        turn = identity + torch.linalg.solve(x.T @ x + STIFFNESS * identity, x.T @ (after - end - x))
        return ClassStatistics(self.labels, (self.means - start) @ turn + end, turn.T @ self.spread @ turn)

    def joined(self, x: Tensor, columns: Tensor, views: int) -> "ClassStatistics":
        """With further labelled images of these classes: rows x (n * views, d), view after view, of `columns` (n,)."""
        k = len(self.labels)
        labels = self.labels + torch.bincount(columns, minlength=k)
        sums = class_sums(x, columns.repeat(views), k) / views
        means = (self.labels[:, None] * self.means + sums) / labels.clamp(min=1)[:, None]
        return ClassStatistics(labels, means, self.spread)

    def missing(self, images: Tensor, views: int) -> MissingRows:
        """What is missing when `images` (k',) of each class are available, each as `views` rows; k' includes new ones.

        Missing rows lie around the mean of all labels of their class. Available images contributed to that mean and
        count again as themselves: they anchor the class to where its images really are.
        """
        k, new = len(self.labels), len(images) - len(self.labels)
        gone = (self.labels - images[:k]).clamp(min=0) * views
        means = torch.cat((self.means, self.means.new_zeros(new, self.means.shape[1])))
        return MissingRows(torch.cat((gone, gone.new_zeros(new))).to(means.dtype), means, self.spread)


def summarize(x: Tensor, targets: Tensor, labels: Tensor, missing: MissingRows) -> ClassStatistics:
    """Statistics of rows (n, d) and missing rows together; `labels` (k,) images of each class in all.

    A mean of missing rows was taken over all labels, including images that are still available: it stays as it is, or
    images that remain in M would count again at every step.
    """
    k = len(labels)
    available = class_sums(x, targets, k) / torch.bincount(targets, minlength=k).clamp(min=1)[:, None]
    means = torch.where(missing.rows[:, None] > 0, missing.means, available)
    rows, gone = balanced_weights(targets, missing)
    centered = x - means[targets]
    scatter = centered.T @ (rows[:, None] * centered) + gone.sum() * missing.spread
    return ClassStatistics(labels, means, scatter / (rows.sum() + gone.sum()))


@dataclass(frozen=True)
class StatisticsFit:
    """A head's data with the statistics of earlier labels, in the space of the same head."""

    fit: HeadFit
    earlier: ClassStatistics | None = None

    def for_head(self, config: HeadConfig) -> HeadFit:
        """The fit with the missing rows that the earlier statistics describe."""
        return replace(self.fit, missing=self.missing(config))

    def missing(self, config: HeadConfig) -> MissingRows | None:
        if self.earlier is None:
            return None
        return self.earlier.missing(self.fit.images_by_class(), self.fit.copies(config) + 1)

    def summarize(self, config: HeadConfig, x: Tensor) -> ClassStatistics:
        """Statistics after this fit, given all views `x` of its data in the head's space."""
        labels = self.fit.images_by_class()
        if self.earlier is not None:
            k = len(self.earlier.labels)
            labels = torch.cat((torch.maximum(labels[:k], self.earlier.labels), labels[k:]))
        targets = self.fit.targets().repeat(self.fit.copies(config) + 1)
        missing = self.missing(config) or no_missing_rows(x, len(self.fit.classes))
        return summarize(x, targets, labels, missing)


class StatisticsTracker:
    """Statistics of each network's head from step to step; unlabelled rows show how a network has moved."""

    def __init__(self) -> None:
        self.current: dict[str, ClassStatistics] = {}  # by network
        self.previous: dict[str, ClassStatistics] = {}  # as they were at the beginning of the step
        self.snapshots: dict[str, Tensor] = {}  # U_t in each head's space at the beginning of the step, half precision

    def snapshot(self, unlabeled: Tensor, networks: Mapping[str, Encoder], heads: Mapping[str, Head]) -> None:
        """Embed U_t before the step's training."""
        self.previous, self.snapshots = self.current, {}
        if len(unlabeled) > 1:
            self.snapshots = {
                name: head.transform(in_chunks(networks[name].features, unlabeled)).half()
                for name, head in heads.items()
            }

    def prepare(self, name: str, config: HeadConfig, fit: HeadFit, step: Step) -> StatisticsFit:
        """A fit in a space centred on U_t, with earlier statistics moved as its rows have moved.

        Without unlabelled images the drift is unknown and the statistics are dropped.
        """
        if len(step.unlabeled) < 2:
            return StatisticsFit(fit)
        features = in_chunks(fit.encoder.features, step.unlabeled)
        center, earlier = features.mean(0), None
        if name in self.previous and name in self.snapshots:
            earlier = self.previous[name].moved(self.snapshots[name], center_and_normalize(features, center))
            if step.further is not None:
                more = replace(fit, data=step.further)
                views = center_and_normalize(more.all_views(config), center).double()
                earlier = earlier.joined(views, more.targets(), more.copies(config) + 1)
        return StatisticsFit(replace(fit, center=center), earlier)

    def end_step(self) -> None:
        """Drop what only the step itself needs: tens of megabytes that a saved model would carry."""
        self.previous, self.snapshots = {}, {}

    def state(self) -> State:
        return {
            "current": {name: vars(statistics) for name, statistics in self.current.items()},
            "previous": {name: vars(statistics) for name, statistics in self.previous.items()},
            "snapshots": dict(self.snapshots),
        }

    def load_state(self, state: State, device: torch.device) -> None:
        self.current = {name: ClassStatistics(**on_device(device, s)) for name, s in state["current"].items()}
        self.previous = {name: ClassStatistics(**on_device(device, s)) for name, s in state["previous"].items()}
        self.snapshots = on_device(device, state["snapshots"])


# ----- whether an image looks known


@dataclass(frozen=True)
class Background:
    """The Gaussian of everything unlabelled."""

    mean: Tensor  # (d,)
    precision: Tensor  # (d, d) inverse covariance


@dataclass(frozen=True)
class KnownDetector:
    """Gaussians in a head's space: one per class, all of one shape, and one of everything unlabelled.

    The score is the relative Mahalanobis distance of Ren et al. (arXiv:2106.09022), with a background of unlabelled
    rows instead of all training rows.
    """

    means: Tensor  # (k, d) of the classes that have a label
    width: Tensor  # (k,) 1 + 1 / labels: the mean itself is uncertain
    class_precision: Tensor  # (d, d) inverse covariance of a class
    background_mean: Tensor  # (d,)
    background_precision: Tensor  # (d, d)
    threshold: float = 0.0  # a row above it looks known

    def score(self, x: Tensor) -> Tensor:
        """Scores of rows (n, d), in (-1, 1): higher is more like a class seen."""
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
    return Background(x.mean(0), _inverse(x.T.cov(correction=0)))


def detector_of(statistics: ClassStatistics, background: Background) -> KnownDetector:
    """A detector without a threshold yet."""
    labels = statistics.labels[statistics.labels > 0].double()
    freedom = 1 - (1 / labels).mean()  # Bessel's correction, averaged over classes: means are of the same few rows
    spread = statistics.spread / freedom if freedom > 0 else statistics.spread
    means = statistics.means[statistics.labels > 0]
    return KnownDetector(means, 1 + 1 / labels, _inverse(spread), background.mean, background.precision)


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
    config: HeadConfig, data: StatisticsFit, x: Tensor, unlabeled: Tensor, last: float | None = None
) -> KnownDetector | None:
    """Fit a detector; its threshold comes from images scored by a detector that has not seen them.

    `x` has all views of the data, in the same space. If no image can be scored that way, the `last` threshold is kept;
    None is returned if there is none (every class of the first step has a single label).
    """
    fit, background, targets = data.fit, background_of(unlabeled), data.fit.targets()
    detector = detector_of(data.summarize(config, x), background)
    fair, judge = _fair_rows(data)
    if not fair.any():
        return None if last is None else replace(detector, threshold=last)
    fold, views = rank_in_class(targets, len(fit.classes)) % FOLDS, fit.copies(config) + 1
    scores = torch.zeros_like(targets, dtype=torch.float)
    for i in range(FOLDS):
        held_out = fair & (fold == i)
        if held_out.any():
            rest = replace(judge, fit=replace(fit, data=fit.data.rows((~held_out).nonzero().squeeze(1))))
            without = detector_of(rest.summarize(config, x[~held_out.repeat(views)]), background)
            scores[held_out] = without.score(x[: len(held_out)][held_out])
    return replace(detector, threshold=known_threshold(scores[fair], targets[fair]))


def _fair_rows(data: StatisticsFit) -> tuple[Tensor, StatisticsFit]:
    """Which images (n,) can be scored without having been seen, and the data to score them with.

    Where images are gone, the earlier statistics have seen those that remain, so only new classes qualify. The only
    image of a class leaves nothing to score it with.
    """
    targets, images = data.fit.targets(), data.fit.images_by_class()
    in_company = images[targets] > 1
    if data.earlier is None or bool((images[: len(data.earlier.labels)] >= data.earlier.labels).all()):
        return in_company, StatisticsFit(data.fit)
    return in_company & (targets >= len(data.earlier.labels)), data


def head_views(config: HeadConfig, fit: HeadFit, head: Head) -> Tensor:
    """All views of a head's data in its space, the plain images first."""
    with eval_mode(fit.encoder):
        return head.transform(fit.all_views(config)).double()
