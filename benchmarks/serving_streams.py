"""Streaming: a thousand streams over WebSockets, in frames of several steps, of several streams, and of one step."""

from __future__ import annotations

import base64
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import time
from array import array
from collections import Counter, deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from serving_load import GRACE_SECONDS, percentile, running, stablernn
from serving_model import NAME, Offline, graph, series

Row = dict[str, Any]
HEAD = struct.Struct("<BBHII")
VARIANTS = 8


@dataclass
class Streaming:
    """What to stream.

    Attributes:
        port: Of the server, on 127.0.0.1.
        path: Of the WebSocket, with its query; the server answers with one output.
        series: ``.npy`` file with samples (series, steps, features).
        outputs: ``.npy`` file with the right outputs (series, steps, numbers).
        sockets: Connections, each with at most one frame in flight.
        streams: Streams of each.
        steps: Steps in a frame.
        rate: Frames a second over all sockets; None sends a socket's next frame as soon as it is answered.
        seconds: How long the answers are counted.
        warmup: How long the load runs before that.
    """

    port: int
    path: str
    series: str
    outputs: str
    sockets: int
    streams: int
    steps: int
    rate: float | None = None
    seconds: float = 5.0
    warmup: float = 1.0


def measure_streaming(streaming: Streaming) -> Row:
    """Stream from another process and wait for the end."""
    words = [sys.executable, __file__, json.dumps(asdict(streaming))]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


class Variant:
    """The frames of a socket one after the other, and the answers that they must get."""

    def __init__(self, streaming: Streaming, number: int) -> None:
        samples, outputs = np.load(streaming.series), np.load(streaming.outputs)
        chosen = [(number * streaming.streams + place) % len(samples) for place in range(streaming.streams)]
        size, wide = streaming.steps, len(chosen)
        head = HEAD.pack(1, 0, 0, wide, size) + np.arange(wide, dtype="<u4").tobytes()
        self.frames: list[bytes] = []
        self.answers: list[bytes] = []
        for begin in range(0, samples.shape[1] - size + 1, size):
            content = samples[chosen, begin : begin + size].astype("<f4").tobytes()
            self.frames.append(masked(0x82, head + content))
            taken = np.full(wide, begin + size, "<u8").tobytes()
            numbers = outputs[chosen, begin : begin + size].astype("<f4").tobytes()
            self.answers.append(HEAD.pack(1, 0, 0, wide, size) + taken + numbers)


class Socket:
    """One connection; :attr:`due` holds the times at which its next frames should have gone."""

    __slots__ = ("buffer", "busy", "due", "frame", "sent_ns", "sock", "variant")

    def __init__(self, streaming: Streaming, variant: Variant) -> None:
        self.sock, self.buffer = opened(streaming.port, streaming.path)
        self.variant = variant
        self.frame = 0
        self.busy = False
        self.sent_ns = 0
        self.due: deque[int] = deque()


def masked(kind: int, content: bytes) -> bytes:
    """A whole WebSocket frame from a client."""
    size = len(content)
    if size < 126:
        return struct.pack("!BB", kind, 128 | size) + bytes(4) + content
    if size < 1 << 16:
        return struct.pack("!BBH", kind, 128 | 126, size) + bytes(4) + content
    return struct.pack("!BBQ", kind, 128 | 127, size) + bytes(4) + content


def unframed(data: bytes) -> tuple[int, bytes, bytes] | None:
    """First byte, content and rest of a server's frame; None while bytes are missing."""
    if len(data) < 2:
        return None
    size, at = data[1], 2
    if size == 126:
        at = 4
    elif size == 127:
        at = 10
    if len(data) < at:
        return None
    if at > 2:
        size = int.from_bytes(data[2:at], "big")
    return None if len(data) < at + size else (data[0], data[at : at + size], data[at + size :])


