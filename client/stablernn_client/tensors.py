"""The Open Inference Protocol v2 from the client's side: named arrays as raw little-endian bytes, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import orjson
from numpy.typing import ArrayLike

from stablernn_client.errors import BadRequest, ProtocolError
from stablernn_client.results import Array

Numbers: TypeAlias = ArrayLike | Sequence[float | None] | Sequence[Sequence[float | None]]
"""An array, or whatever numpy makes one of; ``None`` and NaN are missing values."""

HEADER = "inference-header-content-length"

_DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
_DATATYPES = {"float16": "FP32", "float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64"}


def encode_request(inputs: Mapping[str, Numbers], outputs: Sequence[str] | None) -> tuple[bytes, int]:
    """The body of ``POST .../infer``, and the length of its JSON part.

    Args:
        inputs: Arrays by name; ``None`` in a list is a missing value.
        outputs: Names of what to answer with; None for everything.

    Raises:
        BadRequest: If an input holds anything but numbers, or is not rectangular.
    """
    tensors: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, value in inputs.items():
        array = numbers(value, f"input '{name}'")
        datatype = _DATATYPES.get(array.dtype.name, "INT64")
        content = np.ascontiguousarray(array, _DTYPES[datatype]).tobytes()
        parameters = {"binary_data_size": len(content)}
        tensors.append({"name": name, "shape": array.shape, "datatype": datatype, "parameters": parameters})
        raw.append(content)
    head: dict[str, Any] = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    if outputs is not None:
        head["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    text = orjson.dumps(head)
    return b"".join([text, *raw]), len(text)


def decode_answer(content: bytes, json_length: str | None) -> dict[str, Array]:
    """Arrays by name from the body of an answer.

    Args:
        content: The body.
        json_length: The header ``Inference-Header-Content-Length``; None when all is JSON.

    Raises:
        ProtocolError: If the body is not what the protocol says.
    """
    try:
        at = len(content) if json_length is None else int(json_length)
        outputs: dict[str, Array] = {}
        for entry in orjson.loads(content[:at])["outputs"]:
            dtype, shape = _DTYPES[entry["datatype"]], entry["shape"]
            if "data" in entry:
                outputs[entry["name"]] = np.array(entry["data"], dtype).reshape(shape)
                continue
            size = entry["parameters"]["binary_data_size"]
            if size != prod(shape) * dtype.itemsize:
                raise ValueError("binary_data_size does not fit the shape")
            # A copy, so that it is the caller's to write to.
            outputs[entry["name"]] = np.frombuffer(content[at : at + size], dtype).reshape(shape).copy()
            at += size
        return outputs
    except (ValueError, KeyError, TypeError) as error:
        raise ProtocolError(f"The answer is not one of the Open Inference Protocol v2 ({error!r}).") from error


def numbers(value: Any, what: str) -> Array:
    """``value`` as an array of numbers, with ``None`` as NaN.

    Raises:
        BadRequest: If it holds anything else, or is not rectangular.
    """
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = np.asarray(value, np.float64)
    except (ValueError, TypeError) as error:
        raise BadRequest(
            f"{what} must be a rectangular array of numbers, with None or NaN where one is missing: {error}."
        ) from error
    whole = array.dtype.kind == "i" or (array.dtype.kind == "u" and array.dtype.itemsize < 8)
    if not whole and array.dtype.name not in _DATATYPES:
        raise BadRequest(
            f"{what} must hold whole numbers, float32 or float64, got {array.dtype.name}; convert it first."
        )
    return array
