"""Embed pictures, each content once: decoded and embedded as a stream, and cached in a store."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from osscl.agent.embedding_store import KEY, EmbeddingStore
from osscl.data.folders import ReadProgress, silent
from osscl.data.images import Array
from osscl.data.pictures import SMALLEST, Picture, decode_photo, hearing_warnings, read_content
from osscl.errors import DataError
from osscl.vision.preprocessing import require_views
from osscl.vision.pretrained import PretrainedEncoder

APPENDED = 64  # rows written at a time, and lost at most if the process is killed
AHEAD = 4  # pictures a worker may be ahead of the writer
MOST_PLACES = 4096  # pictures whose copy waits to be written, so that memory is bounded
NEW, WAITING = -1, -2  # in place of a row: a picture to be embedded, and one that is embedded and not yet written


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be embedded, by its position in the input."""

    index: int
    reason: str


@dataclass(frozen=True)
class Embedded:
    """Where the embeddings of some pictures are."""

    store: EmbeddingStore
    indices: Array  # int64 (n,): which of the given pictures were embedded, in order
    rows: Array  # int64 (n,): their rows in the store
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()  # conversions and oddities, one line for each kind
    source: Callable[[int], Path | Image.Image] | None = None  # the i-th of the given pictures

    def __len__(self) -> int:
        return len(self.rows)

    def pictures(self) -> "tuple[Callable[[], Path | Image.Image], ...]":
        """How to get each embedded picture as it was given."""
        return () if self.source is None else tuple(partial(self.source, int(i)) for i in self.indices)

    def values(self) -> Array:
        """The embeddings, float32 (n, views, dim), checked and in memory."""
        return self.store.take(self.rows)

    def batches(self, size: int = 4096) -> Iterator[tuple[slice, Array]]:
        """The same in parts, for piles that do not fit into memory, with the positions of each part."""
        for start in range(0, len(self), size):
            part = slice(start, min(start + size, len(self)))
            yield part, self.store.take(self.rows[part])


def open_store(root: Path, encoder: PretrainedEncoder, views: int = 1) -> EmbeddingStore:
    """The store of an encoder's embeddings with this many views."""
    require_views(views)
    return EmbeddingStore(root, encoder.content_hash, encoder.dim, views)


def embed_paths(
    paths: Sequence[Path],
    encoder: PretrainedEncoder,
    store: EmbeddingStore,
    progress: ReadProgress = silent,
    workers: int | None = None,
) -> Embedded:
    """Embed image files; content that is in the store is not decoded again, whatever the file is called.

    Args:
        paths: the files. One that cannot be read is skipped, with the reason.
        encoder: the one that the store was opened with.
        store: also determines how many views are embedded.
        progress: called after each picture.
        workers: threads that read, decode and, on a CPU, embed; None means one per core.
    """

    def source(i: int) -> "Source":
        content = read_content(paths[i])
        return Source(file_key(content), lambda: decode_photo(content, paths[i], encoder.size))

    found = _embed(len(paths), source, encoder, store, progress, workers, named=lambda i: str(paths[i]))
    return replace(found, source=paths.__getitem__)


def embed_images(
    images: Tensor | Array | Sequence[Image.Image],
    encoder: PretrainedEncoder,
    store: EmbeddingStore,
    progress: ReadProgress = silent,
    workers: int | None = None,
) -> Embedded:
    """Embed images in memory: uint8 (n, channels, height, width) with one or three channels, or Pillow images."""
    if isinstance(images, Tensor | np.ndarray):
        array = np.asarray(images.cpu() if isinstance(images, Tensor) else images)
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[1] not in (1, 3) or min(array.shape[2:]) < 8:
            found = f"{array.dtype} {array.shape}"
            raise DataError(f"images must be uint8 (n, 1 or 3, height, width), at least 8 pixels per side; got {found}")

    def picture(i: int) -> Image.Image:
        image = images[i]
        if isinstance(image, Image.Image):
            if min(image.size) < SMALLEST:
                raise DataError(
                    f"image {i} has {image.width}x{image.height} pixels; each side needs at least {SMALLEST}"
                )
            return image.convert("RGB")
        return Image.fromarray(np.ascontiguousarray(np.asarray(image).transpose(1, 2, 0)).squeeze()).convert("RGB")

    def source(i: int) -> "Source":
        image = picture(i)
        return Source(pixels_key(image), lambda: Picture(image))

    made = _embed(len(images), source, encoder, store, progress, workers, named=lambda i: f"image {i}")
    return replace(made, source=picture)


def file_key(content: bytes) -> bytes:
    """The key of an image file's content."""
    return hashlib.blake2b(content, digest_size=KEY).digest()


def pixels_key(image: Image.Image) -> bytes:
    """The key of an RGB picture in memory."""
    return hashlib.blake2b(image.tobytes(), digest_size=KEY, person=b"%dx%d" % image.size).digest()


@dataclass(frozen=True)
class Source:
    """A picture with its key; it is decoded only if needed."""

    key: bytes
    decode: Callable[[], Picture]


