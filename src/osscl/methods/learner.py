"""The learner network SL_t: from the labels, from its own past, and from a reference (Section 3.3)."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

import torch
from torch import Tensor
from torch.optim.swa_utils import update_bn

from osscl.config import added_later, require, require_declared
from osscl.data.images import Labeled
from osscl.device import WORTH_COMPILING, Replay
from osscl.learn.batches import Balanced, Shuffled, with_draws
from osscl.learn.optimiser import Descent, OptimiserConfig
from osscl.losses.contrastive import asymmetric_supcon, nt_xent
from osscl.losses.distillation import relation_distillation
from osscl.methods.base import PhaseLog, Runtime, Setting, State, descend
from osscl.seeding import seeded
from osscl.vision.augment import two_views
from osscl.vision.encoder import Encoder, EncoderConfig, frozen_copy, new_encoder


@dataclass(frozen=True)
class LearnerConfig:
    """The learner network and its three losses (Eq. 7)."""

    net: EncoderConfig = field(default_factory=EncoderConfig)
    # Its weights at t = 1: of its own (the paper), or a copy of the reference's where U_1 is not empty; or such a copy
    # at every step.
    start: Literal["random", "reference", "reference_each_step"] = "random"
    sup: float = 1.0  # weight of L_sup
    gamma: float = 0.2  # weight of L_TD
    past_on: Literal["pool", "both"] = added_later("pool", legacy="pool")  # L_TD on L_sup's batch, or on L_KD's too
    merge: float = added_later(0.0, legacy=0.0)  # how far SL_t, once trained, goes back towards SL_{t-1}'s weights
    lam: float = 0.2  # weight of L_KD, or of whatever the guide batch is for
    tau: float = 0.1  # temperature of L_sup
    tau_teacher: float = 0.01  # tau'
    tau_student: float = 0.2  # tau''
    epochs: int = 200  # E_S
    batch: int = 512
    epoch: Literal["union", "labeled"] = "union"  # one pass over T_t, M and T-hat, or over T_t and M
    max_updates_per_epoch: int | None = None
    min_updates: int = 0  # a floor on the updates of a step, of which a schedule takes its share
    sampler: Literal["uniform", "balanced_sources"] = "uniform"  # over the union, or a third each from T_t, M and T-hat
    anchors: Literal["new", "all"] = added_later("new", legacy="new")  # rows that L_sup pulls together: of O_t (Eq. 3)
    sup_norm: Literal["all", "anchors"] = "all"  # L_sup is averaged over all 2N views, or over the anchors
    base_temperature: float | None = None  # SupCon's factor tau / base; the equation has none
    distill_reduction: Literal["mean", "sum"] = "mean"  # Deviation: Eqs. 5 and 6 sum over the 2N views
    teacher_statistics: Literal["eval", "batch"] = "eval"  # batch norms of both teachers
    joint_forward: bool = False  # the batches of L_sup and L_KD in one forward pass, sharing batch statistics
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)

    def __post_init__(self) -> None:
        require_declared(self)
        for name in ("sup", "gamma", "lam"):
            require(getattr(self, name) >= 0, self, name, "0 or more")
        require(self.sup + self.gamma + self.lam > 0, self, "sup", "positive, or gamma or lam must be")
        for name in ("tau", "tau_teacher", "tau_student"):
            require(getattr(self, name) > 0, self, name, "positive")
        require(0 <= self.merge < 1, self, "merge", "in [0, 1)")
        require(self.epochs > 0, self, "epochs", "positive")
        require(self.batch > 1, self, "batch", "at least 2")
        require(self.min_updates >= 0, self, "min_updates", "0 or more")
        for name in ("max_updates_per_epoch", "base_temperature"):
            require(getattr(self, name) is None or getattr(self, name) > 0, self, name, "positive, or null")
        merged = self.merge == 0 or self.start != "reference_each_step"
        require(merged, self, "merge", "0 with start=reference_each_step: it does not begin as its past")

    @property
    def guided(self) -> bool:
        """Whether a second batch is of use once there is a past."""
        return self.lam > 0 or (self.past_on == "both" and self.gamma > 0)


@dataclass(frozen=True)
class Lesson:
    """What the learner is taught with at one step."""

    pool: Labeled  # T_t, M and T-hat, in this order
    sizes: tuple[int, int, int]  # how many rows each of the three has
    anchors: Tensor  # (n,) bool: rows that L_sup pulls together with their class
    guide: Tensor | None = None  # images of the second batch of each update
    reference: Encoder | None = None  # teaches on the guide batch (L_KD); without it the batch is told apart (Eq. 1)


def anchor_rows(config: LearnerConfig, labels: Tensor, met: Sequence[int], new: Sequence[int]) -> Tensor:
    """Rows that L_sup pulls together with their class, (n,) bool; the paper: those of the new classes, y in O_t."""
    pulled = met if config.anchors == "all" else new
    return torch.isin(labels, labels.new_tensor(pulled))


class Learner:
    """SL_t over time."""

    def __init__(self, config: LearnerConfig, setting: Setting, runtime: Runtime) -> None:
        self.config, self.setting, self.runtime = config, setting, runtime
        rng = seeded(setting.seed, "init", "learner")
        self.encoder = new_encoder(config.net, setting.images, rng, runtime.device, runtime.precision)
        self.past: Encoder | None = None  # SL_{t-1}
        self.steps_done = 0
        self.descent: Descent | None = None
        self.interrupted: State | None = None
        self.moments: State | None = None  # of the optimiser, where they are kept from step to step

    def remember_past(self) -> None:
        """Keep the network as it is now as the teacher of L_TD; once, before a step begins."""
        self.past = self._frozen_copy(self.encoder)

    def start_from(self, encoder: Encoder, t: int) -> None:
        """Take over the weights of another network at t = 1, or at every step, unless training has begun."""
        due = t == 0 or self.config.start == "reference_each_step"
        if due and self.steps_done == t and self.interrupted is None:
            self.encoder.load_state_dict(encoder.state_dict())

    def learn(self, lesson: Lesson, t: int, log: PhaseLog) -> dict[str, float]:
        """Lines 9-16 of Algorithm 1; returns what is worth noting."""
        pool, config = lesson.pool, self.config
        uniform = Shuffled(len(pool), config.batch, self.setting.seed, ("learner", t), self.runtime.device)
        batches = Balanced.over(lesson.sizes, uniform) if config.sampler == "balanced_sources" else uniform
        updates, per_epoch = self._updates(uniform, sum(lesson.sizes[:2]))
        if self.steps_done <= t:
            log.begin("learner")
            descent = Descent([self.encoder], config.optimiser, updates, per_epoch)
            self.descent, self.interrupted = descent.taken_up(self.interrupted, self.moments), None
            views = self._descend(self.descent, lesson, batches, t)
            self._go_back_towards_past(lesson, t)
            self.moments = None if config.optimiser.fresh else self.descent.moments()
            self.descent, self.steps_done = None, t + 1
            log.end(updates, views)
            self.runtime.keep(True)
        return {
            "updates_per_epoch": per_epoch,
            "learner_batch": batches.rows,
            "anchors_per_batch": batches.expected(lesson.anchors),
        }

    def _go_back_towards_past(self, lesson: Lesson, t: int) -> None:
        """Average SL_t with SL_{t-1}, which it began as; then take the batch norms' statistics anew."""
        if self.past is None or self.config.merge == 0:
            return
        with torch.no_grad():
            for ours, before in zip(self.encoder.parameters(), self.past.parameters(), strict=True):
                ours.lerp_(before, self.config.merge)
        images = lesson.pool.images if lesson.guide is None else lesson.guide
        rows = Shuffled(len(images), self.config.batch, self.setting.seed, ("merge", t), self.runtime.device)
        batches = with_draws(rows, ("merge", t), self.setting.seed, 0, self.runtime.device)
        views = (two_views(images[i], u, self.setting.augmentation) for i, u in islice(batches, rows.per_epoch))
        self.encoder.compiles = False  # a handful of passes in a mode of their own: not worth a graph
        update_bn(views, self.encoder)
        self.encoder.compiles = True

    def _updates(self, batches: Shuffled, n_labeled: int) -> tuple[int, int]:
        config = self.config
        per_epoch = batches.per_epoch if config.epoch == "union" else -(-n_labeled // batches.rows)
        if config.max_updates_per_epoch is not None:
            per_epoch = min(per_epoch, config.max_updates_per_epoch)
        schedule = self.setting.schedule
        floor = round(config.min_updates * schedule.share)
        return schedule.capped(max(floor, schedule.epochs(config.epochs) * per_epoch)), per_epoch

    def _descend(self, descent: Descent, lesson: Lesson, batches: Shuffled | Balanced, t: int) -> int:
        """The while loop of Algorithm 1; returns the number of views."""
        seed, device = self.setting.seed, self.runtime.device
        drawn: Iterator[tuple[Tensor, ...]] = with_draws(batches, ("learner", t), seed, descent.done, device)
        views = 2 * batches.rows
        if lesson.guide is not None:
            related = Shuffled(len(lesson.guide), self.config.batch, seed, ("guide", t), device)
            guided = with_draws(related, ("guide", t), seed, descent.done, device)
            drawn = ((*ours, *theirs) for ours, theirs in zip(drawn, guided, strict=True))
            views += 2 * related.rows
        # Either both batches compiled or neither: a compiled pass rewrites the norms' statistics under an eager one.
        smallest = min(batches.rows, len(lesson.guide) if lesson.guide is not None else batches.rows)
        self.encoder.compiles = 2 * smallest >= WORTH_COMPILING
        update = Replay(self._update(descent, lesson), device)
        self.encoder.learning(True)
        descend("learner", descent, update, drawn, views, self.runtime)
        self.encoder.learning(False).compiles = True
        return views * descent.updates

    def _update(self, descent: Descent, lesson: Lesson) -> Callable[..., Tensor]:
        """One update as a function of the rows of both batches and the uniform numbers of their views."""
        hp, augmentation, pool, guide = self.config, self.setting.augmentation, lesson.pool, lesson.guide
        past = self.past if hp.gamma > 0 else None
        reference = self._frozen_copy(lesson.reference) if guide is not None and lesson.reference is not None else None

        def distill(student: Tensor, teacher: Tensor) -> Tensor:
            return relation_distillation(
                student, teacher, hp.tau_student, hp.tau_teacher, reduction=hp.distill_reduction
            )

        def guided(z: Tensor, g: Tensor) -> Tensor:
            """What the second batch is for: line 14, or telling its images apart; and the past's word on it."""
            loss = torch.zeros((), device=z.device)
            if reference is None:
                loss = hp.lam * nt_xent(z, hp.tau)
            elif hp.lam > 0:
                loss = hp.lam * distill(z, _taught_by(reference, g))
            if past is not None and hp.past_on == "both":
                loss = loss + hp.gamma * distill(z, _taught_by(past, g))
            return loss

        def update(rows: Tensor, u: Tensor, guide_rows: Tensor | None = None, guide_u: Tensor | None = None) -> Tensor:
            y, x = pool.labels[rows].repeat(2), two_views(pool.images[rows], u, augmentation)  # line 10
            g = None
            if guide is not None and guide_rows is not None and guide_u is not None:
                g = two_views(guide[guide_rows], guide_u, augmentation)
            z, z_guide = self._embed(x, g)
            anchors = lesson.anchors[rows].repeat(2)
            supervised = asymmetric_supcon(
                z, y, anchors, hp.tau, norm=hp.sup_norm, base_temperature=hp.base_temperature
            )
            loss = hp.sup * supervised  # line 11
            if past is not None:
                loss = loss + hp.gamma * distill(z, _taught_by(past, x))  # line 13, only for t > 1
            if g is not None and z_guide is not None:
                loss = loss + guided(z_guide, g)
            descent.step(loss)  # line 15
            return loss.detach()

        return update

    def _embed(self, x: Tensor, g: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """z of both batches, each with batch statistics of its own unless they go together."""
        if g is None:
            return self.encoder(x), None
        if not self.config.joint_forward:
            return self.encoder(x), self.encoder(g)
        both = self.encoder(torch.cat((x, g)))
        return both[: len(x)], both[len(x) :]

    def _frozen_copy(self, encoder: Encoder) -> Encoder:
        return frozen_copy(encoder, batch_statistics=self.config.teacher_statistics == "batch")

    def state(self) -> State:
        return {
            "encoder": self.encoder.state_dict(),
            "past": self.past.state_dict() if self.past is not None else None,
            "steps_done": self.steps_done,
            "descent": self.descent.state() if self.descent is not None else self.interrupted,
            "moments": self.moments,
        }

    def load_state(self, state: State) -> None:
        self.encoder.load_state_dict(state["encoder"])
        self.past = None
        if state["past"] is not None:
            self.past = self._frozen_copy(self.encoder)
            self.past.load_state_dict(state["past"])
        self.steps_done = state["steps_done"]
        self.interrupted, self.moments = state["descent"], state["moments"]


@torch.no_grad()
def _taught_by(teacher: Encoder, x: Tensor) -> Tensor:
    return teacher(x)  # type: ignore[no-any-return]
