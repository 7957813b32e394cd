"""One bit is flipped in a stored file of every kind: the right answer, or one line."""

import functools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import osscl
from osscl.agent.classifier import ContinualClassifier
from osscl.agent.embedding_store import EmbeddingStore
from osscl.agent.embeddings import file_key
from osscl.config import plain
from osscl.data import cache
from osscl.data.images import Decoded
from osscl.data.pictures import read_content
from osscl.errors import DataError
from osscl.runs import index, kept
from osscl.runs.record import read_record, record_to_plain
from osscl.serve.folder import _read_index
from osscl.serve.next_step import SERVE_FOLDER, LabelBook, PendingStep, write_status
from osscl.serve.teaching import IDLE, Teaching
from osscl.serve.views import _read_result, read_sorted
from osscl.storage import read_cached_state, read_state
from osscl.stream.manifest import from_manifest, read_manifest, to_manifest
from torture.encoder import real_efficientnet
from torture.jobs import FIT, TINY, draw_photos, fingerprint, typed
from torture.ledger import Attack
from torture.served import Server, prepared, taught


@dataclass(frozen=True)
class Kind:
    """A kind of stored file: one of them, how it is read, and whether nothing may come of it.

    What a cache holds is computed again where it is missing, so that there None is a right answer."""

    file: Path
    read: Callable[[Path], object]
    cached: bool = False


@functools.cache
def stored_files(folder: Path) -> dict[str, Kind]:
    """One stored file of each kind; made once for all attacks."""
    place = folder / "stored"
    place.mkdir()
    draw_photos(place)
    for words in (
        ("run", "digits", *TINY),
        ("run", "digits", "--seed", "1", "--max-minutes", "0", *TINY),
        (*FIT, "--bundle"),
        ("export", "agent", "--out", "agent.onnx"),
        ("export", "agent", "--format", "hub", "--out", "hub"),
        ("stream", "digits", "--out", "stream.json", "--set=scenario.classes_per_step=[2,2]"),
    ):
        code, log = typed(place, *words)
        assert code in (0, 3), log
    return {**_of_runs(place), **_decoded(place), **_of_agents(place), **_exported(place), **_served(folder)}


def _one(place: Path, pattern: str) -> Path:
    return sorted(place.glob(pattern))[0]


def _of_runs(place: Path) -> dict[str, Kind]:
    def state(path: Path) -> object:
        return fingerprint(read_state(path))

    def cached(path: Path) -> object:
        found = read_cached_state(path)
        return None if found is None else fingerprint(found)

    return {
        "model": Kind(_one(place, "runs/*/model.safetensors"), state),
        "checkpoint": Kind(_one(place, "runs/*/checkpoint.safetensors"), state),
        "cached reference": Kind(_one(place, "cache/references/**/*.safetensors"), cached, cached=True),
        "record": Kind(_one(place, "runs/*/*-s0-*.json"), lambda path: record_to_plain(read_record(path))),
        "record index": _record_index(place),
        "stream": _stream(place),
    }


def _record_index(place: Path) -> Kind:
    kept.MANY = 1  # used for any number of records
    files = sorted(place.glob("runs/*/*-s0-*.json"))
    for file in files:
        os.utime(file, (1, 1))  # long ago: an index entry of a fresh file does not count

    def read(path: Path) -> object:
        os.environ["OSSCL_CACHE"] = str(path.parent)
        return [record_to_plain(record) for _, record in index.read_files(files) if not isinstance(record, DataError)]

    file = place / "cache" / "records.sqlite"
    read(file), read(file)
    return Kind(file, read)


def _stream(place: Path) -> Kind:
    from osscl.data.benchmarks import load_bank

    banks = {name: load_bank(name, place, place / "cache") for name in ("digits", "letters")}
    return Kind(place / "stream.json", lambda path: to_manifest(from_manifest(read_manifest(path), banks)))


def _decoded(place: Path) -> dict[str, Kind]:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), np.arange(20) % 2
    cache.store_decoded(place / "decoded", Decoded(images, labels, images, labels, ("a", "b")), "content")

    def read(path: Path) -> object:
        found = cache.load_decoded(path.parent)
        if found is None:
            return None
        return [getattr(found[0], name).tobytes() for name in cache.ARRAYS], found[0].class_names, found[1]

    return {f"decoded {file.stem}": Kind(file, read, cached=True) for file in sorted((place / "decoded").iterdir())}


