"""iCaRL: incremental classifier and representation learning (Rebuffi et al., CVPR 2017); labels only.

Features are learned by sigmoid outputs, with the previous network's outputs as targets of old classes; exemplars are
chosen by herding; an image belongs to the class with the nearest mean of exemplars.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from osscl.data.images import Labeled, columns_of, concat
from osscl.learn.linear_head import class_sums
from osscl.learn.memory import herded
from osscl.learn.optimiser import OptimiserConfig
from osscl.losses.distillation import sigmoid_distillation
from osscl.methods.base import (
    Runtime,
    Setting,
    State,
    StepReport,
    new_classifier,
    new_memory,
    parts_of,
    require_classifier,
)
from osscl.methods.phases import Phases
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.encoder import Classifier, frozen_copy, in_chunks, restored
from osscl.vision.randaugment import WeakAugmentation, weak_view

PLAIN = OptimiserConfig("sgd", 0.1, min_rate=0.1, decay=2e-5, momentum=0.0)  # the decay of a loss with 1e-5 |w|^2


@dataclass(frozen=True)
class IcarlConfig:
    """iCaRL's hyperparameters; the URSL paper gives none, these are Mammoth's."""

    backbone: str = "resnet18"
    epochs: int = 50
    batch: int = 32
    distill: bool = True  # targets of old classes: outputs of the previous network, or labels
    optimiser: OptimiserConfig = PLAIN

    def __post_init__(self) -> None:
        require_classifier(self)

    @property
    def demo_changes(self) -> dict[str, int]:
        return {"epochs": 100}


class Icarl:
    """The agent: a network, herded exemplars and their means."""

    Config = IcarlConfig

    def __init__(self, config: IcarlConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.model = new_classifier(config.backbone, "model", setting, runtime)
        self.past: Classifier | None = None
        self.memory = new_memory(setting, runtime)
        self.means = torch.empty(0, self.model.width, device=runtime.device)  # one unit row per class
        self.views = WeakAugmentation(setting.augmentation.flip)
        self.phases = Phases(setting, runtime)

    def learn(self, step: Step) -> StepReport:
        """One step: the network, the exemplars, their means."""
        if self.phases.begin_step(step.index):
            self.begin_step(step)
        self.train(concat(step.labeled, self.memory.labeled))
        if step.further is not None:  # stored classes have new images: herd them again
            self.memory.labeled = self._herded(self.memory.labeled)
        self.memory.update(self._herded(step.labeled), self.classes, seeded(self.setting.seed, "unused"), "first")
        self.means = self._means()
        return StepReport(self.phases.reports())

    def begin_step(self, step: Step) -> None:
        if self.classes and self.config.distill:
            self.past = frozen_copy(self.model)
        self.model.head.grow(len(step.new_classes), seeded(self.setting.seed, "head", step.index))
        self.classes.extend(step.new_classes)
        self.memory.add(step.further)

    def train(self, pool: Labeled) -> None:
        """Sigmoid outputs; targets of old classes come from the network before the step."""
        config, past = self.config, self.past
        columns = columns_of(pool.labels, self.classes)
        pool_rows = self.phases.shuffled("model", len(pool), config.batch)
        phase = self.phases.train("model", [self.model], config.optimiser, config.epochs, [(pool_rows, 1)])
        nothing = torch.empty(0, device=self.runtime.device)

        def update(rows: Tensor, u: Tensor) -> Tensor:
            x = weak_view(pool.images[rows], u, self.views)
            with torch.no_grad():
                old = past(x) if past is not None else nothing.expand(len(rows), 0)
            loss = sigmoid_distillation(self.model(x), old, columns[rows])
            return phase.step(loss)

        replay = phase.capture(update)
        for batch in phase.batches():
            phase.report(replay(*batch))

    def _features(self, images: Tensor) -> Tensor:
        return F.normalize(in_chunks(self.model.features, images), dim=1)

    def _herded(self, rows: Labeled) -> Labeled:
        """As many rows of each class as the memory can hold, in herding order."""
        order = [rows.labels.new_empty(0)]
        for c in rows.labels.unique():
            mine = (rows.labels == c).nonzero().squeeze(1)
            order.append(mine[herded(self._features(rows.images[mine]), self.memory.budget)])
        return rows.rows(torch.cat(order))

    def _means(self) -> Tensor:
        """Mean of each class's exemplars under the current network, L2-normalised; empty if a class has no exemplar."""
        kept = self.memory.labeled
        if set(kept.labels.tolist()) != set(self.classes):
            return self.means[:0]
        features, columns = self._features(kept.images), columns_of(kept.labels, self.classes)
        return F.normalize(class_sums(features, columns, len(self.classes)), dim=1)

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far): negative squared distances to the class means; changes nothing."""
        if not len(self.means):
            return in_chunks(self.model, images)  # without exemplars, the network's own outputs
        return -torch.cdist(self._features(images), self.means).square()

    def other_heads(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The head as Mammoth evaluated it at the time of the paper: without the ReLU after the first convolution."""
        if not len(self.means):
            return {}
        bare, kept = without_stem_relu(self.model), self.memory.labeled
        columns = columns_of(kept.labels, self.classes)

        def nearest_mean(embed: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
            counts = torch.bincount(columns, minlength=len(self.classes))[:, None]
            means = class_sums(embed(kept.images), columns, len(self.classes)) / counts
            return lambda images: -torch.cdist(embed(images), means).square()

        def raw(images: Tensor) -> Tensor:
            return in_chunks(bare.features, images)

        return {
            "no stem ReLU": nearest_mean(lambda images: F.normalize(raw(images), dim=1)),
            "no stem ReLU, raw features": nearest_mean(raw),
        }

    def kept(self) -> dict[str, Tensor]:
        """Exemplars and their means."""
        return {"memory": self.memory.labeled.images, "means": self.means}

    def state(self) -> State:
        parts = parts_of(self, "phases", "model", "past", "memory")
        return {**parts, "classes": list(self.classes), "means": self.means}

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes = list(state["classes"])
        self.model.load(state["model"])
        self.past = restored(frozen_copy(self.model), state["past"])
        self.memory.load_state(state["memory"])
        self.means = state["means"].to(device)
        self.phases.load_state(state["phases"])


def without_stem_relu(model: Classifier) -> Classifier:
    """A frozen copy that lacks the activation after its first convolution and norm, where there is one."""
    bare = frozen_copy(model)
    bare.compiles = False  # compiling it for one evaluation would not pay off
    layers = bare.backbone.layers
    if isinstance(layers, nn.Sequential) and isinstance(layers[2], nn.ReLU):
        layers[2] = nn.Identity()
    return bare
