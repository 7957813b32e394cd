"""URSL: Unsupervised Reference and Supervised Learner. Line numbers refer to Algorithm 1.

Departures from the printed algorithm are marked `Deviation:`; docs/methods/ursl.md lists them and all open questions.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from osscl.config import require, require_declared, require_not_negative, require_positive
from osscl.data.images import Labeled, concat
from osscl.learn.linear_head import Head, HeadConfig, fit_head
from osscl.learn.memory import MemoryConfig
from osscl.learn.optimiser import OptimiserConfig
from osscl.losses.contrastive import asymmetric_supcon
from osscl.losses.distillation import relation_distillation
from osscl.methods.base import Runtime, Setting, State, StepReport, head_fit, new_memory, parts_of, rebuilt
from osscl.methods.gate import Gate, GateConfig, Segregated, fit_gate
from osscl.methods.phases import Phases
from osscl.methods.reference import Reference, ReferenceConfig
from osscl.seeding import seeded
from osscl.stream.build import Step
from osscl.vision.augment import two_views
from osscl.vision.encoder import Encoder, EncoderConfig, embed_frozen, frozen_copy, in_chunks, new_encoder, restored


@dataclass(frozen=True)
class LearnerConfig:
    """The learner network and its three losses (Eq. 7)."""

    net: EncoderConfig = field(default_factory=EncoderConfig)
    sup: float = 1.0  # weight of L_sup, for ablations; Eq. 7 has none
    gamma: float = 0.2  # weight of L_TD
    lam: float = 0.2  # weight of L_KD
    tau: float = 0.1  # temperature of L_sup
    tau_teacher: float = 0.01  # tau'
    tau_student: float = 0.2  # tau''
    epochs: int = 200  # E_S, passes over T_t, M and T-hat
    batch: int = 512
    min_updates: int = 0  # per step, scaled by the schedule's share
    teacher_statistics: Literal["eval", "batch"] = "eval"  # batch norms of both teachers
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        require_declared(self)
        require_not_negative(self, "sup", "gamma", "lam", "min_updates")
        require(self.sup + self.gamma + self.lam > 0, self, "sup", "positive, or gamma or lam must be")
        require_positive(self, "tau", "tau_teacher", "tau_student", "epochs")
        require(self.batch > 1, self, "batch", "at least 2")


@dataclass(frozen=True)
class UrslConfig:
    """URSL's hyperparameters. `methods/__init__.py` has the configurations `ursl` and `ursl-as-printed`."""

    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        require_declared(self)
        if not self.needs_reference:
            why = "without a reference, that is, with learner.lam=0 and gate.pseudo=none"
            require(not self.reference.pretrained, self, "reference.pretrained", f"false {why}")
            require(self.gate.epochs_as == "used", self, "gate.epochs_as", f"used {why}")
            require(self.memory.policy == "random", self, "memory.policy", f"random {why}")

    @property
    def needs_reference(self) -> bool:
        """Whether any part of the agent uses a reference network."""
        return self.learner.lam > 0 or self.gate.pseudo != "none"

    @property
    def wants_whole_pool(self) -> bool:
        """Whether the agent needs the unlabelled images of all steps before the first."""
        return self.reference.pretrained


