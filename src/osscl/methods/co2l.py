"""Co2L: contrastive continual learning (ICCV 2021), and two ways in which the URSL paper lends it unlabelled images.

co2l    labels only: asymmetric SupCon on T_t and M, relation distillation from the network of the step before.
co2l-j  jointly with NT-Xent on batches of U_t, unsegregated, in the same network.
co2l-p  pre-trained by SimCLR on U_1; unlabelled images play no part after that.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from osscl.config import require, require_declared
from osscl.data.images import Labeled, concat
from osscl.errors import SpecError
from osscl.learn.linear_head import Head, HeadConfig, HeadFit, fit_head
from osscl.learn.memory import Memory
from osscl.methods.base import PhaseLog, Runtime, Setting, State, StepReport, on_device
from osscl.methods.learner import Learner, LearnerConfig, Lesson, anchor_rows
from osscl.methods.reference import Reference, ReferenceConfig
from osscl.seeding import seeded
from osscl.stream.step import Step
from osscl.vision.encoder import in_chunks


@dataclass(frozen=True)
class Co2lConfig:
    """Co2L and its variants."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(lam=0.0))  # lam weighs co2l-j's NT-Xent
    unlabeled: Literal["none", "joint", "pretrain"] = "none"
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)  # co2l-p: how U_1 is learned
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        require_declared(self)
        require(self.head.pseudo == "none", self.head, "pseudo", "none: Co2L has no gate")
        require(not self.head.carried, self.head, "carried", "false: Co2L has no unlabelled images to follow drift by")
        require(self.head.reference == 0, self.head, "reference", "0: Co2L has no reference")
        require(not self.reference.pretrained, self.reference, "pretrained", "false: co2l-p learns from U_1")
        if self.unlabeled == "pretrain" and self.learner.net != self.reference.net:
            raise SpecError("unlabeled=pretrain needs learner.net and reference.net of one shape")
        if self.unlabeled != "joint":
            require(self.learner.lam == 0, self.learner, "lam", "0 without unlabeled=joint")
            require(self.learner.past_on == "pool", self.learner, "past_on", "pool without unlabeled=joint")
        require(self.learner.start == "random", self.learner, "start", "random; unlabeled=pretrain starts from U_1")

    @property
    def learns_unlabeled(self) -> bool:
        """Whether the unlabelled images of later steps are learned from."""
        return self.unlabeled == "joint"

    @property
    def needs_reference(self) -> bool:
        """Whether U_1 is learned before the labels, as a reference network learns it."""
        return self.unlabeled == "pretrain"


class Co2l:
    """The agent: one network, a memory and a head."""

    def __init__(self, config: Co2lConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.learner = Learner(config.learner, setting, runtime)
        self.pretrained: Reference | None = None
        if config.unlabeled == "pretrain":
            self.pretrained = Reference(config.reference, setting, runtime)
        self.memory = Memory(setting.memory, setting.no_images().to(runtime.device))
        self.head: Head | None = None
        self.step_open = -1
        self.log = PhaseLog(runtime)

    def learn(self, step: Step) -> StepReport:
        """One step: pre-training where it is asked for, the network, the head, the memory."""
        self._open(step)
        if self.pretrained is not None:
            self.pretrained.learn(step.unlabeled if step.index == 0 else step.unlabeled[:0], step.index, self.log)
            if self.pretrained.trained:
                self.learner.start_from(self.pretrained.encoder, step.index)  # projector included
        notes = self.learner.learn(self._lesson(step), step.index, self.log)
        self.log.begin("head")
        late = self.config.head.memory == "after"
        self.head = None if late else self.fit_head(step)
        rng = seeded(self.setting.seed, "memory", step.index)
        self.memory.update(step.labeled, self.classes, "random", rng)
        self.head = self.fit_head(step) if late else self.head
        self.log.end()
        return StepReport(tuple(self.log.reports.values()), notes=notes)

    def _open(self, step: Step) -> None:
        if self.step_open == step.index:
            return  # goes on inside this step
        self.step_open = step.index
        self.classes.extend(step.new_classes)
        self.memory.take_in(step.further)
        self.log = PhaseLog(self.runtime)
        if step.index > 0:
            self.learner.remember_past()

    def _lesson(self, step: Step) -> Lesson:
        pool = concat(step.labeled, self.memory.labeled)
        anchors = anchor_rows(self.config.learner, pool.labels, self.classes, step.new_classes)
        sizes = len(step.labeled), len(self.memory.labeled), 0
        joint = self.config.unlabeled == "joint" and len(step.unlabeled) > 1
        return Lesson(pool, sizes, anchors, step.unlabeled if joint else None)

    def fit_head(self, step: Step) -> Head:
        """A head on the network as it is, for the step's labels and the memory's other classes."""
        known = concat(step.labeled, self.memory.without(step.new_classes))
        names, cap = ("head", step.index), self.setting.schedule.max_updates
        encoder, augmentation, seed = self.learner.encoder, self.setting.augmentation, self.setting.seed
        return fit_head(self.config.head, HeadFit(encoder, known, self.classes, augmentation, seed, names, cap))

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes met so far); changes nothing."""
        if self.head is None:
            raise RuntimeError("predict() before the first learn()")
        return self.head(in_chunks(self.learner.encoder.features, images))

    def state(self) -> State:
        return {
            "classes": list(self.classes),
            "learner": self.learner.state(),
            "pretrained": self.pretrained.state() if self.pretrained is not None else None,
            "memory": vars(self.memory.labeled),
            "head": vars(self.head) if self.head is not None else None,
            "step_open": self.step_open,
            "log": self.log.state(),
        }

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes, self.step_open = list(state["classes"]), state["step_open"]
        self.learner.load_state(state["learner"])
        if self.pretrained is not None:
            self.pretrained.load_state(state["pretrained"])
        self.memory.labeled = Labeled(**state["memory"]).to(device)
        self.head = None
        if state["head"] is not None:
            self.head = Head(**on_device(device, state["head"]))
        self.log.load_state(state["log"])
