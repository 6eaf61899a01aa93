"""Measures how long engines and devices take for the kinds of work of a model on this machine.

All candidates run in turn, so that a machine that becomes slower meanwhile slows all of them.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, Manifest, Signature
from stablernn_runtime.engines.loaded_graphs import LoadedGraphs, first_line
from stablernn_runtime.engines.session import NO_GPU_OPTIONS, RUN_ERRORS, Session, create_run_options

Array = NDArray[Any]
Candidate = Callable[[ort.RunOptions], object]
"""One run; the options end it from another thread."""

BATCH = NO_GPU_OPTIONS.batch
"""Sequences of a measured batch where no other number is given."""
STEPS = 128
"""Time steps of the measured sequences where the version does not tell its own."""
MAX_STEPS = 1000
"""Time steps of the measured sequences at most."""
LIMIT_SECONDS = 10.0
"""Time for all measurements of a version together. A graph can be built to run for years."""
_TIMED_RUNS = 5


@dataclass(frozen=True)
class Workload:
    """One kind of work of a model.

    Attributes:
        is_step: Whether it is one step of streams, and not whole sequences.
        rows: Number of sequences or streams.
        steps: Time steps of the sequences; 1 for a step.
    """

    is_step: bool
    rows: int
    steps: int = 1

    def __str__(self) -> str:
        if self.is_step:
            return "one step" if self.rows == 1 else f"one step of {self.rows} streams"
        return f"one sequence of {self.steps} steps" if self.rows == 1 else f"{self.rows} sequences"


@dataclass(frozen=True)
class Timing:
    """Median milliseconds of a run of each kind of work.

    Attributes:
        milliseconds: By kind of work; infinite where no run ended within the time limit, or one failed.
        failure: The first failure of a run, as a sentence; empty without one.
    """

    milliseconds: Mapping[Workload, float]
    failure: str = ""

    @property
    def mean_ms(self) -> float:
        """The geometric mean: a factor in any of them counts the same, whatever its size."""
        return geometric_mean(self.milliseconds.values())

    def __str__(self) -> str:
        figures = ", ".join(
            f"{workload} {time:.3g} ms" if math.isfinite(time) else f"{workload} not finished"
            for workload, time in self.milliseconds.items()
        )
        return f"{figures} ({self.failure.rstrip('.')})" if self.failure else figures


@dataclass
class _Runs:
    """The runs of one candidate: milliseconds of the first one, which also sets things up, and of those after it."""

    first_ms: float = math.inf
    timed_ms: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def median_ms(self) -> float:
        if self.failure:
            return math.inf
        return statistics.median(self.timed_ms) if self.timed_ms else self.first_ms


def sequence_steps(manifest: Manifest) -> int:
    """Return the time steps of a typical sequence of a version: those that it was trained or exported for."""
    steps = manifest.context_length or manifest.parity.get("longest")
    return min(steps, MAX_STEPS) if isinstance(steps, int) and steps > 0 else STEPS


def workloads(signature: Signature, steps: int, batch: int = BATCH) -> list[Workload]:
    """Return the kinds of work of a version: sequences and steps, alone and in a batch."""
    shapes = [(is_step, rows) for is_step in (False, True) for rows in sorted({1, batch})]
    return [
        Workload(is_step, rows, 1 if is_step else steps)
        for is_step, rows in shapes
        if not is_step or signature.step is not None
    ]


def measure(
    candidates: Mapping[str, LoadedGraphs],
    signature: Signature,
    kinds: Sequence[Workload],
    limit_seconds: float = LIMIT_SECONDS,
) -> dict[str, Timing]:
    """Measure each kind of work with each of several engines or devices.

    Args:
        candidates: The open graphs of one version, by name.
        signature: Signature of the version.
        kinds: The kinds of work.
        limit_seconds: Time for all of it. Each kind gets the same share of what the kinds before it left.
    """
    deadline = time.monotonic() + limit_seconds
    by_kind: dict[Workload, dict[str, _Runs]] = {}
    for index, kind in enumerate(kinds):
        runs = {name: _candidate(graphs, signature, kind) for name, graphs in candidates.items()}
        by_kind[kind] = _run_in_turn(runs, max(0.0, deadline - time.monotonic()) / (len(kinds) - index))
    return {
        name: Timing(
            {kind: runs[name].median_ms for kind, runs in by_kind.items()},
            next((runs[name].failure for runs in by_kind.values() if runs[name].failure), ""),
        )
        for name in candidates
    }


def measure_in_turn(candidates: Mapping[str, Candidate], limit_seconds: float) -> dict[str, float]:
    """Run candidates in turn a few times, and return the median milliseconds of each.

    Args:
        candidates: A function that runs once, by name.
        limit_seconds: Time for all of it. A candidate whose first run has not ended after an equal share of it is
            stopped, if its run can be, and is not run again. No second run begins after it, and a run that is under
            way is stopped, if it can be.

    Returns:
        Milliseconds by name; infinite where the first run did not end in time, or a run failed.
    """
    return {name: runs.median_ms for name, runs in _run_in_turn(candidates, limit_seconds).items()}


def geometric_mean(times: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers, which may be infinite."""
    return math.exp(statistics.fmean(math.log(max(time, 1e-9)) for time in times))


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


