"""A stream as a file: the spec, the seed, what the data must be, and every step's rows."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osscl.data.images import ImageBank
from osscl.errors import DataError
from osscl.frozen import from_plain, plain
from osscl.stream.scenario import ScenarioSpec
from osscl.stream.step import StepRows, Stream

FORMAT = "osscl stream 1"


def to_manifest(stream: Stream) -> dict[str, Any]:
    """Everything that makes the stream, but for the pixels."""
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
    """The same for two streams exactly if they show the same rows at the same steps."""
    banks = [manifest["scenario"][key] for key in ("main", "peripheral")]  # what the sources' numbers stand for
    rows = [manifest[key] for key in ("seed", "content", "validation", "held_out", "steps")]
    text = json.dumps([banks, rows], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in `path`, or one line that says what is wrong with the file."""
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise DataError(f"{path} is of the format {manifest['format']!r}, not {FORMAT!r}")
        missing = {"scenario", "seed", "content", "held_out", "pool", "steps", "validation"} - set(manifest)
        if missing:
            raise DataError(f"{path} is no whole stream: {', '.join(sorted(missing))} missing")
    except FileNotFoundError:
        raise DataError(f"no stream file at {path}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read as a stream: {error}") from None
    return manifest  # type: ignore[no-any-return]


def from_manifest(manifest: Mapping[str, Any], banks: Mapping[str, ImageBank]) -> Stream:
    """The stream that a manifest describes, refused when the data is not what it was made from."""
    for name, content in manifest["content"].items():
        if name not in banks:
            raise DataError(f"the stream was made from {name}, which is not here")
        if banks[name].content != content:
            raise DataError(f"{name} here has the content {banks[name].content}, the stream was made from {content}")
    steps = []
    for t, entry in enumerate(manifest["steps"]):
        try:
            labeled, sources, unlabeled = (
                torch.tensor(entry[key], dtype=torch.long) for key in ("labeled", "sources", "unlabeled")
            )
            steps.append(StepRows(tuple(entry["new_classes"]), labeled, sources, unlabeled, entry["asked"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"step {t + 1} of the stream is damaged: {error}") from None
    try:
        held_out, pool = (torch.tensor(manifest[key], dtype=torch.long) for key in ("held_out", "pool"))
    except (TypeError, ValueError) as error:
        raise DataError(f"the held-out rows or the pool of the stream are damaged: {error}") from None
    stream = Stream(
        from_plain(ScenarioSpec, manifest["scenario"], "scenario"),
        manifest["seed"], banks, tuple(steps), held_out, manifest["validation"], pool,
    )  # fmt: skip
    _check_rows(stream)
    return stream


def _check_rows(stream: Stream) -> None:
    names = (stream.spec.main, *stream.spec.peripheral)
    for t, rows in enumerate(stream.steps):
        where = f"step {t + 1} of the stream is damaged"
        if len(rows.sources) != len(rows.unlabeled) or not _within(rows.sources, len(names)):
            raise DataError(f"{where}: sources do not match the unlabelled rows")
        if not _within(rows.labeled, len(stream.main.train)):
            raise DataError(f"{where}: it labels rows that {stream.spec.main} does not have")
        for k, name in enumerate(names):
            if not _within(rows.unlabeled[rows.sources == k], len(stream.banks[name].train)):
                raise DataError(f"{where}: it names rows that {name} does not have")
    evaluated = stream.main.train if stream.validation else stream.main.test
    if not _within(stream.held_out, len(evaluated)) or not _within(stream.pool, len(stream.main.train)):
        raise DataError(f"the stream is damaged: it holds out or pools rows that {stream.spec.main} does not have")


def _within(rows: Tensor, n: int) -> bool:
    return not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < n
