"""Nested state as one safetensors file: tensors as tensors, everything else as JSON in its header. No pickle."""

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from osscl.errors import UserError

SUFFIX = ".safetensors"


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write aside, then rename: whoever reads `path` finds the old state or the new one, never half of one."""
    tensors: dict[str, Tensor] = {}
    skeleton = _without_tensors(state, "", tensors)
    with aside(path.with_suffix(SUFFIX)) as draft:
        try:
            save_file(tensors, str(draft), metadata={"state": json.dumps(skeleton)})
        except SafetensorError as error:  # a full disk, in this library's words
            raise OSError(errno.EIO, str(error), str(path)) from None
        draft.chmod(0o666 & ~_umask())  # safetensors lets nobody else read what it writes


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def read_state(path: Path, device: torch.device | str = "cpu", *, tensors: bool = True) -> dict[str, Any] | None:
    """The state in `path`; None where there is none, or a file that is damaged. Without `tensors`, which are None then,
    the file's header is all that is read."""
    path = path.with_suffix(SUFFIX)
    try:
        with path.open("rb"):
            pass  # whatever keeps a file from being opened, safe_open calls it not found
        with safe_open(str(path), framework="pt", device=str(device)) as file:
            found = {key: file.get_tensor(key) if tensors else None for key in file.keys()}  # noqa: SIM118 - not a dict
            skeleton = json.loads((file.metadata() or {})["state"])
        return _with_tensors(skeleton, found)  # type: ignore[no-any-return]
    except (FileNotFoundError, SafetensorError, KeyError, ValueError, RecursionError):
        return None  # any other OSError says nothing of the file, which may be good


def refuse_to_overwrite(file: Path | None) -> None:
    """Asked before the work that would be written there."""
    if file is not None and (file.exists() or file.is_symlink()):
        raise UserError(f"{file} exists; nothing is overwritten, give another file")


def write_text(path: Path, text: str) -> None:
    """Write a small file whole or not at all; where it cannot be, that is the user's to know."""
    try:
        with aside(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


@contextlib.contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it takes the place of `path` when the block ends well. Only of a file: where a
    device, a pipe or a folder is, nothing is written."""
    if path.exists() and not path.is_file():
        raise UserError(f"cannot write {path}: it is there, and no regular file")
    path.parent.mkdir(parents=True, exist_ok=True)
    # The process number alone is not enough on a disk that several machines or containers write to.
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        yield draft
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _without_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
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
    if isinstance(value, dict) and "tensor" in value:
        return tensors[value["tensor"]]
    if isinstance(value, dict):
        return {key: _with_tensors(item, tensors) for key, item in value["dict"].items()}
    if isinstance(value, list):
        return [_with_tensors(item, tensors) for item in value]
    return value
