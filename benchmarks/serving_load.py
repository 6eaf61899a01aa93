"""The load generator: prebuilt requests over kept connections, HTTP or WebSocket, in a process of its own.

It shares the machine's cores with the server that it measures, so it does as little as it can for each request: one
send, one receive, and a look-up of the answer's bytes among those that were already found right. Standard library only.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import os
import pickle
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GRACE_SECONDS = 15.0
"""How long after the end of the load an answer may still come before it counts as lost."""
_MARKS = {"oip": b'"data":', "probabilities": b'"probabilities":', "predictions": b'"predictions":'}
RAW_BYTES = 40

Row = dict[str, Any]
Numbers = Sequence[float]


class ServerFailed(RuntimeError):
    """A server that did not start, with the last words of its log."""


class Server:
    """A program that serves HTTP on :attr:`port` of 127.0.0.1, in a session of its own.

    Attributes:
        ready_seconds: From the start of the process to the first 200 of ``ready``.
    """

    def __init__(self, words: list[str], ready: str, log: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        began = time.perf_counter()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [word.replace("{port}", str(self.port)) for word in words],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        while get(self.port, ready) != 200:
            if self.process.poll() is not None or time.perf_counter() > began + 120:
                self.stop()
                lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
                raise ServerFailed(f"did not start: {' / '.join(lines[-2:])[-300:]}")
            time.sleep(0.01)
        self.ready_seconds = time.perf_counter() - began

    @property
    def rss_mb(self) -> float:
        """Resident memory of the first process, MB of 10^6 bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES / 1e6

    def stop(self, timeout: float = 15) -> None:
        """End the process in order, and whatever is left of its session afterwards."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        for pid in [self.process.pid, *session_members(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """End the server at the end of the block."""
    try:
        yield server
    finally:
        server.stop()


def session_members(leader: int) -> list[int]:
    """Return the processes of the session that ``leader`` began: also those that left its process group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(entry.name))
    return found


def get(port: int, path: str, timeout: float = 2) -> int | None:
    """Return the status of a GET; None when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def exchange(port: int, request: bytes, timeout: float = 10) -> tuple[int, bytes]:
    """Return status and body of the answer that a new connection gets; the status 0 when there is none in time."""
    data = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
        sock.sendall(request)
        while (found := split(data)) is None:
            part = sock.recv(1 << 16)
            if not part:
                break
            data += part
        else:
            return found[0], found[2]
    return 0, data


def free_port() -> int:
    """Return a port that is free with the two above it, which some servers take for gRPC and metrics.

    Not one of those that the system gives to connections: Ray opens so many that one may have it before it is bound.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for more in range(3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + more))
            return port


class Memory:
    """Resident memory of a server, ten times a second, while the block runs."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.samples: list[tuple[float, float]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            with contextlib.suppress(OSError):
                self.samples.append((time.perf_counter(), self.server.rss_mb))

    def facts(self) -> dict[str, float]:
        """Return first, largest and last MB; the last quarter against the second; the last half's slope."""
        # Imported here: the generator is to start at once.
        import numpy as np

        times, sizes = np.array(self.samples).T
        half, quarter = len(sizes) // 2, max(len(sizes) // 4, 1)
        return {
            "first_mb": sizes[0],
            "max_mb": sizes.max(),
            "last_mb": sizes[-1],
            "grown_mb": sizes[-quarter:].mean() - sizes[quarter : 2 * quarter].mean(),
            "slope_mb_per_minute": 60 * np.polyfit(times[half:] - times[half], sizes[half:], 1)[0],
        }


