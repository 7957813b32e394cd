"""The served agent in memory: answers, classes, history, and changes of classes. Reloaded when its file changes."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from osscl.agent.classifier import ContinualClassifier, learner_from_entry
from osscl.agent.embeddings import Source, file_key, work_on
from osscl.agent.examples import digest_of_key
from osscl.agent.photos import PhotoLearner, PhotoModel
from osscl.agent.store import LearnedStep, contents_of, earlier_models, go_back, history_of, model_file
from osscl.data.pictures import Picture
from osscl.errors import DataError, UserError
from osscl.runs.model import read_entry
from osscl.serve.answers import (
    Accuracy,
    Answer,
    EarlierModel,
    Guess,
    HistoryStep,
    LearnedClass,
    NearestExample,
    shown_name,
)
from osscl.serve.decoding import MOST_BYTES, DecodedUpload, Decoder, decode_upload

TOP, NEAREST = 5, 3
EXAMPLES = 8  # pictures of a class


@dataclass(frozen=True)
class LoadedAgent:
    """An agent as it was read from its folder."""

    classifier: ContinualClassifier
    learner: PhotoLearner
    model: PhotoModel
    version: str

    @classmethod
    def read(cls, folder: Path, device: str) -> "LoadedAgent":
        classifier = ContinualClassifier.load(folder, device, finished=model_file(folder).exists())
        if not isinstance(classifier.learner, PhotoLearner):
            raise UserError(
                "`osscl serve` requires an agent with a pretrained encoder; this one was trained from scratch"
            )
        if not classifier.history:
            raise UserError(f"{folder} has not learned anything yet: finish its first step with `osscl fit`")
        return cls(classifier, classifier.learner, classifier.model, version_of(classifier.contents))

    @cached_property
    def examples(self) -> dict[str, bytes]:
        """The example pictures by an id of their bytes."""
        assert self.learner.knowledge is not None
        return {example_id(jpeg): jpeg for jpeg in self.learner.knowledge.kept_examples if jpeg}

    def learned_as(self, keys: list[str]) -> list[str | None]:
        """The class that each picture was taught as."""
        return self.classifier.classes_by_digest([digest_of_key(bytes.fromhex(key)) for key in keys])


def version_of(contents: list[str]) -> str:
    """A name for the state of an agent, from the contents of its steps."""
    return hashlib.blake2b(repr(contents).encode(), digest_size=8).hexdigest()


def example_id(jpeg: bytes) -> str:
    return hashlib.blake2b(jpeg, digest_size=16).hexdigest()


def example_address(jpeg: bytes) -> str:
    return f"/api/examples/{example_id(jpeg)}"


class ServedAgent:
    """Answers questions about one agent, from several threads."""

    def __init__(self, folder: Path, decoder: Decoder, device: str = "auto") -> None:
        self.folder, self.decoder, self.device = folder, decoder, device
        self.reading = threading.Lock()  # of the agent in memory, so that looking at it does not wait for answers
        self.lock = threading.RLock()  # of answers and changes
        self._stamp = self._file_stamp()
        self._agent = self._previous = LoadedAgent.read(folder, device)

    def agent(self) -> LoadedAgent:
        """The agent, read again if another process has changed it."""
        with self.reading:
            if (stamp := self._file_stamp()) != self._stamp:
                self._agent, self._previous = LoadedAgent.read(self.folder, self.device), self._agent
                self._stamp = stamp
            return self._agent

    def _file_stamp(self) -> tuple[int, int]:
        try:
            about = model_file(self.folder).stat()
        except OSError:
            raise DataError(f"no agent in {self.folder}: `osscl fit` creates one") from None
        return about.st_mtime_ns, about.st_ino

    # ----- answers

    def answer(self, content: bytes, file: str | None) -> Answer:
        """What the agent says about an uploaded picture; one that cannot be read is answered with the reason."""
        name = shown_name(file)
        try:
            if len(content) > MOST_BYTES:
                raise DataError(f"{name} is larger than {MOST_BYTES >> 20} MB")
            agent = self.agent()
            decoded = self.decoder.run(decode_upload, content, name, agent.learner.encoder.size)
            return self._answer(agent, file_key(content), name, decoded)
        except DataError as error:
            return Answer(file_key(content).hex(), name, False, 0.0, [], [], None, "", error=str(error))

    def _answer(self, agent: LoadedAgent, key: bytes, name: str, decoded: DecodedUpload) -> Answer:
        with self.lock:
            row = self._embedded(agent.learner, key, decoded)
            found = agent.model.predict_rows(row)
            (nearest,) = agent.model.nearest_examples(row, NEAREST)
        assert found.scores is not None and found.known is not None
        return Answer(
            key.hex(), name, bool(found.known[0]), round(100 * float(found.scores[0]), 1),
            [Guess(one, round(p, 4)) for one, p in found.top(TOP)[0]],
            [NearestExample(one.name, example_address(one.jpeg), round(one.similarity, 3)) for one in nearest],
            agent.learned_as([key.hex()])[0], decoded.thumbnail, decoded.note,
        )  # fmt: skip

    def _embedded(self, learner: PhotoLearner, key: bytes, decoded: DecodedUpload) -> torch.Tensor:
        """The embedding (1, width) of a decoded picture, from the store if it is there."""
        store, encoder = learner.store, learner.encoder
        store.refresh()
        work = work_on(lambda: Source(key, lambda: Picture(decoded.image)), encoder, store.views, store.find)
        if work.made is not None:
            made = work.made if work.made.ndim == 2 else encoder.embed(work.made).view(store.views, -1)
            (row,) = store.append([key], made[None].numpy())
        else:
            row = work.row
        return torch.from_numpy(store.take([row])[:, 0])

    def example(self, id: str) -> bytes | None:
        """An example picture; those of the previous model are also found, since a page may still show them."""
        return self.agent().examples.get(id) or self._previous.examples.get(id)

    def warm_up(self) -> None:
        """Compute what the first prediction needs."""
        agent = self.agent()
        with self.lock:
            agent.model.predict_rows(torch.ones(1, agent.learner.encoder.dim))

    # ----- what is learned

    def classes(self) -> list[LearnedClass]:
        agent = self.agent()
        knowledge = agent.model.knowledge
        counts = dict(zip(knowledge.sums.names, map(int, knowledge.sums.counts.tolist()), strict=True))
        since = {name: i for i, step in reversed([*enumerate(agent.classifier.history, 1)]) for name in step.classes}
        return [
            LearnedClass(
                name,
                counts.get(name, 0),
                since.get(name),
                [*map(example_address, agent.model.examples(name, EXAMPLES))],
            )
            for name in agent.classifier.class_names
        ]

    def history(self) -> list[HistoryStep]:
        return [_row(number, step) for number, step in enumerate(self.agent().classifier.history, 1)]

    def earlier(self) -> list[EarlierModel]:
        """Models to go back to, without the one in use and those that cannot be read."""
        own, found = self.agent().classifier.contents, []
        for name in earlier_models(self.folder):
            try:
                entry = read_entry(self.folder, name, tensors=False)
                steps, classes = history_of(entry), [str(one) for one in entry["class_names"]]
            except (DataError, KeyError, TypeError, ValueError):
                continue
            if steps and contents_of(entry) != own:
                found.append(EarlierModel(name, len(steps), steps[-1].words, classes))
        return found

    def left_out(self) -> Accuracy | None:
        """Accuracy on labelled pictures that were left out, in the newest step that measured it."""
        return left_out_accuracy(self.agent().classifier.history)

    # ----- changes

    def edit(self, change: Callable[[ContinualClassifier], Any]) -> None:
        """Change the classes and save, completely or not at all."""
        with self.lock:
            classifier = ContinualClassifier.load(self.folder, self.device, finished=True)
            change(classifier)
            classifier.save(self.folder)

    def go_back(self, model: str) -> None:
        """Return to an earlier model."""
        with self.lock:
            go_back(self.folder, model, lambda entry: learner_from_entry(entry, torch.device("cpu"), self.folder))


def _row(number: int, step: LearnedStep) -> HistoryStep:
    return HistoryStep(
        number, step.words, step.labeled, step.unlabeled, step.let_in, accuracy_of(step), step.date,
        bool(step.edit),
    )  # fmt: skip


def accuracy_of(step: LearnedStep) -> Accuracy | None:
    made = step.measured
    return None if made is None else Accuracy(made.agent, made.class_means, made.tried)


def left_out_accuracy(history: list[LearnedStep]) -> Accuracy | None:
    """The accuracy in the newest step that measured it."""
    return next((made for step in reversed(history) if (made := accuracy_of(step)) is not None), None)
