"""Limits on connections: idle and busy ones, those of one address, TLS, and many at once."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import Request

from certificate_helpers import make_certificate
from connection_helpers import (
    CHUNKED,
    FLOODS,
    GET,
    HEALTH,
    MIB,
    PATIENT,
    animals_server,
    assert_healthy,
    connected,
    flood,
    health_watched,
    is_closed,
    read_error,
    read_response,
    send_all,
)
from scheduler_helpers import wait
from server_helpers import Published, Running, serve
from serving_helpers import ServeProcess, rss_mb, start_serve
from stablernn_server import Settings, SettingsError, create_app
from stablernn_server.server import create_connection_table
from stablernn_server.transport.connections import ConnectionTable, Turn, parse_networks, raise_file_limit
from stablernn_server.transport.http_protocol import FIRST_READ_BYTES, NEXT_READ_BYTES, HttpProtocol
from stablernn_server.transport.write_coalescing import LINGER_IDLE_SECONDS
from stream_helpers import Wire

pytestmark = pytest.mark.anyio

SLOW_ANSWER_SECONDS = 2.0
"""Health takes milliseconds; on a machine that is busy with other tests somewhat longer."""


def test_the_longest_idle_connection_gives_way(published: Published) -> None:
    settings = {"max_connections": 6, "max_address_connections": 6, "head_timeout_seconds": 60}
    with animals_server(published, **settings) as server, ExitStack() as stack:
        connections = [stack.enter_context(connected(server.port)) for _ in range(6)]
        # The first is not the longest idle one any more.
        assert_healthy(connections[0])
        with connected(server.port) as another:
            assert_healthy(another)
        wait(lambda: is_closed(connections[1]))
        assert not any(is_closed(connection) for connection in connections[2:])
        assert_healthy(connections[2])


@pytest.mark.parametrize(
    ("settings", "whose"),
    [
        ({"max_connections": 3, "max_address_connections": 3, "forwarded_allow_ips": ("127.0.0.1",)}, "The server"),
        ({"max_address_connections": 3}, "Your address"),
    ],
)
def test_where_all_connections_are_busy_one_more_is_a_503(
    published: Published, settings: dict[str, Any], whose: str
) -> None:
    with animals_server(published, **settings) as server, ExitStack() as stack:
        context = server.app.state.context
        for count in range(1, 4):
            connection = stack.enter_context(connected(server.port))
            connection.sendall(CHUNKED + b"1\r\n \r\n")
            wait(lambda count=count: context.budget.held_bytes == count)  # type: ignore[misc]
        with connected(server.port) as refused:
            status, headers, body = read_response(refused)
            assert (status, headers["retry-after"], json.loads(body)["code"]) == (503, "1", "busy")
            assert body.startswith(b'{"error":"%b has' % whose.encode())
        connection.close()
        wait(lambda: context.budget.held_bytes == 2)
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], ssl.SSLContext]:
    """Settings of a server with a certificate, and a context that trusts it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder, "own")
    files = {"tls_cert_file": folder / "own.pem", "tls_key_file": folder / "own.key"}
    return files, ssl.create_default_context(cafile=files["tls_cert_file"])


Tls = tuple[dict[str, Path], ssl.SSLContext]


@pytest.mark.parametrize("content", [b"", b"\x16\x03\x01"], ids=["silent", "begun"])
def test_a_tls_handshake_has_the_time_of_a_head(published: Published, tls: Tls, content: bytes) -> None:
    files, trust = tls
    with animals_server(published, head_timeout_seconds=1, **files) as server, connected(server.port) as connection:
        connection.sendall(content)
        wait(lambda: is_closed(connection))
        url = f"https://127.0.0.1:{server.port}/v2/health/live"
        assert httpx.get(url, verify=trust).status_code == 200


def test_tls_handshakes_count_as_idle_connections(published: Published, tls: Tls) -> None:
    files, trust = tls
    limits = {"max_connections": 8, "max_address_connections": 4, "head_timeout_seconds": 60}
    with animals_server(published, **limits, **files) as server, ExitStack() as stack:
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


