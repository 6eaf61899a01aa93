"""Runs the work of all requests in batches: what waits for the same graph goes through it together.

Everything here happens on the event loop, but for the runs themselves, which have threads of their own. So there are no
locks, and a batch is made up only when a thread is free to run it: until then, whatever arrives may still join.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from numpy.typing import NDArray

from stablernn_runtime.cpus import available_cpus
from stablernn_runtime.engines.session import CancellationToken
from stablernn_runtime.run_batch import BatchItem, BatchResult, run_items, run_steps
from stablernn_runtime.served_model import ServedModel
from stablernn_server.batching.loop_watchdog import LIMIT_SECONDS, LoopWatch
from stablernn_server.batching.worker_threads import WorkerThreads
from stablernn_server.errors import (
    BusyError,
    ClientGoneError,
    DeadlineError,
    NotReadyError,
    ServerError,
    TooLargeError,
    TooManyError,
)
from stablernn_server.observability.telemetry import Telemetry, WorkKind
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

Array = NDArray[Any]
T = TypeVar("T")

DEFAULT_PRIORITY = 100
"""Of a request that names none; 1 is served first."""
PATIENCE_SECONDS = 0.02
PATIENCE_RUNS = 3.0
"""A batch that has waited for 20 ms, and for three times as long as it usually runs, gets a thread more than there are
CPUs: behind runs of many steps, short ones would wait for all of them. Batches of one kind behind each other do not."""
SHORT_SECONDS = 0.01
"""The last CPU is the event loop's as long as one of the runs should be over within this time: what comes meanwhile
makes one batch instead of several small ones, and is decoded at the same time. That batch is lined up: its run begins
as the other ends, without waiting for the event loop."""
INLINE_NS = 500_000
"""Runs that take no longer are made on the event loop itself: to hand them to a thread and back costs more."""
ALONE_NS = 2_000_000
"""The same where nothing else is in hand that would have to wait for it."""
OFF_LOOP_SECONDS = 600.0
"""For how long no run of a model is made on the event loop after one had to be ended there."""


@dataclass(slots=True, eq=False)
class Caller:
    """Who waits for a piece of work.

    Attributes:
        client: What tells one client from another, such as an address or the name of a token.
        deadline: When the answer is of no use any more, on the clock of the event loop; None for never.
        is_gone: Asked before the work is run; None where nobody can go away.
        priority: 1 is served first.
    """

    client: str = ""
    deadline: float | None = None
    is_gone: Callable[[], bool] | None = None
    priority: int = DEFAULT_PRIORITY


@dataclass(slots=True, eq=False)
class InferenceResult:
    """What came of a piece of work.

    Attributes:
        outputs: By name.
        states: Of steps: the states after them, by the names of the inputs that they feed.
        outside: States that came to lie outside their certified balls.
        queue_ns: Nanoseconds until the run began.
        compute_ns: Nanoseconds of the run.
        batch_rows: Sequences or streams in the run, those of others included.
    """

    outputs: dict[str, Array]
    states: dict[str, Array]
    outside: set[str]
    queue_ns: int
    compute_ns: int
    batch_rows: int


@dataclass(slots=True, eq=False)
class _Job:
    kind: WorkKind
    model: ServedModel
    part: BatchItem
    caller: Caller
    future: asyncio.Future[InferenceResult]
    queued_ns: int
    number: int
    function: Callable[[CancellationToken], BatchResult] | None = None
    is_queued: bool = True
    key: tuple[Any, ...] = ()


@dataclass(slots=True, eq=False)
class _Batch:
    jobs: list[_Job]
    stop: CancellationToken | None
    left: int = 0
    rows: int = 0
    longest: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    shares: Sequence[BatchResult | Exception] = ()


@dataclass(slots=True)
class _Queue:
    """Jobs for one graph of one model, of about the same length; the first to be served on top."""

    heap: list[tuple[int, int, _Job]] = field(default_factory=list)


class Scheduler:
    """One application's queue and its runner threads.

    Attributes:
        pending: Pieces of work that wait or run.
    """

    def __init__(self, settings: Settings, telemetry: Telemetry) -> None:
        self.pending = 0
        self._settings = settings
        self._telemetry = telemetry
        cpus = available_cpus()
        self._usual = settings.inferences or cpus
        self._unshared = settings.inferences or max(1, cpus - 1)
        self._runners = WorkerThreads[_Batch](_execute, self._collect, settings.inferences or cpus + 1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[tuple[Any, ...], _Queue] = {}
        self._numbers = itertools.count()
        self._pump_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._by_client: dict[str, int] = {}
        self._waiting = 0
        self._rate = 0.0
        # By kind, version and about the length: how long a batch runs.
        self._usual_seconds: dict[tuple[Any, ...], float] = {}
        # By version and about the rows: how long a time step of whole sequences takes.
        self._sequence_ns: dict[tuple[str, int], float] = {}
        self._in_runs: dict[asyncio.Future[InferenceResult], _Batch] = {}
        self._watch = LoopWatch()
        # By version: until when its runs are not made on the event loop.
        self._off_loop: dict[str, float] = {}

    def start(self) -> None:
        """Take work; called on the event loop."""
        self._loop = asyncio.get_running_loop()
        # Whatever was left behind belongs to the event loop before.
        self._timer, self._pump_is_due = None, False
        self._runners.start(self._loop)
        self._watch.start()

    def stop(self) -> Callable[[], None]:
        """Take no more work, and end what runs.

        Returns:
            As :meth:`WorkerThreads.stop`.
        """
        self._recall()
        self._watch.stop()
        for queue in self._queues.values():
            for _, _, job in queue.heap:
                if not job.future.done():
                    job.future.set_exception(_shutting_down())
        self._queues.clear()
        for batch in set(self._in_runs.values()):
            if batch.stop is not None:
                batch.stop.set()
            for job in batch.jobs:
                if not job.future.done():
                    job.future.set_exception(_shutting_down())
        if self._timer is not None:
            self._timer.cancel()
        return self._runners.stop()

    @property
    def retry_after_seconds(self) -> int:
        """When a client that finds the queue full should come again: about when what waits now will be done."""
        if self._rate <= 0:
            return 1
        return max(1, min(60, math.ceil(self._waiting / self._rate)))

    async def run(
        self,
        model: ServedModel,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        caller: Caller,
        from_client: bool = False,
    ) -> InferenceResult:
        """Whole sequences through ``sequence.onnx``, together with those of others.

        Args:
            model: The model.
            inputs: As in :meth:`ServedModel.run`.
            outputs: Names of the wanted outputs; default: all.
            caller: Who waits.
            from_client: Whether states among the inputs come from outside.

        Raises:
            InputError: If an input does not fit the model, or leads to an output that is not finite.
            BusyError: If the queue is full.
            TooManyError: If this client has too much in it already.
            DeadlineError: If the caller's deadline passes first.
            NotReadyError: If the server stops first.
        """
        part = model.prepare(model.sequence, inputs, outputs, from_client=from_client)
        return await self._do("sequence", model, part, caller)

    async def step(
        self,
        model: ServedModel,
        inputs: Mapping[str, Array],
        states: Mapping[str, Array],
        outputs: Sequence[str] | None = None,
        *,
        caller: Caller,
        every: bool = True,
        from_client: bool = False,
    ) -> InferenceResult:
        """One or several steps of some streams through ``step.onnx``, together with those of others.

        Args:
            model: The model.
            inputs: As in :meth:`ServedModel.prepare_steps`.
            states: Likewise.
            outputs: Likewise.
            caller: Who waits.
            every: Likewise.
            from_client: Likewise.

        Returns:
            Outputs of the shape ``(rows, steps, ...)``, or ``(rows, 1, ...)``, and the states after the last step.

        Raises:
            InputError: As :meth:`run`, and so for the other errors.
        """
        part = model.prepare_steps(inputs, states, outputs, every=every, from_client=from_client)
        return await self._do("step", model, part, caller)

    async def step_part(self, model: ServedModel, part: BatchItem, *, caller: Caller) -> InferenceResult:
        """As :meth:`step`, for steps that are known to fit the model.

        Raises:
            InputError: If they lead to an output that is not finite; and so for the other errors.
        """
        return await self._do("step", model, part, caller)

    async def call(
        self, model: ServedModel, function: Callable[[CancellationToken], BatchResult], rows: int, *, caller: Caller
    ) -> InferenceResult:
        """``function`` on a runner thread, by itself: for what takes several runs that follow from each other.

        Raises:
            InputError: As :meth:`run`, and so for the other errors.
        """
        return await self._do("call", model, BatchItem({}, rows, 1, ()), caller, function)

    async def _do(
        self,
        kind: WorkKind,
        model: ServedModel,
        part: BatchItem,
        caller: Caller,
        function: Callable[[CancellationToken], BatchResult] | None = None,
    ) -> InferenceResult:
        loop = self._loop
        if loop is None or not self._runners.is_started:
            raise _shutting_down()
        self._admit(caller)
        future: asyncio.Future[InferenceResult] = loop.create_future()
        job = _Job(kind, model, part, caller, future, time.perf_counter_ns(), next(self._numbers), function)
        timer = None if caller.deadline is None else loop.call_at(caller.deadline, _expire, future)
        try:
            self._enqueue(job)
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            self._leave(job)
            # What it failed with knows this frame, and would be known by it, in a circle.
            del future, job

    def _enqueue(self, job: _Job) -> None:
        self.pending += 1
        self._waiting += 1
        if self._settings.max_client_requests:
            self._by_client[job.caller.client] = self._by_client.get(job.caller.client, 0) + 1
        job.key = self._key(job)
        queue = self._push(job)
        if len(queue.heap) > 2 * self._settings.max_queue:
            # Those that were given up are taken out when their turn comes, or here when it does not.
            queue.heap = [entry for entry in queue.heap if not entry[2].future.done()]
            heapq.heapify(queue.heap)
        self._pump_soon()
        # A turn of the event loop may decode many requests, and a thread would be idle until its end.
        self._collect()

    def _push(self, job: _Job) -> _Queue:
        queue = self._queues.get(job.key)
        if queue is None:
            queue = self._queues[job.key] = _Queue()
        heapq.heappush(queue.heap, (job.caller.priority, job.number, job))
        return queue

    def _leave(self, job: _Job) -> None:
        """Forget a job that has its answer, or that nobody waits for any more."""
        self.pending -= 1
        self._unqueue(job)
        if self._settings.max_client_requests:
            left = self._by_client[job.caller.client] - 1
            if left:
                self._by_client[job.caller.client] = left
            else:
                del self._by_client[job.caller.client]
        # A run for which nobody waits any more is ended.
        batch = self._in_runs.pop(job.future, None)
        if batch is not None and batch.ended_ns == 0:
            batch.left -= 1
            if batch is self._runners.lined_up:
                self._recall()
                self._pump_soon()
            if batch.left == 0 and batch.stop is not None:
                batch.stop.set()

    def _unqueue(self, job: _Job) -> None:
        if job.is_queued:
            job.is_queued = False
            self._waiting -= 1
            job.part.feeds = {}

    def _admit(self, caller: Caller) -> None:
        settings = self._settings
        if self._waiting >= settings.max_queue:
            # Those of clients that have gone hold no places.
            self.drop_abandoned()
        if self._waiting >= settings.max_queue:
            raise BusyError(
                f"The queue holds {settings.max_queue} requests, its limit; try again in {self.retry_after_seconds} s.",
                self.retry_after_seconds,
            )
        most = settings.max_client_requests
        if most and self._by_client.get(caller.client, 0) >= most:
            raise TooManyError(
                f"This client has {most} requests in the queue already, the most that one may have; wait for an answer."
            )

    def _key(self, job: _Job) -> tuple[Any, ...]:
        if job.kind == "call":
            return (job.kind, job.model.ref, 0, id(job))
        # Lengths that differ by less than a factor of two: padding then costs less than the steps that are shared.
        length = job.part.time.bit_length()
        if job.kind == "sequence" and "lengths" not in job.model.sequence.inputs:
            length = job.part.time
        return (job.kind, job.model.ref, length, id(job.model))

    def _pump_soon(self) -> None:
        # Not at once: what arrives in this turn of the event loop and in the next joins. In the next come the requests
        # whose bytes were read while those of this one were decoded.
        if not self._pump_is_due:
            self._pump_is_due = True
            assert self._loop is not None
            self._loop.call_soon(self._loop.call_soon, self._pump)

    def _pump(self) -> None:
        """Start whatever can be started."""
        self._pump_is_due = False
        loop = self._loop
        if loop is None or not self._runners.is_started:
            return
        wake = self._line_up_again()
        for _, _, key in sorted(
            (queue.heap[0][0], queue.heap[0][1], key) for key, queue in self._queues.items() if queue.heap
        ):
            queue = self._queues[key]
            try:
                wake = min(wake, self._serve(key, queue))
            except Exception as error:
                # A fault of ours in one queue must neither leave its callers waiting nor hold up the others.
                _fail([job for _, _, job in queue.heap], error)
                queue.heap.clear()
            if not queue.heap:
                del self._queues[key]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake < math.inf:
            self._timer = loop.call_later(wake, self._pump)

    def _serve(self, key: tuple[Any, ...], queue: _Queue) -> float:
        """Start the batches of one queue that can be started; after how many seconds to look again."""
        now_ns = time.perf_counter_ns()
        while queue.heap:
            first = queue.heap[0][2]
            if self._is_dropped(first):
                heapq.heappop(queue.heap)
                continue
            if first.kind == "step" and self._is_for_the_loop(key, queue, INLINE_NS):
                self._run_inline(queue)
                continue
            left = self._settings.max_queue_delay_ms / 1e3 - self._oldest_seconds(queue, now_ns)
            if left > 0 and not self._is_full(queue):
                return left
            inline_ns = ALONE_NS if self.pending == 1 else INLINE_NS
            if (
                first.kind == "sequence"
                and self._expected_ns(queue) <= inline_ns
                and not self._has_unstarted_batch(key)
            ):
                self._run_inline(queue)
                continue
            left = self._patience(key) - (now_ns - first.queued_ns) / 1e9
            is_one_idle = self._runners.is_one_idle
            if not is_one_idle or left > 0:
                if self._runners.lined_up is None and self._may_follow():
                    self._runners.line_up(self._take(queue, CancellationToken()))
                return left if is_one_idle else math.inf
            self._runners.begin(self._take(queue, CancellationToken()))
        return math.inf

    def _is_for_the_loop(self, key: tuple[Any, ...], queue: _Queue, limit_ns: int) -> bool:
        """Return whether the next batch is cheap enough to be run on the event loop, and overtakes nothing there."""
        return self._expected_ns(queue) <= limit_ns and not self._has_unstarted_batch(key)

    def _has_unstarted_batch(self, key: tuple[Any, ...]) -> bool:
        """Return whether a thread is about to run an earlier batch of a queue.

        On a busy machine the thread may wait for a CPU for longer than a whole run on the event loop takes, and such a
        run would overtake older or more urgent work for the same graph.
        """
        # A thread may have taken this batch already: that is only known once the end of its previous run is collected.
        following = self._runners.lined_up
        if following is not None and following.jobs[0].key == key:
            return True
        return any(batch.started_ns == 0 and batch.jobs[0].key == key for batch in self._runners.running)

    def _patience(self, key: tuple[Any, ...]) -> float:
        """For how many seconds a batch waits for a run to end before it gets a thread beside those that run."""
        running = len(self._runners.running)
        if running >= self._usual:
            return max(PATIENCE_SECONDS, PATIENCE_RUNS * self._usual_seconds.get(key[:3], 0.0))
        if running >= self._unshared and self._end_soon():
            return SHORT_SECONDS
        return 0.0

    def _end_soon(self) -> int:
        """How many of the runs should be over soon."""
        return sum(
            self._usual_seconds.get(batch.jobs[0].key[:3], math.inf) <= SHORT_SECONDS for batch in self._runners.running
        )

    def _may_follow(self) -> bool:
        """Whether a batch could begin at once where the next of the runs that should be over soon has ended.

        Else as many as came to run at a time by chance would go on to do so.
        """
        running, soon = len(self._runners.running), self._end_soon()
        return running <= self._usual and (soon == 1 or (soon > 1 and running <= self._unshared))

    def _line_up_again(self) -> float:
        """Let what has come join the batch that is lined up, or go before it; after how many seconds to look again."""
        batch = self._runners.recall()
        if batch is None:
            return math.inf
        first, last = batch.jobs[0], batch.jobs[-1]
        left = self._patience(first.key) - (time.perf_counter_ns() - first.queued_ns) / 1e9
        place = (last.caller.priority, last.number)
        is_next = all(queue.heap[0][:2] > place for queue in self._queues.values() if queue.heap)
        if left <= 0 or not is_next or not self._may_follow():
            self._dissolve(batch)
            return math.inf
        queue = self._queues.get(first.key)
        if queue is not None:
            try:
                self._fill(batch, queue)
            except Exception:
                # Those in the batch know; those in the queue will, when it is served.
                return math.inf
            if not queue.heap:
                del self._queues[first.key]
        self._runners.line_up(batch)
        return left

    def _recall(self) -> None:
        """Put what is lined up back to what waits."""
        batch = self._runners.recall()
        if batch is not None:
            self._dissolve(batch)

    def _dissolve(self, batch: _Batch) -> None:
        for job in batch.jobs:
            self._in_runs.pop(job.future, None)
            if not job.future.done():
                job.is_queued = True
                self._waiting += 1
                self._push(job)

    def _run_inline(self, queue: _Queue) -> None:
        batch = self._take(queue, None)
        batch.stop = self._watch.begin()
        _execute(batch)
        if self._watch.end() and all(isinstance(share, NotReadyError) for share in batch.shares):
            self._run_apart(batch)
        else:
            self._settle(batch)

    def _run_apart(self, batch: _Batch) -> None:
        """Begin anew on threads what had to be ended on the event loop, each job by itself."""
        model = batch.jobs[0].model
        logger.warning(
            "%s: a run that was expected to be short took longer than %g s on the event loop and is begun anew on a "
            "thread; so are all runs of this version in the next %g s",
            model.ref,
            LIMIT_SECONDS,
            OFF_LOOP_SECONDS,
        )
        self._off_loop[model.ref] = time.monotonic() + OFF_LOOP_SECONDS
        for job in batch.jobs:
            # A queue of its own: the values of one may be the reason, and the others must not wait for it.
            job.key = (*job.key[:3], id(job))
        self._dissolve(batch)
        self._pump_soon()

    def _is_dropped(self, job: _Job) -> bool:
        """Whether nobody waits for ``job`` any more: it was cancelled, its time is over, or its client is gone."""
        if job.future.done():
            return True
        assert self._loop is not None
        # Its timer may be due in this very turn of the event loop, and come after this.
        if job.caller.deadline is not None and self._loop.time() >= job.caller.deadline:
            _expire(job.future)
            return True
        try:
            is_gone = job.caller.is_gone is not None and job.caller.is_gone()
        except Exception as error:
            # A fault of ours is for this one alone: others wait behind it.
            job.future.set_exception(error)
            is_gone = True
        if is_gone:
            if not job.future.done():
                job.future.set_exception(ClientGoneError("The client closed the connection before it was answered."))
            self._unqueue(job)
        return is_gone

    def drop_abandoned(self) -> None:
        """Give up the work of clients that have gone; called now and then, for nothing else looks at what waits long or
        runs."""
        for queue in self._queues.values():
            for _, _, job in queue.heap:
                self._is_dropped(job)
        for batch in set(self._in_runs.values()):
            for job in batch.jobs:
                self._is_dropped(job)

    def _most_rows(self, job: _Job) -> int:
        return self._settings.max_batch_size if job.kind == "sequence" else self._settings.max_step_batch_size

    def _oldest_seconds(self, queue: _Queue, now_ns: int) -> float:
        """How long the one that waits for longest has waited: the first to be served may have come after it."""
        if not self._settings.max_queue_delay_ms:
            return 0.0
        return max(now_ns - job.queued_ns for _, _, job in queue.heap if not job.future.done()) / 1e9

    def _is_full(self, queue: _Queue) -> bool:
        rows = 0
        for _, _, job in queue.heap:
            if job.future.done():
                continue
            rows += job.part.rows
            if rows >= self._most_rows(job):
                return True
        return queue.heap[0][2].kind == "call"

    def _expected_ns(self, queue: _Queue) -> float:
        """About how long the next batch of steps or sequences takes; for ever where no such one was run, or a run took
        far longer than expected."""
        rows = longest = 0
        first = queue.heap[0][2]
        if self._off_loop and time.monotonic() < self._off_loop.get(first.model.ref, 0.0):
            return math.inf
        most = self._most_rows(first)
        for _, _, job in queue.heap:
            rows += job.part.rows
            longest = max(longest, job.part.time)
            if rows >= most:
                break
        rows = max(first.part.rows, min(rows, most))
        if first.kind == "step":
            return first.model.estimate_step_ns(rows) * longest
        return self._sequence_ns.get((first.model.ref, rows.bit_length()), math.inf) * longest

    def _take(self, queue: _Queue, stop: CancellationToken | None) -> _Batch:
        """The next batch: as many as fit within the limits of rows and numbers, the first alone whatever its size."""
        batch = _Batch([], stop)
        self._add(batch, heapq.heappop(queue.heap)[2])
        self._fill(batch, queue)
        return batch

    def _fill(self, batch: _Batch, queue: _Queue) -> None:
        """Add what still fits; a fault of ours is for those who are in the batch by then, too."""
        first = batch.jobs[0]
        try:
            most = self._most_rows(first)
            while queue.heap and batch.rows < most:
                job = queue.heap[0][2]
                if not self._is_dropped(job):
                    rows, longest = batch.rows + job.part.rows, max(batch.longest, job.part.time)
                    if rows > most or _numbers(first, rows, longest) > self._settings.max_elements:
                        break
                    self._add(batch, job)
                heapq.heappop(queue.heap)
        except Exception as error:
            _fail(batch.jobs, error)
            raise

    def _add(self, batch: _Batch, job: _Job) -> None:
        batch.jobs.append(job)
        batch.left += 1
        batch.rows += job.part.rows
        batch.longest = max(batch.longest, job.part.time)
        job.is_queued = False
        self._waiting -= 1
        self._in_runs[job.future] = batch

    def _collect(self) -> None:
        """Hand out what the runs gave that have ended, and start the next in their places."""
        ended = self._runners.ended()
        for batch in ended:
            self._settle(batch)
        if ended:
            self._pump()

    def _settle(self, batch: _Batch) -> None:
        """Hand out what a run gave; a fault of ours is for those who wait for it, and for nobody else."""
        try:
            self._hand_out(batch)
        except Exception as error:
            logger.exception("the answers of a run could not be handed out")
            _fail(batch.jobs, error)

    def _hand_out(self, batch: _Batch) -> None:
        first = batch.jobs[0]
        compute = batch.ended_ns - batch.started_ns
        queued = 0
        for job, share in zip(batch.jobs, batch.shares, strict=True):
            waited = batch.started_ns - job.queued_ns
            queued += waited
            self._in_runs.pop(job.future, None)
            if job.future.done():
                continue
            if isinstance(share, Exception):
                job.future.set_exception(share)
            else:
                job.future.set_result(
                    InferenceResult(share.outputs, share.states, share.violations, waited, compute, batch.rows)
                )
        steps = sum(job.part.rows * job.part.time for job in batch.jobs)
        self._telemetry.record_run(first.model, first.kind, len(batch.jobs), batch.rows, steps, queued, compute)
        if first.model.guard.balls:
            self._telemetry.record_norm_ratio(first.model, first.model.guard.ratio)
        rate = len(batch.jobs) / max(compute / 1e9, 1e-6)
        self._rate = rate if self._rate == 0 else 0.9 * self._rate + 0.1 * rate
        if not any(isinstance(share, Exception) for share in batch.shares):
            self._learn(first, batch.rows, batch.longest, compute)

    def _learn(self, first: _Job, rows: int, longest: int, compute: int) -> None:
        """Note how long a batch ran, to which nothing happened."""
        usual = first.key[:3]
        self._usual_seconds[usual] = 0.8 * self._usual_seconds.get(usual, compute / 1e9) + 0.2 * compute / 1e9
        if first.kind == "step":
            first.model.record_step_ns(rows, compute / longest)
        elif first.kind == "sequence":
            size, took = (first.model.ref, rows.bit_length()), compute / longest
            self._sequence_ns[size] = 0.8 * self._sequence_ns.get(size, took) + 0.2 * took


def _execute(batch: _Batch) -> None:
    """Run a batch; what fails for all is tried one by one, so that one request cannot spoil the others."""
    batch.started_ns = time.perf_counter_ns()
    try:
        batch.shares = _run(batch.jobs, batch.stop)
    except Exception as error:
        if len(batch.jobs) == 1 or isinstance(error, NotReadyError):
            batch.shares = [_translated(error)] * len(batch.jobs)
        else:
            described, count = batch.jobs[0].model.label, len(batch.jobs)
            logger.warning(
                "a batch of %d requests for %s failed, they are run one by one", count, described, exc_info=error
            )
            shares: list[BatchResult | Exception] = []
            for job in batch.jobs:
                try:
                    shares.extend(_run([job], batch.stop))
                except Exception as own:
                    shares.append(_translated(own))
            batch.shares = shares
    batch.ended_ns = time.perf_counter_ns()


def _numbers(job: _Job, rows: int, time_: int) -> int:
    """Numbers in and out of a run of this kind."""
    return rows * time_ * job.model.step_elements if job.kind == "step" else job.model.count_elements(rows, time_)


def _run(jobs: Sequence[_Job], stop: CancellationToken | None) -> Sequence[BatchResult | Exception]:
    first = jobs[0]
    if first.function is not None:
        return [first.function(stop or CancellationToken())]
    parts = [job.part for job in jobs]
    if first.kind == "step":
        return run_steps(first.model.step, parts, stop)
    return run_items(first.model.sequence, parts, stop)


def _translated(error: Exception) -> Exception:
    if isinstance(error, ServerError):
        # The frames that it came through know the list in which it is handed on: a circle, with all that was run.
        return error.with_traceback(None)
    if isinstance(error, MemoryError):
        return TooLargeError(
            "The request needs more memory than this server has left; send fewer or shorter series at a time."
        )
    return error


def _fail(jobs: Iterable[_Job], error: Exception) -> None:
    for job in jobs:
        if not job.future.done():
            job.future.set_exception(error)


def _expire(future: asyncio.Future[InferenceResult]) -> None:
    if not future.done():
        future.set_exception(DeadlineError("The deadline passed before the answer was there; give more time or retry."))


def _shutting_down() -> NotReadyError:
    return NotReadyError("The server is starting or shutting down; try again later.")
