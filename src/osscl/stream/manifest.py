"""A stream as a file: scenario, seed, content hashes of the data, and the rows of every step."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osscl.config import from_plain, plain
from osscl.data.images import ImageBank
from osscl.errors import DamagedFile, DataError, shown
from osscl.storage import DIGEST, seal, unsealed, write_text
from osscl.stream.build import StepRows, Stream
from osscl.stream.scenario import ScenarioSpec

FORMAT = "osscl stream 1"
KINDS: dict[str, type] = {
    "scenario": dict, "seed": int, "content": dict, "validation": bool, "held_out": list, "pool": list, "steps": list
}  # fmt: skip
ROWS = ("new_classes", "labeled", "sources", "unlabeled")  # of a step


def to_manifest(stream: Stream) -> dict[str, Any]:
    """Everything that defines the stream except the pixels."""
    return {
        "format": FORMAT,
        "scenario": plain(stream.spec),
        "seed": stream.seed,
        "content": stream.content,
        "validation": stream.validation,
        "held_out": stream.held_out.tolist(),
        "pool": stream.pool.tolist(),
        "steps": [
            {
                "new_classes": list(rows.new_classes),
                "labeled": rows.labeled.tolist(),
                "sources": rows.sources.tolist(),
                "unlabeled": rows.unlabeled.tolist(),
                "asked": rows.asked,
            }
            for rows in stream.steps
        ],
    }


def rows_digest(manifest: Mapping[str, Any]) -> str:
    """A hash that two streams share if and only if they have the same rows at the same steps."""
    banks = [manifest["scenario"][key] for key in ("main", "peripheral")]  # which sets the numbers in `sources` mean
    rows = [manifest[key] for key in ("seed", "content", "validation", "held_out", "pool", "steps")]
    text = json.dumps([banks, rows], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(seal(manifest)))


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in a file; raises a DataError if it is not one, or not the one that was written."""
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"no stream file at {path}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read as a stream: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read as a stream: {error}") from None
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise DataError(f"{path} cannot be read as a stream: its format is not {FORMAT!r}")
    if manifest["format"] != FORMAT:
        raise DataError(f"{path} has the format {shown(manifest['format'])}, expected {FORMAT!r}")
    missing = KINDS.keys() - manifest.keys()
    if missing:
        raise DataError(f"{path} is incomplete: {', '.join(sorted(missing))} missing")
    if strange := manifest.keys() - KINDS.keys() - {"format", DIGEST}:
        raise DataError(f"{path} is damaged: it has the unknown field {shown(min(strange))}")
    if DIGEST in manifest:  # version 0.1 wrote none
        try:
            manifest = unsealed(manifest)
        except DamagedFile as error:
            raise DamagedFile(f"{path} is damaged: {error}; if you edited it, remove the field {DIGEST!r}") from None
    for key, kind in KINDS.items():
        if type(manifest[key]) is not kind:
            raise DataError(f"{path} is damaged: {key} must be of type {kind.__name__}")
    return manifest


def from_manifest(manifest: Mapping[str, Any], banks: Mapping[str, ImageBank]) -> Stream:
    """The stream that a manifest describes; raises a DataError if the data differ from those it was made from."""
    spec = from_plain(ScenarioSpec, manifest["scenario"], "scenario")
    for name in (spec.main, *spec.peripheral):
        if name not in manifest["content"]:
            raise DataError(f"the stream is damaged: it has no content hash of {name}")
    for name, content in manifest["content"].items():
        if name not in banks:
            raise DataError(f"the stream was made from {name}, which is not loaded")
        if banks[name].content != content:
            raise DataError(
                f"{name} has the content hash {banks[name].content}, but the stream was made from {shown(content)}"
            )
    steps = []
    for t, entry in enumerate(manifest["steps"]):
        try:
            if strange := {*entry} - {*ROWS, "asked"}:
                raise ValueError(f"it has the unknown field {shown(min(strange))}")
            classes, labeled, sources, unlabeled = (_numbers(entry[key]) for key in ROWS)
            asked = int(_numbers([entry["asked"]]))
            steps.append(StepRows(tuple(classes.tolist()), labeled, sources, unlabeled, asked))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"step {t + 1} of the stream is damaged: {error}") from None
    try:
        held_out, pool = (_numbers(manifest[key]) for key in ("held_out", "pool"))
    except (TypeError, ValueError) as error:
        raise DataError(f"the held-out rows or the pool of the stream are damaged: {error}") from None
    stream = Stream(spec, manifest["seed"], banks, tuple(steps), held_out, manifest["validation"], pool)
    _check_rows(stream)
    _check_classes(stream)
    _check_apart(stream)
    return stream


