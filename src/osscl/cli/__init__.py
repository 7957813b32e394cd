"""The command line: it parses, calls and prints. Heavy imports wait inside the commands, so that help is quick."""

import sys
from typing import Annotated

import typer

from osscl import __version__
from osscl.cli import bench, data, demo, model, run
from osscl.errors import Stopped, UserError

UNFINISHED = 3  # exit code of a run that was stopped on demand and can go on

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
app.command("runs")(run.runs)
app.command("list")(run.names)
app.command("stream")(run.stream)
app.command("predict")(model.predict)
app.command("bench")(bench.bench)
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
    try:
        code = app(standalone_mode=False)
    except UserError as error:
        _fail(str(error), 2)
    except usage_error as error:
        _fail(error.format_message(), 2)  # type: ignore[attr-defined]
    except Stopped:
        _fail("stopped; the same command goes on from here", UNFINISHED)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:
        sys.exit(141)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print(f"osscl: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
