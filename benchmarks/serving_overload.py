"""Overload: 200 clients at twice what the server can do, and how soon it is itself again."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

from serving_compare import INFER
from serving_load import Load, measure, numbers_of, result, same, split, start
from serving_model import NAME, Case, oip_json
from serving_process import Memory, exchange, get, running, stablernn

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
