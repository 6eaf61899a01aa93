"""Versions that come and go under a running server, and what a server says when it stops."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from server_helpers import Published, Running
from serving_helpers import command, rss_mb, start_serve, until
from stablernn_runtime import ServedModel
from stablernn_server import ModelLoadError, Settings, create_app
from stock_helpers import SECONDS, SENTENCES, STATE_KEY, Stock, index, infer, loads, logits, noise, refusal, version


@pytest.fixture
def stock(tmp_path: Path, published: Published) -> Stock:
    return Stock(tmp_path / "registry", published)


@pytest.fixture(scope="module")
def opened(published: Published) -> dict[str, ServedModel]:
    refs = ("animals:1", "animals:2", "flow:1")
    return {ref: ServedModel.load(published.registry.get(ref), "cpu") for ref in refs}


def test_an_alias_that_moves_is_followed(stock: Stock, opened: dict[str, ServedModel]) -> None:
    x = noise(2, 7, 1)
    with stock.served("animals@production") as (_, client):
        assert np.array_equal(logits(infer(client, "animals", x))[1], opened["animals:1"].run_sequence(x)["logits"])
        assert index(client)["animals", 2] == ("UNAVAILABLE", "not loaded")
        stock.point(2)
        until(lambda: version(client) == "2")
        for name in ("animals", "animals@production", "animals:2"):
            found = logits(infer(client, name, x))
            assert found[0] == "2"
            assert np.array_equal(found[1], opened["animals:2"].run_sequence(x)["logits"])
        states = index(client)
        assert states["animals", 1] == ("UNAVAILABLE", "the alias 'production' has moved on to version 2")
        assert states["animals", 2] == ("READY", "")
        status, code, sentence = refusal(infer(client, "animals:1", x))
        assert (status, code) == (404, "unknown_model")
        assert sentence == "The model 'animals' has no version 1 here. Served: 2 (production)."


def test_an_alias_that_is_unloaded_is_not_stale(stock: Stock) -> None:
    def metric() -> str:
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        return "".join(line for line in lines if line.startswith("stablernn_stale_aliases{"))[-3:]

    with stock.served("animals@production", "flow") as (server, client):
        stock.point(stock.broken("of two models"))
        until(lambda: metric() == "1.0")
        assert client.post("/v2/repository/models/animals/unload").status_code == 200
        assert metric() == "0.0"


def test_aliases_that_are_not_served_are_shown_as_they_are_now(stock: Stock) -> None:
    with stock.served("animals:1", "animals:2") as (_, client):
        stock.registry.set_alias("animals", "canary", 2)
        until(lambda: client.get("/v2/models/animals@canary/ready").status_code == 200)
        assert version(client, "animals@canary") == "2"
        assert client.get("/v2/models/animals/versions/2").json()["parameters"]["aliases"] == ["canary"]
        assert version(client) == "2"


def test_the_old_version_answers_what_it_has_in_hand(stock: Stock, opened: dict[str, ServedModel]) -> None:
    stock.copy(stock.published.registry.get("flow:1"))
    stock.registry.set_alias("flow", "production", 1)
    x = noise(1, 500_000, 3)
    body = {
        "inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": 0}}]
    }
    body["inputs"][0]["parameters"] = {"binary_data_size": x.nbytes}
    body["outputs"] = [{"name": "mean"}]
    head = json.dumps(body).encode()

    def ask() -> tuple[str, list[float]]:
        answer = httpx.post(
            f"{running.url}/v2/models/flow/infer",
            content=head + x.tobytes(),
            headers={"Inference-Header-Content-Length": str(len(head))},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["model_version"], answer.json()["outputs"][0]["data"]

    settings = {"request_timeout_seconds": 60, "max_steps": len(x[0])}
    with stock.served("flow@production", **settings) as (running, client), ThreadPoolExecutor() as pool:
        context = running.app.state.context
        long = pool.submit(ask)
        until(lambda: context.scheduler.pending == 1)
        assert client.post("/v2/repository/models/flow:2/load").status_code == 200
        stock.registry.set_alias("flow", "production", 2)
        until(lambda: client.get("/v2/models/flow/versions/1/ready").status_code == 404)
        assert not long.done()
        number, mean = long.result()
    assert number == "1"
    assert np.array_equal(np.array(mean, np.float32), opened["flow:1"].run_sequence(x)["mean"].reshape(-1))


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_failed_load_leaves_the_old_version_serving(
    stock: Stock, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    bad = stock.broken(kind)
    with stock.served("animals@production") as (_, client):
        stock.point(bad)
        reason = until(lambda: (found := index(client)["animals", bad][1]) != "not loaded" and found)
        assert SENTENCES[kind] in reason
        # It is looked at again and again, and told once.
        time.sleep(5 * SECONDS)
        assert version(client) == "1"
        assert loads(client, "animals", bad, "failed") == 1
        failures = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
        assert failures == [f"animals@production is still answered by version 1: {reason}"]
        status, code, sentence = refusal(client.post(f"/v2/repository/models/animals:{bad}/load"))
        assert (status, code, sentence) == (409, "load_failed", reason)
        assert version(client) == "1"
        stock.point(2)
        until(lambda: version(client) == "2")
        assert index(client)["animals", bad] == ("UNAVAILABLE", reason)


def test_aliases_are_followed_beside_one_whose_version_cannot_be_served(stock: Stock) -> None:
    stock.copy(stock.published.registry.get("flow:1"))
    stock.registry.set_alias("flow", "live", 1)
    bad = stock.broken("of other outputs")
    with stock.served("animals@production", "flow@live") as (_, client):
        stock.point(bad)
        until(lambda: index(client)["animals", bad][1] != "not loaded")
        stock.registry.set_alias("flow", "live", 2)
        until(lambda: index(client)["flow", 2][0] == "READY")
        assert version(client) == "1"


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_server_does_not_start_with_a_broken_model(stock: Stock, kind: str) -> None:
    bad = stock.broken(kind)
    with pytest.raises(ModelLoadError, match=re.escape(SENTENCES[kind])):
        create_app(Settings(registry=stock.registry.root, models=("flow", f"animals:{bad}")))


class Clients:
    """Clients that ask without a pause; every answer is compared with what its version says offline."""

    def __init__(self, url: str, expected: dict[str, np.ndarray], x: np.ndarray, count: int) -> None:
        self._url, self._expected, self._x = url, expected, x
        self._stop = threading.Event()
        self.answered = dict.fromkeys(expected, 0)
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        self.wrong: list[str] = []

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while not self._stop.is_set():
                answer = infer(client, "animals@production", self._x)
                if answer.status_code != 200:
                    self.wrong.append(answer.text)
                    continue
                number, found = logits(answer)
                if not np.array_equal(found, self._expected[number]):
                    self.wrong.append(f"version {number}: {found}")
                self.answered[number] += 1


def test_no_request_fails_while_versions_change(stock: Stock, opened: dict[str, ServedModel]) -> None:
    x, steps = noise(2, 9, 1), noise(21, 1, seed=1)
    expected = {str(number): opened[f"animals:{number}"].run_sequence(x)["logits"] for number in (1, 2)}
    stream = opened["animals:1"]
    with stock.served("animals@production") as (running, client), Clients(running.url, expected, x, 4) as clients:
        session = client.post("/v1/sessions", json={"model": "animals"}).json()["session_id"]
        token = None

        def step(number: int) -> None:
            """One step of a session and of a token that began with the first version."""
            nonlocal token
            values = steps[number].tolist()
            begin = {"model": "animals"} if token is None else {"state_token": token}
            for answer in (
                client.post(f"/v1/sessions/{session}/step", json={"values": values}),
                client.post("/v1/step", json={**begin, "values": values}),
            ):
                assert answer.status_code == 200, answer.text
                assert answer.json()["model_version"] == "1"
                found = np.array(answer.json()["outputs"][0]["logits"], np.float32)
                assert np.array_equal(found, stream.run_sequence(steps[None, : number + 1])["logits"][0])
            token = answer.json()["state_token"]

        step(0)
        for change in range(20):
            number = 2 - change % 2
            stock.point(number)
            until(lambda wanted=str(number): version(client) == wanted)
            step(change + 1)
        assert clients.answered["1"] > 20
        assert clients.answered["2"] > 20
    assert clients.wrong == []


@pytest.mark.slow
def test_a_hundred_reloads_and_failed_loads_take_no_memory(
    stock: Stock, opened: dict[str, ServedModel], tmp_path: Path
) -> None:
    x = noise(2, 9, 1)
    expected = {str(number): opened[f"animals:{number}"].run_sequence(x)["logits"] for number in (1, 2)}
    bad = [stock.broken(kind) for kind in SENTENCES]
    server = start_serve(
        *(stock.registry.root, tmp_path / "log", "--model", "animals@production", "--access-log", "off"),
        environment={"STABLERNN_RELOAD_SECONDS": "0"},
    )
    sizes = []
    try:
        with httpx.Client(base_url=server.url, timeout=30) as client, Clients(server.url, expected, x, 4) as clients:
            for change in range(100):
                stock.point(2 - change % 2)
                assert client.post("/v2/repository/models/animals@production/load").status_code == 200
                assert version(client) == str(2 - change % 2)
                answer = client.post(f"/v2/repository/models/animals:{bad[change % 3]}/load")
                assert refusal(answer)[:2] == (409, "load_failed")
                sizes.append(rss_mb(server.process.pid))
        assert clients.wrong == []
        assert min(clients.answered.values()) > 100
    finally:
        server.kill()
    # Pools and caches fill up at first; a model that stayed would be 0.7 MB each time.
    assert np.mean(sizes[-20:]) - np.mean(sizes[20:40]) < 8, sizes


def test_loading_and_unloading_by_every_kind_of_reference(stock: Stock) -> None:
    with stock.served("animals:1") as (_, client):

        def control(reference: str, word: str) -> httpx.Response:
            return client.post(f"/v2/repository/models/{reference}/{word}")

        def served() -> list[str]:
            answer = client.get("/v2/models/animals")
            return answer.json()["versions"] if answer.status_code == 200 else []

        # A name that is served by no alias means its highest version.
        assert (control("animals", "load").status_code, served(), version(client)) == (200, ["1", "2"], "2")
        assert (control("animals:2", "unload").status_code, served(), version(client)) == (200, ["1"], "1")
        # Unloaded already: nothing to do. What the registry does not know is an error.
        assert control("animals:2", "unload").status_code == 200
        assert control("flow", "unload").status_code == 200
        # By alias: from now on the name means what the alias points at.
        stock.point(2)
        assert (control("animals@production", "load").status_code, served(), version(client)) == (200, ["1", "2"], "2")
        assert version(client, "animals:1") == "1"
        stock.point(1)
        until(lambda: served() == ["1"])
        assert version(client) == "1"
        stock.point(2)
        until(lambda: version(client) == "2")
        # The first was asked for by its number, too, and stays.
        assert served() == ["1", "2"]
        assert (control("animals@production", "unload").status_code, served(), version(client)) == (200, ["1"], "1")
        stock.point(1)
        time.sleep(3 * SECONDS)
        assert served() == ["1"]
        assert (control("animals", "unload").status_code, served()) == (200, [])
        assert client.get("/v2/health/ready").status_code == 200
        assert client.get("/v1/timeseries/models").json() == []
        assert refusal(infer(client, "animals", noise(1, 2, 1)))[2] == ("Unknown model 'animals'. Served models: none.")


def test_a_session_goes_on_when_its_version_is_loaded_anew_or_unloaded(
    stock: Stock, opened: dict[str, ServedModel]
) -> None:
    steps = noise(3, 1)
    with stock.served("animals@production") as (_, client):
        session = client.post("/v1/sessions", json={"model": "animals"}).json()["session_id"]
        for number, word in enumerate(("load", "unload", "load")):
            answer = client.post(f"/v1/sessions/{session}/step", json={"values": steps[number].tolist()})
            found = np.array(answer.json()["outputs"][0]["logits"], np.float32)
            assert np.array_equal(found, opened["animals:1"].run_sequence(steps[None, : number + 1])["logits"][0])
            assert client.post(f"/v2/repository/models/animals@production/{word}").status_code == 200


@pytest.mark.parametrize("word", ["load", "unload"])
@pytest.mark.parametrize(
    ("reference", "status", "code", "sentence"),
    [
        ("fish", 404, "unknown_model", "Unknown model 'fish' in the registry "),
        ("animals:9", 404, "unknown_model", "Model 'animals' has no version 9"),
        ("animals@nobody", 404, "unknown_model", "Model 'animals' has no alias 'nobody'"),
        ("animals:x", 404, "unknown_model", "'animals:x' has no version number after the colon, got 'x'."),
        ("..%2F..", 404, "unknown_path", "Not Found: POST /v2/repository/models/../../"),
    ],
)
def test_what_is_not_in_the_registry_cannot_be_loaded(
    server: Running, word: str, reference: str, status: int, code: str, sentence: str
) -> None:
    found = refusal(httpx.post(f"{server.url}/v2/repository/models/{reference}/{word}"))
    assert found[:2] == (status, code)
    assert found[2].startswith(sentence)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (
            '{"parameters": {"config": "{}"}}',
            "the parameter 'config' is not supported: models come from the registry.",
        ),
        ('{"parameters": {"file:1/model.onnx": ""}}', "the parameter 'file:1/model.onnx' is not supported"),
        ('{"parameters": {"unload_dependents": "perhaps"}}', "parameters.unload_dependents: input should be a valid "),
        ('{"parameters": []}', "parameters: input should be a valid dictionary"),
        ("[]", "The body must be a JSON object, got an array."),
        (" ", "The body is not JSON: "),
    ],
)
def test_what_is_not_supported_of_the_extension_is_refused(server: Running, body: str, sentence: str) -> None:
    for word in ("load", "unload"):
        found = refusal(httpx.post(f"{server.url}/v2/repository/models/co2/{word}", content=body))
        assert found[:2] == (400, "bad_input")
        assert sentence in found[2]
    assert httpx.get(f"{server.url}/v2/models/co2/ready").status_code == 200


def test_under_a_memory_budget_the_least_recently_used_is_closed(stock: Stock, opened: dict[str, ServedModel]) -> None:
    # Room for two of the three.
    budget = opened["flow:1"].memory_bytes + opened["animals:1"].memory_bytes + 1000
    reason = "closed to make room; it is opened again when it is asked for"
    with stock.served("animals@production", "animals:2", "flow", memory_budget_bytes=budget) as (running, client):

        def open_now() -> set[tuple[str, int]]:
            rows = index(client)
            # All of them answer.
            assert {state for state, _ in rows.values()} == {"READY"}
            assert {why for _, why in rows.values()} == {"", reason}
            return {key for key, (_, why) in rows.items() if why != reason}

        assert running.app.state.context.models.served_refs() == ["animals:1", "animals:2", "flow:1"]
        assert open_now() == {("animals", 2), ("flow", 1)}
        session = client.post("/v1/sessions", json={"model": "animals:2"}).json()["session_id"]
        x = noise(1, 5, 1)
        # Closed, and opened again by whatever asks for it: its name, its alias.
        found = logits(infer(client, "animals@production", x))
        assert found[0] == "1"
        assert np.array_equal(found[1], opened["animals:1"].run_sequence(x)["logits"])
        assert open_now() == {("animals", 1), ("animals", 2)}
        assert client.get("/v1/timeseries/models").json() == ["animals", "flow"]
        assert client.get("/v2/models/animals").json()["versions"] == ["1", "2"]
        answer = client.post(f"/v1/sessions/{session}/step", json={"values": x[0].tolist()})
        assert np.array_equal(
            np.array(answer.json()["outputs"][-1]["logits"], np.float32),
            opened["animals:2"].run_sequence(x)["logits"][0],
        )
        # A step is a use of the model, too.
        forecast = {"model": "flow", "inputs": [{"series": noise(4, 3).tolist()}]}
        assert client.post("/v1/timeseries/forecast", json=forecast).status_code == 200
        assert open_now() == {("animals", 2), ("flow", 1)}
        assert client.delete(f"/v1/sessions/{session}").status_code == 200
        assert open_now() == {("animals", 2), ("flow", 1)}
        # One that was closed and opened again is given up like any other when its alias moves.
        stock.point(2)
        until(lambda: index(client)["animals", 1][1] == "the alias 'production' has moved on to version 2")
        assert client.get("/v2/models/animals").json()["versions"] == ["2"]


def test_what_was_closed_and_is_damaged_since_says_so(stock: Stock, opened: dict[str, ServedModel]) -> None:
    budget = opened["flow:1"].memory_bytes + 1000
    with stock.served("animals:1", "flow", memory_budget_bytes=budget) as (_, client):
        path = stock.registry.get("animals:1").path("step.onnx")
        whole = path.read_bytes()
        path.chmod(0o644)
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        status, code, sentence = refusal(infer(client, "animals", noise(1, 2, 1)))
        assert (status, code) == (409, "load_failed")
        assert SENTENCES["damaged"] in sentence
        assert client.get("/v2/models/flow").status_code == 200
        path.write_bytes(whole)
        assert version(client) == "1"


def test_a_server_that_stops_answers_what_it_has_and_hands_out_tokens(
    stock: Stock, opened: dict[str, ServedModel], tmp_path: Path
) -> None:
    x, steps = noise(1, 500_000, 3), noise(6, 1, seed=5)
    server = start_serve(
        *(stock.registry.root, tmp_path / "log", "--model", "animals:1", "--model", "flow"),
        environment={"STABLERNN_STATE_KEY": STATE_KEY, "STABLERNN_MAX_STEPS": "1000000"},
    )
    entry = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [entry], "outputs": [{"name": "mean"}]}).encode()

    def ask() -> httpx.Response:
        header = {"Inference-Header-Content-Length": str(len(head))}
        return httpx.post(f"{server.url}/v2/models/flow/infer", content=head + x.tobytes(), headers=header, timeout=60)

    try:
        address = f"ws://127.0.0.1:{server.port}/v1/stream?model=animals"
        with ThreadPoolExecutor() as pool, connect(address) as idle, connect(address) as late:
            for socket_ in (idle, late):
                socket_.recv(10)
            for stream in (3, 7):
                for number in range(stream):
                    values = (steps[number % 6] * stream).tolist()
                    idle.send(json.dumps({"stream": stream, "values": values}))
                    idle.recv(10)
            long = pool.submit(ask)
            until(lambda: "stablernn_pending_requests 1.0" in httpx.get(f"{server.url}/metrics").text)
            server.process.send_signal(signal.SIGTERM)
            goodbye = json.loads(idle.recv(10))
            assert goodbye["closing"] is True
            assert goodbye["state_tokens"].keys() == {"3", "7"}
            with pytest.raises(ConnectionClosed) as closed:
                idle.recv(10)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001
            assert json.loads(late.recv(10)) == {"closing": True, "state_tokens": {}}
            answer = long.result()
        assert server.process.wait(20) == 0
    finally:
        server.kill()
    assert answer.status_code == 200, answer.text
    mean = np.array(answer.json()["outputs"][0]["data"], np.float32)
    assert np.array_equal(mean, opened["flow:1"].run_sequence(x)["mean"].reshape(-1))
    assert "Traceback" not in server.read_log()
    assert server.read_log().splitlines()[-1] == "Stopped."
    with stock.served("animals:1") as (_, client):
        for stream in (3, 7):
            token = goodbye["state_tokens"][str(stream)]
            values = (steps[0] * stream).tolist()
            found = client.post("/v1/step", json={"state_token": token, "values": values}).json()
            assert found["step"] == stream + 1
            whole = np.stack([steps[number % 6] * stream for number in range(stream)] + [steps[0] * stream])[None]
            expected = opened["animals:1"].run_sequence(whole)["logits"][0]
            assert np.array_equal(np.array(found["outputs"][0]["logits"], np.float32), expected)


def test_nobody_is_let_in_before_the_models_are_warm(stock: Stock) -> None:
    """The first connection that is taken finds a server that is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [*command("--model", "animals", "--model", "flow", "--access-log", "off"), "--port", str(port)]
    environment = os.environ | {"STABLERNN_REGISTRY": str(stock.registry.root)}
    refused = 0
    process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            while True:
                assert time.monotonic() < deadline
                try:
                    answer = client.get("/v2/health/ready")
                    break
                except httpx.ConnectError:
                    refused += 1
                    time.sleep(0.005)
            assert answer.status_code == 200, answer.text
            assert version(client) == "2"
        assert refused > 10
    finally:
        process.kill()
        process.wait()
