"""URSL-plus: our extension of URSL. None of it is in the paper.

The learner starts as a copy of the reference; half of the prediction comes from a second head on the reference; both
heads also learn from rows that the gate lets in, and from statistics of labels whose images have left M.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from osscl.config import added_later, require, require_not_negative
from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.learn.linear_head import Head, HeadConfig, HeadFit, fit_head
from osscl.methods.base import GateReport, Runtime, Setting, State, StepReport, bytes_of, head_fit, parts_of, rebuilt
from osscl.methods.class_statistics import (
    HALF,
    BytePlan,
    StatisticsFit,
    StatisticsTracker,
    fixed_bytes,
    head_views,
    plan_bytes,
)
from osscl.methods.gate import Segregated
from osscl.methods.known_detector import CompactBackground, KnownDetector, background_of, fit_detector
from osscl.methods.ursl import Ursl, UrslConfig
from osscl.stream.build import Step
from osscl.vision.encoder import Encoder, in_chunks


@dataclass(frozen=True)
class UrslPlusConfig(UrslConfig):
    """URSL's hyperparameters and ours."""

    head: HeadConfig = field(default_factory=lambda: HeadConfig(solver="ridge"))
    start: Literal["random", "reference"] = "reference"  # the learner's weights at t = 1
    reference_weight: float = 0.5  # of the second head in the prediction; 0: no second head
    # Heads also learn from rows above tau_id. Their class is the prediction of the heads if that is a new class, else
    # the prediction of the agent before this step, which had more labels of past classes.
    pseudo_labels: bool = True
    statistics: bool = True  # labels that leave M are kept as class means and one covariance
    # Share of |M| images' worth of bytes for statistics, in half precision; the rest is for images. None: no limit.
    statistics_share: float | None = added_later(None, legacy=None)
    statistics_rank: int = added_later(64, legacy=64)  # the most directions of a covariance; without a limit, all

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.reference_weight <= 1, self, "reference_weight", "in [0, 1]")
        if self.start == "reference" and self.learner.net != self.reference.net:
            raise SpecError("start=reference needs the same learner.net and reference.net")
        if self.statistics and self.head.solver != "ridge":
            raise SpecError("statistics=true needs head.solver=ridge")
        if self.statistics_share is not None:
            require(0 < self.statistics_share < 1, self, "statistics_share", "in (0, 1), or null for no limit")
        require_not_negative(self, "statistics_rank")

    @property
    def needs_reference(self) -> bool:
        ours = self.start == "reference" or self.reference_weight > 0 or self.pseudo_labels
        return ours or super().needs_reference


