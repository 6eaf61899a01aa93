"""Ten thousand mutated binary bodies: no 500, no hang, no growth, and right numbers afterwards."""

from __future__ import annotations

import json
import math
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from serving_compare import INFER
from serving_load import numbers_of, same, split
from serving_model import NAME, Case, http, oip_binary_body, oip_json, series
from serving_process import Memory, exchange, running, stablernn

Row = dict[str, Any]
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
