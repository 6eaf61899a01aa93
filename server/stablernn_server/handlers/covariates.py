"""Reads the covariates of a request: static values, what is known of the steps ahead, and the calendar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry.errors import did_you_mean
from stablernn_runtime.calendar import step_frequency, step_times
from stablernn_runtime.covariates import Covariates
from stablernn_server.codecs.json_arrays import to_array
from stablernn_server.errors import InputError, cut
from stablernn_server.schemas.timeseries import SeriesInput

Array = NDArray[Any]


def complete(
    covariates: Covariates,
    x: Array,
    lengths: Array,
    inputs: Sequence[SeriesInput],
    observed: Sequence[int],
    horizon: int,
) -> tuple[Array, dict[str, Array]]:
    """What the model takes, from what a client sent.

    Args:
        x: The ends of the series, ``(batch, time, len(covariates.observed))``.
        lengths: Steps of each of these, ``(batch,)``.
        inputs: The inputs that they came from.
        observed: Steps of each series as it came.
        horizon: Steps ahead that were asked for.

    Returns:
        ``x`` with all features, and the further inputs by name.

    Raises:
        InputError: If a name, a number or a time is missing, strange or of the wrong length.
    """
    manifest = covariates.model.manifest
    further: dict[str, Array] = {}
    rows = [read_static(covariates, item.static, f"inputs.{place}.static") for place, item in enumerate(inputs)]
    static = np.array(rows, np.float32)
    ahead = [
        read_future(covariates, item.future, f"inputs.{place}.future", horizon) for place, item in enumerate(inputs)
    ]
    future = np.stack(ahead)
    if covariates.static_names:
        further["static"] = static
    if covariates.calendar_features:
        x, waves = _with_calendar(covariates, x, lengths, inputs, observed)
        future = covariates.with_calendar(future, waves)
    if manifest.future:
        further["future"] = future
    return x, further


def _with_calendar(
    covariates: Covariates, x: Array, lengths: Array, inputs: Sequence[SeriesInput], observed: Sequence[int]
) -> tuple[Array, Array]:
    """``x`` with the features of the calendar, and these at the steps ahead, in the order of the calendar."""
    manifest = covariates.model.manifest
    steps, features = manifest.horizon or 0, manifest.features
    whole = np.zeros((*x.shape[:2], len(features)), np.float32)
    whole[:, :, [features.index(name) for name in covariates.observed]] = x
    places = [features.index(name) for name in covariates.calendar_features]
    ahead = np.zeros((len(x), steps, len(places)), np.float32)
    for place, (item, length, total) in enumerate(zip(inputs, lengths.tolist(), observed, strict=True)):
        if item.start_timestamp is None:
            periods = " and the ".join(period.name for period in manifest.calendar or ())
            raise InputError(
                f"inputs.{place}.start_timestamp is missing: the model '{covariates.model.name}' is told where in the "
                f"{periods} each step lies. Give the time of the first value."
            )
        frequency = step_frequency(item.frequency, manifest.frequency) or ""
        waves = covariates.calendar_waves(step_times(item.start_timestamp, total - length, length + steps, frequency))
        whole[place, :length, places] = waves[:length].T
        ahead[place] = waves[length:]
    return whole, ahead


def read_static(covariates: Covariates, static: dict[str, Any] | None, what: str) -> list[float]:
    """The static values of one series in the order of the model, NaN where one is not known.

    Raises:
        InputError: If a name or a number is strange.
    """
    given = _checked_names(covariates, static, what, covariates.static_names)
    if not given:
        return [np.nan] * len(covariates.static_names)
    values = to_array([given.get(name) for name in covariates.static_names], what)
    if values.ndim != 1:
        raise InputError(f"{what} must hold one number, or null, for each name.")
    found: list[float] = covariates.model.check_values(what, values, covariates.static_names).tolist()
    return found


def read_future(covariates: Covariates, future: dict[str, Any] | None, what: str, horizon: int) -> Array:
    """What a client says of the steps ahead, ``(trained horizon, names)``, NaN where it is not known.

    Args:
        future: Numbers by name.
        what: What to call it in errors.
        horizon: Steps ahead that are asked for.

    Raises:
        InputError: If a name or a number is strange.
    """
    steps = covariates.model.manifest.horizon or 0
    found = np.full((steps, len(covariates.future_names)), np.nan, np.float32)
    for name, values in _checked_names(covariates, future, what, covariates.future_names).items():
        where = f"{what}.{name}"
        row = to_array(values, where)
        if row.ndim != 1 or not horizon <= len(row) <= steps:
            wanted = f"{horizon}" if horizon == steps else f"{horizon} to {steps}"
            got = f"{len(row)}" if row.ndim == 1 else f"{row.ndim} levels"
            raise InputError(f"{where} must be a flat array of {wanted} numbers, one for each step ahead, got {got}.")
        found[: len(row), covariates.future_names.index(name)] = covariates.model.check_values(
            where, row[:, None], [name]
        )[:, 0]
    return found


def _checked_names(
    covariates: Covariates, given: dict[str, Any] | None, what: str, names: Sequence[str]
) -> dict[str, Any]:
    for name in given or {}:
        if name in names:
            continue
        if name in covariates.calendar_features:
            raise InputError(f"{what}.{name} follows from {covariates.time_field}; leave it out.")
        takes = f"takes {', '.join(names)}" if names else "takes none"
        raise InputError(
            f"{what}: unknown name '{cut(name)}'.{did_you_mean(name, names)} The model '{covariates.model.name}' "
            f"{takes}."
        )
    return given or {}
