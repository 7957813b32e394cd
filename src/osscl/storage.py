"""Everything written to disk: atomic files, locked folders, nested state as safetensors. No pickle."""

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from osscl.errors import DamagedFile, Locked, UnsupportedFile, UserError, shown

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".safetensors"
FORMAT = "osscl state 2"  # of files written by write_state; those of versions before 0.2.0 name none
DRAFT = re.compile(r"\..+\.[0-9a-f]{8}\.draft")
PIECE = 2**20  # bytes that one thread hashes at a time
DIGEST = "digest"  # field of a sealed document
ABANDONED = 3600.0  # seconds since the last write to a draft, after which its writer is considered dead


# ----- atomic files and folders


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A draft next to `path` to write to, which replaces `path` if the block succeeds. Readers of `path` see the old
    content or the new, never a part. Refuses to replace anything but a regular file."""
    if path.exists() and not path.is_file():
        raise UserError(f"cannot write {path}: it exists and is not a regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned_files(path)
    draft = _draft_of(path)
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """An empty folder next to `path`, to be filled and renamed to `path`; removed at the end if it is still there.

    Folders that killed processes have left for `path` are removed first."""
    _remove_abandoned_folders(path)
    draft, held = _held_folder(path)
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if held is not None:
            os.close(held)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A draft folder that is renamed to `path` at the end, so that `path` is complete or absent."""
    try:
        with draft_folder(path) as draft:
            yield draft
            draft.rename(path)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UserError(f"{path} cannot be written: {error.strerror or error}{where}") from error


def _held_folder(path: Path) -> tuple[Path, int | None]:
    """A new draft and the descriptor that marks it as in use, as long as this process lives."""
    while True:
        draft = _draft_of(path)
        draft.mkdir(parents=True)
        held = _hold(draft, wait=True)
        if held is None or draft.exists():
            return draft, held
        os.close(held)  # between these two lines, another process removed it as abandoned


def _remove_abandoned_folders(path: Path) -> None:
    for entry in _drafts_of(path):
        if entry.is_dir() and (held := _hold(entry, wait=False)) is not None:
            shutil.rmtree(entry, ignore_errors=True)
            os.close(held)


def _remove_abandoned_files(path: Path) -> None:
    """Files are recognised as abandoned by their age: unlike a draft folder, no lock marks one that is in use."""
    for entry in _drafts_of(path):
        with contextlib.suppress(OSError):
            if entry.is_file() and time.time() - entry.stat().st_mtime >= ABANDONED:
                entry.unlink()


def _hold(folder: Path, *, wait: bool) -> int | None:
    """A descriptor with a lock on a folder; None if another process has it, or if there are no such locks."""
    if fcntl is None:
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if descriptor is not None:
            os.close(descriptor)
        return None
    return descriptor


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.draft")


def _drafts_of(path: Path) -> list[Path]:
    """Drafts for `path`, of this process, of others, and of killed ones."""
    named = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.draft")
    with contextlib.suppress(OSError):
        return [entry for entry in path.parent.iterdir() if named.fullmatch(entry.name) and not entry.is_symlink()]
    return []


def remove_drafts(folder: Path, older_than: float = ABANDONED) -> None:
    """Remove the drafts of killed writers. In a folder that others may be writing to, only those not written to for
    `older_than` seconds; errors are ignored, since a draft costs nothing but space."""
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if is_draft(entry) and time.time() - entry.stat().st_mtime >= older_than:
                    shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


def is_draft(entry: Path) -> bool:
    """Whether a file or folder has the name of a draft."""
    return DRAFT.fullmatch(entry.name) is not None and not entry.is_symlink()


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically; a failure is a UserError."""
    try:
        with atomic_write(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def write_sealed(path: Path, content: Any) -> None:
    """Write plain values as JSON with a digest of them; a failure is a UserError."""
    write_text(path, json.dumps(seal({"content": content})))


def read_sealed(path: Path) -> Any:
    """What `write_sealed` wrote; raises FileNotFoundError without a file, and DamagedFile if it has changed since."""
    try:
        fields = unsealed(json.loads(path.read_text(encoding="utf-8")))
        if fields.keys() != {"content"}:
            raise DamagedFile
        return fields["content"]
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError, DamagedFile):
        raise DamagedFile(f"{path} is damaged: its content is not what was written") from None


def seal(data: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a digest of its other fields."""
    return {**data, DIGEST: _digest_of_json(data)}


