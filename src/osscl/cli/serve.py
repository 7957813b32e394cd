"""`osscl serve`: a page in the browser to look, name and teach."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from osscl.cli.agent import Agent
from osscl.cli.options import Device
from osscl.errors import UserError

NEEDED = ("fastapi", "uvicorn", "multipart")


def serve(
    agent: Agent,
    pile: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder of unlabelled pictures to look at and to teach from.")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A folder of labelled test pictures, one folder per class.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but localhost needs a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 8765,
    token: Annotated[
        str | None, typer.Option(help="Token required with every request; generated and printed if needed.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Open a page in the browser: drop photos, look through a pile, name groups, teach, go back. Ctrl-C ends it."""
    if any(find_spec(name) is None for name in NEEDED):
        raise UserError('osscl serve needs more packages: pip install "osscl[serve]"')
    from osscl.serve.server import run_server

    run_server(agent, pile, test, host, port, token, device, typer.echo)
