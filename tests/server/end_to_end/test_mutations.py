"""Damaged tensors, frames and samples over a real port: each is answered, none by a fault, and none is remembered."""

from __future__ import annotations

import json
import math
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from server_helpers import Published
from serving_helpers import ServeProcess, rss_mb, start_serve
from stablernn_runtime import ServedModel
from stream_helpers import frame

pytestmark = pytest.mark.slow

Body = tuple[bytes, int]
"""Content, and how many bytes of it are JSON."""
INFER = "/v2/models/animals/infer"
PATIENCE_SECONDS = 20
WORDS: list[Any] = [
    *(None, True, -1, 0, 1, 2, 3.5, 1e308, 2**31, 2**63, 10**30, "", "x", "FP64", "BYTES", "animals", "y" * 5000),
    *("999999YE", "QE-JAN", "9999-12-31", "2024-02-31"),
    *([], {}, [[]], [1], [1, 16, 1], [1, 2**31, 1], [2**40] * 3, [0, 0, 0], [-1, 16, 1], [1] * 100, {"a": {"b": []}}),
]
"""What a place of a document may hold instead."""
NAMES = [
    *("data", "shape", "name", "parameters", "inputs", "outputs", "id", "timeout", "sequence_id", "priority"),
    *("values", "time", "dt", "sequence", "state_token", "model", "static", "future", "horizon", "every", "stream"),
]


