"""Timing of the rows of a table in turn, and of each relative to the limit of the same rounds."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import torch

LIMIT = "limit"
"""Name of the row that the others are compared with."""
MIN_ROUNDS = 2
"""Rounds that quartiles need."""

Run = Callable[[], object]
"""Runs a row once; it returns :class:`Times` if it has measured itself, in a process of its own."""
Clock = Literal["cpu_ms", "wall_ms"]


class Times(NamedTuple):
    """Duration of one run of a row, in milliseconds."""

    wall_ms: float
    cpu_ms: float


def measure(
    rows: Mapping[str, Run], rounds: int, *, is_warmed: bool = False, clock: Clock = "cpu_ms"
) -> dict[str, dict[str, float]]:
    """Return the median times of each row in milliseconds, and the median and quartiles of its ratio to the limit.

    All rows are timed in turn, round after round, so that a slow moment of the machine falls on each of them. Where the
    processor can, denormal numbers are flushed to zero.

    Args:
        rows: By name, including :data:`LIMIT`.
        rounds: How often each row is timed, :data:`MIN_ROUNDS` or more.
        is_warmed: Whether each row runs once before it is timed: a run of a millisecond depends on what the row before
            it left in the caches.
        clock: The time that ratios are of.
    """
    was_flushing = is_flushing()
    # Also within `pinned`, since the first session of ONNX Runtime in a process turns it off in its thread.
    torch.set_flush_denormal(True)
    try:
        for run in rows.values():
            run()
        times: dict[str, list[Times]] = {name: [] for name in rows}
        for _ in range(rounds):
            for name, run in rows.items():
                if is_warmed:
                    run()
                times[name].append(_time(run))
    finally:
        torch.set_flush_denormal(was_flushing)
    references = [getattr(value, clock) for value in times[LIMIT]]
    return {name: _figures(values, references, clock) for name, values in times.items()}


def _time(run: Run) -> Times:
    started, started_cpu = time.perf_counter(), time.process_time()
    result = run()
    elapsed = Times(1e3 * (time.perf_counter() - started), 1e3 * (time.process_time() - started_cpu))
    return result if isinstance(result, Times) else elapsed


def _figures(times: list[Times], references: list[float], clock: Clock) -> dict[str, float]:
    ratios = [getattr(value, clock) / reference for value, reference in zip(times, references, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    figures = {
        "cpu_ms": statistics.median(value.cpu_ms for value in times),
        "wall_ms": statistics.median(value.wall_ms for value in times),
        "ratio": statistics.median(ratios),
        "ratio_low": low,
        "ratio_high": high,
    }
    return {name: round(value, 3) for name, value in figures.items()}


@contextmanager
def pinned(threads: int) -> Iterator[bool]:
    """Let torch compute with this many threads and flush denormal numbers to zero; restore both at the end.

    Denormal numbers slow some rows down several times, such as the backward pass of ``nn.LSTM``, and others not at all.

    Yields:
        Whether they are flushed, which not every processor can do.
    """
    threads_before, was_flushing = torch.get_num_threads(), is_flushing()
    torch.set_num_threads(threads)
    try:
        yield torch.set_flush_denormal(True)
    finally:
        torch.set_flush_denormal(was_flushing)
        torch.set_num_threads(threads_before)


def is_flushing() -> bool:
    """Return whether this thread flushes denormal numbers to zero."""
    return not bool(torch.tensor([1e-40], dtype=torch.float32) * torch.ones(1))


def conditions(*, is_flushed: bool) -> dict[str, Any]:
    """Return what measured times depend on, for the tables' readers.

    Args:
        is_flushed: Whether denormal numbers are flushed, as :func:`pinned` yields it.
    """
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "denormals": "flushed" if is_flushed else "not flushed",
    }
