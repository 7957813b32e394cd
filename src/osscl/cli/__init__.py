"""The command line: parse, call, print. Commands import what they need when run, so help is quick."""

import codecs
import contextlib
import errno
import gc
import io
import math
import re
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from osscl import __version__
from osscl.cli import (
    agent,
    clean,
    compare,
    data,
    demo,
    inspect,
    measure,
    predict,
    report,
    run,
    serve,
    table,
    tune,
)
from osscl.cli.options import UNFINISHED, GroupedHelp
from osscl.errors import Stopped, UserError, lacks_memory
from osscl.text import guarded_output, printable

# What the dynamic linker and the kernel report when the libraries of PyTorch do not fit into memory.
NO_ROOM = re.compile("failed to map segment|cannot allocate memory|cannot map|Cannot allocate memory", re.IGNORECASE)
TRAINING = ("run", "fit", "tune")  # commands with a batch size to lower
NEEDED = 2**30  # bytes of address space
TOO_LITTLE = "not enough memory to import PyTorch, which needs about 1 GB"
ASCII = {"—": "-", "…": ".", "±": "+-"}  # for terminals without these characters
INACCESSIBLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, *INACCESSIBLE)

PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Start here": {"demo": demo.demo, "list": run.list_names},
    "Runs": {"run": run.run, "runs": run.runs, "stream": run.stream, "tune": tune.tune, "report": report.report},
    "The paper": {"table": table.table, "claims": compare.claims, "compare": compare.compare},
    "Your own images": {
        "fit": agent.fit, "update": agent.update, "predict": predict.predict, "sort": predict.sort,
        "inspect": inspect.inspect, "back": agent.back, "rename": agent.rename, "merge": agent.merge,
        "remove": agent.remove, "relabel": agent.relabel, "serve": serve.serve, "export": serve.export,
    },
    "Measurements": {"bench": measure.bench, "study": measure.study, "study-heads": measure.study_heads},
    "Maintenance": {"clean": clean.clean},
}  # fmt: skip

app = typer.Typer(
    name="osscl",
    cls=GroupedHelp,
    help="Continual learning from few labels in an open world.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for panel, commands in PANELS.items():
    for command, function in commands.items():
        app.command(command, rich_help_panel=panel)(function)
app.add_typer(data.app, name="data", rich_help_panel="Start here")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"osscl {__version__}")
        raise typer.Exit


@app.callback()
def osscl(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Report user errors in one line with exit code 2; bugs keep their traceback."""
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]  # typer has no public name for it
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("to_ascii", lambda error: (_to_ascii(error), error.end))  # type: ignore[attr-defined]
        sys.stdout.reconfigure(errors="to_ascii")
    try:
        with guarded_output(), _refusing_to_import_without_memory():
            code = app(standalone_mode=False)
    except UserError as error:
        _fail(str(error), 2)
    except usage_error as error:
        _fail(_usage(error), 2)
    except Stopped:
        _fail("Stopped. Run the same command again to resume.", UNFINISHED)
    except (KeyboardInterrupt, typer.Abort):
        _fail("Interrupted.", 130)
    except BrokenPipeError:
        sys.exit(141)
    except (OSError, MemoryError, RuntimeError, ImportError, SystemError) as error:
        if not (line := _machine_error(error)):
            raise
        _fail(line, 2)
    else:
        gc.freeze()  # otherwise the interpreter searches all of PyTorch for cycles at exit, which takes 0.15 s
        sys.exit(code if isinstance(code, int) else 0)


class _NoRoomForTorch:
    """Refuses to import NumPy and PyTorch: in an address space that is too small, their libraries crash the process or
    raise errors that look like bugs."""

    def find_spec(self, name: str, *_: object) -> None:
        if name in ("numpy", "torch"):
            raise UserError(TOO_LITTLE)


@contextlib.contextmanager
def _refusing_to_import_without_memory() -> Iterator[None]:
    finder: Any = _NoRoomForTorch()
    if is_limited := _address_space() < NEEDED:
        sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if is_limited:
            sys.meta_path.remove(finder)


def _address_space() -> float:
    """Bytes that this process may map."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return math.inf
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def _usage(error: Any) -> str:
    """What is wrong with the command line, and where to look it up."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        sys.exit(0)
    param = getattr(error, "param", None)
    if param is not None and param.name == "seed":
        several = any(other.name == "seeds" for other in error.ctx.command.params)
        return f"--seed must be a non-negative integer{'; use --seeds for several, as in --seeds 0-2' * several}"
    message = error.format_message().removesuffix(".")
    return f"{message}; see {error.ctx.command_path} --help" if error.ctx is not None else message


def _machine_error(error: Exception) -> str:
    """One line if the machine is the cause: a full disk, a folder without access, too little memory."""
    if NO_ROOM.search(str(error)) and not isinstance(error, RuntimeError):
        return TOO_LITTLE
    if isinstance(error, OSError):
        return f"{error.filename or 'the output'}: {error.strerror}" if error.errno in MACHINE_ERRORS else ""
    if not lacks_memory(error):
        return ""
    smaller = "; try smaller batches, e.g. --set learner.batch=256 --set reference.batch=256"
    return f"out of memory{smaller if sys.argv[1:2] and sys.argv[1] in TRAINING else ''}"


def _to_ascii(error: Any) -> str:
    return "".join(ASCII.get(letter, "?") for letter in error.object[error.start : error.end])


def _fail(message: str, code: int) -> None:
    print(f"osscl: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)
