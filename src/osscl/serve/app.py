"""The server behind `osscl serve`: every action of the page as a JSON endpoint, and the socket that it listens on."""

import contextlib
import json
import logging
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from osscl import __version__
from osscl.errors import Locked, UserError
from osscl.serve.answers import (
    LONGEST_CLASS_NAME,
    AgentState,
    Answer,
    Busy,
    DropLabels,
    Error,
    GiveLabels,
    GoBack,
    Merge,
    NextLabels,
    PictureId,
    PileState,
    RefusedRequest,
    Remove,
    Rename,
    SectionPage,
    TeachingState,
    TestState,
)
from osscl.serve.decoding import MOST_BYTES, MOST_PICTURES
from osscl.serve.guard import COOKIE, Access, Guard, is_loopback
from osscl.serve.server_state import ServerState

STATIC = files("osscl.serve") / "static"
PAGES = {"/": "index.html", "/docs": "docs.html"}
KINDS = {".css": "text/css", ".js": "text/javascript", ".html": "text/html", ".svg": "image/svg+xml"}
FOREVER = {"cache-control": "private, max-age=31536000, immutable"}  # addresses that contain a hash of the content
PICTURES = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1, "maxItems": MOST_PICTURES}
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "Invalid request; `error` says why."},
    404: {"model": Error, "description": "There is no such picture, section or page."},
    409: {"model": Busy, "description": "The agent is being taught; `running` says what."},
    413: {"model": Error, "description": "Too many bytes or pictures."},
    422: {"model": Error, "description": "A field is missing or has the wrong form."},
}
SECONDS_TO_CLOSE = 2  # for requests that are under way when the server is stopped
ABOUT = "Every action of the page. Errors are JSON with one sentence in `error`."