def _candidate(graphs: LoadedGraphs, signature: Signature, kind: Workload) -> Candidate:
    """Return a function that runs a kind of work once."""
    graph, session = (signature.step, graphs.step) if kind.is_step else (signature.sequence, graphs.sequence)
    # The signature and the open graphs belong to one version.
    assert graph is not None
    assert session is not None
    return _runner(session, [spec.name for spec in graph.outputs], typical_feeds(graph, kind.rows, kind.steps))


def _runner(session: Session, names: list[str], feeds: dict[str, Array]) -> Candidate:
    return lambda options: session.run(names, feeds, options)


def _run_in_turn(candidates: Mapping[str, Candidate], limit_seconds: float) -> dict[str, _Runs]:
    deadline = time.monotonic() + limit_seconds
    results = {name: _Runs() for name in candidates}
    for index, (name, candidate) in enumerate(candidates.items()):
        share = (deadline - time.monotonic()) / (len(candidates) - index)
        with _options_until(share) as options:
            results[name].first_ms = _run_once(candidate, options, results[name])
    # The last run of each, in seconds. The first one is no measure: it may compile kernels or load libraries.
    latest = {name: 0.0 for name, runs in results.items() if math.isfinite(runs.first_ms)}
    with _options_until(deadline - time.monotonic()) as options:
        for _ in range(_TIMED_RUNS):
            # Every candidate gets the same number of runs, as far as the ones before tell how long one takes.
            if sum(latest.values()) >= deadline - time.monotonic():
                break
            for name in latest:
                # One that cannot be stopped may have taken all that was left.
                if time.monotonic() >= deadline:
                    break
                elapsed = _run_once(candidates[name], options, results[name])
                if math.isfinite(elapsed):
                    results[name].timed_ms.append(elapsed)
                    latest[name] = elapsed / 1e3
    return results


@contextmanager
def _options_until(seconds: float) -> Iterator[ort.RunOptions]:
    """Give options that end a run after some time."""
    options = create_run_options()
    timer = threading.Timer(max(0.0, seconds), setattr, (options, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        yield options
    finally:
        timer.cancel()


def _run_once(candidate: Candidate, options: ort.RunOptions, runs: _Runs) -> float:
    """Return the milliseconds of a run; infinite if it does not end in time or fails, which is noted."""
    started = time.perf_counter()
    try:
        candidate(options)
    except RUN_ERRORS as error:
        # Such as too little memory for a batch, or a kernel that this GPU does not have.
        if not options.terminate:
            runs.failure = first_line(error)
        return math.inf
    return 1e3 * (time.perf_counter() - started)
