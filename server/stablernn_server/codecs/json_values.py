"""Parsing and writing of JSON: objects and arrays of numbers; and a helper that runs work on large bodies on a thread.

The bare literal ``NaN`` is read as a missing number. As Python objects, arrays take up to 27 times the bytes of their
JSON, and the parser holds the GIL until the last one is made. So numbers in large bodies are read in pieces into numpy
arrays, and what stands around them is limited. How many numbers there are needs no limit of its own, which could differ
by model: 16 MB of JSON, the default of ``max_json_bytes``, hold at most 8.4 million numbers, a quarter of what the
default of ``max_elements`` lets a padded batch hold. They make an array of 64 MB, which is counted before (see
:meth:`.AppContext.decode`), and .9 s of a thread.
"""

from __future__ import annotations

import asyncio
import os
import re
import struct
from collections.abc import Callable
from itertools import chain
from math import prod
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from stablernn_server.errors import InputError, TooLargeError

T = TypeVar("T")

MAX_LEVELS = 8
"""Largest nesting of an array; no tensor of a model has more than four axes."""
OFFLOAD_BYTES = 64 * 2**10
"""Bodies above it are read and written on a thread: on the event loop they would make every other request wait."""
DECODED_FACTOR = 4
"""Largest ratio of a decoded array to its JSON: 8 bytes for a digit and a comma."""
MAX_OBJECT_BYTES = 32 * 2**20
"""Largest estimate of the Python objects that a large body is parsed to beside its arrays of numbers: room for 4,096
series of four weeks with their names and covariates, or for the timestamps of 200,000 samples."""
ARRAY_BYTES = 256
"""Shortest text of an array of numbers in a large body that is not read as a list."""
_PIECE_BYTES = 32 * 2**10
"""Numbers that are parsed at a time, which takes less than a millisecond."""
_CONTAINER_BYTES, _TEXT_BYTES, _ELEMENT_BYTES, _ARRAY_COST = 128, 64, 32, 1024


def json_body(content: Any) -> bytes:
    """Return ``content``, in which there may be numpy arrays, as JSON; NaN becomes null."""
    return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


def parse_json(content: bytes | memoryview) -> Any:
    """Return the value of a JSON text; the bare literal ``NaN``, which clients write for a missing number, is null.

    In a text above :data:`OFFLOAD_BYTES`, arrays of numbers from :data:`ARRAY_BYTES` on are numpy arrays, as of
    :func:`to_array`.

    Raises:
        InputError: If it is not JSON, or has such an array that is empty, not rectangular or nested too deeply.
        TooLargeError: If it has more beside such arrays than :data:`MAX_OBJECT_BYTES`.
    """
    return _loads(content) if len(content) <= OFFLOAD_BYTES else _LargeText(bytes(content)).parse()


def _loads(content: bytes | memoryview) -> Any:
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


_TEXT_OR_ARRAY = re.compile(rb'["\[]')
# In pieces: a match holds the GIL.
_TEXT_PIECE = re.compile(rb'(?:[^"\\]{1,64}+|\\.){1,4096}+', re.DOTALL)
_NUMBERS = re.compile(rb"[][0-9.,+\-eENaInfityul \t\r\n]*+")
_VALUE_BYTES = bytes(set(range(256)) - set(b"[],"))
_TO_STRUCTURE = bytes.maketrans(_VALUE_BYTES, b"0" * len(_VALUE_BYTES))
_TO_FLAT = bytes.maketrans(b"[]", b"  ")
_WHITESPACE = b" \t\r\n"


