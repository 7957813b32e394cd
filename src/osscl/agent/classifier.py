"""`ContinualClassifier`: an agent that learns classes step by step and predicts after every step."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from osscl.agent.inputs import (
    NO_IMAGES,
    LearnedImages,
    StepInput,
    are_integers,
    as_class_names,
    class_ids,
    labeled_images,
    plain_images,
    unlabeled_images,
)
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
from osscl.config import convert, plain
from osscl.data.images import Array
from osscl.device import pick_device
from osscl.errors import OTHER_VERSION, DataError, SpecError, UserError, reason_of, require_known
from osscl.methods.base import Progress, Schedule
from osscl.runs.checkpoint import Checkpointer, Options, Unwatched, Watcher, set_aside_on_divergence
from osscl.runs.evaluate import refuse_divergent_loss
from osscl.runs.model import Evaluation, Prediction, compare_with_truth, read_entry
from osscl.storage import locked, remove_state, write_state
from osscl.vision.augment import Augmentation
from osscl.vision.pretrained import LITE0, PretrainedEncoder, lite0_weights, load_encoder

SCRATCH = "scratch"


class NotLearnedError(UserError, NotFittedError):  # type: ignore[misc]
    """Nothing learned yet: scikit-learn's error, which the command line shows as one line."""


class ContinualClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Learns classes from few labels and many unlabelled images, step by step, and detects unknown images.

    `fit` learns the first step, `update` each later one; `predict` works after any of them. A call that fails or is
    interrupted leaves the agent unchanged. Inside `with agent.saving_to(folder)`, repeating the call resumes it.

    With an encoder, images are a folder, a list of files, a table with a path column, Pillow images, or uint8 arrays of
    any size. The default encoder is EfficientNet-Lite0 where it is installed. `encoder="scratch"`, or any of the
    arguments `method`, `schedule`, `changes` and `augmentation`, trains networks from random weights instead, on uint8
    arrays (n, 1 or 3, size, size).

    It is a scikit-learn estimator: arguments are stored, and checked when they are first used, at the latest by `fit`.
    """

    # Before the first step; replaced and never changed in place.
    class_names: list[str] = []  # noqa: RUF012 - in the order they were learned
    history: list[LearnedStep] = []  # noqa: RUF012
    learned_images: LearnedImages = NO_IMAGES
    integer_labels = False  # all labels were given as integers, and are returned so
    begun: str | None = None  # content hash of an interrupted step
    folder: Path | None = None  # inside `saving_to`
    checkpointer: Checkpointer | None = None  # inside `saving_to`
    watcher: Watcher = Unwatched()
    _learner: NetworkLearner | PhotoLearner | None = None
    _made_with: dict[str, Any] | None = None  # the parameters of `_learner`

    def __init__(
        self, method: Any = None, schedule: Schedule | str | None = None, *,
        encoder: str | Path | PretrainedEncoder | None = None, views: int = 2, reject: float = 0.05,
        changes: Sequence[str] = (), memory: int = 1000, seed: int = 0,
        augmentation: Augmentation | str | None = None, device: str = "auto",
    ) -> None:  # fmt: skip
        self.method, self.schedule, self.changes, self.augmentation = method, schedule, changes, augmentation
        self.encoder, self.views, self.reject = encoder, views, reject
        self.memory, self.seed, self.device = memory, seed, device

    @property
    def learner(self) -> NetworkLearner | PhotoLearner:
        """The learner, created from the parameters on first use."""
        if self._learner is None or (not self.history and self.begun is None and self._is_stale()):
            self._adopt(self._new_learner())
        assert self._learner is not None
        return self._learner

    def _is_stale(self) -> bool:
        return self._learner is not None and self._made_with != self.get_params(deep=False)

    def _adopt(self, learner: NetworkLearner | PhotoLearner) -> None:
        self._learner, self._made_with = learner, self.get_params(deep=False)
        self._connect(learner)

    def _new_learner(self) -> NetworkLearner | PhotoLearner:
        device, encoder = pick_device(str(self.device)), self.encoder
        asks = self.method, self.schedule, self.changes or None, self.augmentation
        asks_for_scratch = any(one is not None for one in asks)
        if encoder is None:
            encoder = SCRATCH if asks_for_scratch or lite0_weights() is None else LITE0
        elif asks_for_scratch and encoder != SCRATCH:
            raise SpecError("method, schedule, changes and augmentation apply only to encoder='scratch'")
        if encoder == SCRATCH:
            schedule = self.schedule or default_schedule(device)
            augmentation = "photos" if self.augmentation is None else self.augmentation
            method = self.method or "ursl-plus-unlimited"
            return NetworkLearner(
                make_recipe(method, schedule, self.changes, self.memory, self.seed, augmentation), device
            )
        loaded = load_encoder(encoder, device) if isinstance(encoder, str | Path) else encoder
        settings = PhotoSettings(loaded.name, loaded.content_hash, self.views, self.memory, self.reject)
        return PhotoLearner(loaded, settings, device)

    def __getstate__(self) -> dict[str, Any]:
        """Copies do not write to the folder of the original."""
        return {**vars(self), "folder": None, "checkpointer": None, "watcher": Unwatched()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._learner is not None:
            self._connect(self._learner)

    def __repr__(self) -> str:
        words = f"{len(self.class_names)} classes in {len(self.history)} steps"
        return f"<{type(self).__name__}: {words}{', one step interrupted' * (self.begun is not None)}>"

    def __sklearn_is_fitted__(self) -> bool:
        return bool(self.history) and self.begun is None

    def __sklearn_tags__(self) -> Any:
        """The tags of an estimator whose input is not a table of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.no_validation = True
        return tags

    # ----- learning

    def fit(self, images: Any, labels: Any = None, unlabeled: Any = None) -> Self:
        """Learn the first step; anything learned before is discarded.

        Args:
            images: see the class; a folder has one folder per class, a table may have a column "label".
            labels: one string or integer per image, unless a folder or a table gives them.
            unlabeled: unlabelled images, in the same forms.
        """
        with self._rollback_on_failure():
            if self._is_stale():
                self._adopt(self._new_learner())
            given, integers = self._checked(images, labels, unlabeled)
            self.fit_step(given)
            self.integer_labels = integers
        return self

    def update(self, images: Any = None, labels: Any = None, unlabeled: Any = None) -> Self:
        """Learn new classes, more images of known classes, or from unlabelled images only.

        Earlier images are not needed. Labelled images that were learned before are recognised and skipped.
        """
        if not self.history:
            raise NotLearnedError("nothing learned yet: call fit before update")
        with self._rollback_on_failure():
            given, integers = self._checked(images, labels, unlabeled)
            self.integer_labels = self.integer_labels and (integers or not given.labels)
            self.update_step(given)
        return self

    def partial_fit(self, images: Any, labels: Any = None, classes: Any = None, *, unlabeled: Any = None) -> Self:
        """Call `fit` the first time and `update` afterwards. `classes` is ignored, for scikit-learn compatibility."""
        return (self.update if self.history else self.fit)(images, labels, unlabeled)

    def _checked(self, images: Any, labels: Any, unlabeled: Any) -> tuple[StepInput, bool]:
        """The step that was given, and whether its labels are integers."""
        learner = self.learner  # wrong parameters are reported before images are read
        images, labels = (None, ()) if images is None else labeled_images(images, labels)
        return learner.check(images, labels, unlabeled_images(unlabeled)), are_integers(labels)

    def fit_step(self, given: StepInput) -> Self:
        """Like `fit`, for a step that the learner has checked."""
        if self.folder is not None and self.history:
            raise UserError(f"{self.folder} already holds a trained agent: use update to teach it more")
        return self._learn_step(self._first(given), from_start=self.begun is None)

    def update_step(self, given: StepInput) -> Self:
        """Like `update`, for a step that the learner has checked."""
        return self._learn_step(self._further(given), from_start=False)

    def require_teachable(self, given: StepInput) -> None:
        """Raise the error that the next step would raise, without learning."""
        (self._further if self.history else self._first)(given)

    def has_learned(self, given: StepInput) -> bool:
        """Whether exactly this step has been learned."""
        return self.begun is None and given.content in self.contents

    def learned_as(self, images: Any) -> list[str | None]:
        """The class each image was learned as; None for an image that was not learned."""
        return self.classes_by_digest(self.learner.digests(plain_images(images)))

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
            raise NotLearnedError("nothing learned yet: call fit before update")
        self._require_resumed(given)
        if given.content in self.contents:
            raise UserError("nothing new: this step has already been learned")
        self.learner.require_format(given)  # type: ignore[arg-type]
        fresh = given.only([row for row, c in enumerate(self.learned_images.classes_of(given.digests)) if c is None])
        self.learner.require_next(fresh, self.class_names)  # type: ignore[arg-type]
        return fresh

    def _require_resumed(self, given: StepInput) -> None:
        if self.begun not in (None, given.content):
            raise UserError(
                "a step was interrupted: pass its images again to resume it, or delete its checkpoint to discard it"
            )

    def _learn_step(self, given: StepInput, from_start: bool) -> Self:
        with self._rollback_on_failure():
            if from_start:
                self.learner.begin(given)  # type: ignore[arg-type]
                self.class_names, self.history, self.learned_images = [], [], NO_IMAGES
            self._learn(given)
        self._save_finished()
        return self

    def _connect(self, learner: NetworkLearner | PhotoLearner) -> None:
        if isinstance(learner, NetworkLearner):  # the other one learns a step within seconds
            learner.maybe_checkpoint, learner.progress = self._maybe_checkpoint, self._progress

    def _maybe_checkpoint(self, end_of_phase: bool) -> None:
        if self.checkpointer is not None:
            self.checkpointer.maybe_checkpoint(end_of_phase)

    def _progress(self, where: Progress) -> None:
        refuse_divergent_loss(where, len(self.history))
        self.watcher.progress(len(self.history), len(self.history) + 1, where)

    @contextlib.contextmanager
    def _rollback_on_failure(self) -> Iterator[None]:
        restore, before = self.learner.snapshot(), dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            restore()
            raise

    def _learn(self, given: StepInput) -> None:
        self._resume(given)
        self.begun = given.content
        outcome = self.learner.learn(given, len(self.history), self.class_names)  # type: ignore[arg-type]
        self.history = [*self.history, summarize_step(given, self.class_names, outcome, self.learner.device)]
        self.class_names = [*self.class_names, *self.history[-1].classes]
        self.learned_images = self.learned_images.with_more(given, self.class_names)
        self.begun = None

    def _resume(self, given: StepInput) -> None:
        """Resume this step if its checkpoint is in the folder."""
        if self.folder is not None and self.begun is None:
            entry = checkpoint_of_step(self.folder, self.contents, given.content)
            if entry is not None:
                self.learner.resume(entry)

    # ----- changes of classes

    def rename(self, old: str, new: str) -> Self:
        """Give a class another name."""
        (new,) = as_class_names([new])
        if new in self.class_names:
            raise UserError(f"class {new!r} already exists; use merge to combine two classes")
        names = {name: new if name == old else name for name in self.class_names}
        return self._edit(f"renamed {old} to {new}", old, lambda: self._rename(old, new), names)

    def _rename(self, old: str, new: str) -> None:
        if isinstance(self.learner, PhotoLearner):  # networks know classes by number
            self.learner.rename(old, new)

    def merge(self, gone: str, into: str) -> Self:
        """Merge two classes, as if all images of `gone` had been labelled `into`."""
        if gone == into:
            raise UserError("a class cannot be merged with itself")
        names = {name: into if name == gone else name for name in self.class_names}
        photos = self._photos("merge")
        return self._edit(f"merged {gone} into {into}", gone, lambda: photos.merge(gone, into), names)

    def remove(self, gone: str) -> Self:
        """Remove a class: it is no longer predicted, and its images and statistics are deleted.

        Networks that were trained on it from scratch are not unlearned.
        """
        names = {name: None if name == gone else name for name in self.class_names}
        return self._edit(f"removed {gone}", gone, lambda: self.learner.remove(gone, self.class_names), names)

    def relabel(self, image: Any, new: str | None) -> Self:
        """Correct a wrong label: assign an image to another class, or remove it if `new` is None."""
        photos = self._photos("relabel")
        new = new if new is None else as_class_names([new])[0]
        found = photos.check([image], ["?"], None)
        (old,) = self.classes_by_digest(found.digests)
        if old is None:
            raise UserError("this image was not learned, so its label cannot be changed")
        if old == new:
            raise UserError(f"this image is already learned as {old!r}")
        edit = f"relabelled an image of {old} as {new}" if new is not None else f"removed an image of {old}"
        row, digest = found.rows[0], found.digests[0]
        same = {name: name for name in self.class_names}
        return self._edit(edit, old, lambda: photos.relabel(row, old, new), same, digest, new)

    def _photos(self, what: str) -> PhotoLearner:
        if not isinstance(self.learner, PhotoLearner):
            raise UserError(
                f"{what} requires an agent with a pretrained encoder: a network's head would have to be fitted again "
                "to images that are no longer stored"
            )
        return self.learner

    def _edit(
        self,
        edit: str,
        old: str,
        change: Callable[[], None],
        names: Mapping[str, str | None],
        digest: int | None = None,
        label: str | None = None,
    ) -> Self:
        """Change the class `old` as one more step of the history; `names` maps old names to new ones."""
        if self.begun is not None or not self.history:
            raise UserError("nothing learned yet, or a step was interrupted: finish the step first")
        require_known("class", old, self.class_names)
        if not any(names.values()):
            raise UserError(f"{old!r} is the only class: delete the agent's folder instead")
        with self._rollback_on_failure():
            change()
            kept = [name for name in names.values() if name is not None]
            choice = None
            if isinstance(self.learner, PhotoLearner):
                assert self.learner.knowledge is not None
                kept, choice = [*self.learner.knowledge.classes], self.learner.choice()
            self._rewrite_learned(kept, names, digest, label)
            self.history = [*self.history, summarize_edit(edit, self.history, self.learner.device, choice)]
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

    def predict(self, images: Any) -> Array:
        """The class of each image, (n,); integers if all labels were integers. `predict_detailed` returns more."""
        columns = {name: column for column, name in enumerate(self.class_names)}
        names = self._classes_as_given()
        return names[[columns[name] for name in self.predict_detailed(images).names]]

    def predict_proba(self, images: Any) -> Array:
        """The probability of each class, (n, k), in the order of `classes_`."""
        found = self.predict_detailed(images)
        assert found.class_probabilities is not None
        columns = {name: column for column, name in enumerate(found.classes)}
        order = np.argsort(self._classes_as_given(), kind="stable")
        return found.class_probabilities.numpy()[:, [columns[self.class_names[i]] for i in order]]

    def predict_detailed(self, images: Any, threshold: float | None = None) -> Prediction:
        """Class, probabilities and whether each image looks known.

        Args:
            images: see the class.
            threshold: the score above which an image looks known. With a pretrained encoder a score is the share of
                known images that look less known, and the threshold the share of known images that may be rejected.
        """
        return self.model.predict(plain_images(images), threshold)  # type: ignore[no-any-return]

    @property
    def classes_(self) -> Array:
        """The classes learned, sorted as scikit-learn sorts them."""
        if not self.history:
            raise NotLearnedError("nothing learned yet: call fit first")
        return np.sort(self._classes_as_given())

    def _classes_as_given(self) -> Array:
        """`class_names` as labels were given: integers, unless a class has been renamed since."""
        numbers = self.integer_labels and all(name.lstrip("-").isdigit() for name in self.class_names)
        return np.array([int(name) for name in self.class_names] if numbers else self.class_names)

    @property
    def n_features_in_(self) -> int:
        """Numbers per image, for networks trained from scratch: an encoder takes pictures of any size."""
        setting = getattr(self._learner, "setting", None)
        if setting is None:
            raise AttributeError("n_features_in_ is only defined for fitted networks trained from scratch")
        return int(setting.images.channels * setting.images.size**2)

    def test(self, images: Any, labels: Any = None) -> Evaluation:
        """Compare predictions with true labels; images of classes never learned should look unknown."""
        images, labels = labeled_images(images, labels)
        return compare_with_truth(self.predict_detailed(images), as_class_names(labels), self.class_names)

    def score(self, images: Any, labels: Any = None) -> float:
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
            raise NotLearnedError("nothing learned yet: call fit first")
        return self.learner.model(self.class_names)

    # ----- the folder

    def _save_finished(self) -> None:
        """Save a finished step, then delete its checkpoint."""
        if self.folder is not None:
            self.save(self.folder)
            remove_state(checkpoint_file(self.folder))

    @property
    def contents(self) -> list[str]:
        """The content hash of every step learned."""
        return [step.content for step in self.history]

    def save(self, folder: str | Path) -> None:
        """Write the agent to a folder; models of earlier steps are kept there under their number."""
        target, _ = Path(folder), self.model
        with contextlib.nullcontext() if self.folder == target else locked(target):
            if model_file(target).exists():
                there = require_agent(read_entry(target, tensors=False), model_file(target))
                if not self._continues(there):
                    raise UserError(
                        f"{model_file(target)} belongs to another agent, or to a later state of this one; "
                        "it is not overwritten"
                    )
                if (before := contents_of(there)) == self.contents:
                    return
                keep_earlier(target, before)
            write_state(target / "model", self.entry())

    def entry(self) -> dict[str, Any]:
        """The contents of the agent's file, also in the middle of a step."""
        learned: dict[str, Any] = {"begun": self.begun, "learned_images": vars(self.learned_images)}
        learned |= {"integer_labels": True} if self.integer_labels else {}
        return {
            "format": FORMAT, "history": plain(self.history), **learned, **self.learner.entry(self.class_names),
        }  # fmt: skip

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", *, finished: bool = False) -> Self:
        """Read what `save` wrote; an interrupted step is loaded with its progress unless `finished` is set."""
        place = Path(folder)
        saved = read_newest(place, finished)
        try:
            learner = learner_from_entry(saved, pick_device(str(device)), place)
            made = cls(**learner.parameters(), device=device)
            made._adopt(learner)
            made.class_names = convert(list[str], saved["class_names"], "class_names")
            made.history, made.begun = history_of(saved), saved["begun"]
            made.learned_images = LearnedImages(**saved["learned_images"])
            made.integer_labels = bool(saved.get("integer_labels", False))
        except OTHER_VERSION as error:
            reason = reason_of(error)
            raise DataError(f"the agent in {place} was saved by another version ({reason})") from error
        return made

    @contextlib.contextmanager
    def saving_to(self, folder: str | Path, options: Options | None = None) -> Iterator[Self]:
        """Write checkpoints of each step to the folder, and the model when the step is finished."""
        place, options = Path(folder), options or Options()
        checkpointer = Checkpointer(place, options, self.learner.device, self.entry)
        previous = self.folder, self.checkpointer, self.watcher
        with locked(place), set_aside_on_divergence(place):
            self._require_same_agent(place)
            self.folder, self.checkpointer, self.watcher = place, checkpointer, options.watcher
            try:
                if self.history and self.begun is None:
                    self.save(place)
                with checkpointer.listening():
                    yield self
            finally:
                self.folder, self.checkpointer, self.watcher = previous

    def _continues(self, entry: Mapping[str, Any]) -> bool:
        """Whether an agent's entry is this agent or an earlier state of it."""
        before = contents_of(entry)
        return self.learner.is_same(entry) and before == self.contents[: len(before)]

    def _require_same_agent(self, place: Path) -> None:
        """The folder must hold this agent or an earlier state of it."""
        if model_file(place).exists() and not self._continues(read_entry(place, tensors=False)):
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
