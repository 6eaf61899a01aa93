"""Durations of past runs, and the estimates that follow from them."""

from __future__ import annotations

import math
import time

from stablernn_server.batching.types import Batch, Job, QueueKey

OFF_LOOP_SECONDS = 600.0
"""Time for which no run of a version is made on the event loop after one had to be ended there."""


class CostModel:
    """Moving averages of measured runs; used by the event loop's thread only.

    Durations of steps are averaged by the model (:meth:`.ServedModel.record_step_ns`); its warm-up measures the first.

    Attributes:
        requests_per_second: Throughput of a run, averaged; 0.0 before the first one.
    """

    def __init__(self) -> None:
        self.requests_per_second = 0.0
        # By kind, version and length class.
        self._batch_seconds: dict[QueueKey, float] = {}
        # Nanoseconds by version and size class of the rows (their bit length).
        self._sequence_step_ns: dict[tuple[str, int], float] = {}
        # End of the ban by version, on the monotonic clock.
        self._off_loop_until: dict[str, float] = {}

    def record(self, batch: Batch) -> None:
        """Learn from a batch that has ended."""
        first = batch.jobs[0]
        compute_ns = batch.ended_ns - batch.started_ns
        rate = len(batch.jobs) / max(compute_ns / 1e9, 1e-6)
        self.requests_per_second = (
            rate if self.requests_per_second == 0 else 0.9 * self.requests_per_second + 0.1 * rate
        )
        # A run that failed, or was ended, says nothing about how long a complete one takes.
        if any(isinstance(result, Exception) for result in batch.results):
            return
        # The last entry of a key identifies one model or job in memory, which says nothing about durations.
        key = first.key[:3]
        self._batch_seconds[key] = 0.8 * self._batch_seconds.get(key, compute_ns / 1e9) + 0.2 * compute_ns / 1e9
        if first.kind == "step":
            first.model.record_step_ns(batch.rows, compute_ns / batch.time_steps)
        elif first.kind == "sequence":
            size, step_ns = (first.model.ref, batch.rows.bit_length()), compute_ns / batch.time_steps
            self._sequence_step_ns[size] = 0.8 * self._sequence_step_ns.get(size, step_ns) + 0.2 * step_ns

    def batch_seconds(self, key: QueueKey, default: float) -> float:
        """Return the usual duration of a batch of one queue; ``default`` where none has run."""
        return self._batch_seconds.get(key[:3], default)

    def run_ns(self, first: Job, rows: int, time_steps: int) -> float:
        """Estimate the duration of a batch of steps or sequences; infinite where none of its size has run.

        Args:
            first: First job of the batch.
            rows: Sequences or streams of the batch.
            time_steps: Time steps of its longest job.
        """
        if first.kind == "step":
            return first.model.estimate_step_ns(rows) * time_steps
        return self._sequence_step_ns.get((first.model.ref, rows.bit_length()), math.inf) * time_steps

    def ban_from_loop(self, ref: str) -> None:
        """Keep the runs of a version off the event loop for the next :data:`OFF_LOOP_SECONDS`."""
        self._off_loop_until[ref] = time.monotonic() + OFF_LOOP_SECONDS

    def is_banned_from_loop(self, ref: str) -> bool:
        """Return whether the runs of a version are kept off the event loop."""
        # The table is empty unless a run was ended: the clock is not even read on the usual path.
        return bool(self._off_loop_until) and time.monotonic() < self._off_loop_until.get(ref, 0.0)

    def retry_after_seconds(self, waiting: int) -> int:
        """Return the time in which ``waiting`` jobs will be done, rounded up, between 1 s and 60 s."""
        if self.requests_per_second <= 0:
            return 1
        return max(1, min(60, math.ceil(waiting / self.requests_per_second)))
