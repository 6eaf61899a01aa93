"""Measures how long an engine takes for typical inputs of a model on this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import GraphSignature
from stablernn_runtime.engines.session import Session

Array = NDArray[Any]
BATCH = 16
STEPS = 128
"""Time steps of the measured sequences; fewer where the context of a model is shorter."""
_WARM_UP_RUNS, _TIMED_RUNS = 2, 5


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of one run.

    Attributes:
        steps: Time steps of the sequences.
        single_ms: One sequence.
        batch_ms: A batch of :data:`BATCH` sequences.
        step_ms: One step of one stream; None for a version without streams.
    """

    steps: int
    single_ms: float
    batch_ms: float
    step_ms: float | None

    @property
    def mean_ms(self) -> float:
        """The geometric mean: a factor in any of them counts the same, whatever its size."""
        times = [time for time in (self.single_ms, self.batch_ms, self.step_ms) if time is not None]
        return float(prod(times) ** (1 / len(times)))

    def __str__(self) -> str:
        step = "" if self.step_ms is None else f", one step {self.step_ms:.3g} ms"
        return (
            f"one sequence of {self.steps} steps {self.single_ms:.3g} ms, {BATCH} sequences {self.batch_ms:.3g} ms"
            f"{step}"
        )


def measure(
    sequence: tuple[Session, GraphSignature], step: tuple[Session, GraphSignature] | None, steps: int = STEPS
) -> Timing:
    """Run the graphs of a version on typical shapes a few times, and return the medians.

    Args:
        sequence: The session that runs whole sequences, and its signature.
        step: The session that runs one step, likewise; None for a version without streams.
        steps: Time steps of the sequences.

    Raises:
        RUNTIME_ERRORS: If a run fails.
    """
    # The waits of a single request, of a full batch and of a stream.
    step_ms = None if step is None else _median_ms(*step, 1, 1)
    return Timing(steps, _median_ms(*sequence, 1, steps), _median_ms(*sequence, BATCH, steps), step_ms)


def typical_feeds(graph: GraphSignature, batch: int, steps: int) -> dict[str, Array]:
    """Return every input of a graph: zeros, regular steps, full lengths."""
    sizes = {"batch": batch, "time": steps}
    fill_values = {"lengths": steps, "dt": 1}
    return {
        spec.name: np.full(
            [sizes[size] if isinstance(size, str) else size for size in spec.shape],
            fill_values.get(spec.name, 0),
            np.dtype(spec.dtype),
        )
        for spec in graph.inputs
    }


def _median_ms(session: Session, graph: GraphSignature, batch: int, steps: int) -> float:
    names, feeds = [spec.name for spec in graph.outputs], typical_feeds(graph, batch, steps)
    # The first runs set up what later ones use again.
    for _ in range(_WARM_UP_RUNS):
        session.run(names, feeds)
    return 1e3 * statistics.median(_seconds(session, names, feeds) for _ in range(_TIMED_RUNS))


def _seconds(session: Session, names: list[str], feeds: Mapping[str, Array]) -> float:
    started = time.perf_counter()
    session.run(names, feeds)
    return time.perf_counter() - started
