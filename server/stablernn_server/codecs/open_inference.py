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
from stablernn_server.codecs.json_arrays import MAX_LEVELS, to_array
from stablernn_server.codecs.json_values import json_type, parse_object, whole_number
from stablernn_server.errors import InputError, cut

Array = NDArray[Any]

# The protocol's datatypes that a model here can take; binary tensors are little-endian, row-major.
DTYPES: dict[str, np.dtype[Any]] = {
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
}
DATATYPES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32"}
# A dtype takes longer to say its name than to be looked up.
_DATATYPE_OF = {np.dtype(name): datatype for name, datatype in DATATYPES.items()}
MAX_NUMBERS = 2**31
# Extensions of the protocol that change what a request means; to ignore one silently would give a wrong answer.
REFUSED = {"shared_memory_region": "shared memory"}
LONGEST_ID = 128


class SequenceControl(NamedTuple):
    """Triton's sequence extension: which sequence a request belongs to.

    Attributes:
        id: As the client calls it.
        start: Whether it begins with this request.
        end: Whether it ends with it.
    """

    id: int | str
    start: bool
    end: bool


class WantedOutput(NamedTuple):
    """One entry of a request's ``outputs``.

    Attributes:
        name: Name of the output.
        binary: Whether it comes back as raw bytes.
        classes: Answer with this many classes as text instead of the tensor; 0 for the tensor.
    """

    name: str
    binary: bool
    classes: int = 0


class InferRequest(NamedTuple):
    """A decoded request.

    Attributes:
        id: To be echoed; None when absent.
        inputs: Tensors by name.
        outputs: What was asked for; None for every output.
        binary: Whether outputs come back as raw bytes where they do not say.
        sequence: The sequence that it is a part of; None where it stands for itself.
        timeout_us: Microseconds after which the answer is of no use; None where it does not say.
        priority: 1 is served first; None where it does not say.
    """

    id: str | None
    inputs: Mapping[str, Array]
    outputs: Sequence[WantedOutput] | None
    binary: bool = False
    sequence: SequenceControl | None = None
    timeout_us: int | None = None
    priority: int | None = None


