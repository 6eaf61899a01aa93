"""Bodies that are compressed, both ways, and those that are nothing but the bytes of one tensor."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from server_helpers import Published, Running, json_tensor, raw_request, serve
from stablernn_runtime import ServedModel
from stablernn_server import Settings, TooLargeError, create_app
from stablernn_server.http.request import decompress, read_body

INFER = "/v2/models/animals/infer"
LIMIT = 100_000
JSON_LIMIT = 20_000
X = np.random.default_rng(0).normal(size=(3, 50, 1)).astype(np.float32)


def without_header(body: bytes) -> bytes:
    """Deflate data as some clients send it: without the header and the checksum of zlib."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "GZIP": ("GZIP", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without header": ("deflate", without_header),
    "identity": ("identity", bytes),
}
packed = pytest.mark.parametrize("packer", list(PACKERS))
compressed = pytest.mark.parametrize("packer", [name for name in PACKERS if name != "identity"])


@pytest.fixture(scope="module")
def server(published: Published) -> Iterator[Running]:
    settings = Settings(
        registry=published.root, models=("animals:1", "co2"), max_body_bytes=LIMIT, max_json_bytes=JSON_LIMIT
    )
    yield from serve(create_app(settings))


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


def send(client: httpx.Client, packer: str, body: bytes, path: str = INFER, **headers: str) -> httpx.Response:
    encoding, pack = PACKERS[packer]
    return client.post(path, content=pack(body), headers={"Content-Encoding": encoding, **headers})


@packed
def test_compressed_json(client: httpx.Client, animals: ServedModel, packer: str) -> None:
    body = json.dumps({"inputs": [json_tensor("x", X)], "outputs": [{"name": "logits"}]}).encode()
    (output,) = send(client, packer, body).raise_for_status().json()["outputs"]
    assert np.array_equal(np.array(output["data"], np.float32), animals.run_numpy(X)["logits"].reshape(-1))


@packed
def test_compressed_raw_tensors(client: httpx.Client, animals: ServedModel, packer: str) -> None:
    """The length of the JSON part is that before compression, as Triton's clients send it."""
    body, lengths = raw_request({"x": X}, outputs=[{"name": "logits"}])
    (output,) = send(client, packer, body, **lengths).raise_for_status().json()["outputs"]
    assert np.array_equal(np.array(output["data"], np.float32), animals.run_numpy(X)["logits"].reshape(-1))


@packed
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/timeseries/classify", {"model": "animals", "inputs": [{"series": [1.0, 2.0]}]}),
        ("/v1/timeseries/forecast", {"model": "co2", "inputs": [{"series": [1.0, 2.0]}]}),
        ("/v1/step", {"model": "animals", "values": [1.0]}),
        ("/v2/repository/index", {"ready": True}),
    ],
)
def test_every_route_reads_them(client: httpx.Client, packer: str, path: str, body: dict[str, Any]) -> None:
    assert send(client, packer, json.dumps(body).encode(), path).status_code == 200


@compressed
def test_a_bomb_is_refused_at_the_limit(client: httpx.Client, packer: str) -> None:
    bomb = b" " * 10_000_000
    for headers, limit in (({}, JSON_LIMIT), ({"Inference-Header-Content-Length": "10"}, LIMIT)):
        response = send(client, packer, bomb, **headers)
        assert (response.status_code, response.json()) == (
            413,
            {
                "error": f"The body is longer than the limit of {limit} bytes; send fewer or shorter series at a time.",
                "code": "too_large",
            },
        )


@compressed
def test_a_bomb_is_not_expanded(packer: str) -> None:
    encoding, pack = PACKERS[packer]
    bomb = pack(b"\0" * 50_000_000)
    assert len(bomb) < 60_000
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            list(decompress(bomb, encoding.lower(), LIMIT))
        assert tracemalloc.get_traced_memory()[1] < 10 * LIMIT
    finally:
        tracemalloc.stop()


@compressed
def test_what_is_as_long_as_the_limit_is_read(packer: str) -> None:
    encoding, pack = PACKERS[packer]
    body = np.random.default_rng(0).bytes(LIMIT)
    assert b"".join(decompress(pack(body), encoding.lower(), LIMIT)) == body
    with pytest.raises(TooLargeError):
        list(decompress(pack(body + b"."), encoding.lower(), LIMIT))


