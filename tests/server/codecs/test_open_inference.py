"""The v2 codec alone: what is encoded decodes to the same bits, and no body does anything but decode or be refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stablernn_server.codecs.json_values import MAX_OBJECT_BYTES, _loads, parse_json, to_array
from stablernn_server.codecs.open_inference import (
    DTYPES,
    InferRequest,
    decode_request,
    encode_response,
    parse_json_length,
)
from stablernn_server.errors import InputError, TooLargeError

HEAD = {"model_name": "m", "model_version": "1"}
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
TENSORS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda datatype: st.tuples(st.just(datatype), hnp.arrays(DTYPES[datatype], SHAPES))
)


def as_request(datatype: str, value: np.ndarray, form: str) -> tuple[bytes, str | None]:
    entry: dict[str, Any] = {"name": "x", "shape": list(value.shape), "datatype": datatype}
    if form == "binary":
        raw = value.tobytes()
        entry["parameters"] = {"binary_data_size": len(raw)}
        head = json.dumps({"inputs": [entry]}).encode()
        return head + raw, str(len(head))
    entry["data"] = value.tolist() if form == "nested" else value.ravel().tolist()
    # Python's writer prints NaN and Infinity as bare words, which is what such clients send.
    return json.dumps({"inputs": [entry]}).encode(), None


@given(TENSORS, st.sampled_from(["binary", "nested", "flat"]))
def test_a_tensor_arrives_as_it_was_sent(tensor: tuple[str, np.ndarray], form: str) -> None:
    datatype, value = tensor
    body, header_length = as_request(datatype, value, form)
    if form != "binary" and value.dtype.kind == "f" and np.isinf(value).any():
        with pytest.raises(InputError, match="holds an infinite value"):
            decode_request(body, parse_json_length(body, header_length))
        return
    if form == "nested" and value.size == 0:
        return  # an empty array in JSON has lost the sizes behind the first 0
    got = decode_request(body, parse_json_length(body, header_length)).inputs["x"]
    assert got.dtype == value.dtype
    np.testing.assert_array_equal(got, value)


@settings(max_examples=30)
@given(st.lists(TENSORS, min_size=1, max_size=3), st.booleans(), st.none() | st.text())
def test_an_answer_reads_back_as_it_was_computed(
    tensors: list[tuple[str, np.ndarray]], binary: bool, identity: str | None
) -> None:
    answers = {f"out{index}": value for index, (_, value) in enumerate(tensors)}
    content, json_length = encode_response(HEAD, InferRequest(identity, {}, None, binary), answers, None)
    assert (json_length is not None) == binary
    head = orjson.loads(content[:json_length])
    assert head.get("id") == identity
    at = json_length or 0
    for output, (datatype, value) in zip(head["outputs"], tensors, strict=True):
        assert (output["datatype"], output["shape"]) == (datatype, list(value.shape))
        if binary:
            size = output["parameters"]["binary_data_size"]
            got = np.frombuffer(content[at : at + size], DTYPES[datatype])
            at += size
        else:
            got = np.array(output["data"], DTYPES[datatype])
            value = np.where(np.isfinite(value), value, np.nan) if value.dtype.kind == "f" else value
        np.testing.assert_array_equal(got.reshape(value.shape), value)
    assert at == (len(content) if binary else 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "lengths"]) | JSON,
        "shape": st.lists(st.integers(-1, 3), max_size=4) | JSON,
        "datatype": st.sampled_from(["FP32", "INT64", "BYTES"]) | JSON,
        "data": st.lists(st.none() | st.floats() | st.integers(), max_size=9) | JSON,
        "parameters": st.dictionaries(
            st.sampled_from(["binary_data_size", "binary_data", "classification", "sequence_id"]),
            st.integers(-1, 40) | JSON,
            max_size=2,
        )
        | JSON,
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "id": JSON,
        "inputs": st.lists(ENTRIES | JSON, max_size=3) | JSON,
        "outputs": st.lists(ENTRIES | JSON, max_size=3) | JSON,
        "parameters": JSON,
    },
)


@given(BODIES | JSON, st.binary(max_size=40), st.sampled_from(["right", "none"]) | st.text(max_size=4))
def test_every_body_is_decoded_or_refused(body: Any, raw: bytes, header: str) -> None:
    head = json.dumps(body).encode()
    length = {"right": str(len(head)), "none": None}.get(header, header)
    try:
        request = decode_request(head + raw, parse_json_length(head + raw, length))
    except InputError:
        return
    assert all(isinstance(value, np.ndarray) for value in request.inputs.values())


@given(st.binary(max_size=60), st.none() | st.integers(-2, 70).map(str))
def test_every_string_of_bytes_is_refused(body: bytes, length: str | None) -> None:
    with pytest.raises(InputError):
        decode_request(body, parse_json_length(body, length))


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _nan_to_none(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_nan_to_none(item) for item in value]
    return None if isinstance(value, float) and value != value else value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'["NaN", NaN]', ["NaN", None]),
        (b'["a\\"NaN", NaN]', ['a"NaN', None]),
        (b'{"NaN": NaN, "Infinity": "Infinity"}', {"NaN": None, "Infinity": "Infinity"}),
        (b'["\\ud83d\\ude00", NaN]', ["\U0001f600", None]),
    ],
)
def test_words_inside_texts_stay(text: bytes, value: Any) -> None:
    assert parse_json(text) == value


@pytest.mark.parametrize("text", [b'["\\ud800", NaN]', b'"NaN', b"NaNNaN", b"[NaN,]", b'"\\"NaN' + b'\\"' * 200_000])
def test_what_is_not_json_stays_so(text: bytes) -> None:
    with pytest.raises(InputError, match=r"^The body is not JSON: "):
        parse_json(text)


def test_whole_numbers_stay_exact() -> None:
    big = 2**53 + 1
    assert to_array([big, 0], "data").tolist() == [big, 0]


def test_missing_values_beside_whole_numbers_become_nan() -> None:
    got = to_array([[1, None], [None, 2**70]], "data")
    np.testing.assert_array_equal(got, [[1.0, np.nan], [np.nan, 2.0**70]])


@pytest.mark.parametrize("indent", [None, 1])
def test_a_large_text_is_read_as_a_small_one(indent: int | None) -> None:
    noise = np.random.default_rng(0)
    rows = noise.normal(size=(2500, 3))
    rows[noise.random(rows.shape) < 0.1] = np.nan
    value = {
        "rows": rows.tolist(),
        "whole": noise.integers(-(2**50), 2**50, 2_000).tolist(),
        '"[1': [{}, [1, 2], "x]", [[]], True, list(range(300)), 1e300, {"]": rows[:90].T.tolist(), "\\": "[0,0"}],
        "pad": "[0," * 1000,
    }
    text = json.dumps(value, indent=indent).encode()
    assert _lists(parse_json(text)) == _nan_to_none(value)
    for place in noise.integers(0, len(text), 40).tolist():
        changed = text[:place] + noise.choice(list(b'[],{}": 0-e.')).tobytes()[:1] + text[place + 1 :]
        try:
            expected = _loads(changed)
        except InputError:
            with pytest.raises(InputError):
                parse_json(changed)
            continue
        try:
            actual = _lists(parse_json(changed))
        except InputError as error:
            # A changed bracket leaves an array that is not rectangular, which the shape of a tensor never is.
            actual = expected if "not rectangular" in str(error) else error
        assert actual == expected


def _lists(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _nan_to_none(value.tolist())
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("unit", "error"),
    [
        (b"[]", InputError),
        (b"[[1],[2,3]]", InputError),
        (b"[[[[[[[[[1]]]]]]]]]", InputError),
        (b"1[2]", InputError),
        (b"1,", InputError),
        (b'{"a":0}', TooLargeError),
        pytest.param(b'["a"]', TooLargeError, marks=pytest.mark.slow),
        pytest.param(b'"ab"', TooLargeError, marks=pytest.mark.slow),
    ],
)
def test_a_large_text_of_many_objects_is_refused_before_they_are_made(unit: bytes, error: type[Exception]) -> None:
    text = b'{"data":[' + b",".join([unit] * 400_000) + b"]}"
    tracemalloc.start()
    try:
        with pytest.raises(error):
            parse_json(text)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text) + MAX_OBJECT_BYTES
    finally:
        tracemalloc.stop()


def test_numbers_of_a_large_text_take_the_memory_of_their_array() -> None:
    text = b'{"data":[' + b",".join([b"[0]"] * 400_000) + b"]}"
    tracemalloc.start()
    try:
        data = parse_json(text)["data"]
        assert (data.shape, data.dtype) == ((400_000, 1), np.int64)
        assert tracemalloc.get_traced_memory()[1] < 6 * len(text)
    finally:
        tracemalloc.stop()
