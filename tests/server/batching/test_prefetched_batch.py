"""The batch that waits for a short run to end: who may join it, what goes before it, and who begins it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from scheduler_helpers import PATIENT, BeginRecorder, Blocker, Desk, scheduling, turns, until
from stablernn_runtime import ServedModel
from stablernn_runtime.run_batch import BatchResult
from stablernn_server import NotReadyError
from stablernn_server.batching import dispatch, job_queues
from stablernn_server.batching.dispatch import WorkerThreads
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.errors import ClientGoneError

pytestmark = pytest.mark.anyio


def run(desk: Desk, model: ServedModel, seed: int = 0, priority: int = 100) -> asyncio.Task[InferenceResult]:
    x = np.random.default_rng(seed).normal(size=(1, 10, 1)).astype(np.float32)
    return asyncio.create_task(desk.scheduler.run(model, {"x": x}, caller=Caller(priority=priority)))


def prefetched_jobs(desk: Desk) -> int:
    batch = desk.scheduler._dispatcher._workers.prefetched
    return 0 if batch is None else len(batch.jobs)


async def answers(tasks: Sequence[asyncio.Task[InferenceResult]]) -> list[InferenceResult]:
    return await asyncio.wait_for(asyncio.gather(*tasks), PATIENT)


@asynccontextmanager
async def behind_a_short_run(flow: ServedModel, **settings: Any) -> AsyncIterator[tuple[Desk, Blocker]]:
    """A scheduler whose one run should be over at once, as the one before, and goes on until it is released."""
    async with scheduling(**settings) as desk:
        short = desk.scheduler.call(flow, lambda stop: BatchResult({}), 1, caller=Caller())
        await asyncio.wait_for(short, PATIENT)
        async with desk.occupied(flow) as blocker:
            yield desk, blocker
        queues = desk.scheduler._queues
        assert (queues.jobs, queues.waiting, queues.by_key) == ({}, 0, {})


async def test_what_arrives_joins_the_batch_that_is_prefetched(animals: ServedModel, flow: ServedModel) -> None:
    async with behind_a_short_run(flow, inferences=1, max_batch_size=3) as (desk, blocker):
        tasks = []
        for count in (1, 2, 3, 3):
            tasks.append(run(desk, animals, count))
            await turns()
            assert prefetched_jobs(desk) == count
        blocker.released.set()
        assert [answer.batch_rows for answer in await answers(tasks)] == [3, 3, 3, 1]


@pytest.mark.parametrize("is_taken", [True, False], ids=["taken by a thread", "prefetched"])
async def test_cheap_work_does_not_overtake_a_batch_whose_thread_has_not_begun(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    # However slow this machine is, what has run once is cheap enough for the event loop.
    monkeypatch.setattr(dispatch, "INLINE_NS", 1e9)
    recorder = BeginRecorder(monkeypatch)

    async with behind_a_short_run(flow, inferences=1, max_batch_size=1) as (desk, blocker):
        urgent = run(desk, animals, priority=1)
        await turns()
        assert prefetched_jobs(desk) == 1
        recorder.priorities.clear()
        recorder.threads_may_begin.clear()
        if is_taken:
            blocker.released.set()
            await until(lambda: prefetched_jobs(desk) == 0)
        # Learned from a run that ended elsewhere.
        desk.scheduler._costs._sequence_step_ns[(animals.ref, 1)] = 0.0
        later = run(desk, animals, priority=200)
        await turns()
        assert not later.done()
        recorder.threads_may_begin.set()
        blocker.released.set()
        await answers([urgent, later])
    assert recorder.priorities == [1, 200]


async def test_what_is_given_up_leaves_it(animals: ServedModel, flow: ServedModel) -> None:
    async with behind_a_short_run(flow, inferences=1) as (desk, blocker):
        tasks = [run(desk, animals, seed) for seed in range(3)]
        await turns()
        assert prefetched_jobs(desk) == 3
        tasks[1].cancel()
        await turns()
        assert prefetched_jobs(desk) == 2
        blocker.released.set()
        assert [answer.batch_rows for answer in await answers([tasks[0], tasks[2]])] == [2, 2]


async def test_a_fault_while_it_is_made_up_is_told_to_all_that_are_in_it(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*about: object) -> int:
        raise ArithmeticError("numbers")

    async with behind_a_short_run(flow, inferences=1) as (desk, blocker):
        tasks = [run(desk, animals)]
        await turns()
        assert prefetched_jobs(desk) == 1
        with monkeypatch.context() as broken:
            broken.setattr(job_queues, "_count_elements", fail)
            tasks.append(run(desk, animals))
            tasks.append(run(desk, animals))
            for task in tasks:
                with pytest.raises(ArithmeticError, match="numbers"):
                    await asyncio.wait_for(task, PATIENT)
        task = run(desk, animals)
        blocker.released.set()
        assert [answer.batch_rows for answer in await answers([task])] == [1]


async def test_the_place_of_a_client_that_has_gone_is_free_though_another_is_prefetched(
    animals: ServedModel, flow: ServedModel
) -> None:
    async with behind_a_short_run(flow, inferences=1, max_batch_size=1, max_queue=1) as (desk, blocker):
        first = run(desk, animals)
        await turns()
        gone = threading.Event()
        x = np.zeros((1, 10, 1), np.float32)
        second = asyncio.create_task(desk.scheduler.run(animals, {"x": x}, caller=Caller(is_gone=gone.is_set)))
        await turns()
        assert (prefetched_jobs(desk), desk.scheduler.pending) == (1, 3)
        gone.set()
        third = run(desk, animals)
        await turns()
        blocker.released.set()
        await answers([first, third])
        with pytest.raises(ClientGoneError):
            await second


async def test_the_thread_goes_on_with_it_while_the_event_loop_is_busy(flow: ServedModel) -> None:
    ran = threading.Event()

    def follow(stop: object) -> BatchResult:
        ran.set()
        return BatchResult({})

    async with behind_a_short_run(flow, inferences=1) as (desk, blocker):
        task = asyncio.create_task(desk.scheduler.call(flow, follow, 1, caller=Caller()))
        await turns()
        assert prefetched_jobs(desk) == 1
        blocker.released.set()
        # The event loop does nothing meanwhile.
        assert ran.wait(PATIENT)
        await asyncio.wait_for(task, PATIENT)
        assert prefetched_jobs(desk) == 0


async def test_it_is_not_run_by_a_server_that_stops(flow: ServedModel) -> None:
    ran = threading.Event()

    def follow(stop: object) -> BatchResult:
        ran.set()
        return BatchResult({})

    async with scheduling(inferences=1) as desk:
        await desk.scheduler.call(flow, lambda stop: BatchResult({}), 1, caller=Caller())
        blocker = Blocker()
        first = asyncio.create_task(desk.scheduler.call(flow, blocker, 1, caller=Caller()))
        await until(blocker.started.is_set)
        second = asyncio.create_task(desk.scheduler.call(flow, follow, 1, caller=Caller()))
        await turns()
        assert prefetched_jobs(desk) == 1
        end = desk.scheduler.stop()
        for task in (first, second):
            with pytest.raises(NotReadyError):
                await asyncio.wait_for(task, PATIENT)
        await asyncio.to_thread(end)
        assert blocker.is_stopped
    assert not ran.is_set()


async def test_a_thread_of_a_start_before_takes_nothing_that_was_prefetched_later() -> None:
    first, second, third = threading.Event(), threading.Event(), threading.Event()
    ended: list[threading.Event] = []
    began: list[threading.Event] = []

    def work(thing: threading.Event) -> None:
        began.append(thing)
        assert thing.wait(PATIENT)

    loop = asyncio.get_running_loop()
    workers = WorkerThreads[threading.Event](work, lambda: ended.extend(workers.collect_ended()), 1)
    workers.start(loop)
    workers.begin(first)
    await until(lambda: len(began) == 1)
    end = workers.stop()
    workers.start(loop)
    workers.begin(second)
    await until(lambda: len(began) == 2)
    workers.prefetch(third)
    first.set()
    await asyncio.to_thread(end)
    assert (began, workers.prefetched) == ([first, second], third)
    assert workers.running == {second}
    third.set()
    second.set()
    await until(lambda: ended == [second, third])
    assert (workers.prefetched, len(workers.running), workers.has_idle) == (None, 0, True)
    await asyncio.to_thread(workers.stop())
