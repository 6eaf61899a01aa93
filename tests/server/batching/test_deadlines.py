"""Deadlines of many jobs, which share one timer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stablernn_server import DeadlineError
from stablernn_server.batching.scheduler import Deadlines
from stablernn_server.batching.types import Job

pytestmark = pytest.mark.anyio


async def test_each_job_fails_at_its_deadline_and_no_other() -> None:
    loop = asyncio.get_running_loop()
    jobs: dict[int, Job] = {}
    deadlines = Deadlines(jobs)
    begin = loop.time()

    def add(seconds: float | None) -> asyncio.Future[Any]:
        deadline = None if seconds is None else begin + seconds
        future: asyncio.Future[Any] = loop.create_future()
        caller = SimpleNamespace(deadline=deadline)
        jobs[len(jobs)] = cast("Job", SimpleNamespace(future=future, caller=caller))
        if deadline is not None:
            deadlines.add(deadline, loop)
        return future

    # The timer has to be brought forward for the second, and set again for the others.
    late, early, never, between = add(60.0), add(0.05), add(None), add(0.15)
    done = add(0.05)
    done.set_result(1)
    with pytest.raises(DeadlineError):
        await asyncio.wait_for(early, 10)
    assert 0.04 <= loop.time() - begin < 10
    assert not between.done() or loop.time() - begin >= 0.14
    with pytest.raises(DeadlineError):
        await asyncio.wait_for(between, 10)
    assert loop.time() - begin >= 0.14
    passed = add(-1.0)
    with pytest.raises(DeadlineError):
        await asyncio.wait_for(passed, 10)
    assert not late.done()
    assert not never.done()
    assert done.result() == 1
    deadlines.stop()
    assert deadlines._timer is None
