"""The linear head on top of an encoder: SGD with balanced sampling (the paper) or ridge regression."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import require, require_declared, require_positive
from osscl.data.images import Labeled, columns_of, concat
from osscl.learn.optimiser import OptimiserConfig
from osscl.seeding import seeded
from osscl.vision.augment import Augmentation, augment, draws
from osscl.vision.encoder import BackboneModule, eval_mode, in_chunks

SCALES = tuple(2.0**i for i in range(9))  # candidate temperatures of a ridge head

# How GD and DM train a head on a frozen body.
BALANCING = OptimiserConfig("sgd", 0.01, decay=5e-4, nesterov=False, milestones=(0.5, 0.75))


# ----- classes of unequal size


def class_weights(columns: Tensor, k: int, *, smoothing: float = 0.0, most: float | None = None) -> Tensor:
    """n / (n_c k) for each of `k` classes, (k,): 1 where all are equal; `smoothing` is added to every count."""
    counts = torch.bincount(columns, minlength=k).float() + smoothing
    weights = counts.sum() / (counts.clamp(min=1) * k)
    return weights if most is None else weights.clamp(max=most)


def class_sums(rows: Tensor, columns: Tensor, k: int) -> Tensor:
    """Sum of the rows of each class, (k, d)."""
    return F.one_hot(columns, k).T.to(rows.dtype) @ rows  # index_add_ is not reproducible on a GPU


def rank_in_class(columns: Tensor, k: int) -> Tensor:
    """0, 1, 2, ... along the rows of each class, (n,)."""
    return (F.one_hot(columns, k).cumsum(0) - 1).gather(1, columns[:, None]).squeeze(1)


# ----- the head


@dataclass(frozen=True)
class HeadConfig:
    """How the head is fitted to T_t and M."""

    solver: Literal["sgd", "ridge"] = "sgd"
    epochs: int = 100  # sgd
    batch: int = 256
    rate: float = 0.1
    momentum: float = 0.9
    penalty: float = 10.0  # ridge
    copies: int = 20  # ridge: augmented copies of each image besides the plain one

    def __post_init__(self) -> None:
        require_declared(self)
        require_positive(self, "epochs", "batch", "rate", "penalty")
        require(0 <= self.momentum < 1, self, "momentum", "in [0, 1)")
        require(0 <= self.copies <= 1000, self, "copies", "in [0, 1000]")


OUR_HEAD = HeadConfig(solver="ridge")  # also a control on the features of other methods


@dataclass(frozen=True)
class Head:
    """A linear map from features to logits; features are first centred and normalised where `center` is given."""

    weight: Tensor  # (k, width)
    bias: Tensor  # (k,)
    center: Tensor  # (width,) or empty
    scale: float = 1.0  # the factor that turned ridge outputs into logits

    def __call__(self, features: Tensor) -> Tensor:
        return self.transform(features) @ self.weight.T + self.bias

    def without(self, column: int) -> "Head":
        """The same without a class."""
        return replace(self, weight=drop_row(self.weight, column), bias=drop_row(self.bias, column))

    def transform(self, features: Tensor) -> Tensor:
        """Features in this head's space."""
        return center_and_normalize(features, self.center) if len(self.center) else features


def drop_row(values: Tensor, row: int) -> Tensor:
    """Values (k, ...) without one row, (k - 1, ...)."""
    return torch.cat((values[:row], values[row + 1 :]))


def center_and_normalize(features: Tensor, center: Tensor) -> Tensor:
    """Features (n, width) about `center`, on the unit sphere."""
    return F.normalize(features - center, dim=1)


@dataclass(frozen=True)
class MissingRows:
    """Rows that are no longer stored but count in a regression: number and mean per class, and one covariance."""

    rows: Tensor  # (k,)
    means: Tensor  # (k, d)
    spread: Tensor  # (d, d)


def no_missing_rows(x: Tensor, k: int) -> MissingRows:
    d = x.shape[1]
    return MissingRows(x.new_zeros(k), x.new_zeros(k, d), x.new_zeros(d, d))


@dataclass(frozen=True)
class HeadFit:
    """What fitting a head needs besides its config."""

    encoder: BackboneModule
    data: Labeled
    classes: Sequence[int]  # column j of the logits is class classes[j]
    augmentation: Augmentation
    seed: int
    names: tuple[str | int, ...]
    cap: int | None = None  # limit on epochs (sgd) or copies (ridge)
    scale: float | None = None  # of ridge outputs; None: calibrated on the data
    pseudo_labeled: Labeled | None = None  # further rows for a ridge, one plain copy each
    center: Tensor | None = None  # of the head's space; None: the mean feature
    missing: MissingRows | None = None  # in the space of that center

    def targets(self) -> Tensor:
        """Column of each row's class, (n,)."""
        return columns_of(self.data.labels, self.classes)

    def images_by_class(self) -> Tensor:
        """Number of images of each class, (k,)."""
        return torch.bincount(self.targets(), minlength=len(self.classes))

    def view(self, number: int) -> Tensor:
        """Features of one augmented copy of every row, (n, width)."""
        u = draws(len(self.data), seeded(self.seed, *self.names, "copy", number, device=self.data.images.device))
        return in_chunks(lambda x, u: self.encoder.features(augment(x, u, self.augmentation)), self.data.images, u)

    def copies(self, config: HeadConfig) -> int:
        """Number of augmented copies of each image."""
        return config.copies if self.cap is None else min(config.copies, self.cap)

    def all_views(self, config: HeadConfig) -> Tensor:
        """Features of every plain row and then of its copies, (n (copies + 1), width)."""
        plain = in_chunks(self.encoder.features, self.data.images)
        return torch.cat([plain, *(self.view(i) for i in range(self.copies(config)))])


