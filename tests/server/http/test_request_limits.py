"""What one request, one client or a stop may not do to the server: take its memory, its time, or its last breath."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

from connection_helpers import health_watched
from scheduler_helpers import PATIENT, busy, on_loop, wait
from server_helpers import Published, Running, json_tensor, raw_request, serve
from serving_helpers import rss_mb, start_serve
from stablernn_server import InputError, Settings, create_app
from stablernn_server.codecs.json_values import to_array
from stablernn_server.http.app_context import UNFINISHED

LONG = 400_000
"""Time steps whose inference takes a good second."""


@contextmanager
def running(published: Published, **settings: Any) -> Iterator[Running]:
    app = create_app(Settings(registry=published.root, models=("animals", "co2"), **settings))
    yield from serve(app)


@pytest.fixture(scope="module")
def small(published: Published) -> Iterator[Running]:
    """A server with little of everything, and one inference at a time."""
    with running(
        published, inferences=1, max_json_bytes=2000, max_held_bytes=4000, max_steps=50, read_timeout_seconds=0.5
    ) as server:
        yield server


def test_a_long_text_takes_no_memory_but_its_own() -> None:
    data = ["a" * 1_000_000, *["b"] * 100_000]  # as an array of texts: 400 GB
    with pytest.raises(InputError, match="^data holds text"):
        to_array(data, "data")


def test_json_has_a_smaller_limit_than_raw_tensors(small: Running) -> None:
    too_long = "The body is longer than the limit of 2000 bytes; send fewer or shorter series at a time."
    for path in ("/v1/timeseries/classify", "/v2/models/animals/infer"):
        response = httpx.post(f"{small.url}{path}", content=b" " * 2001)
        assert (response.status_code, response.json()["error"]) == (413, too_long)
    content, headers = raw_request({"x": np.zeros((20, 40, 1), np.float32)})
    assert len(content) > 3000
    response = httpx.post(f"{small.url}/v2/models/animals/infer", content=content, headers=headers)
    assert response.status_code == 200, response.text
    headers = {"Inference-Header-Content-Length": "2001"}
    response = httpx.post(f"{small.url}/v2/models/animals/infer", content=b" " * 3000, headers=headers)
    assert (response.status_code, response.json()["error"]) == (413, too_long)


def test_more_time_steps_than_the_limit_are_refused(small: Running) -> None:
    sentence = "A sequence of 51 time steps is longer than the limit of 50; send it in parts, or its end."
    body = {"model": "animals", "inputs": [{"series": [1]}, {"series": [1] * 51}]}
    response = httpx.post(f"{small.url}/v1/timeseries/classify", json=body)
    assert (response.status_code, response.json()) == (413, {"error": sentence, "code": "too_large"})
    content, headers = raw_request({"x": np.zeros((1, 51, 1), np.float32)})
    response = httpx.post(f"{small.url}/v2/models/animals/infer", content=content, headers=headers)
    assert (response.status_code, response.json()) == (413, {"error": sentence, "code": "too_large"})
    # A forecast looks at its context only.
    body = {"model": "co2", "inputs": [{"series": [1] * 51}]}
    assert httpx.post(f"{small.url}/v1/timeseries/forecast", json=body).status_code == 200


def test_an_answer_that_waits_for_its_client_is_not_aborted_for_the_body(published: Published) -> None:
    """The request is refused before its body is read, and the client reads later than that would have to arrive."""
    app = create_app(Settings(registry=published.root, models=("animals",), read_timeout_seconds=0.1))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        raise AssertionError("nobody needs the body")

    async def send(message: dict[str, Any]) -> None:
        await asyncio.sleep(0.3)
        sent.append(message)

    async def refuse() -> None:
        path = "/v2/models/none/infer"
        async with app.router.lifespan_context(app):
            await app({"type": "http", "method": "POST", "path": path, "headers": []}, receive, send)

    asyncio.run(refuse())
    assert (sent[0]["status"], len(sent)) == (404, 2)


def opened_session(server: Running) -> str:
    """Path of a session that was opened just now."""
    answer = httpx.post(f"{server.url}/v1/sessions", json={"model": "animals"}).raise_for_status()
    return f"/v1/sessions/{answer.json()['session_id']}"


@contextmanager
def stalled(server: Running, method: str, path: str, length: int = 100, sent: bytes = b"{") -> Iterator[socket.socket]:
    """A request of which no more than the beginning of its body ever comes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENT) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n"
        connection.sendall(head.encode() + sent)
        yield connection


