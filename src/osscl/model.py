"""The practitioner's face: an agent that learns classes as their images arrive, and can be asked at any time."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from osscl import __version__
from osscl.data.benchmarks import GLYPHS
from osscl.data.images import channel_statistics
from osscl.device import device_name, pick_device, precision_of, prepare
from osscl.errors import DataError, SpecError, UserError, unknown
from osscl.experiments.checkpoint import Keeper, Options, Unwatched, Watcher, divergence_set_aside, occupied, set_aside
from osscl.experiments.evaluate import refuse_divergence, refuse_divergent_loss
from osscl.experiments.run import threads_for
from osscl.experiments.saved import Model, Prediction, agent_of, entry_of, read_entry
from osscl.experiments.sizes import sized
from osscl.experiments.spec import configuration, scheduled, type_of
from osscl.frozen import from_plain, plain
from osscl.methods import METHODS
from osscl.methods.method import Method, Progress, Runtime, Schedule, Setting
from osscl.stored import SUFFIX, read_state, write_state
from osscl.stream.lesson import Images, Lesson, lesson_of
from osscl.vision.augment import Augmentation
from osscl.vision.encoder import ImageFormat

AUGMENTATIONS = {"photos": Augmentation(), "glyphs": GLYPHS}  # what may be done to an image without making it another
DARKEST = 1 / 255  # least std of a channel: images may all be of one colour


@dataclass(frozen=True)
class Learned:
    """What one step brought."""

    classes: tuple[str, ...]
    labeled: int
    unlabeled: int
    let_in: int | None  # unlabelled images that the gate took for related; None for methods without one
    seconds: float
    content: str  # hash of all its images and labels
    date: str
    device: str
    osscl: str = __version__


class ContinualClassifier:
    """Learns from few labels and many unlabelled images, step by step; names classes, and says what looks unknown.

    `fit` begins, `update` brings new classes, `predict` may be asked after each; `save` and `load` keep all of it.
    """

    def __init__(
        self,
        method: Any = "ursl-plus",
        schedule: Schedule | str = "short",
        *,
        memory: int = 1000,
        seed: int = 0,
        augmentation: Augmentation | str = "photos",
        device: str = "auto",
    ) -> None:
        self.schedule = scheduled(schedule)
        config = sized(configuration(method), self.schedule) if isinstance(method, str) else method
        if type(config) not in METHODS:
            raise SpecError(f"method must be a name or a config of this package, got {type(config).__qualname__}")
        if getattr(config, "wants_whole_pool", False):
            raise SpecError("this method wants all unlabelled images before the first step; take another, as ursl-plus")
        self.config = config
        if memory < 0 or seed < 0:
            raise SpecError(f"memory and seed must be 0 or more, got {memory} and {seed}")
        if isinstance(augmentation, str) and augmentation not in AUGMENTATIONS:
            raise unknown("augmentation", augmentation, AUGMENTATIONS)
        self.augmentation = AUGMENTATIONS[augmentation] if isinstance(augmentation, str) else augmentation
        self.memory, self.seed, self.device = memory, seed, pick_device(device)
        self.class_names: list[str] = []  # in the order in which they were learned
        self.history: list[Learned] = []
        self.begun: str | None = None  # content of a step that was interrupted
        self.agent: Method | None = None
        self.setting: Setting | None = None
        self.place: Path | None = None  # the folder that it was loaded from
        self.keeper: Keeper | None = None
        self.watcher: Watcher = Unwatched()

    def fit(self, images: Images, labels: Sequence[str], unlabeled: Images | None = None) -> Self:
        """Learn a first step; whatever was learned before is forgotten. One that was interrupted goes on."""
        lesson = self._lesson(images, labels, unlabeled)
        if self.history or self.begun != lesson.content:
            self._begin(lesson)
        return self._learn(lesson)

    def update(self, images: Images, labels: Sequence[str], unlabeled: Images | None = None) -> Self:
        """Learn new classes without the images of the old ones. An update that was interrupted goes on."""
        if self.agent is None or self.setting is None:
            raise UserError("nothing is learned yet: fit comes before update")
        lesson = self._lesson(images, labels, unlabeled)
        if self.begun not in (None, lesson.content):
            file = f", or move {self.place / f'checkpoint{SUFFIX}'} away to give it up" if self.place else ""
            raise UserError(f"a step was interrupted; give the same images again to go on with it{file}")
        if known := sorted(set(lesson.classes) & set(self.class_names)):
            raise UserError(f"{', '.join(known)}: learned already; a step brings new classes alone")
        want = self.setting.images.channels, self.setting.images.size
        if (found := (lesson.images.shape[1], lesson.images.shape[2])) != want:
            raise DataError(f"images must have {want[0]} channels and {want[1]} pixels a side as before, got {found}")
        return self._learn(lesson)

    def predict(self, images: Images, threshold: float | None = None) -> Prediction:
        """Class, probability and whether it looks known, of (n, channels, size, size) uint8 images."""
        return self.model.predict(images, threshold)

    @property
    def model(self) -> Model:
        """What `osscl.load` would read."""
        agent, setting = self._require_learned()
        return Model(agent, setting.images, self.class_names, self.device)

    def _require_learned(self) -> tuple[Method, Setting]:
        """Nothing half learned is called a model."""
        if self.agent is None or self.setting is None or not self.history or self.begun is not None:
            raise UserError("nothing is learned yet, or a step was interrupted: fit or update first")
        return self.agent, self.setting

    def _lesson(self, images: Images, labels: Sequence[str], unlabeled: Images | None) -> Lesson:
        lesson = lesson_of(images, labels, unlabeled)
        count = len(set(self.class_names) | set(lesson.classes))
        if self.memory and count > self.memory:
            raise UserError(f"memory, set at the first step, must be 0 or at least the {count} classes: {self.memory}")
        return lesson

    def _begin(self, lesson: Lesson) -> None:
        mean, std = channel_statistics(lesson.images, lesson.unlabeled)
        spread = tuple(max(value, DARKEST) for value in std)
        shape = ImageFormat(lesson.images.shape[1], lesson.images.shape[2], mean, spread)
        self.setting = Setting(shape, self.augmentation, self.memory, self.seed, self.schedule)
        prepare(self.device)
        self.agent = METHODS[type(self.config)](self.config, self.setting, self._runtime())
        self.class_names, self.history, self.begun = [], [], None

    def _runtime(self) -> Runtime:
        def keep(edge: bool) -> None:
            if self.keeper is not None:
                self.keeper.keep(edge)

        def progress(where: Progress) -> None:
            refuse_divergent_loss(where, len(self.history))
            self.watcher.progress(len(self.history), len(self.history) + 1, where)

        return Runtime(self.device, precision_of(self.device), keep, progress)

    def _learn(self, lesson: Lesson) -> Self:
        assert self.agent is not None
        step = lesson.as_step(len(self.history), first_class=len(self.class_names), device=self.device)
        self.begun = lesson.content
        with threads_for(self.config, self.schedule):
            report = self.agent.learn(step)
        refuse_divergence(report, step.index)
        let_in = None if report.gate is None else int(report.gate.passed.sum())
        seconds = round(sum(phase.seconds for phase in report.phases), 2)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.class_names += lesson.classes
        counts = len(lesson.images), len(lesson.unlabeled), let_in, seconds
        self.history.append(Learned(lesson.classes, *counts, lesson.content, now, device_name(self.device)))
        self.begun = None
        return self

    def save(self, folder: str | Path) -> None:
        """Write all that there is; the model of an earlier step stays beside it under its number."""
        self._require_learned()
        place, entry = Path(folder), self.entry()
        file = place / f"model{SUFFIX}"
        if file.exists():
            there = read_entry(place)
            before = _history(there)
            same = [one.content for one in before] == [one.content for one in self.history[: len(before)]]
            if not same or any(there.get(key) != entry[key] for key in ("spec", "images", "augmentation", "memory")):
                raise UserError(f"{file} holds another agent; nothing is overwritten, give another folder")
            if len(before) == len(self.history):
                return
            _kept(file, place / f"model-{len(before)}{SUFFIX}")
        write_state(place / "model", entry)

    def entry(self) -> dict[str, Any]:
        """All of it as a file holds it, in the middle of a step, too."""
        assert self.agent is not None and self.setting is not None
        made = {
            "method": {"type": type_of(self.config), **plain(self.config)},
            "schedule": plain(self.schedule), "seed": self.seed,
        }  # fmt: skip
        kept = {"history": plain(self.history), "begun": self.begun}
        return {**entry_of(self.agent, self.setting, made, self.class_names), **kept}

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Self:
        """What `save` wrote; where a step was interrupted, the middle of that step."""
        place = Path(folder)
        saved = _newest(place)
        if "history" not in saved:
            raise DataError(f"{place} holds a run of `osscl run`, which learns no more: osscl.load reads it")
        made = cls.__new__(cls)
        made.device, made.place, made.keeper, made.watcher = pick_device(device), place, None, Unwatched()
        made.history, made.begun = _history(saved), saved["begun"]
        made.class_names = list(saved["class_names"])
        prepare(made.device)
        try:
            made.agent, made.setting, made.config = agent_of(saved, made._runtime())
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SpecError) as error:
            raise DataError(f"the agent in {place} is of another version ({type(error).__name__}: {error})") from error
        setting = made.setting
        made.schedule, made.seed, made.memory = setting.schedule, setting.seed, setting.memory
        made.augmentation = setting.augmentation
        return made


def _history(saved: Mapping[str, Any]) -> list[Learned]:
    return [from_plain(Learned, one) for one in saved.get("history", [])]


def _newest(place: Path) -> dict[str, Any]:
    """The middle of a step that was interrupted, where there is one; else what the last step ended in."""
    model, checkpoint = place / f"model{SUFFIX}", place / f"checkpoint{SUFFIX}"
    interrupted = read_state(checkpoint) if checkpoint.exists() else None
    if interrupted is None:
        if checkpoint.exists():
            kept = set_aside(checkpoint, "damaged")
            logging.getLogger("osscl").warning("osscl: damaged checkpoint, kept as %s; the step begins again", kept)
        return read_entry(place)
    finished = read_entry(place) if model.exists() else {}
    return finished if len(_history(finished)) > len(_history(interrupted)) else interrupted


def _kept(file: Path, name: Path) -> None:
    """The same file under a second name, so that there is a model at every moment."""
    if not name.exists():
        try:
            os.link(file, name)
        except OSError:  # a disk that knows no second names
            shutil.copy2(file, name)


class AgentKeeper(Keeper):
    """Keeps an agent in the middle of a step."""

    def __init__(self, folder: Path, options: Options, agent: ContinualClassifier) -> None:
        super().__init__(folder, options, agent.device)
        self.agent = agent

    def contents(self) -> dict[str, Any]:
        return self.agent.entry()


@contextlib.contextmanager
def living_in(folder: Path, agent: ContinualClassifier, options: Options) -> Iterator[None]:
    """Inside, what the agent learns is kept in its folder at good moments, and saved there at the end."""
    keeper = AgentKeeper(folder, options, agent)
    agent.keeper, agent.watcher = keeper, options.watcher
    with occupied(folder), divergence_set_aside(folder), keeper.listening():
        yield
        agent.save(folder)
        (folder / f"checkpoint{SUFFIX}").unlink(missing_ok=True)
