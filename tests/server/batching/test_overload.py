"""More work than there is time for: who is refused, who is served first, and that nobody works for those who left."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from scheduler_helpers import PATIENT, BeginRecorder, Blocker, Desk, busy, scheduling, until, wait
from server_helpers import Published, Running, json_tensor, raw_request, serve
from stablernn_runtime import ServedModel
from stablernn_server import ClientGoneError, DeadlineError, Settings, create_app
from stablernn_server.batching.types import Caller
from stablernn_server.http.app_context import AppContext

pytestmark = pytest.mark.anyio

ENDLESS = 14_000_000
"""Time steps whose inference takes longer than a test waits for it."""
SERIES = {"model": "animals", "inputs": [{"series": [1, 2, 3]}]}
INFER = "/v2/models/animals/infer"


def tensors(**parameters: Any) -> dict[str, Any]:
    return {"inputs": [json_tensor("x", np.ones((1, 4, 1), np.float32))], "parameters": parameters}


def raw(steps: int, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    return raw_request({"x": np.zeros((1, steps, 1), np.float32)}, parameters=parameters)


class House:
    """An application in this event loop, with one runner thread.

    Attributes:
        context: Of the application.
        desk: Its scheduler.
        client: Asks it.
        animals: Served by it.
        flow: Likewise.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self.context: AppContext = app.state.context
        self.desk = Desk(self.context.scheduler, self.context.telemetry)
        self.client = self.other_client("10.0.0.1")
        self.animals, self.flow = (self._model(*key) for key in (("animals", 2), ("flow", 1)))

    def _model(self, name: str, version: int) -> ServedModel:
        found = self.context.models.get(name, version)
        assert found is not None
        return found

    def other_client(self, address: str, **options: Any) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.app, client=(address, 1))
        return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=PATIENT, **options)

    def post(self, path: str, body: Any, client: httpx.AsyncClient | None = None) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task((client or self.client).post(path, json=body))

    async def waiting(self, count: int) -> None:
        """Until that many requests wait beside the one that runs."""
        await until(lambda: self.context.scheduler.pending == count + 1)


@asynccontextmanager
async def house(published: Published, **settings: Any) -> AsyncIterator[House]:
    app = create_app(Settings(registry=published.root, models=("animals", "flow"), inferences=1, **settings))
    async with app.router.lifespan_context(app):
        yield House(app)


@contextmanager
def on_a_port(published: Published, *models: str, **settings: Any) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=published.root, models=models, **settings)))


@contextmanager
def endless(server: Running, last_bytes: int = 0) -> Iterator[None]:
    """A client waits for a run that goes on for this block; then it hangs up. Its last bytes come all at once."""
    content, headers = raw(ENDLESS)
    lines = [f"POST {INFER} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(content)}"]
    head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""])
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head.encode() + content[: len(content) - last_bytes])
        wait(lambda: server.app.state.context.budget.held_bytes >= len(content) - last_bytes)
        if last_bytes:
            server.app.state.context.loop.call_soon_threadsafe(time.sleep, 0.2)
            time.sleep(0.05)
        connection.sendall(content[len(content) - last_bytes :])
        wait(lambda: len(server.app.state.context.scheduler._dispatcher._workers.running) == 1)
        yield


async def test_one_client_has_a_share_and_others_have_theirs(published: Published) -> None:
    async with house(published, max_client_requests=2) as here:
        async with here.desk.occupied(here.flow):
            waiting = [here.post(INFER, tensors()), here.post("/v1/timeseries/classify", SERIES)]
            await here.waiting(2)
            for path, body in ((INFER, tensors()), ("/v1/timeseries/classify", SERIES)):
                refused = await here.post(path, body)
                assert (refused.status_code, refused.json()["code"]) == (429, "too_many")
                assert refused.headers["retry-after"] == "1"
            waiting.append(here.post(INFER, tensors(), here.other_client("10.0.0.2")))
            await here.waiting(3)
        assert [(await answer).status_code for answer in waiting] == [200] * 3
        assert (await here.post(INFER, tensors())).status_code == 200


def test_a_client_is_not_known_by_what_it_says_of_its_address(published: Published) -> None:
    with on_a_port(published, "animals", "flow", inferences=1, max_client_requests=1) as server:
        scheduler, url = server.app.state.context.scheduler, f"{server.url}{INFER}"
        with ThreadPoolExecutor(1) as pool, busy(server):
            waiting = pool.submit(httpx.post, url, json=tensors(), timeout=PATIENT)
            wait(lambda: scheduler.pending == 2)
            for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP"):
                value = "for=10.0.0.9" if header == "Forwarded" else "10.0.0.9"
                refused = httpx.post(url, json=tensors(), headers={header: value})
                assert (refused.status_code, refused.json()["code"]) == (429, "too_many"), header
        assert waiting.result(PATIENT).status_code == 200