@dataclass
class Load:
    """What to send and what to hold the answers against.

    Attributes:
        port: Of the server, on 127.0.0.1.
        requests: Whole HTTP requests, or frames, that a connection sends in turn; connections take the lists in turn.
        expected: For each of them the numbers, or the frame, that are right.
        form: How an answer holds its numbers: ``oip``, ``raw`` (behind the body, also with a JSON head before it),
            ``probabilities``, ``predictions`` or ``list``.
        tolerance: Largest absolute difference; 0 compares the bits of float32.
        path: Of the WebSocket; empty for HTTP. The load ends with its frames, since a stream does not repeat itself.
        clients: Connections, each with at most one request in flight.
        seconds: How long the answers are counted.
        warmup: How long the load runs before that.
        rate: Requests that arrive a second; None lets each client send as soon as it is answered.
        refusals: Statuses besides 200 that are answers of the contract, with ``error`` and ``code`` in their bodies.
    """

    port: int
    requests: list[list[bytes]]
    expected: list[list[Any]]
    form: str = "oip"
    tolerance: float = 0.0
    path: str = ""
    clients: int = 16
    seconds: float = 3.0
    warmup: float = 0.5
    rate: float | None = None
    refusals: tuple[int, ...] = ()


def measure(load: Load) -> Row:
    """Load a server from another process, and return what that saw."""
    done = subprocess.run([sys.executable, __file__], input=pickle.dumps(asdict(load)), stdout=-1, check=True)
    return dict(json.loads(done.stdout))


class Client:
    """One connection: what it sends in turn, and the answer that is arriving on it."""

    __slots__ = ("arrived_ns", "buffer", "expected", "known", "next", "requests", "sent_ns", "sock", "unsent")

    def __init__(self, load: Load, number: int) -> None:
        place = number % len(load.requests)
        self.requests, self.expected = load.requests[place], load.expected[place]
        # Connections with the same requests begin at different ones, but streams at their first step.
        self.next = 0 if load.path else number // len(load.requests) % len(self.requests)
        self.known: list[set[bytes]] = [set() for _ in self.requests]
        self.unsent = b""
        self.arrived_ns = self.sent_ns = 0
        self.connect(load)

    def connect(self, load: Load) -> None:
        self.sock, self.buffer = open_socket(load.port, load.path)


