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

from nginx_helpers import HEADERS, TOKEN, Replicas
from server_helpers import Published
from serving_helpers import until
from stablernn_client import Client
from stablernn_runtime import ServedModel, StateTokens
from stablernn_runtime.scoring import Scorer, StreamShard
from stablernn_runtime.state_token import key_from_text
from stream_helpers import STATE_KEY, Wire, offline, plain, samples

TOKENS = StateTokens(key_from_text(STATE_KEY, "the test"), 600)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["animals", "flow"])
def test_a_stream_moves_between_a_job_and_replicas_of_which_one_is_killed(
    replicas: Replicas, published: Published, name: str
) -> None:
    scorer = Scorer.find(f"{name}:1", registry=published.root)
    shard, model = StreamShard(scorer), scorer.open()
    x = samples(model, 6 * 13)
    outputs: list[dict[str, Any]] = []

    def by_websocket(token: str, part: np.ndarray) -> str:
        with client.stream(name, token=token) as stream:
            outputs.extend(dict(result.outputs) for result in stream.steps(part))
            return stream.token()

    def by_requests(token: str, part: np.ndarray) -> str:
        for sample in part:
            body = {"state_token": token, "values": plain(sample)}
            answer = http.post("/v1/step", json=body).raise_for_status().json()
            outputs.append(answer["outputs"][0])
            token = answer["state_token"]
        return token

    since = replicas.mark()
    with (
        httpx.Client(base_url=replicas.url, headers=HEADERS, timeout=30) as http,
        Client(replicas.url, TOKEN) as client,
    ):
        for move in range(6):
            for sample in x[13 * move : 13 * move + 3]:
                answers = shard.add([0], [len(outputs)], sample[None])
                assert answers.errors == [None]
                outputs.append({output: value[0] for output, value in answers.outputs.items()})
            if move == 4:
                replicas.stop(0)
            take = (by_websocket, by_requests)[move % 2]
            shard.put(0, take(shard.token(0, TOKENS), x[13 * move + 3 : 13 * (move + 1)]), TOKENS)
            assert shard.next_number(0) == len(outputs)
    for output, expected in offline(model, x).items():
        found = np.stack([np.array(answer[output], np.float32) for answer in outputs])
        assert differing_bits(found, expected) == 0
    assert any(len(request.replicas) == 2 for request in replicas.passed(since))


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


@pytest.mark.slow
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
def test_what_one_replica_would_keep_is_refused_and_pages_of_the_address_may_call(replicas: Replicas) -> None:
    with httpx.Client(base_url=replicas.url, headers=HEADERS) as http:
        for method, path in (
            ("POST", "/v1/sessions"),
            ("GET", "/v1/sessions/some"),
            ("POST", "/v2/repository/models/animals/load"),
        ):
            answer = http.request(method, path, json={"model": "animals"})
            assert (answer.status_code, answer.json()["code"]) == (409, "one_process_only")
        for origin, status in ((replicas.url, 200), ("http://other.example", 403)):
            assert http.get("/v2", headers={"Origin": origin}).status_code == status
