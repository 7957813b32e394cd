"""The linear classifier on top of an encoder: by weighted sampling (the paper) or by ridge regression."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import added_later, require, require_declared
from osscl.data.images import Labeled, columns_of, concat
from osscl.learn.balance import class_sums, rank_in_class
from osscl.learn.carried import Carried, Past, equal_classes, no_past, summed_up
from osscl.learn.likeness import Likeness, likeness, with_threshold, world_of
from osscl.seeding import seeded
from osscl.vision.augment import Augmentation, augment, draws
from osscl.vision.encoder import Encoder, eval_mode, in_chunks

SCALES = tuple(2.0**i for i in range(9))  # candidates for a ridge head's temperature
PARTS = 5  # of a class's images, each judged without its labels where a threshold is wanted


@dataclass(frozen=True)
class HeadConfig:
    """How the head is fitted to T_t and M."""

    solver: Literal["sgd", "ridge"] = "sgd"
    memory: Literal["before", "after"] = "before"  # M as during the step, or as updated after it
    epochs: int = 100  # sgd
    batch: int = 256
    rate: float = 0.1
    momentum: float = 0.9
    penalty: float = 10.0  # ridge
    copies: int = 20  # ridge: augmented copies of each image beside the plain one
    plain: float = added_later(1.0, legacy=1.0)  # ridge: what the plain image weighs, one of its copies being 1
    # ridge: what features are centred on, the mean of all rows or of the classes' means (new classes have more rows).
    centre: Literal["rows", "classes"] = added_later("rows", legacy="rows")
    # What a head of its own on the reference's features says weighs so much in the prediction; 0: nothing (the paper).
    reference: float = added_later(0.0, legacy=0.0)
    # Unlabelled rows beside the labelled ones: none (the paper); those above tau_pl with the nearest prototype's class;
    # those above tau_id with the class that the heads themselves give them (self); or (past) the same, but where that
    # is a past class, with the class that the agent gave them before this step.
    pseudo: Literal["none", "gate", "self", "past"] = added_later("none", legacy="none")
    # ridge: labels whose images M no longer holds are lost to the head (the paper), or stay as class means and one
    # covariance, which follow the network by where unlabelled rows have moved.
    carried: bool = added_later(False, legacy=False)

    def __post_init__(self) -> None:
        require_declared(self)
        require(self.epochs > 0, self, "epochs", "positive")
        require(self.batch > 0, self, "batch", "positive")
        require(self.rate > 0, self, "rate", "positive")
        require(0 <= self.momentum < 1, self, "momentum", "in [0, 1)")
        require(self.penalty > 0, self, "penalty", "positive")
        require(0 <= self.copies <= 1000, self, "copies", "in [0, 1000]")
        require(self.plain > 0, self, "plain", "positive")
        require(0 <= self.reference <= 1, self, "reference", "in [0, 1]")
        require(not self.carried or self.solver == "ridge", self, "carried", "false where head.solver is sgd")


@dataclass(frozen=True)
class Head:
    """Logits of features: a linear map, after centring and projecting to the sphere where `centre` is given."""

    weight: Tensor  # (k, width)
    bias: Tensor  # (k,)
    centre: Tensor  # (width,) or empty
    scale: float = 1.0  # the factor that made a ridge's outputs logits

    def __call__(self, features: Tensor) -> Tensor:
        return self.placed(features) @ self.weight.T + self.bias

    def placed(self, features: Tensor) -> Tensor:
        """Features in this head's space."""
        return placed(features, self.centre) if len(self.centre) else features


def placed(features: Tensor, centre: Tensor) -> Tensor:
    """Features (n, width) in the space of a ridge head: about its centre, on the sphere."""
    return F.normalize(features - centre, dim=1)


