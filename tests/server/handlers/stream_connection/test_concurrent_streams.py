"""Many sockets at a time, the order of their answers, and readers that are slow."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

import numpy as np
import pytest
from websockets.asyncio.client import connect as connect_async

from server_helpers import Published, Running
from stablernn_runtime import ServedModel
from stream_helpers import (
    Wire,
    X,
    frame,
    samples,
    serving,
)


def test_frames_of_a_socket_are_answered_in_their_order(running: Running, classes: ServedModel) -> None:
    """All are sent before the first answer is read, those that are wrong among them."""
    x = samples(classes, 40)
    with Wire(running.url, "classes") as wire:
        for step in range(40):
            wire.socket.send(frame([step % 2], x[None, step : step + 1], sequence=[step // 2 + 1]))
            wire.socket.send(json.dumps({"stream": 5, "id": step, "values": [1]}))
        for step in range(40):
            answer = wire.socket.recv(10)
            assert isinstance(answer, bytes)
            taken, _, _ = wire.read(answer)
            assert taken == [step // 2 + 1]
            assert json.loads(wire.socket.recv(10))["id"] == step


def test_frames_count_among_what_is_held(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",), max_held_bytes=1000):
        with Wire(running.url, "classes") as wire:
            for content in (frame([0], np.zeros((1, 200, 2))), json.dumps({"values": [[1.0, 2.0]] * 200})):
                wire.socket.send(content)
                error = json.loads(wire.socket.recv(10))
                assert (error["code"], error["status"]) == ("too_large", 413)
            taken, _, _ = wire.step([0], np.zeros((1, 10, 2)))
            assert taken == [10]
        with Wire(running.url, "classes") as wire:
            assert wire.say(values=X)["step"] == 1
        assert running.app.state.context.budget.held_bytes == 0


@pytest.mark.slow
def test_a_reader_that_does_not_read_holds_up_itself_alone(alone: Running) -> None:
    """It sends frames whose answers are long; the server works on no more of them than the network holds answers."""
    frames, steps = 80, 1000
    content = frame([0], np.zeros((1, steps, 3)))
    sockets = alone.app.state.context.sockets

    def taken() -> int:
        versions = [version for each in sockets._open for version in each.connection._versions.values()]
        return max((version.batch.steps[0] for version in versions if len(version.batch)), default=0)

    async def send_all(slow: Any) -> None:
        for _ in range(frames):
            await slow.send(content)

    async def read_late() -> list[bytes | str]:
        narrow = socket.create_connection(("127.0.0.1", alone.port))
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        address = f"ws://127.0.0.1:{alone.port}/v1/stream?model=deep"
        async with connect_async(address, sock=narrow, compression=None, max_size=None, max_queue=1) as slow:
            await slow.recv()
            sending = asyncio.create_task(send_all(slow))
            seen = -1
            while seen != (seen := taken()) or not seen:
                await asyncio.sleep(1)
            assert seen < frames * steps
            with Wire(alone.url, "deep") as other:
                await asyncio.to_thread(other.step, [1], np.zeros((1, 1, 3)))
            assert taken() == seen
            answers = [await asyncio.wait_for(slow.recv(), 60) for _ in range(frames)]
            await sending
            return answers

    for place, answer in enumerate(asyncio.run(read_late())):
        assert isinstance(answer, bytes)
        assert struct.unpack_from("<Q", answer, 12) == (steps * (place + 1),)
