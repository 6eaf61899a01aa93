"""A thousand token streams through random disconnects and kills of the server, equal to the offline run bit for bit."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from serving_model import CLASSES, NAME, Offline, graph, http, numbers, series
from serving_process import Server, stablernn
from serving_stream_load import HEAD, masked, unframed
from serving_streams import step_by_step

Row = dict[str, Any]
STREAMS = 1000
STEPS = 60
KILLS = 4
DISCONNECTS = 0.03
"""Share of requests after which the client closes the connection without waiting for the answer."""
WANT_TOKENS, RESTORE = 1, 16
Failures = (OSError, EOFError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class Client:
    """One stream: it holds its last token, and repeats from there whatever was not answered."""

    def __init__(self, number: int, port: int, samples: np.ndarray, facts: Counter[str]) -> None:
        self.port = port
        self.samples = samples
        self.facts = facts
        self.chance = random.Random(number)
        self.token = ""
        self.outputs = np.zeros((0, CLASSES), np.float32)
        self.connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        while len(self.outputs) < len(self.samples):
            steps = self.chance.randint(1, 4)
            chunk = self.samples[len(self.outputs) : len(self.outputs) + steps]
            try:
                if self.connection is None:
                    self.connection = await self.connect()
                    self.facts["connections"] += 1
                self.send(self.connection[1], chunk)
                if self.chance.random() < DISCONNECTS:
                    self.facts["disconnects"] += 1
                    await self.drop()
                    continue
                answer = await asyncio.wait_for(self.receive(self.connection[0], len(chunk)), 30)
            except (*Failures, TimeoutError) as error:
                self.facts["timeouts" if isinstance(error, TimeoutError) else "broken"] += 1
                await self.drop()
                await asyncio.sleep(self.chance.uniform(0.1, 0.5))
                continue
            if answer is None:
                await asyncio.sleep(self.chance.uniform(0.1, 0.5))
                continue
            found, self.token = answer
            self.facts["answers"] += 1
            self.outputs = np.concatenate([self.outputs, found])
            # Streams are live: their samples come with pauses, so that all of them are open at once.
            await asyncio.sleep(self.chance.uniform(0.1, 0.7))
        await self.drop()

    async def drop(self) -> None:
        if self.connection is not None:
            self.connection[1].close()
            self.connection = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def send(self, writer: asyncio.StreamWriter, chunk: np.ndarray) -> None:
        raise NotImplementedError

    async def receive(self, reader: asyncio.StreamReader, count: int) -> tuple[np.ndarray, str] | None:
        raise NotImplementedError

    def refused(self, status: int, content: bytes) -> None:
        """A busy or stopping server is asked again; anything else is a fault."""
        if status == 503:
            self.facts["busy"] += 1
        else:
            raise RuntimeError(f"A stream was refused: {status} {content[:300]!r}")


class HttpClient(Client):
    """``POST /v1/step``."""

    def send(self, writer: asyncio.StreamWriter, chunk: np.ndarray) -> None:
        place = {"state_token": self.token} if self.token else {"model": f"{NAME}:1"}
        values = [[value] for value in numbers(chunk)]
        body = {**place, "values": values, "sequence": len(self.outputs) + 1}
        writer.write(http("/v1/step", json.dumps(body).encode()))

    async def receive(self, reader: asyncio.StreamReader, count: int) -> tuple[np.ndarray, str] | None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        content = await reader.readexactly(int(length))
        status = int(head[9:12])
        if b"connection: close" in head:
            await self.drop()
        if status != 200:
            self.refused(status, content)
            return None
        answer = json.loads(content)
        rows = [row["probabilities"] for row in answer["outputs"]]
        if len(rows) != count or answer["step"] != len(self.outputs) + count:
            raise RuntimeError(f"A stream got {len(rows)} outputs at step {answer['step']}.")
        return np.array(rows, np.float32), answer["state_token"]


class SocketClient(Client):
    """Binary frames over ``/v1/stream``; after each connection the stream is restored from its token."""

    fresh = True

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            key = base64.b64encode(os.urandom(16)).decode()
            lines = [f"GET /v1/stream?model={NAME}:1&outputs=probabilities HTTP/1.1", "Host: 127.0.0.1"]
            lines += ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
            writer.write("\r\n".join([*lines, f"Sec-WebSocket-Key: {key}", "", ""]).encode())
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 101 " not in head.split(b"\r\n", 1)[0]:
                raise ConnectionError(f"no WebSocket: {head[:100]!r}")
            await frame(reader, writer)
        except BaseException:
            writer.close()
            raise
        self.fresh = True
        return reader, writer

    def send(self, writer: asyncio.StreamWriter, chunk: np.ndarray) -> None:
        restore = self.fresh and bool(self.token)
        flags = WANT_TOKENS | RESTORE * restore
        token = len(self.token).to_bytes(4, "little") + self.token.encode() if restore else b""
        content = HEAD.pack(1, flags, 0, 1, len(chunk)) + bytes(4) + token + chunk.astype("<f4").tobytes()
        writer.write(masked(0x82, content))
        self.fresh = False

    async def receive(self, reader: asyncio.StreamReader, count: int) -> tuple[np.ndarray, str] | None:
        assert self.connection is not None
        kind, content = await frame(reader, self.connection[1])
        if kind != 0x82:
            error = json.loads(content)
            if "closing" in error:
                raise ConnectionError("the server is closing")
            self.refused(error.get("status", 0), content)
            # What the server remembers of the stream is not known now.
            await self.drop()
            return None
        taken = int.from_bytes(content[HEAD.size : HEAD.size + 8], "little")
        begin = HEAD.size + 8
        end = begin + 4 * CLASSES * count
        if taken != len(self.outputs) + count:
            raise RuntimeError(f"A stream is at step {taken}, not {len(self.outputs) + count}.")
        outputs = np.frombuffer(content, "<f4", CLASSES * count, begin).reshape(count, CLASSES)
        return outputs, content[end + 4 :].decode()


async def frame(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, bytes]:
    """The next frame that is not a ping."""
    while True:
        data = await reader.readexactly(2)
        if data[1] >= 126:
            data += await reader.readexactly(2 if data[1] == 126 else 8)
            size = int.from_bytes(data[2:], "big")
        else:
            size = data[1]
        found = unframed(data + await reader.readexactly(size))
        assert found is not None
        kind, content, _ = found
        if kind == 0x88:
            raise ConnectionError("the server closed the WebSocket")
        if kind != 0x89:
            return kind, content
        writer.write(masked(0x8A, content))


def continuity(scratch: Path, registry: Path, seed: int = 0) -> Row:
    """Half of the streams by HTTP, half by WebSockets; how many of their outputs differ from the offline run."""
    samples = series(STREAMS, STEPS, seed=2)
    expected = step_by_step(Offline(graph(registry, "step.onnx")), samples)
    whole = Offline(graph(registry))
    key = scratch / "state.key"
    key.write_text(random.Random(seed).randbytes(32).hex())
    key.chmod(0o600)
    environment = {"STABLERNN_STATE_KEY_FILE": str(key)}
    facts: Counter[str] = Counter()
    began = time.perf_counter()

    def begin(port: int = 0) -> Server:
        return stablernn(scratch, registry, "--model", f"{NAME}:1", port=port, environment=environment)

    async def work() -> list[Client]:
        kinds = (HttpClient, SocketClient)
        port = running[-1].port
        clients: list[Client] = [kinds[number % 2](number, port, samples[number], facts) for number in range(STREAMS)]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run())
            for kill in range(1, KILLS + 1):
                # By progress, not by the clock: on any machine the kills come in the middle of the streams.
                while sum(len(one.outputs) for one in clients) < STREAMS * STEPS * kill / (KILLS + 1):
                    await asyncio.sleep(0.1)
                running[-1].kill()
                facts["kills"] += 1
                running.append(await asyncio.to_thread(begin, port))
        return clients

    running = [begin()]
    try:
        clients = asyncio.run(work())
    finally:
        running[-1].stop()
    outputs = np.stack([client.outputs for client in clients])
    differing = int((outputs.view(np.uint32) != expected.view(np.uint32)).any(-1).any(-1).sum())
    last = np.concatenate([whole.run(one[None]) for one in samples])
    found = {
        "streams": STREAMS,
        "steps_each": STEPS,
        "differing_streams": differing,
        "differing_from_whole_sequence": int((outputs[:, -1].view(np.uint32) != last.view(np.uint32)).any(-1).sum()),
        "seconds": time.perf_counter() - began,
        **facts,
    }
    print(f"streams through kills: {found}", file=sys.stderr, flush=True)
    return found
