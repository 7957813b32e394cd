"""Something happens at the n-th write of a process: an audit hook counts the writes below a folder."""

import errno
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

WRITES = ("os.rename", "os.mkdir", "os.link", "os.symlink", "os.truncate")
REMOVALS = ("os.remove", "os.rmdir", "os.chmod", "os.utime")  # which succeed on a full disk


def count_writes(folder: Path, target: Path) -> Callable[[], None]:
    """Append a line to a file for each write."""

    def before() -> None:
        lines = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        on_writes(folder, lambda event, path: os.write(lines, f"{event} {path}\n".encode()))

    return before


def signal_at(folder: Path, n: int, number: int) -> Callable[[], None]:
    """The process gets a signal just before its n-th write, from 0."""
    left = [n]

    def act(event: str, path: str) -> None:
        left[0] -= 1
        if left[0] == -1:
            os.kill(os.getpid(), number)

    return lambda: on_writes(folder, act)


def fail_from(folder: Path, n: int, number: int) -> Callable[[], None]:
    """The n-th write and all that follow fail with an error number."""
    left = [n]

    def act(event: str, path: str) -> None:
        left[0] -= 1
        if left[0] < 0 and (number == errno.EROFS or event not in REMOVALS):
            raise OSError(number, os.strerror(number), path)

    return lambda: on_writes(folder, act)


def limit_file_size(limit: int) -> Callable[[], None]:
    """Files cannot grow beyond a size: the write that would do it fails, or is cut short."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def on_writes(folder: Path, act: Callable[[str, str], None]) -> None:
    """Call `act` before each operation that would change something below a folder."""
    inside = (str(folder), str(folder.resolve()))

    def hook(event: str, args: tuple) -> None:
        if event not in WRITES and event not in REMOVALS and not (event == "open" and _writes(args[2])):
            return
        if not isinstance(args[0], str | bytes | os.PathLike):
            return
        path = os.path.join(os.getcwd(), os.fsdecode(args[0]))  # noqa: PTH118, PTH109 - called for every operation
        if not path.startswith(inside):
            return
        if event == "os.mkdir" and os.path.exists(path):  # noqa: PTH110 - changes nothing
            return
        act(event, path)

    sys.addaudithook(hook)


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