class Ursl:
    """The agent: a reference network, a learner network, a memory and a head."""

    Config: type[UrslConfig] = UrslConfig

    def __init__(self, config: UrslConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.phases = Phases(setting, runtime)
        # Line 1: both networks with random weights.
        self.reference = Reference(config.reference, setting, self.phases) if config.needs_reference else None
        rng = seeded(setting.seed, "init", "learner")
        self.learner = new_encoder(config.learner.net, setting.images, rng, runtime.device, runtime.precision)
        self.past: Encoder | None = None  # SL_{t-1}
        self.memory = new_memory(setting, runtime)
        self.gate: Gate | None = None
        self.scored: tuple[Tensor, Tensor] | None = None  # S and the nearest class of every row of U_t
        self.head: Head | None = None
        self.notes: dict[str, float] = {}

    def learn(self, step: Step) -> StepReport:
        """Lines 3-17 of Algorithm 1; the loop over steps, line 2, is in runs/run.py."""
        if self.phases.begin_step(step.index):
            self.begin_step(step)  # line 3
        if self.reference is not None:
            self.reference.learn(step.unlabeled, step.index)  # line 4
        selected = self.segregate(step)  # lines 5-8
        self.train_learner(step, selected)  # lines 9-15
        with self.phases.timed("head"):
            # Deviation: line 17 is after the loop in the paper. Here every step fits the head, so that predict() is
            # always valid, and before line 16, so that the head still has all images that M held during the step.
            self.fit_head(step, selected)  # line 17
            self.update_memory(step)  # line 16
        self.scored = None  # needed only if the step is resumed after its gate was fitted
        return StepReport(self.phases.reports(), selected.report, dict(self.notes))

    def begin_step(self, step: Step) -> None:
        """Both networks continue from the previous step; a copy of the learner is SL_{t-1}."""
        self.scored, self.notes = None, {}
        self.classes.extend(step.new_classes)
        self.memory.add(step.further)  # Deviation: not in the paper, whose streams have no such images
        if step.index > 0 and self.config.learner.gamma > 0:
            self.past = self.teacher(self.learner)

    def teacher(self, encoder: Encoder) -> Encoder:
        return frozen_copy(encoder, batch_statistics=self.config.learner.teacher_statistics == "batch")

    def segregate(self, step: Step) -> Segregated:
        """Score U_t against the prototypes of T_t and M; select T-hat and U-hat by two thresholds."""
        if self.reference is None or not self.reference.trained:
            # Deviation: before the first unlabelled images there is no gate, and both sets are empty.
            return Segregated(self.setting.no_images().to(self.runtime.device), step.unlabeled[:0])
        self.phases.once("gate", lambda: self.fit_and_score(step))  # lines 5-7, and the scores of line 8
        assert self.gate is not None and self.scored is not None
        return self.gate.segregate(self.config.gate, step, *self.scored)  # line 8

    def fit_and_score(self, step: Step) -> None:
        """Fit the gate to T_t and M, and score U_t."""
        assert self.reference is not None
        encoder, labeled = self.reference.encoder, concat(step.labeled, self.memory.labeled)
        self.gate = fit_gate(self.config.gate, encoder, labeled, self.classes, self.setting, step.index)
        z = in_chunks(encoder, step.unlabeled)
        scores, nearest = self.gate.score(z)
        self.scored = scores, torch.tensor(self.classes, device=nearest.device)[nearest]
        self.notes |= {**self.gate.notes(z), "reference_batch": self.reference.batch_rows(step.unlabeled)}

    def train_learner(self, step: Step, selected: Segregated) -> None:
        """The while loop of Algorithm 1."""
        hp, augmentation, past = self.config.learner, self.setting.augmentation, self.past
        taus = hp.tau_student, hp.tau_teacher  # tau'', tau'
        pool = concat(step.labeled, self.memory.labeled, selected.pseudo_labeled)  # T_t, M and T-hat
        anchors = torch.isin(pool.labels, pool.labels.new_tensor(step.new_classes))  # y in O_t, Eq. 3
        if self.config.gate.pseudo == "all_but_no_anchor":
            anchors[len(pool) - len(selected.pseudo_labeled) :] = False
        pools = [(self.phases.shuffled("learner", len(pool), hp.batch), 2)]  # two views of each image
        # Deviation: before the first unlabelled images there is no L_KD either.
        guide, reference = pool.images[:0], None
        if hp.lam > 0 and self.reference is not None and self.reference.trained:
            guide = torch.cat((step.labeled.images, self.memory.labeled.images, selected.guide))  # T_t, M and U-hat
            reference = self.teacher(self.reference.encoder)
            pools.append((self.phases.shuffled("guide", len(guide), hp.batch), 2))
        phase = self.phases.train(
            "learner", [self.learner], hp.optimiser, hp.epochs, pools,
            min_updates=hp.min_updates, extra_rows=selected.extra_rows,
        )  # fmt: skip

        def update(rows: Tensor, u: Tensor, *of_guide: Tensor) -> Tensor:
            y, x = pool.labels[rows].repeat(2), two_views(pool.images[rows], u, augmentation)  # line 10: B
            z = self.learner(x)
            loss = hp.sup * asymmetric_supcon(z, y, anchors[rows].repeat(2), hp.tau)  # line 11: L_sup
            if past is not None:  # line 12: t > 1, counted from 1
                loss = loss + hp.gamma * relation_distillation(z, embed_frozen(past, x), *taus)  # line 13: L_TD
            if reference is not None:  # line 14: L_KD, on a batch of T_t, M and U-hat
                guide_rows, guide_u = of_guide
                g = two_views(guide[guide_rows], guide_u, augmentation)
                loss = loss + hp.lam * relation_distillation(self.learner(g), embed_frozen(reference, g), *taus)
            return phase.step(loss)  # line 15

        replay = phase.capture(update)
        for batch in phase.batches():  # line 9; a batch is drawn in line 10
            phase.report(replay(*batch))
        self.notes |= phase.sizes(anchors)

    def fit_head(self, step: Step, selected: Segregated) -> None:
        """Fit a linear head on the learner to T_t and M; `ursl-plus` also uses what the gate selected."""
        self.head = fit_head(self.config.head, head_fit(self.learner, step, self.memory, self.classes, self.setting))

    def update_memory(self, step: Step) -> None:
        """Keep equally many images of every class, ranked by the reference if the policy needs it."""
        # Deviation: without a gate there are no prototypes to rank by.
        policy = self.config.memory.policy if self.gate is not None else "random"
        rng = seeded(self.setting.seed, "memory", step.index)
        self.memory.update(step.labeled, self.classes, rng, policy, self.cosine_to_prototype)

    def cosine_to_prototype(self, rows: Labeled) -> Tensor:
        """Cosine of each image of one class to its prototype."""
        assert self.reference is not None and self.gate is not None
        prototype = self.gate.prototypes[self.classes.index(int(rows.labels[0]))]
        return in_chunks(self.reference.encoder, rows.images) @ prototype

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        if self.head is None:
            raise RuntimeError("predict() was called before learn()")
        return self.head(in_chunks(self.learner.features, images))

    # ----- not in Algorithm 1

    @property
    def known_above(self) -> float | None:
        """tau_id; None without a trained reference."""
        return self.gate.threshold if self.gate is not None else None

    def known_scores(self, images: Tensor) -> Tensor:
        """S(x), (n,): the largest cosine to a prototype."""
        assert self.reference is not None and self.gate is not None
        return self.gate.score(in_chunks(self.reference.encoder, images))[0]

    def features(self, images: Tensor) -> Tensor:
        """Features of the reference, which has seen more than the labelled classes, or else of the learner."""
        encoder = self.reference.encoder if self.reference is not None and self.reference.trained else self.learner
        return in_chunks(encoder.features, images)

    def kept(self) -> dict[str, Tensor]:
        """Images of M, and the prototypes and labelled scores of the gate."""
        kept = {"memory": self.memory.labeled.images}
        if self.gate is not None:
            kept |= {"gate.prototypes": self.gate.prototypes, "gate.labeled_scores": self.gate.labeled_scores}
        return kept

    def forget(self, column: int) -> None:
        """Delete a class's images, prototype and row of the head; the networks keep what they learned from it."""
        assert self.classes == [*range(len(self.classes))] and self.head is not None
        self.classes, self.scored = self.classes[:-1], None
        self.memory.forget(column)
        self.head = self.head.without(column)
        self.gate = self.gate.without(column) if self.gate is not None else None

    def state(self) -> State:
        parts = parts_of(self, "phases", "reference", "learner", "past", "memory", "gate", "head")
        return {**parts, "classes": list(self.classes), "scored": self.scored, "notes": dict(self.notes)}

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes, self.notes = list(state["classes"]), dict(state["notes"])
        self.phases.load_state(state["phases"])
        if self.reference is not None:
            self.reference.load_state(state["reference"])
        self.learner.load_state_dict(state["learner"])
        self.past = restored(self.teacher(self.learner), state["past"])
        self.memory.load_state(state["memory"])
        self.gate = rebuilt(Gate, state["gate"], device)
        self.scored = (state["scored"][0].to(device), state["scored"][1].to(device)) if state["scored"] else None
        self.head = rebuilt(Head, state["head"], device)
