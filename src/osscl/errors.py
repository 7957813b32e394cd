"""Mistakes that are the user's: the command line shows them as one line and exits with code 2."""

import contextlib
from collections.abc import Iterable, Iterator
from difflib import get_close_matches


class UserError(Exception):
    """What is wrong and what is allowed, in one line. Any other exception is our bug and keeps its traceback."""


class SpecError(UserError):
    """A field of a spec has a value that cannot be."""


class DataError(UserError):
    """A data file is missing, damaged or not what a stream was made from."""


class Occupied(UserError):
    """Another process is at work on the same run."""


class Diverged(UserError):
    """Training led nowhere: hyperparameters that no network learns with."""


# What reading a state of another version of this package comes upon, within `memory_told`.
OTHER_VERSION = (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SpecError)


@contextlib.contextmanager
def memory_told() -> Iterator[None]:
    """Too little memory is a MemoryError, whoever says so: torch's is a RuntimeError, as is that of tensors that do not
    fit a network, and would be taken for another version's."""
    try:
        yield
    except RuntimeError as error:
        if lacks_memory(error):
            raise MemoryError(str(error)) from error
        raise


def lacks_memory(error: Exception) -> bool:
    named = type(error).__name__ == "OutOfMemoryError"  # torch's, without an import of it
    return isinstance(error, MemoryError) or named or "can't allocate memory" in str(error)


def unknown(kind: str, name: object, allowed: Iterable[str]) -> SpecError:
    """The error for a name that is none of `allowed`, with the nearest one that is."""
    names = list(allowed)
    near = get_close_matches(str(name).rpartition(".")[2], names, n=1, cutoff=0.5)  # of a.b, b is the one not known
    hint = f"did you mean {near[0]!r}? " if near else ""
    return SpecError(f"unknown {kind} {str(name)!r}; {hint}allowed: {', '.join(names)}")


class Stopped(Exception):
    """A run ended before its end, on demand; its state is saved and the same command goes on."""
