"""Requests for inference that are refused: status, code word, and what the sentence names."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest


def tensor(shape: list[Any], data: Any, datatype: Any = "FP32", name: str = "x") -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": data}]}


def beside(*arguments: Any) -> dict[str, Any]:
    """``ONE`` with a further tensor."""
    return {"inputs": ONE["inputs"] + tensor(*arguments)["inputs"]}


def asking(**parameters: Any) -> dict[str, Any]:
    return {**ONE, "parameters": parameters}


ONE = tensor([1, 2, 1], [1.0, 2.0])
SHARED = {"parameters": {"shared_memory_region": "r"}}
REFUSED: list[tuple[bytes | dict[str, Any], str]] = [
    (b"[1,", "The body is not JSON: unexpected end of data (line 1, column 4)."),
    (b"[1]", "must be a JSON object, got an array"),
    (b"\xff", "The body is not JSON: "),
    (b'{"x": nan}', "The body is not JSON: "),
    (b'{"inputs":[{"name":"x","shape":[1,1,1],"datatype":"FP32","data":[-Infinity]}]}', "holds an infinite value"),
    (b'{"inputs":[{"name":"x","shape":[1,1,1],"datatype":"FP32","data":[1e400]}]}', "number is infinity"),
    ({**ONE, "id": 7}, "id must be text"),
    ({}, "inputs must be an array of at least one tensor"),
    ({"inputs": [5]}, "Every input must be an object with a name."),
    ({"inputs": ONE["inputs"] * 2}, "The input 'x' is given twice."),
    (tensor([1], [1], name="y" * 5000), f"Unknown input '{'y' * 100}...'. The model 'animals:1' takes x, lengths (opt"),
    (tensor([1], [1], "INT64", name="lengths"), "The input 'x' is missing; model 'animals:1' takes x, lengths"),
    ({**ONE, "outputs": [{"name": "probability"}]}, "Unknown output 'probability'. Did you mean 'probabilities'?"),
    ({**ONE, "outputs": [{"name": "logits"}] * 2}, "The output 'logits' is requested twice."),
    (
        {**ONE, "outputs": [{"name": "state_1_out", "parameters": {"classification": 2}}]},
        "'state_1_out' has no classes",
    ),
    (asking(timeout="soon"), "timeout of the request must be a whole number from 0 (microseconds), got 'soon'."),
    (asking(timeout=1.5), "got 1.5."),
    (asking(timeout=2**63), "got 9223372036854775808."),
    (asking(priority=-1), "priority of the request must be a whole number from 0 (1 first), got -1."),
    (asking(priority=True), "got True."),
    (asking(sequence_id=1.5), "sequence_id must be a whole number or text"),
    (asking(sequence_id="s" * 129), "sequence_id may have at most 128 characters, got 129."),
    (asking(sequence_id=-1), "sequence_id must be from 0 to 18446744073709551615, got -1."),
    (asking(sequence_id=7, sequence_start=1), "sequence_start of the request must be true or false, got a number."),
    (asking(sequence_end=True), "sequence_start and sequence_end need a sequence_id"),
    (asking(binary_data_output=1), "binary_data_output of the request must be true or false"),
    ({"inputs": [{**ONE["inputs"][0], **SHARED}]}, "shared_memory_region is not supported"),
    ({**ONE, "outputs": [{"name": "logits", **SHARED}]}, "shared_memory_region is not supported"),
    (tensor([1, -2, 1], [1, 2]), "shape of input 'x' must be an array of whole numbers from 0, got [1, -2, 1]."),
    (tensor([1, True, 1], [1]), "got [1, True, 1]."),
    (tensor([1, 1, 1], ["1"], "BYTES"), "datatype of input 'x' must be one of FP32, FP64, INT64, INT32, got 'BYTES'."),
    (tensor([1, 3, 1], [1, 2]), "does not fit its shape [1, 3, 1]: got 2 flat values."),
    (tensor([1, 2, 1], [[1], [2]]), "does not fit its shape [1, 2, 1]: got an array of shape [2, 1]."),
    (tensor([10**9, 10**9, 1], [1, 2]), "must have at most 8 sizes and fewer than 2147483648 numbers"),
    (tensor([2**63, 0], []), "fewer than 2147483648 numbers, got [9223372036854775808, 0]."),
    (tensor([2**20, 2**20, 0], []), "fewer than 2147483648 numbers"),
    (tensor([1] * 65, [1]), "must have at most 8 sizes"),
    (tensor([2, 1], ["a" * 200_000, *["b"] * 4000]), "holds text"),
    (tensor([1, 3, 1], [[[1], [2]], [[3]]]), "is not rectangular"),
    (tensor([1, 2, 1], [None, "2"]), "holds text"),
    (tensor([1, 2, 1], [True, False]), "holds true or false"),
    (tensor([1, 2, 1], [1, {}]), "holds objects"),
    (tensor([1, 2, 1], 5), "must be an array of numbers, got a number."),
    ({"inputs": [{"name": "x", "shape": [1, 2, 1], "datatype": "FP32"}]}, "'x' has neither data nor"),
    (tensor([1, 2, 1], [1, 1e39]), "x holds an infinite value at (0, 1, 0)"),
    (tensor([2, 2], [1, 2, 3, 4]), "x must have the shape (batch, time, 1) for model 'animals:1', got (2, 2)."),
    (tensor([1, 1, 3], [1, 2, 3]), "x has 3 features, model 'animals:1' expects 1 (loudness)."),
    (tensor([1, 0, 1], []), "x is empty: it needs at least one time step"),
    (tensor([0, 2, 1], []), "x is empty: it needs at least one sequence"),
    (beside([1], [3], "INT64", "lengths"), "lengths must lie between 1 and the 2 time steps of x, got 3."),
    (beside([1], [0], "INT64", "lengths"), "got 0."),
    (beside([1], [1.5], "INT64", "lengths"), "input 'lengths' must be whole numbers"),
    (beside([1], [2**31], "INT32", "lengths"), "whole numbers from -2147483648 to 2147483647"),
    (beside([1], [1], "FP32", "lengths"), "lengths must hold whole numbers (int64), got float32."),
    (beside([2], [1, 1], "INT64", "lengths"), "lengths must have the shape (batch) = (1,) to fit x, got (2,)."),
    (beside([1, 16], [None] * 16, "FP32", "state_1"), "state_1 holds values that are not finite"),
]


def refusal(client: httpx.Client, content: bytes | str, **headers: str) -> str:
    response = client.post("/v2/models/animals/infer", content=content, headers=headers)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert set(response.json()) == {"error", "code"}
    return str(response.json()["error"])


def test_infer_refuses(client: httpx.Client) -> None:
    for body, words in REFUSED:
        assert words in refusal(client, body if isinstance(body, bytes) else json.dumps(body)), body


LENGTH = "Inference-Header-Content-Length must be between 1 and the {size} bytes of the body, got "
SIZE = "binary_data_size of input 'x' must be 8 for the shape [1, 2, 1] of FP32, got "


@pytest.mark.parametrize(
    ("header", "stated", "raw", "sentence"),
    [
        ("999", 8, 8, LENGTH + "'999'."),
        ("-1", 8, 8, LENGTH + "'-1'."),
        ("9" * 5000, 8, 8, LENGTH + f"'{'9' * 100}...'."),
        ("{head}", 4, 8, SIZE + "4."),
        ("{head}", -8, 8, SIZE + "-8."),
        ("{head}", 8, 7, "The input 'x' needs 8 raw bytes, the body has 7 left for it."),
        ("{head}", 8, 9, "The body ends with 1 byte that belongs to no input; check binary_data_size."),
    ],
    ids=range(7),
)
def test_infer_refuses_raw_tensors(client: httpx.Client, header: str, stated: int, raw: int, sentence: str) -> None:
    entry = {"name": "x", "shape": [1, 2, 1], "datatype": "FP32", "parameters": {"binary_data_size": stated}}
    head = json.dumps({"inputs": [entry]}).encode()
    body = head + b"\0" * raw
    headers = {"Inference-Header-Content-Length": header.format(head=len(head))}
    assert refusal(client, body, **headers) == sentence.format(size=len(body))
