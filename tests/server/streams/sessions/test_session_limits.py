"""Bounds of sessions: idle ones, requests that wait, large requests, draining, several processes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import httpx
import numpy as np
import pytest

from scheduler_helpers import PATIENT, on_loop, scheduling, wait
from server_helpers import Published, Running
from session_helpers import assert_refused, opened, step
from stablernn_runtime import ServedModel
from stablernn_server import Settings
from stablernn_server.batching.types import Caller
from stablernn_server.errors import ServerError
from stablernn_server.handlers.stream_steps import advance_stream
from stablernn_server.http.app_context import UNFINISHED
from stablernn_server.schemas.sessions import Samples
from stablernn_server.streams.stream import Stream
from stream_helpers import X, assert_same_bits, offline, plain, samples, serving, stacked

pytestmark = pytest.mark.anyio


def test_idle_sessions_expire(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",), session_ttl_seconds=0.5):
        with httpx.Client(base_url=running.url) as client:
            used, idle = opened(client), opened(client)
            for _ in range(6):
                time.sleep(0.15)
                assert step(client, used).status_code == 200
                client.get(f"/v1/sessions/{idle}")  # to look at it does not keep it
            assert assert_refused(step(client, idle), 404, "unknown_session") == (
                f"The session '{idle}' expired after 0.5 s without a request; begin a new one with POST /v1/sessions, "
                "with a state_token if you have one."
            )


def test_the_longest_idle_session_gives_way(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",), max_sessions=3):
        with httpx.Client(base_url=running.url) as client:
            first, second, third = (opened(client) for _ in range(3))
            step(client, first)
            fourth = opened(client)
            sentence = assert_refused(step(client, second), 404, "unknown_session")
            assert sentence.startswith(f"The session '{second}' was evicted for a newer one, at most 3 are kept;")
            for session in (first, third, fourth):
                assert step(client, session).status_code == 200


def test_sessions_that_never_were(client: httpx.Client) -> None:
    assert assert_refused(step(client, "nobody"), 404, "unknown_session") == (
        "Unknown session 'nobody': this server process has not opened it; begin a new one with POST "
        "/v1/sessions, with a state_token if you have one."
    )


def test_requests_of_one_session_wait_for_their_turn(running: Running, classes: ServedModel) -> None:
    """Many at a time: each takes its sample once, and together they are the sequence in some order."""
    x = samples(classes, 12)
    with httpx.Client(base_url=running.url) as client:
        session = opened(client)
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda one: (one, step(client, session, plain(one)).json()), list(x)))
    ordered = sorted(answers, key=lambda pair: pair[1]["step"])
    assert [answer["step"] for _, answer in ordered] == list(range(1, 13))
    assert_same_bits(
        stacked([answer["outputs"][0] for _, answer in ordered]),
        offline(classes, np.stack([one for one, _ in ordered])),
    )


@contextmanager
def held(server: Running, session: str) -> Iterator[None]:
    """A request of a session is worked on for this block."""
    context = server.app.state.context
    began, released = threading.Event(), threading.Event()

    async def hold() -> None:
        async with context.sessions.hold(session, Caller()):
            began.set()
            await asyncio.to_thread(released.wait)

    holding = asyncio.run_coroutine_threadsafe(hold(), context.scheduler._loop)
    assert began.wait(PATIENT)
    try:
        yield
    finally:
        released.set()
    holding.result(PATIENT)


def wait_for(server: Running, session: str, count: int) -> None:
    """Until so many requests wait for their turn."""
    queues = server.app.state.context.sessions._cache.locks._queues
    wait(lambda: on_loop(server, lambda: len(queues.get(session, ()))) == count)


def test_a_turn_is_waited_for_no_longer_than_a_request_may_take(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",), request_timeout_seconds=0.2):
        with httpx.Client(base_url=running.url, timeout=PATIENT) as client:
            session = opened(client)
            with held(running, session):
                sentence = assert_refused(step(client, session), 504, "deadline")
                assert sentence == (
                    "The deadline passed while other requests of this session were processed; give more time, or wait "
                    "for their answers first."
                )
                assert_refused(client.delete(f"/v1/sessions/{session}"), 504, "deadline")
            assert step(client, session).json()["step"] == 1


def test_draining_ends_an_end_that_waits_for_its_turn(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",)):
        with httpx.Client(base_url=running.url, timeout=PATIENT) as client, ThreadPoolExecutor(1) as pool:
            session, context = opened(client), running.app.state.context
            with held(running, session):
                end = pool.submit(client.delete, f"/v1/sessions/{session}")
                wait_for(running, session, 1)
                on_loop(running, partial(context.drain, 0.1))
                assert assert_refused(end.result(PATIENT), 503, "not_ready") == UNFINISHED


def test_clients_that_leave_take_no_place_and_no_step(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",), max_session_queue=2):
        with httpx.Client(base_url=running.url, timeout=PATIENT) as client:
            session = opened(client)
            with held(running, session):
                body = b'{"values":[1,2]}'
                lines = [
                    f"POST /v1/sessions/{session}/step HTTP/1.1",
                    "host: 127.0.0.1",
                    f"content-length: {len(body)}",
                    "",
                    "",
                ]
                leaving = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(2)]
                for connection in leaving:
                    connection.sendall("\r\n".join(lines).encode() + body)
                wait_for(running, session, 2)
                assert_refused(step(client, session), 429, "too_many")
                for connection in leaving:
                    connection.close()
                wait_for(running, session, 0)
            assert step(client, session).json()["step"] == 1


def test_a_session_keeps_its_last_outputs_alone(running: Running, client: httpx.Client, classes: ServedModel) -> None:
    session = opened(client)
    found = step(client, session, plain(samples(classes, 700))).json()
    assert len(found["outputs"]) == 700
    assert_same_bits(stacked(found["outputs"]), offline(classes, samples(classes, 700)))
    kept = on_loop(running, lambda: running.app.state.context.sessions.peek(session))
    for value in (*kept.last_outputs.values(), *kept.stream.states.values()):
        if isinstance(value, np.ndarray):
            assert value.base is None
            assert value.nbytes < 1000


async def test_the_work_of_a_step_is_told(stream_models: Published) -> None:
    """Of a roll-out, that of all its runs."""
    fed = ServedModel.load(stream_models.registry.get("fed"), "cpu")

    async with scheduling() as desk:
        samples_ = Samples(values=[1.0, 2.0, 3.0])
        one = await advance_stream(desk.scheduler, Stream(fed), samples_, Settings(), Caller())
        far = await advance_stream(
            desk.scheduler, Stream(fed), samples_.model_copy(update={"horizon": 4}), Settings(), Caller()
        )
        for stepped in (one, far):
            assert stepped.inference.queue_ns > 0
            assert stepped.inference.compute_ns > 0
            assert stepped.inference.batch_rows == 1
        assert desk.executions(fed) == 5


@pytest.mark.parametrize("what", ["times", "values", "size"])
async def test_large_requests_are_checked_beside_the_event_loop(stream_models: Published, what: str) -> None:
    """Others go on while a request that is refused in the end is looked through."""
    deep = ServedModel.load(stream_models.registry.get("deep"), "cpu")
    x = [[1.0, 2.0, 3.0]] * 50_000
    request = {
        "times": Samples(values=x, time=[*map(float, range(49_999)), 1.0]),
        "values": Samples(values=[*x[:-1], [1.0, 2.0, 1e39]]),
        "size": Samples(values=[1.0, 2.0, 3.0], time=[1.0, "soon"]),
    }[what]

    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with scheduling() as desk:
        going_on = asyncio.create_task(others())
        with pytest.raises(ServerError):
            await advance_stream(
                desk.scheduler, Stream(deep), request, Settings(), Caller(), size=2**20 if what == "size" else 0
            )
        going_on.cancel()
        assert turns > 0


def test_too_many_samples_are_counted_before_they_are_read(client: httpx.Client) -> None:
    answer = step(client, opened(client), [X] * 5000 + [["no", "numbers"]])
    assert (
        assert_refused(answer, 413, "too_large")
        == "5001 samples at a time are more than the limit of 1000; send fewer."
    )


def test_several_processes_keep_no_sessions(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",), workers=2):
        with httpx.Client(base_url=running.url) as client:
            for answer in (
                client.post("/v1/sessions", json={"model": "classes"}),
                step(client, "any"),
                client.get("/v1/sessions/any"),
                client.delete("/v1/sessions/any"),
            ):
                assert assert_refused(answer, 409, "one_process_only") == (
                    "Sessions are kept by one process, and 2 share this port. Use state tokens (POST /v1/step) or a "
                    "WebSocket (/v1/stream), or serve with one worker."
                )
            assert client.post("/v1/step", json={"model": "classes", "values": X}).status_code == 200
