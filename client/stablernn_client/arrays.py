"""Arrays as callers pass them, checked and converted for sending."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stablernn_client.errors import BadRequest

Array: TypeAlias = NDArray[Any]

Numbers: TypeAlias = ArrayLike | Sequence[float | None] | Sequence[Sequence[float | None]]
"""An array, or anything that numpy converts to one; ``None`` and NaN are missing values."""

_ALLOWED_DTYPES = {"float16", "float32", "float64", "int32", "int64"}


def number_array(value: Any, label: str) -> Array:
    """Return ``value`` as an array of numbers, with ``None`` as NaN.

    Args:
        value: What the caller passed.
        label: Its name in error messages.

    Raises:
        BadRequest: If it holds anything but numbers, or is not rectangular.
    """
    try:
        array = np.asarray(value)
        # A list with None in it; converting to float64 turns None into NaN.
        if array.dtype == object:
            array = np.asarray(value, np.float64)
    except (ValueError, TypeError) as error:
        raise BadRequest(
            f"{label} must be a rectangular array of numbers, with None or NaN where one is missing: {error}."
        ) from error
    # All integers that fit into int64; uint64 does not.
    is_integer = array.dtype.kind == "i" or (array.dtype.kind == "u" and array.dtype.itemsize < 8)
    if not is_integer and array.dtype.name not in _ALLOWED_DTYPES:
        raise BadRequest(f"{label} must hold integers, float32 or float64, got {array.dtype.name}; convert it first.")
    return array


def finite_array(value: Any, label: str) -> Array:
    """Return ``value`` as finite or missing numbers: float32 stays float32, everything else becomes float64.

    Raises:
        BadRequest: If it holds an infinite value, which JSON would turn into a missing one, or anything but numbers.
    """
    array = number_array(value, label)
    array = np.asarray(array, np.float32 if array.dtype == np.float32 else np.float64, order="C")
    if np.isinf(array).any():
        raise BadRequest(f"{label} holds an infinite number; values must be finite, and a missing one is None or NaN.")
    return array
