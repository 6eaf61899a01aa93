"""Heads, connections and answers that a client gets to see although it is still sending."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request

from certificate_helpers import make_certificate
from connection_helpers import (
    HEALTH,
    connected,
    health_watched,
    is_closed,
    read_end,
    read_error,
    read_response,
    send_all,
)
from scheduler_helpers import wait
from server_helpers import Published, Running, serve
from serving_helpers import ServeProcess, start_serve
from stablernn_server import Settings, SettingsError, create_app
from stablernn_server.process.server import create_connection_table
from stablernn_server.transport.connections import ConnectionTable, parse_networks, raise_file_limit
from stablernn_server.transport.write_coalescing import LINGER_IDLE_SECONDS

MIB = 2**20
SLOW_ANSWER_SECONDS = 2.0
"""Health takes milliseconds; on a machine that is busy with other tests somewhat longer."""
HEAD_TOO_LARGE = (
    "The head of the request is larger than the limit of 4096 bytes and 20 fields; send fewer or shorter headers."
)
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"POST /v1/timeseries/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"


HANDSHAKE_FIELDS = (
    b"\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
# Of WebSocket handshakes, which have none.
BODIES = {
    "a length": b"Content-Length: 1",
    "a length of two digits": b"Content-Length: 00",
    "chunks": b"Transfer-Encoding: chunked",
}


@contextmanager
def running(published: Published, **settings: Any) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=published.root, models=("animals:1",), **settings)))


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
        assert read_end(connection) == b""


PIPELINED = {
    "a head": GET + b"a b: c\r\n\r\n",
    "a body": CHUNKED + b"no number\r\n",
    "a handshake": b"GET /v1/stream?model=animals HTTP/1.1" + HANDSHAKE_FIELDS,
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("refused", PIPELINED.values(), ids=list(PIPELINED))
def test_whole_requests_before_one_that_is_refused_are_answered(small: Running, count: int, refused: bytes) -> None:
    with connected(small.port) as connection:
        connection.sendall(HEALTH * count + refused)
        headers = []
        for _ in range(count):
            status, fields, body = read_response(connection)
            assert (status, json.loads(body)) == (200, {"live": True})
            headers.append(fields.get("connection"))
        assert headers == [None] * (count - 1) + ["close"]
        assert read_end(connection) == b""


def test_a_handshake_after_an_answer_is_accepted(server: Running) -> None:
    with connected(server.port) as connection:
        assert_healthy(connection)
        connection.sendall(b"GET /v1/stream?model=animals HTTP/1.1" + HANDSHAKE_FIELDS)
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")


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


def test_a_body_that_is_not_http_is_a_400(small: Running) -> None:
    with connected(small.port) as connection:
        connection.sendall(CHUNKED + b"no number\r\n")
        assert read_error(connection)[:2] == (400, "bad_input")


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
    with running(published, max_head_fields=200) as server:
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
    with running(published, max_connections=3, infer_tokens=("a" * 32,)) as server, ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(connected(server.port)).sendall(handshake)
        with connected(server.port) as another:
            assert_healthy(another)


def test_a_server_stops_in_order_beside_a_handshake_that_failed(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    with ExitStack() as stack, running(published) as server:
        # Closed after the server has stopped.
        connection = stack.enter_context(connected(server.port))
        fields = b"\r\nTransfer-Encoding: chunked" + HANDSHAKE_FIELDS
        connection.sendall(b"GET /v1/stream?model=animals HTTP/1.1" + fields + b"0\r\n\r\n")
        with connected(server.port) as another:
            assert_healthy(another)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_request_that_asks_for_another_protocol_is_answered_and_so_is_the_next(server: Running) -> None:
    with httpx.Client(base_url=server.url, headers={"Connection": "Upgrade", "Upgrade": "h2c"}) as client:
        for _ in range(2):
            assert client.get("/v2/health/live", timeout=20).status_code == 200


@pytest.mark.parametrize("framing", [b"Content-Length: %d\r\n\r\n" % (24 * MIB), b"Transfer-Encoding: chunked\r\n\r\n"])
def test_a_client_that_sends_first_and_reads_then_sees_the_413(small: Running, framing: bytes) -> None:
    body = b" " * (24 * MIB)
    if b"chunked" in framing:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    with connected(small.port) as connection:
        connection.sendall(b"POST /v1/timeseries/classify HTTP/1.1\r\nHost: 127.0.0.1\r\n" + framing + body)
        sentence = "The body is longer than the limit of 1048576 bytes; send fewer or shorter series at a time."
        assert read_error(connection) == (413, "too_large", sentence)


def test_refused_heads_are_counted(small: Running) -> None:
    with connected(small.port) as connection:
        connection.sendall(b"nothing\r\n\r\n")
        read_error(connection)
    text = httpx.get(f"{small.url}/metrics").text
    assert 'stablernn_requests_total{code="400",model="",route="unread",version=""}' in text


def assert_healthy(connection: socket.socket) -> None:
    connection.sendall(HEALTH)
    assert read_response(connection)[0] == 200


def test_the_longest_idle_connection_gives_way(published: Published) -> None:
    settings = {"max_connections": 6, "max_idle_connections": 6, "head_timeout_seconds": 60}
    with running(published, **settings) as server, ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(6)]
        # The first is not the longest idle one any more.
        assert_healthy(connections[0])
        with connected(server.port) as another:
            assert_healthy(another)
        wait(lambda: is_closed(connections[1]))
        assert not any(is_closed(connection) for connection in connections[2:])
        assert_healthy(connections[2])


def test_where_all_connections_are_busy_one_more_is_a_503(published: Published) -> None:
    with running(published, max_connections=3) as server, ExitStack() as stack:
        context = server.app.state.context
        for count in range(1, 4):
            connection = stack.enter_context(connected(server.port))
            connection.sendall(CHUNKED + b"1\r\n \r\n")
            wait(lambda count=count: context.budget.held_bytes == count)  # type: ignore[misc]
        with connected(server.port) as refused:
            status, headers, body = read_response(refused)
            sentence = "The server has reached its limit of open connections; try again later."
            assert (status, headers["retry-after"]) == (503, "1")
            assert json.loads(body) == {"error": sentence, "code": "busy"}
        connection.close()
        wait(lambda: context.budget.held_bytes == 2)
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize("content", [b"", b"\x16\x03\x01"], ids=["silent", "begun"])
def test_a_tls_handshake_has_the_time_of_a_head(published: Published, tmp_path: Path, content: bytes) -> None:
    make_certificate(tmp_path, "own")
    files = {"tls_cert_file": tmp_path / "own.pem", "tls_key_file": tmp_path / "own.key"}
    with running(published, head_timeout_seconds=1, **files) as server, connected(server.port) as connection:
        connection.sendall(content)
        wait(lambda: is_closed(connection))
        url = f"https://127.0.0.1:{server.port}/v2/health/live"
        assert httpx.get(url, verify=ssl.create_default_context(cafile=files["tls_cert_file"])).status_code == 200


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_tls_handshakes_count_as_idle_connections(published: Published, tmp_path: Path) -> None:
    make_certificate(tmp_path, "own")
    files = {"tls_cert_file": tmp_path / "own.pem", "tls_key_file": tmp_path / "own.key"}
    limits = {"max_connections": 8, "max_idle_connections": 4, "head_timeout_seconds": 60}
    trust = ssl.create_default_context(cafile=files["tls_cert_file"])
    with running(published, **limits, **files) as server, ExitStack() as stack:
        url = f"https://127.0.0.1:{server.port}"
        begun = [stack.enter_context(connected(server.port)) for _ in range(5)]
        wait(lambda: [is_closed(connection) for connection in begun] == [True, False, False, False, False])
        with httpx.Client(base_url=url, verify=trust) as client:
            # Its own handshake takes the place of the second.
            assert client.get("/v2/health/live").status_code == 200
            assert [is_closed(connection) for connection in begun] == [True, True, False, False, False]
            for connection in begun:
                connection.close()
            wait(lambda: "stablernn_connections 1.0" in client.get("/metrics").text)


def open_sockets(port: int) -> int:
    """Sockets of the server that are not closed, whatever the table of connections says."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # The state 0A is the listener; a socket without an inode is closed, and the kernel still says goodbye.
    return sum(row[1].endswith(f":{port:04X}") and row[3] != "0A" and row[9] != "0" for row in rows)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not list its sockets")
