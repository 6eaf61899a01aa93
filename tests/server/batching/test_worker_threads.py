"""Worker threads: how many batches run at a time, on which CPUs, and which requests need none."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from scheduler_helpers import PATIENT, random_series, scheduling, submit, turns, until, wait_for_all
from server_helpers import Published
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.devices import available_cpus
from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchResult
from stablernn_server import InputError
from stablernn_server.batching import dispatch
from stablernn_server.batching.dispatch import WAIT_BUDGET_RUNS, WAIT_BUDGET_SECONDS
from stablernn_server.batching.types import Caller


def test_a_short_request_gets_a_further_thread_behind_a_long_one(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "available_cpus", lambda: 1)

    async def together() -> None:
        async with scheduling() as desk, desk.occupied(flow) as blocker:
            answer = await asyncio.wait_for(submit(desk, animals, random_series()), PATIENT)
            assert answer.queue_ns >= WAIT_BUDGET_SECONDS * 1e9
            assert not blocker.released.is_set()

    asyncio.run(together())


def test_work_of_the_kind_that_runs_waits_for_as_long_as_that_usually_takes(
    flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "available_cpus", lambda: 1)

    async def together() -> None:
        async with scheduling() as desk:
            async with desk.occupied(flow):
                since = time.perf_counter()
                await until(lambda: time.perf_counter() - since > 0.1)
            # Released a tenth of a second after it began, so it usually takes no less.
            async with desk.occupied(flow) as blocker:
                work = desk.scheduler.call(flow, lambda stop: BatchResult({}), 1, caller=Caller())
                answer = await asyncio.wait_for(work, PATIENT)
                assert answer.queue_ns >= 0.1 * WAIT_BUDGET_RUNS * 1e9
                assert not blocker.released.is_set()

    asyncio.run(together())


def test_the_last_cpu_is_the_event_loops_while_a_short_run_is_under_way(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "available_cpus", lambda: 2)
    monkeypatch.setattr(dispatch, "SHORT_SECONDS", PATIENT)

    async def together() -> None:
        async with scheduling() as desk:
            # Nobody knows yet how long this takes.
            async with desk.occupied(flow) as blocker:
                await asyncio.wait_for(submit(desk, animals, random_series(steps=40)), PATIENT)
                assert not blocker.released.is_set()
            async with desk.occupied(flow):
                work = [submit(desk, animals, random_series()), submit(desk, animals, random_series())]
                await asyncio.wait(work, timeout=0.1)
                assert desk.executions(animals) == 1
            await wait_for_all(work)
            assert desk.sizes(animals) == {1: 1, 2: 1}

    asyncio.run(together())


def test_cheap_steps_are_answered_while_every_runner_is_busy(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(animals, "estimate_step_ns", lambda rows: 0.0)
    x = random_series(1, 5)

    async def together() -> None:
        async with scheduling(inferences=1) as desk, desk.occupied(flow) as blocker:
            answer = await asyncio.wait_for(desk.scheduler.step(animals, {"x": x}, {}, caller=Caller()), PATIENT)
            assert not blocker.released.is_set()
            assert np.array_equal(answer.outputs["logits"][:, -1], animals.run_numpy(x)["logits"])

    asyncio.run(together())


def test_short_sequences_are_answered_while_every_runner_is_busy(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(dispatch, "INLINE_NS", 1e9)

    async def together() -> None:
        async with scheduling(inferences=1) as desk:
            first = await wait_for_all([submit(desk, animals, random_series(1))])
            async with desk.occupied(flow) as blocker:
                (again,) = await wait_for_all([submit(desk, animals, random_series(1))])
                assert not blocker.released.is_set()
            assert np.array_equal(first[0].outputs["logits"], again.outputs["logits"])

    asyncio.run(together())


@pytest.mark.parametrize("x", [random_series(33), random_series(1, 5_000)], ids=["more rows", "more steps"])
def test_what_was_short_for_others_is_not_taken_to_be_short_for_all(
    animals: ServedModel, flow: ServedModel, x: np.ndarray
) -> None:
    """On the event loop a long run could be neither ended nor overtaken."""

    async def together() -> None:
        async with scheduling(inferences=1) as desk:
            for _ in range(3):
                await wait_for_all([submit(desk, animals, random_series(1))])
            async with desk.occupied(flow):
                waiting = submit(desk, animals, x)
                await turns()
                assert desk.scheduler.pending == 2
            assert (await waiting).batch_rows == len(x)

    asyncio.run(together())


def test_a_run_that_failed_teaches_nothing(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "INLINE_NS", 1e9)
    # This model's states grow without end.
    x = random_series(1, 60_000)

    async def together() -> None:
        async with scheduling(inferences=1) as desk:
            with pytest.raises(InputError):
                await wait_for_all([submit(desk, animals, x)])
            async with desk.occupied(flow):
                waiting = submit(desk, animals, random_series(1))
                await turns()
                assert desk.scheduler.pending == 2
            await waiting

    asyncio.run(together())


def test_as_many_run_at_a_time_as_the_containers_quota_has_cpus(
    animals: ServedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text("300000 100000")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.setattr(dispatch, "available_cpus", partial(available_cpus, tmp_path))
    # A batch that has waited for long gets one thread more, which on a slow machine happens here, too.
    monkeypatch.setattr(dispatch, "WAIT_BUDGET_SECONDS", 2 * PATIENT)
    # Nobody passes before three are there.
    barrier = threading.Barrier(3, timeout=PATIENT)
    lock, running, most = threading.Lock(), 0, 0

    def count(stop: CancellationToken) -> BatchResult:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait()
        with lock:
            running -= 1
        return BatchResult({})

    async def together() -> None:
        async with scheduling() as desk:
            await wait_for_all([desk.scheduler.call(animals, count, 1, caller=Caller()) for _ in range(9)])

    asyncio.run(together())
    assert most == 3


@pytest.mark.parametrize("threads", [1, 3])
def test_a_run_has_the_threads_it_was_given_and_they_do_not_spin(published: Published, threads: int) -> None:
    def tasks() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    before = tasks() if os.path.isdir("/proc/self/task") else set()
    model = ServedModel.load(published.registry.get("animals:1"), "cpu", threads)
    model.run_numpy(random_series(64, 20))
    if before:
        # The calling thread is one of them; both graphs have their own.
        assert len(tasks() - before) <= 2 * (threads - 1)
    for graph in (model.sequence, model.step):
        options = graph.session.get_session_options()  # type: ignore[attr-defined]
        assert (options.intra_op_num_threads, options.inter_op_num_threads) == (threads, 1)
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
        assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