@dataclass(frozen=True)
class Work:
    """A worker's result: the row in the store, or what must be stored, or a problem."""

    key: bytes = b""
    row: int = NEW
    made: Tensor | None = None  # (views, dim) embeddings; pixels where the encoder takes larger batches
    note: str | None = None
    problem: str | None = None


def work_on(source: Callable[[], Source], encoder: PretrainedEncoder, views: int, find: Callable[[bytes], int]) -> Work:
    """Find or embed one picture, in any thread or process."""
    try:
        found = source()
        if (row := find(found.key)) != NEW:
            return Work(found.key, row)
        picture = found.decode()
    except DataError as error:
        return Work(problem=str(error))
    pixels = encoder.preprocess(picture.image, views)
    made = encoder.embed(pixels) if encoder.batch_size == 1 else pixels
    return Work(found.key, made=made, note=picture.note)


@dataclass
class Collector:
    """Collects results in the order of the pictures and writes new rows in batches."""

    encoder: PretrainedEncoder
    store: EmbeddingStore
    count: int
    named: Callable[[int], str]
    skipped: list[Skipped] = field(default_factory=list)
    notes: dict[str, tuple[int, int]] = field(default_factory=dict)  # how many, and the first of them
    waiting: dict[bytes, Tensor] = field(default_factory=dict)  # to be written
    places: list[tuple[int, bytes]] = field(default_factory=list)  # that wait for a row

    def __post_init__(self) -> None:
        self.rows = np.full(self.count, -1, np.int64)

    def add(self, i: int, work: Work) -> None:
        if work.problem is not None:
            self.skipped.append(Skipped(i, work.problem))
            return
        if work.note is not None:
            many, first = self.notes.get(work.note, (0, i))
            self.notes[work.note] = many + 1, first
        if work.row >= 0:
            self.rows[i] = work.row
            return
        if work.made is not None:
            self.waiting.setdefault(work.key, work.made)
        self.places.append((i, work.key))
        if len(self.waiting) >= APPENDED or len(self.places) >= MOST_PLACES:
            self.write()

    def find(self, key: bytes) -> int:
        """The row of a picture, or WAITING if it is embedded but not yet written."""
        return WAITING if key in self.waiting else self.store.find(key)

    def write(self) -> None:
        """Store the waiting rows, then look up the rows of pictures that waited for them."""
        if self.waiting:
            made = torch.stack([*self.waiting.values()])
            if made.ndim > 3:  # pixels (n, views, 3, height, width)
                made = self.encoder.embed(made.flatten(0, 1)).view(len(made), self.store.views, -1)
            self.store.append([*self.waiting], made.numpy())
        for i, key in self.places:
            if (row := self.store.find(key)) < 0:
                raise DataError(f"{self.store.folder} lost rows that were just written to it: check the disk")
            self.rows[i] = row
        self.waiting, self.places = {}, []

    def done(self) -> Embedded:
        self.write()
        indices = np.flatnonzero(self.rows >= 0)
        told = [
            f"{self.named(first)}{f' and {many - 1} more' if many > 1 else ''}: {note}"
            for note, (many, first) in self.notes.items()
        ]
        skipped = sorted(self.skipped, key=lambda one: one.index)
        return Embedded(self.store, indices, self.rows[indices], tuple(skipped), tuple(told))


def _embed(
    count: int,
    source: Callable[[int], Source],
    encoder: PretrainedEncoder,
    store: EmbeddingStore,
    progress: ReadProgress,
    workers: int | None,
    named: Callable[[int], str],
) -> Embedded:
    require_own_store(encoder, store)
    store.refresh()
    collector = Collector(encoder, store, count, named)

    def work(i: int) -> Work:
        return work_on(lambda: source(i), encoder, store.views, collector.find)

    for i, made in enumerate(_in_threads(work, range(count), workers or os.cpu_count() or 1)):
        collector.add(i, made)
        progress(i + 1, count)
    return collector.done()


def require_own_store(encoder: PretrainedEncoder, store: EmbeddingStore) -> None:
    if (encoder.content_hash, encoder.dim) != (store.content_hash, store.dim):
        raise DataError(f"{store.folder} holds embeddings of an encoder other than {encoder.name}")


def _in_threads(work: Callable[[int], Work], items: Iterable[int], workers: int) -> Iterator[Work]:
    """Results in order, a few ahead of the consumer, so that memory is bounded.

    Threads, not processes: Pillow and torch work outside the interpreter's lock, and nothing is copied or pickled.
    torch runs on one thread in each of them; the setting of the caller's thread is restored.
    """
    before = torch.get_num_threads()
    ahead: deque[Future[Work]] = deque()
    try:
        with hearing_warnings(), ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for item in items:
                    ahead.append(pool.submit(work, item))
                    if len(ahead) >= AHEAD * workers:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for future in ahead:  # the caller has stopped
                    future.cancel()
    finally:
        torch.set_num_threads(before)
