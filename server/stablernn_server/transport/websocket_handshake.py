"""Handshakes of WebSockets that the WebSocket library would leave without an answer."""

from __future__ import annotations

from collections.abc import Sequence

from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from stablernn_server.errors import HeadTooLargeError, InputError


def check_handshake(method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise unless a handshake can be handed over to the WebSocket library.

    Args:
        method: Method of the request.
        target: Its target.
        headers: Its header fields, with names in lower case.

    Raises:
        InputError: If it is no GET request, or has a body.
        HeadTooLargeError: If a line is too long, or there are too many.
    """
    if method != "GET":
        raise InputError("A WebSocket handshake must be a GET request.")
    if any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers):
        raise InputError("A WebSocket handshake must not have a body; send it without one.")
    request_line = b"GET " + target + b" HTTP/1.1"
    longest = max(map(len, (request_line, *(name + b": " + value for name, value in headers))))
    if longest + 2 > MAX_LINE_LENGTH:
        raise HeadTooLargeError(
            f"A line of the WebSocket handshake is longer than {MAX_LINE_LENGTH} bytes; send a shorter one."
        )
    if len(headers) > MAX_NUM_HEADERS:
        raise HeadTooLargeError(f"The WebSocket handshake has more than {MAX_NUM_HEADERS} fields; send fewer headers.")
