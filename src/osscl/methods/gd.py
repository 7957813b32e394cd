"""GD: global distillation with unlabelled images (Lee et al., ICCV 2019).

At every step a teacher C of the new classes, told to be unsure of everything else; then the model, from the labels and
from three teachers: P, itself before the step; C; and Q, which puts both together; then the head, classes balanced.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import require, require_declared
from osscl.data.images import columns_of, concat
from osscl.learn.balance import BALANCING, class_weights
from osscl.learn.batches import Shuffled, side_by_side
from osscl.learn.memory import Memory
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.losses.distillation import distance_from_even, logit_distillation
from osscl.methods.base import Phases, Runtime, Setting, State, StepReport, Training
from osscl.seeding import seeded
from osscl.stream.step import Step
from osscl.vision.backbones import require_backbone
from osscl.vision.encoder import Classifier, frozen_copy, in_chunks, placed
from osscl.vision.randaugment import WeakAugmentation, weak_view

TEACHING = OptimiserConfig("sgd", 0.1, decay=5e-4, nesterov=False, milestones=(0.6, 0.8, 0.9))  # 120, 160, 180 of 200
STEPWISE = replace(TEACHING, milestones=(2 / 3, 8 / 9, 17 / 18))  # 120, 160, 170 of 180


@dataclass(frozen=True)
class GdConfig:
    """GD's hyperparameters, those of its authors' code; that all of U_t is used is DistillMatch's."""

    needs_new_classes: ClassVar[bool] = True  # in every step

    backbone: str = "resnet18"
    epochs_teacher: int = 200  # of C
    epochs: int = 180  # of the model
    epochs_balance: int = 20  # of the head alone
    batch: int = 64  # labelled images an update
    unlabeled_batch: int | None = None  # as many as labelled ones; DistillMatch's 128 drown a small T_t
    temperature: float = 2.0
    distill: float = 1.0  # weight of what P, C and Q say
    confidence: float = 1.0  # weight of what keeps C unsure of all that is not of its classes
    external: Literal["all", "topk30_random70"] = "all"  # which images of U_t are used
    q_current: Literal["C", "P"] = "C"  # whose view of the new classes enters Q
    teacher: OptimiserConfig = TEACHING
    optimiser: OptimiserConfig = STEPWISE
    balance: OptimiserConfig = BALANCING

    def __post_init__(self) -> None:
        require_backbone(self.backbone)
        require_declared(self)
        require(self.temperature <= 1000, self, "temperature", "at most 1000")
        for name in ("epochs_teacher", "epochs", "epochs_balance", "batch", "temperature"):
            require(getattr(self, name) > 0, self, name, "positive")
        require(self.unlabeled_batch is None or self.unlabeled_batch > 0, self, "unlabeled_batch", "positive, or null")
        for name in ("distill", "confidence"):
            require(getattr(self, name) >= 0, self, name, "0 or more")


def global_target(past: Tensor, current: Tensor) -> Tensor:
    """Q, (m, k): P's best class keeps its probability, what it leaves is shared by all other classes.

    `past` are P's probabilities of the classes before the step, `current` C's of the new ones; each row sums to 1.
    """
    others = past.shape[1] + current.shape[1] - 1
    best = past.max(1, keepdim=True)
    shrunk = (past * ((past.shape[1] - 1) / others)).scatter(1, best.indices, best.values)
    return torch.cat((shrunk, (1 - best.values) * current.shape[1] / others * current), 1)


@dataclass(frozen=True)
class Pool:
    """What a step is learned from."""

    images: Tensor  # of T_t and M
    columns: Tensor  # of their classes
    external: Tensor  # images of U_t

    def batches(self, config: GdConfig, seed: int, names: tuple[str | int, ...]) -> tuple[Shuffled, Shuffled]:
        device = self.images.device
        labeled = Shuffled(len(self.images), config.batch, seed, names, device)
        beside = config.unlabeled_batch or labeled.rows
        return labeled, Shuffled(len(self.external), beside, seed, (*names, "external"), device)


