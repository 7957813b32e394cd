"""Co2L (ICCV 2021): contrastive continual learning, and the URSL paper's variants that use U_t.

co2l    labels only: asymmetric SupCon on T_t and M, relation distillation from the network of the previous step.
co2l-j  jointly with NT-Xent on batches of all of U_t, in the same network.
co2l-p  pre-trained by SimCLR on U_1; later unlabelled images are not used.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from osscl.config import added_later, require, require_declared
from osscl.data.images import concat
from osscl.errors import SpecError
from osscl.learn.linear_head import Head, HeadConfig, fit_head
from osscl.learn.optimiser import OptimiserConfig
from osscl.losses.contrastive import asymmetric_supcon, nt_xent
from osscl.losses.distillation import relation_distillation
from osscl.methods.base import Runtime, Setting, State, StepReport, head_fit, new_memory, parts_of, rebuilt
from osscl.methods.phases import Phases
from osscl.methods.reference import Reference, ReferenceConfig
from osscl.methods.ursl import LearnerConfig
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.augment import two_views
from osscl.vision.encoder import Encoder, embed_frozen, frozen_copy, in_chunks, new_encoder, restored


@dataclass(frozen=True)
class Co2lConfig:
    """Co2L and its variants."""

    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(lam=0.0))  # lam: weight of co2l-j's NT-Xent
    base_temperature: float | None = None  # SupCon's factor tau / base; the URSL paper's equation has none
    unlabeled: Literal["none", "joint", "pretrain"] = "none"
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)  # co2l-p: how U_1 is learned
    head: HeadConfig = field(default_factory=HeadConfig)
    # Epochs of the first step, whose warm-up is as long as that of later steps; None: as many as at later steps.
    epochs_first: int | None = added_later(None, legacy=None)

    def __post_init__(self) -> None:
        require_declared(self)
        positive = self.base_temperature is None or self.base_temperature > 0
        require(positive, self, "base_temperature", "positive, or null")
        require(self.epochs_first is None or self.epochs_first > 0, self, "epochs_first", "positive, or null")
        self.length_of(0)  # refuses a warm-up that is longer than the first step
        require(not self.reference.pretrained, self.reference, "pretrained", "false: co2l-p learns from U_1")
        if self.unlabeled == "pretrain" and self.learner.net != self.reference.net:
            raise SpecError("unlabeled=pretrain needs the same learner.net and reference.net")
        if self.unlabeled != "joint":
            require(self.learner.lam == 0, self.learner, "lam", "0 without unlabeled=joint")

    def length_of(self, step: int) -> tuple[int, OptimiserConfig]:
        """Epochs of a step, and its optimiser."""
        hp = self.learner
        if step > 0 or self.epochs_first is None:
            return hp.epochs, hp.optimiser
        return self.epochs_first, replace(hp.optimiser, warmup=hp.optimiser.warmup * hp.epochs / self.epochs_first)

    @property
    def learns_unlabeled(self) -> bool:
        """Whether the unlabelled images of later steps are learned from."""
        return self.unlabeled == "joint"

    @property
    def demo_changes(self) -> dict[str, None]:
        """Changes for the demo's data, where the least number of updates is the same at every step."""
        return {"epochs_first": None}

    @property
    def needs_reference(self) -> bool:
        """Whether U_1 is learned before the labels, as a reference network learns it."""
        return self.unlabeled == "pretrain"

    @property
    def reference_once(self) -> bool:
        """Whether the reference learns only at the first step."""
        return True


class Co2l:
    """The agent: one network, a memory and a head."""

    Config = Co2lConfig

    def __init__(self, config: Co2lConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.phases = Phases(setting, runtime)
        rng = seeded(setting.seed, "init", "learner")
        self.encoder = new_encoder(config.learner.net, setting.images, rng, runtime.device, runtime.precision)
        self.past: Encoder | None = None
        pretrains = config.unlabeled == "pretrain"
        self.pretrained = Reference(config.reference, setting, self.phases) if pretrains else None
        self.memory = new_memory(setting, runtime)
        self.head: Head | None = None

    def learn(self, step: Step) -> StepReport:
        """One step: pre-training for co2l-p, the network, the head, the memory."""
        if self.phases.begin_step(step.index):
            self.classes.extend(step.new_classes)
            self.memory.add(step.further)
            if step.index > 0 and self.config.learner.gamma > 0:
                self.past = self.teacher()
        if self.pretrained is not None and step.index == 0:
            self.pretrained.learn(step.unlabeled, step.index)
            if self.pretrained.trained and not self.phases.has_begun("learner"):
                self.encoder.load_state_dict(self.pretrained.encoder.state_dict())  # projector included
        notes = self.train(step)
        with self.phases.timed("head"):
            self.fit_head(step)
            self.memory.update(step.labeled, self.classes, seeded(self.setting.seed, "memory", step.index))
        return StepReport(self.phases.reports(), notes=notes)

    def teacher(self) -> Encoder:
        return frozen_copy(self.encoder, batch_statistics=self.config.learner.teacher_statistics == "batch")

    def train(self, step: Step) -> dict[str, float]:
        """Asymmetric SupCon on T_t and M, distillation from the past network, NT-Xent on U_t for co2l-j."""
        hp, augmentation, past = self.config.learner, self.setting.augmentation, self.past
        pool = concat(step.labeled, self.memory.labeled)
        anchors = torch.isin(pool.labels, pool.labels.new_tensor(step.new_classes))
        pools = [(self.phases.shuffled("learner", len(pool), hp.batch), 2)]  # two views of each image
        if self.config.unlabeled == "joint" and len(step.unlabeled) > 1:
            pools.append((self.phases.shuffled("guide", len(step.unlabeled), hp.batch), 2))
        epochs, optimiser = self.config.length_of(step.index)
        phase = self.phases.train("learner", [self.encoder], optimiser, epochs, pools, min_updates=hp.min_updates)

        def update(rows: Tensor, u: Tensor, *joint: Tensor) -> Tensor:
            y, x = pool.labels[rows].repeat(2), two_views(pool.images[rows], u, augmentation)
            z, anchored = self.encoder(x), anchors[rows].repeat(2)
            supervised = asymmetric_supcon(z, y, anchored, hp.tau, base_temperature=self.config.base_temperature)
            loss = hp.sup * supervised
            if past is not None:
                z_past = embed_frozen(past, x)
                loss = loss + hp.gamma * relation_distillation(z, z_past, hp.tau_student, hp.tau_teacher)
            if joint:
                views = two_views(step.unlabeled[joint[0]], joint[1], augmentation)
                loss = loss + hp.lam * nt_xent(self.encoder(views), hp.tau)
            return phase.step(loss)

        replay = phase.capture(update)
        for batch in phase.batches():
            phase.report(replay(*batch))
        return phase.sizes(anchors)

    def fit_head(self, step: Step) -> None:
        fit = head_fit(self.encoder, step, self.memory, self.classes, self.setting)
        self.head = fit_head(self.config.head, fit)

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        if self.head is None:
            raise RuntimeError("predict() was called before learn()")
        return self.head(in_chunks(self.encoder.features, images))

    def state(self) -> State:
        parts = parts_of(self, "phases", "encoder", "past", "pretrained", "memory", "head")
        return {**parts, "classes": list(self.classes)}

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes = list(state["classes"])
        self.phases.load_state(state["phases"])
        self.encoder.load_state_dict(state["encoder"])
        self.past = restored(self.teacher(), state["past"])
        if self.pretrained is not None:
            self.pretrained.load_state(state["pretrained"])
        self.memory.load_state(state["memory"])
        self.head = rebuilt(Head, state["head"], device)
