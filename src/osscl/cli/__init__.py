"""The command line: it parses, calls and prints. Heavy imports wait inside the commands, so that help is quick."""

import codecs
import errno
import io
import sys
from typing import Annotated, Any

import typer

from osscl import __version__
from osscl.cli import (
    agent,
    bench,
    claims,
    compare,
    data,
    demo,
    inspect,
    model,
    report,
    run,
    runs,
    sort,
    study,
    table,
    tune,
)
from osscl.cli.options import UNFINISHED
from osscl.errors import Stopped, UserError, lacks_memory

LEARNING = ("run", "fit", "tune")  # commands that take batches of another size
PLAINER = {"—": "-", "…": ".", "±": "+-"}  # for terminals that cannot show them
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
OUTSIDE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, *CLOSED)

app = typer.Typer(
    name="osscl",
    help="Continual learning from few labels in an open world.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("demo")(demo.demo)
app.command("run")(run.run)
app.command("runs")(runs.runs)
app.command("list")(runs.names)
app.command("stream")(run.stream)
app.command("table")(table.table)
app.command("claims")(claims.claims)
app.command("compare")(compare.compare)
app.command("tune")(tune.tune)
app.command("fit")(agent.fit)
app.command("update")(agent.update)
app.command("inspect")(inspect.inspect)
app.command("back")(inspect.back)
app.command("sort")(sort.sort)
app.command("predict")(model.predict)
app.command("report")(report.report)
app.command("bench")(bench.bench)
app.command("study")(study.study)
app.command("study-heads")(study.study_heads)
app.add_typer(data.app, name="data")


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
    """The user's mistakes are one line and exit code 2; our bugs keep their traceback."""
    usage_error: type[Exception] = typer.BadParameter.__mro__[1]  # typer has no public name for it
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("plainer", lambda error: (_plainer(error), error.end))  # type: ignore[attr-defined]
        sys.stdout.reconfigure(errors="plainer")
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        _fail(str(error), 2)
    except usage_error as error:
        _fail(_usage(error), 2)
    except Stopped:
        _fail("stopped; the same command goes on from here", UNFINISHED)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.exit(141)
    except (OSError, MemoryError, RuntimeError) as error:
        if not (line := _outside(error)):
            raise
        _fail(line, 2)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any) -> str:
    """What was typed wrong, and where to read what is right."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        sys.exit(0)
    message = error.format_message().removesuffix(".")
    if message.startswith("No such command"):
        return f"{message}; allowed: {', '.join(error.ctx.command.list_commands(error.ctx))}"
    if "'--seed'" in message and error.ctx is not None:
        several = any(param.name == "seeds" for param in error.ctx.command.params)
        return f"--seed takes one whole number from 0 on{'; several go with --seeds, as in --seeds 0-2' * several}"
    return f"{message}; see {error.ctx.command_path} --help" if error.ctx is not None else message


def _outside(error: Exception) -> str:
    """A line where the machine is to blame: a full disk, a folder that is closed to us, too little memory."""
    if isinstance(error, OSError):
        return f"{error.filename or 'the output'}: {error.strerror}" if error.errno in OUTSIDE else ""
    if not lacks_memory(error):
        return ""
    smaller = "; smaller batches need less, as with --set learner.batch=256 --set reference.batch=256"
    return f"memory ran out{smaller if sys.argv[1:2] and sys.argv[1] in LEARNING else ''}"


def _plainer(error: Any) -> str:
    return "".join(PLAINER.get(letter, "?") for letter in error.object[error.start : error.end])


def _fail(message: str, code: int) -> None:
    print(f"osscl: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
