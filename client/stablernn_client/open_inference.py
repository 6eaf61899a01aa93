"""The client's side of the Open Inference Protocol v2: named arrays as raw little-endian bytes, both ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import orjson

from stablernn_client.arrays import Array, Numbers, number_array
from stablernn_client.errors import ProtocolError

JSON_LENGTH_HEADER = "inference-header-content-length"

_DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
# float16 is widened; the smaller and unsigned integers, which are not listed, travel as INT64.
_DATATYPES = {"float16": "FP32", "float32": "FP32", "float64": "FP64", "int32": "INT32", "int64": "INT64"}


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
