"""Handshakes of WebSockets that are refused, and what they leave to others."""

from __future__ import annotations

import logging
import socket
import struct
import time
from contextlib import ExitStack

import httpx
import pytest
from websockets.frames import Frame, Opcode

from connection_helpers import (
    GET,
    HANDSHAKE_FIELDS,
    HEALTH,
    animals_server,
    assert_healthy,
    connected,
    read_error,
    read_response,
    read_some,
)
from scheduler_helpers import wait
from server_helpers import Published, Running

# Of WebSocket handshakes, which have none.
BODIES = {
    "a length": b"Content-Length: 1",
    "a length of two digits": b"Content-Length: 00",
    "chunks": b"Transfer-Encoding: chunked",
}


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (
            b"GET /v1/stream?model=animals HTTP/1.1\r\n" + b"X: " + b"a" * 9000,
            (431, "head_too_large", "A line of the WebSocket handshake is longer than 8192 bytes; send a shorter one."),
        ),
        (b"POST /v1/stream HTTP/1.1", (400, "bad_input", "A WebSocket handshake must be a GET request.")),
    ],
    ids=["long line", "POST"],
)
def test_a_handshake_that_the_websocket_library_refuses_is_answered(
    server: Running, head: bytes, answer: tuple[int, str, str]
) -> None:
    with connected(server.port) as connection:
        connection.sendall(head + HANDSHAKE_FIELDS)
        assert read_error(connection) == answer


@pytest.mark.parametrize("body", BODIES.values(), ids=list(BODIES))
def test_a_handshake_with_a_body_is_a_400(server: Running, body: bytes) -> None:
    with connected(server.port) as connection:
        connection.sendall(b"GET /v1/stream?model=animals HTTP/1.1\r\n" + body + HANDSHAKE_FIELDS)
        sentence = "A WebSocket handshake must not have a body; send it without one."
        assert read_error(connection) == (400, "bad_input", sentence)


def test_a_handshake_has_as_many_fields_as_the_websocket_library_takes(published: Published) -> None:
    with animals_server(published, max_head_fields=200) as server:
        # With the 5 fields that make it a handshake.
        heads = [b"GET /v1/stream?model=animals HTTP/1.1" + b"\r\nX: a" * count for count in (123, 124)]
        with connected(server.port) as connection:
            connection.sendall(heads[0] + HANDSHAKE_FIELDS)
            assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
        with connected(server.port) as connection:
            connection.sendall(heads[1] + HANDSHAKE_FIELDS)
            sentence = "The WebSocket handshake has more than 128 fields; send fewer headers."
            assert read_error(connection) == (431, "head_too_large", sentence)


def test_handshakes_that_are_refused_take_no_connection_from_others(published: Published) -> None:
    handshake = b"GET / HTTP/1.1\r\nContent-Length: 1" + HANDSHAKE_FIELDS
    with animals_server(published, max_connections=3, infer_tokens=("a" * 32,)) as server, ExitStack() as stack:
        for _ in range(6):
            refused = stack.enter_context(connected(server.port))
            refused.sendall(handshake)
            # Refused and ended by the server; the client keeps its end open.
            while refused.recv(2**16):
                pass
        with connected(server.port) as another:
            assert_healthy(another)


def test_a_server_stops_in_order_beside_a_handshake_that_failed(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack, animals_server(published) as server:
        # Closed after the server has stopped.
        connection = stack.enter_context(connected(server.port))
        fields = b"\r\nTransfer-Encoding: chunked" + HANDSHAKE_FIELDS
        connection.sendall(b"GET /v1/stream?model=animals HTTP/1.1" + fields + b"0\r\n\r\n")
        with connected(server.port) as another:
            assert_healthy(another)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_handshake_and_frames_may_be_sent_ahead(server: Running) -> None:
    frame = Frame(Opcode.TEXT, b'{"values": [[1.0]]}').serialize(mask=True)
    with connected(server.port) as connection:
        handshake = b"GET /v1/stream?model=animals HTTP/1.1" + HANDSHAKE_FIELDS
        connection.sendall(HEALTH + handshake + frame * 300)
        assert read_response(connection)[0] == 200
        received = b""
        while b'"step":300' not in received:
            received += read_some(connection, 2**16)
        assert received.startswith(b"HTTP/1.1 101 ")


def test_many_requests_that_ask_for_another_protocol_are_answered_one_by_one(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    request = GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n"
    with connected(server.port) as connection:
        connection.sendall(request * 1000)
        for _ in range(1000):
            assert read_response(connection)[0] == 200
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("seconds", [0, 0.01])
def test_a_client_that_resets_after_its_handshake_leaves_no_error(
    server: Running, caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    for _ in range(20):
        with connected(server.port) as connection:
            # Closing then sends a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(b"GET /v1/stream?model=animals HTTP/1.1" + HANDSHAKE_FIELDS)
            time.sleep(seconds)
    assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
    wait(lambda: len(server.app.state.context.sockets) == 0)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
