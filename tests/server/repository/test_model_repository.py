"""The table of models while several things happen to it at once: aliases that move, tokens, a memory budget."""

from __future__ import annotations

import importlib
import json
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from engine_helpers import write_plugin
from scheduler_helpers import PATIENT
from server_helpers import Published, Running, json_tensor
from serving_helpers import until
from stablernn_server import ModelLoadError, Settings, create_app
from stablernn_server.model_repository import resolve_version
from stock_helpers import Stock, index, infer, loads, noise, refusal, version

GATED = """
import threading

from some_engines import Engine

gate = threading.Event()
reached = threading.Event()
failure = None


class Gated(Engine):
    def __init__(self, folder, device):
        reached.set()
        assert gate.wait(30)
        if failure is not None:
            raise failure
        super().__init__(folder, device)
"""
FAST = {"reload_seconds": 0.05}
STILL = {"reload_seconds": 0.0}
TIGHT = {"memory_budget_bytes": 1}
"""Room for no more than the model that is asked for."""


@pytest.fixture
def stock(tmp_path: Path, published: Published) -> Stock:
    return Stock(tmp_path / "registry", published)


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of an engine that opens nothing while its ``gate`` is shut, and fails with its ``failure``."""
    folder = write_plugin(tmp_path / "plugin")
    entries = folder / "some_engines-1.0.dist-info" / "entry_points.txt"
    entries.write_text(entries.read_text() + "gated = gated_engine:Gated\n")
    (folder / "gated_engine.py").write_text(GATED)
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("gated_engine")
    module.gate.set()
    yield module
    module.gate.set()
    del sys.modules["gated_engine"]


def test_a_name_answers_with_its_highest_number() -> None:
    versions = {"digits": [9, 10]}
    aliases: dict[tuple[str, int], tuple[str, ...]] = {("digits", number): () for number in versions["digits"]}
    assert resolve_version("digits", None, versions, {}, aliases) == ("digits", 10)


def shut(gated: Any) -> None:
    gated.gate.clear()
    gated.reached.clear()


def begin(client: httpx.Client, model: str) -> dict[str, Any]:
    return begun(client.post("/v1/step", json={"model": model, "values": [1]}))


def go_on(client: httpx.Client, stepped: dict[str, Any]) -> dict[str, Any]:
    return begun(client.post("/v1/step", json={"state_token": stepped["state_token"], "values": [1]}))


def begun(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def forecast(client: httpx.Client) -> None:
    body = {"model": "flow", "inputs": [{"series": noise(4, 3).tolist()}]}
    assert client.post("/v1/timeseries/forecast", json=body).status_code == 200


# Tokens of versions that are not served, or not open.


def test_tokens_of_a_version_that_is_served_no_more_open_it_once(stock: Stock) -> None:
    with stock.served("animals@production") as (_, client):
        stepped = begin(client, "animals@production")
        stock.point(2)
        until(lambda: version(client) == "2")
        for _ in range(5):
            stepped = go_on(client, stepped)
        assert (stepped["model_version"], stepped["step"]) == ("1", 6)
        # The last request of the old version may have had it in hand.
        assert loads(client, "animals", 1) <= 2


def test_a_token_opens_a_version_that_was_closed_to_make_room_for_everybody(stock: Stock) -> None:
    with stock.served("animals:1", "flow", **STILL, **TIGHT) as (_, client):
        stepped = begin(client, "animals")
        forecast(client)
        until(lambda: index(client)["animals", 1][1])
        before = loads(client, "animals", 1)
        for _ in range(4):
            stepped = go_on(client, stepped)
        assert version(client) == "1"
        assert index(client)["animals", 1] == ("READY", "")
        assert loads(client, "animals", 1) == before + 1


def test_of_versions_that_only_tokens_name_the_last_used_stay_open(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stablernn_server.version_loader.MAX_TOKEN_MODELS", 2)
    for _ in range(2):
        stock.copy(stock.registry.get("animals:1"))
    names = [f"animals:{number}" for number in (1, 2, 3)]
    with stock.served(*names) as (_, client):
        tokens = {name: begin(client, name) for name in names}
    with stock.served("animals:4") as (_, client):
        for number in (1, 2, 1, 3, 1, 3, 2):
            go_on(client, tokens[f"animals:{number}"])
        assert [loads(client, "animals", number) for number in (1, 2, 3)] == [1, 2, 1]


def test_a_version_that_cannot_be_opened_for_a_token_is_not_tried_each_time(stock: Stock) -> None:
    with stock.served("animals:1") as (_, client):
        stepped = begin(client, "animals:1")
    path = stock.registry.get("animals:1").path("step.onnx")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with stock.served("animals:2") as (_, client):
        body = {"state_token": stepped["state_token"], "values": [1]}
        said = {refusal(client.post("/v1/step", json=body)) for _ in range(3)}
        (status, code, sentence) = said.pop()
        assert (status, code, said) == (409, "version_gone", set())
        assert "is damaged" in sentence
        assert loads(client, "animals", 1, "failed") == 1


# What nobody foresaw while a version is opened.


def test_whatever_goes_wrong_while_a_version_is_opened_is_a_failed_load(stock: Stock, gated: Any) -> None:
    sentence = (
        "'animals:2' cannot be served: opening it failed with TypeError: no such kernel. The server's log says where."
    )
    with stock.served("animals@production", "flow", engine="gated") as (_, client):
        gated.failure = TypeError("no such kernel")
        stock.point(2)
        until(lambda: index(client)["animals", 2] == ("UNAVAILABLE", sentence))
        assert refusal(client.post("/v2/repository/models/animals:2/load")) == (409, "load_failed", sentence)
        assert loads(client, "animals", 2, "failed") == 2
        assert version(client) == "1"
    with pytest.raises(ModelLoadError) as caught:
        create_app(Settings(registry=stock.registry.root, models=("animals:2",), engine="gated"))
    assert str(caught.value) == sentence


# Requests that wait while the table changes.


def waits(running: Running) -> Callable[[], bool]:
    """Whether one request is read and not answered: it waits for its model."""
    in_flight = running.app.state.context.in_flight
    return lambda: [item.is_read for item in list(in_flight)] == [True]


@contextmanager
def moving(stock: Stock, gated: Any) -> Iterator[tuple[Running, httpx.Client, ThreadPoolExecutor]]:
    """A server of which the first version of ``animals`` is closed while the second is opened in its place."""
    with (
        stock.served("animals@production", "flow", engine="gated", **FAST, **TIGHT) as (running, client),
        ThreadPoolExecutor() as pool,
    ):
        shut(gated)
        stock.point(2)
        assert gated.reached.wait(PATIENT)
        yield running, client, pool


def test_a_request_that_waits_while_its_alias_moves_is_answered_by_the_new_version(stock: Stock, gated: Any) -> None:
    with moving(stock, gated) as (running, client, pool):
        waiting = pool.submit(version, client, "animals@production")
        until(waits(running))
        gated.gate.set()
        assert waiting.result(PATIENT) == "2"
        assert loads(client, "animals", 1) == 1


def test_a_request_for_a_version_that_goes_while_it_waits_is_told_what_is_served(stock: Stock, gated: Any) -> None:
    with moving(stock, gated) as (running, client, pool):
        waiting = pool.submit(infer, client, "animals:1", noise(1, 2, 1))
        until(waits(running))
        gated.gate.set()
        sentence = "The model 'animals' has no version 1 here. Served: 2 (production)."
        assert refusal(waiting.result(PATIENT)) == (404, "unknown_model", sentence)


INFER = {"inputs": [json_tensor("x", np.ones((1, 2, 1), np.float32))]}
LATE = (504, "deadline", "The deadline passed before the model was open; give more time or retry.")


@pytest.mark.parametrize(
    ("settings", "path", "body"),
    [
        ({}, "/v2/models/animals/infer", INFER | {"parameters": {"timeout": 300_000}}),
        (
            {"request_timeout_seconds": 0.3},
            "/v1/timeseries/classify",
            {"model": "animals", "inputs": [{"series": [1]}]},
        ),
        ({"request_timeout_seconds": 0.3}, "/v1/step", {"model": "animals", "values": [1]}),
    ],
)
def test_a_model_is_waited_for_no_longer_than_a_request_may_take(
    stock: Stock, gated: Any, settings: dict[str, float], path: str, body: dict[str, Any]
) -> None:
    """Nor is the client told meanwhile that its body did not arrive."""
    limits = settings | {"read_timeout_seconds": 0.05}
    with stock.served("animals:1", "flow", engine="gated", **STILL, **TIGHT, **limits) as (_, client):
        shut(gated)
        assert refusal(client.post(path, json=body)) == LATE
        # The model is opened all the same, once.
        assert gated.reached.wait(PATIENT)
        gated.gate.set()
        until(lambda: index(client)["animals", 1] == ("READY", ""))
        assert version(client) == "1"
        assert loads(client, "animals", 1) == 2


def test_a_websocket_waits_for_its_model_no_longer_than_a_request(stock: Stock, gated: Any) -> None:
    limits = {"request_timeout_seconds": 0.3}
    with stock.served("animals:1", "flow", engine="gated", **STILL, **TIGHT, **limits) as (running, _):
        shut(gated)
        with pytest.raises(InvalidStatus) as caught, connect(f"ws://127.0.0.1:{running.port}/v1/stream?model=animals"):
            pass
        gated.gate.set()
    answer = caught.value.response
    told = json.loads(answer.body)
    assert (answer.status_code, told["code"], told["error"]) == LATE


def cut_off(running: Running, path: str) -> int:
    """Status of the answer to a request whose body never comes to its end."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{{"
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENT) as connection:
        connection.sendall(head.encode())
        return int(connection.recv(65536).split()[1])


