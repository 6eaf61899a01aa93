"""Bodies of HTTP requests from arrays, and results from the replies.

``/v1/timeseries`` takes and returns JSON; the Open Inference Protocol v2 named arrays as raw little-endian bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import prod
from types import UnionType
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

JSON_LENGTH_HEADER = "inference-header-content-length"

_DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
# float16 is widened; the smaller and unsigned integers, which are not listed, travel as INT64.
_DATATYPES = {"float16": "FP32", "float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64"}

Result = TypeVar("Result")


def decode_json(content: bytes, kind: type[Result], key: str | None = None) -> Result:
    """Return the JSON of a reply, or the member ``key`` of its object.

    Raises:
        ProtocolError: If it is not JSON, or the value is not of this kind.
    """
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("The reply is not JSON; check the address.") from error
    if key is not None:
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, kind):
        raise ProtocolError(f"The reply does not hold the expected JSON {kind.__name__}; check the address.")
    return value


def encode_series(
    model: str,
    series: Series,
    dt: Series | None,
    options: Mapping[str, Any],
    *,
    start: StartTime | Sequence[StartTime] | None = None,
    future: FutureCovariates | Sequence[FutureCovariates] | None = None,
    static: StaticCovariates | Sequence[StaticCovariates] | None = None,
    frequency: str | None = None,
) -> bytes:
    """Return the body of ``POST /v1/timeseries/classify`` and ``.../forecast``, without what is None.

    Raises:
        BadRequest: If a series holds anything but finite or missing numbers, or another argument does not match them.
    """
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
    # A str is itself a sequence, so a single value is recognized by its type.
    _broadcast(inputs, "start", start, str | datetime, _encode_time, "start_timestamp")
    _broadcast(inputs, "future", future, Mapping, _encode_future)
    _broadcast(inputs, "static", static, Mapping, encode_static)
    _broadcast(inputs, "frequency", frequency, str, _encode_time)
    body = {
        "model": model,
        "inputs": inputs,
        "options": {name: value for name, value in options.items() if value is not None},
    }
    # orjson writes NaN as null, which is the server's missing value.
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


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
    value: Any,
    single: type | UnionType,
    encode: Callable[[Any, str], Any],
    field: str | None = None,
) -> None:
    """Set a field of every input, from one value of the type ``single`` for all series or from one for each."""
    if value is None:
        return
    values = [value] if isinstance(value, single) else value
    if len(values) not in (1, len(inputs)):
        raise BadRequest(f"{label} must be one for all or one for each of the {len(inputs)} series, got {len(values)}.")
    for index, entry in enumerate(inputs):
        entry[field or label] = encode(values[index if len(values) > 1 else 0], label)


def _encode_time(value: StartTime, label: str) -> str:
    return value.isoformat() if isinstance(value, datetime) else value


def _encode_future(values: FutureCovariates, label: str) -> dict[str, Array]:
    return {name: finite_array(row, f"{label}['{name}']") for name, row in values.items()}


def encode_request(inputs: Mapping[str, Numbers], outputs: Sequence[str] | None) -> tuple[bytes, int]:
    """Return the body of ``POST .../infer`` and the length of its JSON part.

    Args:
        inputs: Arrays by name; ``None`` in a list is a missing value.
        outputs: Names of the outputs to return; None for all.

    Raises:
        BadRequest: If an input holds anything but numbers, or is not rectangular.
    """
    tensors: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    for name, value in inputs.items():
        array = number_array(value, f"input '{name}'")
        datatype = _DATATYPES.get(array.dtype.name, "INT64")
        buffer = np.ascontiguousarray(array, _DTYPES[datatype]).tobytes()
        parameters = {"binary_data_size": len(buffer)}
        tensors.append({"name": name, "shape": array.shape, "datatype": datatype, "parameters": parameters})
        buffers.append(buffer)
    header: dict[str, Any] = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    if outputs is not None:
        header["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    json_part = orjson.dumps(header)
    return b"".join([json_part, *buffers]), len(json_part)


def decode_reply(content: bytes, json_length: str | None) -> dict[str, Array]:
    """Return the arrays in the body of a reply, by name.

    Args:
        content: Body of the reply.
        json_length: Value of the header ``Inference-Header-Content-Length``; None if the whole body is JSON.

    Raises:
        ProtocolError: If the body does not follow the protocol.
    """
    try:
        # The raw bytes of the outputs follow the JSON part in the order in which it lists them.
        offset = len(content) if json_length is None else int(json_length)
        outputs: dict[str, Array] = {}
        for entry in orjson.loads(content[:offset])["outputs"]:
            dtype, shape = _DTYPES[entry["datatype"]], entry["shape"]
            if "data" in entry:
                outputs[entry["name"]] = np.array(entry["data"], dtype).reshape(shape)
                continue
            size = entry["parameters"]["binary_data_size"]
            if size != prod(shape) * dtype.itemsize:
                raise ValueError("binary_data_size does not fit the shape")
            # Copied, because an array over `bytes` is read-only.
            outputs[entry["name"]] = np.frombuffer(content[offset : offset + size], dtype).reshape(shape).copy()
            offset += size
        return outputs
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"The reply does not follow the Open Inference Protocol v2 ({error!r}).") from error