class Generator:
    """Sends, receives and judges; :attr:`idle` holds the clients without a request in flight.

    Times count from a request's arrival, which is before it is sent where every client waits for an answer then.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.poller = select.epoll()
        self.clients: dict[int, Client] = {}
        self.idle: deque[Client] = deque()
        self.latencies: list[int] = []
        self.service: list[int] = []
        self.facts: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.examples: list[str] = []
        self.counting = self.is_exhausted = False
        for number in range(load.clients):
            self._register(Client(load, number))

    def run(self) -> Row:
        """Return what was seen."""
        load, begin = self.load, time.perf_counter()
        counted, due = begin + load.warmup, 0
        end, cpu = counted + load.seconds, 0.0
        while (now := time.perf_counter()) < end and not self.is_exhausted:
            if not self.counting and now >= counted:
                self.counting, counted, cpu = True, now, time.process_time()
                self.facts.clear()
            timeout = (end if self.counting else counted) - now
            while self.idle and (load.rate is None or due < (now - begin) * load.rate):
                arrived = time.perf_counter() if load.rate is None else begin + due / load.rate
                self.facts["late"] += load.rate is not None and now - arrived > 0.005
                self._send(self.idle.popleft(), int(arrived * 1e9))
                due += 1
            if self.idle and load.rate is not None:
                timeout = min(timeout, begin + due / load.rate - now)
            self._poll(max(timeout, 0.0005))
        ended = time.perf_counter()
        spent, seconds, good, sent = time.process_time() - cpu, ended - counted, self.facts["good"], self.facts["sent"]
        # What is still under way counts as answered or lost, not as throughput.
        while (late := len(self.clients) - len(self.idle)) and time.perf_counter() < ended + GRACE_SECONDS:
            self._poll(0.1)
        return {
            "rate": good / seconds,
            **{f"p{share}_ms": percentile(self.latencies, share / 100) for share in (50, 99)},
            "max_ms": percentile(self.latencies, 1.0),
            "p99_from_sending_ms": percentile(self.service, 0.99),
            "seconds": seconds,
            "ended": ended,
            "sent": sent,
            "late": self.facts["late"],
            "answers": dict(sorted(self.statuses.items())),
            "wrong": self.facts["wrong"],
            "lost": self.facts["lost"] + late,
            "outside_contract": self.facts["outside_contract"],
            "generator_cores": spent / seconds,
            "examples": self.examples[:5],
        }

    def _register(self, client: Client) -> None:
        self.clients[client.sock.fileno()] = client
        self.poller.register(client.sock, select.EPOLLIN)
        self.idle.append(client)

    def _reopen(self, client: Client) -> None:
        self.poller.unregister(client.sock)
        del self.clients[client.sock.fileno()]
        client.sock.close()
        if not self.load.path:
            client.connect(self.load)
            self._register(client)

    def _send(self, client: Client, arrived_ns: int) -> None:
        client.arrived_ns, client.sent_ns = arrived_ns, time.perf_counter_ns()
        self.facts["sent"] += 1
        client.unsent = client.requests[client.next]
        self._write(client)

    def _write(self, client: Client) -> None:
        try:
            client.unsent = client.unsent[client.sock.send(client.unsent) :]
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(client, error)
            return
        self.poller.modify(client.sock, select.EPOLLIN | select.EPOLLOUT * bool(client.unsent))

    def _poll(self, timeout: float) -> None:
        for number, events in self.poller.poll(timeout):
            client = self.clients[number]
            if events & select.EPOLLOUT and client.unsent:
                self._write(client)
            if events & ~select.EPOLLOUT:
                self._receive(client)

    def _receive(self, client: Client) -> None:
        try:
            part = client.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(client, error)
            return
        if not part:
            self._drop(client, None)
            return
        client.buffer += part
        if self.load.path:
            while (frame := unframed(client.buffer)) is not None:
                kind, content, client.buffer = frame
                if kind == 0x89:
                    # Of a connection that is gone, the next look at it says so.
                    with contextlib.suppress(OSError):
                        client.sock.send(masked(0x8A, content))
                else:
                    self._answered(client, 200 if kind == 0x82 else 0, b"", content)
        elif (found := split(client.buffer)) is not None:
            client.buffer = b""
            self._answered(client, *found)

    def _answered(self, client: Client, status: int, head: bytes, body: bytes) -> None:
        now = time.perf_counter_ns()
        if self.counting:
            self.latencies.append(now - client.arrived_ns)
            self.service.append(now - client.sent_ns)
            self.statuses[str(status)] += 1
        if status == 200:
            self.facts["good"] += self._is_right(client, body) and self.counting
        else:
            allowed = status in self.load.refusals and b'"error"' in body and b'"code"' in body
            if not allowed or (status == 503 and b"retry-after:" not in head.lower()):
                self._count("outside_contract", f"{status}: {body[:200]!r}")
        client.next += 1
        if client.next == len(client.requests):
            self.is_exhausted |= bool(self.load.path)
            client.next = 0
        if b"onnection: close" in head:
            self._reopen(client)
        else:
            self.idle.append(client)

    def _is_right(self, client: Client, body: bytes) -> bool:
        """Compare an answer; a wrong one counts at any time, also before and after the counted time."""
        expected = client.expected[client.next]
        if self.load.path:
            is_right = body == expected
        else:
            key = key_of(self.load.form, body)
            if key in client.known[client.next]:
                return True
            try:
                is_right = same(numbers_of(self.load.form, body), expected, self.load.tolerance)
            except (ValueError, KeyError, IndexError, TypeError):
                is_right = False
            if is_right:
                client.known[client.next].add(key)
        if not is_right:
            self._count("wrong", f"request {client.next}: {body[:200]!r}")
        return is_right

    def _drop(self, client: Client, error: OSError | None) -> None:
        if client in self.idle:
            self.idle.remove(client)
        else:
            self._count("lost", f"connection closed without an answer ({error})")
        self._reopen(client)

    def _count(self, fact: str, example: str) -> None:
        self.facts[fact] += 1
        self.examples.append(example)


def open_socket(port: int, path: str) -> tuple[socket.socket, bytes]:
    """Return a connection, of a WebSocket after the server's greeting, and what arrived behind it."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    data = b""
    if path:
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
        sock.sendall("\r\n".join([*lines, "", ""]).encode())
        frame = None
        while frame is None:
            part = sock.recv(1 << 16)
            if not part or (data and b" 101 " not in data.split(b"\r\n", 1)[0]):
                raise ConnectionError(f"The server did not open a WebSocket: {data[:300]!r}")
            data += part
            frame = unframed(data.partition(b"\r\n\r\n")[2])
        if b'"outputs"' not in frame[1]:
            raise ConnectionError(f"The server did not greet: {frame[1][:300]!r}")
        data = frame[2]
    sock.setblocking(False)
    return sock, data


