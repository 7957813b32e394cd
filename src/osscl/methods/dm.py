"""DM: DistillMatch (Smith et al., IJCNN 2021).

A classifier learns from labels, from its own past by logit distillation, from unlabelled images that a second network
finds similar to past classes, and, by FixMatch, from all of them. Then its head is balanced, and the second network
learns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osscl.config import require, require_not_negative, require_positive
from osscl.data.images import Labeled, columns_of, concat
from osscl.learn.linear_head import (
    BALANCING,
    OUR_HEAD,
    Head,
    class_weights,
    fit_head,
    rank_in_class,
)
from osscl.learn.optimiser import OptimiserConfig
from osscl.losses.distillation import fixmatch, logit_distillation
from osscl.methods.base import (
    Runtime,
    Setting,
    State,
    StepReport,
    head_fit,
    new_classifier,
    new_memory,
    our_head,
    parts_of,
    rebuilt,
    require_classifier,
)
from osscl.methods.phases import Phases
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.encoder import Classifier, Deconfident, build_on_device, frozen_copy, in_chunks, restored
from osscl.vision.randaugment import WeakAugmentation, strong_view, weak_view

STEPWISE = OptimiserConfig("sgd", 0.1, decay=5e-4, nesterov=False, milestones=(2 / 3, 8 / 9))
NONE = -1  # pseudo-label of a row without one
STRENGTHS = (0.0025, 0.005, 0.001, 0.002, 0.004, 0.08)  # DistillMatch's candidates for the perturbation
AT_ONCE = 256  # images; fewer than would be compiled


@dataclass(frozen=True)
class DmConfig:
    """DistillMatch's hyperparameters, from its authors' code."""

    backbone: str = "resnet18"
    epochs: int = 180
    epochs_balance: int = 20  # of the head alone
    epochs_novelty: int = 90  # of the second network
    batch: int = 64  # labelled images per update
    unlabeled_batch: int = 128
    temperature: float = 2.0
    distill: float = 1.0  # weight of the distillation from the past
    consistency: float = 1.0  # weight of FixMatch
    threshold: float = 0.85  # of FixMatch
    true_positives: float = 0.05  # share of held-out labelled images that count as a past class
    perturbation: Literal["highest", "lowest"] = "highest"  # mean score of the chosen input perturbation
    longest: float = 1.0  # norm that gradients are clipped to
    optimiser: OptimiserConfig = STEPWISE
    balance: OptimiserConfig = BALANCING

    def __post_init__(self) -> None:
        require_classifier(self)
        require(self.temperature <= 1000, self, "temperature", "at most 1000")
        require_positive(self, "epochs_balance", "epochs_novelty")
        require_positive(self, "unlabeled_batch", "temperature", "longest")
        require_not_negative(self, "distill", "consistency")
        for name in ("threshold", "true_positives"):
            require(0 <= getattr(self, name) <= 1, self, name, "in [0, 1]")

    @property
    def needs_new_classes(self) -> bool:
        return True

    @property
    def demo_changes(self) -> dict[str, int]:
        return {"epochs": 100, "epochs_balance": 20, "epochs_novelty": 50}


@dataclass(frozen=True)
class DmPool:
    """The data of one step."""

    images: Tensor  # of T_t and M
    columns: Tensor  # of their classes
    unlabeled: Tensor  # U_t; empty at the first step
    pseudo: Tensor  # columns of U_t's rows, or NONE


class Dm:
    """The agent: a classifier, a novelty network, and a memory."""

    Config = DmConfig

    def __init__(self, config: DmConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.sizes: list[int] = []  # classes that each step brought
        self.model = new_classifier(config.backbone, "model", setting, runtime)
        make = lambda: Deconfident(config.backbone, setting.images, runtime.precision)  # noqa: E731
        self.novelty = build_on_device(make, seeded(setting.seed, "init", "novelty"), runtime.device)
        self.past: Classifier | None = None
        self.novelty_past: Deconfident | None = None
        self.passing = torch.inf  # the score that an image of a past class must reach
        self.epsilon = 0.0  # strength of the input perturbation
        self.pseudo: Tensor | None = None  # of this step's U_t
        self.memory = new_memory(setting, runtime)
        self.views = WeakAugmentation(setting.augmentation.flip, brightness=63 / 255, contrast=0.8)
        self.phases = Phases(setting, runtime)
        self.ridge: Head | None = None  # a control: our head on this model's features

    def learn(self, step: Step) -> StepReport:
        """One step: pseudo-labels, the classifier, its head, the novelty network, the memory."""
        if self.phases.begin_step(step.index):
            self.begin_step(step)
        self.phases.once("pseudo-labels", lambda: self._label(step.unlabeled))
        known = concat(step.labeled, self.memory.labeled)
        pool = self._pool(known, step)
        self.train_network("model", pool)
        self.balance_head(pool)
        kept, held = self._halves(known)
        if len(kept) + len(pool.unlabeled) > 1:  # batch norms need more than one image
            self.train_network("novelty", self._pool(kept, step))
        self.phases.once("calibration", lambda: self._calibrate(held))
        notes = {"pseudo_labeled": 0.0 if self.pseudo is None else float((self.pseudo != NONE).sum())}
        if self.passing != torch.inf:
            notes["novelty_threshold"] = self.passing
        fit = head_fit(self.model, step, self.memory, self.classes, self.setting, "ridge")
        self.ridge = fit_head(OUR_HEAD, fit)
        self.memory.update(step.labeled, self.classes, seeded(self.setting.seed, "memory", step.index))
        self.pseudo = None
        return StepReport(self.phases.reports(), notes=notes)

    def begin_step(self, step: Step) -> None:
        if self.classes:
            self.past, self.novelty_past = frozen_copy(self.model), frozen_copy(self.novelty)
        new, rng = len(step.new_classes), seeded(self.setting.seed, "head", step.index)
        self.model.head.grow(new, rng)
        self.novelty.rows.grow(new, rng)
        self.classes.extend(step.new_classes)
        self.sizes.append(new)
        self.memory.add(step.further)

    def _label(self, images: Tensor) -> None:
        """Pseudo-labels by the classifier before the step, for images that are not novel to it."""
        self.pseudo = None
        if self.past is not None and self.novelty_past is not None and len(images):
            scores = novelty_scores(self.novelty_past, images, self.epsilon)
            named = in_chunks(self.past, images).argmax(1)
            self.pseudo = torch.where(scores > self.passing, named, NONE)

    def _pool(self, known: Labeled, step: Step) -> DmPool:
        columns, world = columns_of(known.labels, self.classes), step.unlabeled
        if self.pseudo is None:  # the first step uses labels only
            return DmPool(known.images, columns, world[:0], columns[:0])
        return DmPool(known.images, columns, world, self.pseudo)

    def _halves(self, known: Labeled) -> tuple[Labeled, Labeled]:
        """Halves of every class: one to train the novelty network, one to calibrate it."""
        ranks = rank_in_class(columns_of(known.labels, self.classes), len(self.classes))
        return known.rows((ranks % 2 == 0).nonzero().squeeze(1)), known.rows((ranks % 2 == 1).nonzero().squeeze(1))

    def _calibrate(self, held: Labeled) -> None:
        share, highest = self.config.true_positives, self.config.perturbation == "highest"
        self.epsilon, self.passing = calibrate_novelty(self.novelty, held.images, share, highest=highest)

    def train_network(self, name: str, pool: DmPool) -> None:
        """The classifier, or the novelty network by the same losses without FixMatch and for half as long."""
        novelty = name == "novelty"
        net, past = (self.novelty, self.novelty_past) if novelty else (self.model, self.past)
        consistency = 0.0 if novelty else self.config.consistency
        loss = self._loss(net, past, self._weights(pool), pool, consistency=consistency)
        epochs = self.config.epochs_novelty if novelty else self.config.epochs
        self.train(name, net, self.config.optimiser, epochs, pool, loss)

    def balance_head(self, pool: DmPool) -> None:
        labels_only = DmPool(pool.images, pool.columns, pool.unlabeled[:0], pool.pseudo[:0])
        loss = self._loss(self.model, None, self._weights(pool), labels_only, consistency=0.0)
        epochs = self.config.epochs_balance
        self.train("balance", self.model.head, self.config.balance, epochs, labels_only, loss)

    def _weights(self, pool: DmPool) -> Tensor:
        return class_weights(pool.columns, len(self.classes), smoothing=1, most=10)

    def _loss(
        self, net: nn.Module, past: nn.Module | None, weights: Tensor, pool: DmPool, *, consistency: float
    ) -> Callable[..., Tensor]:
        """Labels and pseudo-labels, the past's logits step by step, FixMatch."""

        def loss(x: Tensor, y: Tensor, more: Tensor) -> Tensor:
            strong, seen = len(more) if consistency else 0, len(y) + len(more)
            logits = net(x)
            labels = torch.cat((y, pool.pseudo[more]))
            counted = labels != NONE
            weigh = weights[labels.clamp(min=0)] * counted
            right = F.cross_entropy(logits[:seen], labels.clamp(min=0), reduction="none")
            total = (weigh * right).sum() / counted.sum()
            if past is not None:
                with torch.no_grad():
                    old = past(x[:seen])
                total = total + self.config.distill * self._kept(logits[:seen], old)
            if strong:
                total = total + consistency * fixmatch(logits[len(y) : seen], logits[seen:], self.config.threshold)
            return total

        return loss

    def _kept(self, logits: Tensor, old: Tensor) -> Tensor:
        """Distillation over the classes of each past step separately, weighted by their number."""
        start, total = 0, logits.new_zeros(())
        for size in self.sizes[:-1]:
            mine = slice(start, start + size)
            part = logit_distillation(logits[:, mine], old[:, mine], self.config.temperature).mean()
            total, start = total + part * size / len(self.classes), start + size
        return total

    def train(
        self, name: str, net: nn.Module, optimiser: OptimiserConfig, epochs: int, pool: DmPool,
        loss: Callable[..., Tensor],
    ) -> None:  # fmt: skip
        """One phase; `loss` takes views, the columns of the labelled ones, and the rows of the unlabelled ones."""
        config = self.config
        labeled = self.phases.shuffled(name, len(pool.images), config.batch)
        unlabeled = self.phases.shuffled(name, len(pool.unlabeled), config.unlabeled_batch, "unlabeled")
        twice = name == "model" and config.consistency > 0
        nothing = torch.empty(0, dtype=torch.long, device=self.runtime.device)
        phase = self.phases.train(name, [net], optimiser, epochs, [(labeled, 1), (unlabeled, 1 + twice)])

        def update(rows: Tensor, u: Tensor, more: Tensor = nothing, v: Tensor | None = None) -> Tensor:
            views = [weak_view(pool.images[rows], u, self.views)]
            if v is not None:
                views.append(weak_view(pool.unlabeled[more], v[: len(more)], self.views))
                views += [strong_view(pool.unlabeled[more], v[len(more) :], self.views)] if twice else []
            value = loss(torch.cat(views), pool.columns[rows], more)
            return phase.step(value, None if name == "balance" else config.longest)

        replay = phase.capture(update)
        for batch in phase.batches():
            phase.report(replay(*batch))

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        return in_chunks(self.model, images)

    def other_heads(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The same network with our head."""
        return our_head(self.model, self.ridge)

    @property
    def known_above(self) -> float | None:
        """The calibrated threshold; None if there was no image to calibrate with."""
        return None if self.passing == torch.inf else self.passing

    def known_scores(self, images: Tensor) -> Tensor:
        """Scores of the novelty network."""
        return novelty_scores(self.novelty, images, self.epsilon)

    def features(self, images: Tensor) -> Tensor:
        """Features of the novelty network."""
        return in_chunks(self.novelty.features, images)

    def state(self) -> State:
        return {
            **parts_of(self, "phases", "model", "novelty", "past", "novelty_past", "memory", "ridge"),
            "classes": list(self.classes),
            "sizes": list(self.sizes),
            "passing": self.known_above,
            "epsilon": self.epsilon,
            "pseudo": self.pseudo,
        }

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes, self.sizes = list(state["classes"]), list(state["sizes"])
        self.model.load(state["model"])
        self.novelty.load(state["novelty"])
        self.past = restored(frozen_copy(self.model), state["past"])
        self.novelty_past = restored(frozen_copy(self.novelty), state["novelty_past"])
        self.passing = torch.inf if state["passing"] is None else state["passing"]
        self.epsilon = state["epsilon"]
        self.pseudo = None if state["pseudo"] is None else state["pseudo"].to(device)
        self.memory.load_state(state["memory"])
        self.ridge = rebuilt(Head, state["ridge"], device)
        self.phases.load_state(state["phases"])


# ----- novelty, after Generalized ODIN


def novelty_scores(net: Deconfident, images: Tensor, epsilon: float) -> Tensor:
    """The highest h_k of each image, (n,), after a small perturbation that raises it: known images gain more."""
    parts = [_scores(net, chunk, epsilon) for chunk in images.split(AT_ONCE)]
    return torch.cat(parts) if parts else torch.empty(0, device=images.device)


def _scores(net: Deconfident, images: Tensor, epsilon: float) -> Tensor:
    x = (images.float() / 255).requires_grad_(epsilon > 0)
    with torch.set_grad_enabled(epsilon > 0):
        best = net.scores(net.features(x)).max(1).values
    if epsilon == 0:
        return best
    uphill = torch.autograd.grad(best.sum(), x)[0].sign()
    with torch.no_grad():
        moved = x + epsilon * torch.as_tensor(net.std) * uphill  # epsilon is in units of the normalised image
        return net.scores(net.features(moved)).max(1).values


def calibrate_novelty(
    net: Deconfident, images: Tensor, share: float, *, highest: bool = True, strengths: Sequence[float] = STRENGTHS
) -> tuple[float, float]:
    """The perturbation, and the score that a `share` of held-out known images exceeds; inf without images.

    Generalized ODIN takes the perturbation with the highest mean score; DistillMatch's code takes half of the lowest.
    """
    if not len(images):
        return 0.0, torch.inf
    means = {epsilon: float(novelty_scores(net, images, epsilon).mean()) for epsilon in strengths}
    epsilon = (max if highest else min)(means, key=lambda e: means[e]) / 2
    return epsilon, float(novelty_scores(net, images, epsilon).quantile(1 - share))