def unsealed(data: Any) -> dict[str, Any]:
    """The fields of a sealed JSON object; raises DamagedFile if they are not those that were sealed."""
    if not isinstance(data, dict) or DIGEST not in data:
        raise DamagedFile("it has no digest")
    fields = {key: value for key, value in data.items() if key != DIGEST}
    if data[DIGEST] != _digest_of_json(fields):
        raise DamagedFile("its content is not what was written")
    return fields


def refuse_to_overwrite(file: Path | None) -> None:
    """Raise a UserError if the file exists; called before the work whose result would go there."""
    if file is not None and (file.exists() or file.is_symlink()):
        raise UserError(f"{file} already exists; choose another file")


def set_aside(file: Path, why: str) -> Path:
    """Rename a file to a free name that ends in `why`, and return that name: nothing is deleted."""
    names = (file.with_suffix(f".{why}-{n}" if n > 1 else f".{why}") for n in itertools.count(1))
    return file.replace(next(name for name in names if not (name.exists() or name.is_symlink())))


# ----- locks


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the exclusive lock of a folder, created if necessary, and remove the drafts of killed processes from it.

    The operating system releases the lock when the process ends, however it ends."""
    lock = FileLock(folder / ".lock", thread_local=False, blocking=False, fallback_to_soft=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise Locked(f"{folder} is locked by another process") from None
    except OSError as error:
        raise UserError(f"cannot lock the folder {folder}: {error.strerror}") from None
    try:
        remove_drafts(folder, older_than=0.0)
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder; False where that cannot be determined."""
    if not (folder / ".lock").exists():
        return False
    lock = FileLock(folder / ".lock", thread_local=False, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


# ----- nested state


def write_state(path: Path, state: dict[str, Any], *, keep_previous: bool = False) -> None:
    """Write nested dicts and lists of tensors and plain values to one file, atomically and with a digest of them.

    With `keep_previous`, the file that is replaced stays as the one that `read_newest_state` falls back to."""
    path, tensors = path.with_suffix(SUFFIX), dict[str, Tensor]()
    metadata = {"format": FORMAT, "state": json.dumps(_without_tensors(state, "", tensors))}
    metadata["tensors"] = _digest_of_tensors(tensors)
    metadata["digest"] = _digest_of_json(metadata)
    with atomic_write(path) as draft:
        _save(tensors, metadata, draft)
        if keep_previous and path.exists():
            _copy(path, _previous(path))
    remove_drafts(path.parent)


def _save(tensors: dict[str, Tensor], metadata: dict[str, str], path: Path) -> None:
    """Write a safetensors file with the permissions that the umask allows; save_file's would let no other user read it.

    A process killed in save_file leaves a temporary file, so it gets a draft folder."""
    path.touch()
    with draft_folder(path) as folder:
        file = folder / "state"
        try:
            save_file(tensors, str(file), metadata=metadata)
        except SafetensorError as error:  # safetensors' error for a full disk, among others
            raise OSError(errno.EIO, str(error), str(path)) from None
        file.chmod(stat.S_IMODE(path.stat().st_mode))
        file.replace(path)


def read_state(path: Path, *, tensors: bool = True, damaged_as_none: bool = False) -> dict[str, Any] | None:
    """The state in `path`, verified against its digest; None if there is no such file.

    Raises DamagedFile, or returns None with `damaged_as_none`, if the file is not what was written. Raises
    UnsupportedFile for files of other programs and of versions without digests.
    Without `tensors`, only the header is read and verified, and tensors are None."""
    path = path.with_suffix(SUFFIX)
    try:
        with path.open("rb"):
            pass  # safe_open reports any failure to open a file as not found
        with safe_open(str(path), framework="pt") as file:
            found = {key: file.get_tensor(key) if tensors else None for key in file.keys()}  # noqa: SIM118 - not a dict
            metadata = dict(file.metadata() or {})
        _verify(metadata, found if tensors else None)
        state = _with_tensors(json.loads(metadata["state"]), found)
        if not isinstance(state, dict):
            raise TypeError("not a state")
    except FileNotFoundError:
        return None
    except UnsupportedFile as error:
        raise UnsupportedFile(f"{path} {error}") from None
    except (DamagedFile, SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError):
        if damaged_as_none:
            return None
        raise DamagedFile(f"{path} is damaged: its content is not what was written") from None
    return state


def _verify(metadata: dict[str, str], tensors: Mapping[str, Tensor | None] | None) -> None:
    if metadata.keys() == {"state"}:
        raise UnsupportedFile("was saved by a version before 0.2.0: open it with that version, or create it again")
    if not metadata.keys() & {"format", "digest"}:
        raise UnsupportedFile("was written by another program")
    digest = metadata.pop("digest")
    if _digest_of_json(metadata) != digest:
        raise DamagedFile
    if metadata["format"] != FORMAT:
        raise UnsupportedFile(
            f"has the format {shown(metadata['format'])}, expected {FORMAT!r}: another version wrote it"
        )
    if tensors is not None and _digest_of_tensors(tensors) != metadata["tensors"]:
        raise DamagedFile


def _digest_of_json(data: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(data, sort_keys=True).encode(), digest_size=16).hexdigest()


def _digest_of_tensors(tensors: Mapping[str, Tensor | None]) -> str:
    parts = []
    for name, tensor in sorted(tensors.items()):
        assert tensor is not None
        described = json.dumps([name, str(tensor.dtype), list(tensor.shape)])
        parts.append((described, tensor.reshape(-1).view(torch.uint8).numpy().data))
    return digest_of(parts)


def digest_of(parts: Iterable[tuple[str, memoryview]]) -> str:
    """Digest of blocks of bytes and their descriptions. Large blocks are hashed in pieces on all cores: on one core,
    digests would take a few percent of a short run on a fast GPU."""
    digest = hashlib.blake2b(digest_size=16)
    with ThreadPoolExecutor() as pool:
        hashed = [
            (
                text,
                pool.map(_piece, [data[i : i + PIECE] for i in range(0, len(data), PIECE)])
                if len(data) > PIECE
                else data,
            )
            for text, data in parts
        ]
        for text, pieces in hashed:
            digest.update(text.encode())
            for piece in [pieces] if isinstance(pieces, memoryview) else pieces:
                digest.update(piece)
    return digest.hexdigest()


def _piece(data: memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def read_newest_state(path: Path) -> dict[str, Any] | None:
    """The state in `path`, or, if that file is damaged, the one before it, see `write_state`. None if there is neither.

    A damaged file is set aside with a warning."""
    path = path.with_suffix(SUFFIX)
    try:
        return read_state(path)
    except DamagedFile as error:
        kept, previous = set_aside(path, "damaged"), _previous(path)
        then = f"the previous {path.stem} is used" if previous.exists() else f"there is no earlier {path.stem}"
        logging.getLogger("osscl").warning("osscl: %s; kept as %s, %s", error, kept.name, then)
        with contextlib.suppress(FileNotFoundError):
            previous.replace(path)
        return read_newest_state(path)


def read_cached_state(path: Path) -> dict[str, Any] | None:
    """The state of a cache entry; None if it has to be computed again. An entry that cannot be used is deleted."""
    with contextlib.suppress(OSError):
        try:
            return read_state(path)
        except (DamagedFile, UnsupportedFile):
            path.with_suffix(SUFFIX).unlink()
    return None


def remove_state(path: Path) -> None:
    """Remove a state and the one kept before it."""
    path = path.with_suffix(SUFFIX)
    path.unlink(missing_ok=True)
    _previous(path).unlink(missing_ok=True)


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}-previous{path.suffix}")


def _copy(path: Path, target: Path) -> None:
    """Give a file a second name, or where the file system has no hard links, a copy."""
    with atomic_write(target) as draft:
        try:
            draft.hardlink_to(path)
        except OSError:
            shutil.copyfile(path, draft)


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` with each tensor replaced by its name in `tensors`, which it is added to."""
    if isinstance(value, Tensor):
        name = f"{name}#{len(tensors)}" if name in tensors else name  # of {"a/b": ..., "a": {"b": ...}}
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)  # no two may share memory
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": {str(key): _without_tensors(item, f"{name}/{key}", tensors) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return [_without_tensors(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]
    return value


def _with_tensors(value: Any, tensors: Mapping[str, Tensor | None]) -> Any:
    """The inverse of `_without_tensors`; raises LookupError, TypeError or AttributeError for any other value."""
    if isinstance(value, dict) and "tensor" in value:
        return tensors[value["tensor"]]
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value["dict"].items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    return value
