"""The web server of the labelling page: a FastAPI application over a `Queue`.

    GET  /            the page
    POST /api/sign-in name and password of an account of the team server for a token of this queue
    GET  /api/next    the annotator's comparison, with progress (a "view")
    POST /api/labels  a judgement; it is on disk before the reply, which is the next view
    POST /api/undo    retract the judgement of an item; replies with the view of that item
    POST /api/lease   keep the item reserved while it is on the screen

An annotator is named by a bearer token, of a personal link or of a sign-in, or, if the queue uses none and
the server is reached from this machine only, by the header `X-Annotator`. A website of another origin can
send neither. Answers are sent in the annotator's order only, so the page knows of no other. TLS is a proxy's
task, as for the team server.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.middleware.trustedhost import TrustedHostMiddleware

from ratchet.components.errors import DataError, RatchetError, RecipeError, ServiceError
from ratchet.components.labels.labels import Label
from ratchet.components.labels.queue import Queue, Taken
from ratchet.tasks.labels.accounts import accepts
from ratchet.tasks.labels.guard import Guard
from ratchet.tasks.labels.tokens import NAME, checked, digests, holder, issue, uses_tokens

PAGE = Path(__file__).with_name("page.html")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Position = Annotated[int, Field(ge=0, le=99)]


class Judgement(BaseModel):
    """Body of `POST /api/labels`. `position` and the values of `aspects` count the answers as shown, from 0;
    -1 in an aspect: no difference.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    item: Annotated[str, Field(max_length=200)]
    verdict: Literal["choice", "tie", "both_bad", "skip"]
    position: Position | None = None
    seconds: Annotated[float, Field(ge=0, le=604_800, allow_inf_nan=False)]
    reason: Annotated[str, Field(max_length=4000)] = ""
    aspects: Annotated[dict[str, Annotated[int, Field(ge=-1, le=99)]], Field(max_length=20)] = {}


class Account(BaseModel):
    """Body of `POST /api/sign-in`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Annotated[str, Field(max_length=200)]
    password: Annotated[str, Field(max_length=1000)]


class Named(BaseModel):
    """Body that names an item."""

    model_config = ConfigDict(extra="forbid", strict=True)
    item: Annotated[str, Field(max_length=200)]


class NotSignedIn(Exception):
    """A request without an annotator; `args[0]` is how one signs in: link, account or pseudonym."""


def annotator(
    request: Request,
    authorization: Annotated[str, Header()] = "",
    x_annotator: Annotated[str, Header()] = "",
) -> str:
    """Pseudonym of a request's annotator; `NotSignedIn` without a valid token (without tokens: pseudonym)."""
    state = request.app.state
    scheme, _, token = authorization.partition(" ")
    needed = state.team or not state.local or uses_tokens(state.folder)
    if needed:
        name = holder(token.strip(), digests(state.folder)) if scheme.lower() == "bearer" else None
    else:
        name = x_annotator if NAME.fullmatch(x_annotator) else None
    if name is None:
        raise NotSignedIn("account" if state.team else "link" if needed else "pseudonym")
    return name


Annotator = Annotated[str, Depends(annotator)]