async def test_work_takes_turns_by_its_urgency() -> None:
    order: list[tuple[int, int]] = []

    table, turn_number = ConnectionTable(8, 8), 0
    for turn in (Turn.NEXT, Turn.NEXT, Turn.FIRST_REQUEST, Turn.HANDSHAKE):
        table.take_turn(lambda turn=turn: order.append((turn_number, turn)), turn)  # type: ignore[misc]
    while len(order) < 4:
        await asyncio.sleep(0)
        turn_number += 1
    assert [turn for _, turn in order] == [Turn.HANDSHAKE, Turn.FIRST_REQUEST, Turn.NEXT, Turn.NEXT]
    assert len({number for number, _ in order}) == 4


def test_no_turn_of_the_event_loop_has_much_to_do(
    published: Published, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, trust = tls
    turns, sizes = [], []
    take_turn, receive = ConnectionTable.take_turn, HttpProtocol.data_received

    def note_turn(table: ConnectionTable, go_on: Any, turn: Turn) -> None:
        turns.append(turn)
        take_turn(table, go_on, turn)

    def note_size(protocol: HttpProtocol, data: bytes) -> None:
        sizes.append(len(data))
        receive(protocol, data)

    monkeypatch.setattr(ConnectionTable, "take_turn", note_turn)
    monkeypatch.setattr(HttpProtocol, "data_received", note_size)
    for options in ({}, files):
        with animals_server(published, **options) as server, ExitStack() as stack:
            # The first request for it does not build it.
            assert server.app.openapi_schema is not None
            connection = stack.enter_context(connected(server.port))
            if options:
                connection = stack.enter_context(trust.wrap_socket(connection, server_hostname="127.0.0.1"))
            assert (Turn.HANDSHAKE in turns) == bool(options)
            # Read at once, such clients take a second of the event loop when they are a thousand.
            connection.sendall(1000 * HEALTH)
            assert connection.recv(1)
            assert sizes[0] <= FIRST_READ_BYTES
            assert max(sizes) <= NEXT_READ_BYTES
            sizes.clear()


def open_sockets(port: int) -> int:
    """Sockets of the server that are not closed, whatever the table of connections says."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # The state 0A is the listener; a socket without an inode is closed, and the kernel still says goodbye.
    return sum(row[1].endswith(f":{port:04X}") and row[3] != "0A" and row[9] != "0" for row in rows)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system does not list its sockets")
def test_tls_clients_that_do_not_say_goodbye_hold_no_sockets(published: Published, tls: Tls) -> None:
    files, trust = tls
    with (
        animals_server(published, max_connections=4, max_address_connections=4, **files) as server,
        ExitStack() as stack,
    ):
        for _ in range(2):
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
def test_one_address_keeps_a_share_of_connections(published: Published, exempt: tuple[str, ...]) -> None:
    settings = {"max_address_connections": 4, "head_timeout_seconds": 60, "forwarded_allow_ips": exempt}
    with animals_server(published, **settings) as server, ExitStack() as stack:
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


def metric(server: Running | ServeProcess, name: str, trust: ssl.SSLContext | bool = True) -> float:
    """The value of a metric without labels."""
    lines = httpx.get(f"{server.url}/metrics", verify=trust, timeout=PATIENT).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def test_a_proxy_may_forward_so_many_requests_for_one_address(published: Published) -> None:
    limits = {"max_address_connections": 2, "forwarded_allow_ips": ("127.0.0.1",)}
    first, second = ({"X-Forwarded-For": address} for address in ("192.0.2.7", "192.0.2.8"))
    with animals_server(published, **limits) as server, ExitStack() as stack:
        url = f"{server.url}/v2/health/live"
        stack.enter_context(Wire(server.url, "animals", additional_headers=first))
        with connected(server.port) as connection:
            connection.sendall(CHUNKED.replace(b"\r\n\r\n", b"\r\nX-Forwarded-For: 192.0.2.7\r\n\r\n1\r\n \r\n"))
            wait(lambda: server.app.state.context.budget.held_bytes == 1)
            refused = httpx.get(url, headers=first)
            assert (refused.status_code, refused.json()["code"]) == (503, "busy")
            assert httpx.get(url, headers=second).status_code == 200
        wait(lambda: httpx.get(url, headers=first).status_code == 200)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("document", "frames") else pytest.mark.slow) for kind in FLOODS]
)
def test_requests_that_are_sent_ahead_take_the_memory_of_their_bytes(attacked: ServeProcess, kind: str) -> None:
    with connected(attacked.port) as connection:
        connection.sendall(FLOODS["document"][1])
        read_response(connection)
    before = rss_mb(attacked.process.pid)
    with ExitStack() as stack:
        connections = {stack.enter_context(connected(attacked.port)): kind for _ in range(20)}
        with health_watched(attacked.port):
            flood(connections, 1.5)
        assert rss_mb(attacked.process.pid) - before < 30
    assert "Traceback" not in attacked.read_log()


def test_bodies_of_others_leave_room_for_requests_that_are_sent_ahead(published: Published) -> None:
    with animals_server(published, max_held_bytes=100_000) as server, ExitStack() as stack:
        for _ in range(2):
            other = stack.enter_context(connected(server.port))
            other.sendall(CHUNKED + b"4e20\r\n" + b" " * 20_000)
        wait(lambda: server.app.state.context.budget.held_bytes == 40_000)
        connection = stack.enter_context(connected(server.port))
        connection.sendall(HEALTH * 3)
        for _ in range(3):
            assert read_response(connection)[0] == 200
        assert_healthy(connection)


@pytest.mark.parametrize("kind", ["document", "frames"])
def test_a_client_that_stops_to_read_is_ended_and_a_slow_one_is_not(published: Published, kind: str) -> None:
    with animals_server(published, write_timeout_seconds=2) as server, socket.socket() as connection:
        # A small window, so that each piece that is read lets the server go on.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        connection.connect(("127.0.0.1", server.port))
        sender = threading.Thread(target=flood, args=({connection: kind}, 4.0))
        sender.start()
        while sender.is_alive():
            with suppress(BlockingIOError):
                assert connection.recv(2**16)
            time.sleep(0.1)
        wait(lambda: metric(server, "stablernn_connections") == 1)


class Dummy:
    """A connection that notes that it was closed."""

    is_closed = False

    def close_idle(self) -> None:
        self.is_closed = True

    def end_stalled(self, now: float, seconds: float) -> None:
        pass


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
    table.add(older, first)
    table.add(newer, second)
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
    assert (table.limit, table.per_address) == (int(0.8 * files), int(0.25 * int(0.8 * files)))
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


@pytest.mark.parametrize("size", [4, pytest.param(300, marks=pytest.mark.slow)])
def test_health_is_answered_while_heads_of_many_megabytes_arrive(attacked: ServeProcess, size: int) -> None:
    content = GET + b"X: " + b"a" * (size * MIB) + b"\r\n\r\n"
    with health_watched(attacked.port) as latencies:
        for _ in range(3):
            with connected(attacked.port) as connection:
                send_all(connection, content)
                assert read_error(connection)[:2] == (431, "head_too_large")
    assert latencies.worst < SLOW_ANSWER_SECONDS


@pytest.mark.parametrize("wanted", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_health_is_answered_beside_idle_connections(attacked: ServeProcess, wanted: int) -> None:
    # Each costs this process a file, too.
    count = min(wanted, raise_file_limit(wanted + 200) - 200)
    with ExitStack() as stack, health_watched(attacked.port) as latencies:
        for number in range(count):
            connection = stack.enter_context(connected(attacked.port))
            if number % 2:
                connection.sendall(GET)
        time.sleep(0.2)
    assert latencies.worst < SLOW_ANSWER_SECONDS
