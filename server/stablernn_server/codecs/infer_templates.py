"""Requests that differ only in their numbers: all around the numbers is parsed and checked once.

A client sends the same request again and again, with other numbers in it. What comes before and after them is the key
of a template, which holds everything else of the decoded request. Their responses differ only in the numbers as well.
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

from stablernn_server.codecs.json_values import OFFLOAD_BYTES
from stablernn_server.codecs.open_inference import InferRequest, decode_request, encode_response

Array = NDArray[Any]

MAX_TEMPLATES = 256
MAX_TEMPLATE_BYTES = 1024
_SENTINELS = (b"[9e99]", b"[8e99]")
_RAW_DTYPE = np.dtype("<f4")


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
