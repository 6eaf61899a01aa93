"""JSON arrays to numpy: numbers and missing values only, without a Python loop over regular data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_server.body import json_type
from stablernn_server.errors import InputError


def to_array(data: Any, what: str) -> NDArray[Any]:
    """A JSON array, nested as it is, as an array of numbers; ``null`` becomes NaN.

    Args:
        data: What the JSON parser made of it.
        what: What to call it in errors, such as ``"data of input 'x'"``.

    Returns:
        float64, or int64 where every number is whole.

    Raises:
        InputError: If it is no array, is not rectangular, or holds anything but numbers and ``null``.
    """
    if not isinstance(data, list):
        raise InputError(f"{what} must be an array of numbers, got {json_type(data)}.")
    try:
        array = np.array(data)
    except (ValueError, OverflowError) as error:  # rows of different length, or arrays beyond numpy's 64 dimensions
        raise _ragged(what) from error
    if array.dtype.kind in "iuf":
        return array.astype(np.float64) if array.dtype.kind == "u" else array
    if array.dtype.kind == "O":
        return _from_objects(array, what)
    kind = {"U": "text", "b": "true or false"}.get(array.dtype.kind, str(array.dtype))
    raise InputError(f"{what} holds {kind}; only numbers, and null or NaN for missing values, are allowed.")


def _from_objects(array: NDArray[Any], what: str) -> NDArray[Any]:
    types = set(map(type, array.ravel().tolist()))
    if list in types:
        raise _ragged(what)
    if not types <= {int, float, type(None)}:
        kind = "text" if str in types else "true or false" if bool in types else "objects"
        raise InputError(f"{what} holds {kind}; only numbers, and null or NaN for missing values, are allowed.")
    try:
        return array.astype(np.float64)
    except OverflowError as error:  # a whole number of more than 308 digits
        raise InputError(f"{what} holds a number beyond the range of float64.") from error


def _ragged(what: str) -> InputError:
    return InputError(f"{what} is not rectangular: every row of an array must have the same length.")