class _LargeText:
    """A JSON text in which the arrays of numbers are read one by one; what remains is parsed with stand-ins for them.

    Args:
        content: The text.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        # No client can guess it.
        self._key = os.urandom(16).hex()
        self._arrays: list[NDArray[Any]] = []
        self._parts: list[bytes] = []
        self._copied = 0
        self._cost = 0

    def parse(self) -> Any:
        """Return the value of the text, as :func:`parse_json` does."""
        content, position = self._content, 0
        while (match := _TEXT_OR_ARRAY.search(content, position)) is not None:
            start = match.start()
            if content[start] == ord('"'):
                self._add_between(start)
                position = self._copied = self._find_end_of_text(start)
                self._add_cost(_TEXT_BYTES + position - start)
                self._parts.append(content[start:position])
                continue
            position, array = self._read_array(start)
            if array is None:
                self._add_between(position)
            else:
                self._add_between(start)
                self._add_cost(_ARRAY_COST)
                self._parts.append(b'"%s%d"' % (self._key.encode(), len(self._arrays)))
                self._arrays.append(array)
                self._copied = position
        self._add_between(len(content))
        # In an array, so that there is one place for each stand-in.
        root = [_loads(b"".join(self._parts))]
        self._insert_arrays(root)
        return root[0]

    def _add_cost(self, size: int) -> None:
        self._cost += size
        if self._cost > MAX_OBJECT_BYTES:
            raise TooLargeError(
                "The body holds more texts, objects and short arrays than a request needs, beside its arrays of "
                "numbers; send fewer series or samples at a time."
            )

    def _add_between(self, end: int) -> None:
        """Add what stands before ``end`` and is neither text nor an array that was read."""
        between = self._content[self._copied : end]
        containers = between.count(b"[") + between.count(b"{")
        self._add_cost(_CONTAINER_BYTES * containers + _ELEMENT_BYTES * between.count(b","))
        self._parts.append(_STRING_OR_LITERAL.sub(_replace_literal, between))
        self._copied = end

    def _find_end_of_text(self, start: int) -> int:
        end = start + 1
        while (match := _TEXT_PIECE.match(self._content, end)) is not None:
            end = match.end()
        # Past the closing quote; the parser refuses a text without one.
        return end + 1

    def _read_array(self, start: int) -> tuple[int, NDArray[Any] | None]:
        """Return where what begins at ``start`` ends, and the array if it is one of numbers and long.

        Raises:
            InputError: If it is one, and empty, not rectangular or nested too deeply.
        """
        content = self._content
        if _end_of_numbers(content, start, start + ARRAY_BYTES) < start + ARRAY_BYTES:
            return start + 1, None
        values, is_whole, structure = bytearray(), True, []
        position, depth, size = start, 0, ARRAY_BYTES
        while True:
            size = min(2 * size, _PIECE_BYTES)
            end = limit = _end_of_numbers(content, position, position + size)
            if limit == position + size:
                end = content.rfind(b",", position, limit)
                if end < 0 and size < _PIECE_BYTES:
                    continue
                if end < 0:
                    raise _malformed(start)
            marks = np.frombuffer(content, np.uint8, end - position, position)
            changes = (marks == ord("[")).view(np.int8) - (marks == ord("]")).view(np.int8)
            depths = depth + np.cumsum(changes, dtype=np.int64)
            closings = np.flatnonzero(depths == 0)
            if closings.size:
                end = position + int(closings[0]) + 1
            elif end == limit:
                # Something else stands in the array.
                return end, None
            piece = content[position:end]
            structure.append(_structure(piece, start))
            numbers = _flat_numbers(piece, start)
            if is_whole and numbers.dtype.kind == "f":
                is_whole, values = False, bytearray(np.frombuffer(values, np.int64).astype(np.float64))
            values += numbers.astype(np.int64 if is_whole else np.float64, copy=False).data
            if closings.size:
                break
            depth, position = int(depths[-1]), end + 1
        if end - start < ARRAY_BYTES:
            return end, None
        array = np.frombuffer(values, np.int64 if is_whole else np.float64)
        shape = _shape(b",".join(structure))
        if array.size != prod(shape):
            raise _malformed(start)
        return end, array.reshape(shape)

    def _insert_arrays(self, root: list[Any]) -> None:
        """Replace the stand-ins in ``root`` and all that it holds."""
        pending: list[Any] = [root]
        while pending:
            container = pending.pop()
            items = container.items() if isinstance(container, dict) else enumerate(container)
            for place, value in list(items):
                if isinstance(value, dict | list):
                    pending.append(value)
                elif isinstance(value, str) and value.startswith(self._key):
                    container[place] = self._arrays[int(value[len(self._key) :])]


def _end_of_numbers(content: bytes, start: int, limit: int) -> int:
    """Return where the first character stands that is in no array of numbers, at most ``limit``."""
    match = _NUMBERS.match(content, start, limit)
    assert match is not None
    return match.end()


def _structure(piece: bytes, start: int) -> bytes:
    """Return the brackets and commas of a piece of an array.

    Raises:
        InputError: If a value stands before an opening or after a closing bracket.
    """
    text = piece.translate(_TO_STRUCTURE, _WHITESPACE)
    if b"0[" in text or b"]0" in text:
        raise _malformed(start)
    return text.translate(None, b"0")


def _flat_numbers(piece: bytes, start: int) -> NDArray[Any]:
    """Return the numbers of a piece of an array, whatever its brackets.

    Raises:
        InputError: If there is none between two commas.
    """
    text = b"[%b]" % piece.translate(_TO_FLAT)
    try:
        numbers = orjson.loads(text)
    except orjson.JSONDecodeError:
        numbers = None
    if numbers is None:
        try:
            numbers = orjson.loads(_STRING_OR_LITERAL.sub(_replace_literal, text))
        except orjson.JSONDecodeError as error:
            raise _malformed(start) from error
    return to_array(numbers, "An array of the body")


def _shape(structure: bytes) -> list[int]:
    """Return the shape of an array by its brackets and commas.

    Raises:
        InputError: If it is not rectangular, or nested too deeply.
    """
    levels = len(structure) - len(structure.lstrip(b"["))
    if levels > MAX_LEVELS:
        raise InputError(f"An array of the body is nested more than {MAX_LEVELS} levels deep.")
    shape: list[int] = []
    expected, element_size = b"", 0
    for level in range(1, levels + 1):
        # The first array of this level, from its own bracket on.
        size = structure.find(b"]" * level) + 2 * level - levels
        count = (size - 1) // (element_size + 1)
        expected = b"[" + (expected + b",") * (count - 1) + expected + b"]"
        if len(expected) > len(structure):
            break
        shape.insert(0, count)
        element_size = len(expected)
    if expected != structure:
        raise _ragged("An array of the body")
    return shape


def _malformed(start: int) -> InputError:
    return InputError(
        f"The body is not JSON: the array that begins at byte {start} has an empty place, or something other than a "
        "number, null or NaN in it."
    )


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
        np.ndarray: "an array",
        dict: "an object",
    }
    return names[type(value)]


def whole_number(text: str) -> int | None:
    """Return the whole number in a header; None if it is not one, or has more than 18 digits."""
    return int(text) if len(text) <= 18 and text.isascii() and text.isdigit() else None


def to_array(data: Any, label: str) -> NDArray[Any]:
    """Return a nested JSON array as an array of numbers of the same shape; ``null`` becomes NaN.

    Args:
        data: Value from :func:`parse_json`.
        label: Name of the value in errors, such as ``"data of input 'x'"``.

    Returns:
        float64, or int64 if every number is whole.

    Raises:
        InputError: If it is not an array, not rectangular, nested too deeply, or holds anything but numbers and
            ``null``.
    """
    if isinstance(data, np.ndarray):
        return data
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