@dataclass(frozen=True)
class HeadFit:
    """What fitting a head needs beside its config."""

    encoder: Encoder
    data: Labeled
    classes: Sequence[int]  # column j of the logits is class classes[j]
    augmentation: Augmentation
    seed: int
    names: tuple[str | int, ...]
    cap: int | None = None  # of epochs (sgd) or copies (ridge), for schedules that only try the plumbing
    scale: float | None = None  # of a ridge's outputs; found by the data where None
    believed: Labeled | None = None  # rows whose labels are somebody's word: a ridge takes each once, as it is
    centre: Tensor | None = None  # of the head's space; found by the data where None
    carried: Carried | None = None  # labels of past classes, in the space of that centre

    def targets(self) -> Tensor:
        """Column of each row's class, (n,)."""
        return columns_of(self.data.labels, self.classes)

    def view(self, number: int) -> Tensor:
        """Features of one augmented copy of every row, (n, width)."""
        device = self.data.images.device
        u = draws(len(self.data), seeded(self.seed, *self.names, "copy", number, device=device))

        return in_chunks(
            lambda images, u: self.encoder.features(augment(images, u, self.augmentation)), self.data.images, u
        )

    def copies(self, config: HeadConfig) -> int:
        """Augmented copies of each image."""
        return config.copies if self.cap is None else min(config.copies, self.cap)

    def all_views(self, config: HeadConfig) -> list[Tensor]:
        """Features of every row as it is, and of its copies."""
        return [in_chunks(self.encoder.features, self.data.images), *(self.view(i) for i in range(self.copies(config)))]

    def past(self, config: HeadConfig) -> Past | None:
        """What the rows at hand lack of the labels that were."""
        if self.carried is None:
            return None
        return self.carried.beside(self.images_by_class(), self.copies(config) + 1)

    def images_by_class(self) -> Tensor:
        """How many images of each class are at hand, (k,)."""
        return torch.bincount(self.targets(), minlength=len(self.classes))


def fit_head(config: HeadConfig, fit: HeadFit) -> Head:
    """The head of the encoder as it stands; the encoder is not changed."""
    solvers: dict[str, Callable[[HeadConfig, HeadFit], Head]] = {"sgd": sgd_head, "ridge": ridge_head}
    with eval_mode(fit.encoder):
        return solvers[config.solver](config, fit)


def ridge_head(config: HeadConfig, fit: HeadFit) -> Head:
    """Closed form: plain and augmented features, centred, on the sphere, classes weighted equally."""
    copies, parts = fit.copies(config), fit.all_views(config)
    targets = fit.targets().repeat(copies + 1)
    # Which images stand apart for the temperature: every second one of each class.
    apart = (rank_in_class(fit.targets(), len(fit.classes)) % 2 == 1).repeat(copies + 1)
    if fit.believed is not None:
        parts.append(in_chunks(fit.encoder.features, fit.believed.images))
        more = columns_of(fit.believed.labels, fit.classes)
        targets, apart = torch.cat((targets, more)), torch.cat((apart, torch.zeros_like(more, dtype=torch.bool)))
    features = torch.cat(parts)
    centre = fit.centre
    if centre is None:
        centre = features.mean(0) if config.centre == "rows" else _middle(features, targets, len(fit.classes))
    x = placed(features, centre).double()
    mass, past = _mass(config, len(fit.data), x), fit.past(config)
    weight, bias = weighted_ridge(x, targets, len(fit.classes), config.penalty, mass, past)
    scale = fit.scale or calibration(x, targets, apart, len(fit.classes), config.penalty, mass, past)
    return Head((scale * weight).float(), (scale * bias).float(), centre, scale)


def placed_views(config: HeadConfig, fit: HeadFit, head: Head) -> Tensor:
    """All views of a head's data in its space, the plain images first."""
    with eval_mode(fit.encoder):
        return head.placed(torch.cat(fit.all_views(config))).double()


def carried_on(config: HeadConfig, fit: HeadFit, x: Tensor) -> Carried:
    """What a head's data, by all views `x` of it, leaves to the steps to come."""
    k = len(fit.classes)
    labels = fit.images_by_class()
    if fit.carried is not None:
        known = len(fit.carried.labels)
        labels = torch.cat((torch.maximum(labels[:known], fit.carried.labels), labels[known:]))
    targets = fit.targets().repeat(fit.copies(config) + 1)
    return summed_up(x, targets, labels, fit.past(config) or no_past(x, k))


