"""Open Inference Protocol v2 on the wire: JSON tensors, and Triton's binary tensor and classification extensions.

Sources: https://github.com/kserve/open-inference-protocol (``inference_rest.md``) and, for the extensions,
https://github.com/triton-inference-server/server/tree/main/docs/protocol (``extension_binary_data.md``,
``extension_classification.md``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from stablernn_registry import TensorSignature
from stablernn_runtime.validation import cast
from stablernn_server.codecs.json_values import MAX_LEVELS, json_type, parse_object, to_array, whole_number
from stablernn_server.errors import InputError, cut

Array = NDArray[Any]

# The protocol's datatypes that models take; binary tensors are little-endian, row-major.
DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32"}
# By dtype: looking it up is faster than asking it for its name.
_DATATYPE_BY_DTYPE = {np.dtype(name): datatype for name, datatype in DATATYPES.items()}
MAX_NUMBERS = 2**31
# Extensions of the protocol that change the meaning of a request; ignoring one silently would give a wrong response.
UNSUPPORTED = {"shared_memory_region": "shared memory"}
MAX_ID_LENGTH = 128


class SequenceControl(NamedTuple):
    """The sequence that a request belongs to, by Triton's sequence extension.

    Attributes:
        id: The client's id of the sequence.
        start: Whether the sequence begins with this request.
        end: Whether it ends with this request.
    """

    id: int | str
    start: bool
    end: bool


class RequestedOutput(NamedTuple):
    """One entry of a request's ``outputs``.

    Attributes:
        name: Name of the output.
        binary: Whether it is returned as raw bytes.
        classes: Number of classes to return as text instead of the tensor; 0 for the tensor.
    """

    name: str
    binary: bool
    classes: int = 0


class InferRequest(NamedTuple):
    """A decoded request.

    Attributes:
        id: Returned with the response; None if absent.
        inputs: Tensors by name.
        outputs: The requested outputs; None for every output.
        binary: Whether outputs without an entry are returned as raw bytes.
        sequence: The sequence that it belongs to; None for none.
        timeout_us: Microseconds after which the response is of no use; None if not stated.
        priority: 1 is served first; None if not stated.
        template: Equal requests but for the values of their one input have the same one; None for a request without.
    """

    id: str | None
    inputs: Mapping[str, Array]
    outputs: Sequence[RequestedOutput] | None
    binary: bool = False
    sequence: SequenceControl | None = None
    timeout_us: int | None = None
    priority: int | None = None
    template: object | None = None


def parse_json_length(body: bytes, header: str | None) -> int:
    """Return the number of bytes of JSON before the raw tensors.

    Args:
        body: The whole body.
        header: The header ``Inference-Header-Content-Length``; None if the whole body is JSON.

    Raises:
        InputError: If the header does not fit the body.
    """
    if header is None:
        return len(body)
    length = whole_number(header)
    if length is None or not 0 < length <= len(body):
        raise InputError(
            f"Inference-Header-Content-Length must be between 1 and the {len(body)} bytes of the body, "
            f"got '{cut(header)}'."
        )
    return length


def decode_request(body: bytes, json_length: int) -> InferRequest:
    """Decode the body of ``POST .../infer``.

    Args:
        body: The whole body.
        json_length: From :func:`parse_json_length`.

    Raises:
        InputError: If the body does not follow the protocol; the message says where.
    """
    tail = memoryview(body)[json_length:]
    request = parse_object(body if not tail else body[:json_length])
    request_id = request.get("id")
    if not isinstance(request_id, str | None):
        raise InputError(f"id must be text, got {json_type(request_id)}.")
    parameters = _parameters(request, "the request")
    binary = _boolean_parameter(parameters, "binary_data_output", False, "the request")
    entries = request.get("inputs")
    if not isinstance(entries, list) or not entries:
        raise InputError("inputs must be an array of at least one tensor {name, shape, datatype, data}.")
    inputs: dict[str, Array] = {}
    # Raw tensors follow each other without gaps, in the order of the inputs.
    offset = 0
    for entry in entries:
        name, array, size = _decode_input(entry, tail[offset:])
        if name in inputs:
            raise InputError(f"The input '{cut(name)}' is given twice.")
        inputs[name] = array
        offset += size
    if offset != len(tail):
        excess = "1 byte that belongs" if len(tail) - offset == 1 else f"{len(tail) - offset} bytes that belong"
        raise InputError(f"The body ends with {excess} to no input; check binary_data_size.")
    outputs = _requested_outputs(request.get("outputs"), binary)
    if not parameters:
        return InferRequest(request_id, inputs, outputs, binary)
    return InferRequest(
        request_id,
        inputs,
        outputs,
        binary,
        _sequence_control(parameters),
        _integer_parameter(parameters, "timeout", "microseconds"),
        _integer_parameter(parameters, "priority", "1 first"),
    )


def decode_raw_request(body: bytes, spec: TensorSignature) -> InferRequest:
    """Decode a body that holds only the bytes of the one required input of a model, as one sequence.

    Args:
        body: The whole body.
        spec: The manifest's entry of the input; its free axes are the batch, taken as 1, and the time.

    Raises:
        InputError: If the bytes do not fill whole time steps.
    """
    dtype = np.dtype(spec.dtype).newbyteorder("<")
    step = prod(size for size in spec.shape if isinstance(size, int)) * dtype.itemsize
    if not body or len(body) % step:
        raise InputError(
            f"A raw body holds the {spec.dtype} values of '{spec.name}', {step} bytes for each time step, got "
            f"{len(body)} bytes."
        )
    # (1, time, features)
    shape = [1 if size == "batch" else len(body) // step if isinstance(size, str) else size for size in spec.shape]
    return InferRequest(None, {spec.name: np.frombuffer(body, dtype).reshape(shape)}, None, True)


def encode_response(
    head: Mapping[str, Any],
    request: InferRequest,
    outputs: Mapping[str, Array],
    labels: Sequence[str] | None,
) -> tuple[bytes, int | None]:
    """Return the body of a response, and the length of its JSON if raw tensors follow it.

    Args:
        head: ``model_name``, ``model_version`` and ``parameters``.
        request: The request.
        outputs: Outputs by name, in the order of the response.
        labels: Class names, for the classification extension.

    Raises:
        InputError: If classes are requested of an output that has none.
    """
    requested = {output.name: output for output in request.outputs} if request.outputs else {}
    tensors: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, values in outputs.items():
        output = requested.get(name) or RequestedOutput(name, request.binary)
        if output.classes:
            texts, shape = _top_classes(name, values, output.classes, labels)
            data: Any = texts
            content = _pack_texts(texts) if output.binary else b""
            datatype = "BYTES"
        else:
            flat = np.ascontiguousarray(values).reshape(-1)
            shape, datatype, data = list(values.shape), _DATATYPE_BY_DTYPE[values.dtype], flat
            # Little-endian, whatever the machine.
            content = flat.astype(DTYPES[datatype], copy=False).tobytes() if output.binary else b""
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if output.binary:
            tensor["parameters"] = {"binary_data_size": len(content)}
            raw.append(content)
        else:
            tensor["data"] = data
        tensors.append(tensor)
    response = dict(head)
    if request.id is not None:
        response["id"] = request.id
    response["outputs"] = tensors
    text = orjson.dumps(response, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([text, *raw]), len(text)) if raw else (text, None)


def _pack_texts(texts: Sequence[str]) -> bytes:
    """Return text elements as raw bytes, each after its length, as the protocol has the datatype BYTES."""
    encoded = [text.encode() for text in texts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def _decode_input(entry: Any, tail: memoryview) -> tuple[str, Array, int]:
    """Return name and value of one input, and the number of bytes that it takes at the beginning of ``tail``."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InputError("Every input must be an object with a name.")
    name: str = entry["name"]
    label = f"input '{cut(name)}'"
    shape = entry.get("shape")
    # By type, not isinstance: bool is an int in Python, and `true` is not a size.
    if not isinstance(shape, list) or not {int}.issuperset(map(type, shape)) or min(shape, default=0) < 0:
        raise InputError(f"The shape of {label} must be an array of whole numbers from 0, got {shape!r:.80}.")
    # numpy refuses more, even if one of the sizes is 0.
    if len(shape) > MAX_LEVELS or prod([size or 1 for size in shape]) >= MAX_NUMBERS:
        raise InputError(
            f"The shape of {label} must have at most {MAX_LEVELS} sizes and fewer than {MAX_NUMBERS} numbers, "
            f"got {shape!r:.80}."
        )
    datatype = entry.get("datatype")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise InputError(f"The datatype of {label} must be one of {', '.join(DTYPES)}, got {datatype!r:.80}.")
    dtype = DTYPES[datatype]
    size = _parameters(entry, label).get("binary_data_size")
    if size is None:
        if "data" not in entry:
            raise InputError(f"The {label} has neither data nor the parameter binary_data_size.")
        return name, _reshape(to_array(entry["data"], f"The data of {label}"), shape, dtype, label), 0
    if "data" in entry:
        raise InputError(f"The {label} has both data and the parameter binary_data_size.")
    expected = prod(shape) * dtype.itemsize
    if type(size) is not int or size != expected:
        raise InputError(
            f"binary_data_size of {label} must be {expected} for the shape {shape} of {datatype}, got {size!r:.80}."
        )
    if size > len(tail):
        raise InputError(f"The {label} needs {size} raw bytes, the body has {len(tail)} left for it.")
    # A view of the body, without a copy.
    return name, np.frombuffer(tail[:size], dtype).reshape(shape), size


