"""Text from files and folders, made safe to print and for spreadsheets; numbers with their nouns."""

import contextlib
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, cast

UNSAFE = {"Cc", "Cs", "Zl", "Zp"}  # control characters, undecodable bytes of file names, line and paragraph separators
BIDIRECTIONAL = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}  # they reorder what follows
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates text that starts with one of these


def printable(text: str) -> str:
    """Escape characters that would move the cursor, recolour, reorder or break a terminal's lines."""
    if text.isprintable():
        return text
    return "".join(_escaped(letter) if _is_unsafe(letter) else letter for letter in text)


def _is_unsafe(letter: str) -> bool:
    return letter in BIDIRECTIONAL or unicodedata.category(letter) in UNSAFE


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def printable_lines(text: str) -> str:
    """Like `printable`, for text whose line breaks are intended."""
    return "\n".join(map(printable, text.split("\n")))


def csv_text(text: str) -> str:
    """Text for a cell of a CSV file that no spreadsheet interprets as a formula. Not for numbers."""
    return f"'{text}" if text.startswith(FORMULA) else text


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun, as in: 1 run, 2,000 runs."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


class GuardedStream:
    """A text stream in which only line breaks act on the terminal, whatever is written. Rich, which sets colours and
    moves the cursor, writes to the underlying stream; what it shows is made printable before it is passed to Rich."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(printable_lines(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # typer would write bytes to it
            raise AttributeError(name)
        return getattr(self.rich_proxied_file, name)


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Inside the block, standard output and errors are guarded streams."""
    before = sys.stdout, sys.stderr  # None under pythonw, or where they are closed
    sys.stdout, sys.stderr = (cast(TextIO, stream and GuardedStream(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unguarded(stream: TextIO) -> TextIO:
    """The stream for a live display of rich."""
    return stream.rich_proxied_file if isinstance(stream, GuardedStream) else stream
