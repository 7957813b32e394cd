"""`ContinualClassifier`: an agent that learns classes step by step and predicts after every step."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from osscl.agent.evaluation import Evaluation, compare_with_truth
from osscl.agent.inputs import (
    NO_IMAGES,
    Images,
    LearnedImages,
    StepInput,
    as_class_names,
    check_step_input,
    require_learnable,
    require_memory_for,
)
from osscl.agent.recipe import make_recipe, recipe_from_entry
from osscl.agent.store import (
    FORMAT,
    LearnedStep,
    checkpoint_file,
    checkpoint_of_step,
    contents_of,
    history_of,
    keep_earlier,
    model_file,
    read_newest,
    require_agent,
    summarize_step,
)
from osscl.config import plain
from osscl.data.folders import require_size
from osscl.device import pick_device, precision_of, prepare
from osscl.errors import OTHER_VERSION, DataError, UserError
from osscl.methods import METHODS
from osscl.methods.base import Method, Progress, Runtime, Schedule, Setting
from osscl.runs.checkpoint import Keeper, Options, Unwatched, Watcher, divergence_set_aside, occupied
from osscl.runs.evaluate import finite_logits, refuse_divergence, refuse_divergent_loss
from osscl.runs.model import Model, Prediction, agent_of, entry_of, read_entry
from osscl.runs.run import threads_for
from osscl.storage import write_state
from osscl.vision.augment import Augmentation


class ContinualClassifier:
    """Learns classes from few labels and many unlabelled images, step by step, and detects unknown images.

    `fit` learns the first step, `update` each later one; `predict` works after any of them. A call that fails or is
    interrupted leaves the agent unchanged. Inside `with agent.saving_to(folder)`, repeating the call resumes it.
    """

    def __init__(
        self, method: Any = "ursl-plus", schedule: Schedule | str = "short", *, changes: Sequence[str] = (),
        memory: int = 1000, seed: int = 0, augmentation: Augmentation | str = "photos", device: str = "auto",
    ) -> None:  # fmt: skip
        self.recipe = make_recipe(method, schedule, changes, memory, seed, augmentation)
        self.device = pick_device(str(device))
        self.class_names: list[str] = []  # in the order they were learned
        self.history: list[LearnedStep] = []
        self.learned_images: LearnedImages = NO_IMAGES
        self.begun: str | None = None  # content hash of an interrupted step
        self.agent: Method | None = None
        self.setting: Setting | None = None
        self.folder: Path | None = None  # inside `saving_to`
        self.keep: Callable[[bool], None] | None = None
        self.watcher: Watcher = Unwatched()

    def __getstate__(self) -> dict[str, Any]:
        """Copies do not write to the folder of the original."""
        return {**vars(self), "folder": None, "keep": None, "watcher": Unwatched()}

    def __repr__(self) -> str:
        words = f"{len(self.class_names)} classes in {len(self.history)} steps"
        return f"<{type(self).__name__}: {words}{', one step interrupted' * (self.begun is not None)}>"

    def fit(self, images: Images, labels: Sequence[Any], unlabeled: Images | None = None) -> Self:
        """Learn the first step; anything learned before is discarded."""
        if self.folder is not None and self.history:
            raise UserError(f"{self.folder} already holds a trained agent: use update to teach it more")
        return self._learn_step(self._first(images, labels, unlabeled), from_start=self.begun is None)

    def update(self, images: Images | None = None, labels: Sequence[Any] = (), unlabeled: Images | None = None) -> Self:
        """Learn new classes, more images of known classes, or from unlabelled images alone.

        Earlier images are not needed. Labelled images that were learned before are recognised and skipped.
        """
        return self._learn_step(self._further(images, labels, unlabeled), from_start=False)

    def require_teachable(
        self, images: Images | None = None, labels: Sequence[Any] = (), unlabeled: Images | None = None
    ) -> None:
        """Raise the error that the next step would raise, without learning."""
        (self._further if self.history else self._first)(images, labels, unlabeled)

    def has_learned(
        self, images: Images | None = None, labels: Sequence[Any] = (), unlabeled: Images | None = None
    ) -> bool:
        """Whether exactly this step has been learned."""
        return self.begun is None and check_step_input(images, labels, unlabeled).content in self._contents()

    def learned_as(self, images: Images) -> list[str | None]:
        """The class each image was learned as; None for an image that was not learned."""
        return [None if c is None else self.class_names[c] for c in self.learned_images.classes_of(images)]

    def _first(self, images: Images | None, labels: Sequence[Any], unlabeled: Images | None) -> StepInput:
        given = self._checked(images, labels, unlabeled)
        if not given.labels:
            raise DataError("the first step needs labelled images")
        require_memory_for(self.recipe, len(given.classes))
        require_size(given.images.shape[2])
        return given

    def _further(self, images: Images | None, labels: Sequence[Any], unlabeled: Images | None) -> StepInput:
        if self.setting is None or not self.history:
            raise UserError("nothing learned yet: call fit before update")
        given = self._checked(images, labels, unlabeled)
        if given.content in self._contents():
            raise UserError("nothing new: this step has already been learned")
        want = self.setting.images.channels, self.setting.images.size
        if (found := (given.images.shape[1], given.images.shape[2])) != want:
            raise DataError(f"images must have {want[0]} channels and {want[1]} pixels per side as before, got {found}")
        fresh = given.only([row for row, c in enumerate(self.learned_images.classes_of(given.images)) if c is None])
        require_learnable(fresh, self.class_names, self.recipe)
        return fresh

    def predict(self, images: Images, threshold: float | None = None) -> Prediction:
        """Class, probability and whether it looks known, for (n, channels, size, size) uint8 images."""
        return self.model.predict(images, threshold)

    def test(self, images: Images, labels: Sequence[Any]) -> Evaluation:
        """Compare predictions with true labels; images of classes never learned should look unknown."""
        return compare_with_truth(self.predict(images), as_class_names(labels), self.class_names)

    def score(self, images: Images, labels: Sequence[Any]) -> float:
        """Accuracy on images of learned classes, from 0 to 1."""
        accuracy = self.test(images, labels).accuracy
        if accuracy is None:
            raise DataError("none of these labels is a learned class")
        return accuracy

    @property
    def model(self) -> Model:
        """The model for prediction, as `osscl.load` returns it."""
        if self.begun is not None:
            raise UserError("a step was interrupted: resume it first, or load with finished=True")
        if self.agent is None or self.setting is None or not self.history:
            raise UserError("nothing learned yet: call fit first")
        return Model(self.agent, self.setting.images, self.class_names, self.device)

    def _checked(self, images: Images | None, labels: Sequence[Any], unlabeled: Images | None) -> StepInput:
        given = check_step_input(images, labels, unlabeled)
        if self.begun not in (None, given.content):
            raise UserError("a step was interrupted: give its images again to resume it, or move its checkpoint away")
        return given

    def _learn_step(self, given: StepInput, from_start: bool) -> Self:
        with self._rollback_on_failure(), threads_for(self.recipe.method, self.recipe.schedule):
            if from_start:
                self._begin(given)
            self._learn(given)
        self._save_finished()
        return self

    def _begin(self, given: StepInput) -> None:
        recipe = self.recipe
        self.setting = Setting(given.format, recipe.augmentation, recipe.memory, recipe.seed, recipe.schedule)
        self.class_names, self.history, self.learned_images = [], [], NO_IMAGES
        prepare(self.device)
        self.agent = self._fresh()

    def _fresh(self) -> Method:
        made: Method = METHODS[type(self.recipe.method)](self.recipe.method, self.setting, self._runtime())
        return made

    def _runtime(self) -> Runtime:
        return Runtime(self.device, precision_of(self.device), self._keep, self._progress)

    def _keep(self, edge: bool) -> None:
        if self.keep is not None:
            self.keep(edge)

    def _progress(self, where: Progress) -> None:
        refuse_divergent_loss(where, len(self.history))
        self.watcher.progress(len(self.history), len(self.history) + 1, where)

    @contextlib.contextmanager
    def _rollback_on_failure(self) -> Iterator[None]:
        """Roll back if a step fails: a half-trained network can neither predict nor restart."""
        before = dict(vars(self))
        state = copy.deepcopy(self.agent.state()) if self.agent is not None else None
        try:
            yield
        except BaseException:
            vars(self).update(before)
            if state is not None:
                self.agent = self._fresh()
                self.agent.load_state(state)
            raise

    def _learn(self, given: StepInput) -> None:
        assert self.agent is not None
        cap = self.recipe.schedule.row_cap
        step = given.as_step(len(self.history), self.class_names, cap, self.device)
        self._resume(given)
        self.begun = given.content
        report = self.agent.learn(step)
        refuse_divergence(report, step.index)
        finite_logits(self.agent, given.images.to(self.device), step.index)
        self.history = [
            *self.history,
            summarize_step(given, self.class_names, len(step.unlabeled), report, self.device),
        ]
        self.class_names = [*self.class_names, *self.history[-1].classes]
        self.learned_images = self.learned_images.with_more(given, self.class_names)
        self.begun = None

    def _resume(self, given: StepInput) -> None:
        """Resume this step if its checkpoint is in the folder."""
        if self.folder is None or self.begun is not None:
            return
        assert self.agent is not None
        if (entry := checkpoint_of_step(self.folder, self._contents(), given.content)) is not None:
            self.agent.load_state(entry["method"])

    def _save_finished(self) -> None:
        """Save a finished step, then delete its checkpoint."""
        if self.folder is not None:
            self.save(self.folder)
            checkpoint_file(self.folder).unlink(missing_ok=True)

    def _contents(self) -> list[str]:
        return [one.content for one in self.history]

    def save(self, folder: str | Path) -> None:
        """Write the agent to a folder; models of earlier steps are kept there under their number."""
        target, images = Path(folder), self.model.images
        with contextlib.nullcontext() if self.folder == target else occupied(target):
            if model_file(target).exists():
                there, ours = read_entry(target, tensors=False), self._contents()
                before = contents_of(require_agent(there, model_file(target)))
                if not self._is_ours(there) or before != ours[: len(before)] or there["images"] != plain(images):
                    raise UserError(
                        f"{model_file(target)} holds another agent, or one that has learned more; it is not overwritten"
                    )
                if before == ours:
                    return
                keep_earlier(target, before)
            write_state(target / "model", self.entry())

    def _is_ours(self, entry: dict[str, Any]) -> bool:
        return "history" in entry and recipe_from_entry(entry) == self.recipe

    def entry(self) -> dict[str, Any]:
        """The contents of the agent's file, also in the middle of a step."""
        assert self.agent is not None and self.setting is not None
        kept = {
            "format": FORMAT,
            "history": plain(self.history),
            "begun": self.begun,
            "learned_images": vars(self.learned_images),
        }
        return {**entry_of(self.agent, self.setting, self.recipe.as_made(), self.class_names), **kept}

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", *, finished: bool = False) -> Self:
        """Read what `save` wrote; an interrupted step is loaded with its progress unless `finished` is set."""
        place = Path(folder)
        saved = read_newest(place, finished)
        try:
            made = cls(device=device)
            made.recipe = recipe_from_entry(saved)
            prepare(made.device)
            made.agent, made.setting, _ = agent_of(saved, made._runtime())
            made.class_names, made.history, made.begun = saved["class_names"], history_of(saved), saved["begun"]
            made.learned_images = LearnedImages(**saved["learned_images"])
        except OTHER_VERSION as error:
            raise DataError(
                f"the agent in {place} was saved by another version ({type(error).__name__}: {error})"
            ) from error
        return made

    @contextlib.contextmanager
    def saving_to(self, folder: str | Path, options: Options | None = None) -> Iterator[Self]:
        """Write checkpoints of each step to the folder, and the model when the step is finished."""
        place, options = Path(folder), options or Options()
        keeper = Keeper(place, options, self.device, self.entry)
        previous = self.folder, self.keep, self.watcher
        with occupied(place), divergence_set_aside(place):
            self._require_same_agent(place)
            self.folder, self.keep, self.watcher = place, keeper.keep, options.watcher
            try:
                if self.history and self.begun is None:
                    self.save(place)
                with keeper.listening():
                    yield self
            finally:
                self.folder, self.keep, self.watcher = previous

    def _require_same_agent(self, place: Path) -> None:
        """The folder must hold this agent or an earlier state of it."""
        there = read_entry(place, tensors=False) if model_file(place).exists() else None
        before = contents_of(there or {})
        if there is not None and (not self._is_ours(there) or before != self._contents()[: len(before)]):
            raise UserError(
                f"{place} holds another agent, or has learned more since this one was loaded: load it again"
            )
        if self.begun is not None and read_newest(place, tensors=False)["begun"] != self.begun:
            raise UserError(f"{place} holds another interrupted step: load it again")
