"""Batches: which requests join one, and how long it waits for more."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path

import numpy as np
import pytest

from scheduler_helpers import PATIENT, Blocker, random_series, scheduling, submit, turns, until, wait_for_all
from server_helpers import Published
from stablernn_runtime import ServedModel
from stablernn_runtime.errors import OutOfMemoryError
from stablernn_server import NotReadyError
from stablernn_server.batching import dispatch
from stablernn_server.batching.types import Caller, InferenceResult

pytestmark = pytest.mark.anyio

MS = 1_000_000
"""Nanoseconds."""


@pytest.mark.parametrize(
    ("limit", "rows", "runs"),
    [
        (8, [3, 3, 3, 3, 2], {6: 1, 8: 1}),
        (4, [1] * 9, {4: 2, 1: 1}),
        (1, [1] * 5, {1: 5}),
        (1, [2, 1, 3], {2: 1, 1: 1, 3: 1}),
        (4, [1, 9, 1, 1], {1: 1, 9: 1, 2: 1}),
        (64, [1] * 64, {64: 1}),
        (64, [1] * 65, {64: 1, 1: 1}),
    ],
)
async def test_the_limit_counts_rows_and_a_larger_request_runs_alone(
    animals: ServedModel, limit: int, rows: list[int], runs: dict[int, int]
) -> None:
    requests = [random_series(count, 10, seed=seed) for seed, count in enumerate(rows)]

    async with scheduling(max_batch_size=limit, inferences=1) as desk:
        answers = await wait_for_all([submit(desk, animals, x) for x in requests])
        assert desk.sizes(animals) == runs
        for x, answer in zip(requests, answers, strict=True):
            assert np.array_equal(answer.outputs["logits"], animals.run_numpy(x)["logits"])


async def test_lengths_and_models_that_do_not_go_together_run_apart(animals: ServedModel, flow: ServedModel) -> None:
    async with scheduling(inferences=1) as desk:
        works = [submit(desk, animals, random_series(1, steps)) for steps in (8, 15, 16, 31, 7)]
        await wait_for_all([*works, submit(desk, flow, random_series(1, 8, 3))])
        assert (desk.sizes(animals), desk.sizes(flow)) == ({2: 2, 1: 1}, {1: 1})


async def test_a_padded_batch_stays_within_the_limit_of_numbers(animals: ServedModel) -> None:
    async with scheduling(inferences=1, max_elements=animals.count_elements(3, 15)) as desk:
        # Three of 15 steps fit; the others are padded to 15 as well.
        await wait_for_all([submit(desk, animals, random_series(1, steps)) for steps in (8, 15, 8, 8, 8, 8)])
        assert desk.sizes(animals) == {3: 2}


async def test_a_request_that_arrives_while_another_is_decoded_joins_it(animals: ServedModel) -> None:
    async with scheduling() as desk:
        first = submit(desk, animals, random_series())
        await asyncio.sleep(0)
        assert desk.scheduler.pending == 1
        await wait_for_all([first, submit(desk, animals, random_series())])
        assert desk.sizes(animals) == {2: 1}


async def test_a_batch_that_is_not_full_waits_for_the_whole_delay(animals: ServedModel) -> None:
    """Time that has passed is counted once: a later request does not bring the release forward."""

    async with scheduling(max_queue_delay_ms=500) as desk:
        works = [submit(desk, animals, random_series())]
        await turns()
        works.append(submit(desk, animals, random_series()))
        since = time.perf_counter()
        await until(lambda: time.perf_counter() - since > 0.3)
        works.append(submit(desk, animals, random_series()))
        answers = await wait_for_all(works)
        assert answers[0].queue_ns >= 500 * MS
        assert answers[0].batch_rows == answers[1].batch_rows >= 2


async def test_later_requests_do_not_put_the_release_off(animals: ServedModel) -> None:
    async with scheduling(max_queue_delay_ms=100, max_batch_size=10_000, max_queue=100_000) as desk:
        first = submit(desk, animals, random_series())
        others = []
        started = time.monotonic()
        while not first.done():
            assert time.monotonic() - started < PATIENT, "the first request was put off again and again"
            others.append(submit(desk, animals, random_series()))
            await asyncio.sleep(0.005)
        assert (await first).queue_ns >= 100 * MS
        await wait_for_all(others)


async def test_a_full_batch_goes_at_once_and_needs_no_further_request(animals: ServedModel) -> None:
    async with scheduling(max_queue_delay_ms=1000, max_batch_size=4, max_queue=4) as desk:
        works = [submit(desk, animals, random_series()) for _ in range(4)]
        await turns()
        # Four are the whole queue: a fifth gets in because they have left it.
        works.append(submit(desk, animals, random_series()))
        answers = await wait_for_all(works)
        assert [answer.batch_rows for answer in answers] == [4, 4, 4, 4, 1]
        assert answers[4].queue_ns >= 1000 * MS


async def test_requests_that_were_given_up_do_not_fill_a_batch(animals: ServedModel) -> None:
    async with scheduling(max_queue_delay_ms=300, max_batch_size=4) as desk:
        works = [submit(desk, animals, random_series()) for _ in range(3)]
        await turns()
        for work in works[1:]:
            work.cancel()
        works = [works[0], *(submit(desk, animals, random_series()) for _ in range(2))]
        answers = await wait_for_all(works)
        assert answers[0].queue_ns >= 300 * MS
        assert desk.sizes(animals) == {3: 1}


async def test_a_delay_that_passed_while_the_runner_was_busy_does_not_begin_again(
    animals: ServedModel, flow: ServedModel
) -> None:
    async with scheduling(max_queue_delay_ms=300, inferences=1, max_queue=1) as desk:
        async with desk.occupied(flow):
            work = submit(desk, animals, random_series())
            since = time.perf_counter()
            await until(lambda: time.perf_counter() - since > 0.4)
            assert desk.scheduler.pending == 2
        await turns()
        # It has left the queue of one, or this would be refused.
        other = submit(desk, animals, random_series())
        await wait_for_all([work, other])


async def test_a_scheduler_that_was_stopped_can_be_started_again(animals: ServedModel, flow: ServedModel) -> None:
    async with scheduling(inferences=1) as desk:
        blocker = Blocker()
        first = asyncio.create_task(desk.scheduler.call(flow, blocker, 1, caller=Caller()))
        await until(blocker.started.is_set)
        end = desk.scheduler.stop()
        desk.scheduler.start()
        with pytest.raises(NotReadyError):
            await asyncio.wait_for(first, PATIENT)
        await asyncio.to_thread(end)
        # On a thread that is there, and not on that of the run before.
        await wait_for_all([submit(desk, animals, random_series()), submit(desk, animals, random_series(steps=40))])


@pytest.mark.parametrize("inline_ns", [-math.inf, math.inf], ids=["on a thread", "on the event loop"])
async def test_answers_that_cannot_be_handed_out_fail_those_who_wait_for_them(
    animals: ServedModel, monkeypatch: pytest.MonkeyPatch, inline_ns: float
) -> None:
    monkeypatch.setattr(dispatch, "INLINE_NS", inline_ns)
    monkeypatch.setattr(dispatch, "INLINE_ALONE_NS", inline_ns)

    async with scheduling(inferences=1) as desk:
        with monkeypatch.context() as broken:
            broken.setattr(dispatch, "InferenceResult", lambda *given: 1 / 0)
            for work in [submit(desk, animals, random_series()), submit(desk, animals, random_series())]:
                with pytest.raises(ZeroDivisionError):
                    await asyncio.wait_for(work, PATIENT)
        await wait_for_all([submit(desk, animals, random_series())])
        assert desk.scheduler.pending == 0


HUNGRY = """
import json
import onnxruntime as ort