class Gd:
    """The agent: a model, the teachers of the step, and a memory."""

    def __init__(self, config: GdConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.model = self._network("model")
        self.current = self._network("current")  # C
        self.past: Classifier | None = None  # P
        self.memory = Memory(setting.memory, setting.no_images().to(runtime.device))
        self.views = WeakAugmentation(setting.augmentation.flip, brightness=63 / 255, contrast=0.8)
        self.phases = Phases(runtime)

    def _network(self, name: str) -> Classifier:
        rng, precision = seeded(self.setting.seed, "init", name), self.runtime.precision
        return placed(
            lambda: Classifier(self.config.backbone, self.setting.images, precision), rng, self.runtime.device
        )

    def learn(self, step: Step) -> StepReport:
        """One step: C, the model, its head, the memory."""
        if self.phases.open(step.index):
            self._open(step)
        pool = self._pool(step)
        self.phases.train("teacher", lambda: self._teacher(pool))
        if self.past is None:
            self.phases.once("take over", lambda: self.model.load_state_dict(self.current.state_dict()))
        else:
            self.phases.train("model", lambda: self._model(pool))
            self.phases.train("balance", lambda: self._balance(pool))
        rng = seeded(self.setting.seed, "memory", step.index)
        self.memory.update(step.labeled, self.classes, "random", rng)
        return StepReport(tuple(self.phases.log.reports.values()))

    def _open(self, step: Step) -> None:
        """P is the model as it is; C begins as its body with a head of the new classes alone."""
        new, rng = len(step.new_classes), seeded(self.setting.seed, "head", step.index)
        self.model.head.grow(new, rng)
        if self.classes:
            self.current.backbone.load_state_dict(self.model.backbone.state_dict())
        self.current.head.restart(new, rng)
        if self.classes:
            self.past = frozen_copy(self.model)
        self.classes.extend(step.new_classes)
        self.memory.take_in(step.further)

    @property
    def before(self) -> int:
        """How many classes were met before this step."""
        return len(self.classes) - len(self.current.head.bias)

    def _pool(self, step: Step) -> Pool:
        known = concat(step.labeled, self.memory.labeled)
        external = step.unlabeled
        if self.config.external == "topk30_random70":
            external = external[self._chosen(external, len(known), step.index)]
        return Pool(known.images, columns_of(known.labels, self.classes), external)

    def _chosen(self, images: Tensor, n: int, t: int) -> Tensor:
        """Rows of U_t, as many as there are labels: 70 % at random, the rest what P finds most like its classes."""
        rng = seeded(self.setting.seed, "external", t)
        shuffled = torch.randperm(len(images), generator=rng).to(images.device)
        if self.past is None or not len(images):
            return shuffled[:n]
        logits = in_chunks(self.past, images)[:, : self.before]
        most = round(0.3 * n) // logits.shape[1]
        alike = logits.topk(min(most, len(images)), 0).indices.flatten().unique()
        others = shuffled[~torch.isin(shuffled, alike)]
        return torch.cat((others[: n - len(alike)], alike))

    # ----- the three phases

    def _teacher(self, pool: Pool) -> Training:
        def loss(x: Tensor, y: Tensor, external: int) -> Tensor:
            logits, own = self.current(x), y - self.before
            mine = own >= 0
            right = F.cross_entropy(logits[: len(y)], own.clamp(min=0), reduction="none") * mine
            foreign = torch.cat((~mine, mine.new_ones(external)))
            unsure = (distance_from_even(logits) * foreign).sum() / foreign.sum().clamp(min=1)
            return right.sum() / mine.sum().clamp(min=1) + self.config.confidence * unsure

        return self._training("teacher", [self.current], self.config.teacher, self.config.epochs_teacher, pool, loss)

    def _model(self, pool: Pool) -> Training:
        weights = torch.ones(len(self.classes), device=pool.images.device)
        loss = self._global_loss(weights)
        return self._training("model", [self.model], self.config.optimiser, self.config.epochs, pool, loss)

    def _balance(self, pool: Pool) -> Training:
        loss = self._global_loss(class_weights(pool.columns, len(self.classes)))
        epochs = self.config.epochs_balance
        return self._training("balance", [self.model.head], self.config.balance, epochs, pool, loss)

    def _global_loss(self, weights: Tensor) -> Callable[[Tensor, Tensor, int], Tensor]:
        """Labels, which weigh as their class does, and Q; and what P and C say of all rows."""
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

    def _training(
        self, name: str, nets: list[torch.nn.Module], optimiser: OptimiserConfig, epochs: int, pool: Pool,
        loss: Callable[[Tensor, Tensor, int], Tensor],
    ) -> Training:  # fmt: skip
        labeled, external = pool.batches(self.config, self.setting.seed, (name, self.phases.step))

        def update(descent: Descent) -> Callable[..., Tensor]:
            def one(rows: Tensor, u: Tensor, more: Tensor | None = None, v: Tensor | None = None) -> Tensor:
                images = pool.images[rows]
                if more is not None and v is not None:
                    images, u = torch.cat((images, pool.external[more])), torch.cat((u, v))
                value = loss(weak_view(images, u, self.views), pool.columns[rows], len(images) - len(rows))
                descent.step(value)
                return value.detach()

            return one

        schedule = self.setting.schedule
        updates = schedule.capped(schedule.epochs(epochs) * labeled.per_epoch)
        views = labeled.rows + (external.rows if external.pool else 0)
        return Training(
            nets, optimiser, updates, labeled.per_epoch, views, update,
            lambda start: side_by_side([(labeled, 1), (external, 1)], start),
        )  # fmt: skip

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes met so far); changes nothing."""
        return in_chunks(self.model, images)

    def state(self) -> State:
        return {
            "classes": list(self.classes),
            "model": self.model.state_dict(),
            "current": self.current.state_dict(),
            "past": self.past.state_dict() if self.past is not None else None,
            "memory": vars(self.memory.labeled),
            "phases": self.phases.state(),
        }

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes = list(state["classes"])
        self.model.load(state["model"])
        self.current.load(state["current"])
        self.past = None
        if state["past"] is not None:
            self.past = frozen_copy(self.model)
            self.past.load(state["past"])
        self.memory.labeled = type(self.memory.labeled)(**state["memory"]).to(device)
        self.phases.load_state(state["phases"])
