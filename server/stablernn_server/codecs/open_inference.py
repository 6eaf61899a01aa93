"""Open Inference Protocol v2 on the wire: JSON tensors, and Triton's binary tensor and classification extensions.

Sources: https://github.com/kserve/open-inference-protocol (``inference_rest.md``) and, for the extensions,
https://github.com/triton-inference-server/server/tree/main/docs/protocol (``extension_binary_data.md``,
``extension_classification.md``).

A client sends the same request again and again, with other numbers. All around the numbers is parsed and checked once:
requests that differ only in them share a template, and so do their responses.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from stablernn_registry import TensorSignature
from stablernn_runtime.validation import cast
from stablernn_server.codecs.json_values import (
    MAX_LEVELS,
    OFFLOAD_BYTES,
    json_type,
    parse_object,
    to_array,
    whole_number,
)
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
MAX_TEMPLATES = 256
MAX_TEMPLATE_BYTES = 1024
_SENTINELS = (b"[9e99]", b"[8e99]")
_RAW_DTYPE = np.dtype("<f4")


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


@dataclass(eq=False, frozen=True, slots=True)
class RequestTemplate:
    """A request without its numbers.

    Attributes:
        request: The request that it was made from, without inputs.
        name: Name of its one input.
        shape: Shape of the input.
        size: Bytes of the input, as float32.
        pack: Packs as many numbers as the input has.
    """

    request: InferRequest
    name: str
    shape: tuple[int, ...]
    size: int
    pack: struct.Struct

    def fill(self, x: Array) -> InferRequest:
        """Return the request with its numbers."""
        _, _, outputs, binary, _, timeout_us, priority, _ = self.request
        return InferRequest(None, {self.name: x}, outputs, binary, None, timeout_us, priority, self)


class ResponseTemplate(NamedTuple):
    """The body of a response around the numbers of its one output.

    Attributes:
        output: Name of the output.
        shape: Its shape.
        before: Everything before its numbers.
        after: Everything after them.
        json_length: Bytes of the JSON before raw numbers; None where the numbers are JSON.
    """

    output: str
    shape: tuple[int, ...]
    before: bytes
    after: bytes
    json_length: int | None

    def fill(self, values: Array) -> bytes:
        """Return the body with the numbers of the output."""
        if self.json_length is not None:
            # Little-endian, whatever the machine.
            return self.before + values.astype(_RAW_DTYPE, copy=False).tobytes()
        return b"%b%b%b" % (self.before, _dump_flat(values), self.after)


_templates: dict[tuple[bytes, bytes], RequestTemplate | None] = {}
"""By the bytes before the numbers and those after them."""
_binary_templates: dict[bytes, RequestTemplate | None] = {}
"""By the JSON before raw numbers."""


def decode_with_template(body: bytes) -> InferRequest:
    """Decode a body that is JSON as a whole, as :func:`.decode_request` does.

    Raises:
        InputError: As there.
    """
    start = body.find(b"[", body.find(b'"data"'))
    end = body.rfind(b"]", start, body.find(b"}", start)) + 1
    # Numbers of a large body are parsed in pieces.
    if not 0 < start < end or len(body) - (end - start) > MAX_TEMPLATE_BYTES or len(body) > OFFLOAD_BYTES:
        return decode_request(body, len(body))
    key = (body[:start], body[end:])
    template = _templates.get(key)
    if template is None:
        request = decode_request(body, len(body))
        if key not in _templates:
            if len(_templates) >= MAX_TEMPLATES:
                _templates.clear()
            _templates[key] = _create_template(request) if _frames_numbers(key, request) else None
        return request
    x = _pack_numbers(template, body[start:end])
    return decode_request(body, len(body)) if x is None else template.fill(x)


def decode_binary_with_template(body: bytes, json_length: int) -> InferRequest:
    """Decode a body that may end with raw tensors, as :func:`.decode_request` does.

    Raises:
        InputError: As there.
    """
    if not 0 < json_length < min(len(body), MAX_TEMPLATE_BYTES):
        return decode_request(body, json_length)
    head, tail = body[:json_length], body[json_length:]
    template = _binary_templates.get(head)
    if template is None or template.size != len(tail):
        request = decode_request(body, json_length)
        # With all its numbers behind the JSON, which then has none of them.
        if head not in _binary_templates:
            if len(_binary_templates) >= MAX_TEMPLATES:
                _binary_templates.clear()
            template = _create_template(request)
            _binary_templates[head] = template if template is not None and template.size == len(tail) else None
        return request
    x = np.frombuffer(tail, np.float32).reshape(template.shape)
    # An infinite number is refused, by an error that says where it stands; NaN is a missing one.
    if not math.isfinite(np.vdot(x, x)) and np.isinf(x).any():
        return decode_request(body, json_length)
    return template.fill(x)


def create_response_template(
    head: Mapping[str, Any], request: InferRequest, outputs: Mapping[str, Array], labels: Sequence[str] | None
) -> ResponseTemplate | None:
    """Return the template of a response; None if it has several outputs, or the text of classes.

    Args:
        head: As of :func:`.encode_response`.
        request: Likewise.
        outputs: Likewise.
        labels: Likewise.
    """
    if len(outputs) != 1 or (request.outputs and request.outputs[0].classes):
        return None
    ((name, values),) = outputs.items()
    if values.dtype != np.float32:
        return None
    content, json_length = encode_response(head, request, outputs, labels)
    if json_length is not None:
        return ResponseTemplate(name, values.shape, content[:json_length], b"", json_length)
    # They stand in the response at least once; where they do only once, this is the place.
    parts = content.split(_dump_flat(values))
    return ResponseTemplate(name, values.shape, parts[0], parts[1], None) if len(parts) == 2 else None


def _dump_flat(values: Array) -> bytes:
    """Return numbers of any shape as a flat JSON array."""
    return orjson.dumps(np.ascontiguousarray(values).reshape(-1), option=orjson.OPT_SERIALIZE_NUMPY)


def _pack_numbers(template: RequestTemplate, text: bytes) -> Array | None:
    """Return the numbers of a flat JSON array in the shape of a template; None for all that is not simply that."""
    # "true", "false" and "null" have one of these letters. Whole numbers alone would be converted without rounding
    # to float64 first.
    if b"u" in text or b"l" in text or b"." not in text:
        return None
    try:
        packed = template.pack.pack(*orjson.loads(text))
    except (orjson.JSONDecodeError, struct.error, OverflowError):
        # A nested array, not as many numbers as the shape has, one beyond float32, or no JSON.
        return None
    return np.frombuffer(packed, np.float32).reshape(template.shape)


def _frames_numbers(key: tuple[bytes, bytes], request: InferRequest) -> bool:
    """Return whether what stands between the two parts of a body is the data of its one input."""
    if len(request.inputs) != 1:
        return False
    for sentinel in _SENTINELS:
        # What was replaced must be the numbers themselves, not part of a text or of an entry that does not count.
        skeleton = orjson.loads(sentinel.join(key))
        if [entry.get("data") for entry in skeleton["inputs"]] != [orjson.loads(sentinel)]:
            return False
    return True


def _create_template(request: InferRequest) -> RequestTemplate | None:
    """Return the template of a request; None if it has more than one input of float32, or is one of a kind."""
    if len(request.inputs) != 1 or request.id is not None or request.sequence is not None:
        return None
    ((name, x),) = request.inputs.items()
    if x.dtype != np.float32 or not x.size:
        return None
    return RequestTemplate(request._replace(inputs={}), name, x.shape, x.nbytes, struct.Struct(f"{prod(x.shape)}f"))
