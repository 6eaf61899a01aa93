"""Streams of a version that its alias has left: their state tokens continue them on every transport."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client_helpers import Both, BreakingLine
from server_helpers import Published, Running
from serving_helpers import until
from stablernn_client import BadRequest, NotFound
from stablernn_client.channel import version_of
from stablernn_runtime import ServedModel
from stock_helpers import Stock, loads, refusal, version
from stream_helpers import Wire, assert_same_bits, frame, offline, plain

STEPS = 8
BREAK = 3
"""Steps that a stream has taken when its alias moves."""
SAMPLES = np.random.default_rng(5).normal(0, 3, (STEPS, 1)).astype(np.float32)
MODELS = "animals@production", "flow"


@pytest.fixture(scope="module")
def outputs(published: Published) -> dict[str, dict[str, np.ndarray]]:
    """Outputs after each of SAMPLES by version, from the graph for whole sequences."""
    models = {str(number): ServedModel.load(published.registry.get(f"animals:{number}"), "cpu") for number in (1, 2)}
    found = {number: offline(model, SAMPLES) for number, model in models.items()}
    assert not np.array_equal(found["1"]["logits"], found["2"]["logits"])
    return found


@pytest.fixture
def stock(tmp_path: Path, published: Published) -> Stock:
    return Stock(tmp_path / "registry", published)


@pytest.fixture(scope="module")
def moved(
    tmp_path_factory: pytest.TempPathFactory, published: Published
) -> Iterator[tuple[Running, httpx.Client, str]]:
    """A server whose alias has moved from version 1 to 2, with the token of a stream that began before."""
    stock = Stock(tmp_path_factory.mktemp("moved") / "registry", published)
    with stock.served(*MODELS) as (running, client):
        token = begin(client, "animals@production")
        move(stock, client, 2)
        yield running, client, token


def begin(client: httpx.Client, model: str) -> str:
    """The token of a stream that has taken the first of SAMPLES."""
    answer = client.post("/v1/step", json={"model": model, "values": plain(SAMPLES[:BREAK])})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["state_token"])


def move(stock: Stock, client: httpx.Client, number: int) -> None:
    stock.point(number)
    until(lambda: version(client) == str(number))


def check_rest(objects: list[dict[str, Any]], expected: dict[str, np.ndarray]) -> None:
    """Raise unless the outputs of JSON are those after the first of SAMPLES, bit for bit."""
    for name, value in expected.items():
        np.testing.assert_array_equal(np.array([each[name] for each in objects], np.float32), value[BREAK:])


NAMES = ["animals", "animals@production", "animals@staging", "animals:1"]


@pytest.mark.parametrize("model", [None, *NAMES])
@pytest.mark.parametrize("way", ["step", "session"])
def test_a_token_continues_its_version_over_http(
    moved: tuple[Running, httpx.Client, str], outputs: dict[str, dict[str, np.ndarray]], way: str, model: str | None
) -> None:
    _, client, token = moved
    body: dict[str, Any] = {"state_token": token} | ({} if model is None else {"model": model})
    rest = {"values": plain(SAMPLES[BREAK:])}
    if way == "step":
        answer = client.post("/v1/step", json=body | rest)
    else:
        opened = client.post("/v1/sessions", json=body).json()
        assert (opened["model_version"], opened["step"]) == ("1", BREAK)
        answer = client.post(f"/v1/sessions/{opened['session_id']}/step", json=rest)
    found = answer.json()
    assert (found["model_version"], found["step"]) == ("1", STEPS)
    check_rest(found["outputs"], outputs["1"])


@pytest.mark.parametrize("model", ["flow", "animals:2", "fish", "fish:1"])
@pytest.mark.parametrize("path", ["/v1/step", "/v1/sessions"])
def test_a_token_of_another_name_or_number_than_the_request_names(
    moved: tuple[Running, httpx.Client, str], path: str, model: str
) -> None:
    _, client, token = moved
    body = {"state_token": token, "model": model} | ({"values": [1]} if path == "/v1/step" else {})
    assert refusal(client.post(path, json=body))[:2] == (409, "other_model")


@pytest.mark.parametrize("model", ["animals", "animals@production", "animals:1"])
@pytest.mark.parametrize("form", ["text", "binary"])
def test_a_token_continues_its_version_over_a_websocket(
    moved: tuple[Running, httpx.Client, str], outputs: dict[str, dict[str, np.ndarray]], form: str, model: str
) -> None:
    running, _, token = moved
    with Wire(running.url, model) as wire:
        if form == "text":
            answer = wire.say(stream=7, state_token=token, values=plain(SAMPLES[BREAK:]))
            assert (answer["model_version"], answer["step"]) == ("1", STEPS)
            check_rest(answer["outputs"], outputs["1"])
        else:
            rest = SAMPLES[None, BREAK:]
            _, first, _ = wire.step([7], rest[:, :2], tokens=[token], sequence=[BREAK + 1])
            # The second frame finds the stream by its number.
            taken, second, _ = wire.step([7], rest[:, 2:])
            assert taken == [STEPS]
            found = {name: np.concatenate([first[name][0], second[name][0]]) for name in first}
            assert_same_bits(found, {name: value[BREAK:] for name, value in outputs["1"].items()})


def test_streams_of_two_versions_share_a_socket_and_a_frame(
    moved: tuple[Running, httpx.Client, str], outputs: dict[str, dict[str, np.ndarray]]
) -> None:
    running, client, old = moved
    new = begin(client, "animals")
    rest = np.repeat(SAMPLES[None, BREAK:], 3, axis=0)
    sockets = running.app.state.context.sockets
    with Wire(running.url, "animals@production") as wire:
        assert wire.hello["model_version"] == "2"
        _, first, _ = wire.step([5, 6, 9], rest[:, :2], tokens=[old, new, old])
        # What is refused for one version has not moved the other.
        assert "error" in wire.say(stream=5, state_token=old, values=[[1, 2]])
        refused = wire.send(frame([5, 6, 9], rest[:, 2:], sequence=[BREAK + 3, 1, BREAK + 3]))
        assert isinstance(refused, dict)
        assert refused["code"] == "duplicate_step"
        taken, second, tokens = wire.step([5, 6, 9], rest[:, 2:], want_tokens=True)
        assert taken == [STEPS] * 3
        assert [version_of(token) for token in tokens] == ["animals:1", "animals:2", "animals:1"]
        assert sockets.streams == 3
        for place, number in enumerate(["1", "2", "1"]):
            found = {name: np.concatenate([first[name][place], second[name][place]]) for name in first}
            assert_same_bits(found, {name: value[BREAK:] for name, value in outputs[number].items()})
        # A number that a token of the other version is put under leaves the stream that it stood for.
        wire.say(stream=5, state_token=new)
        assert sockets.streams == 3
        assert wire.say(stream=5, values=plain(SAMPLES[BREAK]))["model_version"] == "2"
        assert wire.say(stream=10, values=plain(SAMPLES[0]))["model_version"] == "2"


def test_a_version_of_other_outputs_takes_text_frames_only(stock: Stock, published: Published) -> None:
    """Binary frames would be read by the layout that the socket named first."""
    flow = published.registry.get("flow:1")
    fields = flow.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    stock.registry.publish("animals", {name: flow.path(name) for name in flow.manifest.files}, fields)
    row = [1.0, 2.0, 3.0]
    with stock.served("animals:3") as (_, client):
        stepped = client.post("/v1/step", json={"model": "animals", "values": row}).json()
        expected = client.post("/v1/step", json={"state_token": stepped["state_token"], "values": row}).json()
    with stock.served("animals:1") as (running, _), Wire(running.url, "animals") as wire:
        refused = wire.send(frame([3], np.array([[row]], np.float32), tokens=[stepped["state_token"]]))
        assert isinstance(refused, dict)
        assert (refused["status"], refused["code"]) == (409, "other_model")
        assert "nothing to close" in wire.say(stream=3, close=True)["error"]
        answer = wire.say(stream=3, state_token=stepped["state_token"], values=row)
        assert (answer["model_version"], answer["step"]) == ("3", 2)
        assert answer["outputs"] == expected["outputs"]


def test_a_version_that_is_not_served_begins_no_stream_and_is_not_opened(stock: Stock) -> None:
    with stock.served("animals:2") as (running, client):
        token = begin(client, "animals:2")
    with stock.served("animals:1") as (running, client):
        with Wire(running.url, "animals:2") as wire:
            assert (wire.hello["model_version"], wire.hello["new_streams"]) == ("2", False)
            error = wire.say(stream=4, values=[1])
            assert (error["status"], error["code"]) == (404, "unknown_model")
            assert wire.send(frame([4], np.ones((1, 1, 1), np.float32)))["code"] == "unknown_model"
            forged = token[:-4] + "AAAA"
            assert wire.say(stream=4, state_token=forged)["code"] == "bad_token"
            assert loads(client, "animals", 2) == 0
            assert wire.say(stream=4, state_token=token, values=[1])["model_version"] == "2"
            assert loads(client, "animals", 2) == 1
        assert refusal(client.post("/v1/step", json={"model": "animals:2", "values": [1]}))[:2] == (
            404,
            "unknown_model",
        )


def test_a_token_opens_no_version_of_a_model_that_is_not_served(stock: Stock) -> None:
    with stock.served("animals:1") as (_, client):
        token = begin(client, "animals:1")
    with stock.served("flow") as (running, client):
        for path, body in (("step", {"values": [1]}), ("sessions", {"model": "animals"})):
            refused = client.post(f"/v1/{path}", json={"state_token": token, **body})
            assert refusal(refused)[:2] == (409, "version_gone")
        with Wire(running.url, "flow") as wire:
            assert wire.say(state_token=token)["code"] == "other_model"
        assert loads(client, "animals", 1) == 0


@pytest.mark.parametrize("transport", ["http", "websocket"])
def test_a_version_that_was_opened_for_tokens_closes_when_they_have_expired(stock: Stock, transport: str) -> None:
    with stock.served(*MODELS, token_ttl_seconds=3.0) as (running, client):
        token = begin(client, "animals")
        move(stock, client, 2)
        models = running.app.state.context.models
        with Wire(running.url, "animals") as wire:
            if transport == "http":
                assert client.post("/v1/step", json={"state_token": token, "values": [1]}).status_code == 200
            else:
                assert wire.say(state_token=token)["step"] == BREAK
            model = weakref.ref(models._by_digest[stock.registry.get("animals:1").digest])
            if transport == "websocket":
                until(lambda: not models._token_models)
                # Its stream still holds it, and goes on.
                assert wire.say(values=[1])["step"] == BREAK + 1
        until(lambda: model() is None)


# The project's own client.


@pytest.fixture(params=["threads", pytest.param("asyncio", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_client_continues_the_token_of_an_earlier_version(
    moved: tuple[Running, httpx.Client, str], outputs: dict[str, dict[str, np.ndarray]], kind: str
) -> None:
    running, client, token = moved
    for model in ("animals", "animals@production", "animals:1"):
        with Both.of(kind, running.url) as both, both.stream(model, token=token) as stream:
            assert stream.about.version == "1"
            results = stream.collect(SAMPLES[BREAK:, 0])
        found = np.stack([result.outputs["probabilities"] for result in results])
        np.testing.assert_array_equal(found, outputs["1"]["probabilities"][BREAK:])
        labels = client.get("/v2/models/animals").json()["parameters"]["labels"]
        assert [result.label for result in results] == [labels[place] for place in found.argmax(1)]


@pytest.mark.parametrize("before", [0, pytest.param(1, marks=pytest.mark.slow), BREAK])
def test_the_client_goes_on_after_a_lost_connection(
    stock: Stock, outputs: dict[str, dict[str, np.ndarray]], kind: str, before: int
) -> None:
    """Early in a stream, too, when the client holds no token of a later step."""
    with stock.served(*MODELS) as (running, client):
        line = BreakingLine(running.port)
        with Both.of(kind, line.url) as both, both.streams("animals", 2) as streams:
            results = [streams.step(np.tile(SAMPLES[None, :before], (2, 1, 1)))] if before else []
            move(stock, client, 2)
            line.swallow = 1
            results.append(streams.step(np.tile(SAMPLES[None, before:], (2, 1, 1))))
        line.close()
        for number in (0, 1):
            found = np.concatenate([result.outputs["logits"][number] for result in results])
            np.testing.assert_array_equal(found, outputs["1"]["logits"])


def test_the_client_takes_tokens_of_one_version_at_a_time(moved: tuple[Running, httpx.Client, str], kind: str) -> None:
    running, client, old = moved
    tokens = [old, begin(client, "animals")]
    with Both.of(kind, running.url) as both, pytest.raises(BadRequest, match="got animals:1, animals:2;"):
        both.streams("animals", 2, tokens=tokens)


def test_the_client_begins_no_stream_with_a_version_that_is_not_served(
    moved: tuple[Running, httpx.Client, str], kind: str
) -> None:
    running, _, _ = moved
    with Both.of(kind, running.url) as both, pytest.raises(NotFound, match="version 1 of 'animals'") as caught:
        both.stream("animals:1")
    assert (caught.value.status, caught.value.code) == (404, "unknown_model")


@pytest.mark.parametrize("text", ["", "U1JO", "U1JOVAH_", "not base64!", "U1JOVAE", "AAAAAAAAAAAAAAAA", "é" * 20])
def test_a_text_that_is_no_token_has_no_version(text: str) -> None:
    assert version_of(text) is None
