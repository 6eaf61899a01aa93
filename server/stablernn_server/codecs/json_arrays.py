"""Conversion of JSON arrays to numpy: numbers and missing values only, without a Python loop over regular data."""

from __future__ import annotations

import struct
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_server.codecs.json_values import json_type
from stablernn_server.errors import InputError

MAX_LEVELS = 8
"""Largest nesting of an array; no tensor of a model has more than four axes."""


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
