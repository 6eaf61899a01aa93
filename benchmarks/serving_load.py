"""The load generator: prebuilt HTTP requests over keep-alive connections in one thread of a process of its own.

It shares the machine's cores with the server that it measures, so it does as little as it can for each request: one
send, one receive, and a look-up of the numbers' bytes among those that were already parsed and found right. Standard
library only. ``measure`` starts it and returns what it saw; what it reads and prints is JSON.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import math
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Server:
    """A program that serves HTTP on :attr:`port`, in a session of its own.

    Attributes:
        port: On 127.0.0.1; the two above it are free as well when it starts.
        ready_seconds: From the start of the process to the first 200 of ``ready``.
    """

    def __init__(
        self, words: list[str], ready: str, log: Path, environment: dict[str, str], timeout: float = 120, port: int = 0
    ) -> None:
        self.port = port or free_port()
        self.log = log
        words = [word.replace("{port}", str(self.port)) for word in words]
        began = time.perf_counter()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                words,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._wait(ready, began + timeout)
        self.ready_seconds = time.perf_counter() - began

    def _wait(self, ready: str, deadline: float) -> None:
        while get(self.port, ready) != 200:
            if self.process.poll() is not None or time.perf_counter() > deadline:
                self.stop()
                raise ServerFailed(f"did not start: {last_words(self.log)}")
            time.sleep(0.01)

    @property
    def rss_mb(self) -> float:
        """Resident memory of the first process, MB of 10^6 bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * PAGE_BYTES / 1e6

    def kill(self) -> None:
        """End the process at once, without a chance to tidy up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout: float = 15) -> None:
        """End the process in order, and whatever is left of its session afterwards."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        self.kill()
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class ServerFailed(RuntimeError):
    """A server that did not start, with the last words of its log."""


def stablernn(
    scratch: Path, registry: Path, *words: str, port: int = 0, environment: dict[str, str] | None = None
) -> Server:
    """``stablernn serve`` on a free port, from this checkout."""
    folders = [ROOT, *(ROOT / name for name in ("cli", "client", "registry", "runtime", "server"))]
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "STABLERNN_REGISTRY": str(registry),
        **(environment or {}),
    }
    command = [sys.executable, "-m", "stablernn_cli", "--quiet", "serve", "--device", "cpu", "--port", "{port}", *words]
    return Server(command, "/v2/health/ready", scratch / "stablernn.log", variables, port=port)


