"""Checks of the inputs of a graph: names, shapes and values, with errors that a caller understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import TensorSignature
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.errors import InputError, cut

Array = NDArray[Any]
COVARIATES = ("static", "future")
"""Inputs of which a value may be missing (NaN); where one of them is left out, all of its values are."""
_AXIS_NOUNS: dict[int | str, str] = {"batch": "sequence", "time": "time step"}


def check_main_shape(name: str, x: Array, spec: TensorSignature, label: str) -> None:
    """Raise unless the main input has as many axes as its signature, and its free ones are not empty.

    Args:
        name: ``x`` or ``tokens``.
        x: The input.
        spec: Its signature.
        label: The model, as errors name it.

    Raises:
        InputError: Otherwise.
    """
    if x.ndim != len(spec.shape):
        shape = f"({', '.join(map(str, spec.shape))}{',' if len(spec.shape) == 1 else ''})"
        raise InputError(f"{name} must have the shape {shape} for {label}, got {x.shape}.")
    for axis, size in zip(spec.shape, x.shape, strict=True):
        if size == 0 and axis in _AXIS_NOUNS:
            raise InputError(f"{name} is empty: it needs at least one {_AXIS_NOUNS[axis]}, got the shape {x.shape}.")


def flatten_steps(inputs: Mapping[str, Any], rows: int, steps: int) -> dict[str, Array]:
    """Return inputs of the shape ``(rows, steps, ...)`` as ``(rows * steps, ...)``.

    ``static``, of the shape ``(rows, static)``, is repeated for each step. An input of another shape stays as it is,
    for the checks to refuse.
    """
    flat: dict[str, Array] = {}
    for name, array in inputs.items():
        value = np.asarray(array)
        if name == "static":
            if value.ndim == 2 and len(value) == rows:
                value = np.repeat(value, steps, axis=0)
        elif value.shape[:2] == (rows, steps):
            value = value.reshape(rows * steps, *value.shape[2:])
        flat[name] = value
    return flat


def convert_tensor(name: str, value: Array, spec: TensorSignature, shape: tuple[int, ...], main: str) -> Array:
    """Check an input other than the main one, and return it as the graph takes it.

    Args:
        name: Name of the input.
        value: Numbers of any kind.
        spec: Its signature.
        shape: The shape of the signature with the free axes as long as those of ``main``.
        main: ``x`` or ``tokens``.

    Raises:
        InputError: If the shape or a value does not fit.
    """
    if value.shape != shape:
        symbols = f"({', '.join(map(str, spec.shape))})"
        raise InputError(f"{name} must have the shape {symbols} = {shape} to fit {main}, got {value.shape}.")
    value = convert_dtype(name, value, np.dtype(spec.dtype))
    if name in COVARIATES:
        # NaN is a value that is not known.
        if np.isinf(value).any():
            raise InputError(
                f"{name} holds an infinite value; values must be finite within float32, or NaN if not known."
            )
    elif value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"{name} holds values that are not finite; only x may have missing values.")
    return value


def check_feature_values(name: str, values: Array, features: Sequence[str], label: str) -> Array:
    """Check values of the shape ``(..., features)``, and return them as float32, contiguous and aligned.

    Args:
        name: Name of the values in errors.
        values: Numbers in raw units, NaN where one is missing.
        features: Names of the last axis.
        label: The model, as errors name it.

    Raises:
        InputError: If the features are not as many as the names, or a value is infinite or beyond float32.
    """
    if values.shape[-1] != len(features):
        names = f" ({', '.join(features)})" if len(features) <= 8 else ""
        raise InputError(
            f"{name} has {pluralize(values.shape[-1], 'feature')}, {label} expects {len(features)}{names}."
        )
    values = convert_dtype(name, values, np.dtype(np.float32))
    if np.count_nonzero(np.isinf(values)):
        index = tuple(int(i) for i in np.argwhere(np.isinf(values))[0])
        raise InputError(
            f"{name} holds an infinite value at {index}; values must be finite within float32, and a missing one "
            "is NaN (null in JSON)."
        )
    return values


def convert_tokens(tokens: Array, vocabulary_size: int, label: str) -> Array:
    """Check tokens, and return them as int64.

    Args:
        tokens: Whole numbers, of any shape.
        vocabulary_size: Number of different tokens.
        label: The model, as errors name it.

    Raises:
        InputError: If one is not from 0 to ``vocabulary_size - 1``.
    """
    tokens = convert_dtype("tokens", tokens, np.dtype(np.int64))
    is_unknown = (tokens < 0) | (tokens >= vocabulary_size)
    if is_unknown.any():
        index = tuple(int(i) for i in np.argwhere(is_unknown)[0])
        raise InputError(
            f"tokens must be from 0 to {vocabulary_size - 1}, their places in the vocabulary of {label}, got "
            f"{int(tokens[index])} at {index}."
        )
    return tokens


def convert_dtype(name: str, value: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``value`` in the dtype of the graph, contiguous and aligned, as the C code of the runtime needs it.

    Raises:
        InputError: If its kind of number does not convert.
    """
    if value.dtype.kind not in ("iu" if dtype.kind == "i" else "iuf"):
        kind = "whole numbers" if dtype.kind == "i" else "numbers"
        raise InputError(f"{name} must hold {kind} ({dtype}), got {value.dtype}.")
    # Most inputs are as they should be, and are not copied.
    if value.dtype == dtype and value.flags.c_contiguous and value.flags.aligned:
        return value
    return np.require(cast(value, dtype), None, ["C", "A"])


