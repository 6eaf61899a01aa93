"""Sequences keep the order in which their requests came, whatever begins, ends, fails or is given up meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from scheduler_helpers import turns, wait
from server_helpers import Published, Running, json_tensor, serve
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app
from stablernn_server.batching.types import Caller
from stablernn_server.errors import ClientGoneError, DeadlineError, TooManyError, UnknownSequenceError
from stablernn_server.streams.triton_sequences import SequenceTable
from stablernn_server.streams.ttl_cache import TtlCache
from stock_helpers import Stock, noise, refusal, version

pytestmark = pytest.mark.anyio


@dataclass
class Asked:
    """One request of a sequence, and what it saw.

    Attributes:
        number: Its place in the order of arrival; its states are those before with it behind them.
        before: The numbers in the states that it began from; None where it did not get so far.
    """

    number: int
    start: bool = False
    end: bool = False
    fails: bool = False
    pauses: int = 0
    before: list[int] | None = None
    error: BaseException | None = None
    task: asyncio.Task[None] = field(init=False)


class Desk:
    """Requests of one sequence, sent to a real table; the work of each lasts until it is let go.

    Attributes:
        order: Numbers of those whose turn came, in this order.
    """

    def __init__(self, model: ServedModel, **settings: Any) -> None:
        self.table = SequenceTable(Settings(**settings))
        self.order: list[int] = []
        self._model = model
        self._gates: dict[int, asyncio.Event] = {}

    def send(self, asked: Asked, caller: Caller | None = None, identity: int = 7) -> Asked:
        self._gates[asked.number] = asyncio.Event()
        asked.task = asyncio.create_task(self._work(asked, caller or Caller(), identity))
        return asked

    def let(self, *numbers: int) -> None:
        for number in numbers:
            self._gates[number].set()

    async def _work(self, asked: Asked, caller: Caller, identity: int) -> None:
        try:
            async with self.table.hold(
                self._model, identity, 1, caller=caller, start=asked.start, end=asked.end
            ) as sequence:
                self.order.append(asked.number)
                before: list[int] = sequence.states["state_0"].tolist() if sequence.states else []
                asked.before = before
                await self._gates[asked.number].wait()
                await turns(asked.pauses)
                if asked.fails:
                    raise ValueError("its work failed")
                sequence.set_states({"state_0": np.array([*before, asked.number])})
        except BaseException as error:
            asked.error = error
            if isinstance(error, asyncio.CancelledError):
                raise


async def done(*several: Asked) -> None:
    await asyncio.wait([asked.task for asked in several], timeout=30)
    assert all(asked.task.done() for asked in several)


@pytest.mark.parametrize("seed", range(15))
def test_any_schedule_is_that_of_one_request_after_the_other(animals: ServedModel, seed: int) -> None:
    """Random starts, ends, failures, cancellations and pauses against a model that knows no concurrency."""
    chance = random.Random(seed)

    async def check() -> list[Asked]:
        desk, sent = Desk(animals, max_session_queue=100), list[Asked]()
        for number in range(40):
            start, end, fails = (chance.random() < 0.25 for _ in range(3))
            sent.append(desk.send(Asked(number, start, end, fails, chance.randrange(4))))
            if chance.random() < 0.7:
                desk.let(number)
            else:
                asyncio.get_running_loop().call_later(chance.random() / 200, desk.let, number)
            if chance.random() < 0.2:
                chance.choice(sent).task.cancel()
            await turns(chance.randrange(8))
        await done(*sent)
        assert desk.order == sorted(desk.order)
        return sent

    kept: list[int] | None = None
    for asked in asyncio.run(check()):
        if asked.task.cancelled() and asked.before is None:
            continue
        if not asked.start and kept is None:
            assert isinstance(asked.error, UnknownSequenceError), asked
            continue
        before = [] if asked.start or kept is None else kept
        assert asked.before == before, asked
        if asked.error is None:
            kept = None if asked.end else [*before, asked.number]


async def test_a_turn_is_waited_for_no_longer_than_the_deadline(animals: ServedModel) -> None:
    desk, loop = Desk(animals), asyncio.get_running_loop()
    first = desk.send(Asked(0, start=True))
    late = desk.send(Asked(1), Caller(deadline=loop.time() + 0.02))
    after = desk.send(Asked(2))
    await done(late)
    assert isinstance(late.error, DeadlineError)
    desk.let(0, 2)
    await done(first, after)
    assert after.before == [0]


async def test_who_has_gone_holds_no_place(animals: ServedModel) -> None:
    desk, gone = Desk(animals, max_session_queue=2), list[bool]()
    first = desk.send(Asked(0, start=True))
    leaving = [desk.send(Asked(number), Caller(is_gone=lambda: bool(gone))) for number in (1, 2)]
    await turns()
    refused = desk.send(Asked(3))
    await done(refused)
    assert isinstance(refused.error, TooManyError)
    gone.append(True)
    # The next to come finds the queue full, and looks.
    stays = desk.send(Asked(4))
    await done(*leaving)
    assert all(isinstance(asked.error, ClientGoneError) for asked in leaving)
    gone.clear()
    leaving = [desk.send(Asked(5), Caller(is_gone=lambda: bool(gone)))]
    await turns()
    gone.append(True)
    desk.table.drop_gone_clients()
    await done(*leaving)
    assert isinstance(leaving[0].error, ClientGoneError)
    desk.let(0, 4)
    await done(first, stays)
    assert stays.before == [0]


async def test_whose_client_left_just_before_its_turn_is_passed_over(animals: ServedModel) -> None:
    desk = Desk(animals)
    several = [
        desk.send(Asked(0, start=True)),
        desk.send(Asked(1), Caller(is_gone=lambda: True)),
        desk.send(Asked(2)),
    ]
    await turns()
    desk.let(0, 1, 2)
    await done(*several)
    assert isinstance(several[1].error, ClientGoneError)
    assert several[2].before == [0]


async def test_one_that_is_cancelled_as_its_turn_comes_hands_it_on(animals: ServedModel) -> None:
    desk = Desk(animals)
    _, second, third = desk.send(Asked(0, start=True)), desk.send(Asked(1)), desk.send(Asked(2))
    await turns()
    desk.let(0, 2)
    # Behind the first, which then hands its turn on, and before the second, which wakes up only then.
    asyncio.get_running_loop().call_soon(second.task.cancel)
    await done(second, third)
    assert 1 not in desk.order
    assert third.before == [0]


async def test_what_is_worked_on_does_not_expire() -> None:
    cache: TtlCache[str, int] = TtlCache(ttl_seconds=0.01, max_entries=2, max_waiters=1)
    for key in ("idle", "busy"):
        cache.put(key, 0)
    async with cache.hold("busy", "session", Caller()):
        await asyncio.sleep(0.02)
        assert cache.peek("idle") is None
        assert cache.peek("busy") is not None
    assert cache.peek("busy") is not None


async def test_what_is_worked_on_does_not_give_way(animals: ServedModel) -> None:
    desk = Desk(animals, max_sessions=2)
    for number in (0, 1):
        desk.let(desk.send(Asked(number, start=True), identity=number + 1).number)
    await turns()
    going_on = desk.send(Asked(2), identity=1)
    await turns()
    desk.let(desk.send(Asked(3, start=True), identity=3).number)
    gone = desk.send(Asked(4), identity=2)
    desk.let(2)
    await done(going_on, gone)
    assert "was evicted for a newer one" in str(gone.error)
    again = desk.send(Asked(5), identity=1)
    desk.let(5)
    await done(again)
    assert again.before == [0, 2]


# Behind a server.


@pytest.fixture(scope="module")
def one_at_a_time(published: Published) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=published.root, models=("animals:1", "flow"), inferences=1)))


def infer(server: Running, x: np.ndarray, model: str = "animals", **parameters: Any) -> httpx.Response:
    body = {"inputs": [json_tensor("x", x)], "parameters": {"sequence_id": "seven", **parameters}}
    return httpx.post(f"{server.url}/v2/models/{model}/infer", json=body, timeout=60)


def probabilities(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    tensors = {tensor["name"]: tensor["data"] for tensor in answer.json()["outputs"]}
    return np.array([tensors["probabilities"]], np.float32)


@pytest.mark.parametrize("shape", [[], None])
def test_a_request_without_series_is_refused(one_at_a_time: Running, shape: list[int] | None) -> None:
    tensor = {"name": "x" if shape is not None else "lengths", "shape": shape or [], "datatype": "FP32", "data": [1.0]}
    if shape is None:
        tensor |= {"shape": [1], "datatype": "INT64", "data": [1]}
    body = {"inputs": [tensor], "parameters": {"sequence_id": 3, "sequence_start": True}}
    answer = httpx.post(f"{one_at_a_time.url}/v2/models/animals/infer", json=body)
    got = "no such input" if shape is None else "one of shape ()"
    assert (answer.status_code, answer.json()["error"]) == (
        400,
        f"Each request of a sequence must have the input 'x' with the series along its first axis, got {got}.",
    )


def test_a_sequence_goes_on_with_the_version_that_it_began_with(
    published: Published, animals: ServedModel, tmp_path: Path
) -> None:
    """An alias that moves ends none, whether requests name it or not; only a number is meant as it is."""
    stock, x = Stock(tmp_path / "registry", published), noise(1, 6, 1)
    with stock.served("animals@production") as (server, client):
        names = ("animals", "animals@production")
        for name in names:
            infer(server, x[:, :2], name, sequence_id=name, sequence_start=True).raise_for_status()
        stock.point(2)
        wait(lambda: version(client) == "2")
        for name in names:
            answer = infer(server, x[:, 2:4], name, sequence_id=name)
            assert np.array_equal(probabilities(answer), animals.run_sequence(x[:, :4])["probabilities"])
            assert answer.json()["model_version"] == "1"
            for numbered in ("animals:2", "animals/versions/2"):
                assert refusal(infer(server, x[:, 4:], numbered, sequence_id=name)) == (
                    409,
                    "other_model",
                    f"The sequence '{name}' belongs to model 'animals:1', the request names version 2; leave the "
                    "version out, or begin with sequence_start=true.",
                )
        # Its own number still means it, although nothing new is answered under it.
        for steps, numbered in ((5, "animals:1"), (6, "animals/versions/1")):
            answer = infer(server, x[:, steps - 1 : steps], numbered, sequence_id="animals")
            assert np.array_equal(probabilities(answer), animals.run_sequence(x[:, :steps])["probabilities"])
        unknown = (404, "unknown_model", "The model 'animals' has no version 1 here. Served: 2 (production).")
        assert refusal(infer(server, x, "animals:1", sequence_id="animals", sequence_start=True)) == unknown
        for name in names:
            infer(server, x, "animals:1", sequence_id=name, sequence_end=True).raise_for_status()
        assert refusal(infer(server, x, "animals:1", sequence_id="animals")) == unknown


def test_a_sequence_belongs_to_the_token_that_began_it(published: Published) -> None:
    tokens = "a" * 32, "b" * 32
    settings = Settings(registry=published.root, models=("animals:1",), infer_tokens=",".join(tokens))

    def ask(running: Running, token: str, value: float, *, start: bool) -> httpx.Response:
        x = np.full((1, 3, 1), value, np.float32)
        body = {"inputs": [json_tensor("x", x)], "parameters": {"sequence_id": 7, "sequence_start": start}}
        return httpx.post(
            f"{running.url}/v2/models/animals/infer", json=body, headers={"Authorization": f"Bearer {token}"}
        )

    for running in serve(create_app(settings)):
        assert ask(running, tokens[0], 0.5, start=True).status_code == 200
        assert refusal(ask(running, tokens[1], 0.5, start=False))[:2] == (409, "unknown_sequence")
        assert ask(running, tokens[1], -1.0, start=True).status_code == 200
        own, other = (ask(running, token, 0.25, start=False) for token in tokens)
        assert own.status_code == other.status_code == 200
        assert own.json()["outputs"] != other.json()["outputs"]
