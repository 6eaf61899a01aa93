"""Bodies of ``/v1/timeseries`` from arrays, and results from their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import numpy as np
import orjson

from stablernn_client.errors import BadRequest, ProtocolError
from stablernn_client.results import Array, Classification, Forecast
from stablernn_client.tensors import Numbers, numbers

Series: TypeAlias = Numbers | Sequence[Numbers]
"""One series or several: a flat list or array is one series of one feature, an array ``(time, features)`` one of
several, an array ``(series, time, features)`` and a list of lists or arrays are several series."""

Known: TypeAlias = Mapping[str, Numbers]
Constants: TypeAlias = Mapping[str, float | None]
Result = TypeVar("Result")


def classify_body(model: str, series: Series, dt: Series | None, top_k: int | None) -> bytes:
    """The body of ``POST /v1/timeseries/classify``.

    Raises:
        BadRequest: If a series holds anything but finite or missing numbers, or ``dt`` does not go with the series.
    """
    options = {} if top_k is None else {"top_k": top_k}
    return _body(model, _inputs(series, dt), options)


def forecast_body(
    model: str,
    series: Series,
    *,
    horizon: int | None,
    quantiles: Sequence[float] | None,
    frequency: str | None,
    start: str | datetime | Sequence[str | datetime] | None,
    future: Known | Sequence[Known] | None,
    static: Constants | Sequence[Constants] | None,
    dt: Series | None,
) -> bytes:
    """The body of ``POST /v1/timeseries/forecast``.

    Raises:
        BadRequest: If a series holds anything but finite or missing numbers, or another argument does not go with them.
    """
    inputs = _inputs(series, dt)
    starts = [start] if isinstance(start, str | datetime) else start
    _spread(inputs, "start", "start_timestamp", starts, _time)
    _spread(inputs, "future", "future", [future] if isinstance(future, Mapping) else future, _known)
    _spread(inputs, "static", "static", [static] if isinstance(static, Mapping) else static, constants)
    for item in inputs:
        if frequency is not None:
            item["frequency"] = frequency
    options: dict[str, Any] = {} if horizon is None else {"horizon": horizon}
    if quantiles is not None:
        options["quantiles"] = [float(level) for level in quantiles]
    return _body(model, inputs, options)


def classifications(content: bytes) -> list[Classification]:
    """One result for each series from the answer to a classification.

    Raises:
        ProtocolError: If the answer is not one.
    """
    return _results(content, lambda item: Classification(item["label"], item["probabilities"]))


def forecasts(content: bytes) -> list[Forecast]:
    """One result for each series from the answer to a forecast.

    Raises:
        ProtocolError: If the answer is not one.
    """
    return _results(content, _forecast)


def _forecast(item: Mapping[str, Any]) -> Forecast:
    targets = tuple(item["targets"])

    def per_step(values: Any) -> Array:
        # One target comes as a flat array.
        return np.array(values, np.float32).reshape(-1, len(targets))

    return Forecast(
        mean=per_step(item["mean_forecast"]),
        quantiles={float(level): per_step(values) for level, values in item["quantiles"].items()},
        start=item["start_timestamp"],
        frequency=item["frequency"],
        targets=targets,
    )


def _results(content: bytes, read: Callable[[Mapping[str, Any]], Result]) -> list[Result]:
    try:
        return [read(output["content"][0]) for output in orjson.loads(content)["outputs"]]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ProtocolError(f"The answer is not one of /v1/timeseries ({error!r}).") from error


def _inputs(series: Series, dt: Series | None) -> list[dict[str, Any]]:
    arrays = _several(series, "series", 2)
    if not arrays:
        raise BadRequest("series is empty; at least one series must be given.")
    inputs: list[dict[str, Any]] = [{"series": array} for array in arrays]
    if dt is not None:
        spacings = _several(dt, "dt", 1)
        if len(spacings) != len(inputs):
            raise BadRequest(f"dt must be given for each of the {len(inputs)} series, got {len(spacings)}.")
        for item, spacing in zip(inputs, spacings, strict=True):
            item["dt"] = spacing
    return inputs


def _several(value: Series, what: str, levels: int) -> list[Array]:
    """One array for each series.

    Args:
        value: What was given.
        what: What to call it in errors.
        levels: The most axes of what belongs to one series.
    """
    parts: dict[str, Any]
    if isinstance(value, list | tuple):
        several = any(isinstance(item, list | tuple) or getattr(item, "ndim", 0) for item in value)
        parts = {f"{what}[{place}]": item for place, item in enumerate(value)} if several else {what: value}
    else:
        array = numbers(value, what)
        several = array.ndim > levels
        parts = {f"{what}[{place}]": item for place, item in enumerate(array)} if several else {what: array}
    arrays = []
    for name, part in parts.items():
        array = finite(part, name)
        if not 1 <= array.ndim <= levels:
            allowed = "1 axis" if levels == 1 else f"1 to {levels} axes"
            raise BadRequest(f"{name} must be an array of {allowed}, got {array.ndim}.")
        arrays.append(array)
    return arrays


def _spread(
    inputs: Sequence[dict[str, Any]],
    what: str,
    field: str,
    values: Sequence[Any] | None,
    read: Callable[[Any, str], Any],
) -> None:
    """Put one value for all series, or one for each, into the inputs."""
    if values is None:
        return
    if len(values) not in (1, len(inputs)):
        raise BadRequest(f"{what} must be one for all or one for each of the {len(inputs)} series, got {len(values)}.")
    for place, item in enumerate(inputs):
        item[field] = read(values[place if len(values) > 1 else 0], what)


def _time(value: str | datetime, what: str) -> str:
    return value.isoformat() if isinstance(value, datetime) else value


def _known(value: Known, what: str) -> dict[str, Array]:
    return {name: finite(row, f"{what}['{name}']") for name, row in value.items()}


def constants(value: Constants, what: str) -> dict[str, float]:
    """Numbers by name, NaN for those that are not known.

    Raises:
        BadRequest: If one is infinite, or no number.
    """
    return {name: float(finite([number], f"{what}['{name}']")[0]) for name, number in value.items()}


def finite(value: Any, what: str) -> Array:
    """``value`` as finite or missing numbers, float32 where it was and float64 where it was anything else.

    Raises:
        BadRequest: If it holds an infinite number, which JSON would turn into a missing one, or no numbers.
    """
    array = numbers(value, what)
    array = np.asarray(array, np.float32 if array.dtype == np.float32 else np.float64, order="C")
    if np.isinf(array).any():
        raise BadRequest(f"{what} holds an infinite number; values must be finite, and a missing one is None or NaN.")
    return array


def _body(model: str, inputs: Sequence[dict[str, Any]], options: Mapping[str, Any]) -> bytes:
    # NaN becomes null.
    body = {"model": model, "inputs": inputs, "options": options}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
