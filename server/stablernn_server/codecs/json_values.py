"""Parsing and writing of JSON; the bare literal ``NaN`` is read as a missing number."""

from __future__ import annotations

import re
from typing import Any

import orjson

from stablernn_server.errors import InputError


def json_body(content: Any) -> bytes:
    """Return ``content``, in which there may be numpy arrays, as JSON; NaN becomes null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def parse_json(content: bytes | memoryview) -> Any:
    """Return the value of a JSON text; the bare literal ``NaN``, which clients write for a missing number, is null.

    Raises:
        InputError: If it is not JSON.
    """
    # Keep only the message: a local variable with the exception would keep this frame, and so the body, alive.
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        failure = f"{error.msg} (line {error.lineno}, column {error.colno})"
    text = bytes(content)
    if b"NaN" in text or b"Infinity" in text:
        try:
            return orjson.loads(_STRING_OR_LITERAL.sub(_replace_literal, text))
        except orjson.JSONDecodeError as error:
            failure = f"{error.msg} (line {error.lineno}, column {error.colno})"
    raise InputError(f"The body is not JSON: {failure}.")


# Strings come first, so that a literal inside one is left alone. The closing quote is optional, or every quote of an
# unterminated string would be tried as the beginning of one.
_STRING_OR_LITERAL = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|NaN|Infinity', re.DOTALL)


def _replace_literal(match: re.Match[bytes]) -> bytes:
    token = match.group()
    if token == b"Infinity":
        raise InputError("The body holds an infinite value; values must be finite, and a missing one is null or NaN.")
    return b"null" if token == b"NaN" else token


def parse_object(content: bytes | memoryview) -> dict[str, Any]:
    """Return the object of a JSON text, parsed as by :func:`parse_json`.

    Raises:
        InputError: If it is not JSON, or not an object.
    """
    value = parse_json(content)
    if not isinstance(value, dict):
        raise InputError(f"The body must be a JSON object, got {json_type(value)}.")
    return value


def json_type(value: Any) -> str:
    """Return the JSON name of the type of ``value``, with its article."""
    if value is None:
        return "null"
    names: dict[type, str] = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "text",
        list: "an array",
        dict: "an object",
    }
    return names[type(value)]


def whole_number(text: str) -> int | None:
    """Return the whole number in a header; None if it is not one, or has more than 18 digits."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None
