"""JSON texts and the values in them; the bare word ``NaN`` is read as a missing number."""

from __future__ import annotations

import re
from typing import Any

import orjson

from stablernn_server.errors import InputError


def json_body(content: Any) -> bytes:
    """``content``, numpy arrays included, as JSON; NaN becomes null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def parse_json(content: bytes | memoryview) -> Any:
    """The value of a JSON text; the bare word ``NaN``, which clients write for a missing number, reads as null.

    Raises:
        InputError: If it is not JSON.
    """
    # Of the errors only the words: an error that is kept keeps this frame, and that the body, in a circle.
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        failure = f"{error.msg} (line {error.lineno}, column {error.colno})"
    text = bytes(content)
    if b"NaN" in text or b"Infinity" in text:
        try:
            return orjson.loads(_TEXT_OR_WORD.sub(_replace_word, text))
        except orjson.JSONDecodeError as error:
            failure = f"{error.msg} (line {error.lineno}, column {error.colno})"
    raise InputError(f"The body is not JSON: {failure}.")


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


def whole_number(text: str) -> int | None:
    """The number that a header holds; None if it is none, or has more than 18 digits."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None
