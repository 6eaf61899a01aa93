"""Requests and frames leave nothing that only the collector would free: it comes by rarely, and a body may be large."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from scheduler_helpers import scheduling
from server_helpers import Published, json_tensor
from stablernn_runtime import ServedModel
from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchResult
from stablernn_server import NotReadyError, Settings, create_app
from stablernn_server.batching.types import Caller

COUNT = 20
INFER = "/v2/models/animals/infer"
X = json_tensor("x", np.ones((1, 4, 1), np.float32))


def infer(**entries: Any) -> bytes:
    return json.dumps({"inputs": [X], **entries}).encode()


REQUESTS: dict[str, tuple[str, bytes, int]] = {
    "answered": (INFER, infer(), 200),
    "in a sequence": (INFER, infer(parameters={"sequence_id": 3, "sequence_start": True, "sequence_end": True}), 200),
    "no JSON": (INFER, b"{", 400),
    "no JSON, with a NaN": (INFER, b'{"inputs": NaN', 400),
    "two features": (INFER, infer(inputs=[X | {"shape": [1, 2, 2]}]), 400),
    "text": (INFER, infer(inputs=[X | {"data": ["a", "b", "c", "d"]}]), 400),
    "an unknown output": (INFER, infer(outputs=[{"name": "none"}]), 400),
    "an unknown model": ("/v2/models/none/infer", infer(), 404),
    "too late": (INFER, infer(parameters={"timeout": 1}), 504),
    "a step": ("/v1/step", json.dumps({"model": "animals", "values": [[1.0]]}).encode(), 200),
    "a step of text": ("/v1/step", json.dumps({"model": "animals", "values": [["a"]]}).encode(), 400),
    "no forecast": ("/v1/timeseries/forecast", b"{}", 400),
}
FRAMES: dict[str, str] = {
    "answered": '{"stream": 0, "values": [[1.0]]}',
    "with a token": '{"stream": 0, "values": [[1.0]], "token": true}',
    "no JSON": "{",
    "text": '{"stream": 0, "values": [["a"]]}',
    "a false token": '{"stream": 0, "values": [[1.0]], "state_token": "none"}',
}


class Connection:
    """The application as its HTTP server calls it, without the server, whose own objects would be counted."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def scope(self, kind: str, path: str, query: bytes = b"") -> dict[str, Any]:
        head = {"type": kind, "http_version": "1.1", "path": path, "raw_path": path.encode(), "query_string": query}
        where = {"root_path": "", "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1)}
        return head | where | {"headers": [(b"host", b"127.0.0.1:80"), (b"content-type", b"application/json")]}

    async def post(self, path: str, body: bytes) -> int:
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        statuses: list[int] = []

        async def receive() -> dict[str, Any]:
            if not messages:
                await asyncio.Event().wait()
            return messages.pop()

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        await self.app(self.scope("http", path) | {"method": "POST"}, receive, send)
        return statuses[0]

    @asynccontextmanager
    async def stream(self) -> AsyncIterator[tuple[asyncio.Queue[Any], asyncio.Queue[Any]]]:
        """What the client sends and what it gets, over one WebSocket that is open for this block."""
        sent: asyncio.Queue[Any] = asyncio.Queue()
        got: asyncio.Queue[Any] = asyncio.Queue()
        sent.put_nowait({"type": "websocket.connect"})
        scope = self.scope("websocket", "/v1/stream", b"model=animals") | {"subprotocols": [], "extensions": {}}
        task = asyncio.create_task(self.app(scope, sent.get, got.put))
        assert (await got.get())["type"] == "websocket.accept"
        await got.get()
        yield sent, got
        sent.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await task


async def left_by(work: Callable[[], Awaitable[object]]) -> list[str]:
    """Types of what some calls leave to the collector, if each leaves something; the first makes what all share."""
    await work()
    await asyncio.sleep(0.05)
    gc.disable()
    # Torch and its exporter bring half a million objects, which are not of this block: to look through them takes
    # longer than all requests.
    gc.freeze()
    try:
        for _ in range(COUNT):
            await work()
        await asyncio.sleep(0.05)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [type(each).__name__ for each in gc.garbage] if len(gc.garbage) >= COUNT else []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


@asynccontextmanager
async def connected(published: Published) -> AsyncIterator[Connection]:
    app = create_app(Settings(registry=published.root, models=("animals",)))
    async with app.router.lifespan_context(app):
        yield Connection(app)


def test_requests_leave_none(published: Published) -> None:
    async def ask() -> None:
        async with connected(published) as connection:
            for name, (path, body, status) in REQUESTS.items():

                async def request(path: str = path, body: bytes = body, status: int = status) -> None:
                    assert await connection.post(path, body) == status

                assert (name, await left_by(request)) == (name, [])

    asyncio.run(ask())


def test_a_client_that_does_not_take_its_answer_leaves_none(published: Published) -> None:
    async def leave(connection: Connection) -> None:
        messages = [{"type": "websocket.receive", "text": FRAMES["answered"]}, {"type": "websocket.connect"}]
        scope = connection.scope("websocket", "/v1/stream", b"model=animals") | {"subprotocols": [], "extensions": {}}
        sent = 0

        async def receive() -> dict[str, Any]:
            return messages.pop()

        async def send(message: Any) -> None:
            nonlocal sent
            sent += 1
            if sent == 3:  # after the handshake and what the server says first
                raise OSError("The client has left.")

        await connection.app(scope, receive, send)
        assert sent == 3

    async def ask() -> None:
        async with connected(published) as connection:
            assert await left_by(lambda: leave(connection)) == []

    asyncio.run(ask())


def test_a_run_that_is_ended_leaves_none(animals: ServedModel) -> None:
    def ended(stop: CancellationToken) -> BatchResult:
        raise NotReadyError("The run was ended.")

    async def ask() -> None:
        async with scheduling(inferences=1) as desk:

            async def call() -> None:
                with pytest.raises(NotReadyError):
                    await desk.scheduler.call(animals, ended, 1, caller=Caller())

            assert await left_by(call) == []

    asyncio.run(ask())


def test_frames_leave_none(published: Published) -> None:
    async def ask() -> None:
        async with connected(published) as connection, connection.stream() as (sent, got):
            for name, text in FRAMES.items():

                async def frame(name: str = name, text: str = text) -> None:
                    sent.put_nowait({"type": "websocket.receive", "text": text})
                    answer = json.loads((await got.get())["text"])
                    assert ("error" in answer) == (name not in ("answered", "with a token"))

                assert (name, await left_by(frame)) == (name, [])

    asyncio.run(ask())
