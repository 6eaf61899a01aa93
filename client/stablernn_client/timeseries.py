"""Request bodies of ``/v1/timeseries`` from arrays, and results from the replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import numpy as np
import orjson

from stablernn_client.arrays import Array, Numbers, finite_array, number_array
from stablernn_client.errors import BadRequest, ProtocolError
from stablernn_client.results import Classification, Forecast

Series: TypeAlias = Numbers | Sequence[Numbers]
"""One series or several: a flat list or array is one series of one feature, an array ``(time, features)`` one of
several, an array ``(series, time, features)`` and a list of lists or arrays are several series."""

FutureCovariates: TypeAlias = Mapping[str, Numbers]
"""Values of the steps ahead, by name."""
StaticCovariates: TypeAlias = Mapping[str, float | None]
"""Values that never change within a series, by name; None where one is missing."""
StartTime: TypeAlias = str | datetime

Result = TypeVar("Result")


def encode_classify(model: str, series: Series, dt: Series | None, top_k: int | None) -> bytes:
    """Return the body of ``POST /v1/timeseries/classify``.

    Raises:
        BadRequest: If a series holds anything but finite or missing numbers, or ``dt`` does not match the series.
    """
    options = {} if top_k is None else {"top_k": top_k}
    return _encode_body(model, _encode_inputs(series, dt), options)


def encode_forecast(
    model: str,
    series: Series,
    *,
    horizon: int | None,
    quantiles: Sequence[float] | None,
    frequency: str | None,
    start: StartTime | Sequence[StartTime] | None,
    future: FutureCovariates | Sequence[FutureCovariates] | None,
    static: StaticCovariates | Sequence[StaticCovariates] | None,
    dt: Series | None,
) -> bytes:
    """Return the body of ``POST /v1/timeseries/forecast``.

    Raises:
        BadRequest: If a series holds anything but finite or missing numbers, or another argument does not match them.
    """
    inputs = _encode_inputs(series, dt)
    # A str is itself a sequence, so a single value is recognized by its type.
    starts = [start] if isinstance(start, str | datetime) else start
    futures = [future] if isinstance(future, Mapping) else future
    statics = [static] if isinstance(static, Mapping) else static
    _broadcast(inputs, "start", "start_timestamp", starts, _encode_time)
    _broadcast(inputs, "future", "future", futures, _encode_future)
    _broadcast(inputs, "static", "static", statics, encode_static)
    if frequency is not None:
        for entry in inputs:
            entry["frequency"] = frequency
    options: dict[str, Any] = {} if horizon is None else {"horizon": horizon}
    if quantiles is not None:
        options["quantiles"] = [float(level) for level in quantiles]
    return _encode_body(model, inputs, options)


def decode_classifications(content: bytes) -> list[Classification]:
    """Return the classification of each series from the body of a reply.

    Raises:
        ProtocolError: If the body is not a reply to ``classify``.
    """
    return _decode_outputs(content, lambda output: Classification(output["label"], output["probabilities"]))


def decode_forecasts(content: bytes) -> list[Forecast]:
    """Return the forecast of each series from the body of a reply.

    Raises:
        ProtocolError: If the body is not a reply to ``forecast``.
    """
    return _decode_outputs(content, _decode_forecast)


def encode_static(values: StaticCovariates, label: str) -> dict[str, float]:
    """Return static covariates as floats by name, NaN where one is missing.

    Raises:
        BadRequest: If a value is infinite, or not a number.
    """
    return {name: float(finite_array([number], f"{label}['{name}']")[0]) for name, number in values.items()}


def _decode_forecast(output: Mapping[str, Any]) -> Forecast:
    targets = tuple(output["targets"])

    def per_step(values: Any) -> Array:
        # The server sends a flat array for one target: (horizon,) -> (horizon, 1).
        return np.array(values, np.float32).reshape(-1, len(targets))

    return Forecast(
        mean=per_step(output["mean_forecast"]),
        quantiles={float(level): per_step(values) for level, values in output["quantiles"].items()},
        start=output["start_timestamp"],
        frequency=output["frequency"],
        targets=targets,
    )


def _decode_outputs(content: bytes, decode: Callable[[Mapping[str, Any]], Result]) -> list[Result]:
    try:
        return [decode(output["content"][0]) for output in orjson.loads(content)["outputs"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ProtocolError(f"The reply is not one of /v1/timeseries ({error!r}).") from error


def _encode_inputs(series: Series, dt: Series | None) -> list[dict[str, Any]]:
    arrays = _split_series(series, "series", 2)
    if not arrays:
        raise BadRequest("series is empty; at least one series must be given.")
    inputs: list[dict[str, Any]] = [{"series": array} for array in arrays]
    if dt is not None:
        spacings = _split_series(dt, "dt", 1)
        if len(spacings) != len(inputs):
            raise BadRequest(f"dt must be given for each of the {len(inputs)} series, got {len(spacings)}.")
        for entry, spacing in zip(inputs, spacings, strict=True):
            entry["dt"] = spacing
    return inputs


def _split_series(value: Series, label: str, max_ndim: int) -> list[Array]:
    """Return one array for each series.

    Args:
        value: One series or several, as described at :data:`Series`.
        label: Name of the argument in error messages.
        max_ndim: Number of axes that the array of one series may have; one axis more makes several series.
    """
    entries: Sequence[Any] | Array
    if isinstance(value, list | tuple):
        # The rows may differ in length, and numpy would refuse them as one array.
        entries = value
        is_nested = any(isinstance(entry, list | tuple) or getattr(entry, "ndim", 0) for entry in value)
    else:
        entries = number_array(value, label)
        is_nested = entries.ndim > max_ndim
    labeled = {f"{label}[{index}]": entry for index, entry in enumerate(entries)} if is_nested else {label: entries}
    arrays = []
    for entry_label, entry in labeled.items():
        array = finite_array(entry, entry_label)
        if not 1 <= array.ndim <= max_ndim:
            allowed = "1 axis" if max_ndim == 1 else f"1 to {max_ndim} axes"
            raise BadRequest(f"{entry_label} must be an array of {allowed}, got {array.ndim}.")
        arrays.append(array)
    return arrays


def _broadcast(
    inputs: Sequence[dict[str, Any]],
    label: str,
    field: str,
    values: Sequence[Any] | None,
    encode: Callable[[Any, str], Any],
) -> None:
    """Set ``field`` of every input, from one value for all series or from one value for each."""
    if values is None:
        return
    if len(values) not in (1, len(inputs)):
        raise BadRequest(f"{label} must be one for all or one for each of the {len(inputs)} series, got {len(values)}.")
    for index, entry in enumerate(inputs):
        entry[field] = encode(values[index if len(values) > 1 else 0], label)


def _encode_time(value: StartTime, label: str) -> str:
    return value.isoformat() if isinstance(value, datetime) else value


def _encode_future(values: FutureCovariates, label: str) -> dict[str, Array]:
    return {name: finite_array(row, f"{label}['{name}']") for name, row in values.items()}


def _encode_body(model: str, inputs: Sequence[dict[str, Any]], options: Mapping[str, Any]) -> bytes:
    body = {"model": model, "inputs": inputs, "options": options}
    # orjson writes NaN as null, which is the server's missing value.
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