def test_tls_clients_that_do_not_say_goodbye_hold_no_sockets(published: Published, tmp_path: Path) -> None:
    make_certificate(tmp_path, "own")
    files = {"tls_cert_file": tmp_path / "own.pem", "tls_key_file": tmp_path / "own.key"}
    trust = ssl.create_default_context(cafile=files["tls_cert_file"])
    with running(published, max_connections=4, max_idle_connections=4, **files) as server, ExitStack() as stack:
        for _ in range(3):
            for _ in range(4):
                connection = trust.wrap_socket(stack.enter_context(connected(server.port)), server_hostname="127.0.0.1")
                # Never read from, so that the end of TLS is not answered.
                stack.enter_context(connection).sendall(b"nothing\r\n\r\n")
            # Until the server has begun to close these; then others take their places.
            time.sleep(1.2 * LINGER_IDLE_SECONDS)
        # asyncio waits 30 s for a client to end TLS; a server that aborts such connections needs a tenth of that.
        deadline = time.monotonic() + 15
        while open_sockets(server.port) > 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert open_sockets(server.port) <= 4


@pytest.mark.parametrize("exempt", [(), ("127.0.0.0/8",)], ids=["client", "proxy"])
def test_one_address_keeps_a_share_of_idle_connections(published: Published, exempt: tuple[str, ...]) -> None:
    settings = {"max_idle_connections": 4, "head_timeout_seconds": 60, "forwarded_allow_ips": exempt}
    with running(published, **settings) as server, ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(6)]
        with connected(server.port) as last:
            assert_healthy(last)
            wait(lambda: [is_closed(connection) for connection in connections].count(True) == (0 if exempt else 3))
            assert not any(is_closed(connection) for connection in connections[3:])