def test_what_is_not_served_is_said_before_the_body_is_read(stock: Stock) -> None:
    with stock.served("flow") as (running, _):
        assert cut_off(running, "/v2/models/fish/infer") == 404


# Models that somebody still uses.


def test_a_model_that_a_session_holds_is_not_opened_again(stock: Stock) -> None:
    with stock.served("animals:1", "flow", **STILL, **TIGHT) as (_, client):
        session = client.post("/v1/sessions", json={"model": "animals"}).json()["session_id"]
        before = loads(client, "animals", 1)
        for _ in range(3):
            forecast(client)
            begun(client.post(f"/v1/sessions/{session}/step", json={"values": [1]}))
            assert version(client) == "1"
        assert loads(client, "animals", 1) == before
        rows = client.post("/v2/repository/index", json={"ready": True}).json()
        assert [row["name"] for row in rows] == client.get("/v1/timeseries/models").json() == ["animals", "flow"]


def test_a_request_that_was_given_up_keeps_no_model(stock: Stock) -> None:
    with stock.served("animals:1", "flow", read_timeout_seconds=0.1, **STILL) as (running, client):
        model = weakref.ref(running.app.state.context.models.get("animals", 1))
        assert cut_off(running, "/v2/models/animals/infer") == 408
        assert client.post("/v2/repository/models/animals/unload").status_code == 200
        until(lambda: model() is None)
