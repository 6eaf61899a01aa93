"""The end of connections: servers that stop, clients that leave, and frames that are in hand."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from server_helpers import Published, Running
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app
from stream_helpers import (
    STATE_KEY,
    Wire,
    assert_same_bits,
    failures,
    frame,
    offline,
    samples,
    serving,
)

pytestmark = pytest.mark.anyio


def leave(running: Running, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    sockets = running.app.state.context.sockets
    asyncio.run_coroutine_threadsafe(sockets.drain(seconds), loop).result(seconds + 10)


def test_a_server_that_stops_hands_back_the_streams(stream_models: Published, classes: ServedModel) -> None:
    """Every client gets a token of each stream that has begun, and goes on elsewhere with the same bits."""
    x = np.stack([samples(classes, 5, seed) for seed in range(3)])
    tokens: dict[str, str] = {}
    for running in serving(stream_models, models=("classes",)):
        loop = loop_of(running)
        with Wire(running.url, "classes") as wire, Wire(running.url, "classes") as idle:
            wire.step([4, 9, 6], x[:, :2])
            leave(running, loop, 5)
            said = json.loads(wire.socket.recv(10))
            assert said["closing"] is True
            tokens = said["state_tokens"]
            assert tokens.keys() == {"4", "9", "6"}
            assert json.loads(idle.socket.recv(10)) == {"closing": True, "state_tokens": {}}
            for connection in (wire.socket, idle.socket):
                with pytest.raises(ConnectionClosed) as caught:
                    connection.recv(10)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1001
    for running in serving(stream_models, models=("classes",)):
        with Wire(running.url, "classes") as wire:
            _, found, _ = wire.step([1, 2, 3], x[:, 2:], tokens=[tokens["4"], tokens["9"], tokens["6"]])
    for place in range(3):
        expected = {name: value[2:] for name, value in offline(classes, x[place]).items()}
        assert_same_bits({name: value[place] for name, value in found.items()}, expected)


def loop_of(running: Running) -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = running.app.state.context.scheduler._loop
    return loop


LONG = 100_000
"""Samples of a frame that takes seconds."""


def long_frame(steps: int = LONG) -> bytes:
    return frame([0], np.zeros((1, steps, 3)), last=True)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_goes_ends_its_run(alone: Running) -> None:
    scheduler = alone.app.state.context.scheduler
    with Wire(alone.url, "deep") as wire:
        wire.socket.send(long_frame())
        wait_for(lambda: scheduler.pending == 1)
        wire.socket.socket.close()  # without a word
    wait_for(lambda: scheduler.pending == 0)
    wait_for(lambda: failures(alone, "client_gone", "deep") == 1)
    assert not alone.app.state.context.sockets.streams


def test_what_is_sent_while_a_frame_takes_long_is_answered_in_its_order(alone: Running) -> None:
    """While it is looked whether the client has gone, its next frames come in."""
    with Wire(alone.url, "deep") as wire:
        wire.socket.send(long_frame(20_000))
        for step in range(3):
            wire.socket.send(frame([0], np.zeros((1, 1, 3)), sequence=[20_001 + step]))
        wire.socket.send(json.dumps({"token": True}))
        for step in (20_000, 20_001, 20_002, 20_003):
            answer = wire.socket.recv(60)
            assert isinstance(answer, bytes)
            assert wire.read(answer)[0] == [step]
        assert json.loads(wire.socket.recv(60))["step"] == 20_003
    wait_for(lambda: alone.app.state.context.budget.held_bytes == 0)


def test_goodbye_is_said_after_the_frame_in_hand(alone: Running) -> None:
    context, loop = alone.app.state.context, loop_of(alone)
    with Wire(alone.url, "deep") as wire:
        wire.socket.send(long_frame(20_000))
        wait_for(lambda: context.scheduler.pending == 1)
        leave(alone, loop, 60)
        # Not before: whoever goes on closes the connections.
        assert context.scheduler.pending == 0
        answer = wire.socket.recv(10)
        assert isinstance(answer, bytes)
        assert wire.read(answer)[0] == [20_000]
        assert list(json.loads(wire.socket.recv(10))["state_tokens"]) == ["0"]


def test_a_frame_that_outlasts_the_grace_is_ended(alone: Running, stream_models: Published) -> None:
    """It has an answer, and the stream is where it was before the frame."""
    context, loop = alone.app.state.context, loop_of(alone)
    x = np.ones((1, 2, 3))
    with Wire(alone.url, "deep") as wire:
        wire.step([0], x[:, :1])
        wire.socket.send(long_frame())
        wait_for(lambda: context.scheduler.pending == 1)
        leave(alone, loop, 0.01)
        error = json.loads(wire.socket.recv(10))
        assert (error["code"], error["status"]) == ("not_ready", 503)
        assert error["error"] == "The server is shutting down and did not finish this request; send it again."
        (token,) = json.loads(wire.socket.recv(10))["state_tokens"].values()
        with pytest.raises(ConnectionClosed) as caught:
            wire.socket.recv(10)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001
    assert context.scheduler.pending == 0
    with Wire(alone.url, "deep") as wire:
        taken, found, _ = wire.step([5], x[:, 1:], tokens=[token], sequence=[2])
        assert taken == [2]
    model = ServedModel.load(stream_models.registry.get("deep"), "cpu")
    expected = {name: value[1:] for name, value in offline(model, x[0].astype(np.float32)).items()}
    assert_same_bits({name: value[0] for name, value in found.items()}, expected)


@pytest.mark.parametrize("told", ["websocket.connect", "websocket.accept"])
async def test_a_handshake_in_the_middle_of_a_drain(stream_models: Published, told: str) -> None:
    """Told to stop before it agreed, the server refuses; told after, it says goodbye at once."""
    app = create_app(Settings(registry=stream_models.root, state_key=STATE_KEY, models=("classes",)))
    context = app.state.context
    sent: list[Any] = []

    context.start()
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    incoming.put_nowait({"type": "websocket.connect"})

    async def receive() -> dict[str, Any]:
        message = await incoming.get()
        if message["type"] == told:
            context.drain(5)
        return message

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)
        if message["type"] == told:
            context.drain(5)
        if message["type"] == "websocket.close":
            incoming.put_nowait({"type": "websocket.disconnect", "code": 1001})

    scope = {
        "type": "websocket",
        "path": "/v1/stream",
        "query_string": b"model=classes",
        "headers": [],
        "subprotocols": [],
        "client": ("127.0.0.1", 1),
        "extensions": {"websocket.http.response": {}},
    }
    await asyncio.wait_for(app(scope, receive, send), 10)
    await context.stop()
    kinds = [message["type"] for message in sent]
    if told == "websocket.connect":
        assert kinds == ["websocket.http.response.start", "websocket.http.response.body"]
        assert sent[0]["status"] == 503
    else:
        assert kinds == ["websocket.accept", "websocket.send", "websocket.send", "websocket.close"]
        assert json.loads(sent[2]["text"]) == {"closing": True, "state_tokens": {}}


def test_random_disconnects_lose_nothing_that_the_client_holds(running: Running, classes: ServedModel) -> None:
    """Each answer brings a token; wherever the connection breaks, the stream goes on from the last one."""

    def follow(seed: int) -> dict[str, np.ndarray]:
        random, x = np.random.default_rng(seed), samples(classes, 25, seed)
        found, token, step = [], "", 0
        while step < 25:
            with Wire(running.url, "classes") as wire:
                for _ in range(int(random.integers(1, 6))):
                    if step == 25:
                        break
                    given = [token] if token else None
                    _, outputs, (token,) = wire.step([0], x[None, step : step + 1], tokens=given, want_tokens=True)
                    found.append({name: value[0] for name, value in outputs.items()})
                    step += 1
                if step < 25:
                    # Sent, and never answered as far as the client knows: it sends the same sample again.
                    wire.socket.send(frame([0], x[None, step : step + 1], tokens=[token]))
                    wire.socket.socket.close()
        joined = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
        assert_same_bits(joined, offline(classes, x))
        return joined

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(follow, range(8)))) == 8