def _of_agents(place: Path) -> dict[str, Kind]:
    agent = place / "agent"

    def loaded(path: Path) -> object:
        return fingerprint(ContinualClassifier.load(agent, "cpu").entry())

    made = ContinualClassifier.load(agent, "cpu").learner.store
    keys = [bytes(key) for key in made.keys()]  # noqa: SIM118 - not a dict
    root, told = place / "cache" / "embeddings", (made.content_hash, made.dim, made.views)

    def rows(path: Path) -> object:
        """The rows that are found, each the right one; the pictures of the others are embedded again."""
        store = EmbeddingStore(root, *told)
        found = {key: store.find(key) for key in keys}
        right = {key: row for key, row in found.items() if row >= 0}
        taken = dict(zip(right, (row.tobytes() for row in store.take([*right.values()])), strict=True))
        return None if any(taken[key] != sound[key] for key in taken) else "sound"

    sound = {key: made.take([made.find(key)])[0].tobytes() for key in keys}
    files = {f"embeddings, {name}": Kind(made.folder / name, rows) for name in ("rows", "index", "store.json")}
    bundled = _one(agent, "encoder/*")

    def weights(path: Path) -> object:
        """The hash by which an agent refuses another encoder than its own."""
        if real_efficientnet(torch.device("cpu"), path).content_hash != right:
            raise DataError("another encoder")
        return right

    right = real_efficientnet(torch.device("cpu"), bundled).content_hash
    return {"agent": Kind(agent / "model.safetensors", loaded), "bundled encoder": Kind(bundled, weights), **files}


def _exported(place: Path) -> dict[str, Kind]:
    pictures = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8))

    def onnx(path: Path) -> object:
        found = osscl.load(path)
        size = found.description.preprocessing.size
        answer = found.predict(pictures[:, :, :size, :size])
        return found.description, found.classes, answer.names, fingerprint(answer.class_probabilities)

    def hub(path: Path) -> object:
        answer = osscl.load(place / "hub", "cpu").predict([_one(place, "pile/*")])
        return answer.names, fingerprint(answer.class_probabilities)

    files = {name: place / "hub" / name for name in ("config.json", "model.safetensors")}
    files["encoder"] = _one(place, "hub/encoder/*")
    return {"exported ONNX": Kind(place / "agent.onnx", onnx)} | {
        f"exported {name}": Kind(file, hub) for name, file in files.items()
    }


def _served(folder: Path) -> dict[str, Kind]:
    """The files of `osscl serve`: of an agent that waits to be taught, and of one that was taught."""
    place = prepared(folder)
    own = place / "agent" / SERVE_FOLDER
    labels = LabelBook(own)
    upload = _one(own, "uploads/*")
    server = Server(place)
    server.ask("/api/teach", {})
    taught(server)
    server.end(signal.SIGTERM)
    ready = prepared(folder / "again")
    labels, upload = LabelBook(ready / "agent" / SERVE_FOLDER), _one(ready / "agent" / SERVE_FOLDER, "uploads/*")
    step = PendingStep("id", tuple(labels.read().values()), str(place / "pile"), None, ("before",))
    step.write(own)
    write_status(own, Teaching(place / "agent", None, None)._state())
    result = _one(own, "test-*.json")
    store = ContinualClassifier.load(place / "agent", "cpu").learner.store
    keys = [key for *_, key, _ in _read_index(own / "test.json", store.content_hash).values()]
    keys = list(dict.fromkeys(keys))

    def status(path: Path) -> object:
        found = Teaching(place / "agent", None, None)._state()
        return None if found == IDLE else plain(found)

    def uploaded(path: Path) -> object:
        content = read_content(path)
        if file_key(content).hex() != path.name:
            raise DataError("the picture is not the one that was uploaded")
        return content

    def tested(path: Path) -> object:
        found = _read_result(path, keys)
        return None if found is None else plain(found)

    def pile(path: Path) -> object:
        found = read_sorted(path)
        return None if found is None else fingerprint({**vars(found), "rows": None})

    def listed(path: Path) -> object:
        return _read_index(path, store.content_hash) or None

    return {
        "served labels": Kind(labels.file, lambda path: plain(labels.read())),
        "served step": Kind(own / "step.json", lambda path: plain(PendingStep.read(own))),
        "served upload": Kind(upload, uploaded),
        "served status": Kind(own / "status.json", status, cached=True),
        "served list of the pile": Kind(own / "pile.json", listed, cached=True),
        "served list of the test": Kind(own / "test.json", listed, cached=True),
        "served test": Kind(result, tested, cached=True),
        "served sorted pile": Kind(_one(own, "pile-*.safetensors"), pile, cached=True),
    }


def flips(attack: Attack) -> None:
    kinds = stored_files(attack.folder.parent)
    right = {name: kind.read(kind.file) for name, kind in kinds.items()}
    assert None not in right.values()
    names = [*kinds]
    for i in attack.rounds():
        name = names[i % len(names)]
        kind = kinds[name]
        content = kind.file.read_bytes()
        at, bit = attack.rng.randrange(len(content)), attack.rng.randrange(8)
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        _overwrite(kind.file, damaged)
        attack.ledger.judge(
            f"bit flip, {name}", lambda: kind.read(kind.file),  # noqa: B023
            lambda value: (kind.cached and value is None) or value == right[name],  # noqa: B023
            f"byte {at} of {len(content)}, bit {bit}, {content[max(0, at - 20) : at + 20]!r}",
        )  # fmt: skip
        _overwrite(kind.file, content)


def _overwrite(file: Path, content: bytes) -> None:
    """In place, as a bad disk does; a cache may have deleted the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
