"""Sequences of an estimator's argument as float32 arrays: tables, cubes, and lists of sequences of any lengths."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Float32Array, Resolution, check_resolution, finite_float32
from stablernn.data.messages import format_names
from stablernn.errors import DataError

FORMS = "a table (n, time), an array (n, time, features) or a list of arrays (time,) or (time, features) of any lengths"


class SequenceArrays(NamedTuple):
    """Sequences of unequal length.

    Attributes:
        values: One array (time, features) for each sequence, NaN = missing.
        features: Names of the features; None where the argument has none.
    """

    values: list[Float32Array]
    features: tuple[str, ...] | None


def is_table(X: Any) -> bool:
    """Return True if scikit-learn is to read ``X``: a two-dimensional array or frame, or what is none of the forms."""
    if _is_list_of_sequences(X):
        return False
    return not (isinstance(X, np.ndarray) and X.ndim == 3)


def from_table(X: npt.NDArray[Any]) -> SequenceArrays:
    """Return the rows of a table of numbers as sequences of one feature."""
    return _from_cube(X[:, :, None])


def from_sequences(X: Any) -> SequenceArrays:
    """Return the sequences of an array (n, time, features) or of a list.

    Raises:
        DataError: If there is none, one is empty, has another number of features than the first or other names, or a
            value is no number, or none that float32 can hold.
    """
    if not len(X):
        raise DataError(f"X has no sequence. Give {FORMS}.")
    if isinstance(X, np.ndarray) and X.ndim == 3:
        if X.dtype.kind not in "fiub" or 0 in X.shape:
            raise DataError(
                f"X must be numbers of the shape (n, time, features), none of them 0, got {X.dtype} {X.shape}."
            )
        return _from_cube(X)
    values: list[Float32Array] = []
    # Sequences share the scale of a feature, so that what float32 loses is judged over all of them.
    resolutions: list[Resolution] = []
    names = _feature_names(X[0])
    if names is not None and len(set(names)) < len(names):
        raise DataError(f"The sequences of X have a column twice, got {format_names(names)}. Rename one of them.")
    for index, sequence in enumerate(X):
        array = _as_array(sequence, index)
        resolutions = resolutions or [Resolution() for _ in range(array.shape[1])]
        if array.shape[1] != len(resolutions):
            raise DataError(
                f"X[{index}] has {array.shape[1]} features at each step, X[0] has {len(resolutions)}; all sequences "
                "must have the same."
            )
        if _feature_names(sequence) != names:
            raise DataError(
                f"X[{index}] has the columns {format_names(_feature_names(sequence) or ('none',))}, X[0] has "
                f"{format_names(names or ('none',))}; all sequences must have the same, in the same order."
            )
        values.append(finite_float32(array, functools.partial(element_name, start=(index,))))
        for resolution, column in zip(resolutions, array.T, strict=True):
            resolution.add(column)
    for channel, resolution in enumerate(resolutions):
        resolution.check(functools.partial(_feature_of, channel))
    return SequenceArrays(values, names)


def _from_cube(X: npt.NDArray[Any]) -> SequenceArrays:
    values = finite_float32(X, element_name)
    check_resolution(X, _feature_of)
    return SequenceArrays(list(values), None)


def _feature_of(channel: int) -> str:
    return f"Feature {channel} of X"


def element_name(index: tuple[int, ...], start: tuple[int, ...] = ()) -> str:
    """Return the expression for an element of ``X``, within its element ``start`` if there is one."""
    return f"X[{', '.join(map(str, (*start, *index)))}]"


def _is_list_of_sequences(X: Any) -> bool:
    is_object_array = isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 1
    if not (isinstance(X, list | tuple) or is_object_array) or not len(X):
        return False
    first = X[0]
    if _is_frame(first) or isinstance(first, np.ndarray):
        return np.ndim(first) in (1, 2)
    if not isinstance(first, list | tuple):
        return False
    # A list of rows of equal length is a table, as everywhere in scikit-learn.
    return any(isinstance(row, list | tuple) and (len(row) != len(first) or _is_nested(row)) for row in X)


def _is_nested(row: Sequence[Any]) -> bool:
    return bool(len(row)) and isinstance(row[0], list | tuple | np.ndarray)


def _is_frame(value: Any) -> bool:
    """Return True for a series or frame of pandas or polars."""
    return hasattr(value, "to_numpy")


def _feature_names(sequence: Any) -> tuple[str, ...] | None:
    columns = getattr(sequence, "columns", None)
    return None if columns is None else tuple(str(name) for name in columns)


def _as_array(sequence: Any, index: int) -> npt.NDArray[Any]:
    """Return a sequence as numbers (time, features)."""
    try:
        array = np.asarray(sequence.to_numpy() if _is_frame(sequence) else sequence)
        array = array if array.dtype.kind in "fiub" else array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"X[{index}] is no array of numbers ({error}). Give {FORMS}.") from error
    if array.ndim not in (1, 2):
        raise DataError(f"X[{index}] must have the shape (time,) or (time, features), got {array.shape}.")
    array = array[:, None] if array.ndim == 1 else array
    if 0 in array.shape:
        raise DataError(
            f"X[{index}] is empty, got the shape {array.shape}. Leave the sequence out, or give it a step with NaN."
        )
    return array
