"""Limits and headers of every request to the labelling page."""

from __future__ import annotations

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 32_768
"""Largest body of a request."""


class Guard:
    """ASGI middleware: refuses bodies above `MOST_BYTES`, declared or not, and adds headers for safety."""

    HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"),
               (b"cache-control", b"no-store"))  # fmt: skip

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body, more = b"", True
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        too_long = not declared.isdigit() or int(declared) > MOST_BYTES
        while more and not too_long:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body, more = body + message.get("body", b""), message.get("more_body", False)
            too_long = len(body) > MOST_BYTES
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self.HEADERS]}
            await send(message)

        if too_long:
            detail = {"detail": f"expected at most {MOST_BYTES} bytes"}
            return await JSONResponse(detail, 413, {"Connection": "close"})(scope, receive, guarded)
        await self.app(scope, replay, guarded)