async def test_a_client_is_known_by_its_token_before_its_address(published: Published) -> None:
    tokens = ("a" * 32, "b" * 32)

    async with house(published, max_client_requests=1, infer_tokens=tokens) as here:
        first, second = (
            here.other_client("10.0.0.1", headers={"Authorization": f"Bearer {token}"}) for token in tokens
        )
        elsewhere = here.other_client("10.0.0.9", headers={"Authorization": f"Bearer {tokens[0]}"})
        async with here.desk.occupied(here.flow):
            waiting = [here.post(INFER, tensors(), first)]
            await here.waiting(1)
            assert (await here.post(INFER, tensors(), elsewhere)).status_code == 429
            waiting.append(here.post(INFER, tensors(), second))
            await here.waiting(2)
        assert [(await answer).status_code for answer in waiting] == [200, 200]


async def test_a_full_queue_refuses_with_the_time_to_come_again(published: Published) -> None:
    async with house(published, max_queue=3) as here:
        async with here.desk.occupied(here.flow):
            waiting = [here.post(INFER, tensors()) for _ in range(3)]
            await here.waiting(3)
            for path, body in ((INFER, tensors()), ("/v1/timeseries/classify", SERIES)):
                refused = await here.post(path, body)
                seconds = int(refused.headers["retry-after"])
                assert (refused.status_code, refused.json()["code"]) == (503, "busy")
                assert 1 <= seconds <= 60
            # What takes no run is answered all the same.
            assert (await here.client.get("/v2/health/ready")).status_code == 200
            assert (await here.client.get("/v2/models/animals")).status_code == 200
        assert [(await answer).status_code for answer in waiting] == [200] * 3
        assert (await here.post(INFER, tensors())).status_code == 200


@pytest.mark.parametrize(
    ("settings", "path", "body"),
    [
        ({}, INFER, tensors(timeout=30_000)),
        ({"request_timeout_seconds": 0.03}, INFER, tensors(timeout=600_000_000)),
        ({"request_timeout_seconds": 0.03}, INFER, tensors(timeout=0)),
        ({"request_timeout_seconds": 0.03}, "/v1/timeseries/classify", SERIES),
    ],
    ids=["timeout", "timeout above the server's", "timeout 0", "time series"],
)
async def test_what_waited_too_long_is_not_begun(
    published: Published, settings: dict[str, Any], path: str, body: dict[str, Any]
) -> None:
    async with house(published, **settings) as here:
        async with here.desk.occupied(here.flow) as blocker:
            late = await asyncio.wait_for(here.post(path, body), PATIENT)
            assert (late.status_code, late.json()["code"]) == (504, "deadline")
            assert not blocker.released.is_set()
        other = await here.desk.scheduler.run(here.animals, {"x": np.ones((1, 4, 1), np.float32)}, caller=Caller())
        assert other.batch_rows == 1
        assert here.desk.sizes(here.animals) == {1: 1}


