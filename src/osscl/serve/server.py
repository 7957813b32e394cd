"""Run the server: a socket of its own, a token where one is needed, and the address to open."""

import contextlib
import logging
import secrets
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import uvicorn

from osscl.errors import UserError
from osscl.serve.app import build_app
from osscl.serve.guard import Access, is_loopback
from osscl.serve.rooms import Rooms

SECONDS_TO_CLOSE = 2  # for requests that are under way when the server is stopped


def run_server(
    agent: Path, pile: Path | None, test: Path | None, host: str, port: int, token: str | None, device: str,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve until Ctrl-C."""
    access = Access(host, required_token(host, token))
    rooms = Rooms(agent, pile, test, device)
    with listening(host, port) as listener:
        tell(f"open {address(host, listener.getsockname()[1], access.token)}  (Ctrl-C ends the server)")
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            build_app(rooms, access), log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=SECONDS_TO_CLOSE,
        )  # fmt: skip
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # what uvicorn ends with after SIGTERM
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def required_token(host: str, token: str | None) -> str | None:
    """The token given, or a new one if other machines can connect."""
    if token is not None and (len(token) < 8 or not token.isascii() or not token.isalnum()):
        raise UserError("--token needs at least 8 letters and digits")
    return token if token is not None or is_loopback(host) else secrets.token_hex(16)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or a user error."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; try another --host or --port"
        ) from None
    return listener


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser."""
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")
