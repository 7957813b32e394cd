"""Statistics of labelled images that are no longer stored: class means and one covariance, optionally compressed."""

from collections.abc import Mapping, Sequence
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
    drop_row,
    no_missing_rows,
)
from osscl.methods.base import State, on_device
from osscl.stream.build import Step
from osscl.vision.encoder import Encoder, eval_mode, in_chunks

HALF = 2  # bytes of a number in half precision
COUNT = 4  # bytes of a class's number of labels
STIFFNESS = 0.1  # weight of the assumption of no drift, in rows per direction


@dataclass(frozen=True)
class ClassStatistics:
    """All labels of the first k classes, in the space of one head: sums, no images."""

    labels: Tensor  # (k,) labelled images behind each mean
    means: Tensor  # (k, d)
    spread: Tensor  # (d, d) within-class covariance, all classes weighted equally

    def expanded(self) -> "ClassStatistics":
        return self

    def compact(self, rank: int) -> "CompactStatistics":
        """The same in half precision, with a covariance of `rank` directions."""
        return CompactStatistics(self.labels.int(), self.means.half(), *compact_covariance(self.spread, rank))

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

    def without(self, column: int) -> "ClassStatistics":
        """The same without a class; its part in the shared covariance cannot be separated and stays."""
        return ClassStatistics(drop_row(self.labels, column), drop_row(self.means, column), self.spread)

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


@dataclass(frozen=True)
class CompactStatistics:
    """Class statistics in the form that is kept within a byte budget."""

    labels: Tensor  # (k,) int32
    means: Tensor  # (k, d) float16
    diagonal: Tensor  # (d,) float16: variances that the directions do not cover
    directions: Tensor  # (rank, d) float16

    def without(self, column: int) -> "CompactStatistics":
        """The same without a class; its part in the shared covariance stays."""
        return replace(self, labels=drop_row(self.labels, column), means=drop_row(self.means, column))

    def expanded(self) -> ClassStatistics:
        spread = expanded_covariance(self.diagonal, self.directions)
        return ClassStatistics(self.labels.long(), self.means.double(), spread)


def summarize(x: Tensor, targets: Tensor, labels: Tensor, missing: MissingRows) -> ClassStatistics:
    """Statistics of rows (n, d) and missing rows together; `labels` (k,) images of each class in all.

    A mean of missing rows was taken over all labels, including images that are still available. It is not updated;
    otherwise images that remain in M would count again at every step.
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
        self.current: dict[str, ClassStatistics | CompactStatistics] = {}  # by network
        self.previous: dict[str, ClassStatistics] = {}  # those at the beginning of the step
        self.snapshots: dict[str, Tensor] = {}  # U_t in each head's space at the beginning of the step, half precision

    def snapshot(self, unlabeled: Tensor, networks: Mapping[str, Encoder], heads: Mapping[str, Head]) -> None:
        """Embed U_t before the step's training."""
        self.previous = {name: statistics.expanded() for name, statistics in self.current.items()}
        self.snapshots = {}
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

    def compact(self, rank: int) -> None:
        """Keep what the next step needs in half precision, with covariances of `rank` directions."""
        self.current = {name: statistics.expanded().compact(rank) for name, statistics in self.current.items()}

    def end_step(self) -> None:
        """Drop what only the step itself needs, which would add tens of megabytes to a saved model."""
        self.previous, self.snapshots = {}, {}

    def state(self) -> State:
        return {
            "current": {name: vars(statistics) for name, statistics in self.current.items()},
            "previous": {name: vars(statistics) for name, statistics in self.previous.items()},
            "snapshots": dict(self.snapshots),
        }

    def load_state(self, state: State, device: torch.device) -> None:
        self.current = {name: _loaded(on_device(device, s)) for name, s in state["current"].items()}
        self.previous = {name: ClassStatistics(**on_device(device, s)) for name, s in state["previous"].items()}
        self.snapshots = on_device(device, state["snapshots"])


def _loaded(fields: State) -> ClassStatistics | CompactStatistics:
    return CompactStatistics(**fields) if "directions" in fields else ClassStatistics(**fields)


def head_views(config: HeadConfig, fit: HeadFit, head: Head) -> Tensor:
    """All views of a head's data in its space, the plain images first."""
    with eval_mode(fit.encoder):
        return head.transform(fit.all_views(config)).double()


# ----- within a byte budget: half precision, covariances as a diagonal and a few directions


@dataclass(frozen=True)
class BytePlan:
    """How the bytes of a memory are split between statistics and images."""

    rank: int  # directions of every covariance
    statistics: int  # bytes
    images: int  # a number of images


def fixed_bytes(classes: int, widths: Sequence[int], background: int) -> int:
    """Bytes that cannot be given up: a mean per class and a diagonal of each network, and those of the background."""
    return sum(HALF * (classes + 1) * width + COUNT * classes for width in widths) + HALF * 2 * background


def plan_bytes(
    budget: int, image: int, share: float, classes: int, widths: Sequence[int], background: int, most: int
) -> BytePlan:  # fmt: skip
    """How many directions fit into `share` of `budget`, at most `most`; images of `image` bytes fill the rest.

    Each of the networks, of these `widths`, has a mean per class and one covariance; `background` is the width of the
    Gaussian of unlabelled rows, or 0. Means and diagonals are kept even if they need more than the share; directions
    leave room for an image of each class.
    """
    fixed = fixed_bytes(classes, widths, background)
    per_direction = HALF * (sum(widths) + background)
    room = min(int(share * budget), budget - classes * image) - fixed
    rank = min(max(0, room) // per_direction, most, *widths)
    statistics = fixed + rank * per_direction
    return BytePlan(rank, statistics, max(0, budget - statistics) // image)


def compact_covariance(covariance: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Variances (d,) not covered by the `rank` strongest directions, and these directions (rank, d), as float16."""
    values, vectors = torch.linalg.eigh(covariance.double())
    strongest = values.argsort(descending=True)[:rank]
    directions = (vectors[:, strongest] * values[strongest].clamp(min=0).sqrt()).T
    rest = (covariance.diagonal() - directions.square().sum(0)).clamp(min=0)
    return rest.half(), directions.half().contiguous()


def expanded_covariance(diagonal: Tensor, directions: Tensor) -> Tensor:
    """The covariance (d, d) that a diagonal and directions represent."""
    directions = directions.double()
    return directions.T @ directions + diagonal.double().diag()


def approximate_covariance(covariance: Tensor, rank: int) -> Tensor:
    """The approximation of a covariance by `rank` directions and a diagonal."""
    return expanded_covariance(*compact_covariance(covariance, rank))
