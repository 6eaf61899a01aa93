"""Admission of inference jobs: limits, deadlines, and the wait for a result.

The jobs of all requests run in batches: those that wait for the same graph share a run. :mod:`.job_queues` holds them,
:mod:`.dispatch` decides when they run.

One timer serves the deadlines of all jobs that wait or run.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchItem, BatchResult
from stablernn_runtime.served_model import ServedModel
from stablernn_server.batching.dispatch import CostModel, Dispatcher
from stablernn_server.batching.job_queues import JobQueues, expire
from stablernn_server.batching.types import Array, Caller, InferenceResult, Job
from stablernn_server.errors import NOT_READY, BusyError, NotReadyError, TooManyError
from stablernn_server.observability.telemetry import Telemetry, WorkKind
from stablernn_server.settings import Settings


class Scheduler:
    """The jobs of one application."""

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._costs = CostModel()
        self._queues = JobQueues(settings)
        self._dispatcher = Dispatcher(settings, telemetry, self._queues, self._costs)
        self._deadlines = Deadlines(self._queues.jobs)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._numbers = itertools.count()
        # Pending jobs by client; counted only where the settings limit them.
        self._client_jobs: dict[str, int] = {}

    def start(self) -> None:
        """Take jobs; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._dispatcher.start(self._loop)

    def stop(self) -> Callable[[], None]:
        """Take no more jobs, fail those that wait, and end the runs.

        Returns:
            As :meth:`.WorkerThreads.stop`.
        """
        # First, so that no thread begins with a batch whose jobs are about to fail.
        self._dispatcher.take_back_prefetched()
        self._deadlines.stop()
        self._queues.fail_all(lambda: NotReadyError(NOT_READY))
        return self._dispatcher.stop()

    @property
    def pending(self) -> int:
        """Number of jobs that wait or run."""
        return len(self._queues.jobs)

    @property
    def retry_after_seconds(self) -> int:
        """When a client that finds the queue full should retry: about when all jobs that wait now will be done."""
        return self._costs.retry_after_seconds(self._queues.waiting)

    def run(
        self,
        model: ServedModel,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        caller: Caller,
    ) -> Coroutine[Any, Any, InferenceResult]:
        """Run whole sequences through ``sequence.onnx``, together with those of other requests.

        Args:
            model: The model.
            inputs: As in :meth:`ServedModel.run`.
            outputs: Names of the wanted outputs; default: all.
            caller: The client that waits.

        Raises:
            InputError: If an input does not fit the model, or leads to an output that is not finite.
            BusyError: If the queue is full.
            TooManyError: If this client has too many jobs already.
            DeadlineError: If the caller's deadline passes first.
            NotReadyError: If the server stops first.
        """
        batch_item = model.prepare(model.sequence, inputs, outputs)
        return self.submit("sequence", model, batch_item, caller)

    async def step(
        self,
        model: ServedModel,
        inputs: Mapping[str, Array],
        states: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        caller: Caller,
        every: bool = True,
    ) -> InferenceResult:
        """Run one or several steps of some streams through ``step.onnx``, together with those of other requests.

        Args:
            model: The model.
            inputs: As in :meth:`ServedModel.prepare_steps`.
            states: As there.
            outputs: As there.
            caller: The client that waits.
            every: As there.

        Returns:
            Outputs of the shape ``(rows, steps, ...)``, or ``(rows, 1, ...)``, and the states after the last step.

        Raises:
            InputError, BusyError, TooManyError, DeadlineError, NotReadyError: As :meth:`run`.
        """
        batch_item = model.prepare_steps(inputs, states, outputs, every=every)
        return await self.submit("step", model, batch_item, caller)

    def call(
        self, model: ServedModel, function: Callable[[CancellationToken], BatchResult], rows: int, *, caller: Caller
    ) -> Coroutine[Any, Any, InferenceResult]:
        """Run ``function`` on a worker thread, in a batch of its own: for several runs that follow from each other.

        Raises:
            InputError, BusyError, TooManyError, DeadlineError, NotReadyError: As :meth:`run`.
        """
        return self.submit("call", model, BatchItem({}, rows, 1, ()), caller, function)

    def drop_abandoned(self) -> None:
        """Give up the jobs of clients that have gone.

        Called at intervals: nothing else looks at jobs that run, or wait for long.
        """
        self._queues.drop_abandoned()

    async def submit(
        self,
        kind: WorkKind,
        model: ServedModel,
        batch_item: BatchItem,
        caller: Caller,
        function: Callable[[CancellationToken], BatchResult] | None = None,
    ) -> InferenceResult:
        """Queue a job, of inputs that are known to fit the model, and wait for its result.

        Args:
            kind: Kind of work.
            model: The model to run.
            batch_item: The inputs.
            caller: The client that waits.
            function: For calls, the function to run.

        Raises:
            InputError: If the inputs lead to an output that is not finite.
            BusyError, TooManyError, DeadlineError, NotReadyError: As :meth:`run`.
        """
        loop = self._loop
        if loop is None or not self._dispatcher.is_started:
            raise NotReadyError(NOT_READY)
        if self._queues.waiting >= self._settings.max_queue or self._settings.max_client_requests:
            self._admit(caller)
        future: asyncio.Future[InferenceResult] = loop.create_future()
        job = Job(kind, model, batch_item, caller, future, time.perf_counter_ns(), next(self._numbers), function)
        if caller.deadline is not None:
            self._deadlines.add(caller.deadline, loop)
        try:
            self._enqueue(job)
            return await future
        finally:
            self._release(job)
            # The exception's traceback references this frame; drop both to avoid a reference cycle.
            del future, job

    def _admit(self, caller: Caller) -> None:
        settings = self._settings
        if self._queues.waiting >= settings.max_queue:
            # Jobs of clients that have gone must not keep others out.
            self.drop_abandoned()
        if self._queues.waiting >= settings.max_queue:
            raise BusyError(
                f"The queue holds {settings.max_queue} requests, its limit; try again in {self.retry_after_seconds} s.",
                self.retry_after_seconds,
            )
        max_jobs = settings.max_client_requests
        if max_jobs and self._client_jobs.get(caller.client, 0) >= max_jobs:
            raise TooManyError(
                f"This client has {max_jobs} requests in the queue already, its limit; wait for an answer first."
            )

    def _enqueue(self, job: Job) -> None:
        if self._settings.max_client_requests:
            self._client_jobs[job.caller.client] = self._client_jobs.get(job.caller.client, 0) + 1
        self._queues.add(job)
        self._dispatcher.schedule()
        # One iteration of the event loop may decode many requests, and a thread would be idle until its end.
        self._dispatcher.collect()

    def _release(self, job: Job) -> None:
        """Forget a job that has its result, or whose caller waits no more."""
        batch = self._queues.remove(job)
        if self._settings.max_client_requests:
            jobs_left = self._client_jobs[job.caller.client] - 1
            if jobs_left:
                self._client_jobs[job.caller.client] = jobs_left
            else:
                # No entry without jobs: there may be any number of clients.
                del self._client_jobs[job.caller.client]
        if batch is not None:
            self._dispatcher.abandon(batch)


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
