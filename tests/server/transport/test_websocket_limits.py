"""What arrives over WebSockets counts before it is a frame, and is bounded however it is cut."""

from __future__ import annotations

import json
import logging
import select
import socket
from collections.abc import Iterator
from contextlib import suppress

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Frame, Opcode

from connection_helpers import connected
from scheduler_helpers import wait
from server_helpers import Published, Running, serve
from stablernn_server import Settings, create_app
from stablernn_server.transport.websocket_protocol import MAX_EMPTY_FRAGMENTS
from stream_helpers import Wire, assert_same_bits, frame

LIMIT = 300_000
HANDSHAKE = (
    b"GET /v1/stream?model=animals HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def small(published: Published) -> Iterator[Running]:
    """A server that holds little and waits for frames only briefly."""
    settings = Settings(
        registry=published.root,
        models=("animals:1",),
        max_held_bytes=LIMIT,
        max_body_bytes=2**20,
        read_timeout_seconds=1.0,
    )
    yield from serve(create_app(settings))


@pytest.fixture(scope="module")
def patient(published: Published) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=published.root, models=("animals:1",), max_held_bytes=LIMIT)))


def fragment(content: bytes, *, opcode: Opcode = Opcode.CONT, fin: bool = False) -> bytes:
    return Frame(opcode, content, fin).serialize(mask=True)


def closed(wire: Wire) -> tuple[int, str]:
    """Code and reason with which the server closes."""
    with pytest.raises(ConnectionClosedError) as caught:
        wire.socket.recv(20)
    close = caught.value.rcvd
    assert close is not None
    return close.code, close.reason


def held_bytes(server: Running) -> int:
    count: int = server.app.state.context.budget.held_bytes
    return count


def test_a_frame_that_is_arriving_counts_as_held(patient: Running) -> None:
    with Wire(patient.url, "animals") as wire:
        content = fragment(b" " * 200_000, opcode=Opcode.BINARY, fin=True)
        wire.socket.socket.sendall(content[:100_000])
        wait(lambda: 99_000 < held_bytes(patient) < 101_000)
        wire.socket.socket.sendall(content[100_000:150_000])
        wait(lambda: 149_000 < held_bytes(patient) < 151_000)
        assert 149_000 < held_bytes(patient) < 151_000
        # A frame that says goodbye would be taken for a part of this one, and its answer waited for in vain.
        wire.socket.socket.shutdown(socket.SHUT_RDWR)
    wait(lambda: held_bytes(patient) == 0)
    assert held_bytes(patient) == 0


def test_frames_that_arrive_together_hold_no_more_than_the_limit(patient: Running) -> None:
    with Wire(patient.url, "animals") as first, Wire(patient.url, "animals") as second:
        for wire in (first, second):
            wire.socket.socket.sendall(fragment(b" " * 200_000, opcode=Opcode.BINARY))
        codes = []
        for wire in (first, second):
            try:
                wire.socket.recv(0.5)
            except TimeoutError:
                continue
            except ConnectionClosedError:
                codes.append(closed(wire))
        assert codes == [(1013, "The server holds too many bytes of requests; try again later.")]
        assert held_bytes(patient) == 200_000
    wait(lambda: held_bytes(patient) == 0)


def test_a_short_frame_is_answered_however_much_others_hold(small: Running) -> None:
    with Wire(small.url, "animals") as first, Wire(small.url, "animals") as second:
        first.socket.socket.sendall(fragment(b" " * (LIMIT - 100), opcode=Opcode.BINARY))
        wait(lambda: held_bytes(small) == LIMIT - 100)
        answer = second.say(values=[1.0] * 50)
        assert (answer["code"], answer["status"]) == ("busy", 503)


@pytest.mark.parametrize("opcode", [Opcode.TEXT, Opcode.BINARY])
def test_empty_fragments_are_limited(patient: Running, opcode: Opcode) -> None:
    with Wire(patient.url, "animals") as wire:
        first = fragment(b"", opcode=opcode)
        wire.socket.socket.sendall(first + fragment(b"") * MAX_EMPTY_FRAGMENTS * 1000)
        assert closed(wire) == (1008, "The frame has more than 100 empty fragments.")


