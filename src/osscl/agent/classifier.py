"""The practitioner's face: an agent that learns classes as their images arrive, and can be asked at any time."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from osscl.agent.home import (
    Learned,
    begun_there,
    checkpoint_file,
    contents_in,
    history_in,
    keep_earlier,
    learned_by,
    model_file,
    newest,
)
from osscl.agent.lesson import (
    NOTHING_MET,
    Arrived,
    Images,
    Met,
    checked,
    class_names,
    met_in,
    require_news,
    require_room,
)
from osscl.agent.recipe import make_recipe, recipe_in
from osscl.agent.tested import Tested, held_against
from osscl.config import plain
from osscl.data.folders import require_size
from osscl.device import pick_device, precision_of, prepare
from osscl.errors import OTHER_VERSION, DataError, UserError
from osscl.methods import method_class
from osscl.methods.base import Method, Progress, Runtime, Schedule, Setting
from osscl.runs.checkpoint import Checkpointer, Options, Unwatched, Watcher, occupied, set_aside_on_divergence
from osscl.runs.evaluate import finite_logits, refuse_divergence, refuse_divergent_loss
from osscl.runs.model import Model, Prediction, agent_of, entry_of, read_entry
from osscl.runs.run import threads_for
from osscl.storage import write_state
from osscl.vision.augment import Augmentation

Given = Images | None


class ContinualClassifier:
    """Learns from few labels and many unlabelled images, step by step; names classes, and says what looks unknown.

    `fit` begins, `update` goes on, `predict` may be asked after each; `save` and `load` keep all of it.
    A call that fails or is interrupted leaves the agent as it was; inside `living_in` a folder, the same call goes on.
    """

    def __init__(
        self, method: Any = "ursl-plus", schedule: Schedule | str = "short", *, changes: Sequence[str] = (),
        memory: int = 1000, seed: int = 0, augmentation: Augmentation | str = "photos", device: str = "auto",
    ) -> None:  # fmt: skip
        self.recipe = make_recipe(method, schedule, changes, memory, seed, augmentation)
        self.device = pick_device(str(device))
        self.class_names: list[str] = []  # in the order in which they were learned
        self.history: list[Learned] = []
        self.met: Met = NOTHING_MET
        self.begun: str | None = None  # content of a step that was interrupted, and is gone on with
        self.agent: Method | None = None
        self.setting: Setting | None = None
        self.home: Path | None = None  # inside `living_in`
        self.keep: Callable[[bool], None] | None = None
        self.watcher: Watcher = Unwatched()

    def __getstate__(self) -> dict[str, Any]:
        """A copy lives nowhere."""
        return {**vars(self), "home": None, "keep": None, "watcher": Unwatched()}

    def __repr__(self) -> str:
        words = f"{len(self.class_names)} classes in {len(self.history)} steps"
        return f"<{type(self).__name__}: {words}{', a step interrupted' * (self.begun is not None)}>"

    def fit(self, images: Images, labels: Sequence[Any], unlabeled: Given = None) -> Self:
        """Learn a first step; whatever was learned before is forgotten."""
        if self.home is not None and self.history:
            raise UserError(f"{self.home} has learned already: update teaches it more")
        return self._taught(self._first(images, labels, unlabeled), anew=self.begun is None)

    def update(self, images: Images | None = None, labels: Sequence[Any] = (), unlabeled: Images | None = None) -> Self:
        """Learn new classes, more of old ones, or from unlabelled images alone; the images of before are not needed.

        Labelled images that were learned before are recognised and left out, so a folder that grows may be given whole.
        """
        return self._taught(self._further(images, labels, unlabeled), anew=False)

    def require_teachable(self, images: Given = None, labels: Sequence[Any] = (), unlabeled: Given = None) -> None:
        """Refuse what the next step would refuse, before any work."""
        (self._further if self.history else self._first)(images, labels, unlabeled)

    def has_learned(self, images: Given = None, labels: Sequence[Any] = (), unlabeled: Given = None) -> bool:
        """Whether this very step is through."""
        return self.begun is None and checked(images, labels, unlabeled).content in self._contents()

    def learned_as(self, images: Images) -> list[str | None]:
        """The class that each of these very images was learned as; None for one that was not."""
        return [None if c is None else self.class_names[c] for c in self.met.classes_of(images)]

    def _first(self, images: Given, labels: Sequence[Any], unlabeled: Given) -> Arrived:
        arrived = self._arrived(images, labels, unlabeled)
        if not arrived.labels:
            raise DataError("the first step needs labelled images")
        require_room(self.recipe, len(arrived.classes))
        require_size(arrived.images.shape[2])
        return arrived

    def _further(self, images: Given, labels: Sequence[Any], unlabeled: Given) -> Arrived:
        if self.setting is None or not self.history:
            raise UserError("nothing is learned yet: fit comes before update")
        arrived = self._arrived(images, labels, unlabeled)
        if arrived.content in self._contents():
            raise UserError("nothing new: this very step is learned already")
        want = self.setting.images.channels, self.setting.images.size
        if (found := (arrived.images.shape[1], arrived.images.shape[2])) != want:
            raise DataError(f"images must have {want[0]} channels and {want[1]} pixels a side as before, got {found}")
        fresh = arrived.only([row for row, c in enumerate(self.met.classes_of(arrived.images)) if c is None])
        require_news(fresh, self.class_names, self.recipe)
        return fresh

    def predict(self, images: Images, threshold: float | None = None) -> Prediction:
        """Class, probability and whether it looks known, of (n, channels, size, size) uint8 images."""
        return self.model.predict(images, threshold)

    def test(self, images: Images, labels: Sequence[Any]) -> Tested:
        """Predictions against the truth; images of classes that were not learned should look unknown."""
        return held_against(self.predict(images), class_names(labels), self.class_names)

    def score(self, images: Images, labels: Sequence[Any]) -> float:
        """Share that is right, of images of classes that were learned."""
        accuracy = self.test(images, labels).accuracy
        if accuracy is None:
            raise DataError("none of these labels is of a class that was learned")
        return accuracy

    @property
    def model(self) -> Model:
        """What `osscl.load` would read."""
        if self.begun is not None:
            raise UserError("a step was interrupted: go on with it first, or load with finished=True")
        if self.agent is None or self.setting is None or not self.history:
            raise UserError("nothing is learned yet: fit first")
        return Model(self.agent, self.setting.images, self.class_names, self.device)

    def _arrived(self, images: Given, labels: Sequence[Any], unlabeled: Given) -> Arrived:
        arrived = checked(images, labels, unlabeled)
        if self.begun not in (None, arrived.content):
            raise UserError("a step was interrupted: give its images again to resume, or move its checkpoint away")
        return arrived

    def _taught(self, arrived: Arrived, anew: bool) -> Self:
        with self._as_it_was_on_failure():
            if anew:
                self._begin(arrived)
            with threads_for(self.agent):
                self._learn(arrived)
        self._settle()
        return self

    def _begin(self, arrived: Arrived) -> None:
        recipe = self.recipe
        self.setting = Setting(arrived.format, recipe.augmentation, recipe.memory, recipe.seed, recipe.schedule)
        self.class_names, self.history, self.met = [], [], NOTHING_MET
        prepare(self.device)
        self.agent = self._fresh()

    def _fresh(self) -> Method:
        made: Method = method_class(self.recipe.method)(self.recipe.method, self.setting, self._runtime())
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
    def _as_it_was_on_failure(self) -> Iterator[None]:
        """Half a step is nobody's: a network in the middle of its training neither predicts nor begins again."""
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

    def _learn(self, arrived: Arrived) -> None:
        assert self.agent is not None
        cap = self.recipe.schedule.row_cap
        step = arrived.as_step(len(self.history), self.class_names, cap, self.device)
        self._take_up(arrived)
        self.begun = arrived.content
        report = self.agent.learn(step)
        refuse_divergence(report, step.index)
        finite_logits(self.agent, arrived.images.to(self.device), step.index)
        self.history = [*self.history, learned_by(arrived, self.class_names, len(step.unlabeled), report, self.device)]
        self.class_names = [*self.class_names, *self.history[-1].classes]
        self.met = self.met.with_more(arrived, self.class_names)
        self.begun = None

    def _take_up(self, arrived: Arrived) -> None:
        """Go on where this very step was interrupted at home."""
        if self.home is None or self.begun is not None:
            return
        assert self.agent is not None
        if (entry := begun_there(self.home, self._contents(), arrived.content)) is not None:
            self.agent.load_state(entry["method"])

    def _settle(self) -> None:
        """A step that is through is saved at once, and what led to it is wanted no more."""
        if self.home is not None:
            self.save(self.home)
            checkpoint_file(self.home).unlink(missing_ok=True)

    def _contents(self) -> list[str]:
        return [one.content for one in self.history]

    def save(self, folder: str | Path) -> None:
        """Write all that there is; the model of an earlier step stays beside it under its number."""
        place, images = Path(folder), self.model.images
        with contextlib.nullcontext() if self.home == place else occupied(place):
            if model_file(place).exists():
                there, ours = read_entry(place, tensors=False), self._contents()
                before = contents_in(there)
                if not self._is_ours(there) or before != ours[: len(before)] or there["images"] != plain(images):
                    raise UserError(
                        f"{model_file(place)} holds another agent, or one that has learned more; nothing is overwritten"
                    )
                if before == ours:
                    return
                keep_earlier(place, before)
            write_state(place / "model", self.entry())

    def _is_ours(self, entry: dict[str, Any]) -> bool:
        return "history" in entry and recipe_in(entry) == self.recipe

    def entry(self) -> dict[str, Any]:
        """All of it as a file holds it, in the middle of a step, too."""
        assert self.agent is not None and self.setting is not None
        kept = {"history": plain(self.history), "begun": self.begun, "met": vars(self.met)}
        return {**entry_of(self.agent, self.setting, self.recipe.as_made(), self.class_names), **kept}

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", *, finished: bool = False) -> Self:
        """What `save` wrote; where a step was interrupted, the middle of it, unless what is `finished` is wanted."""
        place = Path(folder)
        saved = newest(place, finished)
        try:
            made = cls(device=device)
            made.recipe = recipe_in(saved)
            prepare(made.device)
            made.agent, made.setting, _ = agent_of(saved, made._runtime())
            made.class_names, made.history, made.begun = saved["class_names"], history_in(saved), saved["begun"]
            made.met = Met(**saved["met"]) if "met" in saved else met_in(made.agent)
        except OTHER_VERSION as error:
            raise DataError(f"the agent in {place} is of another version ({type(error).__name__}: {error})") from error
        return made

    @contextlib.contextmanager
    def living_in(self, folder: str | Path, options: Options | None = None) -> Iterator[Self]:
        """Inside, a step is kept in the folder at good moments, so that it can go on, and saved there at its end."""
        place, options = Path(folder), options or Options()
        keeper = Checkpointer(place, options, self.device, self.entry)
        before = self.home, self.keep, self.watcher
        with occupied(place), set_aside_on_divergence(place):
            self._require_home(place)
            self.home, self.keep, self.watcher = place, keeper.maybe_checkpoint, options.watcher
            try:
                if self.history and self.begun is None:
                    self.save(place)
                with keeper.listening():
                    yield self
            finally:
                self.home, self.keep, self.watcher = before

    def _require_home(self, place: Path) -> None:
        """What lies there must be what this agent was when it was loaded."""
        there = read_entry(place, tensors=False) if model_file(place).exists() else None
        before = contents_in(there or {})
        if there is not None and (not self._is_ours(there) or before != self._contents()[: len(before)]):
            raise UserError(f"{place} holds another agent, or has learned more meanwhile: load it again")
        if self.begun is not None and newest(place, tensors=False)["begun"] != self.begun:
            raise UserError(f"{place} holds another step that was interrupted: load it again")
