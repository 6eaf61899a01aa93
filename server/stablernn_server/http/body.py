"""Reading of request bodies, decompressed, and never more than the limit."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from stablernn_server.codecs.json_values import whole_number
from stablernn_server.errors import ClientGoneError, InputError, TooLargeError, cut
from stablernn_server.http.asgi import Receive, Scope


async def read_body(scope: Scope, receive: Receive, limit: int, hold: Callable[[int], None]) -> bytes:
    """Return the whole body, decompressed.

    Args:
        scope: The scope of the ASGI call.
        receive: Its receive function.
        limit: Bytes that the body may have, compressed or not; more is refused before it is held.
        hold: Called with the size of each chunk; may raise.

    Raises:
        TooLargeError: As soon as the length is known to be above the limit.
        InputError: If its Content-Encoding is not supported, or its data is not in it.
        ClientGoneError: If the client closed the connection.
    """
    content_length, encoding = None, "identity"
    for name, value in scope["headers"]:
        if name == b"content-length":
            content_length = whole_number(value.decode("latin-1"))
        elif name == b"content-encoding":
            encoding = value.decode("latin-1").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise InputError(
            f"The Content-Encoding '{cut(encoding)}' is not supported; send gzip, deflate or an uncompressed body."
        )
    if content_length is not None and content_length > limit:
        raise body_too_large(limit)
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError("The client closed the connection before the body was complete.")
        chunk = message.get("body", b"")
        if chunk:
            size += len(chunk)
            # Content-Length may be missing (a body in chunks), so that the limit counts what has arrived.
            if size > limit:
                raise body_too_large(limit)
            hold(len(chunk))
            chunks.append(chunk)
        if not message.get("more_body", False):
            break
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    if encoding == "identity":
        return body
    body = await asyncio.to_thread(decompress, body, encoding, limit)
    hold(len(body))
    return body


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Return a compressed body as it was before.

    Args:
        body: The compressed bytes.
        encoding: ``gzip``, ``x-gzip`` or ``deflate``; the last with its header (RFC 9110) or without, as some send it.
        limit: Bytes that may come out; nothing beyond them is produced.

    Raises:
        TooLargeError: If more would come out.
        InputError: If it is not in this encoding, ends too early, or goes on after the end.
    """
    if encoding != "deflate":
        # 16 asks zlib for the header and the checksum of gzip.
        window = 16 + zlib.MAX_WBITS
    else:
        # The header of zlib: 8 for the method, and two bytes that are a multiple of 31. A negative window: no header.
        has_header = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
        window = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    stream = zlib.decompressobj(window)
    try:
        # One byte beyond the limit is enough to tell that there is more.
        content = stream.decompress(body, limit + 1)
        if len(content) > limit:
            raise body_too_large(limit)
    except zlib.error as error:
        raise InputError(f"The body is not {encoding} data ({error}); send it as its Content-Encoding says.") from error
    if body and (not stream.eof or stream.unused_data):
        relation = "goes on after" if stream.eof else "ends before"
        raise InputError(f"The body {relation} the end of its {encoding} data; send exactly one complete stream.")
    return content


def body_too_large(limit: int) -> TooLargeError:
    """Return the error for a body, or its JSON, above ``limit`` bytes."""
    return TooLargeError(f"The body is longer than the limit of {limit} bytes; send fewer or shorter series at a time.")
