"""Rolling releases: an alias moves five times and the server restarts twice, and no stream is lost or changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client_helpers import ServerProcess
from server_helpers import Published
from stablernn_client import AsyncClient
from stablernn_runtime import ServedModel
from stock_helpers import Stock, loads
from stream_helpers import offline, plain, stacked

RELEASES = 6
STEPS = 3
"""Steps that each stream takes between two releases."""
SERIES = np.random.default_rng(9).normal(0, 3, (4, RELEASES * STEPS, 1)).astype(np.float32)
PATIENCE_SECONDS = 120.0
NAMES = [None, "animals", "animals@production"]
STREAMS_PER_SOCKET = 20


@dataclass
class Outcome:
    """Streams that stepped together: the version that answered each step, and probabilities ``(streams, steps, 4)``."""

    series: int
    versions: set[str] = field(default_factory=set)
    outputs: list[np.ndarray] = field(default_factory=list)


class Rollout:
    """The releases, and the streams that run while they happen.

    A stream begins after one of the releases and takes some steps after each of those that follow. The next release
    happens when half of those that began after the last one are done with their steps, so that the others are stepping
    meanwhile.
    """

    def __init__(self, stock: Stock, server: ServerProcess) -> None:
        self.stock = stock
        self.server = server
        self.outcomes: list[Outcome] = []
        self._released = [asyncio.Event() for _ in range(RELEASES)]
        self._beginners: Counter[int] = Counter()
        self._done: Counter[int] = Counter()

    def joined(self) -> tuple[int, Outcome]:
        """A further stream: the release that it begins after, and what it will have answered."""
        place = len(self.outcomes)
        self.outcomes.append(Outcome(place % len(SERIES)))
        self._beginners[place % RELEASES] += 1
        return place % RELEASES, self.outcomes[-1]

    async def lead(self, release: int, step: Callable[[int], Awaitable[None]]) -> None:
        """Take all steps of a stream; ``step`` takes the next ones from the sample of that number on."""
        for turn, each in enumerate(range(release, RELEASES)):
            await self._released[each].wait()
            await step(turn * STEPS)
            if not turn:
                self._done[release] += 1

    async def one_socket(self, client: AsyncClient, token_every: int) -> None:
        """A stream that steps by single samples."""
        release, outcome = self.joined()
        stream = client.stream("animals@production", token_every=token_every)

        async def step(start: int) -> None:
            for at in range(start, start + STEPS):
                result = await stream.step(SERIES[outcome.series, at])
                assert result.step == at + 1
                outcome.versions.add(stream.about.version)
                outcome.outputs.append(result.outputs["probabilities"][None, None])

        await self.lead(release, step)
        await stream.close()

    async def shared_socket(self, client: AsyncClient, token_every: int) -> None:
        """Streams that step together."""
        release, outcome = self.joined()
        streams = client.streams("animals", STREAMS_PER_SOCKET, token_every=token_every)

        async def step(start: int) -> None:
            samples = np.repeat(SERIES[outcome.series, None, start : start + STEPS], STREAMS_PER_SOCKET, axis=0)
            result = await streams.step(samples)
            assert result.steps.tolist() == [start + STEPS] * STREAMS_PER_SOCKET
            info = streams.about
            outcome.versions.add(info.version)
            outcome.outputs.append(result.outputs["probabilities"])

        await self.lead(release, step)
        await streams.close()

    async def by_token(self, client: httpx.AsyncClient) -> None:
        """A stream of ``/v1/step``, whose requests name the model in different ways."""
        release, outcome = self.joined()
        token: str | None = None

        async def step(start: int) -> None:
            nonlocal token
            for at in range(start, start + STEPS):
                body: dict[str, Any] = {"values": plain(SERIES[outcome.series, at]), "sequence": at + 1}
                name = NAMES[at % len(NAMES)]
                if token is not None:
                    body["state_token"] = token
                if token is None or name is not None:
                    body["model"] = name or "animals"
                answer = await posted(client, body)
                token = answer["state_token"]
                outcome.versions.add(answer["model_version"])
                outcome.outputs.append(stacked(answer["outputs"])["probabilities"][None])

        await self.lead(release, step)

    async def release_all(self, client: httpx.AsyncClient) -> None:
        """Move the alias from version to version; restart the server after the second and the fourth."""
        for release in range(RELEASES):
            if release:
                self.stock.point(release + 1)
                if release == 2:
                    await asyncio.to_thread(self.server.kill)
                    await asyncio.to_thread(self.server.start)
                elif release == 4:
                    await asyncio.to_thread(self.server.stop)
                    await asyncio.to_thread(self.server.start)
                while (await served_version(client)) != str(release + 1):
                    await asyncio.sleep(0.05)
            self._released[release].set()
            while 2 * self._done[release] < self._beginners[release]:
                await asyncio.sleep(0.01)


async def posted(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a step, which is sent again where the server was not there or did not finish it."""
    while True:
        try:
            answer = await client.post("/v1/step", json=body)
        except httpx.TransportError:
            await asyncio.sleep(0.1)
            continue
        if answer.status_code != 503:
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found
        await asyncio.sleep(0.1)


