"""Deadlines of the jobs that wait or run: one timer for all of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

from stablernn_server.batching.job_queues import expire
from stablernn_server.batching.types import Job


class Deadlines:
    """Fails each job whose deadline passes before it has a result.

    Nearly every job has its result long before. So the timer is set for the earliest deadline that was ever added, and
    a job that ends leaves it as it is.
    """

    def __init__(self, jobs: Mapping[int, Job]) -> None:
        """Begin without a timer.

        Args:
            jobs: The jobs that wait or run, kept up to date by its owner.
        """
        self._jobs = jobs
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def add(self, deadline: float, loop: asyncio.AbstractEventLoop) -> None:
        """Note the deadline of a new job, on the clock of the event loop."""
        if deadline < self._next:
            self.stop()
            self._next = deadline
            self._timer = loop.call_at(deadline, self._expire, loop)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = None, math.inf

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        # The clock may be behind the time that the timer was set for by its resolution.
        now = max(loop.time(), self._next)
        self._timer, self._next = None, math.inf
        deadlines = []
        for job in self._jobs.values():
            deadline = job.caller.deadline
            if deadline is None:
                continue
            if deadline <= now:
                expire(job.future)
            else:
                deadlines.append(deadline)
        if deadlines:
            self.add(min(deadlines), loop)
