"""Reads request bodies: never more than the limit, and JSON in which the bare word ``NaN`` is a missing number."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request

from stablernn_server.errors import InputError, TooLargeError, cut


async def body_chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body as it arrives, unless it is longer than ``limit`` bytes, which is noticed before it is held.

    Raises:
        TooLargeError: As soon as the length is known to be above the limit.
        InputError: If the body is compressed, or the client went away.
    """
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise InputError(f"The Content-Encoding '{cut(encoding)}' is not understood; send the body uncompressed.")
    stated = whole_number(request.headers.get("content-length", ""))
    if stated is not None and stated > limit:
        raise too_large(limit)
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise too_large(limit)
            yield chunk
    except ClientDisconnect as error:
        raise InputError("The client closed the connection before the body was complete.") from error


def whole_number(text: str) -> int | None:
    """The number that a header holds; None if it is none, or has more than 18 digits."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


def too_large(limit: int) -> TooLargeError:
    """The error for a body, or its JSON, above ``limit`` bytes."""
    return TooLargeError(f"The body is longer than the limit of {limit} bytes; send fewer or shorter series at a time.")


def parse_json(content: bytes | memoryview) -> Any:
    """The value of a JSON text; the bare word ``NaN``, which clients write for a missing number, reads as null.

    Raises:
        InputError: If it is not JSON.
    """
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        failure = error
    text = bytes(content)
    if b"NaN" in text or b"Infinity" in text:
        try:
            return orjson.loads(_TEXT_OR_WORD.sub(_replace_word, text))
        except orjson.JSONDecodeError as error:
            failure = error
    raise InputError(f"The body is not JSON: {failure.msg} (line {failure.lineno}, column {failure.colno}).")


# Texts come first so that a word inside one is left alone. The closing quote is optional, or every quote of an
# unfinished text would be tried as a beginning.
_TEXT_OR_WORD = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|NaN|Infinity', re.DOTALL)


def _replace_word(match: re.Match[bytes]) -> bytes:
    word = match.group()
    if word == b"Infinity":
        raise InputError("The body holds an infinite value; values must be finite, and a missing one is null or NaN.")
    return b"null" if word == b"NaN" else word


def parse_object(content: bytes | memoryview) -> dict[str, Any]:
    """As :func:`parse_json`, for a text that must be an object.

    Raises:
        InputError: If it is not JSON, or not an object.
    """
    value = parse_json(content)
    if not isinstance(value, dict):
        raise InputError(f"The body must be a JSON object, got {json_type(value)}.")
    return value


def json_type(value: Any) -> str:
    """What a JSON author calls the type of ``value``, with its article."""
    if value is None:
        return "null"
    words: dict[type, str] = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "text",
        list: "an array",
        dict: "an object",
    }
    return words[type(value)]
