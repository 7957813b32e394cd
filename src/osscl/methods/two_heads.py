"""The heads of an agent with two networks: on the learner's features and, where the config asks, the reference's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from osscl.data.images import Labeled
from osscl.learn.likeness import Likeness
from osscl.learn.linear_head import Head, HeadConfig, HeadFit, fit_head, likeness_on, placed_views
from osscl.methods.base import GateReport, Setting, State, on_device
from osscl.methods.carrier import Carrier
from osscl.stream.step import Step
from osscl.vision.encoder import Encoder, in_chunks

Networks = Mapping[str, Encoder]  # "learner", and once it is trained "reference"


class TwoHeads:
    """Refitted at every step, so that predict() is always valid."""

    def __init__(self, config: HeadConfig, setting: Setting, device: torch.device) -> None:
        self.config, self.setting, self.device = config, setting, device
        self.learner: Head | None = None
        self.reference: Head | None = None
        self.classes: list[int] = []  # that they tell apart
        self.called: Tensor | None = None  # what the rows of U_t were called before step t, where the config asks
        self.carrier = Carrier()
        self.likeness: Likeness | None = None  # what looks known in the reference's space, where labels are carried

    @property
    def look_back_first(self) -> bool:
        """Whether they want to see U_t before a step's training."""
        return self.learner is not None and (self.config.carried or self.config.pseudo == "past")

    def look_back(self, step: Step, networks: Networks) -> None:
        """What they will want to know of U_t as it looks before the step."""
        if self.config.pseudo == "past":
            self.called = self._call(step.unlabeled, networks)
        if self.config.carried:
            self.carrier.open(step.unlabeled, networks, self._by_network())

    def fit(
        self, step: Step, known: Labeled, classes: Sequence[int], networks: Networks, gate: GateReport | None
    ) -> None:
        """To T_t and M, and to rows of U_t where the config says so."""
        self.classes = list(classes)
        cap, names = self.setting.schedule.max_updates, ("head", step.index)
        fit = HeadFit(
            networks["learner"], known, self.classes, self.setting.augmentation, self.setting.seed, names, cap
        )
        if gate is not None and self.config.pseudo == "gate":
            fit = replace(fit, believed=Labeled(step.unlabeled[gate.confident], gate.pseudo_labels[gate.confident]))
        fits = {"learner": fit}
        if "reference" in networks and self.config.reference > 0:
            fits["reference"] = replace(fit, encoder=networks["reference"])
        if self.config.carried:
            fits = {name: self.carrier.spaced(name, self.config, fit, step) for name, fit in fits.items()}
        scale = self._fit(fits)
        if self.config.carried:
            views = {name: placed_views(self.config, fits[name], head) for name, head in self._by_network().items()}
            self.carrier.keep(self.config, fits, views)
            self.likeness = self._likeness(fits, views, step.unlabeled)
        if gate is not None and self.config.pseudo in ("self", "past"):
            rows = self._believed(step, gate, networks)
            # At the first heads' scale: rows that they have named would calibrate them too well.
            self._fit({name: replace(fit, scale=scale, believed=rows) for name, fit in fits.items()})

    def _likeness(self, fits: Mapping[str, HeadFit], views: Mapping[str, Tensor], unlabeled: Tensor) -> Likeness | None:
        if self.reference is None or len(unlabeled) < 2:
            return None
        fit = fits["reference"]
        around = self.reference.placed(in_chunks(fit.encoder.features, unlabeled))
        last = self.likeness.threshold if self.likeness is not None else None
        return likeness_on(self.config, fit, views["reference"], around, last)

    def _fit(self, fits: Mapping[str, HeadFit]) -> float:
        """All of them; returns the scale that they share."""
        self.learner, self.reference = fit_head(self.config, fits["learner"]), None
        if "reference" in fits:
            # At the scale of the first: averaged are the outputs of two regressions on the same targets.
            self.reference = fit_head(self.config, replace(fits["reference"], scale=self.learner.scale))
        return self.learner.scale

    def _believed(self, step: Step, gate: GateReport, networks: Networks) -> Labeled:
        """Rows of U_t that the gate lets in, with classes that the heads may take for true."""
        images = step.unlabeled[gate.passed]
        called = self._call(images, networks)
        if self.called is not None:
            # The past had more labels of its classes than M has kept of them.
            new = torch.isin(called, called.new_tensor(step.new_classes))
            called = torch.where(new, called, self.called[gate.passed])
        return Labeled(images, called)

    def _call(self, images: Tensor, networks: Networks) -> Tensor:
        """The class of each image by the heads as they stand, (n,)."""
        return torch.tensor(self.classes, device=self.device)[self.predict(images, networks).argmax(1)]

    def predict(self, images: Tensor, networks: Networks) -> Tensor:
        """Logits (n, classes that the heads tell apart); changes nothing."""
        if self.learner is None:
            raise RuntimeError("predict() before the first learn()")
        logits = self.learner(in_chunks(networks["learner"].features, images))
        if self.reference is None:
            return logits
        other = self.reference(in_chunks(networks["reference"].features, images))
        return logits.lerp(other, self.config.reference)

    def known_scores(self, images: Tensor, networks: Networks) -> Tensor:
        """How much images look like a class met, to be held against the likeness's threshold."""
        assert self.likeness is not None and self.reference is not None
        return self.likeness.score(self.reference.placed(in_chunks(networks["reference"].features, images)))

    def _by_network(self) -> dict[str, Head]:
        heads = {"learner": self.learner, "reference": self.reference}
        return {name: head for name, head in heads.items() if head is not None}

    def state(self) -> State:
        return {
            "classes": list(self.classes),
            "learner": vars(self.learner) if self.learner is not None else None,
            "reference": vars(self.reference) if self.reference is not None else None,
            "called": self.called,
            "carrier": self.carrier.state(),
            "likeness": vars(self.likeness) if self.likeness is not None else None,
        }

    def load_state(self, state: State) -> None:
        def head(fields: State | None) -> Head | None:
            return Head(**on_device(self.device, fields)) if fields is not None else None

        self.classes = list(state["classes"])
        self.learner, self.reference = head(state["learner"]), head(state["reference"])
        self.called = state["called"].to(self.device) if state["called"] is not None else None
        self.carrier.load_state(state["carrier"], self.device)
        kept = state.get("likeness")
        self.likeness = Likeness(**on_device(self.device, kept)) if kept is not None else None
