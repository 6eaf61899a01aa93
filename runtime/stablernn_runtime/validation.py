"""Whether an input is what a graph takes, and the sentence where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import TensorSignature
from stablernn_runtime.errors import InputError

Array = NDArray[Any]
KNOWN = ("static", "future")
"""Inputs beside the series of which a value may be missing; all of them are where they are left out."""


def checked(name: str, value: Array, spec: TensorSignature, shape: tuple[int, ...], main: str) -> Array:
    """``value`` as the graph takes the input ``name``.

    Args:
        name: Of the input.
        value: Numbers of any kind.
        spec: What the manifest says of the input.
        shape: The same with the free axes as long as those of ``main``.
        main: ``x`` or ``tokens``.

    Raises:
        InputError: If the shape or a value does not fit.
    """
    if value.shape != shape:
        words = f"({', '.join(map(str, spec.shape))})"
        raise InputError(f"{name} must have the shape {words} = {shape} to fit {main}, got {value.shape}.")
    value = converted(name, value, np.dtype(spec.dtype))
    if name in KNOWN:
        if np.isinf(value).any():
            raise InputError(
                f"{name} holds an infinite value; values must be finite within float32, or NaN if not known."
            )
    elif value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"{name} holds values that are not finite; only x may have missing values.")
    return value


def converted(name: str, value: Array, dtype: np.dtype[Any]) -> Array:
    """``value`` in the dtype of the graph, contiguous and aligned, as the runtime's C code needs it.

    Raises:
        InputError: If its kind of number does not convert.
    """
    if value.dtype.kind not in ("iu" if dtype.kind == "i" else "iuf"):
        kind = "whole numbers" if dtype.kind == "i" else "numbers"
        raise InputError(f"{name} must hold {kind} ({dtype}), got {value.dtype}.")
    if value.dtype == dtype and value.flags.c_contiguous and value.flags.aligned:
        return value
    return np.require(cast(value, dtype), None, ["C", "A"])


@np.errstate(over="ignore")
def cast(value: Array, dtype: np.dtype[Any]) -> Array:
    """``value`` in another dtype; a float64 beyond float32 becomes infinite, which is for the caller to report."""
    return value.astype(dtype, copy=False)


def check_lengths(lengths: Array, time: int, main: str) -> None:
    """Raise unless each length lies within the ``time`` steps of ``main``.

    Raises:
        InputError: Otherwise.
    """
    if lengths.min() < 1 or lengths.max() > time:
        worst = int(lengths.max() if lengths.max() > time else lengths.min())
        raise InputError(f"lengths must lie between 1 and the {count(time, 'time step')} of {main}, got {worst}.")


def check_dt(dt: Array, longest: float | None) -> None:
    """Raise unless each time between two steps is from 0 to ``longest``.

    Raises:
        InputError: Otherwise.
    """
    if dt.min() < 0:
        raise InputError(f"dt must be 0 or more, the time since the step before, got {dt.min():g}.")
    # In float32 a dt may lie just above the number that it was written as.
    if longest is not None and dt.max() > longest * (1 + 1e-6):
        raise InputError(
            f"dt must be at most {longest:g}, the longest step that the model takes, got {dt.max():g}; "
            "divide the gap into steps with missing values."
        )


def ignore_first_dt(dt: Array, begins: Sequence[int] | slice, longest: float | None) -> None:
    """Set ``dt`` of the first step to 1 in series that begin with it, in place: no step lies before it.

    A value that no step may have stays, for the check of all values to refuse.

    Args:
        dt: Shape ``(series, steps, ...)``.
        begins: Series that do not go on from an earlier state.
        longest: The longest step that the model takes.
    """
    first = dt.reshape(len(dt), -1)[begins, 0]
    most = np.inf if longest is None else longest * (1 + 1e-6)
    # NaN compares as false.
    dt.reshape(len(dt), -1)[begins, 0] = np.where((first >= 0) & (first <= most), 1, first)


def count(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
