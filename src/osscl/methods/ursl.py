"""URSL: Unsupervised Reference and Supervised Learner (Algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from osscl.config import require_declared
from osscl.data.images import Labeled, concat
from osscl.errors import SpecError
from osscl.learn.linear_head import HeadConfig
from osscl.learn.memory import Memory, MemoryConfig
from osscl.methods.base import GateReport, PhaseLog, Runtime, Setting, State, StepReport, on_device
from osscl.methods.gate import Gate, GateConfig, Look, open_gate
from osscl.methods.learner import Learner, LearnerConfig, Lesson, anchor_rows
from osscl.methods.reference import Reference, ReferenceConfig
from osscl.methods.two_heads import TwoHeads
from osscl.seeding import seeded
from osscl.stream.step import Step
from osscl.vision.encoder import Encoder, in_chunks


@dataclass(frozen=True)
class UrslConfig:
    """URSL's hyperparameters; the defaults are the paper's, optimisers aside (`ursl-as-printed` has those too)."""

    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        require_declared(self)
        if self.learner.start != "random" and self.learner.net != self.reference.net:
            raise SpecError(
                f"learner.start={self.learner.start} needs learner.net and reference.net to be of one shape"
            )
        if self.reference.pretrained and not self.needs_reference:
            raise SpecError("reference.pretrained=true needs a part that uses the reference")
        if self.memory.policy != "random" and self.memory.confidence == "prototype_cosine" and not self.needs_reference:
            raise SpecError(f"memory.policy={self.memory.policy} by prototype_cosine needs a reference network")
        ranks = self.memory.policy != "random"
        if ranks and self.memory.confidence == "head_probability" and self.head.memory == "after":
            raise SpecError("memory.confidence=head_probability needs head.memory=before: the head must exist by then")

    @property
    def needs_reference(self) -> bool:
        """Whether any part of the agent learns by a reference network."""
        heads = self.head.reference > 0 or self.head.pseudo != "none"
        return self.learner.guided or self.gate.pseudo != "none" or self.learner.start != "random" or heads

    @property
    def wants_whole_pool(self) -> bool:
        return self.reference.pretrained


@dataclass(frozen=True)
class Segregated:
    """Lines 5-8 of Algorithm 1: what the gate says of U_t, and the rows that it hands on."""

    report: GateReport
    pseudo: Labeled  # T-hat
    related: Tensor  # U-hat's images


class Ursl:
    """The agent: a reference network, a learner network, a memory and a head (ours has two)."""

    def __init__(self, config: UrslConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        self.classes: list[int] = []
        self.reference = Reference(config.reference, setting, runtime) if config.needs_reference else None
        self.learner = Learner(config.learner, setting, runtime)
        self.memory = Memory(setting.memory, setting.no_images().to(runtime.device))
        self.heads = TwoHeads(config.head, setting, runtime.device)
        self.gate: Gate | None = None
        self.sorted: tuple[Tensor, Tensor] | None = None  # S and nearest class of the rows of U_t
        self.step_open = -1  # the step that learn() is in, or was in last
        self.log = PhaseLog(runtime)
        self.notes: dict[str, float] = {}

    def learn(self, step: Step) -> StepReport:
        """One step of the stream: lines 3-17 of Algorithm 1, then the head."""
        self._open(step)  # line 3
        if self.reference is not None:
            self.reference.learn(step.unlabeled, step.index, self.log)  # line 4
        found = self.segregate(step)  # lines 5-8
        if self.reference is not None and self.reference.trained and self.config.learner.start != "random":
            self.learner.start_from(self.reference.encoder, step.index)
        self.notes |= self.learner.learn(self._lesson(step, found), step.index, self.log)  # lines 9-16
        self._fit_head_and_remember(step, found)  # lines 17 and 19
        report = found.report if found is not None else None
        return StepReport(tuple(self.log.reports.values()), report, dict(self.notes))

    def _open(self, step: Step) -> None:
        if self.step_open == step.index:
            return  # goes on inside this step
        self.step_open, self.sorted = step.index, None
        self.log, self.notes = PhaseLog(self.runtime), {}
        if self.heads.look_back_first:
            self.log.begin("head")
            self.heads.look_back(step, self._networks())
            self.log.end()
        self.classes.extend(step.new_classes)
        self.memory.take_in(step.further)
        if step.index > 0:
            self.learner.remember_past()

    def segregate(self, step: Step) -> Segregated | None:
        """Sort U_t by what the reference makes of it; what an interruption finds sorted stays so."""
        if self.reference is None or not self.reference.trained:
            return None
        if self.sorted is None:
            self.log.begin("gate")
            look = self._look("gate", step.index)
            self.gate = open_gate(look, concat(step.labeled, self.memory.labeled), self.classes)
            z = look.for_scores(step.unlabeled)
            scores, nearest = self.gate.score(z)
            self.sorted = scores, self._tensor(self.classes)[nearest]
            self._note(self.gate, z)
            self.log.end()
        gate, (scores, labels) = self.gate, self.sorted
        assert gate is not None
        passed, confident = scores > gate.threshold, scores > gate.pseudo_threshold
        pseudo = self._pseudo_labeled(step, labels, confident)
        report = GateReport(scores, passed, confident, labels, gate.threshold, gate.pseudo_threshold, int(pseudo.sum()))
        related = step.unlabeled if self.config.gate.guide == "all" else step.unlabeled[passed]
        return Segregated(report, Labeled(step.unlabeled[pseudo], labels[pseudo]), related)

    def _look(self, *names: str | int) -> Look:
        assert self.reference is not None
        return Look(self.config.gate, self.reference.encoder, self.setting.augmentation, self.setting.seed, names)

    def _pseudo_labeled(self, step: Step, labels: Tensor, confident: Tensor) -> Tensor:
        """Rows of T-hat. The paper uses a pseudo-label only to tell whether a row is of a past class."""
        if self.config.gate.pseudo == "none":
            return torch.zeros_like(confident)
        if self.config.gate.pseudo == "past_only":
            return confident & ~torch.isin(labels, self._tensor(step.new_classes))
        return confident

    def _note(self, gate: Gate, z: Tensor) -> None:
        pool = self.setting.whole_pool if self.config.reference.pretrained else None
        self.notes |= {
            "labeled_score_mean": float(gate.labeled_scores.mean()),
            "labeled_score_std": float(gate.labeled_scores.std(correction=0)),
            # A collapsed reference maps everything to one point: mean cosine 1.
            "reference_mean_cosine": float(z.mean(0).square().sum()) if len(z) else 0.0,
            "reference_batch": min(self.config.reference.batch, len(z) if pool is None else len(pool)),
        }

    def _lesson(self, step: Step, found: Segregated | None) -> Lesson:
        """T_t, M and T-hat for L_sup and L_TD; T_t, M and U-hat for L_KD."""
        parts = [step.labeled, self.memory.labeled] + ([found.pseudo] if found is not None else [])
        pool = concat(*parts)
        sizes = len(step.labeled), len(self.memory.labeled), len(pool) - len(step.labeled) - len(self.memory.labeled)
        anchors = anchor_rows(self.config.learner, pool.labels, self.classes, step.new_classes)
        if self.config.gate.pseudo == "all_but_no_anchor":
            anchors[len(pool) - sizes[2] :] = False
        guided = self.config.learner.lam > 0 or (self.config.learner.guided and step.index > 0)
        if found is None or self.reference is None or not guided:
            return Lesson(pool, sizes, anchors)
        guide = torch.cat((step.labeled.images, self.memory.labeled.images, found.related))
        return Lesson(pool, sizes, anchors, guide, self.reference.encoder)

    def _fit_head_and_remember(self, step: Step, found: Segregated | None) -> None:
        """The head is refitted at every step, so that predict() is always valid; then M takes in T_t."""
        self.log.begin("head")
        if self.config.head.memory == "before":
            self.fit_heads(step, found)
        rng = seeded(self.setting.seed, "memory", step.index)
        # While every U_t was empty there is no gate, and with it nothing to rank by.
        ranks = self.gate is not None or self.config.memory.confidence == "head_probability"
        policy = self.config.memory.policy if ranks else "random"
        self.memory.update(step.labeled, self.classes, policy, rng, self._confidence)
        if self.config.head.memory == "after":
            self.fit_heads(step, found)
        self.log.end()

    def fit_heads(self, step: Step, found: Segregated | None) -> None:
        known = concat(step.labeled, self.memory.without(step.new_classes))
        report = found.report if found is not None else None
        self.heads.fit(step, known, self.classes, self._networks(), report)

    def _networks(self) -> dict[str, Encoder]:
        """Those that heads may sit on."""
        networks = {"learner": self.learner.encoder}
        if self.reference is not None and self.reference.trained:
            networks["reference"] = self.reference.encoder
        return networks

    def _tensor(self, classes: Sequence[int]) -> Tensor:
        return torch.tensor(classes, dtype=torch.long, device=self.runtime.device)

    def _confidence(self, rows: Labeled) -> Tensor:
        """How sure the agent is of each image of one class."""
        column = self.classes.index(int(rows.labels[0]))
        if self.config.memory.confidence == "head_probability":
            return self.predict(rows.images).softmax(1)[:, column]
        assert self.reference is not None and self.gate is not None
        return in_chunks(self.reference.encoder, rows.images) @ self.gate.prototypes[column]

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes met so far); changes nothing."""
        return self.heads.predict(images, self._networks())

    @property
    def known_above(self) -> float | None:
        """The score above which an image looks known; None without a reference."""
        if self.heads.likeness is not None:
            return self.heads.likeness.threshold
        return self.gate.threshold if self.gate is not None else None

    def known_scores(self, images: Tensor) -> Tensor:
        """S(x), or the likeness to what is carried where labels are."""
        if self.heads.likeness is not None:
            return self.heads.known_scores(images, self._networks())
        assert self.gate is not None
        return self.gate.score(self._look("predict").for_scores(images))[0]

    def features(self, images: Tensor) -> Tensor:
        """Of the reference, which has seen more than the classes met; of the learner where there is none."""
        networks = self._networks()
        return in_chunks(networks.get("reference", networks["learner"]).features, images)

    def state(self) -> State:
        return {
            "classes": list(self.classes),
            "reference": self.reference.state() if self.reference is not None else None,
            "learner": self.learner.state(),
            "memory": vars(self.memory.labeled),
            "heads": self.heads.state(),
            "gate": vars(self.gate) if self.gate is not None else None,
            "sorted": self.sorted,
            "step_open": self.step_open,
            "log": self.log.state(),
            "notes": dict(self.notes),
        }

    def load_state(self, state: State) -> None:
        device = self.runtime.device
        self.classes, self.step_open = list(state["classes"]), state["step_open"]
        if self.reference is not None:
            self.reference.load_state(state["reference"])
        self.learner.load_state(state["learner"])
        self.memory.labeled = Labeled(**state["memory"]).to(device)
        self.heads.load_state(state["heads"] if "heads" in state else _heads_of_0_1_0(state))
        self.gate = Gate(**on_device(device, state["gate"])) if state["gate"] is not None else None
        scores = state["sorted"]
        self.sorted = None if scores is None else (scores[0].to(device), scores[1].to(device))
        self.log.load_state(state["log"])
        self.notes = dict(state["notes"])


def _heads_of_0_1_0(state: State) -> State:
    """Heads as models of version 0.1.0 kept them; the first of them have no second one."""
    heads = {"learner": state["head"], "reference": state.get("second"), "called": state.get("before")}
    return {"classes": state["classes"], **heads, "carrier": {"now": {}, "before": {}, "places": {}}}
