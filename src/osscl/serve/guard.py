"""Access control: a token for other machines, no foreign hosts or origins, no oversized bodies; errors are JSON."""

import hmac
import ipaddress
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.exceptions import HTTPException

COOKIE = "osscl-token"
MOST_UPLOADED = 256 * 2**20  # bytes of a request with pictures
MOST_JSON = 2 * 2**20  # bytes of any other request
UPLOADS = ("/api/predict", "/api/next/upload")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Access:
    """The address that is served, and the token that is required, if any."""

    host: str
    token: str | None = None

    def refusal(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Status and sentence for a request that is refused before it is processed."""
        if not self._is_own_host(headers.get("host", "")):
            return 403, "this server does not answer requests for that host name"
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        visits = method == "GET" and headers.get("sec-fetch-mode") == "navigate" and path in ("/", "/docs")
        if origin is not None and origin != f"http://{headers['host']}":
            return 403, "requests from other websites are refused"
        if site not in ("same-origin", "none") and not visits:
            return 403, "requests from other websites are refused"
        if not self.is_allowed(headers):
            return 401, "a token is required: open the address that `osscl serve` printed"
        return None

    def _is_own_host(self, header: str) -> bool:
        name = header.rpartition(":")[0] if header.rpartition(":")[2].isdigit() else header
        if is_loopback(self.host):
            return name.lower() in (*LOOPBACK, self.host)
        own = socket.gethostname().lower()
        return name.lower() in (self.host.lower(), "localhost", own, f"{own}.local") or _is_address(name)

    def is_allowed(self, headers: Mapping[str, str]) -> bool:
        """Whether the token is correct, or none is required."""
        if self.token is None:
            return True
        given = [headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
            given += [cookies[COOKIE].value] if COOKIE in cookies else []
        except CookieError:
            pass
        return any(self.is_token(one) for one in given)

    def is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """ASGI middleware that refuses what `Access` refuses, limits bodies, and adds headers to every answer."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        is_entry = path == "/" and b"token=" in scope["query_string"]  # checks the token itself
        refusal = self.access.refusal(scope["method"], path, headers)
        if refusal is not None and not (is_entry and refusal[0] == 401):
            await _send_json(send, *refusal)
            return
        most = MOST_UPLOADED if path in UPLOADS else MOST_JSON
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > most:
            await _send_json(send, 413, too_large(most))
            return
        await self.app(scope, _limited(receive, most), _with_headers(send))


def too_large(most: int) -> str:
    return f"the request is larger than {most >> 20} MB: send fewer or smaller pictures"


def _limited(receive: Receive, most: int) -> Receive:
    read = 0

    async def limited() -> dict[str, Any]:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read > most:
            raise HTTPException(413, too_large(most))
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def sending(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message.get("headers", [])}
            more = {"cache-control": "no-store", **HEADERS}
            added = [(name.encode(), text.encode()) for name, text in more.items() if name.encode() not in there]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return sending


async def _send_json(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