class Graph:
    def __init__(self, content):
        self.session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])

    def run(self, names, feeds):
        if len(next(iter(feeds.values()))) > 2:
            raise MemoryError
        return self.session.run(names, feeds)

class Engine:
    version, device, device_note = "hungry 1.0", "cpu", ""

    def __init__(self, folder, device):
        self.signature = json.loads((folder / "config.json").read_bytes())["signature"]
        self.sequence = Graph((folder / "sequence.onnx").read_bytes())
        self.step = Graph((folder / "step.onnx").read_bytes())

    def set_threads(self, count):
        pass
"""


async def test_requests_whose_batch_needs_too_much_memory_are_run_one_by_one(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    about = tmp_path / "hungry-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hungry\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[stablernn.engines]\nhungry = hungry_engine:Engine\n")
    (tmp_path / "hungry_engine.py").write_text(HUNGRY)
    monkeypatch.syspath_prepend(tmp_path)
    model = ServedModel.load(published.registry.get("animals:1"), "cpu", engine="hungry")
    requests = [random_series(rows, 10, seed=rows) for rows in (1, 2, 3, 1)]

    async with scheduling(inferences=1) as desk:
        works = [submit(desk, model, x) for x in requests]
        answers = await asyncio.gather(*works, return_exceptions=True)
        assert desk.sizes(model) == {7: 1}
        for x, answer in zip(requests, answers, strict=True):
            if len(x) == 3:
                assert isinstance(answer, OutOfMemoryError)
                assert str(answer) == (
                    "Model 'animals:1' has too little memory for 3 sequences of 10 time steps; one sequence of 10 "
                    "time steps fits: send fewer or shorter series at a time."
                )
            else:
                assert isinstance(answer, InferenceResult)
                assert np.array_equal(answer.outputs["logits"], model.run_numpy(x)["logits"])
    assert "a batch of 4 requests for model 'animals:1' failed, they are run one by one" in caplog.messages


@pytest.mark.parametrize("inline_ns", [-math.inf, dispatch.INLINE_NS], ids=["on threads", "as usual"])
def test_nothing_is_lost_when_requests_come_and_go(
    animals: ServedModel, monkeypatch: pytest.MonkeyPatch, inline_ns: float
) -> None:
    monkeypatch.setattr(dispatch, "INLINE_NS", inline_ns)
    monkeypatch.setattr(dispatch, "INLINE_ALONE_NS", inline_ns)
    random = np.random.default_rng(0)
    requests = [
        random_series(int(random.integers(1, 4)), int(random.integers(1, 40)), seed=seed) for seed in range(300)
    ]
    doomed = set(random.choice(300, 100, replace=False).tolist())

    async def together() -> list[InferenceResult | BaseException]:
        async with scheduling(max_batch_size=16) as desk:
            works = []
            for number, x in enumerate(requests):
                works.append(submit(desk, animals, x))
                if number - 3 in doomed:
                    works[number - 3].cancel()
                if random.random() < 0.3:
                    await asyncio.sleep(0)
            answers = await asyncio.wait_for(asyncio.gather(*works, return_exceptions=True), PATIENT)
            queues = desk.scheduler._queues
            assert (queues.jobs, queues.waiting, queues.by_key) == ({}, 0, {})
            return answers

    for number, (x, answer) in enumerate(zip(requests, asyncio.run(together()), strict=True)):
        if isinstance(answer, asyncio.CancelledError):
            assert number in doomed
        else:
            assert isinstance(answer, InferenceResult), answer
            assert np.array_equal(answer.outputs["logits"], animals.run_numpy(x)["logits"])
