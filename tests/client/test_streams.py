"""Streams of the Python client equal the offline run bit for bit, whatever happens to server and connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest

from client_helpers import Both, BothStream, BreakingLine, ServerProcess
from server_helpers import Published, Running
from stablernn_client import (
    AsyncClient,
    BadRequest,
    Client,
    ClientError,
    Conflict,
    ConnectionFailed,
    StreamLost,
)
from stablernn_runtime import ServedModel

STEPS = 90
LOUD = np.random.default_rng(7).normal(0, 3, STEPS).astype(np.float32)
LOUD[[4, 40]] = np.nan
WIDE = np.random.default_rng(8).normal(0, 10, (5, STEPS, 3)).astype(np.float32)


MORTAL = ("--model", "animals:1", "--model", "flow:1")


@pytest.fixture(scope="module")
def restartable(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    process = ServerProcess(published.root, tmp_path_factory.mktemp("mortal") / "log", *MORTAL)
    yield process
    process.kill()


@pytest.fixture
def mortal(restartable: ServerProcess) -> ServerProcess:
    """A server that a test may stop; it runs on for the next where none does."""
    restartable.ensure(*MORTAL)
    return restartable


@pytest.fixture(params=["threads", pytest.param("asyncio", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, server: Running) -> Iterator[Both]:
    with Both.of(kind, server.url) as both:
        yield both


@pytest.fixture(scope="module")
def offline(animals: ServedModel) -> np.ndarray:
    """Probabilities of every beginning of LOUD, ``(steps, classes)``, from the graph for whole sequences."""
    x = np.tile(np.nan_to_num(LOUD, nan=np.nan), (STEPS, 1))[..., None]
    return animals.run_numpy(x, np.arange(1, STEPS + 1))["probabilities"]


@pytest.fixture(scope="module")
def wide_offline(flow: ServedModel) -> np.ndarray:
    """Means of every beginning of each row of WIDE, ``(streams, steps, horizon, targets)``."""
    lengths = np.arange(1, STEPS + 1)
    return np.stack([flow.run_numpy(np.tile(row, (STEPS, 1, 1)), lengths)["mean"] for row in WIDE])


def probabilities(results: list[Any]) -> np.ndarray:
    return np.stack([result.outputs["probabilities"] for result in results])


class TestOneStream:
    @pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, iter], ids=["array", "list", "iterator"])
    def test_many_steps(self, client: Both, offline: np.ndarray, form: Any) -> None:
        with client.stream("animals") as stream:
            results = stream.collect(form(LOUD))
        assert [result.step for result in results] == list(range(1, STEPS + 1))
        np.testing.assert_array_equal(probabilities(results), offline)

    def test_an_asynchronous_iterable_of_samples(self, server: Running, offline: np.ndarray) -> None:
        async def measure() -> AsyncIterator[float]:
            for value in LOUD[:20].tolist():
                await asyncio.sleep(0)
                yield value

        async def work() -> list[Any]:
            async with AsyncClient(server.url) as client, client.stream("animals") as stream:
                return [result async for result in stream.steps(measure())]

        np.testing.assert_array_equal(probabilities(asyncio.run(work())), offline[:20])

    def test_description_of_the_model(self, client: Both) -> None:
        with client.stream("flow") as stream:
            about = stream.about
            assert (about.model, about.version, about.sample_shape) == ("flow", "1", (3,))
            assert about.outputs == {"mean": (5, 2), "quantiles": (5, 2, 3)}
            result = stream.step(WIDE[0, 0])
        assert result.label is None
        assert {name: value.shape for name, value in result.outputs.items()} == about.outputs

    @pytest.mark.parametrize("steps", [0, 7, 32])
    def test_a_token_resumes_the_stream_elsewhere(self, client: Both, offline: np.ndarray, steps: int) -> None:
        with client.stream("animals") as stream:
            stream.collect(LOUD[:steps])
            token = stream.token()
            stream.step(0.0)
        with client.stream("animals", token=token) as stream:
            assert stream.token() == token
            results = stream.collect(LOUD[steps:])
        assert results[0].step == steps + 1
        np.testing.assert_array_equal(probabilities(results), offline[steps:])


class TestSeveralStreams:
    @pytest.mark.parametrize("at_a_time", [1, 6])
    def test_they_take_their_steps_together(self, client: Both, wide_offline: np.ndarray, at_a_time: int) -> None:
        with client.streams("flow", 5) as streams:
            results = [streams.step(WIDE[:, at : at + at_a_time]) for at in range(0, STEPS, at_a_time)]
        assert results[0].steps.tolist() == [at_a_time] * 5
        assert results[-1].steps.tolist() == [STEPS] * 5
        np.testing.assert_array_equal(np.concatenate([result.outputs["mean"] for result in results], 1), wide_offline)
        assert results[0].labels is None


class TestErrors:
    @pytest.mark.parametrize(
        ("sample", "message"),
        [
            (WIDE[0, 0], r"shape \(streams, steps, 1\) .* got \(1, 1, 3\)"),
            (np.inf, "infinite"),
            (1e39, "beyond float32"),
            ("loud", "must hold integers, float32 or float64, got"),
        ],
    )
    def test_samples_that_do_not_fit(self, client: Both, offline: np.ndarray, sample: Any, message: str) -> None:
        with client.stream("animals") as stream:
            with pytest.raises(BadRequest, match=message):
                stream.step(sample)
            np.testing.assert_array_equal(stream.step(LOUD[0]).outputs["probabilities"], offline[0])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"count": 0}, "at least 1, got 0"),
            ({"count": 5000}, "at most 4096 on this server, got 5000"),
            ({"count": 2, "tokens": ["a"]}, "each of the 2 streams, got 1"),
            ({"count": 1, "tokens": [""]}, "the text returned by an earlier stream"),
            ({"count": 1, "token_every": 0}, "token_every must be at least 1"),
        ],
    )
    def test_arguments(self, client: Both, options: dict[str, Any], message: str) -> None:
        with pytest.raises(BadRequest, match=message):
            client.streams("animals", **options)

    @pytest.mark.parametrize("token", ["bm9uc2Vuc2U", "x"])
    def test_a_token_that_no_server_gave(self, client: Both, token: str) -> None:
        with client.stream("animals", token=token) as stream, pytest.raises(StreamLost, match="state token") as caught:
            stream.step(1.0)
        assert caught.value.code == "bad_token"

    def test_two_tasks_in_one_stream(self, server: Running) -> None:
        async def work() -> None:
            async with AsyncClient(server.url) as client, client.stream("animals") as stream:
                results = await asyncio.gather(stream.step(1.0), stream.step(2.0), return_exceptions=True)
                assert [type(result) for result in results].count(ClientError) == 1
                assert "one step at a time" in str(results[1])

        asyncio.run(work())

    def test_a_stream_that_was_never_open(self, server: Running) -> None:
        stream = AsyncClient(server.url).stream("animals")
        with pytest.raises(ClientError, match="not open yet"):
            print(stream.about)


def run_with_events(stream: BothStream, samples: np.ndarray, events: dict[int, Any]) -> list[Any]:
    """Return the results of every step; each event happens before the step of its number."""
    results = []
    for index, sample in enumerate(samples):
        if index in events:
            events[index]()
        results.append(stream.step(sample))
    return results


class TestServersThatGoAway:
    """Early in a stream the samples alone restore it, later a token and the samples since."""

    @pytest.fixture(params=["asyncio", pytest.param("threads", marks=pytest.mark.slow)])
    def kind(self, request: pytest.FixtureRequest) -> str:
        """Both clients share the code that restores streams, so the blocking one is tested with the slow tests only."""
        return str(request.param)

    @pytest.mark.slow
    @pytest.mark.parametrize("action", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
    def test_restarts_in_the_middle_of_a_stream(
        self, mortal: ServerProcess, kind: str, action: str, offline: np.ndarray
    ) -> None:
        def restart() -> None:
            getattr(mortal, action)()
            timers.append(mortal.restart_later(0.2))

        timers: list[Any] = []
        with Both.of(kind, mortal.url) as client, client.stream("animals", token_every=10) as stream:
            results = run_with_events(stream, LOUD, {5: restart, 37: restart})
        for timer in timers:
            timer.join()
        assert len(timers) == 2
        assert [result.step for result in results] == list(range(1, STEPS + 1))
        np.testing.assert_array_equal(probabilities(results), offline)

    @pytest.mark.slow
    def test_a_restart_with_another_key(self, mortal: ServerProcess, kind: str, offline: np.ndarray) -> None:
        with (
            Both.of(kind, mortal.url) as client,
            client.stream("animals", token_every=10) as young,
            client.stream("animals", token_every=10) as old,
        ):
            young.collect(LOUD[:9])
            run_with_events(old, LOUD[:12], {})
            mortal.kill()
            mortal.start("another key, no less than thirty-two bytes")
            with pytest.raises(StreamLost, match="not signed by this server's key") as caught:
                old.step(LOUD[12])
            assert caught.value.code == "bad_token"
            assert isinstance(caught.value.__cause__, BadRequest)
            # The client still has all samples of this stream, which needs no token.
            np.testing.assert_array_equal(young.step(LOUD[9]).outputs["probabilities"], offline[9])

    @pytest.mark.slow
    def test_a_slow_stream_takes_a_token_in_time(self, mortal: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server with another key shows it: only a stream without a token can be restored there."""
        with Client(mortal.url) as client, client.stream("animals") as stream:
            stream.step(LOUD[0])
            monkeypatch.setattr("stablernn_client.channel.TOKEN_MAX_AGE_SECONDS", 0.0)
            stream.step(LOUD[1])
            mortal.kill()
            mortal.start("another key, no less than thirty-two bytes")
            with pytest.raises(StreamLost):
                stream.step(LOUD[2])

    def test_a_server_that_does_not_come_back(self, mortal: ServerProcess, kind: str, offline: np.ndarray) -> None:
        with Both.of(kind, mortal.url, timeout=1.0) as client, client.stream("animals") as stream:
            stream.collect(LOUD[:5])
            mortal.kill()
            with pytest.raises(ConnectionFailed):
                stream.step(LOUD[5])
            mortal.start()
            # The step was not taken, and may be repeated.
            result = stream.step(LOUD[5])
        assert result.step == 6
        np.testing.assert_array_equal(result.outputs["probabilities"], offline[5])


