"""The learner behind `encoder="scratch"`: a method of this package, trained from random weights."""

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from osscl.agent.inputs import (
    Images,
    PixelStep,
    check_pixels,
    pixel_digests,
    require_arrays,
    require_learnable,
    require_memory_for,
)
from osscl.agent.recipe import Recipe, recipe_from_entry
from osscl.agent.store import StepOutcome
from osscl.config import plain
from osscl.data.folders import require_size
from osscl.device import precision_of, prepare, synchronise
from osscl.errors import DataError, UserError
from osscl.methods import method_class
from osscl.methods.base import Forgetting, Method, Progress, Runtime, Setting
from osscl.runs.evaluate import finite_logits, refuse_divergence
from osscl.runs.model import Model, agent_of, entry_of
from osscl.runs.run import threads_for
from osscl.seeding import seeded
from osscl.vision.encoder import EncoderConfig, ImageFormat, new_encoder

TIMED_VIEWS = 32


class NetworkLearner:
    """A method with its networks and memory."""

    def __init__(self, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.maybe_checkpoint: Callable[[bool], None] | None = None  # called when the state may be saved
        self.progress: Callable[[Progress], None] | None = None
        self.agent: Method | None = None
        self.setting: Setting | None = None

    @property
    def width(self) -> int:
        """Width of the embedding that decides whether images look known; 0 for methods without one."""
        reference = getattr(self.agent, "reference", None)
        for owner, name in ((reference, "encoder"), (self.agent, "learner"), (self.agent, "encoder")):
            if (encoder := getattr(owner, name, None)) is not None:
                return int(encoder.width)
        return 0

    def check(self, images: Images | None, labels: Sequence[Any], unlabeled: Images | None) -> PixelStep:
        require_arrays(images, unlabeled)
        return check_pixels(images, labels, unlabeled)

    def digests(self, images: Images) -> tuple[int, ...]:
        return pixel_digests(images)

    def require_first(self, given: PixelStep) -> None:
        require_memory_for(self.recipe, len(given.classes))
        require_size(given.images.shape[2])

    def require_format(self, given: PixelStep) -> None:
        assert self.setting is not None
        want = self.setting.images.channels, self.setting.images.size
        if (found := (given.images.shape[1], given.images.shape[2])) != want:
            raise DataError(f"images must have {want[0]} channels and {want[1]} pixels per side as before, got {found}")

    def require_next(self, given: PixelStep, known: Sequence[str]) -> None:
        require_learnable(given, known, self.recipe)

    def begin(self, given: PixelStep) -> None:
        """Start over with fresh networks in the format of these images."""
        recipe = self.recipe
        self.setting = Setting(given.format, recipe.augmentation, recipe.memory, recipe.seed, recipe.schedule)
        prepare(self.device)
        self.agent = self._fresh()

    def learn(self, given: PixelStep, index: int, known: Sequence[str]) -> StepOutcome:
        """Learn a step as the `index`-th of an agent that knows the classes `known`."""
        assert self.agent is not None
        step = given.as_step(index, known, self.recipe.schedule.row_cap, self.device)
        with threads_for(self.agent):
            report = self.agent.learn(step)
            refuse_divergence(report, index)
            finite_logits(self.agent, given.images.to(self.device), index)
        unlabeled = len(step.unlabeled)
        let_in = None if report.gate is None or not unlabeled else int(report.gate.passed.sum())
        return StepOutcome(unlabeled, let_in, sum(phase.seconds for phase in report.phases))

    def estimated_minutes(self, given: PixelStep) -> float | None:
        """A rough estimate of a step's duration from one timed update; None for methods without a reference network."""
        method, schedule = self.recipe.method, self.recipe.schedule
        if not hasattr(method, "reference") or not hasattr(method, "learner"):
            return None
        reference, learner = method.reference, method.learner
        epochs = reference.epochs_later if self.agent is not None else reference.epochs_first
        rows = len(given.unlabeled[: schedule.row_cap])
        batches = max(1, rows // reference.batch) if rows > 1 else 0
        views = schedule.updates(epochs, batches, reference.min_updates) * 2 * min(reference.batch, rows)
        pool = len(given.labels) + self.recipe.memory // 2
        batches = max(1, pool // learner.batch)
        views += schedule.updates(learner.epochs, batches, learner.min_updates) * 4 * min(learner.batch, max(pool, 1))
        return float(views) * self._seconds_per_view(learner.net, given.format) / 60

    def _seconds_per_view(self, config: EncoderConfig, images: ImageFormat) -> float:
        """The fastest of three forward and backward passes of a fresh network; the first one also sets things up."""
        net = new_encoder(config, images, seeded(0, "estimate"), self.device, precision_of(self.device)).learning(True)
        x = torch.zeros(TIMED_VIEWS, images.channels, images.size, images.size, device=self.device)
        seconds = []
        with threads_for(SimpleNamespace(net=net)):
            for _ in range(3):
                started = time.monotonic()
                net(x).square().sum().backward()
                synchronise(self.device)
                seconds.append(time.monotonic() - started)
        return min(seconds) / TIMED_VIEWS

    def remove(self, gone: str, class_names: Sequence[str]) -> None:
        """Delete everything kept of a class; the networks are not unlearned."""
        if not isinstance(self.agent, Forgetting):
            raise UserError(f"{self.recipe.display_name} cannot remove a class: only ursl and ursl-plus can")
        self.agent.forget(class_names.index(gone))

    def snapshot(self) -> Callable[[], None]:
        """A function that restores the learner as it is now; a half-trained network can neither predict nor restart."""
        before = dict(vars(self))
        state = copy.deepcopy(self.agent.state()) if self.agent is not None else None

        def restore() -> None:
            vars(self).update(before)
            if state is not None:
                self.agent = self._fresh()
                self.agent.load_state(state)

        return restore

    def model(self, class_names: Sequence[str]) -> Model:
        assert self.agent is not None and self.setting is not None
        return Model(self.agent, self.setting.images, class_names, self.device)

    def entry(self, class_names: Sequence[str]) -> dict[str, Any]:
        assert self.agent is not None and self.setting is not None
        return entry_of(self.agent, self.setting, self.recipe.as_made(), class_names)

    def parameters(self) -> dict[str, Any]:
        """The arguments of the `ContinualClassifier` that would make this learner."""
        return {"encoder": "scratch", **vars(self.recipe)}

    def is_same(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry was made with these settings."""
        if "spec" not in entry or recipe_from_entry(entry) != self.recipe:
            return False
        return self.setting is None or bool(entry["images"] == plain(self.setting.images))

    def resume(self, entry: Mapping[str, Any]) -> None:
        """Continue in the middle of a step that a checkpoint holds."""
        assert self.agent is not None
        self.agent.load_state(entry["method"])

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], device: torch.device) -> "NetworkLearner":
        made = cls(recipe_from_entry(entry), device)
        prepare(device)
        made.agent, made.setting, _ = agent_of(entry, made._runtime())
        return made

    def _fresh(self) -> Method:
        made: Method = method_class(self.recipe.method)(self.recipe.method, self.setting, self._runtime())
        return made

    def _runtime(self) -> Runtime:
        return Runtime(self.device, precision_of(self.device), self._maybe_checkpoint, self._report)

    def _maybe_checkpoint(self, end_of_phase: bool) -> None:
        if self.maybe_checkpoint is not None:
            self.maybe_checkpoint(end_of_phase)

    def _report(self, where: Progress) -> None:
        if self.progress is not None:
            self.progress(where)
