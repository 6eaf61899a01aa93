"""Raw connections to a server, for clients that keep to no rules, and the time that health takes in the meantime."""

from __future__ import annotations

import json
import select
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, cast

from websockets.frames import Frame, Opcode

from server_helpers import Published, Running, serve
from stablernn_server import Settings, create_app

PATIENT = 20.0
"""Seconds after which a server that does not answer has failed the test."""
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
HEALTH = GET + b"\r\n"
CHUNKED = b"POST /v1/timeseries/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
HANDSHAKE_FIELDS = (
    b"\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
MIB = 2**20


@contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENT) as connection:
        yield connection


def read_response(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and body of one response with a stated length."""
    # Byte by byte, for the next response may follow at once.
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += read_some(connection, 1)
    status, *lines = head.decode().rstrip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = b""
    while len(body) < int(headers["content-length"]):
        body += read_some(connection, int(headers["content-length"]) - len(body))
    return int(status.split()[1]), headers, body


def read_some(connection: socket.socket, size: int) -> bytes:
    chunk = connection.recv(size)
    assert chunk, "the connection was closed before its response was complete"
    return chunk


def is_closed(connection: socket.socket) -> bool:
    """Return True if the server has closed a connection on which nothing is left to read."""
    if not select.select((connection,), (), (), 0)[0]:
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except ConnectionError:
        return True


def read_error(connection: socket.socket) -> tuple[int, str, str]:
    """Return status, code and message of an error after which the server closes the connection."""
    status, headers, body = read_response(connection)
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    assert read_end(connection) == b""
    error = json.loads(body)
    return status, error["code"], error["error"]


def read_end(connection: socket.socket) -> bytes:
    """Return the bytes that arrive until the server closes the connection."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


def send_all(connection: socket.socket, content: bytes) -> None:
    """Send what the server takes, as clients do that read the answer afterwards."""
    with suppress(ConnectionError):
        connection.sendall(content)


@dataclass
class Latencies:
    """Times that health took, in seconds."""

    seconds: list[float] = field(default_factory=list)

    @property
    def worst(self) -> float:
        return max(self.seconds)


@contextmanager
def health_watched(port: int, pause: float = 0.05) -> Iterator[Latencies]:
    """Ask for health over new connections while the block runs, at least once; fails if there is no answer."""
    latencies = Latencies()
    is_over = threading.Event()
    errors: list[Exception] = []

    def watch() -> None:
        while not is_over.is_set() or not latencies.seconds:
            started = time.monotonic()
            try:
                with connected(port) as connection:
                    connection.sendall(HEALTH)
                    assert read_response(connection)[0] == 200
            except Exception as error:
                errors.append(error)
                return
            latencies.seconds.append(time.monotonic() - started)
            time.sleep(pause)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield latencies
    finally:
        is_over.set()
        thread.join(2 * PATIENT)
    assert not errors, errors
    assert not thread.is_alive()


@contextmanager
def animals_server(published: Published, **settings: Any) -> Iterator[Running]:
    """A server of one version, for this block."""
    yield from serve(create_app(Settings(registry=published.root, models=("animals:1",), **settings)))


def assert_healthy(connection: socket.socket) -> None:
    connection.sendall(HEALTH)
    assert read_response(connection)[0] == 200


HANDSHAKE = b"GET /v1/stream?model=animals HTTP/1.1" + HANDSHAKE_FIELDS
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n\r\n"
BODY = b'{"inputs":[{"name":"x","shape":[1,4,1],"datatype":"FP32","data":[1,2,3,4]}]}'
INFER = b"POST /v2/models/animals/infer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FLOODS = {
    # What a client sends once, and what it repeats.
    "page": (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "health": (b"", HEALTH),
    "no route": (b"", b"GET /a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "HTTP/1.0": (b"", b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\nConnection: keep-alive\r\n\r\n"),
    "h2c": (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + UPGRADE),
    "inference": (b"", INFER + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)),
    "chunks": (b"", INFER + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)),
    "handshakes": (b"", HANDSHAKE),
    "frames": (HANDSHAKE, Frame(Opcode.TEXT, b"{}").serialize(mask=True)),
    "metrics": (b"", b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
    "document": (b"", b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
}


def flood(connections: Mapping[socket.socket, str], seconds: float) -> None:
    """Send requests of a kind on each connection for as long as the server takes them, and read nothing."""
    contents = {name: once + again * (2**16 // len(again)) for name, (once, again) in FLOODS.items()}
    rests = {connection: memoryview(contents[name]) for connection, name in connections.items()}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE)
        while time.monotonic() < deadline:
            # Leaves time to the other threads of this process.
            time.sleep(0.01)
            for key, _ in selector.select(0.1):
                connection = cast("socket.socket", key.fileobj)
                try:
                    rest = rests[connection]
                    rests[connection] = rest[connection.send(rest) :]
                    if not rests[connection]:
                        once, _ = FLOODS[connections[connection]]
                        rests[connection] = memoryview(contents[connections[connection]])[len(once) :]
                except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                    continue
                except OSError:
                    selector.unregister(connection)
