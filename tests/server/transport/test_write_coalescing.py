"""Answers in one piece: what is written in one turn of the event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import httpx
import pytest

from scheduler_helpers import wait
from server_helpers import Published, Running, serve
from stablernn_server import Settings, create_app
from stablernn_server.http.access_log import AccessLog
from stablernn_server.transport.write_coalescing import CoalescingTransport


def received(write: Callable[[CoalescingTransport], None]) -> list[bytes]:
    """The pieces that the other side of a connection got, in the turn in which they were written and after it."""
    ours, theirs = socket.socketpair()
    pieces = []

    async def send() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        gathered = CoalescingTransport(transport, loop)
        write(gathered)
        theirs.setblocking(False)
        for _ in range(2):
            try:
                pieces.append(theirs.recv(1000))
            except BlockingIOError:
                pieces.append(b"nothing yet")
            await asyncio.sleep(0.01)
        transport.close()

    with ours, theirs:
        asyncio.run(send())
    return pieces


def parts(gathered: CoalescingTransport) -> None:
    gathered.write(b"head ")
    gathered.writelines([b"body ", b"more"])


def parts_and_close(gathered: CoalescingTransport) -> None:
    parts(gathered)
    gathered.close()
    assert gathered.is_closing()


def parts_and_abort(gathered: CoalescingTransport) -> None:
    parts(gathered)
    gathered.abort()


def parts_and_flush(gathered: CoalescingTransport) -> None:
    parts(gathered)
    gathered.flush()


@pytest.mark.parametrize(
    ("write", "pieces"),
    [
        (parts, [b"nothing yet", b"head body more"]),
        (parts_and_flush, [b"head body more", b"nothing yet"]),
        (parts_and_close, [b"head body more", b""]),
        (parts_and_abort, [b"nothing yet", b""]),
    ],
)
def test_what_is_written_in_one_turn_goes_out_together(
    write: Callable[[CoalescingTransport], None], pieces: list[bytes]
) -> None:
    assert received(write) == pieces


def test_the_servers_answers_come_in_one_piece(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        for _ in range(20):
            connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            answer = connection.recv(10_000)
            head, _, body = answer.partition(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            assert len(body) == int(length.split(b":")[1])


def test_a_client_alone_has_its_answer_before_it_is_written_down(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    noticed = []
    monkeypatch.setattr(AccessLog, "log_request", lambda *about: noticed.append(answered.wait(10)))
    # A server of its own: others may still be writing down what tests before have asked.
    for server in serve(create_app(Settings(registry=published.root, models=("animals:1",)))):
        assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
        answered.set()
        wait(lambda: bool(noticed))
    assert all(noticed)
