"""Two yardsticks: a head on the reference, without a learner; and plain training on all available labels."""

from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from osscl.config import require_declared
from osscl.data.images import Labeled, columns_of, concat
from osscl.learn.linear_head import OUR_HEAD, Head, HeadConfig, fit_head
from osscl.learn.optimiser import OptimiserConfig
from osscl.methods.base import (
    Runtime,
    Setting,
    State,
    StepReport,
    head_fit,
    new_classifier,
    new_memory,
    parts_of,
    rebuilt,
    require_classifier,
)
from osscl.methods.phases import Phases
from osscl.methods.reference import Reference, ReferenceConfig
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.encoder import in_chunks
from osscl.vision.randaugment import WeakAugmentation, weak_view

COSINE = OptimiserConfig("sgd", 0.1, min_rate=0.0, decay=5e-4)


@dataclass(frozen=True)
class ReferenceOnlyConfig:
    """URSL's reference and its head."""

    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    head: HeadConfig = OUR_HEAD

    def __post_init__(self) -> None:
        require_declared(self)

    @property
    def needs_reference(self) -> bool:
        return True

    @property
    def wants_whole_pool(self) -> bool:
        return self.reference.pretrained


class ReferenceOnly:
    """The agent: a reference network, a memory and a head; no learner."""

    Config = ReferenceOnlyConfig

    def __init__(self, config: ReferenceOnlyConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.phases = Phases(setting, runtime)
        self.reference = Reference(config.reference, setting, self.phases)
        self.memory = new_memory(setting, runtime)
        self.head: Head | None = None

    def learn(self, step: Step) -> StepReport:
        """One step: the reference on U_t, the head on T_t and M, the memory."""
        if self.phases.begin_step(step.index):
            self.classes.extend(step.new_classes)
            self.memory.add(step.further)
        self.reference.learn(step.unlabeled, step.index)
        with self.phases.timed("head"):
            fit = head_fit(self.reference.encoder, step, self.memory, self.classes, self.setting)
            self.head = fit_head(self.config.head, fit)
            self.memory.update(step.labeled, self.classes, seeded(self.setting.seed, "memory", step.index))
        return StepReport(self.phases.reports())

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        if self.head is None:
            raise RuntimeError("predict() was called before learn()")
        return self.head(in_chunks(self.reference.encoder.features, images))

    def state(self) -> State:
        return {**parts_of(self, "phases", "reference", "memory", "head"), "classes": list(self.classes)}

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes = list(state["classes"])
        self.phases.load_state(state["phases"])
        self.reference.load_state(state["reference"])
        self.memory.load_state(state["memory"])
        self.head = rebuilt(Head, state["head"], device)


@dataclass(frozen=True)
class SupervisedConfig:
    """Cross-entropy on labelled images."""

    backbone: str = "resnet18"
    epochs: int = 200
    batch: int = 128
    optimiser: OptimiserConfig = COSINE

    def __post_init__(self) -> None:
        require_classifier(self)

    @property
    def demo_changes(self) -> dict[str, int]:
        return {"epochs": 100}


class Supervised:
    """The agent: a classifier and a memory. In a stream of one step it is trained on all labels at once."""

    Config = SupervisedConfig

    def __init__(self, config: SupervisedConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.model = new_classifier(config.backbone, "model", setting, runtime)
        self.memory = new_memory(setting, runtime)
        self.views = WeakAugmentation(setting.augmentation.flip)
        self.phases = Phases(setting, runtime)

    def learn(self, step: Step) -> StepReport:
        """One step: the classifier on T_t and M, the memory."""
        if self.phases.begin_step(step.index):
            self.model.head.grow(len(step.new_classes), seeded(self.setting.seed, "head", step.index))
            self.classes.extend(step.new_classes)
            self.memory.add(step.further)
        self.train(concat(step.labeled, self.memory.labeled))
        self.memory.update(step.labeled, self.classes, seeded(self.setting.seed, "memory", step.index))
        return StepReport(self.phases.reports())

    def train(self, pool: Labeled) -> None:
        config = self.config
        columns = columns_of(pool.labels, self.classes)
        pool_rows = self.phases.shuffled("model", len(pool), config.batch)
        phase = self.phases.train("model", [self.model], config.optimiser, config.epochs, [(pool_rows, 1)])

        def update(rows: Tensor, u: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(weak_view(pool.images[rows], u, self.views)), columns[rows])
            return phase.step(loss)

        replay = phase.capture(update)
        for batch in phase.batches():
            phase.report(replay(*batch))

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        return in_chunks(self.model, images)

    def state(self) -> State:
        return {**parts_of(self, "phases", "model", "memory"), "classes": list(self.classes)}

    def load_state(self, state: State) -> None:
        self.classes = list(state["classes"])
        self.model.load(state["model"])
        self.memory.load_state(state["memory"])
        self.phases.load_state(state["phases"])