def _reshape(array: Array, shape: list[int], dtype: np.dtype[Any], label: str) -> Array:
    """Return ``array``, which is nested as ``shape`` says or flat in row-major order, in that shape."""
    if array.size != prod(shape) or (array.ndim != 1 and list(array.shape) != shape):
        got = f"{array.size} flat values" if array.ndim == 1 else f"an array of shape {list(array.shape)}"
        raise InputError(f"The data of {label} does not fit its shape {shape}: got {got}.")
    if dtype.kind == "i" and array.size:
        limits = np.iinfo(dtype)
        if array.dtype.kind == "f" or array.min() < limits.min or array.max() > limits.max:
            raise InputError(
                f"The data of {label} must be whole numbers from {limits.min} to {limits.max}, without a decimal point."
            )
    # Values beyond float32 become infinite, which the model refuses, naming their position.
    return cast(array, dtype).reshape(shape)


def _requested_outputs(entries: Any, binary: bool) -> list[RequestedOutput] | None:
    if not isinstance(entries, list | None):
        raise InputError(f"outputs must be an array of objects, got {json_type(entries)}.")
    # Both mean every output of the model.
    if not entries:
        return None
    requested: dict[str, RequestedOutput] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError("Every output must be an object with a name.")
        name = entry["name"]
        if name in requested:
            raise InputError(f"The output '{cut(name)}' is requested twice.")
        label = f"output '{cut(name)}'"
        parameters = _parameters(entry, label)
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise InputError(f"The parameter classification of {label} must be a whole number from 0.")
        is_binary = _boolean_parameter(parameters, "binary_data", binary, label)
        requested[name] = RequestedOutput(name, is_binary, classes)
    return list(requested.values())