def _numbers(value: Any) -> Tensor:
    if not isinstance(value, list) or not all(type(number) is int for number in value):
        raise ValueError("expected a list of integers")
    return torch.tensor(value, dtype=torch.long)


def _check_rows(stream: Stream) -> None:
    names = (stream.spec.main, *stream.spec.peripheral)
    for t, rows in enumerate(stream.steps):
        where = f"step {t + 1} of the stream is damaged"
        if len(rows.sources) != len(rows.unlabeled) or not _within(rows.sources, len(names)):
            raise DataError(f"{where}: sources do not match the unlabelled rows")
        if not _within(rows.labeled, len(stream.main.train)):
            raise DataError(f"{where}: a labelled row does not exist in {stream.spec.main}")
        for k, name in enumerate(names):
            if not _within(rows.unlabeled[rows.sources == k], len(stream.banks[name].train)):
                raise DataError(f"{where}: an unlabelled row does not exist in {name}")
    if not _within(stream.held_out, len(stream.evaluated)) or not _within(stream.pool, len(stream.main.train)):
        raise DataError(f"the stream is damaged: a row of held_out or pool does not exist in {stream.spec.main}")


def _check_apart(stream: Stream) -> None:
    """Require that no row is both labelled and unlabelled, or both trained on and held out, or twice in a step."""
    if stream.validation != (stream.spec.validation_share > 0):
        raise DataError("the stream is damaged: its validation rows contradict its scenario")
    labeled = torch.cat([rows.labeled for rows in stream.steps])
    trained = torch.cat([labeled, stream.pool, *(rows.unlabeled[rows.sources == 0] for rows in stream.steps)])
    if stream.validation and torch.isin(stream.held_out, trained).any():
        raise DataError("the stream is damaged: it trains on rows that it holds out")
    if len(labeled.unique()) < len(labeled) or torch.isin(stream.pool, labeled).any():
        raise DataError("the stream is damaged: a labelled row appears twice, or is also in the pool")
    for t, rows in enumerate(stream.steps):
        drawn = torch.stack((rows.sources, rows.unlabeled), 1)
        if len(drawn.unique(dim=0)) < len(drawn) or torch.isin(rows.unlabeled[rows.sources == 0], labeled).any():
            raise DataError(f"step {t + 1} of the stream is damaged: a row appears twice, or is also labelled")


def _check_classes(stream: Stream) -> None:
    """Require that every step labels exactly its new classes, and that held-out rows are of classes of the stream."""
    labels, met = stream.main.train.labels.cpu(), set[int]()
    for t, rows in enumerate(stream.steps):
        new = set(rows.new_classes)
        if len(new) != len(rows.new_classes) or new & met or set(labels[rows.labeled].tolist()) != new:
            raise DataError(f"step {t + 1} of the stream is damaged: its labels are not those of its new classes")
        met |= new
    if tuple(len(rows.new_classes) for rows in stream.steps) != stream.spec.classes_per_step:
        raise DataError("the stream is damaged: its steps contradict its scenario")
    if not stream.held_out_classes <= met or not stream.all_evaluated:
        raise DataError("the stream is damaged: a step has no held-out rows, or some are of other classes")


def _within(rows: Tensor, n: int) -> bool:
    return not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < n
