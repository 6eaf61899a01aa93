"""Two replicas behind nginx share nothing but the registry and the key: streams move, replicas die, no bit changes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosedError

from nginx_helpers import CONFIG, HEADERS, TOKEN, Progress, Replicas
from server_helpers import Published, json_tensor
from serving_helpers import until
from stablernn_client import Client
from stablernn_runtime import ServedModel, StateTokens
from stablernn_runtime.scoring import Scorer, StreamShard
from stablernn_runtime.state_token import key_from_text
from stablernn_server import Settings
from stream_helpers import STATE_KEY, Wire, offline, plain, samples

TOKENS = StateTokens(key_from_text(STATE_KEY, "the test"), 600)
JOB_STEPS = 3
"""Steps that a stream takes in the job between two visits to the servers."""
THREADS = 4


@pytest.fixture(scope="module")
def running(published: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    models = ("--model", "animals:1", "--model", "flow:1")
    replicas = Replicas(published.root, tmp_path_factory.mktemp("replicas"), *models, state_key=STATE_KEY)
    yield replicas
    replicas.close()


@pytest.fixture
def replicas(running: Replicas) -> Replicas:
    """Both replicas, also after a test that has killed one."""
    running.ensure()
    return running


def differing_bits(actual: np.ndarray, expected: np.ndarray) -> int:
    assert actual.shape == expected.shape
    return int(np.bitwise_count(actual.astype("<f4").view(np.uint32) ^ expected.view(np.uint32)).sum())


class MovingStream:
    """A stream that moves between a job and the replicas; keeps every answer.

    Attributes:
        outputs: The answers by name, one for each step.
    """

    def __init__(self, shard: StreamShard, name: str, key: int, x: np.ndarray, http: httpx.Client, client: Client):
        self._shard, self._name, self._key, self._x = shard, name, key, x
        self._http, self._client = http, client
        self.outputs: dict[str, list[np.ndarray]] = {}
        self.step = 0

    def _keep(self, outputs: dict[str, Any]) -> None:
        for name, value in outputs.items():
            if name != "label":
                self.outputs.setdefault(name, []).append(np.array(value, np.float32))
        self.step += 1

    def in_job(self) -> None:
        for _ in range(JOB_STEPS):
            answers = self._shard.add([self._key], [self.step], self._x[self.step][None])
            assert answers.errors == [None]
            self._keep({name: value[0] for name, value in answers.outputs.items()})

    def move(self, steps: int, *, by_websocket: bool) -> None:
        """Take steps on the replicas, by a WebSocket or by requests, and return to the job."""
        token = self._shard.token(self._key, TOKENS)
        take = self._by_websocket if by_websocket else self._by_requests
        self._shard.put(self._key, take(token, self._x[self.step : self.step + steps]), TOKENS)
        assert self._shard.next_number(self._key) == self.step

    def _by_websocket(self, token: str, x: np.ndarray) -> str:
        with self._client.stream(self._name, token=token) as stream:
            for sample in x:
                result = stream.step(sample)
                self._keep(dict(result.outputs))
                assert result.step == self.step
            return stream.token()

    def _by_requests(self, token: str, x: np.ndarray) -> str:
        for sample in x:
            body = {"state_token": token, "values": plain(sample)}
            answer = self._http.post("/v1/step", json=body).raise_for_status().json()
            self._keep(answer["outputs"][0])
            assert answer["step"] == self.step
            token = answer["state_token"]
        return token


def move_streams(
    replicas: Replicas, published: Published, streams: range, moves: int, steps: int, progress: Progress
) -> list[int]:
    """Move streams one after the other, every second one of another model; how many bits differ in each."""
    scorers = {name: Scorer.find(f"{name}:1", registry=published.root) for name in ("animals", "flow")}
    shards = {name: StreamShard(scorer) for name, scorer in scorers.items()}
    differences = []
    with (
        httpx.Client(base_url=replicas.url, headers=HEADERS, timeout=30) as http,
        Client(replicas.url, TOKEN) as client,
    ):
        for key in streams:
            name = ("animals", "flow")[key // THREADS % 2]
            model: ServedModel = scorers[name].open()
            x = samples(model, (moves + 1) * JOB_STEPS + moves * steps, seed=key)
            stream = MovingStream(shards[name], name, key, x, http, client)
            stream.in_job()
            for move in range(moves):
                stream.move(steps, by_websocket=(move + key) % 2 == 0)
                stream.in_job()
                progress.add()
            expected = offline(model, x)
            assert stream.outputs.keys() == expected.keys()
            differences.append(
                sum(differing_bits(np.stack(stream.outputs[output]), value) for output, value in expected.items())
            )
    return differences


@pytest.mark.slow
@pytest.mark.parametrize(
    ("streams", "moves", "steps", "kills"),
    [(8, 3, 10, 1), pytest.param(200, 5, 100, 4, marks=pytest.mark.slow)],
    ids=["24-moves", "1000-moves"],
)
def test_streams_move_between_a_job_and_replicas_of_which_some_are_killed(
    replicas: Replicas, published: Published, streams: int, moves: int, steps: int, kills: int
) -> None:
    since, progress, total = replicas.mark(), Progress(), streams * moves
    with ThreadPoolExecutor(THREADS) as threads:
        parts = [range(first, streams, THREADS) for first in range(THREADS)]
        jobs = [threads.submit(move_streams, replicas, published, keys, moves, steps, progress) for keys in parts]

        def has_come_to(count: float) -> bool:
            return progress.count >= count or any(job.done() for job in jobs)

        for kill in range(kills):
            until(lambda count=total * (kill + 0.5) / kills: has_come_to(count), 600)
            assert progress.count < total
            replicas.stop(kill % 2)
            # Some moves are made by the other alone.
            alone = min(progress.count + THREADS, total)
            until(lambda count=alone: has_come_to(count), 600)
            replicas.ensure()
        differences = [bits for job in jobs for bits in job.result()]
    assert (len(differences), sum(differences), progress.count) == (streams, 0, total)
    passed = [request for request in replicas.passed(since) if request.request.endswith(("/v1/step", "/v1/stream"))]
    assert {request.status for request in passed} == {101, 200}
    # Round robin while both are there; and requests that were passed on after a first try.
    answered = [sum(request.replicas[-1] == number for request in passed) for number in (0, 1)]
    assert min(answered) > len(passed) / 5
    assert any(len(request.replicas) == 2 for request in passed)


def step(replicas: Replicas, value: float) -> httpx.Response:
    body = {"model": "animals", "values": [value]}
    return httpx.post(f"{replicas.url}/v1/step", json=body, headers=HEADERS, timeout=30)


@pytest.mark.slow
def test_a_request_in_flight_at_a_replica_that_dies_is_answered_by_the_other(
    replicas: Replicas, animals: ServedModel
) -> None:
    since = replicas.mark()
    # It accepts and reads nothing any more, as a machine that hangs.
    replicas.servers[0].process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(step, replicas, value) for value in (1.0, 2.0)]
        until(lambda: any(answer.done() for answer in answers))
        assert not all(answer.done() for answer in answers)
        replicas.stop(0)
        for answer, value in zip(answers, (1.0, 2.0), strict=True):
            outputs = answer.result().raise_for_status().json()["outputs"][0]
            (expected,) = animals.run_numpy(np.full((1, 1, 1), value, np.float32))["logits"]
            assert differing_bits(np.array(outputs["logits"], np.float32), expected) == 0
    assert sorted(request.replicas for request in replicas.passed(since)) == [(0, 1), (1,)]


def holder_of_the_stream(replicas: Replicas) -> int:
    """Return the number of the replica that has the only open stream."""

    def holder() -> list[int]:
        counts = [replicas.metric(number, "streams") for number in (0, 1)]
        return [counts.index(1)] if sorted(counts) == [0, 1] else []

    [number] = until(holder)
    return int(number)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_a_websocket_stream_goes_on_at_the_other_replica(
    replicas: Replicas, animals: ServedModel, how: signal.Signals
) -> None:
    x = samples(animals, 60)
    expected = offline(animals, x)["logits"]
    with Client(replicas.url, TOKEN) as client, client.stream("animals", token_every=8) as stream:
        outputs = [result.outputs["logits"] for result in stream.steps(x[:40])]
        holder = holder_of_the_stream(replicas)
        replicas.stop(holder, how)
        outputs += [stream.step(sample).outputs["logits"] for sample in x[40:]]
        until(lambda: replicas.metric(1 - holder, "streams") == 1)
    assert differing_bits(np.stack(outputs), expected) == 0


def test_a_token_goes_on_at_the_other_replica_without_the_python_client(
    replicas: Replicas, animals: ServedModel
) -> None:
    x = samples(animals, 4)
    expected = offline(animals, x)["logits"]
    with Wire(replicas.url, "animals", additional_headers=HEADERS) as wire:
        token = wire.say(values=plain(x[:2]), token=True)["state_token"]
        holder = holder_of_the_stream(replicas)
        wire.say(values=plain(x[2]))
        replicas.stop(holder)
        with pytest.raises(ConnectionClosedError, match="no close frame received"):
            wire.socket.recv(10)
    # What came after the token is sent again.
    with Wire(replicas.url, "animals", additional_headers=HEADERS) as wire:
        assert wire.say(state_token=token)["step"] == 2
        answers = wire.say(values=plain(x[2:]))["outputs"]
    assert differing_bits(np.array([answer["logits"] for answer in answers], np.float32), expected[2:]) == 0


@pytest.mark.slow
def test_without_a_replica_clients_are_told_to_come_back(replicas: Replicas, animals: ServedModel) -> None:
    x = samples(animals, 20)
    expected = offline(animals, x)["logits"]
    with Client(replicas.url, TOKEN) as client, client.stream("animals") as stream:
        outputs = [result.outputs["logits"] for result in stream.steps(x[:10])]
        for number in (0, 1):
            replicas.stop(number)
        answer = step(replicas, 1.0)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json() == {"error": "No replica can be reached.", "code": "not_ready"}
        with ThreadPoolExecutor(1) as threads:
            rest = threads.submit(lambda: [stream.step(sample).outputs["logits"] for sample in x[10:]])
            replicas.restart(1)
            outputs += rest.result()
    assert differing_bits(np.stack(outputs), expected) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/sessions"),
        ("GET", "/v1/sessions/some"),
        ("POST", "/v1/sessions/some/step"),
        ("POST", "/v2/repository/models/animals/load"),
        ("POST", "/v2/repository/models/animals/unload"),
    ],
)
def test_what_one_replica_would_keep_is_refused(replicas: Replicas, method: str, path: str) -> None:
    answer = httpx.request(method, f"{replicas.url}{path}", json={"model": "animals"}, headers=HEADERS)
    assert (answer.status_code, answer.json()["code"]) == (409, "one_process_only")
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.slow
def test_a_sequence_is_unknown_to_the_other_replica(replicas: Replicas) -> None:
    def infer(**parameters: object) -> httpx.Response:
        body = {"inputs": [json_tensor("x", np.ones((1, 1, 1), np.float32))], "parameters": parameters}
        return http.post("/v2/models/animals/infer", json=body)

    with httpx.Client(base_url=replicas.url, headers=HEADERS) as http:
        assert infer(sequence_id=7, sequence_start=True).status_code == 200
        answers = [infer(sequence_id=7) for _ in range(2)]
    assert sorted(answer.status_code for answer in answers) == [200, 409]
    assert {answer.json().get("code") for answer in answers} == {None, "unknown_sequence"}


@pytest.mark.slow
def test_pages_of_the_address_of_nginx_may_call(replicas: Replicas) -> None:
    for origin, status in ((replicas.url, 200), ("http://other.example", 403)):
        answer = httpx.get(f"{replicas.url}/v2", headers={**HEADERS, "Origin": origin})
        assert answer.status_code == status


def test_sizes_and_times_of_the_file_fit_the_server() -> None:
    text, settings = CONFIG.read_text(encoding="utf-8"), Settings()
    assert f"client_max_body_size {settings.max_body_bytes // 2**20}m;" in text
    assert "proxy_read_timeout 65s;" in text
    assert settings.request_timeout_seconds < 65
