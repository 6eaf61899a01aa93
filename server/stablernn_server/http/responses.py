"""What goes back to a client: one shape for errors, JSON in one way, and compression where it is asked for and pays."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple

from starlette.responses import Response

from stablernn_server.codecs.json_values import json_body
from stablernn_server.errors import STATUS_AND_CODE

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = "application/json"
COMPRESS_FROM_BYTES = 4096
"""A shorter body fits few packets anyway."""
_CLOSING = (408, 413, 503)
"""Statuses after which whatever is left of a body would be taken for the next request."""


class RawResponse(NamedTuple):
    """A whole answer.

    Attributes:
        status: HTTP status.
        body: The bytes.
        media: Its content type.
        headers: Further headers.
        code: The code word of an error.
    """

    status: int
    body: bytes
    media: str = JSON
    headers: Mapping[str, str] = {}
    code: str | None = None


def json_response(content: Any, status: int = 200) -> Response:
    """``content`` as an answer of the framework's routes."""
    return Response(json_body(content), status, media_type=JSON)


def error_answer(error: Exception, *, is_read: bool = False) -> RawResponse:
    """The one shape of an error, with the status and the code word that its class has in the table.

    Args:
        error: What was raised.
        is_read: Whether the whole body of the request is here, so that the connection can go on.
    """
    for kind in type(error).__mro__:
        if kind in STATUS_AND_CODE:
            status, code = STATUS_AND_CODE[kind]
            headers = dict(getattr(error, "headers", {}))
            if status in _CLOSING and not is_read:
                headers["Connection"] = "close"
            return RawResponse(status, json_body({"error": str(error), "code": code}), headers=headers, code=code)
    body = json_body({"error": "The server failed to answer; its log says why.", "code": "internal"})
    return RawResponse(500, body, code="internal")


async def refuse_websocket(scope: Scope, send: Send, answer: RawResponse, request_id: str) -> None:
    """Answer the handshake of a WebSocket as any other request; where the HTTP library cannot, only close it."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    headers += [(b"content-type", answer.media.encode()), (b"x-request-id", request_id.encode())]
    await send({"type": "websocket.http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": answer.body})


def compressed(body: bytes, accepted: str) -> tuple[bytes, str | None]:
    """The body as the client asked for it, and the name of the encoding; None where it is left as it is.

    Args:
        body: The bytes.
        accepted: The header ``Accept-Encoding``.
    """
    if len(body) < COMPRESS_FROM_BYTES:
        return body, None
    wanted = {name for name, weight in map(_weighed, accepted.split(",")) if weight > 0}
    # Level 1: numbers as text shrink to a half whatever is spent on them.
    if "gzip" in wanted:
        return gzip.compress(body, 1, mtime=0), "gzip"
    if "deflate" in wanted:
        return zlib.compress(body, 1), "deflate"
    return body, None


def _weighed(entry: str) -> tuple[str, float]:
    """Name and weight of an entry such as ``gzip;q=0.5``; a weight that is no number counts as 0."""
    name, _, parameter = entry.partition(";")
    text = parameter.strip().removeprefix("q=")
    try:
        return name.strip().lower(), float(text or 1)
    except ValueError:
        return name.strip().lower(), 0.0
