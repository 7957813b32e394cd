"""Which unlabelled images look like the classes met so far (Section 3.2): prototypes, scores, two thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import require, require_declared
from osscl.data.images import Labeled, columns_of
from osscl.learn.balance import class_sums
from osscl.seeding import seeded
from osscl.vision.augment import Augmentation, augment, draws
from osscl.vision.encoder import Encoder, in_chunks


@dataclass(frozen=True)
class GateConfig:
    """How U_t is sorted and which of its rows the learner may use."""

    eta: tuple[float, float] = (-4.0, -2.0)  # (eta_id, eta_pl)
    spread: Literal["var", "std"] = "var"  # the paper's text says var; its ancestor OpenCoS uses std
    prototype_views: int = 10  # |A| in Eq. 2; 0 means the plain image
    unit_first: bool = True  # prototypes are means of unit vectors, or of raw projections put on the sphere after
    score_views: Literal["plain", "augmented"] = (
        "plain"  # scores of the plain image, or the mean over the views of Eq. 2
    )
    leave_one_out: bool = False  # score a labelled image against its class without itself
    pseudo: Literal["past_only", "all", "all_but_no_anchor", "none"] = "past_only"  # which confident rows make up T-hat
    guide: Literal["gated", "all"] = "gated"  # L_KD sees U-hat, or the whole of U_t

    def __post_init__(self) -> None:
        require_declared(self)
        require(self.eta[0] <= self.eta[1], self, "eta", "(eta_id, eta_pl) with eta_id <= eta_pl")
        require(0 <= self.prototype_views <= 1000, self, "prototype_views", "in [0, 1000]")


@dataclass(frozen=True)
class Gate:
    """The prototypes and thresholds of one step."""

    prototypes: Tensor  # (k, d), unit rows
    threshold: float  # tau_id
    pseudo_threshold: float  # tau_pl
    labeled_scores: Tensor  # S_l

    def score(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """S and the column of the nearest prototype, for unit rows z."""
        best = cosines(z, self.prototypes).max(1)
        return best.values, best.indices


def cosines(z: Tensor, prototypes: Tensor) -> Tensor:
    """Of unit rows to prototypes, (n, k); a class without a labelled image has none, and nothing is near it."""
    return (z @ prototypes.T).masked_fill(prototypes.norm(dim=1) == 0, -2.0)


def thresholds(scores: Tensor, config: GateConfig) -> tuple[float, float]:
    """tau_id and tau_pl from the labelled rows' scores."""
    spread = scores.var() if config.spread == "var" else scores.std()
    spread = spread if len(scores) > 1 else torch.zeros_like(spread)
    return float(scores.mean() + config.eta[0] * spread), float(scores.mean() + config.eta[1] * spread)


def leave_one_out_scores(own: Tensor, sums: Tensor, columns: Tensor, plain: Tensor) -> Tensor:
    """S of each labelled row when its own share `own` is taken out of its class's sum; a lone row keeps itself."""
    others = sums[columns] - own
    alone = others.norm(dim=1, keepdim=True) < 1e-6
    mine = F.normalize(torch.where(alone, sums[columns], others), dim=1)
    every = cosines(plain, F.normalize(sums, dim=1))
    return every.scatter(1, columns[:, None], (plain * mine).sum(1, keepdim=True)).max(1).values


@dataclass(frozen=True)
class Look:
    """How images are looked at: by which network, with which augmentation, and where its randomness comes from."""

    config: GateConfig
    reference: Encoder
    augmentation: Augmentation
    seed: int
    names: tuple[str | int, ...]

    def mean_view(self, images: Tensor, alike: bool = False) -> Tensor:
        """The mean embedding over the augmentations A of Eq. 2, (n, d); of the plain image where A is empty.

        `alike`: the same draws for all rows, so that an image looks the same wherever it stands among others.
        """
        embed = self.reference if self.config.unit_first else self.reference.project
        total = None
        for a in range(self.config.prototype_views):
            rng = seeded(self.seed, *self.names, "prototype", a, device=images.device)
            u = draws(1, rng).expand(len(images), -1) if alike else draws(len(images), rng)
            view = in_chunks(lambda x, u: embed(augment(x, u, self.augmentation)), images, u)
            total = view if total is None else total + view
        return in_chunks(embed, images) if total is None else total / self.config.prototype_views

    def for_scores(self, images: Tensor) -> Tensor:
        """What is held against prototypes, unit rows: of labelled and of unlabelled images alike."""
        if self.config.score_views == "plain":
            return in_chunks(self.reference, images)
        return F.normalize(self.mean_view(images, alike=True), dim=1)


def open_gate(look: Look, labeled: Labeled, classes: Sequence[int]) -> Gate:
    """Prototypes of T_t and M in the reference's space, and the thresholds that their scores set (lines 5-7)."""
    columns = columns_of(labeled.labels, classes)
    mean_view, seen_as = look.mean_view(labeled.images), look.for_scores(labeled.images)
    sums = class_sums(mean_view, columns, len(classes))
    if look.config.leave_one_out:
        scores = leave_one_out_scores(mean_view, sums, columns, seen_as)
    else:
        scores = cosines(seen_as, F.normalize(sums, dim=1)).max(1).values
    # Eq. 2's 1 / count is lost in the projection to the sphere.
    return Gate(F.normalize(sums, dim=1), *thresholds(scores, look.config), scores)
