"""HTTP responses: one shape for errors, one way to write JSON, and compression where it is asked for and pays off."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from stablernn_server.codecs.json_values import json_body
from stablernn_server.errors import STATUS_AND_CODE
from stablernn_server.http.request import Scope, Send

JSON = "application/json"
COMPRESS_FROM_BYTES = 4096
"""A shorter body fits few packets anyway."""
_CLOSING = (408, 413, 503)
"""Statuses after which the rest of a body would be taken for the next request."""


class RawResponse(NamedTuple):
    """A whole HTTP response.

    Attributes:
        status: HTTP status.
        body: The bytes.
        media_type: Its content type; empty for a response without a body.
        headers: Further headers.
        code: The code of an error; None for no error.
    """

    status: int
    body: bytes
    media_type: str = JSON
    headers: Mapping[str, str] = {}
    code: str | None = None


def json_response(content: Any, status: int = 200) -> Response:
    """Return ``content`` as a response of the framework's routes."""
    return Response(json_body(content), status, media_type=JSON)


def error_response(error: Exception, *, is_read: bool = False) -> RawResponse:
    """Return the response for an error, with the status and the code that its class has in the table.

    Args:
        error: The exception.
        is_read: Whether the whole body of the request has been read, so that the connection can go on.
    """
    # The order of bases: an error that has no row of its own takes that of its nearest base.
    for error_class in type(error).__mro__:
        if error_class in STATUS_AND_CODE:
            status, code = STATUS_AND_CODE[error_class]
            headers = dict(getattr(error, "headers", {}))
            if status in _CLOSING and not is_read:
                headers["Connection"] = "close"
            return RawResponse(status, json_body({"error": str(error), "code": code}), headers=headers, code=code)
    # A bug: its text goes to the log alone.
    body = json_body({"error": "Internal server error; the server's log has the details.", "code": "internal"})
    return RawResponse(500, body, code="internal")


async def refuse_websocket(scope: Scope, send: Send, response: RawResponse, request_id: str) -> None:
    """Answer the handshake of a WebSocket with an HTTP response; where the HTTP library cannot, only close it."""
    if "websocket.http.response" not in scope.get("extensions", {}):
        # 1008: policy violation.
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    headers = [(name.lower().encode(), value.encode()) for name, value in response.headers.items()]
    headers += [(b"content-type", response.media_type.encode()), (b"x-request-id", request_id.encode())]
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body})


def compress_if_accepted(body: bytes, accept_encoding: str) -> tuple[bytes, str | None]:
    """Return the body in an encoding that the client accepts, and its name; None if the body is left as it is.

    Args:
        body: The bytes.
        accept_encoding: The header ``Accept-Encoding``.
    """
    if len(body) < COMPRESS_FROM_BYTES:
        return body, None
    encodings = {name for name, quality in map(_parse_quality, accept_encoding.split(",")) if quality > 0}
    # Level 1: numbers as text shrink to a half whatever is spent on them.
    if "gzip" in encodings:
        # Without the time, equal bodies give equal bytes.
        return gzip.compress(body, 1, mtime=0), "gzip"
    if "deflate" in encodings:
        return zlib.compress(body, 1), "deflate"
    return body, None


def _parse_quality(entry: str) -> tuple[str, float]:
    """Return name and quality of an entry such as ``gzip;q=0.5``; a quality that is not a number counts as 0."""
    name, _, parameter = entry.partition(";")
    text = parameter.strip().removeprefix("q=")
    try:
        return name.strip().lower(), float(text or 1)
    except ValueError:
        return name.strip().lower(), 0.0
