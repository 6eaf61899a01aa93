"""The covariates of a request: static values, values that are known ahead, and the calendar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stablernn_registry.errors import did_you_mean
from stablernn_runtime.calendar import as_in_data, data_zone, step_frequency, step_times
from stablernn_runtime.covariates import Covariates
from stablernn_server.batching.types import Array
from stablernn_server.codecs.json_values import to_array
from stablernn_server.errors import InputError, cut
from stablernn_server.schemas.timeseries import SeriesInput


def add_covariates(
    covariates: Covariates,
    x: Array,
    lengths: Array,
    inputs: Sequence[SeriesInput],
    observed_steps: Sequence[int],
    horizon: int,
) -> tuple[Array, dict[str, Array]]:
    """Return the inputs of a model with the covariates of a request.

    Args:
        covariates: The covariates of the model.
        x: The ends of the series, ``(batch, time, len(covariates.observed))``.
        lengths: Steps of each of these, ``(batch,)``.
        inputs: The series of the request.
        observed_steps: Steps of each series before it was cut to its end.
        horizon: Steps ahead that are requested.

    Returns:
        ``x`` with all features, and the other inputs by name.

    Raises:
        InputError: If a name, a number or a time is missing, unknown or of the wrong length.
    """
    manifest = covariates.model.manifest
    other_inputs: dict[str, Array] = {}
    static_rows = [
        read_static(covariates, series.static, f"inputs.{index}.static") for index, series in enumerate(inputs)
    ]
    static = np.array(static_rows, np.float32)
    # (batch, trained horizon, names)
    future = np.stack(
        [
            read_future(covariates, series.future, f"inputs.{index}.future", horizon)
            for index, series in enumerate(inputs)
        ]
    )
    for index, series in enumerate(inputs):
        missing = [name for name in covariates.future_names if name not in (series.future or {})]
        if missing:
            raise InputError(
                f"inputs.{index}.future.{missing[0]} is missing: the model '{covariates.model.name}' was trained with "
                f"its values at the steps ahead. Give {horizon} numbers, null where one is not known."
            )
    if covariates.static_names:
        other_inputs["static"] = static
    if covariates.calendar_features:
        x, waves = _add_calendar(covariates, x, lengths, inputs, observed_steps)
        future = covariates.with_calendar(future, waves)
    if manifest.future:
        other_inputs["future"] = future
    return x, other_inputs


def _add_calendar(
    covariates: Covariates, x: Array, lengths: Array, inputs: Sequence[SeriesInput], observed_steps: Sequence[int]
) -> tuple[Array, Array]:
    """Return ``x`` with the features of the calendar, and these at the steps ahead, ``(batch, horizon, features)``."""
    manifest = covariates.model.manifest
    horizon, features, zone = manifest.horizon or 0, manifest.features, data_zone(manifest)
    full_x = np.zeros((*x.shape[:2], len(features)), np.float32)
    full_x[:, :, [features.index(name) for name in covariates.observed]] = x
    columns = [features.index(name) for name in covariates.calendar_features]
    future = np.zeros((len(x), horizon, len(columns)), np.float32)
    for row, (series, length, total) in enumerate(zip(inputs, lengths.tolist(), observed_steps, strict=True)):
        if series.start_timestamp is None:
            periods = " and the ".join(period.name for period in manifest.calendar or ())
            raise InputError(
                f"inputs.{row}.start_timestamp is missing: the model '{covariates.model.name}' needs the position of "
                f"each step in the {periods}. Give the time of the first value."
            )
        frequency = step_frequency(series.frequency, manifest.frequency) or ""
        # The timestamp is that of the whole series, of which x has the last `length` steps.
        waves = covariates.calendar_waves(
            step_times(as_in_data(series.start_timestamp, zone), total - length, length + horizon, frequency)
        )
        # Indexing by a row and a list of columns puts the columns first: (columns, length).
        full_x[row, :length, columns] = waves[:length].T
        future[row] = waves[length:]
    return full_x, future


def read_static(covariates: Covariates, static: dict[str, Any] | None, label: str) -> list[float]:
    """Return the static values of one series in the order of the model, NaN where one is not known.

    Args:
        covariates: The covariates of the model.
        static: Numbers by name.
        label: Name of the field, for errors.

    Raises:
        InputError: If a name is unknown or a value is no number.
    """
    values_by_name = _check_names(covariates, static, label, covariates.static_names)
    if not values_by_name:
        return [np.nan] * len(covariates.static_names)
    array = to_array([values_by_name.get(name) for name in covariates.static_names], label)
    if array.ndim != 1:
        raise InputError(f"{label} must hold one number, or null, for each name.")
    values: list[float] = covariates.model.check_values(label, array, covariates.static_names).tolist()
    return values


def read_future(covariates: Covariates, future: dict[str, Any] | None, label: str, horizon: int) -> Array:
    """Return the values that a client knows ahead, ``(trained horizon, names)``, NaN where one is not known.

    Args:
        covariates: The covariates of the model.
        future: Arrays of numbers by name.
        label: Name of the field, for errors.
        horizon: Steps ahead that are requested.

    Raises:
        InputError: If a name is unknown, a value is no number, or an array has the wrong length.
    """
    trained_horizon = covariates.model.manifest.horizon or 0
    values = np.full((trained_horizon, len(covariates.future_names)), np.nan, np.float32)
    for name, numbers in _check_names(covariates, future, label, covariates.future_names).items():
        name_label = f"{label}.{name}"
        row = to_array(numbers, name_label)
        if row.ndim != 1 or not horizon <= len(row) <= trained_horizon:
            expected = f"{horizon}" if horizon == trained_horizon else f"{horizon} to {trained_horizon}"
            got = f"{len(row)}" if row.ndim == 1 else f"{row.ndim} levels"
            raise InputError(
                f"{name_label} must be a flat array of {expected} numbers, one for each step ahead, got {got}."
            )
        column = covariates.future_names.index(name)
        # Checked as a series of one feature: (time, 1).
        values[: len(row), column] = covariates.model.check_values(name_label, row[:, None], [name])[:, 0]
    return values


def _check_names(
    covariates: Covariates, values: dict[str, Any] | None, label: str, names: Sequence[str]
) -> dict[str, Any]:
    for name in values or {}:
        if name in names:
            continue
        if name in covariates.calendar_features:
            raise InputError(f"{label}.{name} follows from {covariates.time_field}; leave it out.")
        names_text = f"takes {', '.join(names)}" if names else "takes none"
        raise InputError(
            f"{label}: unknown name '{cut(name)}'.{did_you_mean(name, names)} The model '{covariates.model.name}' "
            f"{names_text}."
        )
    return values or {}
