"""URSL-plus: our extension of URSL. None of it is in the paper.

The learner starts as a copy of the reference; half of the prediction comes from a second head on the reference; both
heads also learn from rows that the gate lets in, and from statistics of labels whose images have left M.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from osscl.config import require
from osscl.data.images import Labeled
from osscl.errors import SpecError
from osscl.learn.linear_head import Head, HeadConfig, HeadFit, fit_head
from osscl.methods.base import GateReport, Runtime, Setting, State, on_device
from osscl.methods.class_statistics import (
    KnownDetector,
    StatisticsFit,
    StatisticsTracker,
    fit_detector,
    head_views,
)
from osscl.methods.gate import Segregated
from osscl.methods.ursl import Ursl, UrslConfig
from osscl.stream.step import Step
from osscl.vision.encoder import Encoder, in_chunks


@dataclass(frozen=True)
class UrslPlusConfig(UrslConfig):
    """URSL's hyperparameters and ours."""

    head: HeadConfig = field(default_factory=lambda: HeadConfig(solver="ridge"))
    start: Literal["random", "reference"] = "reference"  # the learner's weights at t = 1
    reference_weight: float = 0.5  # of the second head in the prediction; 0: no second head
    # Heads also learn from rows above tau_id: their class is the heads' own answer if that is a new class, else the
    # answer of the agent before this step, which had more labels of past classes.
    pseudo_labels: bool = True
    statistics: bool = True  # labels that leave M are kept as class means and one covariance

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.reference_weight <= 1, self, "reference_weight", "in [0, 1]")
        if self.start == "reference" and self.learner.net != self.reference.net:
            raise SpecError("start=reference needs learner.net and reference.net of one shape")
        if self.statistics and self.head.solver != "ridge":
            raise SpecError("statistics=true needs head.solver=ridge")

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
        self.previous_labels: Tensor | None = None  # answers for U_t before step t
        self.tracker = StatisticsTracker()
        self.detector: KnownDetector | None = None

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
        """Whether U_t must be seen before the step's training."""
        return self.head is not None and (self.config.statistics or self.config.pseudo_labels)

    def train_learner(self, step: Step, found: Segregated) -> None:
        trained = self.reference is not None and self.reference.trained
        if step.index == 0 and trained and self.config.start == "reference" and not self.phases.has_begun("learner"):
            assert self.reference is not None
            self.learner.load_state_dict(self.reference.encoder.state_dict())
        super().train_learner(step, found)

    def fit_head(self, step: Step, found: Segregated) -> None:
        """Both heads, once from labels and once more with pseudo-labels; then what the next step needs."""
        config, fit = self.config.head, self.head_fit(step)
        fits = {"learner": StatisticsFit(fit)}
        if self.config.reference_weight > 0 and "reference" in self.networks():
            fits["reference"] = StatisticsFit(replace(fit, encoder=self.networks()["reference"]))
        if self.config.statistics:
            fits = {name: self.tracker.prepare(name, config, data.fit, step) for name, data in fits.items()}
        ready = {name: data.for_head(config) for name, data in fits.items()}
        self.fit_both(ready)
        if self.config.statistics:
            self.keep_statistics(fits, step)
        if found.report is not None and self.config.pseudo_labels:
            # At the scale of the first heads: rows that they have labelled would make them overconfident.
            assert self.head is not None
            rows, scale = self.pseudo_labeled(step, found.report), self.head.scale
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
        if self.reference_head is not None and len(step.unlabeled) > 1:
            unlabeled = self.reference_head.transform(in_chunks(fits["reference"].fit.encoder.features, step.unlabeled))
            self.detector = fit_detector(config, fits["reference"], views["reference"], unlabeled, last)

    def pseudo_labeled(self, step: Step, gate: GateReport) -> Labeled:
        """Rows of U_t that passed the gate, with the classes that the heads may learn."""
        images = step.unlabeled[gate.passed]
        labels = self.answers(images)
        if self.previous_labels is not None:
            new = torch.isin(labels, labels.new_tensor(step.new_classes))
            labels = torch.where(new, labels, self.previous_labels[gate.passed])
        return Labeled(images, labels)

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
        features = in_chunks(self.networks()["reference"].features, images)
        return self.detector.score(self.reference_head.transform(features))

    def kept(self) -> dict[str, Tensor]:
        """Images of M, class statistics of both heads, and the detector's Gaussians."""
        parts = {f"statistics.{name}": vars(statistics) for name, statistics in self.tracker.current.items()}
        parts |= {"detector": vars(self.detector)} if self.detector is not None else {}
        tensors = {f"{part}.{name}": x for part, fields in parts.items() for name, x in fields.items()}
        return {"memory": self.memory.labeled.images} | {n: x for n, x in tensors.items() if isinstance(x, Tensor)}

    def state(self) -> State:
        return {
            **super().state(),
            "reference_head": vars(self.reference_head) if self.reference_head is not None else None,
            "previous_labels": self.previous_labels,
            "tracker": self.tracker.state(),
            "detector": vars(self.detector) if self.detector is not None else None,
        }

    def load_state(self, state: State) -> None:
        super().load_state(state)
        device, head, detector = self.runtime.device, state["reference_head"], state["detector"]
        self.reference_head = Head(**on_device(device, head)) if head is not None else None
        labels = state["previous_labels"]
        self.previous_labels = labels.to(device) if labels is not None else None
        self.tracker.load_state(state["tracker"], device)
        self.detector = KnownDetector(**on_device(device, detector)) if detector is not None else None
