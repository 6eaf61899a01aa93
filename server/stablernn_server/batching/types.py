"""Types that scheduler, queues, dispatcher and cost model share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchItem, BatchResult
from stablernn_runtime.served_model import ServedModel
from stablernn_server.observability.telemetry import WorkKind

Array = NDArray[Any]
DEFAULT_PRIORITY = 100
"""Priority of a request that names none; 1 is served first."""

QueueKey = tuple[Any, ...]
"""Kind of work, reference of the version, length class, identity of the model or job; jobs of one key share runs."""


@dataclass(slots=True, eq=False)
class Caller:
    """The client that waits for a job.

    Attributes:
        client: Identity of the client for limits, such as an address or the name of a token.
        deadline: Time on the clock of the event loop after which the result is of no use; None: no deadline.
        is_gone: Returns whether the client has disconnected, asked before the job runs; None where nobody can.
        priority: 1 is served first.
    """

    client: str = ""
    deadline: float | None = None
    is_gone: Callable[[], bool] | None = None
    priority: int = DEFAULT_PRIORITY


@dataclass(slots=True, eq=False)
class InferenceResult:
    """The result of one job.

    Attributes:
        outputs: Outputs by name.
        states: For steps, the states after them, by the names of the inputs that they feed.
        violations: Names of states that left their certified balls.
        queue_ns: Nanoseconds from admission to the start of the run.
        compute_ns: Nanoseconds of the run.
        batch_rows: Sequences or streams in the run, including those of other jobs.
        samples_outside: Samples of the request outside the certified range of inputs.
    """

    outputs: dict[str, Array]
    states: dict[str, Array]
    violations: set[str]
    queue_ns: int
    compute_ns: int
    batch_rows: int
    samples_outside: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """One piece of work from its admission to its result.

    Attributes:
        kind: Kind of work: sequence, step or call.
        model: The model to run.
        batch_item: Checked inputs of the job.
        caller: The client that waits.
        future: Resolves to the result.
        queued_ns: Admission time on the clock of ``time.perf_counter_ns``.
        number: Order of arrival, which decides between jobs of one priority.
        function: For calls, the function to run.
        is_queued: Whether the job waits in a queue.
        key: Key of the job's queue.
        batch: The batch that the job is in, until it has ended; None while the job waits.
    """

    kind: WorkKind
    model: ServedModel
    batch_item: BatchItem
    caller: Caller
    future: asyncio.Future[InferenceResult]
    queued_ns: int
    number: int
    function: Callable[[CancellationToken], BatchResult] | None = None
    is_queued: bool = True
    key: QueueKey = ()
    batch: Batch | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """Jobs that share one run.

    Attributes:
        jobs: The jobs, the first one served first.
        cancellation: Ends the run from another thread; None until an inline run begins.
        awaited_jobs: Jobs whose callers still wait for a result.
        rows: Sequences or streams of all jobs.
        time_steps: Time steps of the longest job.
        started_ns: Start of the run on the clock of ``time.perf_counter_ns``; 0 before it.
        ended_ns: End of the run on the same clock; 0 before it.
        results: Result or error of each job, in the order of the jobs.
        division: The parts of one batch, of which this is one; None for a batch that was not divided.
    """

    jobs: list[Job]
    cancellation: CancellationToken | None
    awaited_jobs: int = 0
    rows: int = 0
    time_steps: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    results: Sequence[BatchResult | Exception] = ()
    division: Division | None = None

    def add(self, job: Job) -> None:
        """Add a job, which no other batch has."""
        self.jobs.append(job)
        self.awaited_jobs += 1
        self.rows += job.batch_item.rows
        self.time_steps = max(self.time_steps, job.batch_item.time)
        job.batch = self


@dataclass(slots=True, eq=False)
class Division:
    """A batch that was divided between threads; its callers get their results together, as without the division.

    Otherwise their next requests would come at two times, and make two small batches instead of one.

    Attributes:
        parts: The batches that run, each on a thread.
        running: Number of parts that have not ended.
    """

    parts: list[Batch]
    running: int


def fail_jobs(jobs: Iterable[Job], error: Exception) -> None:
    """Fail all jobs that have neither a result nor an error yet."""
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(error)
