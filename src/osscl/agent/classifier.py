"""`ContinualClassifier`: an agent that learns classes step by step and predicts after every step."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from osscl.agent.evaluation import Evaluation, compare_with_truth
from osscl.agent.inputs import NO_IMAGES, LearnedImages, StepInput, as_class_names, class_ids
from osscl.agent.network import NetworkLearner
from osscl.agent.photos import PhotoLearner, PhotoSettings
from osscl.agent.recipe import make_recipe
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
    summarize_edit,
    summarize_step,
)
from osscl.config import plain
from osscl.device import pick_device
from osscl.errors import OTHER_VERSION, DataError, SpecError, UserError
from osscl.methods.base import Progress, Schedule
from osscl.runs.checkpoint import Checkpointer, Options, Unwatched, Watcher, set_aside_on_divergence
from osscl.runs.evaluate import refuse_divergent_loss
from osscl.runs.model import Prediction, read_entry
from osscl.storage import locked, remove_state, write_state
from osscl.vision.augment import Augmentation
from osscl.vision.pretrained import LITE0, PretrainedEncoder, lite0_weights, load_encoder

SCRATCH = "scratch"


class ContinualClassifier:
    """Learns classes from few labels and many unlabelled images, step by step, and detects unknown images.

    `fit` learns the first step, `update` each later one; `predict` works after any of them. A call that fails or is
    interrupted leaves the agent unchanged. Inside `with agent.saving_to(folder)`, repeating the call resumes it.

    With an encoder, images are file names, Pillow images or uint8 arrays of any size. The default encoder is
    EfficientNet-Lite0 where it is installed. `encoder="scratch"`, or any of the arguments `method`, `schedule`,
    `changes` and `augmentation`, trains networks from random weights instead, on uint8 arrays (n, 1 or 3, size, size).
    """

    def __init__(
        self, method: Any = None, schedule: Schedule | str | None = None, *,
        encoder: str | Path | PretrainedEncoder | None = None, views: int = 2, reject: float = 0.05,
        changes: Sequence[str] = (), memory: int = 1000, seed: int = 0,
        augmentation: Augmentation | str | None = None, device: str = "auto",
    ) -> None:  # fmt: skip
        self.device = pick_device(str(device))
        asks_for_scratch = method is not None or schedule is not None or bool(changes) or augmentation is not None
        if encoder is None:
            encoder = SCRATCH if asks_for_scratch or lite0_weights() is None else LITE0
        elif asks_for_scratch and encoder != SCRATCH:
            raise SpecError("method, schedule, changes and augmentation are for encoder='scratch' only")
        if encoder == SCRATCH:
            schedule = schedule or default_schedule(self.device)
            augmentation = "photos" if augmentation is None else augmentation
            recipe = make_recipe(method or "ursl-plus", schedule, changes, memory, seed, augmentation)
            self.learner: NetworkLearner | PhotoLearner = NetworkLearner(recipe, self.device)  # same methods
        else:
            loaded = load_encoder(encoder, self.device) if isinstance(encoder, str | Path) else encoder
            settings = PhotoSettings(loaded.name, loaded.content_hash, views, memory, reject)
            self.learner = PhotoLearner(loaded, settings, self.device)
        self._reset()

    def _reset(self) -> None:
        self.class_names: list[str] = []  # in the order they were learned
        self.history: list[LearnedStep] = []
        self.learned_images: LearnedImages = NO_IMAGES
        self.begun: str | None = None  # content hash of an interrupted step
        self.folder: Path | None = None  # inside `saving_to`
        self.keep: Callable[[bool], None] | None = None
        self.watcher: Watcher = Unwatched()
        self.learner.keep, self.learner.progress = self._keep, self._progress

    def __getstate__(self) -> dict[str, Any]:
        """Copies do not write to the folder of the original."""
        return {**vars(self), "folder": None, "keep": None, "watcher": Unwatched()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.learner.keep, self.learner.progress = self._keep, self._progress

    def __repr__(self) -> str:
        words = f"{len(self.class_names)} classes in {len(self.history)} steps"
        return f"<{type(self).__name__}: {words}{', one step interrupted' * (self.begun is not None)}>"

    # ----- learning

    def fit(self, images: Any, labels: Sequence[Any], unlabeled: Any = None) -> Self:
        """Learn the first step; anything learned before is discarded."""
        return self.fit_step(self.learner.check(images, labels, unlabeled))

    def update(self, images: Any = None, labels: Sequence[Any] = (), unlabeled: Any = None) -> Self:
        """Learn new classes, more images of known classes, or from unlabelled images alone.

        Earlier images are not needed. Labelled images that were learned before are recognised and skipped.
        """
        if not self.history:
            raise UserError("nothing learned yet: call fit before update")
        return self.update_step(self.learner.check(images, labels, unlabeled))

    def fit_step(self, given: StepInput) -> Self:
        """As `fit`, with a step that the learner has checked."""
        if self.folder is not None and self.history:
            raise UserError(f"{self.folder} already holds a trained agent: use update to teach it more")
        return self._learn_step(self._first(given), from_start=self.begun is None)

    def update_step(self, given: StepInput) -> Self:
        """As `update`, with a step that the learner has checked."""
        return self._learn_step(self._further(given), from_start=False)

    def require_teachable(self, given: StepInput) -> None:
        """Raise the error that the next step would raise, without learning."""
        (self._further if self.history else self._first)(given)

    def has_learned(self, given: StepInput) -> bool:
        """Whether exactly this step has been learned."""
        return self.begun is None and given.content in self._contents()

    def learned_as(self, images: Any) -> list[str | None]:
        """The class each image was learned as; None for an image that was not learned."""
        return self.classes_by_digest(self.learner.digests(images))

    def classes_by_digest(self, digests: Sequence[int]) -> list[str | None]:
        return [None if c is None else self.class_names[c] for c in self.learned_images.classes_of(digests)]

    def _first(self, given: StepInput) -> StepInput:
        self._require_resumed(given)
        if not given.labels:
            raise DataError("the first step needs labelled images")
        self.learner.require_first(given)  # type: ignore[arg-type]
        return given

    def _further(self, given: StepInput) -> StepInput:
        if not self.history:
            raise UserError("nothing learned yet: call fit before update")
        self._require_resumed(given)
        if given.content in self._contents():
            raise UserError("nothing new: this step has already been learned")
        self.learner.require_format(given)  # type: ignore[arg-type]
        fresh = given.only([row for row, c in enumerate(self.learned_images.classes_of(given.digests)) if c is None])
        self.learner.require_next(fresh, self.class_names)  # type: ignore[arg-type]
        return fresh

    def _require_resumed(self, given: StepInput) -> None:
        if self.begun not in (None, given.content):
            raise UserError("a step was interrupted: give its images again to resume it, or move its checkpoint away")

    def _learn_step(self, given: StepInput, from_start: bool) -> Self:
        with self._rollback_on_failure():
            if from_start:
                self.learner.begin(given)  # type: ignore[arg-type]
                self.class_names, self.history, self.learned_images = [], [], NO_IMAGES
            self._learn(given)
        self._save_finished()
        return self

    def _keep(self, edge: bool) -> None:
        if self.keep is not None:
            self.keep(edge)

    def _progress(self, where: Progress) -> None:
        refuse_divergent_loss(where, len(self.history))
        self.watcher.progress(len(self.history), len(self.history) + 1, where)

    @contextlib.contextmanager
    def _rollback_on_failure(self) -> Iterator[None]:
        before, restore = dict(vars(self)), self.learner.snapshot()
        try:
            yield
        except BaseException:
            vars(self).update(before)
            restore()
            raise

    def _learn(self, given: StepInput) -> None:
        self._resume(given)
        self.begun = given.content
        outcome = self.learner.learn(given, len(self.history), self.class_names)  # type: ignore[arg-type]
        self.history = [*self.history, summarize_step(given, self.class_names, outcome, self.device)]
        self.class_names = [*self.class_names, *self.history[-1].classes]
        self.learned_images = self.learned_images.with_more(given, self.class_names)
        self.begun = None

    def _resume(self, given: StepInput) -> None:
        """Resume this step if its checkpoint is in the folder."""
        if self.folder is not None and self.begun is None:
            entry = checkpoint_of_step(self.folder, self._contents(), given.content)
            if entry is not None:
                self.learner.resume(entry)

    # ----- changes of classes

    def rename(self, old: str, new: str) -> Self:
        """Give a class another name."""
        if new in self.class_names:
            raise UserError(f"class {new!r} exists: use merge to join two classes")
        names = {name: new if name == old else name for name in self.class_names}
        return self._edit(f"renamed {old} to {new}", lambda photos: photos.rename(old, new), names)

    def merge(self, gone: str, into: str) -> Self:
        """Merge two classes, as if all images of `gone` had been labelled `into`."""
        if gone == into:
            raise UserError("a class cannot be merged with itself")
        names = {name: into if name == gone else name for name in self.class_names}
        return self._edit(f"merged {gone} into {into}", lambda photos: photos.merge(gone, into), names)

    def remove(self, gone: str) -> Self:
        """Forget a class: it is no longer predicted, and its statistics and embeddings are deleted."""
        names = {name: None if name == gone else name for name in self.class_names}
        return self._edit(f"removed {gone}", lambda photos: photos.remove(gone), names)

    def relabel(self, image: Any, new: str | None) -> Self:
        """Undo a wrong label: learn an image as another class, or as none."""
        photos = self._photos("relabel")
        found = photos.check([image], ["?"], None)
        (old,) = self.classes_by_digest(found.digests)
        if old is None:
            raise UserError("this image was not learned, so its label cannot be changed")
        if old == new:
            raise UserError(f"this image is already learned as {old!r}")
        edit = f"relabelled an image of {old} as {new}" if new is not None else f"removed an image of {old}"
        row, digest = found.rows[0], found.digests[0]
        same = {name: name for name in self.class_names}
        return self._edit(edit, lambda photos: photos.relabel(row, old, new), same, digest, new)

    def _photos(self, what: str) -> PhotoLearner:
        if not isinstance(self.learner, PhotoLearner):
            raise UserError(
                f"{what} needs an agent with a pretrained encoder; networks trained from scratch do not support it"
            )
        if self.begun is not None or not self.history:
            raise UserError("nothing learned yet, or a step was interrupted: finish the step first")
        return self.learner

    def _edit(
        self,
        edit: str,
        change: Callable[[PhotoLearner], None],
        names: Mapping[str, str | None],
        digest: int | None = None,
        label: str | None = None,
    ) -> Self:
        """Change the classes as one more step of the history; `names` maps old names to new ones."""
        photos = self._photos(edit.partition(" ")[0].removesuffix("d"))
        with self._rollback_on_failure():
            change(photos)
            assert photos.knowledge is not None
            self._rewrite_learned(photos.knowledge.classes, names, digest, label)
            self.history = [*self.history, summarize_edit(edit, self.history, self.device)]
        self._save_finished()
        return self

    def _rewrite_learned(
        self, classes: Sequence[str], names: Mapping[str, str | None], digest: int | None, label: str | None
    ) -> None:
        found = []
        for one, c in zip(self.learned_images.digests.tolist(), self.learned_images.classes.tolist(), strict=True):
            name = label if one == digest else names[self.class_names[c]]
            if name is not None:
                found.append((one, name))
        self.class_names = [*classes]
        digests = torch.tensor([one for one, _ in found], dtype=torch.long)
        self.learned_images = LearnedImages(digests, class_ids([name for _, name in found], classes))

    # ----- prediction

    def predict(self, images: Any, threshold: float | None = None) -> Prediction:
        """Class, probabilities and whether each image looks known.

        Args:
            images: see the class.
            threshold: the score above which an image looks known. With a pretrained encoder a score is the share of
                known images that look less known, and the threshold the share of known images that may be rejected.
        """
        return self.model.predict(images, threshold)  # type: ignore[no-any-return]

    def test(self, images: Any, labels: Sequence[Any]) -> Evaluation:
        """Compare predictions with true labels; images of classes never learned should look unknown."""
        return compare_with_truth(self.predict(images), as_class_names(labels), self.class_names)

    def score(self, images: Any, labels: Sequence[Any]) -> float:
        """Accuracy on images of learned classes, from 0 to 1."""
        accuracy = self.test(images, labels).accuracy
        if accuracy is None:
            raise DataError("none of these labels is a learned class")
        return accuracy

    @property
    def model(self) -> Any:
        """The model for prediction."""
        if self.begun is not None:
            raise UserError("a step was interrupted: resume it first, or load with finished=True")
        if not self.history:
            raise UserError("nothing learned yet: call fit first")
        return self.learner.model(self.class_names)

    # ----- the folder

    def _save_finished(self) -> None:
        """Save a finished step, then delete its checkpoint."""
        if self.folder is not None:
            self.save(self.folder)
            remove_state(checkpoint_file(self.folder))

    def _contents(self) -> list[str]:
        return [step.content for step in self.history]

    def save(self, folder: str | Path) -> None:
        """Write the agent to a folder; models of earlier steps are kept there under their number."""
        target, _ = Path(folder), self.model
        with contextlib.nullcontext() if self.folder == target else locked(target):
            if model_file(target).exists():
                there, ours = require_agent(read_entry(target, tensors=False), model_file(target)), self._contents()
                before = contents_of(there)
                if not self.learner.is_same(there) or before != ours[: len(before)]:
                    raise UserError(
                        f"{model_file(target)} holds another agent, or one that has learned more; it is not overwritten"
                    )
                if before == ours:
                    return
                keep_earlier(target, before)
            write_state(target / "model", self.entry())

    def entry(self) -> dict[str, Any]:
        """The contents of the agent's file, also in the middle of a step."""
        learned = {"begun": self.begun, "learned_images": vars(self.learned_images)}
        return {
            "format": FORMAT, "history": plain(self.history), **learned, **self.learner.entry(self.class_names),
        }  # fmt: skip

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", *, finished: bool = False) -> Self:
        """Read what `save` wrote; an interrupted step is loaded with its progress unless `finished` is set."""
        place = Path(folder)
        saved = read_newest(place, finished)
        made = cls.__new__(cls)
        made.device = pick_device(str(device))
        try:
            made.learner = learner_from_entry(saved, made.device, place)
            made._reset()
            made.class_names, made.history, made.begun = saved["class_names"], history_of(saved), saved["begun"]
            made.learned_images = LearnedImages(**saved["learned_images"])
        except OTHER_VERSION as error:
            reason = f"{type(error).__name__}: {error}"
            raise DataError(f"the agent in {place} was saved by another version ({reason})") from error
        return made

    @contextlib.contextmanager
    def saving_to(self, folder: str | Path, options: Options | None = None) -> Iterator[Self]:
        """Write checkpoints of each step to the folder, and the model when the step is finished."""
        place, options = Path(folder), options or Options()
        checkpointer = Checkpointer(place, options, self.device, self.entry)
        previous = self.folder, self.keep, self.watcher
        with locked(place), set_aside_on_divergence(place):
            self._require_same_agent(place)
            self.folder, self.keep, self.watcher = place, checkpointer.maybe_checkpoint, options.watcher
            try:
                if self.history and self.begun is None:
                    self.save(place)
                with checkpointer.listening():
                    yield self
            finally:
                self.folder, self.keep, self.watcher = previous

    def _require_same_agent(self, place: Path) -> None:
        """The folder must hold this agent or an earlier state of it."""
        there = read_entry(place, tensors=False) if model_file(place).exists() else None
        before = contents_of(there or {})
        if there is not None and (not self.learner.is_same(there) or before != self._contents()[: len(before)]):
            raise UserError(
                f"{place} holds another agent, or has learned more since this one was loaded: load it again"
            )
        if self.begun is not None and read_newest(place, tensors=False)["begun"] != self.begun:
            raise UserError(f"{place} holds a different interrupted step: load the agent again")


def default_schedule(device: torch.device) -> str:
    """A schedule that finishes in reasonable time: without a GPU, one with small networks."""
    return "short" if device.type == "cuda" else "demo"


def learner_from_entry(
    entry: dict[str, Any], device: torch.device, folder: Path | None = None
) -> NetworkLearner | PhotoLearner:
    """The learner in an agent's file."""
    if "knowledge" in entry:
        return PhotoLearner.from_entry(entry, device, folder)
    return NetworkLearner.from_entry(entry, device)
