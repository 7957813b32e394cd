"""The learner behind a pretrained encoder: it learns only statistics of embedded photographs."""

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from osscl.agent.embedding_store import EmbeddingStore
from osscl.agent.embeddings import Embedded, embed_images, embed_paths, open_store
from osscl.agent.examples import Example, GetPicture, digest_of_key, make_examples, no_examples
from osscl.agent.inputs import Images, as_class_names, require_consistent
from osscl.agent.knowledge import Knowledge, learn_rows
from osscl.agent.store import HeadChoice, StepOutcome
from osscl.config import require
from osscl.data.folders import ReadProgress, named_files, silent
from osscl.device import one_thread, prepare
from osscl.errors import DataError, UserError, require_known
from osscl.learn.embedded import DISCRIMINANTS, MEANS, split_layers
from osscl.learn.grouping import comparable
from osscl.learn.unknown import summarise_pile
from osscl.places import cache_dir
from osscl.runs.model import Prediction, calibrated_prediction, joined
from osscl.storage import draft_folder
from osscl.vision.pretrained import CombinedViews, PretrainedEncoder, load_encoder

Photos = Images | Sequence[str | Path | Image.Image]
ROWS_AT_A_TIME = 4096  # rows in memory at a time


@dataclass(frozen=True)
class PhotoSettings:
    """The settings of a photo agent, fixed by its first step."""

    encoder: str  # a name, a folder or a hub id
    content_hash: str  # of its weights and preprocessing
    views: int = 2
    memory: int = 1000  # labelled embeddings kept, over all classes
    reject: float = 0.05  # share of known images that may be called unknown

    def __post_init__(self) -> None:
        require(type(self.memory) is int and self.memory >= 0, self, "memory", "a whole number, 0 or more")
        require(isinstance(self.reject, float) and 0 < self.reject < 0.5, self, "reject", "between 0 and 0.5")


@dataclass(frozen=True)
class PhotoStep:
    """A step of embedded photographs."""

    rows: Tensor  # (n, width) float32
    labels: tuple[str, ...]
    digests: tuple[int, ...]
    unlabeled: Embedded
    unlabeled_digests: Tensor  # (m,) int64
    content: str
    pictures: tuple[GetPicture, ...] = ()  # of the labelled images, for examples; may be empty
    skipped: int = 0

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.labels)))

    def only(self, rows: Sequence[int]) -> Self:
        labels = tuple(self.labels[row] for row in rows)
        digests = tuple(self.digests[row] for row in rows)
        pictures = tuple(self.pictures[row] for row in rows) if self.pictures else ()
        left, skipped = self.rows[list(rows)], self.skipped + len(self.labels) - len(rows)
        return replace(self, rows=left, labels=labels, digests=digests, pictures=pictures, skipped=skipped)

    def examples(self, rows: Sequence[int]) -> list[bytes]:
        """Small JPEGs of these labelled images, made now."""
        if not self.pictures:
            return no_examples(rows)
        return make_examples([self.pictures[row] for row in rows], [self.digests[row] for row in rows])