def fit_head(config: HeadConfig, fit: HeadFit) -> Head:
    """Fit a head; the encoder is not changed."""
    solvers: dict[str, Callable[[HeadConfig, HeadFit], Head]] = {"sgd": sgd_head, "ridge": ridge_head}
    with eval_mode(fit.encoder):
        return solvers[config.solver](config, fit)


def ridge_head(config: HeadConfig, fit: HeadFit) -> Head:
    """Closed form on plain and augmented features, centred, on the sphere, classes weighted equally."""
    views, k = fit.copies(config) + 1, len(fit.classes)
    features, targets = fit.all_views(config), fit.targets().repeat(views)
    # Every second image of each class is held out to calibrate the temperature.
    held_out = (rank_in_class(fit.targets(), k) % 2 == 1).repeat(views)
    if fit.pseudo_labeled is not None:
        more = columns_of(fit.pseudo_labeled.labels, fit.classes)
        features = torch.cat((features, in_chunks(fit.encoder.features, fit.pseudo_labeled.images)))
        targets, held_out = torch.cat((targets, more)), torch.cat((held_out, torch.zeros_like(more, dtype=torch.bool)))
    center = features.mean(0) if fit.center is None else fit.center
    x = center_and_normalize(features, center).double()
    weight, bias = weighted_ridge(x, targets, k, config.penalty, fit.missing)
    scale = fit.scale or calibrated_scale(x, targets, held_out, k, config.penalty, fit.missing)
    return Head((scale * weight).float(), (scale * bias).float(), center, scale)


def balanced_weights(targets: Tensor, missing: MissingRows) -> tuple[Tensor, Tensor]:
    """Weights of each row (n,) and of each class's missing rows (k,) that make classes count equally."""
    k = len(missing.rows)
    counts = torch.bincount(targets, minlength=k) + missing.rows
    share = (len(targets) + missing.rows.sum()) / k / counts.clamp(min=1)
    return share[targets], share * missing.rows


def weighted_ridge(
    x: Tensor, targets: Tensor, k: int, penalty: float, missing: MissingRows | None = None
) -> tuple[Tensor, Tensor]:
    """Ridge regression on one-hot targets, each class weighted equally. Weight (k, d) and bias (k,)."""
    missing, y = missing or no_missing_rows(x, k), F.one_hot(targets, k).double()
    rows, gone = balanced_weights(targets, missing)
    total = rows.sum() + gone.sum()
    x_mean, y_mean = (rows @ x + gone @ missing.means) / total, (rows @ y + gone) / total
    xc, mc = x - x_mean, missing.means - x_mean
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    gram = xc.T @ (rows[:, None] * xc) + mc.T @ (gone[:, None] * mc) + gone.sum() * missing.spread + penalty * identity
    yc, each = y - y_mean, torch.eye(k, dtype=x.dtype, device=x.device) - y_mean
    solution = torch.linalg.solve(gram, xc.T @ (rows[:, None] * yc) + mc.T @ (gone[:, None] * each))
    return solution.T.contiguous(), y_mean - x_mean @ solution


def calibrated_scale(
    x: Tensor, targets: Tensor, held_out: Tensor, k: int, penalty: float, missing: MissingRows | None = None
) -> float:
    """The factor that turns ridge outputs into logits: the best one for held-out rows of a fit without them."""
    kept, held = (~held_out).nonzero().squeeze(1), held_out.nonzero().squeeze(1)
    if not len(held) or not len(kept):
        return SCALES[0]
    weight, bias = weighted_ridge(x[kept], targets[kept], k, penalty, missing)
    outputs = x[held] @ weight.T + bias
    losses = torch.stack([F.cross_entropy(scale * outputs, targets[held]) for scale in SCALES])
    return SCALES[int(losses.argmin())]


def sgd_head(config: HeadConfig, fit: HeadFit) -> Head:
    """Logistic regression by SGD; rows drawn with replacement, each class equally often (Appendix B.5)."""
    if fit.pseudo_labeled is not None:
        fit = replace(fit, data=concat(fit.data, fit.pseudo_labeled), pseudo_labeled=None)
    targets = fit.targets()
    weights = 1.0 / torch.bincount(targets, minlength=len(fit.classes)).clamp(min=1)[targets].float()
    device = fit.data.images.device
    weight = torch.zeros(len(fit.classes), fit.encoder.width, device=device, requires_grad=True)
    bias = torch.zeros(len(fit.classes), device=device, requires_grad=True)
    optimiser = torch.optim.SGD([weight, bias], config.rate, config.momentum)
    decay = torch.optim.lr_scheduler.MultiStepLR(
        optimiser, [round(config.epochs * share) for share in (0.6, 0.75, 0.9)], 0.2
    )
    epochs = config.epochs if fit.cap is None else min(config.epochs, fit.cap)
    for epoch in range(epochs):
        features = fit.view(epoch)
        rng = seeded(fit.seed, *fit.names, "rows", epoch, device=device)
        for rows in torch.multinomial(weights, len(targets), replacement=True, generator=rng).split(config.batch):
            loss = F.cross_entropy(F.linear(features[rows], weight, bias), targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        decay.step()
    return Head(weight.detach(), bias.detach(), weight.new_empty(0))