def json_bytes(body: bytes, header: str | None) -> int:
    """Bytes of JSON before the raw tensors.

    Args:
        body: The whole body.
        header: The header ``Inference-Header-Content-Length``; without it, all is JSON.

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
    """Read the body of ``POST .../infer``.

    Args:
        body: The whole body.
        json_length: From :func:`json_bytes`.

    Raises:
        InputError: If the body is not what the protocol says; the sentence names the place.
    """
    view = memoryview(body)
    head, tail = view[:json_length], view[json_length:]
    request = parse_object(head)
    identity = request.get("id")
    if not isinstance(identity, str | None):
        raise InputError(f"id must be text, got {json_type(identity)}.")
    parameters = _parameters(request, "the request")
    binary = _flag(parameters, "binary_data_output", False, "the request")
    entries = request.get("inputs")
    if not isinstance(entries, list) or not entries:
        raise InputError("inputs must be an array of at least one tensor {name, shape, datatype, data}.")
    inputs: dict[str, Array] = {}
    at = 0
    for entry in entries:
        name, array, used = _decode_input(entry, tail[at:])
        if name in inputs:
            raise InputError(f"The input '{cut(name)}' is given twice.")
        inputs[name] = array
        at += used
    if at != len(tail):
        left = "1 byte that belongs" if len(tail) - at == 1 else f"{len(tail) - at} bytes that belong"
        raise InputError(f"The body ends with {left} to no input; check binary_data_size.")
    wanted = _wanted(request.get("outputs"), binary)
    if not parameters:
        return InferRequest(identity, inputs, wanted, binary)
    return InferRequest(
        identity,
        inputs,
        wanted,
        binary,
        _sequence(parameters),
        _whole(parameters, "timeout", "microseconds"),
        _whole(parameters, "priority", "1 first"),
    )


def raw_request(body: bytes, spec: TensorSignature) -> InferRequest:
    """A body of nothing but the bytes of the one input that a model must have, as one sequence.

    Args:
        body: The whole body.
        spec: What the manifest says of the input; its free axes are the batch, taken as 1, and the time.

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
    shape = [1 if size == "batch" else len(body) // step if isinstance(size, str) else size for size in spec.shape]
    return InferRequest(None, {spec.name: np.frombuffer(body, dtype).reshape(shape)}, None, True)


def encode_response(
    head: Mapping[str, Any],
    request: InferRequest,
    answers: Mapping[str, Array],
    labels: Sequence[str] | None,
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON part when raw tensors follow it.

    Args:
        head: ``model_name`` and ``model_version``.
        request: What was asked.
        answers: Outputs by name, in the order of the answer.
        labels: Class names, for the classification extension.

    Raises:
        InputError: If classes are asked of an output that has none.
    """
    wanted = {output.name: output for output in request.outputs or ()}
    tensors: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for name, answer in answers.items():
        output = wanted.get(name, WantedOutput(name, request.binary))
        if output.classes:
            texts, shape = _top_classes(name, answer, output.classes, labels)
            data: Any = texts
            content = _packed(texts) if output.binary else b""
            datatype = "BYTES"
        else:
            flat = np.ascontiguousarray(answer).reshape(-1)
            shape, datatype, data = list(answer.shape), _DATATYPE_OF[answer.dtype], flat
            content = flat.astype(DTYPES[datatype], copy=False).tobytes() if output.binary else b""
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if output.binary:
            tensor["parameters"] = {"binary_data_size": len(content)}
            raw.append(content)
        else:
            tensor["data"] = data
        tensors.append(tensor)
    answer_head = dict(head)
    if request.id is not None:
        answer_head["id"] = request.id
    answer_head["outputs"] = tensors
    text = orjson.dumps(answer_head, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join([text, *raw]), len(text)) if raw else (text, None)


def _packed(texts: Sequence[str]) -> bytes:
    """Text elements as raw bytes, each after its length."""
    encoded = [text.encode() for text in texts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def _decode_input(entry: Any, tail: memoryview) -> tuple[str, Array, int]:
    """Name and value of one input, and how many of the raw bytes in ``tail`` it used."""
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InputError("Every input must be an object with a name.")
    name: str = entry["name"]
    what = f"input '{cut(name)}'"
    shape = entry.get("shape")
    # bool is an int in Python, and `true` is no size.
    if not isinstance(shape, list) or not {int}.issuperset(map(type, shape)) or min(shape, default=0) < 0:
        raise InputError(f"The shape of {what} must be an array of whole numbers from 0, got {shape!r:.80}.")
    # numpy refuses more, with a 0 among the sizes too.
    if len(shape) > MAX_LEVELS or prod([size or 1 for size in shape]) >= MAX_NUMBERS:
        raise InputError(
            f"The shape of {what} must have at most {MAX_LEVELS} sizes and fewer than {MAX_NUMBERS} numbers, "
            f"got {shape!r:.80}."
        )
    datatype = entry.get("datatype")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise InputError(f"The datatype of {what} must be one of {', '.join(DTYPES)}, got {datatype!r:.80}.")
    dtype = DTYPES[datatype]
    size = _parameters(entry, what).get("binary_data_size")
    if size is None:
        if "data" not in entry:
            raise InputError(f"The {what} has neither data nor the parameter binary_data_size.")
        return name, _shaped(to_array(entry["data"], f"The data of {what}"), shape, dtype, what), 0
    if "data" in entry:
        raise InputError(f"The {what} has both data and the parameter binary_data_size.")
    expected = prod(shape) * dtype.itemsize
    if type(size) is not int or size != expected:
        raise InputError(
            f"binary_data_size of {what} must be {expected} for the shape {shape} of {datatype}, got {size!r:.80}."
        )
    if size > len(tail):
        raise InputError(f"The {what} needs {size} raw bytes, the body has {len(tail)} left for it.")
    return name, np.frombuffer(tail[:size], dtype).reshape(shape), size


def _shaped(array: Array, shape: list[int], dtype: np.dtype[Any], what: str) -> Array:
    """``array`` in the stated shape: nested just so, or flat in row-major order."""
    if array.size != prod(shape) or (array.ndim != 1 and list(array.shape) != shape):
        got = f"{array.size} flat values" if array.ndim == 1 else f"an array of shape {list(array.shape)}"
        raise InputError(f"The data of {what} does not fit its shape {shape}: got {got}.")
    if dtype.kind == "i" and array.size:
        limits = np.iinfo(dtype)
        if array.dtype.kind == "f" or array.min() < limits.min or array.max() > limits.max:
            raise InputError(
                f"The data of {what} must be whole numbers from {limits.min} to {limits.max}, written without a point."
            )
    # What is beyond float32 becomes infinite, which the model refuses with its place.
    return cast(array, dtype).reshape(shape)


def _wanted(entries: Any, binary: bool) -> list[WantedOutput] | None:
    if entries is None or entries == []:
        return None
    if not isinstance(entries, list):
        raise InputError(f"outputs must be an array, got {json_type(entries)}.")
    wanted: dict[str, WantedOutput] = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InputError("Every output must be an object with a name.")
        name = entry["name"]
        if name in wanted:
            raise InputError(f"The output '{cut(name)}' is asked for twice.")
        what = f"output '{cut(name)}'"
        parameters = _parameters(entry, what)
        classes = parameters.get("classification", 0)
        if type(classes) is not int or classes < 0:
            raise InputError(f"The parameter classification of {what} must be a whole number from 0.")
        wanted[name] = WantedOutput(name, _flag(parameters, "binary_data", binary, what), classes)
    return list(wanted.values())


def _parameters(owner: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise InputError(f"The parameters of {what} must be an object, got {json_type(parameters)}.")
    for name in parameters:
        if name in REFUSED:
            raise InputError(f"The parameter {name} is not supported: this server has no {REFUSED[name]}.")
    return parameters


def _sequence(parameters: Mapping[str, Any]) -> SequenceControl | None:
    """What the request says of a sequence; the id 0 and the empty one are those of none, as in Triton."""
    name = parameters.get("sequence_id", 0)
    if not isinstance(name, int | str) or isinstance(name, bool):
        raise InputError(f"The parameter sequence_id must be a whole number or text, got {json_type(name)}.")
    if isinstance(name, str) and len(name) > LONGEST_ID:
        raise InputError(f"The parameter sequence_id may have {LONGEST_ID} characters, got {len(name)}.")
    if isinstance(name, int) and not 0 <= name < 2**64:
        raise InputError(f"The parameter sequence_id must be from 0 to {2**64 - 1}, got {name}.")
    start, end = (_flag(parameters, f"sequence_{word}", False, "the request") for word in ("start", "end"))
    if not name:
        if start or end:
            raise InputError(
                "The parameters sequence_start and sequence_end need a sequence_id, a number from 1 or text."
            )
        return None
    return SequenceControl(name, start, end)


def _whole(parameters: Mapping[str, Any], name: str, unit: str) -> int | None:
    value = parameters.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**63:
        raise InputError(
            f"The parameter {name} of the request must be a whole number from 0 ({unit}), got {value!r:.40}."
        )
    return value


def _flag(parameters: Mapping[str, Any], name: str, default: bool, what: str) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"The parameter {name} of {what} must be true or false, got {json_type(value)}.")
    return value


def _top_classes(name: str, answer: Array, classes: int, labels: Sequence[str] | None) -> tuple[list[str], list[int]]:
    """``"value:index:label"`` for the largest values of each row, as Triton writes them."""
    if labels is None or answer.ndim != 2 or answer.shape[1] != len(labels):
        raise InputError(f"The output '{name}' has no classes; ask for it without the parameter classification.")
    classes = min(classes, len(labels))
    order = np.argsort(-answer, axis=1, kind="stable")[:, :classes]
    texts = [f"{row[i]:f}:{i}:{labels[i]}" for row, best in zip(answer, order, strict=True) for i in best]
    return texts, [len(answer), classes]
