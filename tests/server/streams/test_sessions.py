"""Streams over plain HTTP: sessions that the server keeps, and tokens that clients keep, behind a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

from scheduler_helpers import PATIENT, on_loop, scheduling, wait
from server_helpers import Published, Running, serve
from stablernn_runtime import ServedModel
from stablernn_runtime.state_token import StateTokens
from stablernn_server import Settings, create_app
from stablernn_server.batching.types import Caller
from stablernn_server.errors import ServerError
from stablernn_server.handlers.stream_steps import advance_stream
from stablernn_server.http.app_context import UNFINISHED
from stablernn_server.schemas.sessions import Samples
from stablernn_server.streams.stream import Stream
from stream_helpers import LETTERS, STATE_KEY, assert_same_bits, offline, plain, publish, samples, stacked

X = [1.0, 2.0]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def classes(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("classes"), "cpu")


def serving(published: Published, **settings: Any) -> Iterator[Running]:
    return serve(create_app(Settings(registry=published.root, state_key=STATE_KEY, **settings)))


@pytest.fixture(scope="module")
def running(published: Published) -> Iterator[Running]:
    yield from serving(published, max_steps=1000)


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url) as client:
        yield client


def opened(client: httpx.Client, model: str = "classes", **body: Any) -> str:
    answer = client.post("/v1/sessions", json={"model": model, **body})
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["session_id"]
    return found


def step(client: httpx.Client, session: str, values: Any = X, **body: Any) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/step", json={"values": values, **body})


def assert_refused(answer: httpx.Response, status: int, code: str) -> str:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    found: str = answer.json()["error"]
    return found


# A session's life.


def test_a_session_from_its_beginning_to_its_end(client: httpx.Client) -> None:
    begun = client.post("/v1/sessions", json={"model": "classes"}).json()
    session = begun.pop("session_id")
    assert begun.pop("digest").startswith("sha256:")
    assert 599 < begun.pop("expires_in_seconds") <= 600
    about = {"model": "classes", "model_version": "1", "sample_shape": [2], "outputs": ["logits", "probabilities"]}
    assert begun == {**about, "step": 0}
    answer = step(client, session, [[1, None], [2.5, 3], [None, None]], sequence=1).json()
    assert (answer["session_id"], answer["model"], answer["model_version"], answer["step"]) == (
        session,
        "classes",
        "1",
        3,
    )
    for found in answer["outputs"]:
        assert found["label"] == ["x", "y", "z"][int(np.argmax(found["probabilities"]))]
    assert "state_token" not in answer
    shown = client.get(f"/v1/sessions/{session}").json()
    assert shown["step"] == 3
    assert shown["last"] == answer["outputs"][-1]
    assert 0 <= shown["idle_seconds"] <= shown["age_seconds"] < 60
    closed = client.delete(f"/v1/sessions/{session}")
    assert closed.json() == {"session_id": session, "step": 3, "closed": True}
    for answer in (
        step(client, session),
        client.get(f"/v1/sessions/{session}"),
        client.delete(f"/v1/sessions/{session}"),
    ):
        assert assert_refused(answer, 404, "unknown_session") == (
            f"The session '{session}' was closed; begin a new one with POST /v1/sessions, with a state_token if you "
            "have one."
        )


def test_a_session_shows_its_states_against_their_balls(client: httpx.Client, classes: ServedModel) -> None:
    session = opened(client)
    x = samples(classes, 4)
    step(client, session, plain(x))
    states = {state["state"]: state for state in client.get(f"/v1/sessions/{session}").json()["states"]}
    whole = classes.next_state(classes.run_sequence(x[None]))
    assert states.keys() == whole.keys()
    balls = classes.guard.balls
    assert balls
    for name, value in whole.items():
        shown = states[name]
        if name in balls:
            assert shown["radius"] == balls[name].radius
            assert shown["ratio"] == shown["size"] / shown["radius"] <= 1
            assert shown["size"] == pytest.approx(float(balls[name].distances(value)[0]))
        else:
            assert (shown["radius"], shown["ratio"]) == (None, None)
            assert shown["size"] == pytest.approx(float(np.linalg.norm(value)))


def test_a_session_goes_on_from_a_token(client: httpx.Client, classes: ServedModel) -> None:
    x = samples(classes, 5)
    first = opened(client)
    step(client, first, plain(x[:2]))
    token = client.get(f"/v1/sessions/{first}", params={"token": "true"}).json()["state_token"]
    asked = step(client, first, plain(x[2:]), token=True).json()
    begun = client.post("/v1/sessions", json={"state_token": token}).json()
    assert begun["step"] == 2
    answer = step(client, begun["session_id"], plain(x[2:]), sequence=3).json()
    assert answer["outputs"] == asked["outputs"]
    assert_same_bits(stacked(answer["outputs"]), {name: value[2:] for name, value in offline(classes, x).items()})
    goes_on = client.post("/v1/step", json={"state_token": asked["state_token"], "values": X}).json()
    assert goes_on["step"] == 6


# Numbers of samples.


def test_what_was_taken_is_not_taken_again(client: httpx.Client) -> None:
    session = opened(client)
    first = step(client, session, sequence=1).json()
    assert assert_refused(step(client, session, sequence=1), 409, "duplicate_step") == (
        "The stream has taken 1 samples, sample 1 among them; it was not taken again. Continue with sequence 2."
    )
    assert assert_refused(step(client, session, sequence=4), 409, "skipped_step") == (
        "The stream has taken 1 samples, so sequence must be 2, got 4: send the samples between first, with null "
        "values where there are none."
    )
    shown = client.get(f"/v1/sessions/{session}").json()
    assert (shown["step"], shown["last"]) == (1, first["outputs"][0])
    assert step(client, session, sequence=2).json()["step"] == 2


def test_a_token_knows_its_number_too(client: httpx.Client) -> None:
    token = client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"]
    body = {"state_token": token, "values": X}
    assert_refused(client.post("/v1/step", json={**body, "sequence": 1}), 409, "duplicate_step")
    assert client.post("/v1/step", json={**body, "sequence": 2}).json()["step"] == 2


def test_what_fails_leaves_the_stream_where_it_was(client: httpx.Client) -> None:
    session = opened(client)
    step(client, session)
    expected = step(client, opened(client), [X, X]).json()["outputs"][1]
    assert "infinite" in assert_refused(step(client, session, [3e38, 1e39]), 400, "bad_input")
    assert step(client, session).json()["outputs"][0] == expected


# Bounds.


def test_idle_sessions_expire(published: Published) -> None:
    for running in serving(published, models=("classes",), session_ttl_seconds=0.5):
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


def test_the_longest_idle_session_gives_way(published: Published) -> None:
    for running in serving(published, models=("classes",), max_sessions=3):
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


def test_too_many_may_not_wait(published: Published) -> None:
    """One request is long, one may wait for it; the others are told so at once."""
    for running in serving(published, models=("deep",), max_session_queue=1):
        with httpx.Client(base_url=running.url, timeout=60) as client:
            session = opened(client, "deep")
            long = [[1.0, 2.0, 3.0]] * 60_000
            with ThreadPoolExecutor(8) as pool:
                first = pool.submit(step, client, session, long, every=False)
                while client.get(f"/v1/sessions/{session}").json()["idle_seconds"] > 0 and not first.done():
                    time.sleep(0.005)
                rest = [pool.submit(step, client, session, [1.0, 2.0, 3.0]) for _ in range(6)]
                answers = [future.result() for future in rest]
            assert first.result().json()["step"] == 60_000
            taken = sorted(answer.json()["step"] for answer in answers if answer.status_code == 200)
            assert taken == list(range(60_001, 60_001 + len(taken)))
            turned_away = [answer for answer in answers if answer.status_code != 200]
            assert turned_away
            for answer in turned_away:
                assert assert_refused(answer, 429, "too_many") == (
                    "1 requests of this session are already waiting, its limit; wait for their answers, or "
                    "send several samples in one request."
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


def test_a_turn_is_waited_for_no_longer_than_a_request_may_take(published: Published) -> None:
    for running in serving(published, models=("classes",), request_timeout_seconds=0.2):
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


def test_draining_ends_an_end_that_waits_for_its_turn(published: Published) -> None:
    for running in serving(published, models=("classes",)):
        with httpx.Client(base_url=running.url, timeout=PATIENT) as client, ThreadPoolExecutor(1) as pool:
            session, context = opened(client), running.app.state.context
            with held(running, session):
                end = pool.submit(client.delete, f"/v1/sessions/{session}")
                wait_for(running, session, 1)
                on_loop(running, partial(context.drain, 0.1))
                assert assert_refused(end.result(PATIENT), 503, "not_ready") == UNFINISHED


def test_clients_that_leave_take_no_place_and_no_step(published: Published) -> None:
    for running in serving(published, models=("classes",), max_session_queue=2):
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


def test_the_log_says_how_long_steps_waited(published: Published, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stablernn_server.access"):
        for running in serving(published, models=("classes",), access_log="json"):
            with httpx.Client(base_url=running.url) as client:
                assert step(client, opened(client)).status_code == 200
                assert client.post("/v1/step", json={"model": "classes", "values": X}).status_code == 200
                wait(lambda: sum("/step" in record.message for record in caplog.records) == 2)
    lines = [json.loads(record.message) for record in caplog.records if "/step" in record.message]
    for line in lines:
        assert line["rows"] == 1
        assert line["queue_ms"] > 0


def test_the_work_of_a_step_is_told(published: Published) -> None:
    """Of a roll-out, that of all its runs."""
    fed = ServedModel.load(published.registry.get("fed"), "cpu")

    async def check() -> None:
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

    asyncio.run(check())


@pytest.mark.parametrize("what", ["times", "values", "size"])
def test_large_requests_are_checked_beside_the_event_loop(published: Published, what: str) -> None:
    """Others go on while a request that is refused in the end is looked through."""
    deep = ServedModel.load(published.registry.get("deep"), "cpu")
    x = [[1.0, 2.0, 3.0]] * 50_000
    request = {
        "times": Samples(values=x, time=[*map(float, range(49_999)), 1.0]),
        "values": Samples(values=[*x[:-1], [1.0, 2.0, 1e39]]),
        "size": Samples(values=[1.0, 2.0, 3.0], time=[1.0, "soon"]),
    }[what]

    async def check() -> None:
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

    asyncio.run(check())


def test_too_many_samples_are_counted_before_they_are_read(client: httpx.Client) -> None:
    answer = step(client, opened(client), [X] * 5000 + [["no", "numbers"]])
    assert (
        assert_refused(answer, 413, "too_large")
        == "5001 samples at a time are more than the limit of 1000; send fewer."
    )


def test_several_processes_keep_no_sessions(published: Published) -> None:
    for running in serving(published, models=("classes",), workers=2):
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


# Tokens.


def test_a_token_that_is_not_ours(client: httpx.Client) -> None:
    token = client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"]
    place = len(token) // 2
    changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
    for given in (changed, "", "not a token"):
        assert_refused(client.post("/v1/step", json={"state_token": given, "values": X}), 400, "bad_token")
        assert_refused(client.post("/v1/sessions", json={"state_token": given}), 400, "bad_token")


def test_a_token_that_has_expired(published: Published) -> None:
    for running in serving(published, models=("classes",), token_ttl_seconds=0.001):
        with httpx.Client(base_url=running.url) as client:
            token = client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"]
            time.sleep(2)
            assert_refused(client.post("/v1/step", json={"state_token": token, "values": X}), 400, "expired_token")


def test_a_token_of_a_version_that_is_gone(running: Running, client: httpx.Client) -> None:
    tokens: StateTokens = running.app.state.context.state_keys
    held = tokens.read(client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"])
    other = tokens.issue(type(held)("classes:1", "sha256:" + "00" * 32, 1, held.clock, held.static, held.states))
    assert_refused(client.post("/v1/step", json={"state_token": other, "values": X}), 409, "version_gone")


def test_a_token_of_another_model(client: httpx.Client) -> None:
    token = client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"]
    answer = client.post("/v1/step", json={"state_token": token, "model": "deep", "values": X})
    assert assert_refused(answer, 409, "other_model") == (
        "The state token is of 'classes:1', the request names 'deep'; leave model out, or begin a new stream "
        "without the token."
    )
    assert client.post("/v1/step", json={"state_token": token, "model": "classes", "values": X}).status_code == 200


# Times.


@pytest.mark.parametrize(
    ("first", "then", "code", "sentence"),
    [
        (
            "2024-01-31",
            "2024-02-03",
            "missing_steps",
            "The time '2024-02-03' lies 3 regular steps after '2024-01-31': 2 steps are missing. Send null values for "
            "each of them first, or the model takes the times that follow for earlier ones.",
        ),
        (
            4,
            6,
            "missing_steps",
            "The time 6 lies 2 regular steps after 4: 1 step is missing. Send null values for each of them first, or "
            "the model takes the times that follow for earlier ones.",
        ),
        (
            "2024-01-31T06:00:00Z",
            "2024-01-31T06:00:00+00:00",
            "time_order",
            "The time '2024-01-31T06:00:00+00:00' does not lie after '2024-01-31T06:00:00Z', the time of the reading "
            "before it; samples must come in the order of their times, each time once.",
        ),
        (
            7.5,
            7,
            "time_order",
            "The time 7 does not lie after 7.5, the time of the reading before it; samples must come in the order of "
            "their times, each time once.",
        ),
        (
            "2024-01-31",
            "2024-02-01T12:00",
            "time_order",
            "The time '2024-02-01T12:00' lies on none of the model's regular steps of 'D' after '2024-01-31'. Give the "
            "times of regular steps, with null values where there is none.",
        ),
    ],
)
def test_regular_steps_follow_each_other(client: httpx.Client, first: Any, then: Any, code: str, sentence: str) -> None:
    session, x = opened(client, "deep"), [1.0, 2.0, 3.0]
    assert step(client, session, x, time=first).status_code == 200
    assert assert_refused(step(client, session, x, time=then), 409, code) == sentence
    after = 8.5 if first == 7.5 else 5 if first == 4 else str(first).replace("01-31", "02-01")
    assert step(client, session, x, time=after).json()["step"] == 2
    assert step(client, session, [x, x]).json()["step"] == 4


def test_irregular_times_go_forward(client: httpx.Client) -> None:
    session = opened(client, "timed")
    assert step(client, session, [1.0], time="2024-01-31T06:00:00").status_code == 200
    for again in ("2024-01-31T06:00:00", "2024-01-31T05:00:00"):
        assert_refused(step(client, session, [1.0], time=again), 409, "time_order")
    assert "dt must be at most 4" in assert_refused(step(client, session, [1.0], time="2024-02-01"), 400, "bad_input")
    assert "all ISO 8601 or all numbers" in assert_refused(step(client, session, [1.0], time=3), 400, "bad_input")
    assert step(client, session, [1.0], dt=2).status_code == 200
    assert_refused(step(client, session, [1.0], time="2024-01-31T08:00:00"), 409, "time_order")
    assert step(client, session, [1.0], time="2024-01-31T08:30:00").status_code == 200


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no values": ("classes", {}, "values is missing: give one sample, [2], or an array of samples."),
    "features": (
        "classes",
        {"values": [1, 2, 3]},
        "values must be one sample of the shape [2] (l, r) for model 'classes:1', or an array of several, one level "
        "more; got the shape [3].",
    ),
    "empty": (
        "classes",
        {"values": []},
        "values must be one sample of the shape [2] (l, r) for model 'classes:1', or an array of several, one level "
        "more; got the shape [0].",
    ),
    "half a stride": (
        "patched",
        {"values": [[1, 2], [3, 4]]},
        "values must be one sample of the shape [3, 2] (l, r) for model 'patched:1', or an array of several, one level "
        "more; got the shape [2, 2].",
    ),
    "a number": ("classes", {"values": 3}, "values must be an array of numbers, got a number."),
    "text": (
        "classes",
        {"values": ["a", "b"]},
        "values holds text; only numbers, and null or NaN for missing values, are allowed.",
    ),
    "half a token": (
        "text",
        {"values": 1.5},
        "values must be integers, the indices of tokens in the vocabulary, without a decimal point.",
    ),
    "beyond": (
        "text",
        {"values": len(LETTERS)},
        "tokens must be from 0 to 4, their places in the vocabulary of model 'text:1', got 5 at (0,).",
    ),
    "misspelled": (
        "classes",
        {"values": X, "sequnce": 1},
        "the body: unknown field 'sequnce'. Did you mean 'sequence'? Known fields: values, time, dt, sequence, future, "
        "every, token, horizon.",
    ),
    "dt of regular steps": (
        "classes",
        {"values": X, "dt": 1},
        "dt: the model 'classes' was trained on regular steps and takes no dt; leave it out.",
    ),
    "dt and time": (
        "timed",
        {"values": [1], "dt": 1, "time": 3},
        "time and dt are both given; leave one of them out.",
    ),
    "too few dt": (
        "timed",
        {"values": [[1], [2]], "dt": [1]},
        "dt must hold a number for each sample, in the shape [2], got the shape [1].",
    ),
    "missing dt": (
        "timed",
        {"values": [1], "dt": [None]},
        "dt must hold finite numbers, the time since the reading before; none can be missing.",
    ),
    "no calendar": (
        "classes",
        {"values": X, "time": "2024-01-31"},
        "The time '2024-01-31' cannot be counted in steps: the model was trained without a frequency of the calendar. "
        "Give time as a number of regular steps, or dt where the model takes it.",
    ),
    "no time": (
        "deep",
        {"values": [1, 2, 3], "time": "soon"},
        "time must be ISO 8601, such as '2024-01-31T06:00:00Z', got 'soon'.",
    ),
    "time of a kind": (
        "deep",
        {"values": [1, 2, 3], "time": {"at": 1}},
        "time must be ISO 8601 text or a number of regular steps, or an array of these, got {'at': 1}.",
    ),
    "some times": (
        "deep",
        {"values": [[1, 2, 3]] * 3, "time": [1, 2]},
        "time must be that of the first of 3 samples, or an array of 3, got 2 times.",
    ),
    "the calendar's time": (
        "told",
        {"values": [1, 2]},
        "time is missing: the model 'told' needs the position of each step in the day and the week. Give the time of "
        "the sample, at least of the first of the stream.",
    ),
    "the calendar's numbers": (
        "told",
        {"values": [1, 2], "time": 3},
        "The calendar of this model needs ISO 8601 times such as '2024-01-31T06:00:00Z'; begin a new stream with one "
        "as time.",
    ),
    "a calendar of one's own": (
        "told",
        {"values": [1, 2], "time": "2024-01-31", "future": {"calendar_day_sin": [1, 2, 3]}},
        "future.calendar_day_sin follows from time; leave it out.",
    ),
    "future of nobody": (
        "classes",
        {"values": X, "future": {"price": [1]}},
        "future: unknown name 'price'. The model 'classes' takes none.",
    ),
    "futures": (
        "fed",
        {"values": [[1, 2, 3]] * 2, "future": {"b": [1]}},
        "future must be an array of one object for each of the 2 samples, got 1; use null for samples without any.",
    ),
    "horizon of classes": (
        "classes",
        {"values": X, "horizon": 1},
        "horizon is for forecasts; the model 'classes' was trained for 'classify'.",
    ),
    "horizon": (
        "fed",
        {"values": [1, 2, 3], "horizon": 5},
        "horizon must be at most 4, which the model 'fed' was trained for, got 5.",
    ),
    "horizon of every step": (
        "fed",
        {"values": [[1, 2, 3]] * 2, "horizon": 2},
        "A recursive head looks further than one step ahead only after the last sample; send every=false with "
        "horizon, or one sample at a time.",
    ),
    "sequence": (
        "classes",
        {"values": X, "sequence": 0},
        "sequence: input should be greater than or equal to 1, got 0.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_step_is_refused_in_words(client: httpx.Client, case: str) -> None:
    model, body, sentence = BAD[case]
    assert (
        assert_refused(client.post(f"/v1/sessions/{opened(client, model)}/step", json=body), 400, "bad_input")
        == sentence
    )


def test_too_many_samples_at_a_time(client: httpx.Client) -> None:
    answer = step(client, opened(client), [X] * 1001)
    assert (
        assert_refused(answer, 413, "too_large")
        == "1001 samples at a time are more than the limit of 1000; send fewer."
    )


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "model is missing: name the model of a new stream, or give the state_token of a stream."),
        ({"model": "classes", "static": {"size": 1}}, "static: unknown name 'size'. The model 'classes' takes none."),
        (
            {"model": "told", "static": {"sice": 1}},
            "static: unknown name 'sice'. Did you mean 'size'? The model 'told' takes size, age.",
        ),
        ({"model": 3}, "model: input should be a valid string, got 3."),
    ],
)
def test_a_session_that_cannot_begin(client: httpx.Client, body: dict[str, Any], sentence: str) -> None:
    assert assert_refused(client.post("/v1/sessions", json=body), 400, "bad_input") == sentence


# Sequences of the v2 protocol.


def infer(client: httpx.Client, x: np.ndarray, path: str = "classes", **parameters: Any) -> httpx.Response:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": plain(x)}
    return client.post(f"/v2/models/{path}/infer", json={"inputs": [tensor], "parameters": parameters})


def output(answer: httpx.Response, name: str) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    found = next(tensor for tensor in answer.json()["outputs"] if tensor["name"] == name)
    return np.array(found["data"], np.float32).reshape(found["shape"])


@pytest.mark.parametrize("identity", [7, 2**64 - 1, "seven"])
def test_a_sequence_of_the_protocol_goes_on(client: httpx.Client, classes: ServedModel, identity: int | str) -> None:
    x = np.stack([samples(classes, 6, seed) for seed in (0, 1)])
    whole = classes.run_sequence(x)["probabilities"]
    infer(client, x[:, :2], sequence_id=identity, sequence_start=True)
    # Another of the same number as text, or the same of another model, is another one.
    infer(client, x[:1, :3], sequence_id=str(identity) + "'", sequence_start=True)
    infer(client, x[:, 2:5], sequence_id=identity)
    last = infer(client, x[:, 5:], sequence_id=identity, sequence_end=True)
    assert np.array_equal(output(last, "probabilities"), whole)
    sentence = assert_refused(infer(client, x[:, 5:], sequence_id=identity), 409, "unknown_sequence")
    assert sentence == (
        f"The sequence {identity!r} of the model 'classes' has ended. Begin it with sequence_start=true and send its "
        "series from the first step on."
    )


def test_a_sequence_begins_anew(client: httpx.Client, classes: ServedModel) -> None:
    x = samples(classes, 4)[None]
    first = output(infer(client, x, sequence_id=1, sequence_start=True), "probabilities")
    assert not np.array_equal(output(infer(client, x, sequence_id=1), "probabilities"), first)
    assert np.array_equal(output(infer(client, x, sequence_id=1, sequence_start=True), "probabilities"), first)


def test_a_sequence_keeps_its_series(client: httpx.Client, classes: ServedModel) -> None:
    x = np.stack([samples(classes, 2, seed) for seed in (0, 1)])
    infer(client, x, sequence_id=2, sequence_start=True)
    assert assert_refused(infer(client, x[:1], sequence_id=2), 400, "bad_input") == (
        "The sequence '2' has 2 series in a request, got 1; send the same ones each time, or begin with "
        "sequence_start=true."
    )


def test_a_sequence_that_was_not_begun(client: httpx.Client, classes: ServedModel) -> None:
    x = samples(classes, 2)[None]
    assert assert_refused(infer(client, x, sequence_id="new"), 409, "unknown_sequence") == (
        "The sequence 'new' of the model 'classes' was not begun in this server process. Begin it with "
        "sequence_start=true and send its series from the first step on."
    )
    wrong = infer(client, np.zeros((1, 2, 5), np.float32), sequence_id="new", sequence_start=True)
    assert_refused(wrong, 400, "bad_input")
    assert "was not begun, its first request failed" in assert_refused(
        infer(client, x, sequence_id="new"), 409, "unknown_sequence"
    )


def test_sequences_expire_and_need_one_process(published: Published, classes: ServedModel) -> None:
    x = samples(classes, 2)[None]
    for running in serving(published, models=("classes",), session_ttl_seconds=0.2):
        with httpx.Client(base_url=running.url) as client:
            infer(client, x, sequence_id=3, sequence_start=True)
            time.sleep(0.5)
            assert "expired after 0.2 s" in assert_refused(infer(client, x, sequence_id=3), 409, "unknown_sequence")
    for running in serving(published, models=("classes",), workers=2):
        with httpx.Client(base_url=running.url) as client:
            answer = infer(client, x, sequence_id=3, sequence_start=True)
            assert assert_refused(answer, 409, "one_process_only").startswith(
                "Sequences are kept by one process, and 2 share"
            )


def test_many_clients_at_a_time(running: Running, classes: ServedModel) -> None:
    """Sessions of several threads are batched, and each gets the bits of its own series."""
    count, steps = 24, 6
    barrier = threading.Barrier(8)

    def follow(seed: int) -> None:
        with httpx.Client(base_url=running.url) as client:
            x, session = samples(classes, steps, seed), opened(client)
            found = [step(client, session, plain(one)).json()["outputs"][0] for one in x]
        assert_same_bits(stacked(found), offline(classes, x))

    def several(first: int) -> None:
        barrier.wait()
        for seed in range(first, count, 8):
            follow(seed)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(several, range(8)))