def opened(port: int, path: str) -> tuple[socket.socket, bytes]:
    """A WebSocket after the server's greeting, and what arrived behind it."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: Upgrade", "Upgrade: websocket"]
    lines += ["Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}"]
    sock.sendall("\r\n".join([*lines, "", ""]).encode())
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(sock, data)
    head, _, data = data.partition(b"\r\n\r\n")
    if b" 101 " not in head.split(b"\r\n", 1)[0]:
        raise ConnectionError(f"The server did not open a WebSocket: {(head + data)[:300]!r}")
    while (frame := unframed(data)) is None:
        data += _received(sock, data)
    if b'"outputs"' not in frame[1]:
        raise ConnectionError(f"The server did not greet: {frame[1][:300]!r}")
    sock.setblocking(False)
    return sock, frame[2]


def _received(sock: socket.socket, before: bytes) -> bytes:
    part = sock.recv(65536)
    if not part:
        raise ConnectionError(f"The server closed the connection after {before[:300]!r}")
    return part


class Streamer:
    """Sends frames, compares answers, and counts."""

    def __init__(self, streaming: Streaming) -> None:
        self.streaming = streaming
        variants = [Variant(streaming, number) for number in range(min(VARIANTS, streaming.sockets))]
        self.sockets = [Socket(streaming, variants[place % len(variants)]) for place in range(streaming.sockets)]
        self.of = {one.sock.fileno(): one for one in self.sockets}
        self.poller = select.epoll()
        for one in self.sockets:
            self.poller.register(one.sock, select.EPOLLIN)
        self.latencies = array("q")
        self.facts: Counter[str] = Counter()
        self.examples: list[str] = []
        self.counting = False
        self.ended = False
        self.exhausted = False

    def run(self) -> Row:
        asked = self.streaming
        begin = time.perf_counter()
        counted, end = begin + asked.warmup, begin + asked.warmup + asked.seconds
        offered, cpu = 0, 0.0
        if asked.rate is None:
            for one in self.sockets:
                self._send(one, time.perf_counter_ns())
        while (now := time.perf_counter()) < end and not self.exhausted:
            if not self.counting and now >= counted:
                self.counting, counted, cpu = True, now, _cpu()
            timeout = end - now
            if asked.rate is not None:
                while offered < (now - begin) * asked.rate:
                    one = self.sockets[offered % len(self.sockets)]
                    due = int((begin + offered / asked.rate) * 1e9)
                    offered += 1
                    if one.busy:
                        self.facts["late"] += self.counting
                        one.due.append(due)
                    else:
                        self._send(one, due)
                timeout = begin + offered / asked.rate - now
            for number, _ in self.poller.poll(max(timeout, 0.0005)):
                self._receive(self.of[number])
        seconds, spent = time.perf_counter() - counted, _cpu() - cpu
        steps = self.facts["answers"] * asked.streams * asked.steps
        self._drain()
        return {
            "steps_per_second": steps / seconds,
            "frames_per_second": self.facts["answers"] / seconds,
            "p50_ms": percentile(self.latencies, 0.50),
            "p99_ms": percentile(self.latencies, 0.99),
            "max_ms": percentile(self.latencies, 1.0),
            "late": self.facts["late"],
            "wrong": self.facts["wrong"],
            "lost": self.facts["lost"],
            "sockets": asked.sockets,
            "streams_per_socket": asked.streams,
            "steps_per_frame": asked.steps,
            "offered_steps_per_second": asked.rate and asked.rate * asked.streams * asked.steps,
            "generator_cores": spent / seconds,
            "examples": self.examples[:5],
        }

    def _drain(self) -> None:
        self.counting, self.ended = False, True
        end = time.perf_counter() + GRACE_SECONDS
        for one in self.sockets:
            one.due.clear()
        while any(one.busy for one in self.sockets) and time.perf_counter() < end:
            for number, _ in self.poller.poll(0.1):
                self._receive(self.of[number])
        self.facts["lost"] += sum(one.busy for one in self.sockets)

    def _send(self, one: Socket, at_ns: int) -> None:
        if one.frame == len(one.variant.frames):
            # The load ends with the series, so that all of it was one under the same conditions.
            self.exhausted = True
            return
        one.busy = True
        one.sent_ns = at_ns
        frame = one.variant.frames[one.frame]
        if one.sock.send(frame) < len(frame):
            # A frame is far smaller than a socket's buffer, and the one before it was answered.
            raise RuntimeError("The socket did not take a whole frame.")

    def _receive(self, one: Socket) -> None:
        try:
            part = one.sock.recv(1 << 18)
        except OSError as error:
            part = b""
            self.examples.append(repr(error))
        if not part:
            self.facts["lost"] += one.busy
            one.busy = False
            one.due.clear()
            self.poller.unregister(one.sock)
            self.examples.append("the server closed a socket")
            return
        one.buffer += part
        while (found := unframed(one.buffer)) is not None:
            kind, content, one.buffer = found
            if kind == 0x82:
                self._answered(one, content)
            elif kind == 0x89:
                one.sock.send(masked(0x8A, content))
            else:
                self.facts["wrong"] += 1
                self.examples.append(f"{kind:#x} {content[:200]!r}")
                one.busy = False

    def _answered(self, one: Socket, content: bytes) -> None:
        now = time.perf_counter_ns()
        if content != one.variant.answers[one.frame]:
            self.facts["wrong"] += 1
            self.examples.append(f"frame {one.frame}: {content[:60]!r}, not {one.variant.answers[one.frame][:60]!r}")
        elif self.counting:
            self.facts["answers"] += 1
            self.latencies.append(now - one.sent_ns)
        one.frame += 1
        one.busy = False
        if one.due:
            self._send(one, one.due.popleft())
        elif self.streaming.rate is None and not self.ended:
            self._send(one, now)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


STREAMS = 1000
SERIES = 32
STEPS = 4096
SHAPES = {
    "16 steps of one stream a frame": (STREAMS, 1, 16),
    "one step of 100 streams a frame": (STREAMS // 100, 100, 1),
    "one step of one stream a frame": (STREAMS, 1, 1),
}
"""Sockets, streams of each, steps in a frame."""
OFFERED = {"16 steps of one stream a frame": 40_000, "one step of 100 streams a frame": 40_000}
"""Steps a second that arrive while latencies are taken; 8,000 where a frame carries one."""


def step_by_step(offline: Offline, samples: np.ndarray) -> np.ndarray:
    """Probabilities after each step (series, steps, classes), by ``step.onnx``."""
    names = list(offline.states)
    states = offline.feeds(samples)
    found = []
    for at in range(samples.shape[1]):
        feeds = {"x": samples[:, at], **{name: states[name] for name in names}}
        answer, *after = offline.session.run(["probabilities", *(f"{name}_out" for name in names)], feeds)
        states = dict(zip(names, after, strict=True))
        found.append(answer)
    return np.stack(found, axis=1)


def streams(scratch: Path, registry: Path, seconds: float) -> dict[str, Row]:
    """Steps a second of each shape as fast as answers come, and latencies where steps arrive at a given rate."""
    samples = series(SERIES, STEPS, seed=1)
    np.save(scratch / "series.npy", samples)
    np.save(scratch / "outputs.npy", step_by_step(Offline(graph(registry, "step.onnx")), samples))
    found: dict[str, Row] = {}
    with running(stablernn(scratch, registry, "--model", f"{NAME}:1")) as server:
        for name, (sockets, wide, steps) in SHAPES.items():
            asked = Streaming(
                server.port,
                f"/v1/stream?model={NAME}&outputs=probabilities",
                str(scratch / "series.npy"),
                str(scratch / "outputs.npy"),
                sockets,
                wide,
                steps,
                seconds=seconds,
            )
            fastest = measure_streaming(asked)
            asked.rate = OFFERED.get(name, 8_000) / (wide * steps)
            found[name] = {"fastest": fastest, "paced": measure_streaming(asked)}
            paced = found[name]["paced"]
            print(
                f"streams, {name}: {fastest['steps_per_second']:.0f} steps/s; "
                f"at {paced['offered_steps_per_second']:.0f} steps/s p50 {paced['p50_ms']:.1f} ms, "
                f"p99 {paced['p99_ms']:.1f} ms; wrong or lost "
                f"{sum(one['wrong'] + one['lost'] for one in found[name].values())}",
                file=sys.stderr,
                flush=True,
            )
        found["server"] = {"rss_mb": server.rss_mb}
    return found


if __name__ == "__main__":
    print(json.dumps(Streamer(Streaming(**json.loads(sys.argv[1]))).run()))
