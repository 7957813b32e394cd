"""DM: DistillMatch (Smith et al., IJCNN 2021).

A classifier learns from labels, from its own past by logit distillation, from unlabelled images that a second network
finds like the past classes, and, by FixMatch, from all of them; then its head, balanced, and the second network.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osscl.config import require, require_declared
from osscl.data.images import Labeled, columns_of, concat
from osscl.learn.balance import BALANCING, class_weights, rank_in_class
from osscl.learn.batches import Shuffled, side_by_side
from osscl.learn.memory import Memory
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.losses.distillation import fixmatch, logit_distillation
from osscl.methods.base import Phases, Runtime, Setting, State, StepReport, Training
from osscl.seeding import seeded
from osscl.stream.step import Step
from osscl.vision.backbones import require_backbone
from osscl.vision.encoder import Classifier, Deconfident, Net, frozen_copy, in_chunks, placed
from osscl.vision.novelty import calibrated, novelty_scores
from osscl.vision.randaugment import WeakAugmentation, strong_view, weak_view

STEPWISE = OptimiserConfig("sgd", 0.1, decay=5e-4, nesterov=False, milestones=(2 / 3, 8 / 9))
NONE = -1  # the pseudo-label of a row that has none


@dataclass(frozen=True)
class DmConfig:
    """DistillMatch's hyperparameters, those of its authors' code."""

    needs_new_classes: ClassVar[bool] = True  # in every step

    backbone: str = "resnet18"
    epochs: int = 180
    epochs_balance: int = 20  # of the head alone
    epochs_novelty: int = 90  # of the second network
    batch: int = 64  # labelled images an update
    unlabeled_batch: int = 128
    temperature: float = 2.0
    distill: float = 1.0  # weight of the distillation from the past
    consistency: float = 1.0  # weight of FixMatch
    threshold: float = 0.85  # of FixMatch
    true_positives: float = 0.05  # share of held-out labelled images that may pass as being of a past class
    perturbation: Literal["highest", "lowest"] = "highest"  # which input perturbation wins: by its mean score
    longest: float = 1.0  # gradient
    optimiser: OptimiserConfig = STEPWISE
    balance: OptimiserConfig = BALANCING

    def __post_init__(self) -> None:
        require_backbone(self.backbone)
        require_declared(self)
        require(self.temperature <= 1000, self, "temperature", "at most 1000")
        for name in (
            "epochs",
            "epochs_balance",
            "epochs_novelty",
            "batch",
            "unlabeled_batch",
            "temperature",
            "longest",
        ):
            require(getattr(self, name) > 0, self, name, "positive")
        for name in ("distill", "consistency"):
            require(getattr(self, name) >= 0, self, name, "0 or more")
        require(self.batch > 1, self, "batch", "at least 2")
        for name in ("threshold", "true_positives"):
            require(0 <= getattr(self, name) <= 1, self, name, "in [0, 1]")


@dataclass(frozen=True)
class Pool:
    """What a step is learned from."""

    images: Tensor  # of T_t and M
    columns: Tensor  # of their classes
    unlabeled: Tensor  # U_t; empty at the first step
    pseudo: Tensor  # columns of U_t's rows, or NONE


class Dm:
    """The agent: a classifier, a network that tells what is novel, and a memory."""

    def __init__(self, config: DmConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.sizes: list[int] = []  # classes that each step brought
        images, precision, kind = setting.images, runtime.precision, config.backbone
        self.model = self._placed("model", lambda: Classifier(kind, images, precision))
        self.novelty = self._placed("novelty", lambda: Deconfident(kind, images, precision))
        self.past: Classifier | None = None
        self.novelty_past: Deconfident | None = None
        self.passing = torch.inf  # the score that an image of a past class must reach
        self.epsilon = 0.0  # strength of the input perturbation
        self.pseudo: Tensor | None = None  # of this step's U_t
        self.memory = Memory(setting.memory, setting.no_images().to(runtime.device))
        self.views = WeakAugmentation(setting.augmentation.flip, brightness=63 / 255, contrast=0.8)
        self.phases = Phases(runtime)

    def _placed(self, name: str, make: Callable[[], Net]) -> Net:
        return placed(make, seeded(self.setting.seed, "init", name), self.runtime.device)

    def learn(self, step: Step) -> StepReport:
        """One step: pseudo-labels, the classifier, its head, the network that tells what is novel, the memory."""
        if self.phases.open(step.index):
            self._open(step)
        self.phases.once("pseudo-labels", lambda: self._label(step.unlabeled))
        known = concat(step.labeled, self.memory.labeled)
        pool = self._pool(known, step)
        self.phases.train("model", lambda: self._training("model", pool))
        self.phases.train("balance", lambda: self._balancing(pool))
        kept, held = self._halves(known)
        if len(kept) + len(pool.unlabeled) > 1:  # its norms know nothing from a single image
            self.phases.train("novelty", lambda: self._training("novelty", self._pool(kept, step)))
        self.phases.once("calibration", lambda: self._calibrate(held))
        notes = {"pseudo_labeled": 0.0 if self.pseudo is None else float((self.pseudo != NONE).sum())}
        if self.passing != torch.inf:
            notes["novelty_threshold"] = self.passing
        rng = seeded(self.setting.seed, "memory", step.index)
        self.memory.update(step.labeled, self.classes, "random", rng)
        return StepReport(tuple(self.phases.log.reports.values()), notes=notes)

    def _open(self, step: Step) -> None:
        if self.classes:
            self.past, self.novelty_past = frozen_copy(self.model), frozen_copy(self.novelty)
        new, rng = len(step.new_classes), seeded(self.setting.seed, "head", step.index)
        self.model.head.grow(new, rng)
        self.novelty.rows.grow(new, rng)
        self.classes.extend(step.new_classes)
        self.sizes.append(new)
        self.memory.take_in(step.further)

    def _label(self, images: Tensor) -> None:
        """The classifier as it was before the step names what is not novel to it."""
        self.pseudo = None
        if self.past is not None and self.novelty_past is not None and len(images):
            scores = novelty_scores(self.novelty_past, images, self.epsilon)
            named = in_chunks(self.past, images).argmax(1)
            self.pseudo = torch.where(scores > self.passing, named, NONE)

    def _pool(self, known: Labeled, step: Step) -> Pool:
        columns, world = columns_of(known.labels, self.classes), step.unlabeled
        if self.pseudo is None:  # the first step goes by labels alone
            return Pool(known.images, columns, world[:0], columns[:0])
        return Pool(known.images, columns, world, self.pseudo)

    def _halves(self, known: Labeled) -> tuple[Labeled, Labeled]:
        """To train the second network on, and to calibrate it: of each class every second image."""
        ranks = rank_in_class(columns_of(known.labels, self.classes), len(self.classes))
        return known.rows((ranks % 2 == 0).nonzero().squeeze(1)), known.rows((ranks % 2 == 1).nonzero().squeeze(1))

    def _calibrate(self, held: Labeled) -> None:
        share, highest = self.config.true_positives, self.config.perturbation == "highest"
        self.epsilon, self.passing = calibrated(self.novelty, held.images, share, highest=highest)

    # ----- the phases

    def _training(self, name: str, pool: Pool) -> Training:
        """Of the classifier, or of the second network by the same losses without FixMatch and for half as long."""
        novelty = name == "novelty"
        net: nn.Module = self.novelty if novelty else self.model
        past = self.novelty_past if novelty else self.past
        weights = class_weights(pool.columns, len(self.classes), smoothing=1, most=10)
        loss = self._loss(net, past, weights, pool, consistency=0.0 if novelty else self.config.consistency)
        epochs = self.config.epochs_novelty if novelty else self.config.epochs
        return self._phase(name, [net], self.config.optimiser, epochs, pool, loss)

    def _balancing(self, pool: Pool) -> Training:
        weights = class_weights(pool.columns, len(self.classes), smoothing=1, most=10)
        labels_alone = Pool(pool.images, pool.columns, pool.unlabeled[:0], pool.pseudo[:0])
        loss = self._loss(self.model, None, weights, labels_alone, consistency=0.0)
        epochs = self.config.epochs_balance
        return self._phase("balance", [self.model.head], self.config.balance, epochs, labels_alone, loss)

    def _loss(
        self, net: nn.Module, past: nn.Module | None, weights: Tensor, pool: Pool, *, consistency: float
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
        """Distillation over the classes of each past step by itself, steps weighing as they have classes."""
        parts, start, total = self.sizes[:-1], 0, logits.new_zeros(())
        for size in parts:
            mine = slice(start, start + size)
            part = logit_distillation(logits[:, mine], old[:, mine], self.config.temperature).mean()
            total, start = total + part * size / len(self.classes), start + size
        return total

    def _phase(
        self, name: str, nets: Sequence[nn.Module], optimiser: OptimiserConfig, epochs: int, pool: Pool,
        loss: Callable[..., Tensor],
    ) -> Training:  # fmt: skip
        config, seed, device, names = self.config, self.setting.seed, self.runtime.device, (name, self.phases.step)
        labeled = Shuffled(len(pool.images), config.batch, seed, names, device)
        world = Shuffled(len(pool.unlabeled), config.unlabeled_batch, seed, (*names, "unlabeled"), device)
        twice = name == "model" and config.consistency > 0
        nothing = torch.empty(0, dtype=torch.long, device=device)

        def update(descent: Descent) -> Callable[..., Tensor]:
            def one(rows: Tensor, u: Tensor, more: Tensor = nothing, v: Tensor | None = None) -> Tensor:
                views = [weak_view(pool.images[rows], u, self.views)]
                if v is not None:
                    views.append(weak_view(pool.unlabeled[more], v[: len(more)], self.views))
                    views += [strong_view(pool.unlabeled[more], v[len(more) :], self.views)] if twice else []
                value = loss(torch.cat(views), pool.columns[rows], more)
                descent.step(value, None if name == "balance" else config.longest)
                return value.detach()

            return one

        schedule = self.setting.schedule
        updates = schedule.capped(schedule.epochs(epochs) * labeled.per_epoch)
        views = labeled.rows + ((1 + twice) * world.rows if world.pool else 0)
        return Training(
            nets, optimiser, updates, labeled.per_epoch, views, update,
            lambda start: side_by_side([(labeled, 1), (world, 1 + twice)], start),
        )  # fmt: skip

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes met so far); changes nothing."""
        return in_chunks(self.model, images)

    @property
    def known_above(self) -> float | None:
        """The calibrated threshold; None where no image was left to calibrate by."""
        return None if self.passing == torch.inf else self.passing

    def known_scores(self, images: Tensor) -> Tensor:
        """What the second network says, as it will of the next step's U_t."""
        return novelty_scores(self.novelty, images, self.epsilon)

    def features(self, images: Tensor) -> Tensor:
        """Of the network that tells what is novel."""
        return in_chunks(self.novelty.features, images)

    def state(self) -> State:
        nets = {"model": self.model, "novelty": self.novelty, "past": self.past, "novelty_past": self.novelty_past}
        return {
            "classes": list(self.classes),
            "sizes": list(self.sizes),
            **{name: net.state_dict() if net is not None else None for name, net in nets.items()},
            "passing": self.known_above,
            "epsilon": self.epsilon,
            "pseudo": self.pseudo,
            "memory": vars(self.memory.labeled),
            "phases": self.phases.state(),
        }

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes, self.sizes = list(state["classes"]), list(state["sizes"])
        self.model.load(state["model"])
        self.novelty.load(state["novelty"])
        self.past = self.novelty_past = None
        if state["past"] is not None:
            self.past, self.novelty_past = frozen_copy(self.model), frozen_copy(self.novelty)
            self.past.load(state["past"])
            self.novelty_past.load(state["novelty_past"])
        self.passing = torch.inf if state["passing"] is None else state["passing"]
        self.epsilon = state["epsilon"]
        self.pseudo = None if state["pseudo"] is None else state["pseudo"].to(device)
        self.memory.labeled = Labeled(**state["memory"]).to(device)
        self.phases.load_state(state["phases"])