def make_app(queue: Queue, *, host: str = "127.0.0.1", team: str = "") -> FastAPI:
    """The application. `host`: the address to listen on. If it is a loopback address, only requests to
    loopback addresses are answered, so that a website cannot reach it by a host name of its own (DNS
    rebinding). `team`: address of the MLflow server whose accounts may sign in; empty: none.
    """
    app = FastAPI(title="Ratchet labels", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.folder, app.state.local, app.state.team = queue.folder, is_loopback(host), team
    app.add_middleware(Guard)
    if app.state.local:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOOPBACK, "[::1]", host])

    @app.get("/", response_class=HTMLResponse)
    def page() -> HTMLResponse:
        text, policy = page_and_policy()
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    @app.post("/api/sign-in")
    def sign_in(body: Account) -> dict[str, str]:
        name = checked(body.name)
        if not team or not accepts(team, name, body.password):
            raise HTTPException(403, "name or password is wrong")
        return {"token": issue(queue.folder, [name])[name]}

    @app.get("/api/next")
    def following(name: Annotator) -> dict[str, Any]:
        return view(queue, name)

    @app.post("/api/labels")
    def judge(body: Judgement, name: Annotator) -> dict[str, Any]:
        queue.submit(label_of(queue, body, name))
        return view(queue, name)

    @app.post("/api/undo")
    def undo(body: Named, name: Annotator) -> dict[str, Any]:
        queue.undo(name, body.item)
        return view(queue, name)

    @app.post("/api/lease", status_code=204)
    def renew(body: Named, name: Annotator) -> Response:
        queue.renew(body.item, name)
        return Response(status_code=204)

    @app.exception_handler(RatchetError)
    def refuse(request: Request, error: Exception) -> JSONResponse:
        statuses = {Taken: 409, DataError: 422, RecipeError: 422, ServiceError: 502}
        status = next((code for kind, code in statuses.items() if isinstance(error, kind)), 500)
        return JSONResponse({"detail": str(error)}, status)

    @app.exception_handler(NotSignedIn)
    def unknown(request: Request, error: Exception) -> JSONResponse:
        body = {"detail": "not signed in", "sign_in": error.args[0]}
        return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: Exception) -> JSONResponse:  # without a copy of the input
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return JSONResponse({"detail": f"{'.'.join(map(str, first['loc']))}: {first['msg']}"}, 422)

    @app.exception_handler(OSError)
    def unwritten(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": f"the label could not be written: {error}"}, 507)

    return app


def label_of(queue: Queue, body: Judgement, annotator: str) -> Label:
    """The label of a judgement: positions as shown become indices of the item's answers."""
    order = queue.order(body.item, annotator)
    if unknown := set(body.aspects) - set(queue.settings.aspects):
        raise DataError(f"the queue has no aspect {min(unknown)!r}")
    positions = [*body.aspects.values(), *([] if body.position is None else [body.position])]
    if any(position >= len(order) for position in positions):
        raise DataError(f"expected a position below {len(order)}, got {max(positions)}")
    return Label(
        body.item,
        annotator,
        None if body.position is None else order[body.position],
        body.verdict,
        order,
        round(body.seconds, 2),
        body.reason.strip(),
        {name: -1 if position < 0 else order[position] for name, position in body.aspects.items()},
    )


def view(queue: Queue, annotator: str) -> dict[str, Any]:
    """What the page shows to an annotator."""
    item, settings = queue.next(annotator), queue.settings
    return {
        "annotator": annotator,
        "title": settings.title,
        "guidelines": settings.guidelines,
        "aspects": list(settings.aspects),
        "progress": asdict(queue.progress(annotator)),
        "last": queue.last(annotator),
        "item": item
        and {
            "id": item.id,
            "messages": list(item.prompt),
            "answers": [item.answers[i] for i in queue.order(item.id, annotator)],
        },
    }


@cache
def page_and_policy() -> tuple[str, str]:
    """The page, and a Content-Security-Policy that allows nothing but its own style and script by their
    digests, and requests to its own server.
    """
    text = PAGE.read_text(encoding="utf-8")
    allowed = {}
    for tag in ("style", "script"):
        found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert found
        digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
        allowed[tag] = f"{tag}-src 'sha256-{digest}'"
    rest = "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return text, f"default-src 'none'; {allowed['style']}; {allowed['script']}; {rest}"


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    return host in LOOPBACK or host.startswith("127.")


@contextlib.contextmanager
def serving(app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve an application from a thread of this process, on any free port for port 0; yields its address.
    There is no access log, which would name annotators. `ServiceError` if the address cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ServiceError(
            f"cannot listen on {host} port {port}: {error.strerror}; pass another with --port"
        ) from error
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, limit_concurrency=256, lifespan="off"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([bound],), name="labels", daemon=True)
    thread.start()
    end = time.monotonic() + 30
    while not server.started and thread.is_alive() and time.monotonic() < end:
        time.sleep(0.01)
    try:
        if not server.started:
            raise ServiceError(f"the labelling server on {host} did not start within 30 s")
        yield f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def links(base: str, tokens: Mapping[str, str]) -> dict[str, str]:
    """Pseudonym → link. The token is in the fragment, which browsers send to no server."""
    return {name: f"{base}/#token={token}" for name, token in tokens.items()}
