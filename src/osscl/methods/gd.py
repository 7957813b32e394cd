"""GD: global distillation with unlabelled images (Lee et al., ICCV 2019).

At every step, a teacher C learns to recognise the new classes and to be unsure of everything else. Then the model
learns from the labels and from three teachers: P, the model before the step; C; and Q, which combines both. Finally,
its head is balanced.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import require, require_declared, require_not_negative, require_positive
from osscl.data.images import columns_of, concat
from osscl.learn.linear_head import BALANCING, OUR_HEAD, Head, class_weights, fit_head
from osscl.learn.optimiser import OptimiserConfig
from osscl.losses.distillation import distance_from_even, logit_distillation
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
    require_fresh_optimisers,
)
from osscl.methods.phases import Phases
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.backbones import require_backbone
from osscl.vision.encoder import Classifier, frozen_copy, in_chunks, restored
from osscl.vision.randaugment import WeakAugmentation, weak_view

TEACHING = OptimiserConfig("sgd", 0.1, decay=5e-4, nesterov=False, milestones=(0.6, 0.8, 0.9))  # 120, 160, 180 of 200
STEPWISE = replace(TEACHING, milestones=(2 / 3, 8 / 9, 17 / 18))  # 120, 160, 170 of 180


@dataclass(frozen=True)
class GdConfig:
    """GD's hyperparameters, from its authors' code; using all of U_t follows DistillMatch."""

    backbone: str = "resnet18"
    epochs_teacher: int = 200  # of C
    epochs: int = 180  # of the model
    epochs_balance: int = 20  # of the head alone
    batch: int = 64  # labelled images per update
    unlabeled_batch: int | None = None  # null: as many as labelled ones; DistillMatch's 128 overwhelm a small T_t
    temperature: float = 2.0
    distill: float = 1.0  # weight of P, C and Q
    confidence: float = 1.0  # weight of the term that keeps C unsure of other classes
    external: Literal["all", "topk30_random70"] = "all"  # which images of U_t are used
    q_current: Literal["C", "P"] = "C"  # whose view of the new classes enters Q
    teacher: OptimiserConfig = TEACHING
    optimiser: OptimiserConfig = STEPWISE
    balance: OptimiserConfig = BALANCING

    def __post_init__(self) -> None:
        require_backbone(self.backbone)
        require_declared(self)
        require_fresh_optimisers(self)
        require(self.temperature <= 1000, self, "temperature", "at most 1000")
        require_positive(self, "epochs_teacher", "epochs", "epochs_balance", "batch", "temperature")
        require(self.unlabeled_batch is None or self.unlabeled_batch > 0, self, "unlabeled_batch", "positive, or null")
        require_not_negative(self, "distill", "confidence")

    @property
    def needs_new_classes(self) -> bool:
        return True

    @property
    def demo_changes(self) -> dict[str, int]:
        return {"epochs_teacher": 100, "epochs": 100, "epochs_balance": 20}


def global_target(past: Tensor, current: Tensor) -> Tensor:
    """Q, (m, k): P's best class keeps its probability; all other classes share the rest.

    `past` has P's probabilities of the earlier classes, `current` C's of the new ones; each row sums to 1.
    """
    others = past.shape[1] + current.shape[1] - 1
    best = past.max(1, keepdim=True)
    shrunk = (past * ((past.shape[1] - 1) / others)).scatter(1, best.indices, best.values)
    return torch.cat((shrunk, (1 - best.values) * current.shape[1] / others * current), 1)


@dataclass(frozen=True)
class GdPool:
    """The data of one step."""

    images: Tensor  # of T_t and M
    columns: Tensor  # of their classes
    external: Tensor  # images of U_t


class Gd:
    """The agent: a model, the teachers of the step, and a memory."""

    Config = GdConfig

    def __init__(self, config: GdConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.model = new_classifier(config.backbone, "model", setting, runtime)
        self.current = new_classifier(config.backbone, "current", setting, runtime)  # C
        self.past: Classifier | None = None  # P
        self.memory = new_memory(setting, runtime)
        self.views = WeakAugmentation(setting.augmentation.flip, brightness=63 / 255, contrast=0.8)
        self.phases = Phases(setting, runtime)
        self.ridge: Head | None = None  # a control: our head on this model's features

    def learn(self, step: Step) -> StepReport:
        """One step: C, the model, its head, the memory."""
        if self.phases.begin_step(step.index):
            self.begin_step(step)
        pool, config, model = self._pool(step), self.config, self.model
        self.train("teacher", [self.current], config.teacher, config.epochs_teacher, pool, self._teacher_loss)
        if self.past is None:
            self.phases.once("take over", lambda: model.load_state_dict(self.current.state_dict()))
        else:
            equal = torch.ones(len(self.classes), device=pool.images.device)
            self.train("model", [model], config.optimiser, config.epochs, pool, self._global_loss(equal))
            weights = class_weights(pool.columns, len(self.classes))
            loss = self._global_loss(weights)
            self.train("balance", [model.head], config.balance, config.epochs_balance, pool, loss)
        fit = head_fit(self.model, step, self.memory, self.classes, self.setting, "ridge")
        self.ridge = fit_head(OUR_HEAD, fit)
        self.memory.update(step.labeled, self.classes, seeded(self.setting.seed, "memory", step.index))
        return StepReport(self.phases.reports())

    def begin_step(self, step: Step) -> None:
        """P is a copy of the model; C starts from the model's body, with a head for the new classes."""
        new, rng = len(step.new_classes), seeded(self.setting.seed, "head", step.index)
        self.model.head.grow(new, rng)
        if self.classes:
            self.current.backbone.load_state_dict(self.model.backbone.state_dict())
        self.current.head.restart(new, rng)
        if self.classes:
            self.past = frozen_copy(self.model)
        self.classes.extend(step.new_classes)
        self.memory.add(step.further)

    @property
    def before(self) -> int:
        """Number of classes seen before this step."""
        return len(self.classes) - len(self.current.head.bias)

    def _pool(self, step: Step) -> GdPool:
        known = concat(step.labeled, self.memory.labeled)
        external = step.unlabeled
        if self.config.external == "topk30_random70":
            external = external[self._chosen(external, len(known), step.index)]
        return GdPool(known.images, columns_of(known.labels, self.classes), external)

    def _chosen(self, images: Tensor, n: int, t: int) -> Tensor:
        """As many rows of U_t as there are labels: 70 % at random, the rest most like P's classes."""
        rng = seeded(self.setting.seed, "external", t)
        shuffled = torch.randperm(len(images), generator=rng).to(images.device)
        if self.past is None or not len(images):
            return shuffled[:n]
        logits = in_chunks(self.past, images)[:, : self.before]
        most = round(0.3 * n) // logits.shape[1]
        alike = logits.topk(min(most, len(images)), 0).indices.flatten().unique()
        others = shuffled[~torch.isin(shuffled, alike)]
        return torch.cat((others[: n - len(alike)], alike))

    def train(
        self, name: str, nets: list[torch.nn.Module], optimiser: OptimiserConfig, epochs: int, pool: GdPool,
        loss: Callable[[Tensor, Tensor, int], Tensor],
    ) -> None:  # fmt: skip
        """One phase; `loss` takes views, the columns of the labelled ones, and the number of external ones."""
        labeled = self.phases.shuffled(name, len(pool.images), self.config.batch)
        external = self.phases.shuffled(
            name, len(pool.external), self.config.unlabeled_batch or labeled.rows, "external"
        )
        phase = self.phases.train(name, nets, optimiser, epochs, [(labeled, 1), (external, 1)])

        def update(rows: Tensor, u: Tensor, *more: Tensor) -> Tensor:
            images = pool.images[rows]
            if more:
                images, u = torch.cat((images, pool.external[more[0]])), torch.cat((u, more[1]))
            value = loss(weak_view(images, u, self.views), pool.columns[rows], len(images) - len(rows))
            return phase.step(value)

        replay = phase.capture(update)
        for batch in phase.batches():
            phase.report(replay(*batch))

    def _teacher_loss(self, x: Tensor, y: Tensor, external: int) -> Tensor:
        """C: cross-entropy on the new classes, and an even distribution for everything else."""
        logits, own = self.current(x), y - self.before
        mine = own >= 0
        right = F.cross_entropy(logits[: len(y)], own.clamp(min=0), reduction="none") * mine
        foreign = torch.cat((~mine, mine.new_ones(external)))
        unsure = (distance_from_even(logits) * foreign).sum() / foreign.sum().clamp(min=1)
        return right.sum() / mine.sum().clamp(min=1) + self.config.confidence * unsure

    def _global_loss(self, weights: Tensor) -> Callable[[Tensor, Tensor, int], Tensor]:
        """Labels weighted by class, Q on external rows, P and C on all rows."""
        hot, past, seen, k = self.config.temperature, self.past, len(self.classes), self.before
        assert past is not None

        def loss(x: Tensor, y: Tensor, external: int) -> Tensor:
            logits = self.model(x)
            total = (F.cross_entropy(logits[: len(y)], y, reduction="none") * weights[y]).sum()
            with torch.no_grad():
                old, new = past(x), self.current(x)
            current = new if self.config.q_current == "C" else old[:, k:]
            target = global_target(old[len(y) :, :k].softmax(1), current[len(y) :].softmax(1))
            together = F.kl_div(logits[len(y) :].log_softmax(1), target, reduction="sum") / len(x)
            kept = logit_distillation(logits[:, :k], old[:, :k], hot).mean() * k / seen
            gained = logit_distillation(logits[:, k:], new, hot).mean() * (seen - k) / seen
            return total / len(x) + self.config.distill * (together + hot**2 * (kept + gained))

        return loss

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        return in_chunks(self.model, images)

    def other_heads(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The same network with our head."""
        return our_head(self.model, self.ridge)

    def state(self) -> State:
        parts = parts_of(self, "phases", "model", "current", "past", "memory", "ridge")
        return {**parts, "classes": list(self.classes)}

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes = list(state["classes"])
        self.model.load(state["model"])
        self.current.load(state["current"])
        self.past = restored(frozen_copy(self.model), state["past"])
        self.memory.load_state(state["memory"])
        self.ridge = rebuilt(Head, state["ridge"], device)
        self.phases.load_state(state["phases"])
