"""Where data sets are looked for, and where what is made of them is kept."""

import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import numpy as np

from osscl.data.images import Decoded
from osscl.errors import UserError


def data_dir(flag: Path | None) -> Path:
    """The folder that holds the extracted data sets: the flag, else $OSSCL_DATA, else a folder of the user's cache."""
    if flag is not None:
        return flag
    named = os.environ.get("OSSCL_DATA")
    return Path(named) if named else _user_cache() / "data"


def cache_dir() -> Path:
    """The folder for what can be made again: $OSSCL_CACHE, else the user's cache."""
    named = os.environ.get("OSSCL_CACHE")
    return Path(named) if named else _user_cache()


def _user_cache() -> Path:
    """This package's folder where the platform keeps caches; XDG_CACHE_HOME wins everywhere."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg) / "osscl"
    try:
        home = Path.home()
    except RuntimeError:  # a user without one, as in some containers
        raise UserError("there is no home folder to keep a cache in: set XDG_CACHE_HOME to a folder") from None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "osscl"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "osscl"
    return home / ".cache" / "osscl"


FORMAT = 1  # to be raised when the same files would decode to other arrays
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


def fingerprint(folder: Path) -> str:
    """Hash of the names, sizes and times of all files below a folder."""
    digest = blake2b(f"{FORMAT}\n".encode(), digest_size=8)
    for line in sorted(_files(folder, "")):
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _files(folder: str | Path, prefix: str, above: frozenset[str] = frozenset()) -> Iterator[str]:
    """A line for every file; scandir, since Tiny-ImageNet has 120,000 and this runs at every load. A link that leads
    nowhere, or back to a folder above it, is passed over."""
    here = above | {os.path.realpath(folder)}
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() and (not Path(entry.path).exists() or os.path.realpath(entry.path) in here):
                continue
            if entry.is_dir():
                yield from _files(entry.path, f"{prefix}{entry.name}/", here)
            else:
                stat = entry.stat()
                yield f"{prefix}{entry.name}\t{stat.st_size}\t{stat.st_mtime_ns}\n"


def load(place: Path) -> tuple[Decoded, str] | None:
    """What was kept at `place`, mapped into memory, and its content hash; None where it is absent or damaged."""
    try:
        meta = json.loads((place / "meta.json").read_text(encoding="utf-8"))
        arrays = {name: np.load(place / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS}
        return Decoded(**arrays, class_names=tuple(meta["class_names"])), str(meta["content"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(place: Path, decoded: Decoded, content: str) -> None:
    """Write aside, then rename: a reader sees all or nothing, and of two writers one wins. Failing costs only time."""
    aside = place.with_name(f".{place.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        aside.mkdir(parents=True)
        for name in ARRAYS:
            np.save(aside / f"{name}.npy", getattr(decoded, name))
        meta = {"content": content, "class_names": decoded.class_names}
        (aside / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        if load(place) is None:
            shutil.rmtree(place, ignore_errors=True)  # what lies there is damaged
            aside.rename(place)
    except OSError:
        pass
    finally:
        shutil.rmtree(aside, ignore_errors=True)
