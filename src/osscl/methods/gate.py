"""The gate: which unlabelled images look like the classes seen so far (Section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import added_later, require, require_declared
from osscl.data.images import Labeled, columns_of
from osscl.learn.linear_head import class_sums, drop_row
from osscl.methods.base import GateReport, Setting
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.augment import augment, draws
from osscl.vision.encoder import Encoder, in_chunks


@dataclass(frozen=True)
class GateConfig:
    """Prototypes, thresholds, and what passes them."""

    eta: tuple[float, float] = (-4.0, -2.0)  # eta_id, eta_pl
    spread: Literal["var", "std"] = "var"  # var: the paper's formula, Algorithm 1, line 7
    prototype_views: int = 10  # |A| of Eq. 2; 0: the plain image
    # T-hat: confident rows of past classes, of all classes, of all classes but never as anchors of L_sup, or no row.
    # Deviation: the paper's formula takes all confident rows. past_only follows its text, which uses pseudo-labels only
    # to find rows of past classes; docs/methods/ursl.md quotes both.
    pseudo: Literal["past_only", "all", "all_but_no_anchor", "none"] = "past_only"
    guide: Literal["gated", "all"] = "gated"  # L_KD uses U-hat, or all of U_t
    # A control for equal updates: the learner's epochs have the length that T-hat would give them in this reading.
    epochs_as: Literal["used", "past_only", "all"] = added_later("used", legacy="used")

    def __post_init__(self) -> None:
        require_declared(self)
        require(self.eta[0] <= self.eta[1], self, "eta", "(eta_id, eta_pl) with eta_id <= eta_pl")
        require(0 <= self.prototype_views <= 1000, self, "prototype_views", "in [0, 1000]")


@dataclass(frozen=True)
class Segregated:
    """What the gate selects from U_t."""

    pseudo_labeled: Labeled  # T-hat
    guide: Tensor  # images of U-hat, for L_KD
    report: GateReport | None = None  # None until there is a trained reference
    extra_rows: int = 0  # by which `epochs_as` makes the learner's epochs longer; may be negative


@dataclass(frozen=True)
class Gate:
    """The prototypes and thresholds of one step."""

    prototypes: Tensor  # (k, d), L2-normalised
    threshold: float  # tau_id
    pseudo_threshold: float  # tau_pl
    labeled_scores: Tensor  # S_l^t

    def score(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """S and the column of the nearest prototype, for L2-normalised rows z."""
        best = prototype_cosines(z, self.prototypes).max(1)
        return best.values, best.indices

    def without(self, column: int) -> "Gate":
        """The same without a class and without the scores of labelled images; the thresholds stay."""
        return replace(self, prototypes=drop_row(self.prototypes, column), labeled_scores=self.labeled_scores[:0])

    def segregate(self, config: GateConfig, step: Step, scores: Tensor, labels: Tensor) -> Segregated:
        """T-hat and U-hat from the scores and nearest classes of the rows of U_t (line 8)."""
        passed, confident = scores > self.threshold, scores > self.pseudo_threshold
        past = confident & ~torch.isin(labels, labels.new_tensor(step.new_classes))
        readings = {"past_only": past, "none": torch.zeros_like(confident)}
        pseudo = readings.get(config.pseudo, confident)
        counted = pseudo if config.epochs_as == "used" else readings.get(config.epochs_as, confident)
        pseudo_labeled = Labeled(step.unlabeled[pseudo], labels[pseudo])
        report = GateReport(
            scores, passed, confident, labels, self.threshold, self.pseudo_threshold, len(pseudo_labeled)
        )  # fmt: skip
        guide = step.unlabeled if config.guide == "all" else step.unlabeled[passed]
        return Segregated(pseudo_labeled, guide, report, int(counted.sum() - pseudo.sum()))

    def notes(self, z: Tensor) -> dict[str, float]:
        """Diagnostics for the record, given the embeddings of U_t."""
        return {
            "labeled_score_mean": float(self.labeled_scores.mean()),
            "labeled_score_std": float(self.labeled_scores.std(correction=0)),
            # A collapsed reference maps everything to one point: mean cosine 1.
            "reference_mean_cosine": float(z.mean(0).square().sum()) if len(z) else 0.0,
        }


def prototype_cosines(z: Tensor, prototypes: Tensor) -> Tensor:
    """Cosines of L2-normalised rows to prototypes, (n, k); -2 for a class without labelled images."""
    return (z @ prototypes.T).masked_fill(prototypes.norm(dim=1) == 0, -2.0)


def thresholds(scores: Tensor, config: GateConfig) -> tuple[float, float]:
    """tau_id and tau_pl from the scores of the labelled rows."""
    spread = scores.new_zeros(())  # a single score has none
    if len(scores) > 1:
        spread = scores.var() if config.spread == "var" else scores.std()
    return float(scores.mean() + config.eta[0] * spread), float(scores.mean() + config.eta[1] * spread)


def mean_view_embedding(encoder: Encoder, images: Tensor, views: int, setting: Setting, t: int) -> Tensor:
    """Mean embedding over the augmentations A of Eq. 2, (n, d); of the plain image if there are none."""
    total = None
    for a in range(views):
        u = draws(len(images), seeded(setting.seed, "gate", t, "prototype", a, device=images.device))
        view = in_chunks(lambda x, u: encoder(augment(x, u, setting.augmentation)), images, u)
        total = view if total is None else total + view
    return in_chunks(encoder, images) if total is None else total / views


def fit_gate(
    config: GateConfig, encoder: Encoder, labeled: Labeled, classes: Sequence[int], setting: Setting, t: int
) -> Gate:
    """Prototypes of T_t and M in the reference's space, and the thresholds from their scores (lines 5-7)."""
    columns = columns_of(labeled.labels, classes)
    views = mean_view_embedding(encoder, labeled.images, config.prototype_views, setting, t)
    # Eq. 2's 1 / count cancels in the projection to the sphere.
    prototypes = F.normalize(class_sums(views, columns, len(classes)), dim=1)  # line 5
    scores = prototype_cosines(in_chunks(encoder, labeled.images), prototypes).max(1).values  # line 6
    return Gate(prototypes, *thresholds(scores, config), scores)  # line 7
