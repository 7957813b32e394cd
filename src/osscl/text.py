"""Text from files and folders, made safe to print."""

import unicodedata

UNSAFE = {"Cc", "Cs", "Zl", "Zp"}  # control characters, undecodable bytes of file names, line and paragraph separators
BIDIRECTIONAL = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}  # they reorder what follows


def printable(text: str) -> str:
    """Escape characters that would move the cursor, recolour, reorder or break a terminal's lines."""
    if text.isprintable():
        return text
    return "".join(_escaped(letter) if _is_unsafe(letter) else letter for letter in text)


def _is_unsafe(letter: str) -> bool:
    return letter in BIDIRECTIONAL or unicodedata.category(letter) in UNSAFE


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")