def answered(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and body of an answer after which the server closes the connection."""
    head, _, body = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_body_that_does_not_come_is_given_up(small: Running, method: str) -> None:
    path = "/v1/timeseries/classify" if method == "POST" else opened_session(small)
    with stalled(small, method, path) as connection:
        assert answered(connection) == (
            408,
            {
                "error": "The body did not arrive within 0.5 s; send it faster or in smaller parts.",
                "code": "timeout",
            },
        )


@pytest.mark.parametrize(("method", "end"), [("POST", "/step"), ("DELETE", "")])
def test_the_body_for_a_session_that_is_not_there_is_not_waited_for(small: Running, method: str, end: str) -> None:
    with stalled(small, method, f"/v1/sessions/none{end}") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")


def test_bodies_in_hand_are_bounded_together(published: Published) -> None:
    with (
        running(published, max_held_bytes=3000) as server,
        stalled(server, "POST", "/v1/timeseries/classify", 4000, b" " * 2900) as one,
    ):
        context = server.app.state.context
        wait(lambda: context.budget.held_bytes == 2900)
        body = {"model": "animals", "inputs": [{"series": [1] * 200}]}
        response = httpx.post(f"{server.url}/v1/timeseries/classify", json=body)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert response.json() == {
            "error": "The server holds 3000 bytes of other requests; try again later.",
            "code": "busy",
        }
        one.close()
        wait(lambda: context.budget.held_bytes == 0)
        assert httpx.post(f"{server.url}/v1/timeseries/classify", json=body).status_code == 200


@pytest.mark.slow
def test_large_json_takes_no_more_memory_than_the_limit(published: Published, tmp_path: Path) -> None:
    limit = 128 * 2**20
    environment = {"STABLERNN_MAX_HELD_BYTES": str(limit)}
    server = start_serve(published.root, tmp_path / "log", "--model", "animals:1", environment=environment)

    def post(unit: bytes) -> int:
        data = b",".join([unit] * (12 * 2**20 // (len(unit) + 1)))
        body = b'{"model":"animals","inputs":[{"series":[' + data + b"]}]}"
        headers = {"Content-Encoding": "gzip"}
        content = gzip.compress(body, 1)
        return httpx.post(
            f"{server.url}/v1/timeseries/classify", content=content, headers=headers, timeout=60
        ).status_code

    try:
        before = rss_mb(server.process.pid)
        with health_watched(server.port), ThreadPoolExecutor(6) as threads:
            statuses = set(threads.map(post, [b"[]", b"[0]", b"0", b'{"a":0}', b"[0]", b"0"] * 2))
        assert statuses <= {400, 413, 503}
        peak = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{server.process.pid}/status").read_text())
        assert peak is not None
        assert int(peak[1]) / 1e3 - before < 3 * limit / 1e6
    finally:
        server.kill()


def test_what_a_large_json_is_parsed_to_is_held(published: Published) -> None:
    body = json.dumps({"inputs": [json_tensor("x", np.full((1, 20_000, 1), 0.25, np.float32))]}).encode()
    with running(published, max_held_bytes=3 * len(body)) as server:
        # Sent again, it would be refused again.
        response = httpx.post(f"{server.url}/v2/models/animals/infer", content=body)
        assert (response.status_code, response.json()["code"]) == (413, "too_large")
        assert "max_held_bytes" in response.json()["error"]
        with connect(f"ws://127.0.0.1:{server.port}/v1/stream?model=animals") as socket:
            assert json.loads(socket.recv())["model"] == "animals"
            socket.send(json.dumps({"stream": 1, "values": [0.25] * 20_000}))
            reply = json.loads(socket.recv())
        assert (reply["status"], reply["code"]) == (413, "too_large")
    with running(published, max_held_bytes=6 * len(body)) as server:
        assert httpx.post(f"{server.url}/v2/models/animals/infer", content=body).status_code == 200


def test_work_of_a_client_that_left_is_not_begun(published: Published) -> None:
    body = json.dumps({"model": "animals", "inputs": [{"series": [1, 2]}]}).encode()
    head = f"POST /v1/timeseries/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with running(published, inferences=1) as server:
        context = server.app.state.context
        with busy(server, "co2"):
            with socket.create_connection(("127.0.0.1", server.port)) as left:
                left.sendall(head + body)
                wait(lambda: context.scheduler.pending == 2)
            # Only then is its turn.
            wait(lambda: on_loop(server, lambda: all(item.is_gone() for item in context.in_flight)))
        wait(lambda: not context.in_flight and context.scheduler.pending == 0)
        assert context.telemetry.statistics.by_version("animals", 2).executions == 0
        # Others still have theirs.
        assert httpx.post(f"{server.url}/v1/timeseries/classify", content=body).status_code == 200
        assert context.telemetry.statistics.by_version("animals", 2).executions == 1


def test_draining_ends_what_is_in_hand(published: Published) -> None:
    app = create_app(Settings(registry=published.root, models=("animals",), max_steps=40 * LONG, max_elements=2**40))
    content, headers = raw_request({"x": np.zeros((1, 40 * LONG, 1), np.float32)})
    threads = set(threading.enumerate())

    async def stop_while_busy() -> tuple[httpx.Response, httpx.Response, float]:
        context = app.state.context
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            post = asyncio.create_task(client.post("/v2/models/animals/infer", content=content, headers=headers))
            while not context.scheduler.pending:
                await asyncio.sleep(0.01)
            started = time.monotonic()
            context.drain(0.3)
            refused = await client.post("/v2/models/animals/infer", content=content, headers=headers)
            return await post, refused, time.monotonic() - started

    ended, refused, seconds = asyncio.run(stop_while_busy())
    assert 0.3 <= seconds < 5
    assert (ended.status_code, ended.headers["retry-after"]) == (503, "5")
    assert ended.json() == {
        "error": "The server is shutting down and did not finish this request; send it again.",
        "code": "not_ready",
    }
    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    # The inference has ended, which would go on for longer than this waits. Servers of other tests may start threads of
    # other kinds meanwhile.
    wait(lambda: {thread for thread in threading.enumerate() if thread.name == "worker"} <= threads)


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_draining_ends_bodies_that_do_not_come(published: Published, method: str) -> None:
    with running(published) as server:
        path = "/v1/timeseries/classify" if method == "POST" else opened_session(server)
        context = server.app.state.context
        with stalled(server, method, path) as connection:
            wait(lambda: context.budget.held_bytes == 1)
            on_loop(server, lambda: context.drain(0.2))
            assert answered(connection) == (503, {"error": UNFINISHED, "code": "not_ready"})


def test_a_series_of_missing_values_only_is_refused(client: httpx.Client) -> None:
    body: dict[str, Any] = {"model": "animals", "inputs": [{"series": [1]}, {"series": [None, None]}]}
    response = client.post("/v1/timeseries/classify", json=body)
    sentence = "inputs.1.series holds only missing values; at least one must be there."
    assert (response.status_code, response.json()["error"]) == (400, sentence)
    body = {"model": "co2", "inputs": [{"series": [1, *[None] * 6]}]}
    response = client.post("/v1/timeseries/forecast", json=body)
    sentence = (
        "inputs.0.series holds only missing values in the 6 steps that the model uses; at least one must be there."
    )
    assert (response.status_code, response.json()["error"]) == (400, sentence)


def test_empty_variables_are_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REGISTRY", "MODELS", "PORT", "MAX_STEPS"):
        monkeypatch.setenv(f"STABLERNN_{name}", "")
    settings = Settings()
    assert (settings.registry, settings.models, settings.port, settings.max_steps) == (None, (), 8080, 100_000)
