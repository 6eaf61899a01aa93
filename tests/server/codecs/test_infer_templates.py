"""Requests that are decoded by a template say what they say without one, right or wrong."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stablernn_server import InputError
from stablernn_server.codecs import open_inference
from stablernn_server.codecs.open_inference import (
    MAX_TEMPLATES,
    InferRequest,
    RequestedOutput,
    create_response_template,
    decode_binary_with_template,
    decode_request,
    decode_with_template,
    encode_response,
)

TENSOR = {"name": "x", "shape": [1, 3, 1], "datatype": "FP32"}


def body(data: Any, *, more: dict[str, Any] | None = None, **entries: Any) -> str:
    return json.dumps({"inputs": [TENSOR | {"data": data} | (more or {})], **entries})


# Texts, since some are no JSON that Python writes.
BODIES = {
    "numbers": body([0.1, -2.5e-3, 3.25]),
    "whole numbers beyond float64": body([1, 2, 16777217 * 2**30 + 1]),
    "whole numbers and others": body([1, 2.5, 9007199254740993]),
    "a number beyond float32": body([0.5, 1e39, 0.5]),
    "a number beyond float64": body([0.5, 1.5, 10**400]),
    "an infinite number": body([0.5, 0.5, 0.5]).replace("[0.5, 0.5", "[0.5, 1e999"),
    "nested": body([[[0.5], [1.5], [2.5]]]),
    "null": body([0.5, None, 2.5]),
    "true": body([0.5, True, 2.5]),
    "text": body([0.5, "a", 2.5]),
    "too few": body([0.5, 1.5]),
    "broken": body([0.5, 1.5, 2.5]).replace("1.5", "1.5.5"),
    "a closing bracket too many": body([0.5, 1.5, 2.5]).replace("2.5]", "2.5]]"),
    "spaces": body([0.5, 1.5, 2.5]).replace("[0.5", " [ \n0.5"),
    "an array behind the numbers": body([0.5, 1.5, 2.5], more={"note": [1.5, 2.5, 3.5]}),
    "outputs": body([0.5, 1.5, 2.5], outputs=[{"name": "probabilities", "parameters": {"binary_data": True}}]),
    "an id": body([0.5, 1.5, 2.5], id="seven"),
    "a sequence": body([0.5, 1.5, 2.5], parameters={"sequence_id": 3, "sequence_start": True}),
    "float64": body([0.5, 1.5, 2.5], more={"datatype": "FP64"}),
    "two inputs": json.dumps({"inputs": [TENSOR | {"name": name, "data": [0.5, 1.5, 2.5]} for name in "xy"]}),
    "the numbers twice": body([0.5, 1.5, 2.5]).replace('"data": ', '"data": [7.5, 8.5, 9.5], "data": '),
    "a text that looks like numbers": '{"id": "\\"data\\": [1.5, 2.5, 3.5]}", ' + body([0.5, 1.5, 2.5])[1:],
    "numbers that do not count": '{"more": {"data": [1.5, 2.5, 3.5]}, ' + body([0.5, 1.5, 2.5])[1:],
}


def outcome(decode: Any, content: bytes) -> tuple[Any, ...] | str:
    """Everything of a decoded request, its numbers as bytes; or the error."""
    try:
        request: InferRequest = decode(content)
    except InputError as error:
        return str(error)
    inputs = {name: (value.dtype, value.shape, value.tobytes()) for name, value in request.inputs.items()}
    return inputs, request._replace(inputs={}, template=None)


@pytest.mark.parametrize("text", BODIES.values(), ids=BODIES)
def test_a_template_changes_nothing(text: str) -> None:
    content = text.encode()
    expected = outcome(lambda body: decode_request(body, len(body)), content)
    # The first creates the template, if there may be one.
    for _ in range(3):
        assert outcome(decode_with_template, content) == expected


def test_requests_of_one_template_differ_in_their_numbers() -> None:
    open_inference._templates.clear()
    first, *others = (decode_with_template(body([value, 0.25, -value]).encode()) for value in (0.5, 1.5, 2.5))
    assert first.template is None
    assert others[0].template is others[1].template is not None
    assert [request.inputs["x"].tolist() for request in others] == [
        [[[1.5], [0.25], [-1.5]]],
        [[[2.5], [0.25], [-2.5]]],
    ]
    assert all(request.inputs["x"].dtype == np.float32 for request in others)


def test_the_number_of_templates_is_bounded() -> None:
    open_inference._templates.clear()
    for number in range(MAX_TEMPLATES + 10):
        decode_with_template(body([0.5, 1.5, 2.5], more={"note": number}).encode())
    assert 0 < len(open_inference._templates) <= MAX_TEMPLATES
    size = len(open_inference._templates)
    decode_with_template(body([0.5, 1.5, 2.5], more={"note": "a" * 2000}).encode())
    assert len(open_inference._templates) == size


def head(size: int = 12, *, more: dict[str, Any] | None = None, **entries: Any) -> bytes:
    tensor = TENSOR | {"parameters": {"binary_data_size": size}} | (more or {})
    return json.dumps({"inputs": [tensor], **entries}).encode()


def raw(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


BINARY_BODIES = {
    "numbers": (head(), raw(0.5, -1.5, 2.5)),
    "a missing number": (head(), raw(0.5, np.nan, 2.5)),
    "an infinite number": (head(), raw(0.5, np.inf, 2.5)),
    "a square beyond float32": (head(), raw(0.5, 3e38, 2.5)),
    "too few bytes": (head(), raw(0.5, 1.5)),
    "too many bytes": (head(), raw(0.5, 1.5, 2.5, 3.5)),
    "no bytes": (head(), b""),
    "another size": (head(8), raw(0.5, 1.5)),
    "an id": (head(id="seven"), raw(0.5, 1.5, 2.5)),
    "a sequence": (head(parameters={"sequence_id": 3, "sequence_start": True}), raw(0.5, 1.5, 2.5)),
    "a timeout": (head(parameters={"timeout": 1000, "priority": 2}), raw(0.5, 1.5, 2.5)),
    "raw outputs": (head(parameters={"binary_data_output": True}), raw(0.5, 1.5, 2.5)),
    "float64": (head(24, more={"datatype": "FP64"}), np.array([0.5, 1.5, 2.5], "<f8").tobytes()),
    "numbers in the JSON": (body([0.5, 1.5, 2.5]).encode(), b""),
    "numbers in the JSON, and more": (body([0.5, 1.5, 2.5]).encode(), b"more"),
    "numbers of one input in the JSON": (
        json.dumps(
            {"inputs": [TENSOR | {"data": [1.5, 2.5, 3.5]}, json.loads(head())["inputs"][0] | {"name": "y"}]}
        ).encode(),
        raw(0.5, 1.5, 2.5),
    ),
    "a long head": (head(note="a" * 2000), raw(0.5, 1.5, 2.5)),
    "broken": (head()[:-1], raw(0.5, 1.5, 2.5)),
}


@pytest.mark.parametrize(("text", "tail"), BINARY_BODIES.values(), ids=BINARY_BODIES)
def test_a_binary_template_changes_nothing(text: bytes, tail: bytes) -> None:
    content = text + tail
    expected = outcome(lambda content: decode_request(content, len(text)), content)
    for _ in range(3):
        assert outcome(lambda content: decode_binary_with_template(content, len(text)), content) == expected


def test_binary_requests_of_one_template_differ_in_their_numbers() -> None:
    open_inference._binary_templates.clear()
    text = head()
    first, *others = (decode_binary_with_template(text + raw(n, 0.25, -n), len(text)) for n in (0.5, 1.5, 2.5))
    assert first.template is None
    assert others[0].template is others[1].template is not None
    assert [request.inputs["x"].ravel().tolist() for request in others] == [[1.5, 0.25, -1.5], [2.5, 0.25, -2.5]]
    assert all(request.inputs["x"].flags.aligned for request in others)
    # Infinite numbers are refused by the checks that a template leaves out.
    assert decode_binary_with_template(text + raw(0.5, np.inf, 0.5), len(text)).template is None
    for number in range(MAX_TEMPLATES + 10):
        text = head(note=number)
        decode_binary_with_template(text + raw(0.5, 1.5, 2.5), len(text))
    assert 0 < len(open_inference._binary_templates) <= MAX_TEMPLATES


HEAD = {"model_name": "animals", "model_version": "1"}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("shape", [(1, 4), (2, 3, 2), (1, 1), (4,)])
def test_a_response_by_a_template_is_the_same(binary: bool, shape: tuple[int, ...]) -> None:
    request = InferRequest(None, {}, [RequestedOutput("probabilities", binary)])
    values = np.random.default_rng(0).normal(size=(5, *shape)).astype(np.float32)
    values[1] = 0.0
    values[2].flat[0] = 1e-30
    template = create_response_template(HEAD, request, {"probabilities": values[0]}, None)
    assert template is not None
    # Also of a batch's rows that do not follow each other in memory.
    for value in (*values, np.repeat(values[3], 2, axis=-1)[..., ::2]):
        expected = encode_response(HEAD, request, {"probabilities": value}, None)
        assert (template.fill(value), template.json_length) == expected


def test_only_responses_of_one_output_of_numbers_have_a_template() -> None:
    values = np.ones((1, 2), np.float32)
    classes = InferRequest(None, {}, [RequestedOutput("p", False, 1)])
    anything = InferRequest(None, {}, None)
    assert create_response_template(HEAD, classes, {"p": values}, ["a", "b"]) is None
    assert create_response_template(HEAD, anything, {"p": values, "q": values}, None) is None
    assert create_response_template(HEAD, anything, {"p": values.astype(np.int64)}, None) is None
    # The same text twice: which of them the numbers are, nobody can tell.
    assert create_response_template(HEAD | {"note": [1.0, 1.0]}, anything, {"p": values}, None) is None