def likeness_on(
    config: HeadConfig, fit: HeadFit, x: Tensor, unlabeled: Tensor, last: float | None = None
) -> Likeness | None:
    """What looks known among rows like `unlabeled`, and the threshold that images set which it has not seen.

    `x` has all views of the fit's data, in the same space. Where no image can set it, the `last` threshold stays; there
    is none, and None is returned, where every class of the first step has a single label.
    """
    fair, without = _judges(fit)
    world, targets = world_of(unlabeled), fit.targets()
    if not fair.any():
        return None if last is None else replace(likeness(carried_on(config, fit, x), world), threshold=last)
    part = rank_in_class(targets, len(fit.classes)) % PARTS
    scores = torch.zeros_like(targets, dtype=torch.float)
    for i in range(PARTS):
        judged = fair & (part == i)
        if judged.any():
            rest = replace(without, data=fit.data.rows((~judged).nonzero().squeeze(1)))
            judge = likeness(carried_on(config, rest, x[~judged.repeat(fit.copies(config) + 1)]), world)
            scores[judged] = judge.score(x[: len(judged)][judged])
    return with_threshold(likeness(carried_on(config, fit, x), world), scores[fair], targets[fair])


def _judges(fit: HeadFit) -> tuple[Tensor, HeadFit]:
    """Which images (n,) can be judged by all the others, and how these are to be taken.

    Where images are gone, what is carried has seen those that stay: new classes alone can be judged. An image that is
    alone in its class leaves nothing to be judged by.
    """
    targets = fit.targets()
    images = fit.images_by_class()
    in_company = images[targets] > 1
    if fit.carried is None or bool((images[: len(fit.carried.labels)] >= fit.carried.labels).all()):
        return in_company, replace(fit, carried=None)
    return in_company & (targets >= len(fit.carried.labels)), fit


def _middle(features: Tensor, targets: Tensor, k: int) -> Tensor:
    """The mean of the means of the classes that have a row, (width,)."""
    counts = torch.bincount(targets, minlength=k)
    return (class_sums(features, targets, k) / counts.clamp(min=1)[:, None])[counts > 0].mean(0)


def _mass(config: HeadConfig, n: int, x: Tensor) -> Tensor | None:
    """What each row weighs, the plain images first; about 1, so that the penalty keeps its meaning."""
    if config.plain == 1:
        return None
    mass = torch.ones_like(x[:, 0])
    mass[:n] = config.plain
    return mass / mass.mean()


def weighted_ridge(
    x: Tensor, targets: Tensor, k: int, penalty: float, mass: Tensor | None = None, past: Past | None = None
) -> tuple[Tensor, Tensor]:
    """Least squares on one-hot targets with an L2 penalty; each class weighs the same. Weight (k, d) and bias (k,).

    Within its class a row weighs by `mass` (n,), or as any other; rows of the past count as rows at hand do.
    """
    past, y = past or no_past(x, k), F.one_hot(targets, k).double()
    rows, gone = equal_classes(targets, k, past, mass)
    total = rows.sum() + gone.sum()
    x_mean, y_mean = (rows @ x + gone @ past.means) / total, (rows @ y + gone) / total
    xc, mc = x - x_mean, past.means - x_mean
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    gram = xc.T @ (rows[:, None] * xc) + mc.T @ (gone[:, None] * mc) + gone.sum() * past.spread + penalty * identity
    yc, each = y - y_mean, torch.eye(k, dtype=x.dtype, device=x.device) - y_mean
    solution = torch.linalg.solve(gram, xc.T @ (rows[:, None] * yc) + mc.T @ (gone[:, None] * each))
    return solution.T.contiguous(), y_mean - x_mean @ solution


def calibration(
    x: Tensor, targets: Tensor, apart: Tensor, k: int, penalty: float,
    mass: Tensor | None = None, past: Past | None = None,
) -> float:  # fmt: skip
    """The factor that makes a ridge's outputs logits: fitted without the rows `apart`, it suits those rows best."""
    kept, held = (~apart).nonzero().squeeze(1), apart.nonzero().squeeze(1)
    if not len(held) or not len(kept):
        return SCALES[0]
    weight, bias = weighted_ridge(x[kept], targets[kept], k, penalty, None if mass is None else mass[kept], past)
    outputs = x[held] @ weight.T + bias
    losses = torch.stack([F.cross_entropy(scale * outputs, targets[held]) for scale in SCALES])
    return SCALES[int(losses.argmin())]


def sgd_head(config: HeadConfig, fit: HeadFit) -> Head:
    """Logistic regression by SGD; rows drawn with replacement, each class equally often (Appendix B.5)."""
    if fit.believed is not None:
        fit = replace(fit, data=concat(fit.data, fit.believed), believed=None)
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