class TestLinesThatBreak:
    @pytest.fixture
    def breaking(self, server: Running) -> Iterator[BreakingLine]:
        proxy = BreakingLine(server.port)
        yield proxy
        proxy.close()

    def test_an_answer_that_was_lost(self, breaking: BreakingLine, kind: str, offline: np.ndarray) -> None:
        """The server has taken the step, and the client cannot know."""

        def lose() -> None:
            breaking.swallow = 1

        with Both.of(kind, breaking.url) as client, client.stream("animals", token_every=8) as stream:
            before = breaking.connections
            results = run_with_events(stream, LOUD, {0: lose, 3: lose, 8: lose, 20: lose, 21: lose})
            assert breaking.connections == before + 5
        assert [result.step for result in results] == list(range(1, STEPS + 1))
        np.testing.assert_array_equal(probabilities(results), offline)

    def test_a_connection_that_was_accepted_and_lost_before_the_first_message(
        self, breaking: BreakingLine, kind: str, offline: np.ndarray
    ) -> None:
        """As where a replica behind a proxy is killed while a stream begins."""
        breaking.accept_and_lose = 2
        with Both.of(kind, breaking.url) as client, client.stream("animals") as stream:
            assert breaking.connections == 3
            np.testing.assert_array_equal(stream.step(LOUD[0]).outputs["probabilities"], offline[0])

    def test_text_messages_too(self, breaking: BreakingLine, kind: str) -> None:
        times = np.datetime_as_string(np.datetime64("2024-01-06") + 7 * np.arange(30), unit="D").tolist()
        with (
            Both.of(kind, breaking.url) as client,
            client.stream("co2", token_every=6) as stream,
            Both.of(kind, breaking.server_url) as other,
            other.stream("co2") as calm,
        ):
            before = breaking.connections
            for index, (value, time) in enumerate(zip(LOUD[10:40], times, strict=True)):
                breaking.swallow = int(index in (0, 2, 9, 22))
                result = stream.step(value, time=time)
                assert result.step == index + 1
                np.testing.assert_array_equal(result.outputs["mean"], calm.step(value, time=time).outputs["mean"])
            assert breaking.connections == before + 4

    def test_samples_sent_again_keep_their_time(self, breaking: BreakingLine, kind: str) -> None:
        with Both.of(kind, breaking.url) as client, client.stream("co2") as stream:
            stream.step(1.0, time="2024-01-06")
            stream.step(2.0)
            breaking.swallow = 1
            stream.step(3.0)
            with pytest.raises(Conflict, match="2 steps are missing"):
                stream.step(4.0, time="2024-02-10")
            assert stream.step(4.0, time="2024-01-27").step == 4

    def test_tokens_that_were_lost(self, breaking: BreakingLine, kind: str, offline: np.ndarray) -> None:
        with Both.of(kind, breaking.url) as client, client.stream("animals") as stream:
            stream.collect(LOUD[:5])
            breaking.swallow = 1
            token = stream.token()
            with client.stream("animals", token=token) as other:
                for each in (stream, other):
                    np.testing.assert_array_equal(each.step(LOUD[5]).outputs["probabilities"], offline[5])

    def test_the_reply_to_a_cancelled_step_is_not_that_to_the_next(self, server: Running, offline: np.ndarray) -> None:
        async def work() -> Any:
            async with AsyncClient(server.url) as client, client.stream("animals") as stream:
                abandoned = asyncio.ensure_future(stream.step(99.0))
                while not stream._channel._connection.is_awaiting_reply:
                    await asyncio.sleep(0)
                abandoned.cancel()
                await asyncio.wait([abandoned])
                return await stream.step(LOUD[0])

        np.testing.assert_array_equal(asyncio.run(work()).outputs["probabilities"], offline[0])

    def test_steps_that_were_cancelled(self, server: Running, offline: np.ndarray) -> None:
        """A step that is cancelled at any moment was not taken; its reply is not read as that of the next step."""

        async def work() -> tuple[list[Any], int]:
            results: list[Any] = []
            cancelled = 0
            async with AsyncClient(server.url) as client, client.stream("animals", token_every=8) as stream:
                while len(results) < STEPS // 2:
                    # From before anything is sent to about the arrival of the reply.
                    timeout = (cancelled % 12) * 2e-4
                    task = asyncio.ensure_future(stream.step(LOUD[len(results)]))
                    done, _ = await asyncio.wait([task], timeout=timeout if cancelled < 24 else None)
                    if not done:
                        task.cancel()
                        cancelled += 1
                    try:
                        results.append(await task)
                    except asyncio.CancelledError:
                        continue
            return results, cancelled

        results, cancelled = asyncio.run(work())
        assert cancelled  # how many, depends on the machine
        assert [result.step for result in results] == list(range(1, STEPS // 2 + 1))
        np.testing.assert_array_equal(probabilities(results), offline[: STEPS // 2])
