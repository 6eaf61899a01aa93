"""Batches that are divided between threads which would be idle otherwise."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from scheduler_helpers import PATIENT, Desk, scheduling, until
from stablernn_runtime import ServedModel
from stablernn_runtime.run_batch import BatchItem
from stablernn_server import DeadlineError
from stablernn_server.batching import dispatch
from stablernn_server.batching.dispatch import PART_ROWS
from stablernn_server.batching.job_queues import divide
from stablernn_server.batching.types import Batch, Caller, InferenceResult, Job

pytestmark = pytest.mark.anyio

ROWS = 2 * PART_ROWS


@pytest.fixture(autouse=True)
def worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """On threads, and divided whatever it saves, apart from the trials of the other way."""
    monkeypatch.setattr(dispatch, "INLINE_NS", -1)
    monkeypatch.setattr(dispatch, "INLINE_ALONE_NS", -1)
    monkeypatch.setattr(dispatch, "DIVISION_GAIN_NS", -(10**12))
    monkeypatch.setattr(dispatch, "TRIAL_BATCHES", 10**9)


def series(seed: int, rows: int = 1, steps: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, steps, 1)).astype(np.float32)


async def run_together(
    desk: Desk, model: ServedModel, xs: list[np.ndarray], caller: Caller | None = None
) -> list[InferenceResult]:
    runs = [desk.scheduler.run(model, {"x": x}, caller=caller or Caller()) for x in xs]
    return await asyncio.wait_for(asyncio.gather(*runs), PATIENT)


async def test_a_batch_that_is_alone_is_divided_and_its_numbers_stay_the_same(animals: ServedModel) -> None:
    xs = [series(seed, steps=8 + seed % 8) for seed in range(ROWS)]

    async with scheduling(inferences=2) as desk:
        # How long it takes is not known yet.
        (first, *_) = await run_together(desk, animals, xs)
        assert (first.batch_rows, desk.sizes(animals)) == (ROWS, {ROWS: 1})
        for round in range(1, 4):
            results = await run_together(desk, animals, xs)
            assert {result.batch_rows for result in results} == {PART_ROWS}
            assert desk.sizes(animals) == {ROWS: 1, PART_ROWS: 2 * round}
            for x, result in zip(xs, results, strict=True):
                alone = animals.run_sequence(x)
                for name, value in result.outputs.items():
                    assert value.tobytes() == alone[name].tobytes()
        assert desk.scheduler._queues.jobs == {}


@pytest.mark.parametrize(
    ("settings", "count"),
    [({"inferences": 1}, ROWS), ({"inferences": 2, "workers": 2}, ROWS), ({"inferences": 2}, ROWS - 1)],
    ids=["one thread", "several processes", "too few sequences"],
)
async def test_a_batch_is_not_divided_where_that_saves_nothing(
    animals: ServedModel, settings: dict[str, Any], count: int
) -> None:
    async with scheduling(**settings) as desk:
        for _ in range(2):
            await run_together(desk, animals, [series(seed) for seed in range(count)])
        assert desk.sizes(animals) == {count: 2}


async def test_a_batch_is_not_divided_beside_other_work(animals: ServedModel, flow: ServedModel) -> None:
    async with scheduling(inferences=3) as desk:
        xs = [series(seed) for seed in range(ROWS)]
        await run_together(desk, animals, xs)
        async with desk.occupied(flow):
            await run_together(desk, animals, xs)
        assert desk.sizes(animals) == {ROWS: 2}


async def test_the_results_of_all_parts_come_together(animals: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    held, released = threading.Event(), threading.Event()
    execute = dispatch._execute

    def hold_first(batch: Batch) -> None:
        execute(batch)
        if batch.division is not None and batch is batch.division.parts[0]:
            held.set()
            assert released.wait(PATIENT)

    monkeypatch.setattr(dispatch, "_execute", hold_first)

    async with scheduling(inferences=2) as desk:
        xs = [series(seed) for seed in range(ROWS)]
        await run_together(desk, animals, xs)
        loop = asyncio.get_running_loop()
        callers = [Caller() for _ in xs]
        # One of the part that has ended gives up meanwhile.
        callers[-1].deadline = loop.time() + 0.2
        runs = [
            asyncio.create_task(desk.scheduler.run(animals, {"x": x}, caller=caller))
            for x, caller in zip(xs, callers, strict=True)
        ]
        try:
            await until(lambda: held.is_set() and runs[-1].done())
            assert [run.done() for run in runs] == [False] * (ROWS - 1) + [True]
        finally:
            released.set()
        *results, late = await asyncio.wait_for(asyncio.gather(*runs, return_exceptions=True), PATIENT)
        assert isinstance(late, DeadlineError)
        assert all(isinstance(result, InferenceResult) for result in results)
        assert desk.scheduler._queues.jobs == {}


@pytest.mark.parametrize(
    ("rows", "count", "expected"),
    [
        ([1] * 16, 2, [8, 8]),
        ([1] * 17, 2, [9, 8]),
        ([1] * 24, 3, [8, 8, 8]),
        ([16, 1], 2, [16, 1]),
        ([1, 16], 2, [17]),
        ([40], 4, [40]),
        ([5, 5, 5, 5], 2, [10, 10]),
    ],
)
async def test_parts_have_about_as_many_rows(
    animals: ServedModel, rows: list[int], count: int, expected: list[int]
) -> None:
    loop = asyncio.get_running_loop()
    batch = Batch([], None)
    for number, size in enumerate(rows):
        item = BatchItem({}, size, 1, ())
        batch.add(Job("sequence", animals, item, Caller(), loop.create_future(), 0, number))
    jobs = list(batch.jobs)
    division = divide(batch, count)
    assert [part.rows for part in division.parts] == expected
    assert [job for part in division.parts for job in part.jobs] == jobs
    assert all(job.batch is part for part in division.parts for job in part.jobs)
    assert all(part.division is division for part in division.parts)
    assert division.running == len(expected)
