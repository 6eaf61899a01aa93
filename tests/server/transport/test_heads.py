"""Heads and bodies of requests, and answers that a client sees although it is still sending."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
from fastapi import Request

from connection_helpers import (
    CHUNKED,
    GET,
    HANDSHAKE_FIELDS,
    HEALTH,
    MIB,
    assert_healthy,
    connected,
    read_end,
    read_error,
    read_response,
    send_all,
)
from server_helpers import Published, Running, serve
from stablernn_server import Settings, create_app
from stablernn_server.transport.http_protocol import HttpProtocol

HEAD_TOO_LARGE = (
    "The head of the request is larger than the limit of 4096 bytes and 20 fields; send fewer or shorter headers."
)


@pytest.fixture(scope="module")
def small(published: Published) -> Iterator[Running]:
    """A server that takes small heads only, and only fast ones."""
    app = create_app(
        Settings(
            registry=published.root,
            models=("animals:1",),
            max_head_bytes=4096,
            max_head_fields=20,
            head_timeout_seconds=0.5,
            max_body_bytes=MIB,
        )
    )

    @app.post("/fields")
    async def fields(request: Request) -> list[str]:
        await request.body()
        return request.headers.keys()

    yield from serve(app)


# Every element that the parser puts together from pieces, of a size that took the server seconds without a limit.
LARGE_HEADS = {
    "a field": GET + b"X: " + b"a" * (8 * MIB),
    "a name": GET + b"a" * (8 * MIB),
    "fields": GET + b"X-Field: a\r\n" * 500_000,
    "empty fields": GET + b"X:\r\n" * 21,
    "the target": b"GET /" + b"a" * (8 * MIB),
    "a trailer": CHUNKED + b"1\r\n \r\n0\r\nX: " + b"a" * (8 * MIB),
    "trailers": CHUNKED + b"1\r\n \r\n0\r\n" + b"X-Field: a\r\n" * 500_000,
    "the extension of a chunk": CHUNKED + b"1;" + b"a" * (8 * MIB),
    "a field just above the limit": GET + b"X: " + b"a" * 4096 + b"\r\n\r\n",
}


@pytest.mark.parametrize("head", LARGE_HEADS.values(), ids=list(LARGE_HEADS))
def test_a_large_head_is_a_431_that_the_client_sees(small: Running, head: bytes) -> None:
    with connected(small.port) as connection:
        send_all(connection, head)
        assert read_error(connection) == (431, "head_too_large", HEAD_TOO_LARGE)


def test_a_head_of_as_many_fields_as_the_limit_is_answered(small: Running) -> None:
    with connected(small.port) as connection:
        for _ in range(2):
            connection.sendall(GET + b"X: a\r\n" * 19 + b"\r\n")
            assert read_response(connection)[0] == 200


def test_a_head_as_large_as_the_limit_is_answered(small: Running) -> None:
    # Of the target and of each field with the four bytes around it.
    room = 4096 - len("/v2/health/live") - len("Host127.0.0.1") - 4 - len("X") - 4
    for length, status in ((room, 200), (room + 1, 431)):
        with connected(small.port) as connection:
            connection.sendall(GET + b"X: " + b"a" * length + b"\r\n\r\n")
            assert read_response(connection)[0] == status


def test_a_long_body_before_the_next_head_does_not_count_in_it(small: Running) -> None:
    body = b" " * 900_000
    post = b"POST /fields HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connected(small.port) as connection:
        connection.sendall(post + body + HEALTH)
        assert read_response(connection)[0] == 200
        assert json.loads(read_response(connection)[2]) == {"live": True}


def test_a_large_head_behind_a_request_does_not_take_its_answer(small: Running) -> None:
    with connected(small.port) as connection:
        send_all(connection, HEALTH + GET + b"X: a\r\n" * 100_000)
        assert read_response(connection)[0] == 200
        assert read_error(connection) == (431, "head_too_large", HEAD_TOO_LARGE)


PIPELINED = {
    "a head": GET + b"a b: c\r\n\r\n",
    "a body": CHUNKED + b"no number\r\n",
    "a handshake": b"POST /v1/stream?model=animals HTTP/1.1" + HANDSHAKE_FIELDS,
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("refused", PIPELINED.values(), ids=list(PIPELINED))
def test_whole_requests_before_one_that_is_refused_are_answered(small: Running, count: int, refused: bytes) -> None:
    with connected(small.port) as connection:
        connection.sendall(HEALTH * count + refused)
        for _ in range(count):
            status, fields, body = read_response(connection)
            assert (status, fields.get("connection"), json.loads(body)) == (200, None, {"live": True})
        assert read_error(connection)[:2] == (400, "bad_input")


BODY = b" " * 3000
MESSAGES = {
    "GET": (HEALTH, 200),
    "a length": (b"POST /fields HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000\r\n\r\n" + BODY, 200),
    "chunks that hold the end of a message": (
        b"POST /fields HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"a\r\n0\r\n\r\nGET /\r\n3\r\n\r\n\r\r\n0\r\nX: a\r\n\r\n",
        200,
    ),
    "chunks with extensions": (
        b"POST /fields HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"004;a=0\r\n\r\n\r\n\r\nA;b\r\n0123456789\r\n000;c\r\n\r\n",
        200,
    ),
    "h2c": (GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n", 200),
    "no route": (b"POST /none HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000\r\n\r\n" + BODY, 404),
    "inference": (b"POST /v2/models/animals/infer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\n{", 400),
}


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_requests_that_are_sent_ahead_are_answered_in_their_order(small: Running, size: int) -> None:
    order = [*MESSAGES, *reversed(MESSAGES), *MESSAGES]
    content = b"\r\n".join(MESSAGES[name][0] for name in order)
    with connected(small.port) as connection:
        for place in range(0, len(content), size):
            connection.sendall(content[place : place + size])
        for name in order:
            assert (name, read_response(connection)[0]) == (name, MESSAGES[name][1])
        assert_healthy(connection)


@pytest.mark.parametrize(
    "content",
    [CHUNKED + b"40000\r\n" + b"\r\n" * 2**17 + b"\r\n0\r\n\r\n", b"\r\n" * 2**12 + HEALTH],
    ids=["in a chunk", "between requests"],
)
def test_line_breaks_do_not_call_the_parser_again_and_again(
    small: Running, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    parts: list[int] = []
    feed = HttpProtocol._feed

    def count(self: HttpProtocol, part: bytes | memoryview) -> bool:
        parts.append(len(part))
        return feed(self, part)

    monkeypatch.setattr(HttpProtocol, "_feed", count)
    with connected(small.port) as connection:
        send_all(connection, content)
        assert read_response(connection)[0] in (200, 400)
        assert_healthy(connection)
    # About one for what is read at a time.
    assert sum(parts) >= len(content)
    assert len(parts) < 100


@pytest.mark.parametrize(
    ("head", "count"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 0),
        (GET + b"host: 127.0.0.1\r\n\r\n", 2),
        (b"GET /v1/stream HTTP/1.1" + HANDSHAKE_FIELDS.replace(b"Host: 127.0.0.1\r\n", b""), 0),
    ],
    ids=["none", "two", "handshake"],
)
def test_a_request_without_its_host_is_a_400(small: Running, head: bytes, count: int) -> None:
    with connected(small.port) as connection:
        connection.sendall(head)
        sentence = f"A request in HTTP/1.1 has one Host header, got {count}; send it with one."
        assert read_error(connection) == (400, "bad_input", sentence)


def test_http_1_0_has_no_host(small: Running) -> None:
    with connected(small.port) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.0\r\n\r\n")
        assert read_response(connection)[0] in (200, 403)


def test_trailers_are_not_taken_for_fields_of_the_head(small: Running) -> None:
    with connected(small.port) as connection:
        head = b"POST /fields HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"1\r\n \r\n0\r\nX-Late: 1\r\n\r\n")
        assert json.loads(read_response(connection)[2]) == ["host", "transfer-encoding"]


@pytest.mark.parametrize(
    "content", [b"nothing of the kind\r\n\r\n", GET + b"a b: c\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"]
)
def test_what_is_not_http_is_a_400(small: Running, content: bytes) -> None:
    with connected(small.port) as connection:
        connection.sendall(content)
        sentence = "The request is not valid HTTP/1.1; correct it and send it again."
        assert read_error(connection) == (400, "bad_input", sentence)


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["first", "second"])
@pytest.mark.parametrize("piece", [b"", b"a"], ids=["stalled", "dripping"])
def test_a_head_that_does_not_end_is_a_408(small: Running, before: bytes, piece: bytes) -> None:
    with connected(small.port) as connection:
        if before:
            connection.sendall(before)
            read_response(connection)
        connection.sendall(GET)
        connection.settimeout(0.05)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            send_all(connection, piece)
            try:
                connection.recv(1, socket.MSG_PEEK)
                break
            except TimeoutError:
                continue
        connection.settimeout(20)
        assert read_error(connection) == (408, "timeout", "The head of the request did not arrive within 0.5 s.")


@pytest.mark.parametrize("content", [b"", b"\r\n"], ids=["silent", "empty lines"])
def test_a_connection_on_which_nothing_is_asked_is_closed(small: Running, content: bytes) -> None:
    with connected(small.port) as connection:
        connection.sendall(content)
        assert read_end(connection) == b""


@pytest.mark.parametrize("framing", [b"Content-Length: %d\r\n\r\n" % (24 * MIB), b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_client_that_sends_first_and_reads_then_sees_the_413(small: Running, framing: bytes) -> None:
    body = b" " * (24 * MIB)
    if b"chunked" in framing:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with connected(small.port) as connection:
        connection.sendall(b"POST /v1/timeseries/classify HTTP/1.1\r\nHost: 127.0.0.1\r\n" + framing + body)
        sentence = "The body is longer than the limit of 1048576 bytes; send fewer or shorter series at a time."
        assert read_error(connection) == (413, "too_large", sentence)
