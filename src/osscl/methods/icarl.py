"""iCaRL: incremental classifier and representation learning (Rebuffi et al., CVPR 2017); labels only.

Features are learned by sigmoids, old classes' from the network as it was; exemplars are herded; an image is of the
class whose exemplars' mean is nearest.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from osscl.config import require, require_declared
from osscl.data.images import Labeled, columns_of, concat
from osscl.learn.balance import class_sums
from osscl.learn.batches import Shuffled, side_by_side
from osscl.learn.memory import Memory, herded
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.losses.distillation import sigmoid_distillation
from osscl.methods.base import Phases, Runtime, Setting, State, StepReport, Training
from osscl.seeding import seeded
from osscl.stream.step import Step
from osscl.vision.backbones import require_backbone
from osscl.vision.encoder import Classifier, frozen_copy, in_chunks, placed
from osscl.vision.randaugment import WeakAugmentation, weak_view

PLAIN = OptimiserConfig("sgd", 0.1, min_rate=0.1, decay=2e-5, momentum=0.0)  # the decay of a loss with 1e-5 |w|^2


@dataclass(frozen=True)
class IcarlConfig:
    """iCaRL's hyperparameters; the URSL paper names none, these are Mammoth's."""

    backbone: str = "resnet18"
    epochs: int = 50
    batch: int = 32
    distill: bool = True  # old classes' targets from the network before the step, or their labels
    optimiser: OptimiserConfig = PLAIN

    def __post_init__(self) -> None:
        require_backbone(self.backbone)
        require_declared(self)
        require(self.epochs > 0, self, "epochs", "positive")
        require(self.batch > 1, self, "batch", "at least 2")


class Icarl:
    """The agent: a network, herded exemplars and their means."""

    def __init__(self, config: IcarlConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        rng, precision = seeded(setting.seed, "init", "model"), runtime.precision
        self.model = placed(lambda: Classifier(config.backbone, setting.images, precision), rng, runtime.device)
        self.past: Classifier | None = None
        self.memory = Memory(setting.memory, setting.no_images().to(runtime.device))
        self.means = torch.empty(0, self.model.width, device=runtime.device)  # one unit row a class
        self.views = WeakAugmentation(setting.augmentation.flip)
        self.phases = Phases(runtime)

    def learn(self, step: Step) -> StepReport:
        """One step: the network, the exemplars, their means."""
        if self.phases.open(step.index):
            self._open(step)
        self.phases.train("model", lambda: self._training(concat(step.labeled, self.memory.labeled)))
        if step.further is not None:  # which images of a class are the most telling is asked anew
            self.memory.labeled = self._herded(self.memory.labeled)
        self.memory.update(self._herded(step.labeled), self.classes, "first", seeded(self.setting.seed, "unused"))
        self.means = self._means()
        return StepReport(tuple(self.phases.log.reports.values()))

    def _open(self, step: Step) -> None:
        if self.classes and self.config.distill:
            self.past = frozen_copy(self.model)
        self.model.head.grow(len(step.new_classes), seeded(self.setting.seed, "head", step.index))
        self.classes.extend(step.new_classes)
        self.memory.take_in(step.further)

    def _training(self, pool: Labeled) -> Training:
        config, device, past = self.config, self.runtime.device, self.past
        columns = columns_of(pool.labels, self.classes)
        batches = Shuffled(len(pool), config.batch, self.setting.seed, ("model", self.phases.step), device)
        nothing = torch.empty(0, device=device)

        def update(descent: Descent) -> Callable[..., Tensor]:
            def one(rows: Tensor, u: Tensor) -> Tensor:
                x = weak_view(pool.images[rows], u, self.views)
                with torch.no_grad():
                    old = past(x) if past is not None else nothing.expand(len(rows), 0)
                loss = sigmoid_distillation(self.model(x), old, columns[rows])
                descent.step(loss)
                return loss.detach()

            return one

        schedule = self.setting.schedule
        updates = schedule.capped(schedule.epochs(config.epochs) * batches.per_epoch)
        return Training(
            [self.model], config.optimiser, updates, batches.per_epoch, batches.rows, update,
            lambda start: side_by_side([(batches, 1)], start),
        )  # fmt: skip

    def _features(self, images: Tensor) -> Tensor:
        return F.normalize(in_chunks(self.model.features, images), dim=1)

    def _herded(self, rows: Labeled) -> Labeled:
        """As many rows of each class as the memory may ever hold, the most telling ones first."""
        order = [rows.labels.new_empty(0)]
        for c in rows.labels.unique():
            mine = (rows.labels == c).nonzero().squeeze(1)
            order.append(mine[herded(self._features(rows.images[mine]), self.memory.budget)])
        return rows.rows(torch.cat(order))

    def _means(self) -> Tensor:
        """Of each class's exemplars in the space as it is now, unit rows; none at all where a class has no exemplar."""
        kept = self.memory.labeled
        if set(kept.labels.tolist()) != set(self.classes):
            return self.means[:0]
        features, columns = self._features(kept.images), columns_of(kept.labels, self.classes)
        return F.normalize(class_sums(features, columns, len(self.classes)), dim=1)

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes met so far): the nearer to a class's mean, the higher; changes nothing."""
        if not len(self.means):
            return in_chunks(self.model, images)  # without exemplars there is the network alone
        return -torch.cdist(self._features(images), self.means).square()

    def state(self) -> State:
        return {
            "classes": list(self.classes),
            "model": self.model.state_dict(),
            "past": self.past.state_dict() if self.past is not None else None,
            "memory": vars(self.memory.labeled),
            "means": self.means,
            "phases": self.phases.state(),
        }

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes = list(state["classes"])
        self.model.load(state["model"])
        self.past = None
        if state["past"] is not None:
            self.past = frozen_copy(self.model)
            self.past.load(state["past"])
        self.memory.labeled = Labeled(**state["memory"]).to(device)
        self.means = state["means"].to(device)
        self.phases.load_state(state["phases"])
