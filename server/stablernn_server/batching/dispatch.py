"""Decides which batch runs next, when, and where: on a worker thread, behind a run that ends soon, or on the loop.

All of this runs on the event loop except inference on worker threads. So there are no locks, and a batch is made up
only when a thread is free to run it: until then, requests may be added.

Beside it: how long runs take by those of the past, the threads that do them, and a watchdog for runs on the event loop
itself.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, KeysView, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from stablernn_runtime.engines.devices import available_cpus
from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchResult, run_items, run_steps
from stablernn_server.batching.job_queues import JobQueue, JobQueues, divide
from stablernn_server.batching.types import Batch, InferenceResult, Job, QueueKey, fail_jobs
from stablernn_server.errors import NotReadyError, ServerError, TooLargeError
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.settings import Settings

OFF_LOOP_SECONDS = 600.0
"""Time for which no run of a version is made on the event loop after one had to be ended there."""
T = TypeVar("T")

END_SECONDS = 1.0
"""Time to wait for runs that were cancelled; ONNX Runtime looks for that between two nodes of a graph."""
MAX_LOOP_SECONDS = 1.0
"""Time after which a run on the event loop is cancelled: far beyond the 2 ms that such runs are expected to take, since
a busy or suspended machine takes longer."""
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


class WorkerThreads(Generic[T]):
    """Worker threads, and one piece of work that is prefetched for the first of them to end.

    An executor would hold the GIL for longer around each run than the event loop can spare, and would have to be given
    the next run before anybody knows what that should be. Every method is for the event loop's thread.

    Attributes:
        prefetched: Prefetched work that is not known to have begun; None without any.
    """

    def __init__(self, run: Callable[[T], object], on_end: Callable[[], object], count: int) -> None:
        """Prepare the threads; :meth:`start` starts them.

        Args:
            run: Runs one piece of work on a thread; must not raise.
            on_end: Called on the event loop when work has ended; calls :meth:`collect_ended`.
            count: Number of threads.
        """
        self.prefetched: T | None = None
        self._run = run
        self._on_end = on_end
        self._count = count
        self._threads: list[tuple[SimpleQueue[T | None], threading.Thread]] = []
        self._idle: list[SimpleQueue[T | None]] = []
        # The inbox of the thread that runs each piece of work.
        self._running: dict[T, SimpleQueue[T | None]] = {}
        # Both deques are shared with the threads, which take from the first and append to the second.
        self._next: deque[T] = deque()
        self._ended: deque[tuple[T, T | None]] = deque()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads, which report to ``loop``."""
        # Threads of an earlier start may still run: they keep the deques that they were started with.
        self.prefetched, self._running, self._next, self._ended = None, {}, deque(), deque()
        self._threads = [self._start_thread(loop) for _ in range(self._count)]
        # Last in, first out: the thread of the last run is awake, and its caches are full.
        self._idle = [inbox for inbox, _ in self._threads]

    def stop(self) -> Callable[[], None]:
        """Take no more work, and drop what is prefetched.

        Returns:
            A function for another thread that waits until the running work has ended, for :data:`END_SECONDS` at most.
            A process that exits in the middle of a run may be aborted.
        """
        self.take_back()
        threads, self._threads, self._idle = self._threads, [], []
        for inbox, _ in threads:
            inbox.put(None)
        return partial(_join, [thread for _, thread in threads])

    @property
    def is_started(self) -> bool:
        """True between :meth:`start` and :meth:`stop`."""
        return bool(self._threads)

    @property
    def running(self) -> KeysView[T]:
        """Work that runs, or has ended and was not yet returned by :meth:`collect_ended`."""
        return self._running.keys()

    @property
    def has_idle(self) -> bool:
        """True if a thread is idle."""
        return bool(self._idle)

    def begin(self, work: T) -> None:
        """Run ``work`` on an idle thread."""
        inbox = self._idle.pop()
        self._running[work] = inbox
        inbox.put(work)

    def prefetch(self, work: T) -> None:
        """Let the first thread that ends go on with ``work``, without the event loop; one piece of work at a time."""
        self.prefetched = work
        self._next.append(work)

    def take_back(self) -> T | None:
        """Return the prefetched work for another decision; None if there is none, or a thread has taken it."""
        try:
            work = self._next.pop()
        except IndexError:
            return None
        self.prefetched = None
        return work

    def collect_ended(self) -> Sequence[T]:
        """Return the work that has ended since the last call; prefetched work that a thread took counts as running."""
        ended: list[T] = []
        while self._ended:
            work, follower = self._ended.popleft()
            inbox = self._running.pop(work)
            ended.append(work)
            if follower is not None:
                self.prefetched = None
                self._running[follower] = inbox
            elif self._threads:
                self._idle.append(inbox)
        return ended

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> tuple[SimpleQueue[T | None], threading.Thread]:
        inbox: SimpleQueue[T | None] = SimpleQueue()
        arguments = (inbox, self._next, self._ended, loop)
        thread = threading.Thread(target=self._serve, args=arguments, name="worker", daemon=True)
        thread.start()
        return inbox, thread

    def _serve(
        self,
        inbox: SimpleQueue[T | None],
        prefetched: deque[T],
        ended: deque[tuple[T, T | None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Run work on a thread until its inbox holds None."""
        follower: T | None = None
        while (work := inbox.get() if follower is None else follower) is not None:
            self._run(work)
            # The event loop and all threads pop from this deque, which is atomic: nothing is taken twice or lost.
            try:
                follower = prefetched.pop()
            except IndexError:
                follower = None
            ended.append((work, follower))
            # The local would keep the work alive, with its model, until the next comes.
            del work
            # RuntimeError: the loop was closed while this ran, and nobody waits for the result.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_end)


def _join(threads: Sequence[threading.Thread]) -> None:
    deadline = time.monotonic() + END_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class LoopWatchdog:
    """A thread that ends runs on the event loop which take far longer than expected.

    A graph can choose from the values of a request how often it repeats a node, so that no earlier run says how long
    the next one takes. On the event loop such a run would stop every response, all timeouts and the shutdown of the
    server.
    """

    def __init__(self) -> None:
        # Guards the token and the start of the run: else a run that has just begun could be ended for the one before.
        self._lock = threading.Lock()
        self._cancellation = CancellationToken()
        self._started: float | None = None
        self._should_stop = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        # An event of its own for each thread: that of an earlier start may not have seen its own yet.
        self._should_stop = threading.Event()
        threading.Thread(target=self._watch, args=(self._should_stop,), name="loop watchdog", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end, without waiting for it."""
        self._should_stop.set()

    def begin(self) -> CancellationToken:
        """Begin to watch a run; the token ends it once it takes longer than :data:`MAX_LOOP_SECONDS`."""
        with self._lock:
            self._started = time.monotonic()
            return self._cancellation

    def end(self) -> bool:
        """Stop watching a run that is over; return whether it was cancelled."""
        with self._lock:
            self._started = None
            was_cancelled = self._cancellation.is_set
            # A token that is set would end every later run as well.
            if was_cancelled:
                self._cancellation = CancellationToken()
            return was_cancelled

    def _watch(self, should_stop: threading.Event) -> None:
        while not should_stop.wait(MAX_LOOP_SECONDS / 4):
            with self._lock:
                if self._started is not None and time.monotonic() - self._started > MAX_LOOP_SECONDS:
                    self._cancellation.set()


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
