"""Versions that come and go under a running server, and what a server says when it stops."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import onnx
import pytest

from server_helpers import Published, Running
from serving_helpers import rss_mb, start_serve, until
from stablernn_runtime import ServedModel
from stock_helpers import SECONDS, SENTENCES, Stock, index, infer, loads, logits, noise, refusal, version


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
        assert "2 (production)" in sentence


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if at else []) for at, kind in enumerate(SENTENCES)]
)
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


def test_a_version_is_tried_again_after_a_while(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stablernn_server.version_loader.RETRY_SECONDS", 2 * SECONDS)
    graph = onnx.load_model_from_string(stock.published.registry.get("animals:1").read("sequence.onnx"))
    graph.doc_string = "of a file of its own"
    copied = stock.copy(stock.published.registry.get("animals:1"), sequence_onnx=graph.SerializeToString())
    content, path = copied.read("sequence.onnx"), copied.path("sequence.onnx")
    path.chmod(0o644)
    path.write_bytes(bytes(len(content)))
    with stock.served("animals@production") as (_, client):
        stock.point(copied.version)
        until(lambda: loads(client, "animals", copied.version, "failed") > 1)
        path.write_bytes(content)
        until(lambda: version(client) == str(copied.version))


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
        for change in range(6):
            number = 2 - change % 2
            stock.point(number)
            until(lambda wanted=str(number): version(client) == wanted)
            step(change + 1)
        assert min(clients.answered.values()) > 5
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


def test_a_bare_name_is_loaded_as_it_was_served_at_start(stock: Stock) -> None:
    with stock.served("animals@production") as (_, client):
        for word in ("load", "unload", "load"):
            assert client.post(f"/v2/repository/models/animals/{word}").status_code == 200
        assert (version(client), version(client, "animals@production")) == ("1", "1")
        stock.point(2)
        until(lambda: version(client) == "2")


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


@pytest.mark.parametrize("word", ["load", "unload"])
@pytest.mark.parametrize(
    ("reference", "code", "named"),
    [
        ("fish", "unknown_model", "'fish'"),
        ("animals:9", "unknown_model", "version 9"),
        ("animals@nobody", "unknown_model", "'nobody'"),
        ("animals:x", "unknown_model", "'x'"),
        ("..%2F..", "unknown_path", ""),
    ],
)
def test_what_is_not_in_the_registry_cannot_be_loaded(
    server: Running, word: str, reference: str, code: str, named: str
) -> None:
    found = refusal(httpx.post(f"{server.url}/v2/repository/models/{reference}/{word}"))
    assert found[:2] == (404, code)
    assert named in found[2]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('{"parameters": {"config": "{}"}}', "'config'"),
        ('{"parameters": {"file:1/model.onnx": ""}}', "'file:1/model.onnx'"),
        ('{"parameters": {"unload_dependents": "perhaps"}}', "parameters.unload_dependents"),
        ('{"parameters": []}', "parameters: "),
        ("[]", "got an array"),
        (" ", "not JSON"),
    ],
)
def test_what_is_not_supported_of_the_extension_is_refused(server: Running, body: str, named: str) -> None:
    for word in ("load", "unload"):
        found = refusal(httpx.post(f"{server.url}/v2/repository/models/co2/{word}", content=body))
        assert found[:2] == (400, "bad_input")
        assert named in found[2]
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
