"""Queues of the jobs that wait, and the batches that are made up from them.

Jobs that may share a run wait in one queue: same graph, same model, about the same length. Everything here happens on
the event loop, so there are no locks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from stablernn_runtime.graph import CancellationToken
from stablernn_server.batching.types import Batch, Division, InferenceResult, Job, QueueKey, fail_jobs
from stablernn_server.errors import ClientGoneError, DeadlineError, ServerError
from stablernn_server.settings import Settings


@dataclass(slots=True)
class JobQueue:
    """A priority queue of jobs that may share a run.

    Attributes:
        heap: Priority, order of arrival and job; the first to be served on top. Jobs that were given up stay in it
            until they come to the top.
    """

    heap: list[tuple[int, int, Job]] = field(default_factory=list)


class JobQueues:
    """All jobs of one scheduler, from their admission to their result.

    Attributes:
        jobs: The jobs that wait or run, by their numbers.
        waiting: Number of jobs that wait.
        by_key: Queues by the key of their jobs.
    """

    def __init__(self, settings: Settings) -> None:
        self.jobs: dict[int, Job] = {}
        self.waiting = 0
        self.by_key: dict[QueueKey, JobQueue] = {}
        self._settings = settings

    def add(self, job: Job) -> None:
        """Queue a new job."""
        self.jobs[job.number] = job
        self.waiting += 1
        job.key = queue_key(job)
        queue = self._push(job)
        if len(queue.heap) > 2 * self._settings.max_queue:
            # Jobs that were given up leave a heap at its top, where urgent jobs may keep them from coming.
            queue.heap = [entry for entry in queue.heap if not entry[2].future.done()]
            heapq.heapify(queue.heap)

    def remove(self, job: Job) -> Batch | None:
        """Forget a job that has its result or whose caller waits no more.

        Returns:
            The batch that the job is in, if the batch has not ended.
        """
        self.jobs.pop(job.number, None)
        self._unqueue(job)
        batch, job.batch = job.batch, None
        if batch is None or batch.ended_ns != 0:
            return None
        batch.awaited_jobs -= 1
        return batch

    def in_order(self) -> list[tuple[int, int, QueueKey]]:
        """Return priority, number and queue key of the first job of each queue, in the order in which to serve them."""
        return sorted((queue.heap[0][0], queue.heap[0][1], key) for key, queue in self.by_key.items() if queue.heap)

    def take(self, queue: JobQueue, cancellation: CancellationToken | None) -> Batch:
        """Make up the next batch: all jobs that fit within the limits, or the first alone whatever its size."""
        batch = Batch([], cancellation)
        self._add_to_batch(batch, heapq.heappop(queue.heap)[2])
        self.fill(batch, queue)
        return batch

    def fill(self, batch: Batch, queue: JobQueue) -> None:
        """Move the jobs that still fit from a queue to a batch.

        Raises:
            Exception: On an internal error, with which the jobs of the batch have failed by then.
        """
        first = batch.jobs[0]
        try:
            max_rows = self.max_rows(first)
            while queue.heap and batch.rows < max_rows:
                job = queue.heap[0][2]
                if not self.is_dropped(job):
                    rows = batch.rows + job.batch_item.rows
                    time_steps = max(batch.time_steps, job.batch_item.time)
                    # All rows are padded to the longest, so that one long job makes every other one larger.
                    if rows > max_rows or _count_elements(first, rows, time_steps) > self._settings.max_elements:
                        break
                    self._add_to_batch(batch, job)
                heapq.heappop(queue.heap)
        except Exception as error:
            # These jobs have left the queue: nobody else could tell their callers.
            fail_jobs(batch.jobs, error)
            raise

    def requeue(self, batch: Batch) -> None:
        """Put the jobs of a batch that has not run back into their queues, at their former positions."""
        for job in batch.jobs:
            job.batch = None
            if not job.future.done():
                job.is_queued = True
                self.waiting += 1
                self._push(job)

    def is_dropped(self, job: Job) -> bool:
        """Return whether a job needs no run: it was cancelled, its deadline has passed, or its client has gone.

        The caller learns why by an exception.
        """
        if job.future.done():
            return True
        # The timer of the deadline may be due in this very iteration of the event loop, after this.
        if job.caller.deadline is not None and job.future.get_loop().time() >= job.caller.deadline:
            expire(job.future)
            return True
        try:
            is_gone = job.caller.is_gone is not None and job.caller.is_gone()
        except Exception as error:
            # Fail only this job on an internal error: others are queued behind it.
            job.future.set_exception(error)
            is_gone = True
        if is_gone:
            if not job.future.done():
                job.future.set_exception(ClientGoneError("The client closed the connection before it was answered."))
            self._unqueue(job)
        return is_gone

    def drop_abandoned(self) -> None:
        """Give up the jobs of clients that have gone, those that run included."""
        for job in self.jobs.values():
            self.is_dropped(job)

    def fail_all(self, create_error: Callable[[], ServerError]) -> None:
        """Fail every job, and end the runs."""
        self.by_key.clear()
        for job in self.jobs.values():
            fail_jobs([job], create_error())
            if job.batch is not None and job.batch.cancellation is not None:
                job.batch.cancellation.set()

    def max_rows(self, job: Job) -> int:
        """Return the rows that a batch of the job's kind may have."""
        return self._settings.max_batch_size if job.kind == "sequence" else self._settings.max_step_batch_size

    def is_full(self, queue: JobQueue) -> bool:
        """Return whether further jobs would not make the next batch of a queue any larger."""
        rows = 0
        for _, _, job in queue.heap:
            if job.future.done():
                continue
            rows += job.batch_item.rows
            if rows >= self.max_rows(job):
                return True
        # A call runs alone.
        return queue.heap[0][2].kind == "call"

    def next_size(self, queue: JobQueue) -> tuple[int, int]:
        """Return about how many rows and time steps the next batch of a queue will have, without ordering its jobs."""
        rows = time_steps = 0
        first = queue.heap[0][2]
        max_rows = self.max_rows(first)
        for _, _, job in queue.heap:
            rows += job.batch_item.rows
            time_steps = max(time_steps, job.batch_item.time)
            if rows >= max_rows:
                break
        return max(first.batch_item.rows, min(rows, max_rows)), time_steps

    def _push(self, job: Job) -> JobQueue:
        queue = self.by_key.get(job.key)
        if queue is None:
            queue = self.by_key[job.key] = JobQueue()
        heapq.heappush(queue.heap, (job.caller.priority, job.number, job))
        return queue

    def _unqueue(self, job: Job) -> None:
        if job.is_queued:
            job.is_queued = False
            self.waiting -= 1
            # The job stays in the heap until it comes to the top; its arrays would take memory until then.
            job.batch_item.feeds = {}

    def _add_to_batch(self, batch: Batch, job: Job) -> None:
        batch.add(job)
        job.is_queued = False
        self.waiting -= 1


