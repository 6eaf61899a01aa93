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
        *(published.root, tmp_path_factory.mktemp("log") / "log", "--model", "animals:1", "--access-log", "off"),
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


def flip(chance: random.Random, body: Body) -> Body:
    """Bits of a few bytes, anywhere."""
    content = bytearray(body[0])
    for _ in range(chance.randint(1, 8)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(content), body[1]


def cut(chance: random.Random, body: Body) -> Body:
    return body[0][: chance.randrange(len(body[0]))], body[1]


def grow(chance: random.Random, body: Body) -> Body:
    return body[0] + chance.randbytes(chance.randint(1, 64)), body[1]


def splice(chance: random.Random, body: Body) -> Body:
    """A piece is doubled, or taken out."""
    begin, end = sorted(chance.sample(range(len(body[0]) + 1), 2))
    first, rest = (body[0][:end], body[0][begin:]) if chance.random() < 0.5 else (body[0][:begin], body[0][end:])
    return first + rest, body[1]


def lie(chance: random.Random, body: Body) -> Body:
    """The head is not as long as stated."""
    return body[0], chance.choice([0, 1, body[1] - 1, body[1] + 1, len(body[0]), len(body[0]) + 1, 2**31, 2**63, -1])


def odd(chance: random.Random, body: Body) -> Body:
    """Numbers of the tensors that are none, or too large."""
    content = bytearray(body[0])
    if body[1] + 4 <= len(content):
        place = body[1] + 4 * chance.randrange((len(content) - body[1]) // 4)
        content[place : place + 4] = struct.pack("<f", chance.choice([math.nan, math.inf, -math.inf, 3e38, 1e-45]))
    return bytes(content), body[1]


def rebuild(chance: random.Random, body: Body) -> Body:
    """A place of the document holds something else, is gone, or is there twice; it stays JSON."""
    try:
        document = json.loads(body[0][: body[1]])
    except ValueError:
        return flip(chance, body)
    text = json.dumps(rebuilt(chance, document)).encode()
    return text + body[0][body[1] :], len(text)


def rebuilt(chance: random.Random, document: Any) -> Any:
    found = list(places(document))
    if not found:
        return chance.choice(WORDS)
    holder, key = chance.choice(found)
    action = chance.random()
    if action < 0.6:
        holder[key] = chance.choice(WORDS)
    elif action < 0.75:
        del holder[key]
    elif isinstance(holder, list):
        holder.append(chance.choice([holder[key], *WORDS]))
    else:
        holder[chance.choice(NAMES)] = chance.choice([holder[key], *WORDS])
    return document


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from places(document[key])


MUTATIONS: list[Callable[[random.Random, Body], Body]] = [*[rebuild] * 8, *[odd] * 4, flip, cut, grow, splice, lie]


def mutated(number: int, bodies: list[Body]) -> Body:
    """The same for the same number."""
    chance = random.Random(number)
    body = chance.choice(bodies)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        if body[0]:
            body = chance.choice(MUTATIONS)(chance, body)
    return body


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