@pytest.fixture(scope="module")
def process(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """Few sessions and small limits, so that what is full stays small."""
    limits = {"MAX_ELEMENTS": 2**16, "MAX_BODY_BYTES": 2**20, "MAX_SESSIONS": 50, "MAX_STREAMS": 50}
    server = start_serve(
        *(published.root, tmp_path_factory.mktemp("log") / "log", "--access-log", "off"),
        *("--model", "animals:1", "--model", "co2:1"),
        environment={f"STABLERNN_{name}": str(value) for name, value in limits.items()},
    )
    yield server
    server.kill()


@pytest.fixture(scope="module")
def opened(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("animals:1"), "cpu")


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tensors(x: np.ndarray, **parameters: Any) -> Body:
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head: dict[str, Any] = {"inputs": [entry], "outputs": [{"name": "logits", "parameters": {"binary_data": True}}]}
    if parameters:
        head["parameters"] = parameters
    text = json.dumps(head).encode()
    return text + x.tobytes(), len(text)


BODIES = [
    tensors(noise(1, 16, 1)),
    tensors(noise(3, 5, 1), timeout=10_000_000, priority=1),
    tensors(noise(1, 4, 1), sequence_id=9, sequence_start=True),
    tensors(noise(1, 4, 1), sequence_id=9),
]


WEEKS = {"series": [369.5, None, 370], "name": "w", "frequency": "W", "start_timestamp": "2024-01-06"}

# A text and a place in it: cut there, longer, with a piece twice or left out, or with another byte.
DAMAGE: list[Callable[[bytes, int], bytes]] = [
    lambda text, at: text[:at],
    lambda text, at: text + text[at : at + 9],
    lambda text, at: text[:at] + text[max(0, at - 9) :],
    lambda text, at: text[:at] + text[at + 9 :],
    lambda text, at: text[:at] + bytes([text[at] ^ 1 << at % 8]) + text[at + 1 :],
]
ODD = [struct.pack("<f", value) for value in (math.nan, math.inf, -math.inf, 3e38, 1e-45)]


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from places(document[key])


def rebuild(chance: random.Random, document: Any) -> bytes:
    """A place of the document holds something else, is gone, or is there twice; it stays JSON."""
    holder, key = chance.choice(list(places(document)))
    other = chance.choice([holder[key], *WORDS])
    action = chance.random()
    if action < 0.15:
        del holder[key]
    elif action < 0.3:
        holder.append(other) if isinstance(holder, list) else holder.setdefault(chance.choice(NAMES), other)
    else:
        holder[key] = other
    return json.dumps(document).encode()


def mutated(number: int, bodies: list[Body]) -> Body:
    """The same for the same number."""
    chance = random.Random(number)
    content, length = chance.choice(bodies)
    text, data = content[:length], content[length:]
    if text and chance.random() < 0.6:
        text = rebuild(chance, json.loads(text))
        length = len(text)
    if len(data) >= 4 and chance.random() < 0.3:
        place = 4 * chance.randrange(len(data) // 4)
        data = data[:place] + chance.choice(ODD) + data[place + 4 :]
    content = text + data
    if chance.random() < 0.3:
        content = chance.choice(DAMAGE)(content, chance.randrange(len(content)))
    # The head is not as long as stated.
    return content, length if chance.random() < 0.9 else chance.choice([0, 1, length - 1, length + 1, 2**31, 2**63, -1])


def check_error(status: int, content: Any) -> None:
    """Raise unless it is an error of the contract; 504 is that of a ``timeout`` of a microsecond."""
    assert status in (400, 404, 409, 413, 429, 504), (status, content)
    assert content.keys() >= {"error", "code"}
    assert content["error"].endswith((".", "?"))
    assert len(content["error"]) < 1000


def ask_bodies(process: ServeProcess, numbers: range) -> Counter[int]:
    """Requests of tensors, of sessions, of tokens and of their beginnings."""
    statuses: Counter[int] = Counter()
    with httpx.Client(base_url=process.url, timeout=PATIENCE_SECONDS) as client:
        begun = client.post("/v1/sessions", json={"model": "animals"}).json()["session_id"]
        token = client.post("/v1/step", json={"model": "animals", "values": [1.0]}).json()["state_token"]
        samples = {"values": [[0.5], [None]], "sequence": 1, "every": True, "token": True, "time": None, "dt": None}
        documents: list[tuple[str, dict[str, Any]]] = [
            (f"/v1/sessions/{begun}/step", samples),
            ("/v1/step", {"state_token": token, "values": [2.0]}),
            ("/v1/step", {"model": "animals", **samples}),
            ("/v1/sessions", {"model": "animals", "state_token": token}),
            ("/v1/timeseries/classify", {"model": "animals", "inputs": [{"series": [1, 2]}], "options": {"top_k": 2}}),
            (
                "/v1/timeseries/forecast",
                {"model": "co2", "inputs": [WEEKS], "options": {"horizon": 2, "quantiles": [0.5]}},
            ),
        ]
        for number in numbers:
            if number % 2:
                content, head = mutated(number, BODIES)
                answer = client.post(INFER, content=content, headers={"Inference-Header-Content-Length": str(head)})
            else:
                path, document = documents[number // 2 % len(documents)]
                text = json.dumps(document).encode()
                answer = client.post(path, content=mutated(number, [(text, len(text))])[0])
            statuses[answer.status_code] += 1
            if answer.status_code != 200:
                check_error(answer.status_code, answer.json())
    return statuses


def ask_frames(process: ServeProcess, numbers: range) -> Counter[int]:
    """Frames of a WebSocket, text and binary; 200 counts those that were answered."""
    address = f"ws://127.0.0.1:{process.port}/v1/stream?model=animals"
    text = json.dumps({"stream": 1, "values": [[0.5], [None]], "id": "a", "token": True, "sequence": None}).encode()
    binary = [
        frame([1, 2], noise(2, 3, 1)),
        frame([3], noise(1, 1, 1), want_tokens=True, sequence=[1]),
        frame([4, 5, 6], noise(3, 2, 1), last=True),
        frame([7], noise(1, 2, 1), tokens=[""]),
    ]
    statuses: Counter[int] = Counter()
    connection: ClientConnection | None = None
    try:
        for number in numbers:
            if connection is None:
                connection = connect(address, compression=None, max_size=None).__enter__()
                connection.recv(PATIENCE_SECONDS)
            if number % 3:
                # All of a binary frame is data to the mutations.
                content, _ = mutated(number, [(each, 0) for each in binary])
                connection.send(content)
            else:
                content, _ = mutated(number, [(text, len(text))])
                connection.send(content.decode("utf-8", "replace"))
            try:
                answer = connection.recv(PATIENCE_SECONDS)
            except ConnectionClosed as error:
                raise AssertionError(f"frame {number} closed the socket: {error}") from error
            found = json.loads(answer) if isinstance(answer, str) else {}
            if "error" in found:
                check_error(found["status"], found)
            statuses[found.get("status", 200)] += 1
            if number % 500 == 499:
                connection.close()
                connection = None
    finally:
        if connection is not None:
            connection.close()
    return statuses


def check_right(process: ServeProcess, opened: ServedModel) -> None:
    """What was sent before has changed nothing."""
    x = noise(2, 9, 1, seed=3)
    content, head = tensors(x)
    answer = httpx.post(
        f"{process.url}{INFER}", content=content, headers={"Inference-Header-Content-Length": str(head)}
    )
    size = int(answer.headers["Inference-Header-Content-Length"])
    logits = np.frombuffer(answer.content[size:], "<f4").reshape(2, 4)
    assert np.array_equal(logits, opened.run_sequence(x)["logits"])
    assert httpx.get(f"{process.url}/v2/health/ready").status_code == 200
    assert "Traceback" not in process.read_log()


@pytest.mark.parametrize("ask", [ask_bodies, ask_frames])
def test_ten_thousand_damaged_requests(
    process: ServeProcess, opened: ServedModel, ask: Callable[[ServeProcess, range], Counter[int]]
) -> None:
    ask(process, range(100_000, 102_000))
    before = rss_mb(process.process.pid)
    statuses = ask(process, range(10_000))
    assert statuses[200] > 300
    assert statuses[400] > 3000
    check_right(process, opened)
    assert rss_mb(process.process.pid) - before < 15
