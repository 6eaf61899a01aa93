"""Which batch runs next, when and where, decided over worker threads that a test moves by hand."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchItem, BatchResult
from stablernn_server import Settings
from stablernn_server.batching import dispatch
from stablernn_server.batching.dispatch import (
    SHORT_SECONDS,
    WAIT_BUDGET_RUNS,
    WAIT_BUDGET_SECONDS,
    CostModel,
    Dispatcher,
)
from stablernn_server.batching.job_queues import JobQueues
from stablernn_server.batching.types import Batch, Caller, Job
from stablernn_server.observability.telemetry import Telemetry

pytestmark = pytest.mark.anyio


class Workers:
    """Worker threads that begin nothing: a test says what runs and what has ended."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.running: list[Batch] = []
        self.ended: list[Batch] = []
        self.prefetched: Batch | None = None
        self.is_started = True

    @property
    def has_idle(self) -> bool:
        return len(self.running) < self.count

    def begin(self, batch: Batch) -> None:
        assert self.has_idle
        self.running.append(batch)

    def prefetch(self, batch: Batch) -> None:
        assert self.prefetched is None
        self.prefetched = batch

    def take_back(self) -> Batch | None:
        batch, self.prefetched = self.prefetched, None
        return batch

    def collect_ended(self) -> list[Batch]:
        ended, self.ended = self.ended, []
        return ended

    def end(self, batch: Batch, seconds: float) -> None:
        """Let a run end that has taken so long."""
        batch.started_ns = time.perf_counter_ns()
        batch.ended_ns = batch.started_ns + round(seconds * 1e9)
        batch.results = [BatchResult({}) for _ in batch.jobs]
        self.running.remove(batch)
        self.ended.append(batch)


class Model:
    """The part of a model that the dispatcher needs; its runs are calls."""

    class guard:
        balls: dict[str, Any] = {}
        violation_count = 0

        class inputs:
            outside_count = 0

    def __init__(self, name: str) -> None:
        self.name, self.version, self.ref, self.label = name, 1, f"{name}:1", f"model '{name}:1'"


class Desk:
    """A dispatcher with all that belongs to it."""

    def __init__(self, cpus: int, **settings: Any) -> None:
        known = Settings(**settings)
        self.queues = JobQueues(known)
        self.costs = CostModel()
        self.dispatcher = Dispatcher(known, Telemetry(known), self.queues, self.costs)
        self.workers = Workers(cpus + 1)
        self.dispatcher._workers = self.workers  # type: ignore[assignment]
        self.dispatcher._loop = asyncio.get_running_loop()
        self._count = 0

    def add(self, model: Any, priority: int = 100, waited_seconds: float = 0.0) -> Job:
        """Queue a call, without dispatching it."""
        self._count += 1
        queued_ns = time.perf_counter_ns() - round(waited_seconds * 1e9)
        future = asyncio.get_running_loop().create_future()
        job = Job("call", model, BatchItem({}, 1, 1, ()), Caller(priority=priority), future, queued_ns, self._count)
        self.queues.add(job)
        return job

    def began(self) -> list[Job]:
        """The first job of each batch that runs, oldest run first."""
        return [batch.jobs[0] for batch in self.workers.running]


@asynccontextmanager
async def desk(monkeypatch: pytest.MonkeyPatch, cpus: int = 2, **settings: Any) -> AsyncIterator[Desk]:
    monkeypatch.setattr(dispatch, "available_cpus", lambda: cpus)
    made = Desk(cpus, **settings)
    yield made
    made.dispatcher.collect()
    made.workers.is_started = False
    if made.dispatcher._timer is not None:
        made.dispatcher._timer.cancel()


async def test_the_most_urgent_and_then_the_oldest_begin_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, cpus=3) as made:
        model = Model("a")
        last, second, first = made.add(model, 200), made.add(model, 100), made.add(model, 1)
        made.dispatcher.dispatch()
        assert made.began() == [first, second, last]


async def test_as_many_run_as_there_are_cpus_and_one_more_after_the_wait_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(monkeypatch, cpus=2) as made:
        model = Model("a")
        jobs = [made.add(model) for _ in range(3)]
        made.dispatcher.dispatch()
        assert made.began() == jobs[:2]
        assert made.dispatcher._timer is not None
        late = made.add(Model("b"), waited_seconds=WAIT_BUDGET_SECONDS)
        made.dispatcher.dispatch()
        assert made.began() == [*jobs[:2], late]