def test_only_a_listed_proxy_is_believed_whom_it_forwards(published: Published) -> None:
    seen = []
    for exempt in ((), ("127.0.0.1",)):
        app = create_app(Settings(registry=published.root, models=("animals:1",), forwarded_allow_ips=exempt))

        @app.get("/client")
        async def client(request: Request) -> str:
            assert request.client is not None
            return request.client.host

        for server in serve(app):
            seen.append(httpx.get(f"{server.url}/client", headers={"X-Forwarded-For": "192.0.2.7"}).json())
    assert seen == ["127.0.0.1", "192.0.2.7"]


class Dummy:
    """A connection that notes that it was closed."""

    is_closed = False

    def close_idle(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("", "", False),
    ],
)
def test_which_addresses_share_a_limit(first: str, second: str, is_same: bool) -> None:
    table = ConnectionTable(10, 1)
    older, newer = Dummy(), Dummy()
    assert table.add(older, first)
    assert table.add(newer, second)
    assert older.is_closed == is_same
    table.remove(newer)
    assert (len(table), table.idle) == ((0, 0) if is_same else (1, 1))


@pytest.mark.parametrize("texts", [("10.0.0.1/8",), ("proxy",)])
def test_a_proxy_that_is_no_address_is_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=texts[0]):
        parse_networks(texts)
    with pytest.raises(SettingsError, match="^Settings: forwarded_allow_ips: .* does not appear|host bits set"):
        Settings(forwarded_allow_ips=texts)


def test_limits_follow_from_the_open_file_limit(caplog: pytest.LogCaptureFixture) -> None:
    files = raise_file_limit()
    table = create_connection_table(Settings())
    assert (table.limit, table.idle_per_address) == (int(0.8 * files), int(0.25 * int(0.8 * files)))
    assert create_connection_table(Settings(max_connections=50)).limit == 50
    assert not caplog.messages
    with caplog.at_level(logging.WARNING):
        assert create_connection_table(Settings(max_connections=10**12)).limit < 10**12
    assert caplog.messages[0].endswith("raise the limit on open files (ulimit -n).")


@pytest.fixture(scope="module")
def attacked(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    """A server process with default limits."""
    log = tmp_path_factory.mktemp("attacked") / "log"
    server = start_serve(published.root, log, "--model", "animals:1", "--access-log", "off")
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize(
    "size", [4, pytest.param(60, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.slow)]
)
def test_health_is_answered_while_heads_of_many_megabytes_arrive(
    attacked: ServeProcess, size: int, record_property: Any
) -> None:
    content = GET + b"X: " + b"a" * (size * MIB) + b"\r\n\r\n"
    with health_watched(attacked.port) as latencies:
        for _ in range(3):
            with connected(attacked.port) as connection:
                send_all(connection, content)
                assert read_error(connection)[:2] == (431, "head_too_large")
    record_property("worst_health_seconds", latencies.worst)
    assert latencies.worst < SLOW_ANSWER_SECONDS


@pytest.mark.parametrize("wanted", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_health_is_answered_beside_idle_connections(attacked: ServeProcess, wanted: int, record_property: Any) -> None:
    # Each costs this process a file, too.
    count = min(wanted, raise_file_limit(wanted + 200) - 200)
    with ExitStack() as stack, health_watched(attacked.port) as latencies:
        for number in range(count):
            connection = stack.enter_context(connected(attacked.port))
            if number % 2:
                connection.sendall(GET)
        time.sleep(0.2)
    record_property("idle_connections", count)
    record_property("worst_health_seconds", latencies.worst)
    print(f"{count} idle connections, health took at most {latencies.worst:.3f} s")
    assert latencies.worst < SLOW_ANSWER_SECONDS