def get(port: int, path: str, timeout: float = 2) -> int | None:
    """Status of a GET; None when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def exchange(port: int, request: bytes, timeout: float = 10) -> bytes | None:
    """What a new connection brings back for one request; None when nothing does, or not in time.

    Answers are read to their end as HTTP states it, not to the end of the connection.
    """
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
            sock.sendall(request)
            while split(data) is None:
                part = sock.recv(1 << 16)
                if not part:
                    return data or None
                data += part
    except OSError:
        return None
    return data


def free_port() -> int:
    """A port that is free with the two above it, which some servers take for gRPC and metrics.

    Not one of those that the system gives to connections: Ray opens so many that one may have it before it is bound.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        if all(_is_free(port + more) for more in range(3)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def session_members(leader: int) -> list[int]:
    """Processes of the session that ``leader`` began: also those that left its process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    found.append(int(entry.name))
    return found


def last_words(log: Path) -> str:
    """The end of a log on one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-2:])[-300:]


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Ends the server at the end of the block."""
    try:
        yield server
    finally:
        server.stop()


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

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            with contextlib.suppress(OSError):
                self.samples.append((time.perf_counter(), self.server.rss_mb))

    def facts(self) -> dict[str, float]:
        """First, largest and last MB; the last quarter against the second; the last half's slope (least squares)."""
        half = self.samples[len(self.samples) // 2 :]
        times = [at for at, _ in half]
        middle = sum(times) / len(times)
        level = sum(size for _, size in half) / len(half)
        spread = sum((at - middle) ** 2 for at in times)
        slope = sum((at - middle) * (size - level) for at, size in half) / spread if spread else 0.0
        sizes = [size for _, size in self.samples]
        quarter = max(len(sizes) // 4, 1)
        grown = sum(sizes[-quarter:]) / quarter - sum(sizes[quarter : 2 * quarter]) / quarter
        return {
            "first_mb": sizes[0],
            "max_mb": max(sizes),
            "last_mb": sizes[-1],
            "grown_mb": grown,
            "slope_mb_per_minute": 60 * slope,
        }


Row = dict[str, Any]
GRACE_SECONDS = 15.0
"""How long after the end of the load an answer may still come before it counts as lost."""


@dataclass
class Load:
    """What to send and what to hold the answers against.

    Attributes:
        port: Of the server, on 127.0.0.1.
        requests: Whole HTTP requests, sent in turn.
        expected: For each request the rows of numbers that are right, of which an answer must hold one.
        form: How an answer holds its numbers: ``oip``, ``raw`` (behind the body, also with a JSON head before it),
            ``probabilities``, ``predictions`` or ``list``.
        tolerance: Largest absolute difference; 0 compares the bits of float32.
        clients: Connections, each with at most one request in flight.
        seconds: How long the answers are counted.
        warmup: How long the load runs before that.
        rate: Requests that arrive a second; None lets each client send as soon as it is answered.
        refusals: Statuses besides 200 that are answers of the contract, with ``error`` and ``code`` in their bodies.
    """

    port: int
    requests: list[bytes]
    expected: list[list[list[float]]]
    form: str = "oip"
    tolerance: float = 0.0
    clients: int = 16
    seconds: float = 3.0
    warmup: float = 0.5
    rate: float | None = None
    refusals: list[int] = field(default_factory=list)


def start(load: Load) -> subprocess.Popen[bytes]:
    """The generator, at work in a process of its own; :func:`result` waits for it, SIGTERM ends the load early."""
    process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    content = {**asdict(load), "requests": [base64.b64encode(one).decode() for one in load.requests]}
    assert process.stdin is not None
    process.stdin.write(json.dumps(content).encode())
    process.stdin.close()
    process.stdin = None
    return process


def result(process: subprocess.Popen[bytes]) -> Row:
    """What a generator saw, once it is done."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"The load generator ended with exit code {process.returncode}.")
    return dict(json.loads(output))


def measure(load: Load) -> Row:
    """Load a server and wait for the end."""
    return result(start(load))


class Client:
    """One connection and the answer that is arriving on it."""

    __slots__ = ("arrived_ns", "buffer", "index", "sent_ns", "sock", "unsent")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.buffer = b""
        self.unsent = b""
        self.index = -1
        self.arrived_ns = 0
        self.sent_ns = 0


class Generator:
    """Sends, receives and judges; :attr:`idle` holds the clients without a request in flight.

    Times count from a request's arrival, which is before it is sent where every client waits for an answer then.
    """

    def __init__(self, load: Load) -> None:
        self.load = load
        self.poller = select.epoll()
        self.clients: dict[int, Client] = {}
        self.idle: deque[Client] = deque()
        self.known: list[set[bytes]] = [set() for _ in load.requests]
        self.latencies = array("q")
        self.service = array("q")
        self.statuses: Counter[int] = Counter()
        self.facts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.turn = 0
        self.in_flight = 0
        self.good = 0
        self.counting = False
        self.stopped = False
        signal.signal(signal.SIGTERM, self._stop)
        for _ in range(load.clients):
            self._connect()

    def run(self) -> Row:
        begin = time.perf_counter()
        counted = begin + self.load.warmup
        end = counted + self.load.seconds
        sent_before = cpu_before = 0.0
        late = due = 0
        latest = begin
        while True:
            now = time.perf_counter()
            if not self.counting and counted <= now < end:
                self.counting = True
                counted, cpu_before, sent_before = now, _cpu(), self.facts["sent"]
            if now >= end or self.stopped:
                break
            timeout = min(end, counted if not self.counting else end) - now
            if self.load.rate is None:
                while self.idle:
                    self._send(self.idle.popleft(), time.perf_counter_ns())
            else:
                offered = int((now - begin) * self.load.rate)
                while self.idle and due < offered:
                    arrived = begin + due / self.load.rate
                    late += self.counting and now - arrived > 0.005
                    self._send(self.idle.popleft(), int(arrived * 1e9))
                    due += 1
                if self.idle:
                    timeout = min(timeout, begin + (due + 1) / self.load.rate - now)
            for number, events in self.poller.poll(max(timeout, 0.0005)):
                self._event(number, events)
            latest = time.perf_counter()
        spent, seconds, sent = _cpu() - cpu_before, latest - counted, self.facts["sent"] - sent_before
        good = self.good
        self._drain()
        kinds = {str(status): count for status, count in sorted(self.statuses.items()) if count}
        return {
            "rate": good / seconds,
            "p50_ms": percentile(self.latencies, 0.50),
            "p99_ms": percentile(self.latencies, 0.99),
            "max_ms": percentile(self.latencies, 1.0),
            "p99_from_sending_ms": percentile(self.service, 0.99),
            "seconds": seconds,
            "ended": latest,
            "sent": int(sent),
            "late": late,
            "answers": kinds,
            "wrong": self.facts["wrong"],
            "lost": self.facts["lost"],
            "outside_contract": self.facts["outside_contract"],
            "parsed": self.facts["parsed"],
            "generator_cores": spent / seconds,
            "examples": self.wrong[:5],
        }

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopped = True

    def _drain(self) -> None:
        """Judge what is still under way; it counts as answered or lost, not as throughput."""
        end = time.perf_counter() + GRACE_SECONDS
        while self.in_flight and time.perf_counter() < end:
            for number, events in self.poller.poll(0.1):
                self._event(number, events)
        self.facts["lost"] += self.in_flight

    def _connect(self) -> None:
        client = Client(self.load.port)
        self.clients[client.sock.fileno()] = client
        self.poller.register(client.sock, select.EPOLLIN)
        self.idle.append(client)

    def _send(self, client: Client, arrived_ns: int) -> None:
        client.index = self.turn
        self.turn = (self.turn + 1) % len(self.load.requests)
        client.arrived_ns, client.sent_ns = arrived_ns, time.perf_counter_ns()
        request = self.load.requests[client.index]
        self.in_flight += 1
        self.facts["sent"] += 1
        try:
            written = client.sock.send(request)
        except BlockingIOError:
            written = 0
        except OSError as error:
            self._dropped(client, error)
            return
        if written < len(request):
            client.unsent = request[written:]
            self.poller.modify(client.sock, select.EPOLLIN | select.EPOLLOUT)

    def _event(self, number: int, events: int) -> None:
        client = self.clients[number]
        if events & select.EPOLLOUT and client.unsent:
            client.unsent = client.unsent[client.sock.send(client.unsent) :]
            if not client.unsent:
                self.poller.modify(client.sock, select.EPOLLIN)
        if not events & ~select.EPOLLOUT:
            return
        try:
            part = client.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self._dropped(client, error)
            return
        if not part:
            self._dropped(client, None)
            return
        data = client.buffer + part if client.buffer else part
        found = split(data)
        if found is None:
            client.buffer = data
            return
        now = time.perf_counter_ns()
        client.buffer = b""
        status, head, body = found
        self.in_flight -= 1
        if self.counting:
            self.latencies.append(now - client.arrived_ns)
            self.service.append(now - client.sent_ns)
        self.statuses[status] += self.counting
        if status == 200:
            key = key_of(self.load.form, body)
            if key in self.known[client.index] or self._judge(client.index, key, body):
                self.good += self.counting
        else:
            self._refused(status, head, body)
        if b"onnection: close" in head:
            self._reopen(client)
        else:
            self.idle.append(client)

    def _judge(self, index: int, key: bytes, body: bytes) -> bool:
        self.facts["parsed"] += 1
        try:
            numbers = numbers_of(self.load.form, body)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            numbers, reason = [], f"not an answer ({error!r}): {body[:200]!r}"
        else:
            reason = f"wrong numbers for request {index}: {numbers[:4]}"
        if any(same(numbers, one, self.load.tolerance) for one in self.load.expected[index]):
            self.known[index].add(key)
            return True
        # Also before and after the counted time: a wrong answer is one at any time.
        self.facts["wrong"] += 1
        self.wrong.append(reason)
        return False

    def _refused(self, status: int, head: bytes, body: bytes) -> None:
        allowed = status in self.load.refusals and b'"error"' in body and b'"code"' in body
        if not allowed or (status == 503 and b"retry-after:" not in head.lower()):
            self.facts["outside_contract"] += 1
            self.wrong.append(f"{status}: {body[:200]!r}")

    def _dropped(self, client: Client, error: OSError | None) -> None:
        if client in self.idle:
            self.idle.remove(client)
        else:
            self.in_flight -= 1
            self.facts["lost"] += 1
            self.wrong.append(f"connection closed without an answer ({error})")
        self._reopen(client)

    def _reopen(self, client: Client) -> None:
        self.poller.unregister(client.sock)
        del self.clients[client.sock.fileno()]
        client.sock.close()
        self._connect()


def split(data: bytes) -> tuple[int, bytes, bytes] | None:
    """Status, head and body of a whole HTTP answer; None while bytes are missing."""
    at = data.find(b"\r\n\r\n")
    if at < 0:
        return None
    head = data[:at]
    # From the line's beginning: the binary protocol has a header that ends in the same words.
    place = head.find(b"\r\ncontent-length: ")
    if place < 0:
        place = head.find(b"\r\nContent-Length: ")
    if place < 0:
        return _chunked(head, data[at + 4 :])
    stop = head.find(b"\r", place + 2)
    length = int(head[place + 18 : stop if stop >= 0 else at])
    if len(data) < at + 4 + length:
        return None
    return int(data[9:12]), head, data[at + 4 :]


def _chunked(head: bytes, rest: bytes) -> tuple[int, bytes, bytes] | None:
    if b"chunked" not in head.lower():
        raise ValueError(f"An answer without a length: {head!r}")
    parts = []
    while True:
        at = rest.find(b"\r\n")
        if at < 0:
            return None
        length = int(rest[:at], 16)
        if len(rest) < at + 4 + length:
            return None
        if length == 0:
            return int(head[9:12]), head, b"".join(parts)
        parts.append(rest[at + 2 : at + 2 + length])
        rest = rest[at + 4 + length :]


_MARKS = {"oip": b'"data":', "probabilities": b'"probabilities":', "predictions": b'"predictions":'}
RAW_BYTES = 40


def key_of(form: str, body: bytes) -> bytes:
    """The bytes of an answer that hold its numbers: the same for equal numbers, whatever id the answer carries."""
    if form == "raw":
        return body[-RAW_BYTES:]
    mark = _MARKS.get(form)
    if mark is None:
        return body
    begin = body.find(mark)
    return body[begin : body.find(b"]", begin)] if begin >= 0 else body


def numbers_of(form: str, body: bytes) -> list[float]:
    """The numbers of an answer."""
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


def same(numbers: list[float], expected: list[float], tolerance: float) -> bool:
    """Whether an answer holds the expected numbers."""
    if len(numbers) != len(expected):
        return False
    if tolerance == 0:
        code = f"<{len(expected)}f"
        return struct.pack(code, *numbers) == struct.pack(code, *expected)
    return all(abs(a - b) <= tolerance for a, b in zip(numbers, expected, strict=True))


def percentile(values: array[int], share: float) -> float | None:
    """In ms, of values in ns: the smallest that ``share`` of them do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] / 1e6


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    content = json.load(sys.stdin)
    content["requests"] = [base64.b64decode(one) for one in content["requests"]]
    print(json.dumps(Generator(Load(**content)).run()))


if __name__ == "__main__":
    main()
