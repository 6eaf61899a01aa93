"""Reads request bodies, never more than the limit."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from stablernn_server.codecs.json_values import whole_number
from stablernn_server.errors import ClientGoneError, InputError, TooLargeError, cut

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


async def body_of(scope: Scope, receive: Receive, limit: int, hold: Callable[[int], None]) -> bytes:
    """The whole body, decompressed.

    Args:
        scope: Of the ASGI call.
        receive: Likewise.
        limit: Bytes that it may have, compressed or not; more is noticed before it is held.
        hold: Told the bytes of each piece; may raise.

    Raises:
        TooLargeError: As soon as the length is known to be above the limit.
        InputError: If its compression is not understood.
        ClientGoneError: If the client went away.
    """
    stated, encoding = None, "identity"
    for name, value in scope["headers"]:
        if name == b"content-length":
            stated = whole_number(value.decode("latin-1"))
        elif name == b"content-encoding":
            encoding = value.decode("latin-1").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise InputError(f"The Content-Encoding '{cut(encoding)}' is not understood; send gzip, deflate or neither.")
    if stated is not None and stated > limit:
        raise too_large(limit)
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError("The client closed the connection before the body was complete.")
        chunk = message.get("body", b"")
        if chunk:
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            hold(len(chunk))
            chunks.append(chunk)
        if not message.get("more_body", False):
            break
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    if encoding == "identity":
        return body
    body = await asyncio.to_thread(decompressed, body, encoding, limit)
    hold(len(body))
    return body


def decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    """A compressed body as it was.

    Args:
        body: The bytes.
        encoding: ``gzip``, ``x-gzip`` or ``deflate``; the last with its header (RFC 9110) or without, as some send it.
        limit: Bytes that may come out; nothing beyond them is made.

    Raises:
        TooLargeError: If more would come out.
        InputError: If it is not in this encoding, or ends too early.
    """
    if encoding != "deflate":
        window = 16 + zlib.MAX_WBITS
    else:
        # The header of zlib: 8 for the method, and two bytes that are a multiple of 31.
        has_header = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
        window = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    stream = zlib.decompressobj(window)
    try:
        made = stream.decompress(body, limit + 1)
        if len(made) > limit:
            raise too_large(limit)
    except zlib.error as error:
        raise InputError(f"The body is not {encoding} data ({error}); send it as its Content-Encoding says.") from error
    if body and (not stream.eof or stream.unused_data):
        what = "goes on after" if stream.eof else "ends before"
        raise InputError(f"The body {what} the end of its {encoding} data; send one stream, and all of it.")
    return made


def too_large(limit: int) -> TooLargeError:
    """The error for a body, or its JSON, above ``limit`` bytes."""
    return TooLargeError(f"The body is longer than the limit of {limit} bytes; send fewer or shorter series at a time.")
