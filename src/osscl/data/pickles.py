"""Reading pickles of numbers, text and NumPy arrays without running them.

A pickle is a program: it can name any function to call, and the nine bytes of one that stores a value at memo index
2^31 make Python's own reader allocate gigabytes. Here each instruction is looked up in a table and can only build plain
values; the functions named by arrays are replaced by our own, all others are refused."""

import math
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from osscl.errors import DataError

LARGEST_FILE = 2**30  # bytes; the largest batch of the benchmarks has 155 MB
MOST_INSTRUCTIONS = 2_000_000  # CIFAR-100's training batch has about 250,000; memory and time grow with their number


class Refused(Exception):
    """The pickle contains something that plain data do not need."""


class _Dtype:
    """Stands for numpy.dtype, whose own unpickling trusts flags in the file that can corrupt memory."""

    def __init__(self, code: Any, *_: object) -> None:
        self.code, self.order = _text(code, longest=8), "|"

    def build(self, state: Any) -> None:
        self.order = _text(state[1])

    def numbers(self) -> np.dtype[Any]:
        """The real dtype, if it is one of numbers."""
        made = np.dtype(self.code)
        if made.kind not in "biuf":
            raise Refused(f"an array of {made}")
        return made.newbyteorder(self.order)  # type: ignore[arg-type]


class _Array:
    """Stands for an array until its state is read."""

    def __init__(self, *_: object) -> None:
        self.array = np.empty(0)

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.array = _filled(raw, dtype, shape, "F" if fortran else "C")


def _text(value: Any, longest: int = 100) -> str:
    if not isinstance(value, str | bytes) or len(value) > longest:
        raise TypeError("expected a short text")
    return value.decode("ascii") if isinstance(value, bytes) else value


def _filled(raw: bytes, dtype: _Dtype, shape: tuple[int, ...], order: Literal["C", "F"] = "C") -> np.ndarray[Any, Any]:
    """An array over exactly the bytes that it needs; without them, NumPy would allocate memory of any size."""
    kind = dtype.numbers()
    if not isinstance(raw, bytes | bytearray):
        raise TypeError("expected the bytes of an array")
    if not all(type(size) is int and size >= 0 for size in shape):  # an int times a text is a long text
        raise TypeError("expected the shape of an array")
    if len(raw) != kind.itemsize * math.prod(shape):
        raise ValueError("an array with too few or too many bytes")
    return np.ndarray(shape, kind, raw, order=order)


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in protocol 2."""
    if (name := _text(encoding)) not in ("latin1", "latin-1"):
        raise Refused(f"text in {name}")
    return text.encode("latin1")


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "numpy dtype": _Dtype,
    "numpy.core.multiarray _reconstruct": _Array,
    "numpy.core.numeric _frombuffer": _filled,  # protocol 5
    "numpy.core.multiarray scalar": lambda dtype, raw: _filled(raw, dtype, ())[()],
    "_codecs encode": _latin1,
    "__builtin__ bytes": lambda: b"",  # in protocol 2
}
NDARRAY = "numpy ndarray"  # named by arrays as their type, never called

CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT")
PYTHON_2_TEXT = ("SHORT_BINSTRING", "BINSTRING")  # bytes, which pickletools decodes as Latin-1
TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8")
CONTAINERS: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class PlainReader:
    """Builds the value of a pickle, one instruction at a time."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.free = 0  # bytes that may still be copied

    def read(self, content: bytes) -> Any:
        """The value; raises Refused, or nearly any exception if the content is damaged."""
        self.free = len(content)
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count >= MOST_INSTRUCTIONS:
                raise Refused(f"more than {MOST_INSTRUCTIONS:,} instructions")
            self._execute(opcode.name, argument)
        (value,) = self.stack
        return value

    def _execute(self, name: str, argument: Any) -> None:
        if name in NUMBERS or name in TEXTS:
            self.stack.append(argument)
        elif name in PYTHON_2_TEXT:
            self.stack.append(argument.encode("latin1"))
        elif name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in CONTAINERS:
            self.stack.append(CONTAINERS[name]())
        elif name in TUPLES:
            self.stack.append(tuple(self._popped(len(self.stack) - TUPLES[name])))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in STEPS:
            STEPS[name](self)
        elif name == "GLOBAL":
            self._name(argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise Refused(f"the instruction {name}")

    def _popped(self, start: int) -> list[Any]:
        if start < 0:
            raise ValueError("too few values")
        items, self.stack[start:] = self.stack[start:], []
        return items

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def make_tuple(self) -> None:
        self.stack.append(tuple(self._popped(self.marks.pop())))

    def append(self) -> None:
        self._extend(self._popped(len(self.stack) - 1))

    def appends(self) -> None:
        self._extend(self._popped(self.marks.pop()))

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError("items for something that is not a list")
        self.stack[-1].extend(items)

    def set_item(self) -> None:
        self._update(self._popped(len(self.stack) - 2))

    def set_items(self) -> None:
        self._update(self._popped(self.marks.pop()))

    def _update(self, items: list[Any]) -> None:
        """Only text is a key: a few hundred bytes of nested tuples would take forever to hash."""
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | bytes):
                raise Refused(f"a key of type {type(key).__name__}")
            self.stack[-1][key.encode() if isinstance(key, str) else key] = value

    def stack_global(self) -> None:
        module, name = self._popped(len(self.stack) - 2)
        self._name(f"{_text(module)} {_text(name)}")

    def _name(self, dotted: str) -> None:
        known = dotted.replace("numpy._core.", "numpy.core.", 1)  # NumPy 2
        if known != NDARRAY and known not in FUNCTIONS:
            raise Refused(dotted.replace(" ", "."))
        self.stack.append(FUNCTIONS.get(known))

    def reduce(self) -> None:
        function, arguments = self._popped(len(self.stack) - 2)
        if function not in FUNCTIONS.values():
            raise Refused("a call of something that is not a function")
        if function is _latin1:  # it copies a text, which the memo can name again and again
            self.free -= len(arguments[0])
            if self.free < 0:
                raise Refused("more text than the file has")
        self.stack.append(function(*arguments))

    def build(self) -> None:
        (state,) = self._popped(len(self.stack) - 1)
        if not isinstance(self.stack[-1], _Dtype | _Array):
            raise Refused("the state of an object")
        self.stack[-1].build(state)


STEPS: dict[str, Callable[[PlainReader], None]] = {
    "MARK": PlainReader.mark,
    "MEMOIZE": PlainReader.memoize,
    "TUPLE": PlainReader.make_tuple,
    "APPEND": PlainReader.append,
    "APPENDS": PlainReader.appends,
    "SETITEM": PlainReader.set_item,
    "SETITEMS": PlainReader.set_items,
    "STACK_GLOBAL": PlainReader.stack_global,
    "REDUCE": PlainReader.reduce,
    "BUILD": PlainReader.build,
}


def read_pickle(path: Path) -> dict[bytes, Any]:
    """The dictionary in a pickle of plain data, of Python 2 or 3, with its keys as bytes."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise Refused(f"more than {LARGEST_FILE:,} bytes")
        content = PlainReader().read(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path} is missing: expected all files of the official archive in one folder") from None
    except Refused as refused:
        raise DataError(f"{path} is refused: it contains {refused}, which plain data never needs") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle can fail with nearly any exception
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} is damaged or truncated ({reason}): expected a pickle of arrays") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} contains a {type(content).__name__}: expected a dictionary")
    return {key: value.array if isinstance(value, _Array) else value for key, value in content.items()}
