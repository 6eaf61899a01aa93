"""A scheduler on an event loop of its own, and work that keeps its worker threads busy for as long as a test says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pytest

from server_helpers import Running
from stablernn_runtime import ServedModel
from stablernn_runtime.graph import CancellationToken
from stablernn_runtime.run_batch import BatchResult
from stablernn_server import NotReadyError, Settings
from stablernn_server.batching import dispatch
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import Caller, InferenceResult
from stablernn_server.observability.telemetry import Telemetry

T = TypeVar("T")
PATIENT = 30.0
"""Seconds after which a test gives up what should have come about at once."""


class Blocker:
    """Work for :meth:`Scheduler.call` that goes on until it is released, or stopped.

    Attributes:
        started: Set when a worker thread has begun with it.
        released: To be set when it may end.
        is_stopped: Whether the scheduler ended it.
    """

    def __init__(self) -> None:
        self.started = threading.Event()
        self.released = threading.Event()
        self.is_stopped = False

    def __call__(self, stop: CancellationToken) -> BatchResult:
        self.started.set()
        while not self.released.wait(0.002):
            if stop.is_set:
                self.is_stopped = True
                raise NotReadyError("The blocker was ended.")
        return BatchResult({})


@dataclass
class Desk:
    """A scheduler that runs, and what it counts."""

    scheduler: Scheduler
    telemetry: Telemetry

    def executions(self, model: ServedModel) -> int:
        """Runs so far."""
        return self.telemetry.statistics.by_version(model.name, model.version).executions

    def sizes(self, model: ServedModel) -> dict[int, int]:
        """Return the number of runs by their number of rows."""
        return {
            size: count
            for size, (count, _) in self.telemetry.statistics.by_version(model.name, model.version).sizes.items()
        }

    @asynccontextmanager
    async def occupied(self, model: ServedModel) -> AsyncIterator[Blocker]:
        """One worker thread is busy for this block; it counts as a run of ``model``."""
        blocker = Blocker()
        task = asyncio.create_task(self.scheduler.call(model, blocker, 1, caller=Caller()))
        try:
            await until(blocker.started.is_set)
            yield blocker
        finally:
            blocker.released.set()
        await asyncio.wait_for(task, PATIENT)


class BeginRecorder:
    """The order in which runs begin, by their first requests.

    Two runs at a time may end in any order: what the scheduler promises is the order in which they begin.

    Attributes:
        priorities: Of the runs that have begun, oldest first.
        numbers: Of the same requests, in the order that they came to the scheduler.
        threads_may_begin: Cleared while worker threads are to wait before they begin, as on a machine whose CPUs are
            busy; runs on the event loop are not held up.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.priorities: list[int] = []
        self.numbers: list[int] = []
        self.threads_may_begin = threading.Event()
        self.threads_may_begin.set()
        self._execute = dispatch._execute
        # Schedulers that are created from now on hand this to their threads.
        monkeypatch.setattr(dispatch, "_execute", self._record)

    def _record(self, batch: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert self.threads_may_begin.wait(PATIENT)
        self.priorities.append(batch.jobs[0].caller.priority)
        self.numbers.append(batch.jobs[0].number)
        self._execute(batch)


@asynccontextmanager
async def scheduling(**settings: Any) -> AsyncIterator[Desk]:
    """A scheduler for this block."""
    options = Settings(**settings)
    telemetry = Telemetry(options)
    scheduler = Scheduler(options, telemetry)
    scheduler.start()
    try:
        yield Desk(scheduler, telemetry)
    finally:
        scheduler.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop go on until ``condition`` holds."""
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.001)


async def turns(count: int = 5) -> None:
    """Let the event loop go round a few times: enough for whatever can be done at once."""
    for _ in range(count):
        await asyncio.sleep(0)


def wait(condition: Callable[[], bool]) -> None:
    """As :func:`until`, for what another thread does."""
    deadline = time.monotonic() + PATIENT
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.002)


def on_loop(server: Running, function: Callable[[], T]) -> T:
    """Return the result of ``function``, called on the event loop of a server."""

    async def call() -> T:
        return function()

    loop = server.app.state.context.scheduler._loop
    return asyncio.run_coroutine_threadsafe(call(), loop).result(PATIENT)


@contextmanager
def busy(server: Running, model: str = "flow") -> Iterator[Blocker]:
    """The only worker thread of a server on a port is busy for this block; it counts as a run of ``model``.

    What was measured is forgotten: short runs need no worker thread.
    """
    context, blocker = server.app.state.context, Blocker()
    loop = context.scheduler._loop

    async def block() -> InferenceResult:
        answer: InferenceResult = await context.scheduler.call(
            await context.models.find_open(model), blocker, 1, caller=Caller()
        )
        return answer

    on_loop(server, context.scheduler._costs._sequence_step_ns.clear)
    running: Future[InferenceResult] = asyncio.run_coroutine_threadsafe(block(), loop)
    try:
        wait(blocker.started.is_set)
        yield blocker
    finally:
        blocker.released.set()
    running.result(PATIENT)


def random_series(rows: int = 1, steps: int = 10, features: int = 1, seed: int = 0) -> np.ndarray:
    """Sequences of normal numbers, ``(rows, steps, features)``."""
    return np.random.default_rng(seed).normal(size=(rows, steps, features)).astype(np.float32)


def submit(desk: Desk, model: ServedModel, x: np.ndarray, priority: int = 100) -> asyncio.Task[InferenceResult]:
    """Begin a request, as a task."""
    return asyncio.create_task(desk.scheduler.run(model, {"x": x}, caller=Caller(priority=priority)))


def wait_for_all(tasks: Sequence[Awaitable[InferenceResult]]) -> Awaitable[list[InferenceResult]]:
    return asyncio.wait_for(asyncio.gather(*tasks), PATIENT)
