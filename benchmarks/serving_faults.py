"""What a server survives: overload, reloads, kills in the middle of streams, and bodies that are mutated."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import random
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from serving_load import (
    Load,
    Memory,
    Server,
    exchange,
    get,
    measure,
    numbers_of,
    result,
    running,
    same,
    split,
    stablernn,
    start,
)
from serving_model import (
    CLASSES,
    INFER,
    NAME,
    Case,
    Offline,
    cases,
    graph,
    http,
    numbers,
    oip_binary_body,
    oip_json,
    publish,
    series,
)
from serving_streams import HEAD, masked, step_by_step, unframed

Row = dict[str, Any]
CLIENTS = 200
MAX_QUEUE = 100
"""Requests that wait at most, fewer than there are clients: some must be refused."""
TIMEOUT_US = 30_000
"""Deadline of every fourth request, shorter than the queue is long: some must expire."""
REFUSALS = [429, 503, 504]


def overload(scratch: Path, registry: Path, case: Case, seconds: float) -> Row:
    """Every answer, memory, and the time until one client is served as it was before."""
    plain = [oip_json(INFER, x) for x in case.x]
    hurried = [oip_json(INFER, x, parameters={"timeout": TIMEOUT_US}) for x in case.x]
    requests = [hurried[place] if place % 4 == 3 else one for place, one in enumerate(plain)]
    expected = [[[float(value) for value in one]] for one in case.probabilities]
    server = stablernn(scratch, registry, "--model", f"{NAME}:1", environment={"STABLERNN_MAX_QUEUE": str(MAX_QUEUE)})
    with running(server):
        capacity = measure(Load(server.port, plain, expected, seconds=3))["rate"]
        idle = measure(Load(server.port, plain, expected, clients=1, seconds=2))["p50_ms"]
        load = Load(server.port, requests, expected, clients=CLIENTS, seconds=seconds, warmup=1, rate=2 * capacity)
        load.refusals = REFUSALS
        with Memory(server) as memory:
            seen = result(start(load))
        recovery = recovered(server.port, plain[0], expected[0][0], idle, seen["ended"])
        found = {
            "clients": CLIENTS,
            "capacity_per_second": capacity,
            "offered_per_second": load.rate,
            "idle_p50_ms": idle,
            "recovery_seconds": recovery,
            "ready_afterwards": get(server.port, "/v2/health/ready") == 200,
            "memory": memory.facts(),
            "load": seen,
        }
    print(
        f"overload: {seen['answers']} wrong {seen['wrong']} lost {seen['lost']} outside the contract "
        f"{seen['outside_contract']}, recovered in {recovery:.2f} s, memory "
        f"{found['memory']['slope_mb_per_minute']:+.2f} MB a minute",
        file=sys.stderr,
        flush=True,
    )
    return found


def recovered(port: int, request: bytes, expected: list[float], idle_ms: float, ended: float) -> float:
    """Seconds from the end of the load until ten requests in a row took at most twice what they took before."""
    in_a_row, first = 0, math.inf
    while in_a_row < 10 and time.perf_counter() - ended < 60:
        began = time.perf_counter()
        found = split(exchange(port, request) or b"")
        now = time.perf_counter()
        right = found is not None and found[0] == 200 and same(numbers_of("oip", found[2]), expected, 0)
        # A connection is opened for each, which takes about a millisecond.
        if right and 1e3 * (now - began) <= 2 * idle_ms + 2:
            first = now if in_a_row == 0 else first
            in_a_row += 1
        else:
            in_a_row = 0
    return first - ended if in_a_row == 10 else math.inf


RELOADS = 100
ALIAS = "production"
RELOADED_STEPS = 64
RELOADING_CLIENTS = 8


def publish_all(root: Path) -> tuple[list[int], list[int]]:
    """Two versions that can be served, and two that cannot: one graph cut short, one that is not what it says."""
    from stablernn_registry import Registry

    registry = Registry(root)
    good = [publish(root, seed=seed) for seed in (0, 1)]
    version = registry.get(f"{NAME}:{good[0]}")
    fields = {"signature": version.manifest.signature, "parity": version.manifest.parity, "task": "classify"}
    fields |= {name: getattr(version.manifest, name) for name in ("cell", "labels", "features")}
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for content in (version.read("sequence.onnx")[:-5000], version.read("step.onnx")):
            files = {name: place / name for name in version.manifest.files}
            for name, file in files.items():
                file.write_bytes(content if name == "sequence.onnx" else version.read(name))
            bad.append(registry.publish(NAME, files, fields).version)
    return good, bad


def reloads(scratch: Path) -> Row:
    """In a registry of its own."""
    from stablernn_registry import Registry

    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        root = Path(folder)
        good, bad = publish_all(root)
        registry = Registry(root)
        registry.set_alias(NAME, ALIAS, good[0])
        answers = [cases(Offline(graph(root, version=version)))[RELOADED_STEPS] for version in good]
        assert np.abs(answers[0].probabilities - answers[1].probabilities).max(-1).min() > 1e-3
        path = f"/v2/models/{NAME}@{ALIAS}/infer"
        requests = [oip_json(path, x) for x in answers[0].x]
        expected = [[[float(value) for value in case.probabilities[place]] for case in answers] for place in range(32)]
        reload = http(f"/v2/repository/models/{NAME}@{ALIAS}/load", b"{}")
        environment = {"STABLERNN_RELOAD_SECONDS": "0"}
        found: Row = {"reloads": 0, "failed_loads": 0, "not_swapped": 0, "not_kept": 0, "examples": []}

        def point(number: int) -> tuple[int, bytes]:
            registry.set_alias(NAME, ALIAS, number)
            answer = split(exchange(server.port, reload, timeout=60) or b"")
            return (0, b"") if answer is None else (answer[0], answer[2])

        def serves(which: int) -> bool:
            answer = split(exchange(server.port, requests[0]) or b"")
            return (
                answer is not None
                and answer[0] == 200
                and json.loads(answer[2])["model_version"] == str(good[which])
                and same(numbers_of("oip", answer[2]), expected[0][which], 0)
            )

        server = stablernn(scratch, root, "--model", f"{NAME}@{ALIAS}", environment=environment)
        with running(server), Memory(server) as memory:
            load = start(Load(server.port, requests, expected, clients=RELOADING_CLIENTS, seconds=3600))
            began = time.perf_counter()
            for number in range(RELOADS):
                which = (number + 1) % 2
                status, body = point(good[which])
                if status == 200:
                    found["reloads"] += 1
                else:
                    found["examples"].append(f"{status} {body[:200]!r}")
                found["not_swapped"] += not serves(which)
                status, body = point(bad[number % 2])
                if 400 <= status < 600 and b'"code"' in body:
                    found["failed_loads"] += 1
                    found["refusal"] = json.loads(body)["error"]
                else:
                    found["examples"].append(f"{status} {body[:200]!r}")
                found["not_kept"] += not serves(which)
            found["seconds"] = time.perf_counter() - began
            load.send_signal(signal.SIGTERM)
            seen = result(load)
    found |= {"load": seen, "memory": memory.facts(), "examples": found["examples"][:5]}
    print(
        f"reloads: {found['reloads']} and {found['failed_loads']} failed loads in {found['seconds']:.0f} s, "
        f"not swapped {found['not_swapped']}, not kept {found['not_kept']}, answers {seen['answers']}, wrong "
        f"{seen['wrong']}, lost {seen['lost']}, memory {found['memory']['grown_mb']:+.1f} MB",
        file=sys.stderr,
        flush=True,
    )
    return found


TOKEN_STREAMS = 1000
TOKEN_STEPS = 60
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
    samples = series(TOKEN_STREAMS, TOKEN_STEPS, seed=2)
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
        clients: list[Client] = [
            kinds[number % 2](number, port, samples[number], facts) for number in range(TOKEN_STREAMS)
        ]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run())
            for kill in range(1, KILLS + 1):
                # By progress, not by the clock: on any machine the kills come in the middle of the streams.
                while sum(len(one.outputs) for one in clients) < TOKEN_STREAMS * TOKEN_STEPS * kill / (KILLS + 1):
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
        "streams": TOKEN_STREAMS,
        "steps_each": TOKEN_STEPS,
        "differing_streams": differing,
        "differing_from_whole_sequence": int((outputs[:, -1].view(np.uint32) != last.view(np.uint32)).any(-1).sum()),
        "seconds": time.perf_counter() - began,
        **facts,
    }
    print(f"streams through kills: {found}", file=sys.stderr, flush=True)
    return found


COUNT = 10_000
THREADS = 4
HANG_SECONDS = 20
EXPECTED = ("503", "504")
"""Not faults: a mutated ``timeout`` is a deadline that passes."""
WORDS: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        1,
        2,
        3.5,
        1e308,
        2**31,
        2**63,
        10**30,
        math.nan,
        "",
        "x",
        "FP64",
        "BYTES",
        "INT64",
        "y" * 5000,
    ),
    *([], {}, [[]], [1], [1, 16, 1], [1, 2**31, 1], [2**40] * 3, [0, 0, 0], [-1, 16, 1], [1] * 100, {"a": {"b": []}}),
]
"""What a place in the head may hold instead."""
NAMES = [
    "data",
    "shape",
    "name",
    "parameters",
    "inputs",
    "outputs",
    "id",
    "timeout",
    "sequence_id",
    "sequence_end",
    "priority",
]
Body = bytes
Mutation = Callable[[random.Random, Body, int], tuple[Body, int]]


def flip(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """Bits of a few bytes, anywhere."""
    content = bytearray(body)
    for _ in range(chance.randint(1, 8)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    return bytes(content), head


def flip_head(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """One byte of the JSON head."""
    content = bytearray(body)
    content[chance.randrange(head)] = chance.randrange(256)
    return bytes(content), head


def cut(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """The end is missing."""
    return body[: chance.randrange(len(body))], head


def grow(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """Bytes more than stated."""
    return body + chance.randbytes(chance.randint(1, 64)), head


def splice(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """A piece is doubled, or taken out."""
    begin, end = sorted(chance.sample(range(len(body)), 2))
    return (body[:end] + body[begin:] if chance.random() < 0.5 else body[:begin] + body[end:]), head


def restructure(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """A place of the head's JSON holds something else, is gone, or is there twice; it stays JSON."""
    try:
        tree = json.loads(body[:head])
    except ValueError:
        return flip_data(chance, body, head)
    places = list(_places(tree))
    if not places:
        return flip_data(chance, body, head)
    holder, key = chance.choice(places)
    action = chance.random()
    if action < 0.6:
        holder[key] = chance.choice(WORDS)
    elif action < 0.75:
        del holder[key]
    elif isinstance(holder, list):
        holder.append(chance.choice([holder[key], *WORDS]))
    else:
        holder[chance.choice(NAMES)] = chance.choice([holder[key], *WORDS])
    changed = json.dumps(tree).encode()
    return changed + body[head:], len(changed)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _places(tree[key])