@np.errstate(over="ignore")
def cast(value: Array, dtype: np.dtype[Any]) -> Array:
    """Return ``value`` in another dtype; a float64 beyond float32 becomes infinite, which the caller has to report."""
    return value.astype(dtype, copy=False)


def check_lengths(lengths: Array, time: int, main: str) -> None:
    """Raise unless each length lies within the ``time`` steps of ``main``.

    Raises:
        InputError: Otherwise.
    """
    if lengths.min() < 1 or lengths.max() > time:
        worst = int(lengths.max() if lengths.max() > time else lengths.min())
        raise InputError(f"lengths must lie between 1 and the {pluralize(time, 'time step')} of {main}, got {worst}.")


def check_dt(dt: Array, longest: float | None) -> None:
    """Raise unless each time between two steps is from 0 to ``longest``.

    Args:
        dt: Times in regular steps, finite.
        longest: The longest that the model takes; None for any.

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
    """Set ``dt`` of the first step to 1, in place, in series that begin with it: no step lies before it.

    A value that no step may have stays, for the check of all values to refuse.

    Args:
        dt: Shape ``(series, steps, ...)``.
        begins: Series that do not go on from an earlier state.
        longest: The longest step that the model takes.
    """
    first = dt.reshape(len(dt), -1)[begins, 0]
    limit = np.inf if longest is None else longest * (1 + 1e-6)
    # NaN compares as false.
    dt.reshape(len(dt), -1)[begins, 0] = np.where((first >= 0) & (first <= limit), 1, first)


def check_output_names(names: Sequence[str] | None, specs: Mapping[str, TensorSignature], label: str) -> list[str]:
    """Return the names of the outputs that are wanted; None stands for all.

    Args:
        names: The names.
        specs: The outputs of the graph, by name.
        label: The model, as errors name it.

    Raises:
        InputError: If the graph has no such output.
    """
    names = list(specs) if names is None else list(names)
    for name in names:
        if name not in specs:
            raise unknown_tensor("output", name, specs, label)
    return names


def unknown_tensor(side: str, name: str, specs: Mapping[str, TensorSignature], label: str) -> InputError:
    """Return the error for a name that no input or output of a graph has.

    Args:
        side: ``"input"`` or ``"output"``.
        name: The unknown name.
        specs: The tensors of that side, by name.
        label: The model, as errors name it.
    """
    verb = "takes" if side == "input" else "gives"
    return InputError(
        f"Unknown {side} '{cut(name)}'.{did_you_mean(name, specs)} The {label} {verb} {format_tensors(specs)}."
    )


def format_tensors(specs: Mapping[str, TensorSignature]) -> str:
    """Return the names of tensors as a list for errors, with a mark on those that may be left out."""
    return ", ".join(f"{spec.name} (optional)" if spec.optional else spec.name for spec in specs.values())


def pluralize(number: int, noun: str) -> str:
    """Return ``1 step``, ``2 steps``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
