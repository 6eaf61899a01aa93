"""Parsing and writing of JSON: objects and arrays of numbers; and a helper that runs work on large bodies on a thread.

The bare literal ``NaN`` is read as a missing number.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from stablernn_server.errors import InputError

T = TypeVar("T")

MAX_LEVELS = 8
"""Largest nesting of an array; no tensor of a model has more than four axes."""
OFFLOAD_BYTES = 64 * 2**10
"""Bodies above it are read and written on a thread: on the event loop they would make every other request wait."""


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


def to_array(data: Any, label: str) -> NDArray[Any]:
    """Return a nested JSON array as an array of numbers of the same shape; ``null`` becomes NaN.

    Args:
        data: Value from the JSON parser.
        label: Name of the value in errors, such as ``"data of input 'x'"``.

    Returns:
        float64, or int64 if every number is whole.

    Raises:
        InputError: If it is not an array, not rectangular, nested too deeply, or holds anything but numbers and
            ``null``.
    """
    if not isinstance(data, list):
        raise InputError(f"{label} must be an array of numbers, got {json_type(data)}.")
    # Flattened level by level, so that numpy only sees numbers: it would pad every text to the length of the longest.
    shape, level = [len(data)], data
    while (kinds := list(map(type, level))) and kinds.count(list) == len(level):
        sizes = set(map(len, level))
        if len(sizes) > 1:
            raise _ragged(label)
        if len(shape) == MAX_LEVELS:
            raise InputError(f"{label} is nested more than {MAX_LEVELS} levels deep.")
        shape.append(sizes.pop())
        level = list(chain.from_iterable(level))
    if kinds.count(float) == len(level):
        # A third of the time of `np.array`, which looks at each number to find out what it is.
        packed = bytearray(8 * len(level))
        struct.pack_into(f"{len(level)}d", packed, 0, *level)
        return np.frombuffer(packed).reshape(shape)
    types = set(kinds)
    if list in types:
        raise _ragged(label)
    if not types <= {int, float, type(None)}:
        kind = "text" if str in types else "true or false" if bool in types else "objects"
        raise InputError(f"{label} holds {kind}; only numbers, and null or NaN for missing values, are allowed.")
    return _numbers(level, types, label).reshape(shape)


def _numbers(values: list[Any], types: set[type], label: str) -> NDArray[Any]:
    if types == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass  # beyond int64; float64 holds it, if not to the last digit
    try:
        return np.array(values, np.float64)
    except OverflowError as error:  # a whole number of more than 308 digits
        raise InputError(f"{label} holds a number beyond the range of float64.") from error


def _ragged(label: str) -> InputError:
    return InputError(f"{label} is not rectangular: every row of an array must have the same length.")


async def run_in_thread_if_large(size: int, function: Callable[[], T]) -> T:
    """Return ``function()``, called at once if it handles at most :data:`OFFLOAD_BYTES`, else on a thread.

    Args:
        size: Bytes that it reads or writes.
        function: The work; must be safe to run on another thread.
    """
    return function() if size <= OFFLOAD_BYTES else await asyncio.to_thread(function)