@compressed
def test_damaged_data_is_a_400(client: httpx.Client, packer: str) -> None:
    encoding, pack = PACKERS[packer]
    word = encoding.lower()
    whole = pack(json.dumps({"inputs": [json_tensor("x", X)]}).encode())
    ends, goes_on = (
        f"The body {what} the end of its {word} data; send exactly one complete stream."
        for what in ("ends before", "goes on after")
    )
    for content, sentence in (
        (whole[:-1], ends),
        (whole[: len(whole) // 2], ends),
        (whole[:3], ends),
        (whole + b"\0", goes_on),
        (whole + whole, goes_on),
    ):
        response = client.post(INFER, content=content, headers={"Content-Encoding": encoding})
        assert (response.status_code, response.json()) == (400, {"error": sentence, "code": "bad_input"})
    strange = client.post(INFER, content=b"\xff" * 40, headers={"Content-Encoding": encoding})
    assert (strange.status_code, strange.json()["code"]) == (400, "bad_input")
    assert strange.json()["error"].startswith(f"The body is not {word} data (")


@pytest.mark.parametrize("encoding", ["br", "gzip, deflate", "zstd", "g" * 5000])
def test_other_encodings_are_refused(client: httpx.Client, encoding: str) -> None:
    response = client.post(INFER, content=b"{}", headers={"Content-Encoding": encoding})
    shown = encoding if len(encoding) < 100 else f"{'g' * 100}..."
    sentence = f"The Content-Encoding '{shown}' is not supported; send gzip, deflate or an uncompressed body."
    assert (response.status_code, response.json()) == (400, {"error": sentence, "code": "bad_input"})


@packed
def test_the_body_and_what_it_expands_to_are_held(packer: str) -> None:
    encoding, pack = PACKERS[packer]
    body = json.dumps({"inputs": [json_tensor("x", X)]}).encode()
    content, held = pack(body), []
    pieces = [content[:10], content[10:]]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    scope: dict[str, Any] = {"headers": [(b"content-encoding", encoding.encode())]}
    assert asyncio.run(read_body(scope, receive, LIMIT, held.append)) == body
    assert held == [10, len(content) - 10, *([] if encoding == "identity" else [len(body)])]


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("br, GZIP;q=0.5", "gzip"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0", None),
        ("gzip;q=much", None),
        ("br", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("binary", [True, False], ids=["raw", "JSON"])
def test_answers_are_compressed_where_it_is_asked_for(
    client: httpx.Client, animals: ServedModel, accepted: str, encoding: str | None, binary: bool
) -> None:
    x = np.random.default_rng(1).normal(size=(300, 2, 1)).astype(np.float32)
    body = {
        "inputs": [json_tensor("x", x)],
        "outputs": [{"name": "logits"}],
        "parameters": {"binary_data_output": binary},
    }
    response = client.post(INFER, json=body, headers={"Accept-Encoding": accepted}).raise_for_status()
    assert response.headers.get("content-encoding") == encoding
    assert response.headers.get("vary") == (None if encoding is None else "Accept-Encoding")
    expected = animals.run_numpy(x)["logits"]
    if binary:
        length = int(response.headers["inference-header-content-length"])
        found = np.frombuffer(response.content[length:], np.float32).reshape(expected.shape)
        assert json.loads(response.content[:length])["outputs"][0]["shape"] == list(expected.shape)
    else:
        found = np.array(response.json()["outputs"][0]["data"], np.float32).reshape(expected.shape)
    assert np.array_equal(found, expected)


def test_series_are_answered_compressed_and_short_answers_are_left_as_they_are(client: httpx.Client) -> None:
    for count, encoding in ((1, None), (100, "gzip")):
        body = {"model": "animals", "inputs": [{"series": [1, 2]}] * count}
        response = client.post("/v1/timeseries/classify", json=body, headers={"Accept-Encoding": "gzip"})
        assert response.headers.get("content-encoding") == encoding
        assert len(response.json()["outputs"]) == count


RAW = {"Inference-Header-Content-Length": "0"}


@packed
def test_a_body_of_raw_bytes_alone_is_one_sequence(client: httpx.Client, animals: ServedModel, packer: str) -> None:
    x = X[:1].astype("<f4")
    response = send(client, packer, x.tobytes(), **RAW).raise_for_status()
    length = int(response.headers["inference-header-content-length"])
    head, at = json.loads(response.content[:length]), length
    assert (head["model_name"], head["model_version"]) == ("animals", "1")
    expected = animals.run(animals.sequence, {"x": x})
    assert [output["name"] for output in head["outputs"]] == list(expected)
    for output in head["outputs"]:
        size = output["parameters"]["binary_data_size"]
        found = np.frombuffer(response.content[at : at + size], "<f4").reshape(output["shape"])
        assert np.array_equal(found, expected[output["name"]])
        at += size
    assert at == len(response.content)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_raw_bytes_that_fill_no_whole_steps_are_refused(client: httpx.Client, count: int) -> None:
    response = client.post(INFER, content=b"\0" * count, headers=RAW)
    sentence = f"A raw body holds the float32 values of 'x', 4 bytes for each time step, got {count} bytes."
    assert (response.status_code, response.json()) == (400, {"error": sentence, "code": "bad_input"})
