"""Decides which batch runs next, when, and where: on a worker thread, behind a run that ends soon, or on the loop.

All of this runs on the event loop except inference on worker threads. So there are no locks, and a batch is made up
only when a thread is free to run it: until then, requests may be added.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections.abc import Callable, Sequence

from stablernn_runtime.engines.devices import available_cpus
from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchResult, run_items, run_steps
from stablernn_server.batching.cost_model import OFF_LOOP_SECONDS, CostModel
from stablernn_server.batching.job_queues import JobQueue, JobQueues, divide
from stablernn_server.batching.types import Batch, InferenceResult, Job, QueueKey, fail_jobs
from stablernn_server.batching.worker_threads import MAX_LOOP_SECONDS, LoopWatchdog, WorkerThreads
from stablernn_server.errors import NotReadyError, ServerError, TooLargeError
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

WAIT_BUDGET_SECONDS = 0.02
WAIT_BUDGET_RUNS = 3.0
"""A batch that has waited for 20 ms, and for three times as long as it usually runs, gets a thread more than there are
CPUs: behind runs of many steps, short ones would wait for all of them. Batches of one kind behind each other do not."""
SHORT_SECONDS = 0.01
"""The last CPU is left to the event loop as long as one of the runs should be over within this time: requests that
arrive until then make one batch instead of several small ones, and are decoded at the same time. That batch is
prefetched: its run begins as the other ends, without waiting for the event loop."""
INLINE_NS = 500_000
"""Runs that take no longer are made on the event loop itself: to hand them to a thread and back costs more."""
INLINE_ALONE_NS = 2_000_000
"""The same limit while no other job is pending that would have to wait for the run."""
PART_ROWS = 8
"""Sequences that each part of a divided batch has at least. Fewer would share the weights that a step reads between too
few: with ONNX Runtime, 8 sequences take three quarters of the time of 16."""
DIVISION_GAIN_NS = 1_000_000
"""Nanoseconds that a division must save: it costs CPU time, threads wake up, and they wait for the GIL."""
TRIAL_BATCHES = 64
"""Of so many batches that could be divided, one is run in the way that is expected to take longer: how long it takes
is not known otherwise once the machine does more or less besides."""


class Dispatcher:
    """The runs of one scheduler."""

    def __init__(self, settings: Settings, telemetry: Telemetry, queues: JobQueues, costs: CostModel) -> None:
        """Prepare the worker threads; :meth:`start` starts them.

        Args:
            settings: Limits of batches and runs.
            telemetry: Counts the runs.
            queues: The jobs that wait.
            costs: Estimates how long runs take, and learns from those that end.
        """
        self._settings = settings
        self._telemetry = telemetry
        self._queues = queues
        self._costs = costs
        cpus = available_cpus()
        self._max_runs = settings.inferences or cpus
        # A number of inferences in the settings is taken as it is: no CPU is left to the event loop.
        self._max_runs_beside_loop = settings.inferences or max(1, cpus - 1)
        self._workers = WorkerThreads[Batch](_execute, self.collect, settings.inferences or cpus + 1)
        self._watchdog = LoopWatchdog()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_scheduled = False
        self._divisible_batches = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_started(self) -> bool:
        """True between :meth:`start` and :meth:`stop`."""
        return self._workers.is_started

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run jobs from now on."""
        self._loop = loop
        # A timer or a call that is left from an earlier start belongs to the event loop of that start.
        self._timer, self._is_scheduled = None, False
        self._workers.start(loop)
        self._watchdog.start()

    def stop(self) -> Callable[[], None]:
        """Begin no more runs; those that run are not ended by this.

        Returns:
            As :meth:`WorkerThreads.stop`.
        """
        self._watchdog.stop()
        if self._timer is not None:
            self._timer.cancel()
        return self._workers.stop()

    def schedule(self) -> None:
        """Dispatch soon, after the requests that are arriving now."""
        # Not at once: requests that arrive in this iteration of the event loop and in the next one join. In the next
        # come those whose bytes were read while the requests of this one were decoded.
        if not self._is_scheduled:
            self._is_scheduled = True
            assert self._loop is not None
            self._loop.call_soon(self._loop.call_soon, self.dispatch)

    def dispatch(self) -> None:
        """Start every run that can be started now, and come back when the next one may be."""
        self._is_scheduled = False
        loop = self._loop
        if loop is None or not self._workers.is_started:
            return
        wait_seconds = self._refill_prefetched()
        for _, _, key in self._queues.in_order():
            queue = self._queues.by_key[key]
            try:
                wait_seconds = min(wait_seconds, self._serve(key, queue))
            except Exception as error:
                # An internal error in one queue must neither leave its callers waiting nor hold up the others.
                fail_jobs([job for _, _, job in queue.heap], error)
                queue.heap.clear()
            if not queue.heap:
                del self._queues.by_key[key]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wait_seconds < math.inf:
            self._timer = loop.call_later(wait_seconds, self.dispatch)

    def collect(self) -> None:
        """Hand out the results of the runs that have ended, and start the next in their places."""
        ended = self._workers.collect_ended()
        for batch in ended:
            division = batch.division
            if division is None:
                self._settle(batch)
                continue
            division.running -= 1
            if not division.running:
                for part in division.parts:
                    # Each references the other; break the reference cycle.
                    part.division = None
                    self._settle(part)
        if ended:
            self.dispatch()

    def abandon(self, batch: Batch) -> None:
        """Note that the caller of one of the jobs of a batch waits no more; a run for nobody is ended."""
        if batch is self._workers.prefetched:
            # Its place in the batch is free for another job.
            self.take_back_prefetched()
            self.schedule()
        if batch.awaited_jobs == 0 and batch.cancellation is not None:
            batch.cancellation.set()

    def take_back_prefetched(self) -> None:
        """Put the jobs of the prefetched batch back into their queues, unless a thread has taken it."""
        batch = self._workers.take_back()
        if batch is not None:
            self._queues.requeue(batch)

    def _serve(self, key: QueueKey, queue: JobQueue) -> float:
        """Start the batches of one queue that can be started; return after how many seconds to look again."""
        now_ns = time.perf_counter_ns()
        while queue.heap:
            first = queue.heap[0][2]
            if self._queues.is_dropped(first):
                heapq.heappop(queue.heap)
                continue
            # Before the queue delay: steps that are cheap do not wait for others to join them.
            if first.kind == "step" and self._runs_inline(key, queue, INLINE_NS):
                self._run_inline(queue)
                continue
            seconds_left = self._delay_left(queue, now_ns)
            if seconds_left > 0 and not self._queues.is_full(queue):
                return seconds_left
            inline_ns = INLINE_ALONE_NS if len(self._queues.jobs) == 1 else INLINE_NS
            if first.kind == "sequence" and self._runs_inline(key, queue, inline_ns):
                self._run_inline(queue)
                continue
            seconds_left = self._wait_budget(key) - (now_ns - first.queued_ns) / 1e9
            has_idle = self._workers.has_idle
            if not has_idle or seconds_left > 0:
                if self._workers.prefetched is None and self._can_prefetch():
                    self._workers.prefetch(self._queues.take(queue, CancellationToken()))
                # Without an idle thread, the end of a run is what the batch waits for.
                return seconds_left if has_idle else math.inf
            batch = self._queues.take(queue, CancellationToken())
            for part in self._divide(batch):
                self._workers.begin(part)
        return math.inf

    def _divide(self, batch: Batch) -> list[Batch]:
        """Return the parts of a batch whose run would leave CPUs idle, each for a thread; else the batch alone.

        That is where no other job waits or runs. A sequence costs more CPU time in a smaller batch, so that others
        would have to wait longer for it.
        """
        first, parts = batch.jobs[0], min(self._max_runs, batch.rows // PART_ROWS)
        is_alone = not self._workers.running and len(batch.jobs) == len(self._queues.jobs)
        if first.kind != "sequence" or parts < 2 or not is_alone or self._settings.workers > 1:
            return [batch]
        whole_ns = self._costs.run_ns(first, batch.rows, batch.time_steps)
        part_ns = self._costs.run_ns(first, batch.rows // parts, batch.time_steps)
        if whole_ns == math.inf:
            return [batch]
        # What a part takes is not known before the first division.
        is_faster = part_ns == math.inf or part_ns + DIVISION_GAIN_NS <= whole_ns
        self._divisible_batches += 1
        if is_faster == (self._divisible_batches % TRIAL_BATCHES == 0):
            return [batch]
        return divide(batch, parts).parts

    def _delay_left(self, queue: JobQueue, now_ns: int) -> float:
        """Return for how many seconds the next batch may still wait to become full."""
        delay_ms = self._settings.max_queue_delay_ms
        if not delay_ms:
            return 0.0
        # The oldest job need not be the first to be served: more urgent ones may have come after it.
        oldest_ns = max(now_ns - job.queued_ns for _, _, job in queue.heap if not job.future.done())
        return delay_ms / 1e3 - oldest_ns / 1e9

    def _runs_inline(self, key: QueueKey, queue: JobQueue, limit_ns: float) -> bool:
        """Return whether the next batch is cheap enough to run on the event loop, and overtakes nothing there."""
        return self._expected_ns(queue) <= limit_ns and not self._has_unstarted_batch(key)

    def _expected_ns(self, queue: JobQueue) -> float:
        """Estimate the duration of the next batch; infinite where nothing is known or a run took far longer."""
        first = queue.heap[0][2]
        if self._costs.is_banned_from_loop(first.model.ref):
            return math.inf
        rows, time_steps = self._queues.next_size(queue)
        return self._costs.run_ns(first, rows, time_steps)

    def _has_unstarted_batch(self, key: QueueKey) -> bool:
        """Return whether a thread is about to run an earlier batch of a queue.

        On a busy machine the thread may wait for a CPU for longer than a whole run on the event loop takes, and such a
        run would overtake older or more urgent work for the same graph.
        """
        # A thread may have taken this batch already: that is only known once the end of its previous run is collected.
        prefetched = self._workers.prefetched
        if prefetched is not None and prefetched.jobs[0].key == key:
            return True
        return any(batch.started_ns == 0 and batch.jobs[0].key == key for batch in self._workers.running)

    def _wait_budget(self, key: QueueKey) -> float:
        """Return for how many seconds a batch waits for a run to end before it gets a thread next to those that run."""
        running = len(self._workers.running)
        if running >= self._max_runs:
            return max(WAIT_BUDGET_SECONDS, WAIT_BUDGET_RUNS * self._costs.batch_seconds(key, 0.0))
        if running >= self._max_runs_beside_loop and self._count_ending_soon():
            return SHORT_SECONDS
        return 0.0

    def _count_ending_soon(self) -> int:
        """Count the runs that should be over soon."""
        return sum(
            self._costs.batch_seconds(batch.jobs[0].key, math.inf) <= SHORT_SECONDS for batch in self._workers.running
        )

    def _can_prefetch(self) -> bool:
        """Return whether a batch could begin at once where the next of the runs that should be over soon has ended.

        Otherwise as many as came to run at a time by chance would go on to do so.
        """
        running, ending_soon = len(self._workers.running), self._count_ending_soon()
        return running <= self._max_runs and (
            ending_soon == 1 or (ending_soon > 1 and running <= self._max_runs_beside_loop)
        )

    def _refill_prefetched(self) -> float:
        """Let jobs that have arrived join the prefetched batch, or go before it.

        Returns:
            Seconds after which to look again.
        """
        batch = self._workers.take_back()
        if batch is None:
            return math.inf
        first, last = batch.jobs[0], batch.jobs[-1]
        seconds_left = self._wait_budget(first.key) - (time.perf_counter_ns() - first.queued_ns) / 1e9
        position = (last.caller.priority, last.number)
        is_next = all(queue.heap[0][:2] > position for queue in self._queues.by_key.values() if queue.heap)
        if seconds_left <= 0 or not is_next or not self._can_prefetch():
            self._queues.requeue(batch)
            return math.inf
        queue = self._queues.by_key.get(first.key)
        if queue is not None:
            try:
                self._queues.fill(batch, queue)
            except Exception:
                # The jobs of the batch have failed with it; those in the queue will when it is served.
                return math.inf
            if not queue.heap:
                del self._queues.by_key[first.key]
        self._workers.prefetch(batch)
        return seconds_left

    def _run_inline(self, queue: JobQueue) -> None:
        """Run the next batch of a queue on the event loop."""
        batch = self._queues.take(queue, None)
        batch.cancellation = self._watchdog.begin()
        _execute(batch)
        if self._watchdog.end() and all(isinstance(result, NotReadyError) for result in batch.results):
            self._rerun_on_threads(batch)
        else:
            self._settle(batch)

    def _rerun_on_threads(self, batch: Batch) -> None:
        """Queue the jobs of a batch that had to be ended on the event loop again, each by itself."""
        model = batch.jobs[0].model
        logger.warning(
            "%s: a run that was expected to be short took longer than %g s on the event loop and is restarted on a "
            "thread; so are all runs of this version in the next %g s",
            model.ref,
            MAX_LOOP_SECONDS,
            OFF_LOOP_SECONDS,
        )
        self._costs.ban_from_loop(model.ref)
        for job in batch.jobs:
            # A queue of its own: the values of one job may be the reason, and the others must not wait for it.
            job.key = (*job.key[:3], id(job))
        self._queues.requeue(batch)
        self.schedule()

    def _settle(self, batch: Batch) -> None:
        """Hand out the results of a batch; on an internal error only its own jobs fail."""
        try:
            self._hand_out(batch)
        except Exception as error:
            logger.exception("the results of a batch could not be handed out")
            fail_jobs(batch.jobs, error)

    def _hand_out(self, batch: Batch) -> None:
        first = batch.jobs[0]
        compute_ns = batch.ended_ns - batch.started_ns
        total_queue_ns = 0
        for job, result in zip(batch.jobs, batch.results, strict=True):
            queue_ns = batch.started_ns - job.queued_ns
            total_queue_ns += queue_ns
            job.batch = None
            if job.future.done():
                continue
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(
                    InferenceResult(result.outputs, result.states, result.violations, queue_ns, compute_ns, batch.rows)
                )
        steps = sum(job.batch_item.rows * job.batch_item.time for job in batch.jobs)
        self._telemetry.record_run(
            first.model, first.kind, len(batch.jobs), batch.rows, steps, total_queue_ns, compute_ns
        )
        if first.model.guard.balls:
            self._telemetry.record_norm_ratio(first.model, first.model.guard.ratio)
        self._costs.record(batch)


def _execute(batch: Batch) -> None:
    """Run a batch; one that fails is run again job by job, so that one request cannot spoil the others."""
    batch.started_ns = time.perf_counter_ns()
    try:
        batch.results = _run(batch.jobs, batch.cancellation)
    except Exception as error:
        if len(batch.jobs) == 1 or isinstance(error, NotReadyError):
            batch.results = [_translate_error(error)] * len(batch.jobs)
        else:
            label, count = batch.jobs[0].model.label, len(batch.jobs)
            logger.warning(
                "a batch of %d requests for %s failed, they are run one by one", count, label, exc_info=error
            )
            results: list[BatchResult | Exception] = []
            for job in batch.jobs:
                try:
                    results.extend(_run([job], batch.cancellation))
                except Exception as job_error:
                    results.append(_translate_error(job_error))
            batch.results = results
    batch.ended_ns = time.perf_counter_ns()


def _run(jobs: Sequence[Job], cancellation: CancellationToken | None) -> Sequence[BatchResult | Exception]:
    first = jobs[0]
    if first.function is not None:
        return [first.function(cancellation or CancellationToken())]
    batch_items = [job.batch_item for job in jobs]
    if first.kind == "step":
        return run_steps(first.model.step, batch_items, cancellation)
    return run_items(first.model.sequence, batch_items, cancellation)


def _translate_error(error: Exception) -> Exception:
    if isinstance(error, ServerError):
        # The traceback references frames that hold the list of results, which holds the error: drop it to break the
        # reference cycle, which would keep the whole batch alive.
        return error.with_traceback(None)
    if isinstance(error, MemoryError):
        return TooLargeError(
            "The request needs more memory than this server has left; send fewer or shorter series at a time."
        )
    return error
