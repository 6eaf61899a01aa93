"""Requests that are refused whatever they ask for: paths, methods, versions, sizes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from server_helpers import Running


def tensor(shape: list[Any], data: Any, datatype: Any = "FP32", name: str = "x") -> dict[str, Any]:
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": data}]}


ONE = tensor([1, 2, 1], [1.0, 2.0])


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v2/models/animal", "Unknown model 'animal'. Did you mean 'animals'? Served models: animals, co2, flow."),
        ("/v2/models/zebra", "Unknown model 'zebra'. Served models: animals, co2, flow."),
        ("/v2/models/animals/versions/3", "The model 'animals' has no version 3 here. Served: 1 (production), 2."),
        ("/v2/models/animals@blue", "The model 'animals' has no alias 'blue' here. Served: 1 (production), 2."),
        (
            "/v2/models/animals@production/versions/2",
            "The model 'animals' has no alias 'production' at version 2 here. Served: 1 (production), 2.",
        ),
        (
            "/v2/models/animals@latest",
            "'latest' is reserved and cannot be an alias. Write 'animals' for the highest version, or choose a word.",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", "/ready", "/config"])
def test_a_model_that_is_not_served_is_a_404(client: httpx.Client, path: str, suffix: str, sentence: str) -> None:
    response = client.get(path + suffix)
    assert response.status_code == 404
    assert response.json() == {"error": sentence, "code": "unknown_model"}


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("/v2/models/animals/versions/one", "The version of a model is a number from 1, got 'one'."),
        ("/v2/models/animals/versions/01", "The version of a model is a number from 1, got '01'."),
        (
            f"/v2/models/animals/versions/{'9' * 5000}",
            f"The version of a model is a number from 1, got '{'9' * 100}...'.",
        ),
        ("/v2/models/animals:1/versions/2", "The model 'animals:1' and the version 2 contradict each other."),
    ],
)
def test_a_version_that_makes_no_sense_is_a_400(client: httpx.Client, path: str, sentence: str) -> None:
    response = client.get(path)
    assert (response.status_code, response.json()) == (400, {"error": sentence, "code": "bad_input"})


def test_an_unknown_path_has_the_same_shape(client: httpx.Client) -> None:
    response = client.get("/v3")
    assert response.status_code == 404
    assert response.json() == {
        "error": "Not Found: GET /v3 is not a route of this server; see /docs.",
        "code": "unknown_path",
    }


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/models/animals/infer", ["POST"]),
        ("PUT", "/v2/models/animals/versions/1/infer", ["POST"]),
        ("GET", "/v1/timeseries/forecast", ["POST"]),
        ("POST", "/v2", ["GET"]),
        ("DELETE", "/v2/health/ready", ["GET", "HEAD"]),
        ("PUT", "/v1/sessions/one", ["DELETE", "GET"]),
        ("POST", "/openapi.json", ["GET", "HEAD"]),
    ],
)
def test_a_wrong_method_is_told_the_right_ones(
    client: httpx.Client, method: str, path: str, allowed: list[str]
) -> None:
    response = client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == ", ".join(allowed)
    assert response.json() == {
        "error": f"{path} does not support {method}; send {' or '.join(allowed)}.",
        "code": "method_not_allowed",
    }


TOO_LONG = "The body is longer than the limit of 1048576 bytes; send fewer or shorter series at a time."


@pytest.mark.parametrize("path", ["/v2/models/animals/infer", "/v1/timeseries/forecast", "/v1/timeseries/classify"])
def test_a_body_above_the_limit_is_refused_by_its_stated_length_before_it_is_sent(server: Running, path: str) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {2**40}\r\n\r\n".encode())
        # The server closes the connection, for it will not read the rest of this request.
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    assert answer.startswith("HTTP/1.1 413 ")
    assert json.loads(answer.partition("\r\n\r\n")[2]) == {"error": TOO_LONG, "code": "too_large"}


def test_a_body_without_a_stated_length_is_refused_once_it_passes_the_limit(client: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(17):
            yield b" " * 2**16

    response = client.post("/v2/models/animals/infer", content=chunks())
    assert (response.status_code, response.json()) == (413, {"error": TOO_LONG, "code": "too_large"})


def test_a_batch_whose_states_would_not_fit_is_refused_before_it_runs(client: httpx.Client) -> None:
    response = client.post("/v2/models/animals/infer", json=tensor([5000, 1, 1], [0] * 5000))
    assert response.status_code == 413
    assert response.json()["error"] == (
        "5000 sequences padded to 1 steps make 220000 numbers with outputs and states, the limit is 65536; "
        "send fewer or shorter series at a time."
    )


def test_one_long_series_among_many_short_ones_is_refused_before_padding(client: httpx.Client) -> None:
    inputs = [{"series": [0] * 1000}, *({"series": [0]} for _ in range(99))]
    response = client.post("/v1/timeseries/classify", json={"model": "animals", "inputs": inputs})
    assert response.status_code == 413
    assert response.json()["error"].startswith("100 sequences padded to 1000 steps make 104300 numbers")


def test_a_nested_bomb_is_a_400(client: httpx.Client) -> None:
    bomb = b"[" * 100_000 + b"NaN" + b"]" * 100_000
    response = client.post("/v2/models/animals/infer", content=bomb)
    assert response.status_code == 400
    bomb = b"[" * 500 + b"1" + b"]" * 500
    body = b'{"inputs":[{"name":"x","shape":[1,1,1],"datatype":"FP32","data":%s}]}' % bomb
    response = client.post("/v2/models/animals/infer", content=body)
    assert response.status_code == 400
    assert response.json()["error"].startswith("The data of input 'x' is nested more than 8")


STEP = {"model": "animals", "values": [1.0]}
SERIES = {"series": [1.0, 2.0]}
FORECAST = {"model": "co2", "inputs": [SERIES]}
BODIES: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("/v2/models/animals/infer", ONE, ("id", "inputs", "outputs", "parameters")),
    ("/v2/models/animals/infer", ONE["inputs"][0], ("name", "shape", "datatype", "data", "parameters")),
    ("/v1/timeseries/forecast", FORECAST, ("model", "inputs", "options")),
    ("/v1/timeseries/forecast", SERIES, ("type", "name", "start_timestamp", "dt", "future", "static")),
    ("/v1/step", STEP, ("model", "values", "time", "dt", "sequence", "future", "horizon", "state_token", "static")),
]


@pytest.mark.parametrize(
    ("path", "part", "field"), [(path, part, field) for path, part, fields in BODIES for field in fields]
)
def test_a_large_array_where_none_belongs_is_no_bug(
    client: httpx.Client, path: str, part: dict[str, Any], field: str
) -> None:
    changed = part | {field: [0.5] * 20_000}
    whole = changed if "model" in part or "inputs" in part else {"inputs": [changed]}
    response = client.post(path, json=whole if path != "/v1/timeseries/forecast" else FORECAST | whole)
    assert response.status_code == 400, response.text


@pytest.mark.parametrize("field", ["time", "dt", "future", "static", "state_token"])
def test_a_large_array_in_a_frame_that_closes_is_refused(server: Running, field: str) -> None:
    with connect(f"{server.url.replace('http', 'ws')}/v1/stream?model=animals") as websocket:
        websocket.recv(10)
        websocket.send(json.dumps({"close": True, field: [0.5] * 20_000}))
        assert json.loads(websocket.recv(10))["code"] == "bad_input"
