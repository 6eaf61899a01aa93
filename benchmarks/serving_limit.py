"""The limit: ONNX Runtime in this process, 16 sequences in flight, no server around it."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
from serving_model import Case, Offline

IN_FLIGHT = 16
WAYS = {"16 on one thread": (16, 1), "2 x 8 on two threads": (8, 2), "one at a time on two threads": (1, 2)}
"""Sequences in a run, and threads that run one after the other each."""
ARENA = "2 x 8 on two threads, with the runtime's arena"


def limit(offline: Offline, case: Case, seconds: float) -> dict[str, Any]:
    """Sequences a second of each way, the best of them, and the time of one sequence alone."""
    rates = {name: _rate(offline, case, *way, seconds) for name, way in WAYS.items()}
    rates[ARENA] = _rate(Offline(offline.content, arena=True), case, *WAYS["2 x 8 on two threads"], seconds)
    return {"rates": rates, "best": max(rates.values()), "p50_ms": _alone(offline, case, seconds)}


def _rate(offline: Offline, case: Case, rows: int, threads: int, seconds: float) -> float:
    counts = [0] * threads
    feeds = [offline.feeds(case.x[place * rows : (place + 1) * rows]) for place in range(threads)]
    gate = threading.Barrier(threads + 1)
    end = [0.0]

    def work(place: int) -> None:
        gate.wait()
        while time.perf_counter() < end[0]:
            offline.session.run(["probabilities"], feeds[place])
            counts[place] += rows

    workers = [threading.Thread(target=work, args=(place,)) for place in range(threads)]
    for worker in workers:
        worker.start()
    began = time.perf_counter()
    end[0] = began + seconds
    gate.wait()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began)


def _alone(offline: Offline, case: Case, seconds: float) -> float:
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        feeds = offline.feeds(case.x[len(times) % len(case.x)][None])
        began = time.perf_counter()
        offline.session.run(["probabilities"], feeds)
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))