class UrslPlus(Ursl):
    """The agent: URSL's, with a second head, statistics of past labels and a detector of known images."""

    Config = UrslPlusConfig
    config: UrslPlusConfig

    def __init__(self, config: UrslPlusConfig, setting: Setting, runtime: Runtime) -> None:
        super().__init__(config, setting, runtime)
        self.reference_head: Head | None = None
        self.previous_labels: Tensor | None = None  # predictions for U_t before step t
        self.tracker = StatisticsTracker()
        self.detector: KnownDetector | CompactBackground | None = None
        self.image_bytes = setting.images.channels * setting.images.size**2
        if self.is_compact and self.image_bytes < HALF * self.learner.width:
            raise SpecError(
                f"an image of {self.image_bytes} bytes is smaller than a class mean of {HALF * self.learner.width}: no "
                "statistics fit into the memory; use ursl-plus-unlimited or statistics_share=null"
            )

    @property
    def is_compact(self) -> bool:
        """Whether images and statistics share the bytes of |M| images."""
        return self.config.statistics and self.config.statistics_share is not None

    def learn(self, step: Step) -> StepReport:
        if self.is_compact:  # before any training
            self.require_room(self.least_statistics(step), len({*self.classes, *step.new_classes}))
        return super().learn(step)

    def begin_step(self, step: Step) -> None:
        if self.needs_snapshot:
            with self.phases.timed("head"):
                if self.config.pseudo_labels:
                    self.previous_labels = self.answers(step.unlabeled)
                if self.config.statistics:
                    self.tracker.snapshot(step.unlabeled, self.networks(), self.heads())
        super().begin_step(step)

    @property
    def needs_snapshot(self) -> bool:
        """Whether U_t must be embedded before the step's training."""
        return self.head is not None and (self.config.statistics or self.config.pseudo_labels)

    def train_learner(self, step: Step, selected: Segregated) -> None:
        trained = self.reference is not None and self.reference.trained
        if step.index == 0 and trained and self.config.start == "reference" and not self.phases.has_begun("learner"):
            assert self.reference is not None
            self.learner.load_state_dict(self.reference.encoder.state_dict())
        super().train_learner(step, selected)

    def fit_head(self, step: Step, selected: Segregated) -> None:
        """Fit both heads, once to labels and once more with pseudo-labels; keep what the next step needs."""
        config = self.config.head
        fit = head_fit(self.learner, step, self.memory, self.classes, self.setting)
        fits = {"learner": StatisticsFit(fit)}
        if self.config.reference_weight > 0 and "reference" in self.networks():
            fits["reference"] = StatisticsFit(replace(fit, encoder=self.networks()["reference"]))
        if self.config.statistics:
            fits = {name: self.tracker.prepare(name, config, data.fit, step) for name, data in fits.items()}
        ready = {name: data.for_head(config) for name, data in fits.items()}
        self.fit_both(ready)
        if self.config.statistics:
            self.keep_statistics(fits, step)
        if selected.report is not None and self.config.pseudo_labels:
            # At the scale of the first heads: rows that they have labelled would make them overconfident.
            assert self.head is not None
            rows, scale = self.pseudo_labeled(step, selected.report), self.head.scale
            self.fit_both({name: replace(fit, scale=scale, pseudo_labeled=rows) for name, fit in ready.items()})
        self.previous_labels = None
        self.tracker.end_step()

    def fit_both(self, fits: Mapping[str, HeadFit]) -> None:
        self.head, self.reference_head = fit_head(self.config.head, fits["learner"]), None
        if "reference" in fits:
            # One scale for both: the prediction averages the outputs of two regressions on the same targets.
            self.reference_head = fit_head(self.config.head, replace(fits["reference"], scale=self.head.scale))

    def keep_statistics(self, fits: Mapping[str, StatisticsFit], step: Step) -> None:
        config = self.config.head
        views = {name: head_views(config, fits[name].fit, head) for name, head in self.heads().items()}
        self.tracker.current = {name: fits[name].summarize(config, x) for name, x in views.items()}
        last, self.detector = self.detector.threshold if self.detector is not None else None, None
        rank = self.byte_plan(len(self.classes)).rank if self.is_compact else None
        if self.reference_head is not None and len(step.unlabeled) > 1:
            unlabeled = self.reference_head.transform(in_chunks(fits["reference"].fit.encoder.features, step.unlabeled))
            background = background_of(unlabeled)
            detector = fit_detector(config, fits["reference"], views["reference"], background, last, rank)
            self.detector = detector
            if detector is not None and rank is not None:
                self.detector = background.compact(rank, detector.threshold)
        if rank is not None:
            self.tracker.compact(rank)

    # ----- bytes

    @property
    def byte_budget(self) -> int:
        """Bytes of |M| images."""
        return self.setting.memory * self.image_bytes

    def byte_plan(self, classes: int) -> BytePlan:
        """How the bytes of |M| images are split for this number of classes."""
        heads, share = self.heads(), self.config.statistics_share
        assert share is not None
        widths = [len(head.center) for head in heads.values()]
        background = len(self.reference_head.center) if self.reference_head is not None else 0
        most = self.config.statistics_rank
        return plan_bytes(self.byte_budget, self.image_bytes, share, classes, widths, background, most)

    def least_statistics(self, step: Step) -> int:
        """Bytes that statistics need after a step at least: means, counts and diagonals; and a detector or a gate."""
        classes, widths = len({*self.classes, *step.new_classes}), [self.learner.width]
        reference, has_pool = self.reference, len(step.unlabeled) > 1
        if reference is None or not (reference.trained or reference.config.pretrained or has_pool):
            return fixed_bytes(classes, widths, 0)
        has_head = self.config.reference_weight > 0
        widths += [reference.encoder.width] * has_head
        with_gate = fixed_bytes(classes, widths, 0) + torch.float32.itemsize * classes * reference.config.net.dim
        if not (has_pool and has_head):
            return with_gate
        # A detector replaces the gate. It needs a class with two labelled images, or a threshold of an earlier step.
        with_detector = fixed_bytes(classes, widths, reference.encoder.width)
        is_certain = self.detector is not None or bool((torch.bincount(step.labeled.labels) > 1).any())
        return with_detector if is_certain else min(with_detector, with_gate)

    def require_room(self, statistics: int, classes: int) -> None:
        """Require room for an image besides statistics of that many bytes."""
        if statistics + self.image_bytes > self.byte_budget:
            raise SpecError(
                f"{classes} classes need {statistics:,} bytes of statistics and {self.image_bytes:,} for an image, but "
                f"a memory of {self.setting.memory} images has only {self.byte_budget:,}; "
                "use ursl-plus-unlimited or a larger memory"
            )

    def update_memory(self, step: Step) -> None:
        """Keep as many images as the statistics leave room for."""
        if not self.is_compact:
            super().update_memory(step)
            return
        if self.gate is not None:
            self.gate = replace(self.gate, labeled_scores=self.gate.labeled_scores[:0])  # only for the step's notes
        statistics = {name: tensor for name, tensor in self.kept().items() if name != "memory"}
        self.require_room(bytes_of(statistics), len(self.classes))
        self.memory.budget = (self.byte_budget - bytes_of(statistics)) // self.image_bytes
        super().update_memory(step)
        if self.detector is not None:
            self.gate = None  # its prototypes are class means too; the detector decides what looks known
        if bytes_of(self.kept()) > self.byte_budget:
            raise RuntimeError(f"{bytes_of(self.kept()):,} bytes are kept, more than the memory's {self.byte_budget:,}")

    def pseudo_labeled(self, step: Step, report: GateReport) -> Labeled:
        """Rows of U_t that passed the gate, with the classes that the heads may learn."""
        images = step.unlabeled[report.passed]
        labels = self.answers(images)
        if self.previous_labels is not None:
            new = torch.isin(labels, labels.new_tensor(step.new_classes))
            labels = torch.where(new, labels, self.previous_labels[report.passed])
        return Labeled(images, labels)

    def forget(self, column: int) -> None:
        super().forget(column)
        self.reference_head = self.reference_head.without(column) if self.reference_head is not None else None
        if isinstance(self.detector, KnownDetector):  # a compact one holds nothing about single classes
            labels = self.tracker.current["reference"].labels  # a class without any has no Gaussian
            if labels[column] > 0:
                self.detector = self.detector.without(int((labels[:column] > 0).sum()))
        self.tracker.current = {name: kept.without(column) for name, kept in self.tracker.current.items()}

    def answers(self, images: Tensor) -> Tensor:
        """The predicted class of each image, (n,)."""
        return torch.tensor(self.classes, device=self.runtime.device)[self.predict(images).argmax(1)]

    def networks(self) -> dict[str, Encoder]:
        """The networks that a head can use."""
        networks = {"learner": self.learner}
        if self.reference is not None and self.reference.trained:
            networks["reference"] = self.reference.encoder
        return networks

    def heads(self) -> dict[str, Head]:
        heads = {"learner": self.head, "reference": self.reference_head}
        return {name: head for name, head in heads.items() if head is not None}

    def predict(self, images: Tensor) -> Tensor:
        """Logits (n, classes seen so far); changes nothing."""
        logits = super().predict(images)
        if self.reference_head is None:
            return logits
        other = self.reference_head(in_chunks(self.networks()["reference"].features, images))
        return logits.lerp(other, self.config.reference_weight)

    @property
    def known_above(self) -> float | None:
        return self.detector.threshold if self.detector is not None else super().known_above

    def known_scores(self, images: Tensor) -> Tensor:
        """The detector's scores; the gate's S(x) without a detector."""
        if self.detector is None:
            return super().known_scores(images)
        assert self.reference_head is not None
        detector = self.detector
        if isinstance(detector, CompactBackground):
            detector = detector.detector(self.tracker.current["reference"].expanded())
        features = in_chunks(self.networks()["reference"].features, images)
        return detector.score(self.reference_head.transform(features))

    def kept(self) -> dict[str, Tensor]:
        """Images of M, class statistics of both heads, and what decides whether an image looks known."""
        parts = {f"statistics.{name}": vars(statistics) for name, statistics in self.tracker.current.items()}
        if self.detector is not None:
            parts["detector"] = vars(self.detector)
        tensors = {f"{part}.{name}": x for part, fields in parts.items() for name, x in fields.items()}
        kept = super().kept()
        if self.is_compact and self.detector is not None:  # the gate is dropped at the end of the step
            kept = {"memory": kept["memory"]}
        return kept | {name: x for name, x in tensors.items() if isinstance(x, Tensor)}

    def state(self) -> State:
        return {
            **super().state(),
            **parts_of(self, "reference_head", "tracker", "detector"),
            "previous_labels": self.previous_labels,
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        device, detector = self.runtime.device, state["detector"]
        self.reference_head = rebuilt(Head, state["reference_head"], device)
        labels = state["previous_labels"]
        self.previous_labels = labels.to(device) if labels is not None else None
        self.tracker.load_state(state["tracker"], device)
        compact = detector is not None and "directions" in detector
        kind: Any = CompactBackground if compact else KnownDetector
        self.detector = rebuilt(kind, detector, device)
