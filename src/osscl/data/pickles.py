"""Reading pickles of plain numbers: a pickle can name any function to call, so all but a handful are refused."""

import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np

from osscl.errors import DataError


class Refused(pickle.UnpicklingError):
    """The pickle names something that plain data does not need."""


# NumPy's own unpickling trusts the file with the flags of a dtype, and so with memory: arrays are put together here.
class _Dtype:
    """Stands for numpy.dtype while a pickle is read."""

    def __init__(self, code: str | bytes, align: object = False, copy: object = False) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else code
        self.order: Any = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode("ascii") if isinstance(order, bytes) else order

    def numbers(self) -> np.dtype[Any]:
        """The real dtype, if it is one of numbers."""
        made = np.dtype(self.code)
        if made.kind not in "biuf":
            raise Refused(f"an array of {made}")
        return made.newbyteorder(self.order)


class _Array:
    """Stands for an array until its state comes."""

    def __init__(self, kind: object, shape: object, code: object) -> None:
        self.array = np.empty(0)

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _, shape, dtype, fortran, raw = state
        self.array = _filled(raw, dtype, shape, "F" if fortran else "C")


def _filled(raw: bytes, dtype: _Dtype, shape: tuple[int, ...], order: Literal["C", "F"]) -> np.ndarray[Any, Any]:
    """An array over bytes; NumPy checks that they are enough."""
    return np.ndarray(shape, dtype.numbers(), raw, order=order)


def _scalar(dtype: _Dtype, raw: bytes) -> Any:
    """One number."""
    return _filled(raw, dtype, (), "C")[()]


def _latin1(text: str, encoding: str) -> bytes:
    """_codecs.encode, as Python 3 writes bytes in protocol 2; another encoding is no way to write bytes."""
    if encoding not in ("latin1", "latin-1"):
        raise Refused(f"text in {encoding}")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): None,  # named by arrays as their kind, never called
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.numeric", "_frombuffer"): _filled,  # protocol 5
    ("numpy._core.numeric", "_frombuffer"): _filled,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _latin1,
    ("__builtin__", "bytes"): bytes,  # b"" in protocol 2
}


class PlainUnpickler(pickle.Unpickler):
    """Numbers, text, bytes, lists, dicts and NumPy arrays of numbers; nothing is ever imported."""

    def find_class(self, module: str, name: str) -> Any:
        """The admitted object of that name."""
        if (module, name) not in ADMITTED:
            raise Refused(f"{module}.{name}")
        return ADMITTED[module, name]


def read_pickle(path: Path) -> dict[bytes, Any]:
    """The dictionary in a pickle of plain data, of Python 2 or 3, with its keys as bytes."""
    try:
        with path.open("rb") as file:
            content = PlainUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: expected all files of the official archive beside each other") from None
    except Refused as refused:
        raise DataError(f"{path} asks for {refused}, which plain data never does: refused") from None
    except Exception as error:  # a damaged pickle can fail with nearly any exception there is
        reason = str(error) or type(error).__name__
        raise DataError(f"{path} is damaged or cut short ({reason}): expected a pickle of arrays") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}: expected a dictionary")
    return {
        key.encode() if isinstance(key, str) else key: value.array if isinstance(value, _Array) else value
        for key, value in content.items()
    }