class PhotoLearner:
    """Statistics of embeddings: class means, a shared covariance, heads weighted by their loss on images left out."""

    def __init__(self, encoder: PretrainedEncoder, settings: PhotoSettings, device: torch.device) -> None:
        self.settings, self.device, self.engine = settings, device, "local"
        self.encoder = CombinedViews(encoder, settings.views)
        self.knowledge: Knowledge | None = None
        self.pile_digests = torch.empty(0, dtype=torch.long)  # of all unlabelled images seen, sorted

    @cached_property
    def store(self) -> EmbeddingStore:
        return open_store(cache_dir() / "embeddings", self.encoder)

    def __getstate__(self) -> dict[str, Any]:
        """Copies open the store again."""
        return {key: value for key, value in vars(self).items() if key != "store"}

    def __deepcopy__(self, memo: dict[int, Any]) -> "PhotoLearner":
        """Knowledge is immutable and the encoder frozen: copies share them."""
        made = PhotoLearner.__new__(PhotoLearner)
        vars(made).update(self.__getstate__())
        return made

    # ----- images to rows

    def embed(self, photos: Photos, progress: ReadProgress = silent) -> Embedded:
        """Embed image files, Pillow images or uint8 images (n, 1 or 3, height, width); each content once."""
        if len(photos) and isinstance(photos[0], str | Path):
            paths = [Path(str(path)) for path in photos]
            if self.engine == "ray":
                from osscl.agent.embeddings_ray import embed_on_ray

                load = partial(load_combined, self.settings.encoder, self.settings.views)
                return embed_on_ray(paths, load, self.store, progress)
            return embed_paths(paths, self.encoder, self.store, progress)
        return embed_images(photos, self.encoder, self.store, progress)  # type: ignore[arg-type]

    def check(self, images: Photos | None, labels: Sequence[Any], unlabeled: Photos | None) -> PhotoStep:
        """Embed and validate one step; an image that cannot be read is an error."""
        found = self.embed([] if images is None else images)
        pile = self.embed([] if unlabeled is None else unlabeled)
        for part in (found, pile):
            if part.skipped:
                raise DataError(part.skipped[0].reason)
        return self.step(found, labels, pile)

    def step(self, labeled: Embedded, labels: Sequence[Any], pile: Embedded) -> PhotoStep:
        """Validate one step of images that are embedded already; copies of a labelled image count once."""
        if not len(labeled) and not len(pile):
            raise DataError("nothing to learn from: give labelled images, unlabelled images, or both")
        names, digests = as_class_names(labels), image_digests(labeled)
        require_consistent(digests, names)
        others = torch.tensor(image_digests(pile), dtype=torch.long)
        content = hashlib.blake2b(repr((digests, names)).encode() + others.numpy().tobytes(), digest_size=16)
        whole = PhotoStep(image_rows(labeled), names, digests, pile, others, content.hexdigest(), labeled.pictures())
        return whole.only(_first_of_each(torch.tensor(digests, dtype=torch.long)).nonzero()[:, 0].tolist())

    def digests(self, images: Photos) -> tuple[int, ...]:
        return image_digests(self.embed(images))

    # ----- learning

    def require_first(self, given: PhotoStep) -> None:
        """Accept any labelled images."""

    def require_format(self, given: PhotoStep) -> None:
        """Accept images of any size."""

    def require_next(self, given: PhotoStep, known: Sequence[str]) -> None:
        new = ~torch.isin(given.unlabeled_digests, self.pile_digests)
        if not given.labels and not bool(new.any()):
            raise UserError("nothing new: all of these images have already been learned")

    def begin(self, given: PhotoStep) -> None:
        prepare(self.device)
        self.knowledge, self.pile_digests = None, torch.empty(0, dtype=torch.long)

    def learn(self, given: PhotoStep, index: int, known: Sequence[str]) -> StepOutcome:
        """Add the step's labelled images and the images of its pile that are new."""
        started = time.monotonic()
        first = _first_of_each(given.unlabeled_digests)
        fresh = first & ~torch.isin(given.unlabeled_digests, self.pile_digests)
        with one_thread():  # for the same bits on any number of cores
            pile = summarise_pile((part[mask] for part, mask in _pile_rows(given, fresh)), self.encoder.widths)
            memory, widths = self.settings.memory, self.encoder.widths
            before, examples = self.knowledge, given.examples
            self.knowledge = learn_rows(before, given.rows, given.labels, pile, widths, memory, examples)
            self.pile_digests = torch.cat((self.pile_digests, given.unlabeled_digests[fresh])).sort().values
            let_in = self._count_known(given) if len(given.unlabeled) else None
        return StepOutcome(len(given.unlabeled), let_in, time.monotonic() - started, self.choice())

    def _count_known(self, given: PhotoStep) -> int:
        assert self.knowledge is not None
        parts = (part for part, _ in _pile_rows(given, torch.ones(len(given.unlabeled), dtype=torch.bool)))
        return sum(int((~self.knowledge.unknown.rejects(part, self.settings.reject)).sum()) for part in parts)

    def choice(self) -> HeadChoice:
        """The head in use, with its left-out accuracy and that of the two baselines."""
        assert self.knowledge is not None
        head = self.knowledge.head
        right = [round(100 * head.right(way), 2) for way in (None, MEANS, DISCRIMINANTS)]
        return HeadChoice(str(head), head.trials.rows, *right)

    def snapshot(self) -> Callable[[], None]:
        """A function that restores the learner as it is now."""
        before = {"knowledge": self.knowledge, "pile_digests": self.pile_digests}
        return lambda: vars(self).update(before)

    # ----- changes of classes

    def rename(self, old: str, new: str) -> None:
        self.knowledge = self._known(old).renamed(old, new)

    def merge(self, gone: str, into: str) -> None:
        self._known(into)
        self.knowledge = self._known(gone).merged(gone, into)

    def remove(self, gone: str, class_names: Sequence[str] = ()) -> None:
        self.knowledge = self._known(gone).removed(gone)

    def relabel(self, row: Tensor, old: str, new: str | None) -> None:
        known = self._known(old)
        if new is None and len(known.classes) == 1 and float(known.sums.counts[0]) <= 1:
            raise UserError("this is the only image learned: delete the agent's folder instead")
        self.knowledge = known.relabeled(row, old, new)

    def _known(self, name: str) -> Knowledge:
        assert self.knowledge is not None
        require_known("class", name, self.knowledge.classes)
        return self.knowledge

    # ----- use and storage

    def model(self, class_names: Sequence[str]) -> "PhotoModel":
        assert self.knowledge is not None
        return PhotoModel(self, self.knowledge)

    def entry(self, class_names: Sequence[str]) -> dict[str, Any]:
        assert self.knowledge is not None
        made = {"settings": vars(self.settings), "class_names": list(class_names)}
        return {**made, "knowledge": self.knowledge.state(), "pile_digests": self.pile_digests}

    def parameters(self) -> dict[str, Any]:
        """The arguments of the `ContinualClassifier` that would make this learner."""
        made = self.settings
        return {"encoder": made.encoder, "views": made.views, "memory": made.memory, "reject": made.reject}

    def is_same(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry was made with these settings."""
        return bool(entry.get("settings") == vars(self.settings))

    def resume(self, entry: Mapping[str, Any]) -> None:
        """Do nothing: embeddings are cached, and the rest of a step takes only seconds."""

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any], device: torch.device, folder: Path | None = None) -> "PhotoLearner":
        settings = PhotoSettings(**entry["settings"])
        made = cls(_encoder_of(settings, device, folder), settings, device)
        made.knowledge = Knowledge.from_state(entry["knowledge"])
        made.pile_digests = entry["pile_digests"]
        return made


class PhotoModel:
    """A photo agent for prediction."""

    def __init__(self, learner: PhotoLearner, knowledge: Knowledge) -> None:
        self.learner, self.knowledge = learner, knowledge

    @property
    def classes(self) -> tuple[str, ...]:
        return self.knowledge.classes

    @property
    def reject(self) -> float:
        return self.learner.settings.reject

    def predict(self, photos: Photos | str | Path, reject: float | None = None) -> Prediction:
        """Classify image files, folders of them, or images in memory; an image that cannot be read is an error."""
        files = named_files(photos)
        found = self.learner.embed(photos if files is None else files)  # type: ignore[arg-type]
        if found.skipped:
            raise DataError(found.skipped[0].reason)
        return self.predict_embedded(found, reject)

    def predict_embedded(self, found: Embedded, reject: float | None = None) -> Prediction:
        """Predictions for images that are embedded already."""
        parts = [self.predict_rows(rows, reject) for rows in chunks(found)]
        return joined(parts) if parts else self.predict_rows(image_rows(found), reject)

    def predict_files(
        self, files: Sequence[Path], reject: float | None = None
    ) -> tuple[tuple[Prediction, list[Path]] | None, list[str]]:
        """Predictions and the files that could be read, or None if there are none; and the problems of the others."""
        found = self.learner.embed(files)
        problems = [one.reason for one in found.skipped]
        kept = [files[i] for i in found.indices]
        return (self.predict_embedded(found, reject), kept) if kept else None, problems

    def predict_rows(self, rows: Tensor, reject: float | None = None) -> Prediction:
        """Predictions for embeddings (n, width)."""
        with one_thread():
            probabilities = self.knowledge.head.predict_proba(rows).float()
            share = self.knowledge.unknown.known_share(rows).float()
        known = share >= (self.reject if reject is None else reject)
        return calibrated_prediction(probabilities, share, known, self.classes)

    def baseline_names(self, rows: Tensor) -> dict[str, tuple[str, ...]]:
        """The predictions of the two plain baselines for embeddings (n, width)."""
        ways = {"class means": MEANS, "discriminants": DISCRIMINANTS}
        found = {name: self.knowledge.head.logits(rows, way).argmax(1).tolist() for name, way in ways.items()}
        return {name: tuple(self.classes[c] for c in columns) for name, columns in found.items()}

    def examples(self, name: str, number: int) -> list[bytes]:
        """JPEGs of labelled images of a class, at most this many; none with `--memory 0`."""
        kept = zip(self.knowledge.kept_labels, self.knowledge.kept_examples, strict=True)
        return [jpeg for label, jpeg in kept if label == name and jpeg][:number]

    def nearest_examples(self, rows: Tensor, number: int) -> list[list[Example]]:
        """The labelled images in memory that are closest to each of the rows (n, width), closest first."""
        seen = [i for i, jpeg in enumerate(self.knowledge.kept_examples) if jpeg]
        if not seen:
            return [[] for _ in rows]
        labels, jpegs = self.knowledge.kept_labels, self.knowledge.kept_examples
        with one_thread():
            a, b = (split_layers(part, self.knowledge.sums.widths)[0] for part in (rows, self.knowledge.kept[seen]))
            near = (a @ b.T).topk(min(number, len(seen)), dim=1)
        pairs = zip(near.indices.tolist(), near.values.tolist(), strict=True)
        return [
            [Example(labels[seen[j]], jpegs[seen[j]], cosine) for j, cosine in zip(*pair, strict=True)]
            for pair in pairs
        ]

    def features(self, rows: Tensor) -> Tensor:
        """Rows (n, width) in a space where groups of unknown images can be found, (n, d)."""
        return comparable(self.knowledge.head, rows)


def chunks(found: Embedded) -> Iterator[Tensor]:
    """The embeddings (n, width) in parts, read from disk one after another."""
    for _, values in found.batches(ROWS_AT_A_TIME):
        yield torch.from_numpy(values[:, 0])


def load_combined(name: str, views: int, device: str = "cpu") -> PretrainedEncoder:
    """An encoder with its views combined, as Ray workers load it."""
    return CombinedViews(load_encoder(name, device), views)


def bundle_encoder(name: str, folder: Path) -> None:
    """Copy an encoder's weights into an agent's folder, so that it works where the encoder is not installed."""
    from osscl.vision.pretrained import encoder_files

    target = folder / "encoder"
    if target.exists():
        return
    with draft_folder(target) as draft:
        for file in encoder_files(name):
            shutil.copyfile(file, draft / file.name)
        draft.rename(target)


def _encoder_of(settings: PhotoSettings, device: torch.device, folder: Path | None) -> PretrainedEncoder:
    """The encoder an agent was made with, from its own folder if bundled; different weights are refused."""
    bundled = folder / "encoder" if folder is not None and (folder / "encoder").is_dir() else None
    encoder = load_encoder(settings.encoder, device, bundled)
    if encoder.content_hash != settings.content_hash:
        raise DataError(
            f"the weights of {settings.encoder} differ from those that the agent was trained with: "
            "install those, or fit a new agent"
        )
    return encoder


def image_digests(found: Embedded) -> tuple[int, ...]:
    """A 64-bit hash of the content of each image."""
    return tuple(digest_of_key(found.store.key(int(row))) for row in found.rows)


def image_rows(found: Embedded) -> Tensor:
    return torch.from_numpy(found.values()[:, 0])


def _pile_rows(given: PhotoStep, wanted: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for part, values in given.unlabeled.batches(ROWS_AT_A_TIME):
        yield torch.from_numpy(values[:, 0]), wanted[part]


def _first_of_each(digests: Tensor) -> Tensor:
    """Whether each entry is the first of its value, (n,) bool."""
    first = torch.zeros(len(digests), dtype=torch.bool)
    first[torch.from_numpy(np.unique(digests.numpy(), return_index=True)[1])] = True
    return first
