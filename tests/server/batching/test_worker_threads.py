"""Worker threads: how many batches run at a time, on which CPUs, and which requests need none."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest

from scheduler_helpers import PATIENT, random_series, scheduling, submit, turns, wait_for_all
from server_helpers import Published
from stablernn_runtime import ServedModel
from stablernn_server.batching import dispatch
from stablernn_server.batching.types import Caller

pytestmark = pytest.mark.anyio


async def test_cheap_steps_are_answered_while_every_runner_is_busy(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(animals, "estimate_step_ns", lambda rows: 0.0)
    x = random_series(1, 5)

    async with scheduling(inferences=1) as desk, desk.occupied(flow) as blocker:
        answer = await asyncio.wait_for(desk.scheduler.step(animals, {"x": x}, {}, caller=Caller()), PATIENT)
        assert not blocker.released.is_set()
        assert np.array_equal(answer.outputs["logits"][:, -1], animals.run_numpy(x)["logits"])


async def test_short_sequences_are_answered_while_every_runner_is_busy(
    animals: ServedModel, flow: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(dispatch, "INLINE_NS", 1e9)

    async with scheduling(inferences=1) as desk:
        first = await wait_for_all([submit(desk, animals, random_series(1))])
        async with desk.occupied(flow) as blocker:
            (again,) = await wait_for_all([submit(desk, animals, random_series(1))])
            assert not blocker.released.is_set()
        assert np.array_equal(first[0].outputs["logits"], again.outputs["logits"])


@pytest.mark.parametrize("x", [random_series(33), random_series(1, 5_000)], ids=["more rows", "more steps"])
async def test_what_was_short_for_others_is_not_taken_to_be_short_for_all(
    animals: ServedModel, flow: ServedModel, x: np.ndarray
) -> None:
    """On the event loop a long run could be neither ended nor overtaken."""

    async with scheduling(inferences=1) as desk:
        for _ in range(3):
            await wait_for_all([submit(desk, animals, random_series(1))])
        async with desk.occupied(flow):
            waiting = submit(desk, animals, x)
            await turns()
            assert desk.scheduler.pending == 2
        assert (await waiting).batch_rows == len(x)


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