def test_a_frame_in_fragments_is_the_same_frame(patient: Running) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 6, 1)
    content = frame([0], x)
    with Wire(patient.url, "animals") as wire:
        _, whole, _ = wire.step([0], x)
    with Wire(patient.url, "animals") as wire:
        parts = [fragment(b"", opcode=Opcode.BINARY)]
        parts += [fragment(content[place : place + 1]) + fragment(b"") for place in range(len(content))]
        wire.socket.socket.sendall(b"".join(parts) + fragment(b"", fin=True))
        answer = wire.socket.recv(20)
        assert isinstance(answer, bytes)
        assert_same_bits(wire.read(answer)[1], whole)
        # The library sends each piece as a fragment of a text.
        wire.socket.send(["{", '"values"', ": [[1.0]]}"])
        assert json.loads(wire.socket.recv(20))["step"] == 7


@pytest.mark.parametrize("pieces", [[b" " * 2], [b"", b" "]], ids=["frame", "fragments"])
def test_a_frame_that_does_not_arrive_is_given_up(small: Running, pieces: list[bytes]) -> None:
    with Wire(small.url, "animals") as wire:
        if len(pieces) == 1:
            wire.socket.socket.sendall(fragment(pieces[0], opcode=Opcode.BINARY)[:-1])
        else:
            wire.socket.socket.sendall(fragment(pieces[0], opcode=Opcode.BINARY) + fragment(pieces[1]))
        assert closed(wire) == (1008, "The frame did not arrive within 1 s.")
    wait(lambda: held_bytes(small) == 0)


def test_the_client_sees_why_a_frame_was_too_long(small: Running) -> None:
    with Wire(small.url, "animals") as wire:
        # The client may notice before it has sent everything.
        with suppress(ConnectionClosedError):
            wire.socket.send(b" " * 30_000_000)
        assert closed(wire)[0] == 1009


def test_a_text_that_is_not_utf_8_is_told_so(patient: Running) -> None:
    with Wire(patient.url, "animals") as wire:
        wire.socket.socket.sendall(fragment(b"\xff", opcode=Opcode.TEXT, fin=True))
        assert closed(wire) == (1007, "The text frame is not UTF-8.")


def test_an_answer_to_a_connection_that_was_failed_is_no_error(
    patient: Running, caplog: pytest.LogCaptureFixture
) -> None:
    whole = fragment(frame([0], np.zeros((1, 6, 1), np.float32)), opcode=Opcode.BINARY, fin=True)
    sockets = patient.app.state.context.sockets
    with caplog.at_level(logging.WARNING), connected(patient.port) as connection:
        connection.sendall(HANDSHAKE)
        wait(lambda: len(sockets) == 1)
        # A client that does not close when it is told why.
        connection.sendall(whole + whole + fragment(b"\xff", opcode=Opcode.TEXT, fin=True))
        wait(lambda: len(sockets) == 0)
        # In its next turn the event loop has written down what became of the socket.
        assert httpx.get(f"{patient.url}/v2/health/live").status_code == 200
    assert caplog.messages == []


def test_pings_of_a_client_that_does_not_read_are_not_answered_into_memory(patient: Running) -> None:
    ping, pong = (
        Frame(opcode, b"x" * 100).serialize(mask=opcode is Opcode.PING) for opcode in (Opcode.PING, Opcode.PONG)
    )
    pings = ping * 400_000
    with connected(patient.port) as connection:
        connection.sendall(HANDSHAKE)
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
        sent = 0
        while sent < len(pings) and select.select((), (connection,), (), 2)[1]:
            sent += connection.send(pings[sent : sent + 2**16])
        # The kernel's buffers of both directions take some megabytes.
        assert sent < len(pings)
        # The server goes on where it stopped.
        received = 0
        while received < sent // len(ping) * len(pong):
            received += len(connection.recv(2**20))
