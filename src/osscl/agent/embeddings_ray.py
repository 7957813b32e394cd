"""Embed a pile on a Ray cluster with Ray Data: each picture once, bit-identical to local embeddings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from osscl.agent.embedding_store import EmbeddingStore, KeyIndex
from osscl.agent.embeddings import (
    Collector,
    Embedded,
    Source,
    Work,
    file_key,
    require_own_store,
    work_on,
)
from osscl.data.folders import ReadProgress, silent
from osscl.data.images import Array
from osscl.data.pictures import decode_photo, hearing_warnings, read_content
from osscl.errors import DataError, UserError
from osscl.vision.pretrained import PretrainedEncoder

BATCH = 16  # pictures per task; they are done again when a worker is lost
BLOCK = 64  # pictures per block of the dataset
MOST_BLOCKS = 4096  # with more, blocks are larger

Batch = dict[str, Array]


def embed_on_ray(
    paths: Sequence[Path],
    load: Callable[[], PretrainedEncoder],
    store: EmbeddingStore,
    progress: ReadProgress = silent,
    workers: int | None = None,
) -> Embedded:
    """Embed image files on the Ray cluster that this process is connected to.

    Each worker reads the files itself, under the same paths, and embeds on one CPU. Only this process writes to the
    store, so only the files have to be on a shared disk. The work of a lost worker is redone by another one.

    Args:
        paths: the files.
        load: creates the encoder in a worker, e.g. `functools.partial(load_encoder, name)`; must be picklable.
        store: pictures that are in it are neither decoded nor embedded again.
        progress: called after each picture.
        workers: the maximum number; None means every CPU of the cluster.
    """
    ray = _connected()
    encoder = load()
    require_own_store(encoder, store)
    store.refresh()
    collector = Collector(encoder, store, len(paths), named=lambda i: str(paths[i]))
    if not paths:
        return replace(collector.done(), source=paths.__getitem__)
    size = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    items = [{"index": i, "path": str(path)} for i, path in enumerate(paths)]
    blocks = min(MOST_BLOCKS, -(-len(paths) // BLOCK))
    made = ray.data.from_items(items, override_num_blocks=blocks).map_batches(
        Embedder,
        fn_constructor_args=(load, store.content_hash, store.views, ray.put(store.keys())),
        batch_size=BATCH,
        batch_format="numpy",
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=size),
    )
    done = 0
    for batch in made.iter_batches(batch_size=None, batch_format="numpy"):
        if batch["other"].any():
            raise DataError(f"a worker of the cluster has different weights for {encoder.name}")
        for i, work in _unpacked(batch, store):
            collector.add(i, work)
            done += 1
            progress(done, len(paths))
    return replace(collector.done(), source=paths.__getitem__)


class Embedder:
    """A worker of the cluster; it loads the encoder once."""

    def __init__(self, load: Callable[[], PretrainedEncoder], content_hash: str, views: int, known: Any) -> None:
        self.encoder, self.views = load(), views
        self.is_other = self.encoder.content_hash != content_hash  # not raised here: Ray would retry without end
        keys: Array = _connected().get(known)
        self.known = KeyIndex()
        self.known.extend(np.concatenate([keys, np.zeros_like(keys)], 1))

    def __call__(self, batch: Batch) -> Batch:
        with hearing_warnings():
            works = [Work() if self.is_other else self._work(Path(str(path))) for path in batch["path"]]
        none = np.zeros((self.views, self.encoder.dim), np.float32)
        return {
            "index": batch["index"],
            "other": np.full(len(works), self.is_other),
            "key": np.array([work.key.hex() for work in works]),
            "made": np.stack([none if work.made is None else work.made.numpy() for work in works]),
            "is_made": np.array([work.made is not None for work in works]),
            "note": np.array([work.note or "" for work in works]),
            "problem": np.array([work.problem or "" for work in works]),
        }

    def _work(self, path: Path) -> Work:
        def source() -> Source:
            content = read_content(path)
            return Source(file_key(content), lambda: decode_photo(content, path, self.encoder.size))

        work = work_on(source, self.encoder, self.views, self.known.find)
        if work.made is not None and self.encoder.batch_size > 1:
            return replace(work, made=self.encoder.embed(work.made))
        return work


def _unpacked(batch: Batch, store: EmbeddingStore) -> Iterator[tuple[int, Work]]:
    for j, i in enumerate(batch["index"]):
        problem, note = str(batch["problem"][j]) or None, str(batch["note"][j]) or None
        key = bytes.fromhex(str(batch["key"][j]))
        made = torch.from_numpy(np.array(batch["made"][j])) if batch["is_made"][j] else None
        yield int(i), Work(key, -1 if made is not None or problem else store.find(key), made, note, problem)


def _connected() -> Any:
    try:
        import ray
        import ray.data
    except ImportError:
        raise UserError('the ray engine needs Ray: pip install "osscl[ray]"') from None
    if not ray.is_initialized():
        raise UserError("not connected to a Ray cluster")
    return ray
