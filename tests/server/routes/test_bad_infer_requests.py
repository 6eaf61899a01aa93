"""Requests for inference that are refused: status, code word and the exact sentence."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest


def tensor(shape: list[Any], data: Any, datatype: Any = "FP32", name: str = "x") -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": data}]}


ONE = tensor([1, 2, 1], [1.0, 2.0])

INFER = [
    pytest.param("animals", b"[1,", "The body is not JSON: unexpected end of data (line 1, column 4).", id="no JSON"),
    pytest.param("animals", b"[1]", "The body must be a JSON object, got an array.", id="array"),
    pytest.param("animals", b"null", "The body must be a JSON object, got null.", id="null"),
    pytest.param("animals", b"\xff", None, id="no text"),
    pytest.param("animals", b'{"x": nan}', None, id="wrong word"),
    pytest.param(
        "animals",
        b'{"inputs":[{"name":"x","shape":[1,1,1],"datatype":"FP32","data":[-Infinity]}]}',
        "The body holds an infinite value; values must be finite, and a missing one is null or NaN.",
        id="bare Infinity",
    ),
    pytest.param("animals", {**ONE, "id": 7}, "id must be text, got a number.", id="id"),
    pytest.param(
        "animals",
        {},
        "inputs must be an array of at least one tensor {name, shape, datatype, data}.",
        id="no inputs",
    ),
    pytest.param("animals", {"inputs": [5]}, "Every input must be an object with a name.", id="input is no object"),
    pytest.param(
        "animals", {"inputs": [*ONE["inputs"], *ONE["inputs"]]}, "The input 'x' is given twice.", id="input twice"
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], [1, 2], name="y"),
        "Unknown input 'y'. The model 'animals:1' takes x, lengths (optional), state_0 (optional), state_1 (optional).",
        id="unknown input",
    ),
    pytest.param(
        "animals",
        tensor([1], [1], "INT64", name="lengths"),
        "The input 'x' is missing; model 'animals:1' takes x, lengths (optional), state_0 (optional), "
        "state_1 (optional).",
        id="no x",
    ),
    pytest.param(
        "animals",
        {**ONE, "outputs": [{"name": "probability"}]},
        "Unknown output 'probability'. Did you mean 'probabilities'? The model 'animals:1' gives logits, "
        "probabilities, state_0_out, state_1_out.",
        id="unknown output",
    ),
    pytest.param(
        "animals",
        {**ONE, "outputs": [{"name": "logits"}, {"name": "logits"}]},
        "The output 'logits' is requested twice.",
        id="output twice",
    ),
    pytest.param(
        "animals",
        {**ONE, "outputs": [{"name": "state_1_out", "parameters": {"classification": 2}}]},
        "The output 'state_1_out' has no classes; request it without the parameter classification.",
        id="classes of a state",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"timeout": "soon"}},
        "The parameter timeout of the request must be a whole number from 0 (microseconds), got 'soon'.",
        id="timeout",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"timeout": 1.5}},
        "The parameter timeout of the request must be a whole number from 0 (microseconds), got 1.5.",
        id="timeout with a fraction",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"timeout": 2**63}},
        "The parameter timeout of the request must be a whole number from 0 (microseconds), got 9223372036854775808.",
        id="timeout beyond int64",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"priority": -1}},
        "The parameter priority of the request must be a whole number from 0 (1 first), got -1.",
        id="priority",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"priority": True}},
        "The parameter priority of the request must be a whole number from 0 (1 first), got True.",
        id="boolean priority",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"sequence_id": 1.5}},
        "The parameter sequence_id must be a whole number or text, got a number.",
        id="sequence",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"sequence_id": "s" * 129}},
        "The parameter sequence_id may have at most 128 characters, got 129.",
        id="long sequence",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"sequence_id": -1}},
        "The parameter sequence_id must be from 0 to 18446744073709551615, got -1.",
        id="negative sequence",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"sequence_id": 7, "sequence_start": 1}},
        "The parameter sequence_start of the request must be true or false, got a number.",
        id="start of a sequence",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"sequence_end": True}},
        "The parameters sequence_start and sequence_end need a sequence_id, a number from 1 or text.",
        id="end of no sequence",
    ),
    pytest.param(
        "animals",
        {"inputs": [{**ONE["inputs"][0], "parameters": {"shared_memory_region": "r"}}]},
        "The parameter shared_memory_region is not supported: this server has no shared memory.",
        id="shared memory",
    ),
    pytest.param(
        "animals",
        {**ONE, "outputs": [{"name": "logits", "parameters": {"shared_memory_region": "r"}}]},
        "The parameter shared_memory_region is not supported: this server has no shared memory.",
        id="shared memory of an output",
    ),
    pytest.param(
        "animals",
        {**ONE, "parameters": {"binary_data_output": 1}},
        "The parameter binary_data_output of the request must be true or false, got a number.",
        id="flag",
    ),
    pytest.param(
        "animals",
        tensor([1, -2, 1], [1, 2]),
        "The shape of input 'x' must be an array of whole numbers from 0, got [1, -2, 1].",
        id="negative size",
    ),
    pytest.param(
        "animals",
        tensor([1, True, 1], [1]),
        "The shape of input 'x' must be an array of whole numbers from 0, got [1, True, 1].",
        id="boolean size",
    ),
    pytest.param(
        "animals",
        tensor([1, 1, 1], ["1"], "BYTES"),
        "The datatype of input 'x' must be one of FP32, FP64, INT64, INT32, got 'BYTES'.",
        id="datatype",
    ),
    pytest.param(
        "animals",
        tensor([1, 3, 1], [1, 2]),
        "The data of input 'x' does not fit its shape [1, 3, 1]: got 2 flat values.",
        id="too few values",
    ),
    pytest.param(
        "animals",
        tensor([10**9, 10**9, 1], [1, 2]),
        "The shape of input 'x' must have at most 8 sizes and fewer than 2147483648 numbers, "
        "got [1000000000, 1000000000, 1].",
        id="huge shape",
    ),
    pytest.param(
        "animals",
        tensor([2**63, 0], []),
        "The shape of input 'x' must have at most 8 sizes and fewer than 2147483648 numbers, "
        "got [9223372036854775808, 0].",
        id="a size beyond int64",
    ),
    pytest.param(
        "animals",
        tensor([2**20, 2**20, 0], []),
        "The shape of input 'x' must have at most 8 sizes and fewer than 2147483648 numbers, "
        "got [1048576, 1048576, 0].",
        id="nothing in a huge shape",
    ),
    pytest.param(
        "animals",
        tensor([1] * 65, [1]),
        "The shape of input 'x' must have at most 8 sizes and fewer than 2147483648 numbers, "
        f"got {str([1] * 65)[:80]}.",
        id="65 sizes",
    ),
    pytest.param(
        "animals",
        tensor([2, 1], ["a" * 200_000, *["b"] * 4000]),
        "The data of input 'x' holds text; only numbers, and null or NaN for missing values, are allowed.",
        id="one long text among short ones",
    ),
    pytest.param(
        "animals",
        tensor([1, 1, 1], [1], name="y" * 5000),
        f"Unknown input '{'y' * 100}...'. The model 'animals:1' takes x, lengths (optional), state_0 (optional), "
        "state_1 (optional).",
        id="long name",
    ),
    pytest.param(
        "animals",
        b'{"inputs":[{"name":"x","shape":[1,1,1],"datatype":"FP32","data":[1e400]}]}',
        "The body is not JSON: number is infinity when parsed as double (line 1, column 66).",
        id="1e400",
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], [[1], [2]]),
        "The data of input 'x' does not fit its shape [1, 2, 1]: got an array of shape [2, 1].",
        id="nested otherwise",
    ),
    pytest.param(
        "animals",
        tensor([1, 3, 1], [[[1], [2]], [[3]]]),
        "The data of input 'x' is not rectangular: every row of an array must have the same length.",
        id="ragged",
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], [1, "2"]),
        "The data of input 'x' holds text; only numbers, and null or NaN for missing values, are allowed.",
        id="text",
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], [None, "2"]),
        "The data of input 'x' holds text; only numbers, and null or NaN for missing values, are allowed.",
        id="text beside null",
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], [True, False]),
        "The data of input 'x' holds true or false; only numbers, and null or NaN for missing values, are allowed.",
        id="booleans",
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], [1, {}]),
        "The data of input 'x' holds objects; only numbers, and null or NaN for missing values, are allowed.",
        id="objects",
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], 5),
        "The data of input 'x' must be an array of numbers, got a number.",
        id="data is a number",
    ),
    pytest.param(
        "animals",
        {"inputs": [{"name": "x", "shape": [1, 2, 1], "datatype": "FP32"}]},
        "The input 'x' has neither data nor the parameter binary_data_size.",
        id="no data",
    ),
    pytest.param(
        "animals",
        tensor([1, 2, 1], [1, 1e39]),
        "x holds an infinite value at (0, 1, 0); values must be finite within float32, and a missing one is NaN "
        "(null in JSON).",
        id="beyond float32",
    ),
    pytest.param(
        "animals",
        tensor([2, 2], [1, 2, 3, 4]),
        "x must have the shape (batch, time, 1) for model 'animals:1', got (2, 2).",
        id="two dimensions",
    ),
    pytest.param(
        "flow",
        tensor([1, 2, 1], [1, 2]),
        "x has 1 feature, model 'flow:1' expects 3 (flow, rain, level).",
        id="features",
    ),
    pytest.param(
        "animals",
        tensor([1, 0, 1], []),
        "x is empty: it needs at least one time step, got the shape (1, 0, 1).",
        id="no time steps",
    ),
    pytest.param(
        "animals",
        tensor([0, 2, 1], []),
        "x is empty: it needs at least one sequence, got the shape (0, 2, 1).",
        id="no sequences",
    ),
    pytest.param(
        "animals",
        {"inputs": ONE["inputs"] + tensor([1], [3], "INT64", "lengths")["inputs"]},
        "lengths must lie between 1 and the 2 time steps of x, got 3.",
        id="length too long",
    ),
    pytest.param(
        "animals",
        {"inputs": ONE["inputs"] + tensor([1], [0], "INT64", "lengths")["inputs"]},
        "lengths must lie between 1 and the 2 time steps of x, got 0.",
        id="length zero",
    ),
    pytest.param(
        "animals",
        {"inputs": ONE["inputs"] + tensor([1], [1.5], "INT64", "lengths")["inputs"]},
        "The data of input 'lengths' must be whole numbers from -9223372036854775808 to 9223372036854775807, "
        "without a decimal point.",
        id="length with a fraction",
    ),
    pytest.param(
        "animals",
        {"inputs": ONE["inputs"] + tensor([1], [1], "FP32", "lengths")["inputs"]},
        "lengths must hold whole numbers (int64), got float32.",
        id="lengths as floats",
    ),
    pytest.param(
        "animals",
        {"inputs": ONE["inputs"] + tensor([2], [1, 1], "INT64", "lengths")["inputs"]},
        "lengths must have the shape (batch) = (1,) to fit x, got (2,).",
        id="lengths of another batch",
    ),
    pytest.param(
        "animals",
        {"inputs": ONE["inputs"] + tensor([1, 16], [None] * 16, "FP32", "state_1")["inputs"]},
        "state_1 holds values that are not finite; only x may have missing values.",
        id="missing state",
    ),
    pytest.param(
        "animals",
        {"inputs": ONE["inputs"] + tensor([1], [2**31], "INT32", "lengths")["inputs"]},
        "The data of input 'lengths' must be whole numbers from -2147483648 to 2147483647, without a decimal point.",
        id="beyond INT32",
    ),
]


@pytest.mark.parametrize(("model", "body", "sentence"), INFER)
def test_infer_refuses(client: httpx.Client, model: str, body: bytes | dict[str, Any], sentence: str | None) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = client.post(f"/v2/models/{model}/infer", content=content)
    assert response.status_code == 400
    assert set(response.json()) == {"error", "code"}
    assert response.json()["code"] == "bad_input"
    if sentence is None:
        assert response.json()["error"].startswith("The body is not JSON: ")
    else:
        assert response.json()["error"] == sentence


LENGTH = "Inference-Header-Content-Length must be between 1 and the {size} bytes of the body, got "
SIZE = "binary_data_size of input 'x' must be 8 for the shape [1, 2, 1] of FP32, got "
BINARY = [
    pytest.param("999", 8, LENGTH + "'999'.", id="header too long"),
    pytest.param("-1", 8, LENGTH + "'-1'.", id="header negative"),
    pytest.param("9" * 5000, 8, LENGTH + f"'{'9' * 100}...'.", id="5000 digits"),
    pytest.param("{head}", 4, SIZE + "4.", id="size"),
    pytest.param("{head}", -8, SIZE + "-8.", id="negative size"),
]


@pytest.mark.parametrize(("header", "stated", "sentence"), BINARY)
def test_infer_refuses_raw_tensors(client: httpx.Client, header: str, stated: int, sentence: str) -> None:
    head = _head(stated)
    body = head + b"\0" * 8
    headers = {"Inference-Header-Content-Length": header.format(head=len(head))}
    response = client.post("/v2/models/animals/infer", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json() == {"error": sentence.format(size=len(body)), "code": "bad_input"}


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (7, "The input 'x' needs 8 raw bytes, the body has 7 left for it."),
        (9, "The body ends with 1 byte that belongs to no input; check binary_data_size."),
    ],
    ids=["too few bytes", "too many bytes"],
)
def test_infer_refuses_raw_bytes_that_do_not_fit(client: httpx.Client, raw: int, sentence: str) -> None:
    head = _head(8)
    response = client.post(
        "/v2/models/animals/infer",
        content=head + b"\0" * raw,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert (response.status_code, response.json()["error"]) == (400, sentence)


def _head(size: int) -> bytes:
    entry = {"name": "x", "shape": [1, 2, 1], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    return json.dumps({"inputs": [entry]}).encode()