async def test_the_wait_budget_follows_how_long_batches_of_the_kind_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, cpus=1) as made:
        job = made.add(Model("a"))
        assert made.dispatcher._wait_budget(job.key) == 0
        made.dispatcher.dispatch()
        assert made.dispatcher._wait_budget(job.key) == WAIT_BUDGET_SECONDS
        made.workers.end(made.workers.running[0], 1.0)
        made.dispatcher.collect()
        made.add(Model("a"))
        made.dispatcher.dispatch()
        assert made.dispatcher._wait_budget(job.key) == pytest.approx(WAIT_BUDGET_RUNS)


async def test_the_last_cpu_is_left_to_the_event_loop_only_while_a_run_should_end_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(monkeypatch, cpus=2) as made:
        short, unknown = Model("short"), Model("unknown")
        made.add(short)
        made.dispatcher.dispatch()
        made.workers.end(made.workers.running[0], SHORT_SECONDS / 2)
        made.dispatcher.collect()
        made.add(short)
        made.dispatcher.dispatch()
        # This one waits, prefetched, for the short run to end.
        follower = made.add(unknown)
        assert made.dispatcher._wait_budget(follower.key) == SHORT_SECONDS
        made.dispatcher.dispatch()
        assert made.workers.prefetched is not None
        assert made.workers.prefetched.jobs == [follower]
        # Behind a run of which nothing is known, the last CPU is used.
        made.workers.running[0].jobs[0].key = follower.key
        made.dispatcher.dispatch()
        assert made.workers.prefetched is None
        assert made.began()[1] is follower


async def test_a_more_urgent_job_takes_the_place_of_the_prefetched_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, cpus=1) as made:
        made.costs._batch_seconds[("call", "short:1", 0)] = SHORT_SECONDS / 2
        made.add(Model("short"))
        made.dispatcher.dispatch()
        usual = made.add(Model("a"))
        made.dispatcher.dispatch()
        assert made.workers.prefetched is not None
        assert made.workers.prefetched.jobs == [usual]
        urgent = made.add(Model("a"), priority=1)
        made.dispatcher.dispatch()
        assert made.workers.prefetched.jobs == [urgent]
        assert (usual.is_queued, made.queues.waiting) == (True, 1)


async def test_a_batch_goes_on_for_those_who_stay_and_is_cancelled_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with desk(monkeypatch, cpus=1) as made:
        jobs = [made.add(Model("a")) for _ in range(2)]
        batch = made.queues.take(made.queues.by_key[jobs[0].key], CancellationToken())
        batch.add(jobs[1])
        made.workers.begin(batch)
        for job, is_last in zip(jobs, (False, True), strict=True):
            job.future.cancel()
            assert made.queues.remove(job) is batch
            made.dispatcher.abandon(batch)
            assert batch.cancellation is not None
            assert batch.cancellation.is_set == is_last
        made.workers.end(batch, 0.1)


async def test_a_batch_that_the_watchdog_ended_is_queued_again_job_by_job(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, cpus=2) as made:
        model = Model("a")
        jobs = [made.add(model), made.add(model)]
        for job in jobs:
            made.queues.take(made.queues.by_key.pop(job.key), None)
        assert made.queues.waiting == 0
        made.dispatcher._rerun_on_threads(Batch(jobs, None))
        assert made.costs.is_banned_from_loop("a:1")
        assert (made.queues.waiting, len(made.queues.by_key)) == (2, 2)
        assert [job.batch for job in jobs] == [None, None]
        made.dispatcher.dispatch()
        assert made.began() == jobs


async def test_a_fault_in_one_queue_is_told_to_its_callers_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async with desk(monkeypatch, cpus=2) as made:
        broken, whole = made.add(Model("broken")), made.add(Model("whole"))
        serve = made.dispatcher._serve

        def fail(key: Any, queue: Any) -> float:
            if key == broken.key:
                raise ArithmeticError("fault")
            return serve(key, queue)

        monkeypatch.setattr(made.dispatcher, "_serve", fail)
        made.dispatcher.dispatch()
        assert isinstance(broken.future.exception(), ArithmeticError)
        assert made.began() == [whole]
        assert not made.queues.by_key
        assert made.dispatcher._timer is None or math.isfinite(made.dispatcher._timer.when())