def masked(kind: int, content: bytes) -> bytes:
    """Return a whole WebSocket frame from a client, with a mask of zeros."""
    size = len(content)
    if size < 126:
        head = struct.pack("!BB", kind, 128 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", kind, 128 | 126, size)
    else:
        head = struct.pack("!BBQ", kind, 128 | 127, size)
    return head + bytes(4) + content


def unframed(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Return first byte, content and rest of a server's frame; None while bytes are missing."""
    if len(data) < 2:
        return None
    size, begin = data[1], {126: 4, 127: 10}.get(data[1], 2)
    if begin > 2:
        size = int.from_bytes(data[2:begin], "big")
    end = begin + size
    return None if len(data) < max(begin, end) else (data[0], data[begin:end], data[end:])


def split(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Return status, head and body of a whole HTTP answer; None while bytes are missing."""
    head, separator, rest = data.partition(b"\r\n\r\n")
    if not separator:
        return None
    # From the line's beginning: the binary protocol has a header that ends in the same words.
    place = head.lower().find(b"\r\ncontent-length: ")
    if place < 0:
        return _chunked(head, rest)
    length = int(head[place + 18 :].partition(b"\r")[0])
    return None if len(rest) < length else (int(data[9:12]), head, rest)


def _chunked(head: bytes, rest: bytes) -> tuple[int, bytes, bytes] | None:
    if b"chunked" not in head.lower():
        raise ValueError(f"An answer without a length: {head!r}")
    body = b""
    while True:
        size, separator, rest = rest.partition(b"\r\n")
        if not separator or len(rest) < int(size, 16) + 2:
            return None
        length = int(size, 16)
        if length == 0:
            return int(head[9:12]), head, body
        body += rest[:length]
        rest = rest[length + 2 :]


def key_of(form: str, body: bytes) -> bytes:
    """Return the bytes of an answer that hold its numbers: the same for equal numbers, whatever id it carries."""
    if form == "raw":
        return body[-RAW_BYTES:]
    begin = body.find(_MARKS[form]) if form in _MARKS else -1
    return body[begin : body.find(b"]", begin)] if begin >= 0 else body


def numbers_of(form: str, body: bytes) -> list[float]:
    """Return the numbers of an answer."""
    if form == "raw":
        return list(struct.unpack(f"<{RAW_BYTES // 4}f", body[-RAW_BYTES:]))
    value = json.loads(body)
    if form == "oip":
        value = value["outputs"][0]["data"]
    elif form in _MARKS:
        value = value[form]
    while value and isinstance(value[0], list):
        value = value[0]
    return [float(one) for one in value]


def same(numbers: Numbers, expected: Numbers, tolerance: float) -> bool:
    """Compare an answer with the expected numbers: their bits, or within a tolerance."""
    if len(numbers) != len(expected):
        return False
    if tolerance == 0:
        code = f"<{len(expected)}f"
        return struct.pack(code, *numbers) == struct.pack(code, *expected)
    return all(abs(a - b) <= tolerance for a, b in zip(numbers, expected, strict=True))


def percentile(values: list[int], share: float) -> float | None:
    """Return in ms, of values in ns, the smallest that ``share`` of them do not exceed."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)] / 1e6 if values else None


if __name__ == "__main__":
    print(json.dumps(Generator(Load(**pickle.load(sys.stdin.buffer))).run()))