def run_server(
    agent: Path, pile: Path | None, test: Path | None, host: str, port: int, token: str | None, device: str,
    tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve until Ctrl-C."""
    access = Access(host, required_token(host, token))
    state = ServerState(agent, pile, test, device)
    with listening(host, port) as listener:
        tell(f"open {address(host, listener.getsockname()[1], access.token)}  (Ctrl-C stops the server)")
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            build_app(state, access), log_config=None, access_log=False, server_header=False,
            timeout_graceful_shutdown=SECONDS_TO_CLOSE,
        )  # fmt: skip
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # what uvicorn ends with after SIGTERM
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def required_token(host: str, token: str | None) -> str | None:
    """The token given, or a new one if other machines can connect."""
    if token is not None and (len(token) < 8 or not token.isascii() or not token.isalnum()):
        raise UserError("--token must consist of at least 8 letters and digits")
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


def build_app(state: ServerState, access: Access) -> Any:
    """The ASGI application for one agent."""

    @contextlib.asynccontextmanager
    async def life(app: Any) -> AsyncIterator[None]:
        state.open()
        yield
        state.close()

    app = FastAPI(
        title="osscl serve", version=__version__, description=ABOUT, docs_url=None, redoc_url=None, lifespan=life,
        responses=REFUSALS,
    )  # fmt: skip
    _add_error_handlers(app)
    _add_pages(app, access)
    _add_questions(app, state)
    _add_pile(app, state)
    _add_next_step(app, state)
    _add_classes(app, state)
    return Guard(app, access)


def _add_error_handlers(app: Any) -> None:
    def refused(_: Request, error: RefusedRequest) -> JSONResponse:
        return JSONResponse({"error": error.sentence, **error.more}, error.status)

    def wrong(_: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 409 if isinstance(error, Locked) else 400)

    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body")
        return JSONResponse({"error": f"{place or 'the body'}: {first['msg']}".encode(errors="replace").decode()}, 422)

    def http(_: Request, error: HTTPException) -> JSONResponse:
        known = {404: "there is no such page", 405: "this address does not support that method"}
        sentence = known.get(error.status_code, str(error.detail))
        return JSONResponse({"error": sentence}, error.status_code, headers=getattr(error, "headers", None))

    def bug(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": "an unexpected error occurred; see the terminal of `osscl serve`"}, 500)

    handlers: dict[type[Exception], Any] = {
        RefusedRequest: refused, UserError: wrong, RequestValidationError: invalid, HTTPException: http, Exception: bug,
    }  # fmt: skip
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _add_pages(app: Any, access: Access) -> None:
    def page(request: Request) -> Response:
        token = request.query_params.get("token")
        if token is not None and request.url.path == "/":
            if not access.is_token(token):
                raise RefusedRequest(401, "invalid token: open the address that `osscl serve` printed")
            entered = RedirectResponse("/", 303)
            entered.set_cookie(COOKIE, token, httponly=True, samesite="strict")
            return entered
        return _static(PAGES[request.url.path])

    def part(name: str) -> Response:
        if name not in {file.name for file in STATIC.iterdir()}:
            raise RefusedRequest(404, "there is no such page")
        return _static(name)

    for path in PAGES:
        app.add_api_route(path, page, include_in_schema=False)
    app.add_api_route("/static/{name}", part, include_in_schema=False)


def _static(name: str) -> Response:
    return Response(
        (STATIC / name).read_bytes(), media_type=KINDS[Path(name).suffix], headers={"cache-control": "no-cache"}
    )


def _add_questions(app: Any, state: ServerState) -> None:
    async def predict(request: Request) -> StreamingResponse:
        """Classify up to 50 pictures: one JSON answer per line, each as soon as it is ready."""
        form = await request.form(max_files=MOST_PICTURES, max_fields=MOST_PICTURES)
        given = _given_files(form)

        async def answers() -> AsyncIterator[str]:
            for upload in given:
                content = await upload.read(MOST_BYTES + 1)
                answer = await run_in_threadpool(state.served.answer, content, upload.filename)
                yield json.dumps(asdict(answer)) + "\n"
            await form.close()

        return StreamingResponse(answers(), media_type="application/x-ndjson")

    def example(id: PictureId) -> Response:
        """A labelled picture that the agent keeps in memory."""
        if (jpeg := state.served.example(id)) is None:
            raise RefusedRequest(404, "there is no such example; it may have been removed")
        return Response(jpeg, media_type="image/jpeg", headers=FOREVER)

    lines = {
        200: {"description": "One JSON answer per line.", "content": {"application/x-ndjson": {}}, "model": Answer}
    }
    app.add_api_route(
        "/api/predict",
        predict,
        methods=["POST"],
        tags=["ask"],
        openapi_extra=_form(files=PICTURES),
        responses=lines,
        response_model=None,
    )
    app.add_api_route("/api/examples/{id}", example, tags=["ask"], response_class=Response)


def _form(**fields: Any) -> dict[str, Any]:
    """The description of a form in which every field is required."""
    schema = {"type": "object", "required": [*fields], "properties": fields}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def _given_files(form: Any) -> list[Any]:
    given = [one for one in form.getlist("files") if hasattr(one, "filename")]
    if not given:
        raise RefusedRequest(422, "files: send at least one picture")
    return given


def _add_pile(app: Any, state: ServerState) -> None:
    def pile() -> PileState:
        """The progress of reading and sorting the pile, and its sections."""
        return state.pile_state()

    def look_again() -> PileState:
        """Look for new and changed pictures in the folder."""
        state.pile.again()
        return state.pile_state()

    def section(
        section: str, start: Annotated[int, Query(ge=0, le=10**9)] = 0, count: Annotated[int, Query(ge=1, le=500)] = 60
    ) -> SectionPage:
        """Some pictures of a section."""
        return state.section(section, start, count)

    def picture(id: PictureId, size: Literal["small", "large"]) -> Response:
        """A picture of the pile as a JPEG: a square of 224 pixels, or whole with at most 1,024 pixels per side."""
        return Response(state.picture(id, large=size == "large"), media_type="image/jpeg", headers=FOREVER)

    app.add_api_route("/api/pile", pile, tags=["pile"])
    app.add_api_route("/api/pile/refresh", look_again, methods=["POST"], tags=["pile"])
    app.add_api_route("/api/pile/sections/{section}", section, tags=["pile"])
    app.add_api_route("/api/pictures/{id}/{size}", picture, tags=["pile"], response_class=Response)


def _add_next_step(app: Any, state: ServerState) -> None:
    def labels() -> NextLabels:
        """The labels of the next step."""
        return state.labels.shown()

    def give(given: GiveLabels) -> NextLabels:
        """Label pictures of the pile for the next step."""
        return state.label(given)

    async def upload(request: Request) -> NextLabels:
        """Correct an answer: uploaded pictures and their class become labels of the next step."""
        form = await request.form(max_files=MOST_PICTURES, max_fields=MOST_PICTURES)
        given, name = _given_files(form), form.get("name")
        if not isinstance(name, str):
            raise RefusedRequest(422, "name: say which class the pictures show")
        contents = [(one.filename, await one.read(MOST_BYTES + 1)) for one in given]
        await form.close()
        return await run_in_threadpool(state.label_uploads, name, contents)  # type: ignore[no-any-return]

    def drop(given: DropLabels) -> NextLabels:
        """Remove labels from the next step."""
        state.labels.drop(given.pictures)
        return state.labels.shown()

    def teach() -> TeachingState:
        """Teach the labels of the next step in the background; one step at a time."""
        return state.teach()

    def events() -> StreamingResponse:
        """Server-sent events `teaching` with the state of the current step, until it ends."""
        return StreamingResponse(state.teaching.events(), media_type="text/event-stream")

    streamed = {200: {"description": "Events.", "content": {"text/event-stream": {}}}}
    app.add_api_route("/api/next", labels, tags=["teach"])
    app.add_api_route("/api/next", give, methods=["PUT"], tags=["teach"])
    labelled = _form(files=PICTURES, name={"type": "string", "maxLength": LONGEST_CLASS_NAME})
    app.add_api_route("/api/next/upload", upload, methods=["POST"], tags=["teach"], openapi_extra=labelled)
    app.add_api_route("/api/next/drop", drop, methods=["POST"], tags=["teach"])
    now = _documented(state.teaching.state, "The step that is being taught, or the result of the last one.")
    app.add_api_route("/api/teach", now, tags=["teach"])
    app.add_api_route("/api/teach", teach, methods=["POST"], tags=["teach"], status_code=202)
    app.add_api_route("/api/teach/stop", _documented(state.teaching.stop, "Stop the step; its labels are kept."),
                      methods=["POST"], tags=["teach"], status_code=202)  # fmt: skip
    app.add_api_route("/api/teach/dismiss", _documented(state.teaching.dismiss, "Clear the result of the last step."),
                      methods=["POST"], tags=["teach"])  # fmt: skip
    app.add_api_route("/api/teach/events", events, tags=["teach"], responses=streamed, response_model=None)


def _documented(method: Callable[[], TeachingState], words: str) -> Callable[[], TeachingState]:
    def endpoint() -> TeachingState:
        return method()

    endpoint.__doc__, endpoint.__name__ = words, method.__name__
    return endpoint


def _add_classes(app: Any, state: ServerState) -> None:
    def agent() -> AgentState:
        """Classes with examples, history, settings and earlier models."""
        return state.agent_state()

    def test() -> TestState:
        """Accuracy and confusion on the test folder."""
        return state.test_state()

    def rename(given: Rename) -> AgentState:
        """Give a class another name."""
        return state.rename(given)

    def merge(given: Merge) -> AgentState:
        """Merge a class into another one."""
        return state.merge(given)

    def remove(given: Remove) -> AgentState:
        """Remove a class."""
        return state.remove(given)

    def back(given: GoBack) -> AgentState:
        """Return to an earlier model; the current model is kept and can be restored in the same way."""
        return state.go_back(given)

    app.add_api_route("/api/agent", agent, tags=["learned"])
    app.add_api_route("/api/test", test, tags=["learned"])
    for function in (rename, merge, remove):
        app.add_api_route(f"/api/classes/{function.__name__}", function, methods=["POST"], tags=["learned"])
    app.add_api_route("/api/back", back, methods=["POST"], tags=["learned"])