async def test_a_step_that_waited_too_long_leaves_its_session_where_it_was(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(published, request_timeout_seconds=0.05) as here:
        monkeypatch.setattr(here.animals, "estimate_step_ns", lambda rows: 1e12)
        session = (await here.post("/v1/sessions", {"model": "animals"})).json()["session_id"]
        path = f"/v1/sessions/{session}/step"
        async with here.desk.occupied(here.flow):
            late = await here.post(path, {"values": [1.0]})
            assert (late.status_code, late.json()["code"]) == (504, "deadline")
        assert (await here.client.get(f"/v1/sessions/{session}")).json()["step"] == 0
        assert here.desk.executions(here.animals) == 0
        monkeypatch.setattr(here.animals, "estimate_step_ns", lambda rows: 0.0)
        assert (await here.post(path, {"values": [1.0], "sequence": 1})).json()["step"] == 1


async def test_what_is_over_before_its_turn_is_not_begun(animals: ServedModel, flow: ServedModel) -> None:
    x = {"x": np.ones((1, 4, 1), np.float32)}

    async with scheduling(inferences=1) as desk:
        loop = asyncio.get_running_loop()
        # No runner is busy: it would begin in this very turn of the event loop.
        with pytest.raises(DeadlineError):
            await desk.scheduler.run(animals, x, caller=Caller(deadline=loop.time() - 1))
        with pytest.raises(ClientGoneError):
            await desk.scheduler.run(animals, x, caller=Caller(is_gone=lambda: True))
        async with desk.occupied(flow):
            cancelled = asyncio.create_task(desk.scheduler.run(animals, x, caller=Caller()))
            await until(lambda: desk.scheduler.pending == 2)
            cancelled.cancel()
            await asyncio.wait([cancelled])
        assert desk.executions(animals) == 0
        assert desk.scheduler.pending == 0
        await desk.scheduler.run(animals, x, caller=Caller())
        assert desk.sizes(animals) == {1: 1}


@pytest.mark.parametrize("why", ["cancelled", "late", "gone"])
async def test_a_run_for_which_nobody_waits_is_ended(animals: ServedModel, why: str) -> None:
    async with scheduling(inferences=1) as desk:
        blocker, has_left = Blocker(), False
        deadline = asyncio.get_running_loop().time() + 1 if why == "late" else None
        caller = Caller(deadline=deadline, is_gone=lambda: has_left)
        task = asyncio.create_task(desk.scheduler.call(animals, blocker, 1, caller=caller))
        await until(blocker.started.is_set)
        desk.scheduler.drop_abandoned()
        assert not task.done()
        if why == "cancelled":
            task.cancel()
        elif why == "gone":
            has_left = True
            desk.scheduler.drop_abandoned()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(
            outcome, {"cancelled": asyncio.CancelledError, "late": DeadlineError, "gone": ClientGoneError}[why]
        )
        await until(lambda: blocker.is_stopped)
        # The runner is free again.
        await asyncio.wait_for(desk.scheduler.run(animals, {"x": np.ones((1, 4, 1))}, caller=Caller()), PATIENT)


# uvicorn stops reading from a connection of which it holds 64 KiB, and would not see it end.
def test_a_run_whose_client_hung_up_is_ended(published: Published) -> None:
    with on_a_port(published, "animals", inferences=1, max_steps=ENDLESS, request_timeout_seconds=600) as server:
        with endless(server, 100_000):
            pass
        wait(lambda: len(server.app.state.context.scheduler._dispatcher._workers.running) == 0)
        assert httpx.post(f"{server.url}{INFER}", json=tensors(), timeout=PATIENT).status_code == 200


async def test_urgent_requests_are_served_first(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = BeginRecorder(monkeypatch)
    priorities = [100, 3, 200, 1, 0, 2]

    async with house(published, max_batch_size=1) as here:
        tasks = []
        async with here.desk.occupied(here.flow):
            recorder.numbers.clear()
            for count, priority in enumerate(priorities, 1):
                tasks.append(here.post(INFER, tensors(priority=priority)))
                await here.waiting(count)
        assert [answer.status_code for answer in await asyncio.gather(*tasks)] == [200] * 6
    first = min(recorder.numbers)
    # 0 is the default, which is 100; equals in the order that they came.
    assert [priorities[number - first] for number in recorder.numbers] == [1, 2, 3, 100, 0, 200]


async def test_bodies_of_requests_that_wait_are_held_and_given_back(published: Published) -> None:
    content, headers = raw(1000)

    async with house(published, max_held_bytes=3 * len(content)) as here:
        ask_once = lambda: asyncio.create_task(here.client.post(INFER, content=content, headers=headers))  # noqa: E731
        async with here.desk.occupied(here.flow):
            waiting = [ask_once() for _ in range(3)]
            await here.waiting(3)
            assert here.context.budget.held_bytes == 3 * len(content)
            refused = await ask_once()
            assert (refused.status_code, refused.json()["code"]) == (503, "busy")
            assert refused.json()["error"].startswith(f"The server holds {3 * len(content)} bytes of other")
            waiting[0].cancel()
            await here.waiting(2)
            assert here.context.budget.held_bytes == 2 * len(content)
        assert [(await answer).status_code for answer in waiting[1:]] == [200, 200]
        assert here.context.budget.held_bytes == 0
        assert not here.context.in_flight


def test_everything_else_is_answered_while_a_run_goes_on(published: Published) -> None:
    """One long run takes a runner; the event loop, steps, and short requests do not wait for it."""
    with (
        on_a_port(published, "animals", "flow", max_steps=ENDLESS) as server,
        httpx.Client(base_url=server.url, timeout=PATIENT) as client,
        endless(server),
    ):
        assert client.get("/v2/health/live").status_code == 200
        assert client.get("/v2/health/ready").status_code == 200
        assert client.post(INFER, json=tensors()).status_code == 200
        assert client.post("/v1/timeseries/classify", json=SERIES).status_code == 200
        answer = client.post("/v1/step", json={"model": "flow", "values": [1, 2, 3]})
        assert (answer.status_code, answer.json()["step"]) == (200, 1)
        # All of that while the long one ran.
        assert server.app.state.context.scheduler.pending == 1