def divide(batch: Batch, count: int) -> Division:
    """Divide a batch that has not begun into at most ``count`` parts of about as many rows."""
    parts: list[Batch] = []
    rows = 0
    for job in batch.jobs:
        if len(parts) <= rows * count // batch.rows:
            parts.append(Batch([], CancellationToken()))
        rows += job.batch_item.rows
        parts[-1].add(job)
    division = Division(parts, len(parts))
    for part in parts:
        part.division = division
    return division


def queue_key(job: Job) -> QueueKey:
    """Return the key of the queue that a job belongs to."""
    if job.kind == "call":
        return (job.kind, job.model.ref, 0, id(job))
    # Lengths that differ by less than a factor of two: padding then costs less than the steps that are shared.
    length = job.batch_item.time.bit_length()
    if job.kind == "sequence" and "lengths" not in job.model.sequence.inputs:
        # Such a graph would take the padding for data.
        length = job.batch_item.time
    return (job.kind, job.model.ref, length, id(job.model))


def expire(future: asyncio.Future[InferenceResult]) -> None:
    """Fail a job whose deadline has passed, unless it is done."""
    if not future.done():
        future.set_exception(DeadlineError("The deadline passed before the answer was ready; give more time or retry."))


def _count_elements(job: Job, rows: int, time_steps: int) -> int:
    """Return the numbers in all inputs and outputs of a run of the job's kind."""
    if job.kind == "step":
        return rows * time_steps * job.model.step_elements
    return job.model.count_elements(rows, time_steps)
