"""Estimates of how long runs take, from made-up runs: no model and no thread."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stablernn_runtime.run_batch import BatchItem, BatchResult
from stablernn_server.batching import dispatch
from stablernn_server.batching.dispatch import CostModel
from stablernn_server.batching.job_queues import queue_key
from stablernn_server.batching.types import Batch, Caller, Job

MS = 1_000_000
"""Nanoseconds."""


class Model:
    """The part of a model that the cost model needs.

    Attributes:
        measured: Rows and nanoseconds of each step that was recorded.
    """

    def __init__(self, ref: str = "animals:1") -> None:
        self.ref = ref
        self.measured: list[tuple[int, float]] = []
        self.sequence = type("Graph", (), {"inputs": {"x": None, "lengths": None}})

    def record_step_ns(self, rows: int, nanoseconds: float) -> None:
        self.measured.append((rows, nanoseconds))

    def estimate_step_ns(self, rows: int) -> float:
        return 10.0 * rows


def job(model: Any, kind: Any = "sequence", rows: int = 1, time: int = 10) -> Job:
    future: Any = None
    made = Job(kind, model, BatchItem({}, rows, time, ()), Caller(), future, 0, 0)
    made.key = queue_key(made)
    return made


def ended(first: Job, milliseconds: float, count: int = 1, results: Any = None) -> Batch:
    """A batch of ``count`` equal jobs that has run for so long."""
    item = first.batch_item
    batch = Batch([first] * count, None, rows=count * item.rows, time_steps=item.time)
    batch.started_ns, batch.ended_ns = 5, 5 + round(milliseconds * MS)
    batch.results = [BatchResult({})] * count if results is None else results
    return batch


def test_nothing_is_known_before_the_first_run() -> None:
    costs, first = CostModel(), job(Model())
    assert costs.run_ns(first, 1, 10) == math.inf
    assert costs.batch_seconds(first.key, 0.5) == 0.5
    assert costs.retry_after_seconds(1000) == 1
    assert not costs.is_banned_from_loop("animals:1")


def test_sequences_are_averaged_by_version_and_size_class() -> None:
    costs, first = CostModel(), job(Model(), time=10)
    costs.record(ended(first, 20))
    assert costs.run_ns(first, 1, 10) == 20 * MS
    costs.record(ended(first, 30))
    # 0.8 of the average before and 0.2 of the last run, for each time step.
    assert costs.run_ns(first, 1, 5) == pytest.approx(11 * MS)
    assert costs.batch_seconds(first.key, 0.0) == pytest.approx(0.022)
    # Two rows and one, and two versions, say nothing about each other.
    assert costs.run_ns(first, 2, 10) == math.inf
    assert costs.run_ns(job(Model("flow:1")), 1, 10) == math.inf


def test_steps_are_averaged_by_their_model() -> None:
    costs, model = CostModel(), Model()
    first = job(model, "step", rows=3, time=4)
    costs.record(ended(first, 2))
    assert model.measured == [(3, 2 * MS / 4)]
    assert costs.run_ns(first, 3, 4) == 10.0 * 3 * 4


def test_a_run_that_failed_counts_for_the_throughput_alone() -> None:
    costs, first = CostModel(), job(Model())
    costs.record(ended(first, 20, count=2, results=[BatchResult({}), ValueError()]))
    assert costs.run_ns(first, 2, 10) == math.inf
    assert costs.batch_seconds(first.key, 0.0) == 0.0
    assert costs.requests_per_second == pytest.approx(100)


@pytest.mark.parametrize(("waiting", "seconds"), [(0, 1), (100, 1), (101, 2), (5_950, 60), (10**9, 60)])
def test_a_client_is_told_to_come_back_when_the_queue_will_be_done(waiting: int, seconds: int) -> None:
    costs = CostModel()
    costs.record(ended(job(Model()), 20, count=2))
    assert costs.retry_after_seconds(waiting) == seconds


def test_a_version_is_banned_from_the_event_loop_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: now)
    costs = CostModel()
    costs.ban_from_loop("animals:1")
    assert costs.is_banned_from_loop("animals:1")
    assert not costs.is_banned_from_loop("flow:1")
    now += dispatch.OFF_LOOP_SECONDS
    assert not costs.is_banned_from_loop("animals:1")