def _parameters(owner: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InputError(f"The parameters of {label} must be an object, got {json_type(parameters)}.")
    for name in parameters:
        if name in UNSUPPORTED:
            raise InputError(f"The parameter {name} is not supported: this server has no {UNSUPPORTED[name]}.")
    return parameters


def _sequence_control(parameters: Mapping[str, Any]) -> SequenceControl | None:
    """Return the sequence that a request belongs to; None for the id 0 and the empty one, as in Triton."""
    sequence_id = parameters.get("sequence_id", 0)
    if not isinstance(sequence_id, int | str) or isinstance(sequence_id, bool):
        raise InputError(f"The parameter sequence_id must be a whole number or text, got {json_type(sequence_id)}.")
    if isinstance(sequence_id, str) and len(sequence_id) > MAX_ID_LENGTH:
        raise InputError(
            f"The parameter sequence_id may have at most {MAX_ID_LENGTH} characters, got {len(sequence_id)}."
        )
    if isinstance(sequence_id, int) and not 0 <= sequence_id < 2**64:
        raise InputError(f"The parameter sequence_id must be from 0 to {2**64 - 1}, got {sequence_id}.")
    start = _boolean_parameter(parameters, "sequence_start", False, "the request")
    end = _boolean_parameter(parameters, "sequence_end", False, "the request")
    if not sequence_id:
        if start or end:
            raise InputError(
                "The parameters sequence_start and sequence_end need a sequence_id, a number from 1 or text."
            )
        return None
    return SequenceControl(sequence_id, start, end)


def _integer_parameter(parameters: Mapping[str, Any], name: str, unit: str) -> int | None:
    value = parameters.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**63:
        raise InputError(
            f"The parameter {name} of the request must be a whole number from 0 ({unit}), got {value!r:.40}."
        )
    return value


def _boolean_parameter(parameters: Mapping[str, Any], name: str, default: bool, label: str) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"The parameter {name} of {label} must be true or false, got {json_type(value)}.")
    return value


def _top_classes(name: str, values: Array, classes: int, labels: Sequence[str] | None) -> tuple[list[str], list[int]]:
    """Return ``"value:index:label"`` for the largest values of each row, as Triton writes them, and their shape."""
    # (batch, classes)
    if labels is None or values.ndim != 2 or values.shape[1] != len(labels):
        raise InputError(f"The output '{name}' has no classes; request it without the parameter classification.")
    classes = min(classes, len(labels))
    order = np.argsort(-values, axis=1, kind="stable")[:, :classes]
    texts = [f"{row[i]:f}:{i}:{labels[i]}" for row, top in zip(values, order, strict=True) for i in top]
    return texts, [len(values), classes]