async def served_version(client: httpx.AsyncClient) -> str:
    version: str = (await client.get("/v2/models/animals")).raise_for_status().json()["parameters"]["version"]
    return version


async def run(rollout: Rollout, singles: int, shared: int, by_token: int) -> None:
    """Run so many streams, sockets and token streams through all releases."""
    url = rollout.server.url
    limits = httpx.Limits(max_connections=20)
    async with (
        AsyncClient(url, timeout=PATIENCE_SECONDS) as client,
        httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, limits=limits) as http,
        asyncio.TaskGroup() as group,
    ):
        # Some ask for tokens often; others have none yet when the alias moves and the server restarts.
        for place in range(singles):
            group.create_task(rollout.one_socket(client, token_every=(2, 32)[place % 2]))
        for place in range(shared):
            group.create_task(rollout.shared_socket(client, token_every=(4, 32)[place % 2]))
        for _ in range(by_token):
            group.create_task(rollout.by_token(http))
        await asyncio.sleep(0)
        await rollout.release_all(http)


@pytest.fixture
def stock(tmp_path: Path, published: Published) -> Stock:
    """Six versions; those of odd numbers have the weights of the first, the others those of the second."""
    stock = Stock(tmp_path / "registry", published)
    for number in range(3, RELEASES + 1):
        stock.copy(published.registry.get(f"animals:{2 - number % 2}"))
    return stock


@pytest.fixture
def server(stock: Stock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    monkeypatch.setenv("STABLERNN_RELOAD_SECONDS", "0.1")
    words = "--model", "animals@production", "--access-log", "off"
    process = ServerProcess(stock.registry.root, tmp_path / "log", *words)
    yield process
    process.kill()


@pytest.mark.slow
def test_no_stream_is_lost_or_changed(stock: Stock, server: ServerProcess, published: Published) -> None:
    rollout = Rollout(stock, server)
    asyncio.run(run(rollout, singles=30, shared=4, by_token=60))
    models = [ServedModel.load(published.registry.get(f"animals:{number}"), "cpu") for number in (1, 2)]
    expected = [[offline(model, series)["probabilities"] for series in SERIES] for model in models]
    for outcome in rollout.outcomes:
        (version,) = outcome.versions
        outputs = np.concatenate(outcome.outputs, axis=1)
        reference = expected[(int(version) - 1) % 2][outcome.series][None, : outputs.shape[1]]
        np.testing.assert_array_equal(outputs, np.repeat(reference, len(outputs), axis=0))
    assert sum(len(outcome.outputs[0]) for outcome in rollout.outcomes) == 30 + 4 * STREAMS_PER_SOCKET + 60
    assert {version for outcome in rollout.outcomes for version in outcome.versions} == set("123456")
    with httpx.Client(base_url=server.url) as client:
        # Since the last restart: by its alias, and by a token after the alias had moved on.
        assert max(loads(client, "animals", number) for number in range(1, RELEASES + 1)) <= 2
