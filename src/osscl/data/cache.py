"""The cache of decoded data sets."""

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from osscl import __version__
from osscl.data.images import Decoded
from osscl.storage import digest_of, draft_folder, remove_drafts

FORMAT = 2  # increment it when the same files would decode to different arrays
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
SAMPLED_FILES, SAMPLED_BLOCKS, BLOCK = 64, 16, 4096  # of a folder, of a file, and bytes


def fingerprint(folder: Path) -> str:
    """Hash of the names, sizes and times of all files below a folder and of sampled bytes, since reading all bytes at
    every load would take too long; see `benchmarks.verify_dataset`."""
    digest = blake2b(f"{FORMAT}\n".encode(), digest_size=8)
    files = sorted(_files(folder, ""))
    for name, size, changed, _ in files:
        digest.update(f"{name}\t{size}\t{changed}\n".encode(errors="surrogateescape"))
    for _, size, _, path in files[:: -(-len(files) // SAMPLED_FILES) or 1]:
        digest.update(_sample(path, size))
    return digest.hexdigest()


def versions() -> str:
    """Hash of the versions of this package and of the libraries that the embedded data sets are made with."""
    libraries = map(version, ("scikit-learn", "pillow", "numpy"))
    return blake2b(" ".join((str(FORMAT), __version__, *libraries)).encode(), digest_size=8).hexdigest()


def _sample(path: str, size: int) -> bytes:
    """Evenly spaced blocks of a file, the first and the last among them."""
    last = max(size - BLOCK, 0)
    starts = sorted({last * block // (SAMPLED_BLOCKS - 1) for block in range(SAMPLED_BLOCKS)})
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - of scandir
            return b"".join(file.read(BLOCK) for start in starts if file.seek(start) >= 0)
    except OSError:  # reported by the reader of the data set
        return b""


def _files(folder: str | Path, prefix: str, above: frozenset[str] = frozenset()) -> Iterator[tuple[str, int, int, str]]:
    """Name, size, time and path of every file, by scandir, since Tiny-ImageNet has 120,000. Skips anything but regular
    files, broken links and links to a folder above."""
    here = above | {os.path.realpath(folder)}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and (not Path(entry.path).exists() or os.path.realpath(entry.path) in here):
                continue
            if entry.is_dir():
                yield from _files(entry.path, f"{prefix}{entry.name}/", here)
            elif entry.is_file():
                stat = entry.stat()
                yield f"{prefix}{entry.name}", stat.st_size, stat.st_mtime_ns, entry.path


def load_decoded(place: Path) -> tuple[Decoded, str] | None:
    """The arrays stored at `place`, mapped into memory, and their content hash; None if they are absent or damaged.

    All bytes are verified against digests: a few tenths of a second for CIFAR, divided by the number of cores."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of NumPy, about damaged headers
            arrays = {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
        meta = json.loads((place / "meta.json").read_text(encoding="utf-8"))
        decoded, content = Decoded(**arrays, class_names=tuple(meta["class_names"])), meta["content"]
        return (decoded, content) if meta == _meta(decoded, content) else None
    except Exception:  # NumPy raises nearly any exception for a damaged header, even the tokenizer's
        return None


def _meta(decoded: Decoded, content: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"content": content, "class_names": list(decoded.class_names)}
    for name in ARRAYS:
        array = np.ascontiguousarray(getattr(decoded, name))
        data = array.reshape(-1).view(np.uint8).data
        meta[name] = digest_of([(f"{array.dtype} {array.shape}", data)])
    return meta | {"digest": blake2b(json.dumps(meta).encode(), digest_size=16).hexdigest()}


def store_decoded(place: Path, decoded: Decoded, content: str) -> None:
    """Store arrays so that readers see all or none of them, and one of two writers wins. Failures only cost time."""
    with contextlib.suppress(OSError), draft_folder(place) as draft:
        remove_drafts(place.parent)
        for name in ARRAYS:
            np.save(draft / f"{name}.npy", getattr(decoded, name))
        (draft / "meta.json").write_text(json.dumps(_meta(decoded, content)), encoding="utf-8")
        if load_decoded(place) is None:
            shutil.rmtree(place, ignore_errors=True)  # damaged
            draft.rename(place)
