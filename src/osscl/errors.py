"""User errors: the command line shows them as one line and exits with code 2."""

import contextlib
import reprlib
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches


class UserError(Exception):
    """A user's mistake: what is wrong and what is allowed, in one line. Other exceptions are bugs with a traceback."""


class SpecError(UserError):
    """A field of a spec has an invalid value."""


class DataError(UserError):
    """A data file is missing, damaged or different from the one a stream was made from."""


class DamagedFile(DataError):
    """A stored file differs from what was written."""


class UnsupportedFile(DataError):
    """A stored file was written by an older version or by another program."""


class Locked(UserError):
    """Another process holds the lock of the folder."""


class OutOfMemory(UserError):
    """A run needs more memory than there is. What it saved before is intact."""


class Diverged(UserError):
    """Training diverged: the loss or the weights are no longer finite."""


class Stopped(Exception):
    """A run was stopped on request; its state is saved, and the same command resumes it."""


# The errors that restoring a state of another version of this package raises, inside `as_memory_error`.
OTHER_VERSION = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SpecError)


@contextlib.contextmanager
def as_memory_error() -> Iterator[None]:
    """Raise MemoryError when torch runs out of memory; torch's RuntimeError would pass for another version's state."""
    try:
        yield
    except RuntimeError as error:
        if lacks_memory(error):
            raise MemoryError(str(error)) from error
        raise


def lacks_memory(error: Exception) -> bool:
    """Whether an error of Python or torch, recognised without importing torch, means too little memory."""
    named = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, MemoryError) or named or "can't allocate memory" in str(error)


def reason_of(error: Exception) -> str:
    """The type and message of a library's error, short enough for one line: torch's may list every parameter."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words if len(words) <= 300 else words[:300] + '...'}"


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 20


def shown(value: object) -> str:
    """The repr of a value that a user gave, short enough for one line however large or nested the value is."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python 3.11 refuses to print integers of more than 4,300 digits
        return f"a {type(value).__name__} that is too long to print"


def unknown(kind: str, name: object, allowed: Iterable[str]) -> SpecError:
    """The error for a name that is not in `allowed`, with the closest one that is."""
    names, text = list(allowed), (name if isinstance(name, str) else shown(name))[:200]
    parent, dot, last = text.rpartition(".") if kind == "field" else ("", "", text)  # of a field a.b, b is unknown
    near = get_close_matches(last, names, n=1, cutoff=0.5)
    hint = f"did you mean {parent + dot + near[0]!r}? " if near else ""
    return SpecError(f"unknown {kind} {text!r}; {hint}allowed: {', '.join(names)}")


def require_known(kind: str, name: object, allowed: Collection[str]) -> None:
    """Raise the error of `unknown` unless the name is in `allowed`."""
    if name not in allowed:
        raise unknown(kind, name, allowed)