def flip_data(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """Bits of the numbers: NaN, infinities and huge values among them."""
    content = bytearray(body)
    if head < len(content):
        for _ in range(chance.randint(1, 8)):
            content[chance.randrange(head, len(content))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            place = head + 4 * chance.randrange(max((len(content) - head) // 4, 1))
            content[place : place + 4] = struct.pack("<f", chance.choice([math.nan, math.inf, -math.inf, 3e38, 1e-45]))
    return bytes(content), head


def lie(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """The head is not as long as stated."""
    return body, chance.choice([0, 1, head - 1, head + 1, head + 4, len(body), len(body) + 1, 2**31, 2**63, -1])


def noise(chance: random.Random, body: Body, head: int) -> tuple[Body, int]:
    """Nothing of it is left."""
    content = chance.randbytes(chance.randint(1, 512))
    return content, chance.randint(0, len(content))


MUTATIONS: list[Mutation] = [*([restructure] * 8), *([flip_data] * 4), flip, flip_head, cut, grow, splice, lie, noise]


def mutated(number: int, bases: list[tuple[Body, int]]) -> bytes:
    """The request of one case; the same for the same number."""
    chance = random.Random(number)
    body, head = chance.choice(bases)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        if len(body) > 1 and 0 < head <= len(body):
            body, head = chance.choice(MUTATIONS)(chance, body, head)
    kind = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(head)}
    return http(INFER, body, kind)


def fuzz(scratch: Path, registry: Path, case: Case, count: int = COUNT) -> Row:
    """Statuses, and what must not be: answers of 500 and above, hangs, lost answers, growth."""
    bases = [oip_binary_body(x) for x in series(4, 16, seed=3)]
    bases += [oip_binary_body(x, id="7", parameters={"timeout": 10_000_000}) for x in series(2, 16, seed=4)]
    bases += [oip_binary_body(x, parameters={"sequence_id": 9, "sequence_start": True}) for x in series(2, 4, seed=5)]
    server = stablernn(scratch, registry, "--model", f"{NAME}:1")
    with running(server):
        _cases(server.port, bases, range(count, count + 1000))
        with Memory(server) as memory:
            began = time.perf_counter()
            parts = [range(place, count, THREADS) for place in range(THREADS)]
            with ThreadPoolExecutor(THREADS) as pool:
                seen = list(pool.map(lambda numbers: _cases(server.port, bases, numbers), parts))
            seconds = time.perf_counter() - began
            time.sleep(1.2)
        answer = split(exchange(server.port, oip_json(INFER, case.x[0])) or b"")
        expected = [float(value) for value in case.probabilities[0]]
        right = answer is not None and answer[0] == 200 and same(numbers_of("oip", answer[2]), expected, 0)
    counts: Counter[str] = sum((one[0] for one in seen), Counter())
    found = {
        "bodies": count,
        "seconds": seconds,
        "answers": dict(sorted(counts.items())),
        "server_errors": sum(
            number for status, number in counts.items() if status[0] == "5" and status not in EXPECTED
        ),
        "hangs_or_lost": counts["none"],
        "right_afterwards": right,
        "memory": memory.facts(),
        "examples": [example for one in seen for example in one[1]][:5],
    }
    shown = {name: value for name, value in found.items() if name not in ("examples", "memory")}
    print(f"fuzz: {shown}", file=sys.stderr, flush=True)
    return found


def _cases(port: int, bases: list[tuple[Body, int]], cases: range) -> tuple[Counter[str], list[str]]:
    """One request after the other on one connection, which is opened anew when the server closes it."""
    counts: Counter[str] = Counter()
    examples: list[str] = []
    sock: socket.socket | None = None
    for number in cases:
        request = mutated(number, bases)
        try:
            sock = sock or socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS)
            sock.sendall(request)
            data = b""
            while (found := split(data)) is None:
                part = sock.recv(1 << 16)
                if not part:
                    raise ConnectionError("closed")
                data += part
        except OSError as error:
            counts["none"] += 1
            examples.append(f"case {number}: {error!r}")
            sock = None
            continue
        status, head, body = found
        counts[str(status)] += 1
        refused_badly = status != 200 and not (b'"error"' in body and b'"code"' in body)
        if (status >= 500 and str(status) not in EXPECTED) or refused_badly:
            examples.append(f"case {number}: {status} {body[:200]!r}")
            counts["outside_contract"] += refused_badly
        if b"connection: close" in head.lower():
            sock.close()
            sock = None
    if sock is not None:
        sock.close()
    return counts, examples
