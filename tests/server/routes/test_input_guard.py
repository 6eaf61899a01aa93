"""Samples outside the range of inputs that a version is certified for: answered, counted and named, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from websockets.sync.client import connect

from exports import exported
from server_helpers import json_tensor, served_client
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.stored_certificate import certificate_document
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn_registry import Registry

CLASSES: dict[str, Any] = {"task": "classify", "features": ["x"], "labels": ["a", "b"]}
SERIES: dict[str, Any] = {"task": "forecast", "features": ["x"], "targets": ["x"], "horizon": 3, "quantiles": [0.5]}
INSIDE, OUTSIDE = [0.5, -2.0, 1.5, 2.0], [0.5, -2.5, 1.5, 3.0]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A classifier and a recursive forecaster, certified for inputs within 2, and ``all`` without a range."""
    registry = Registry(tmp_path_factory.mktemp("registry"))
    torch.manual_seed(0)
    rolled = Forecaster("lstm", 1, 3, hidden_size=6, quantiles=[0.5], head="recursive")
    models: dict[str, tuple[SequenceModel, dict[str, Any]]] = {
        "classes": (Classifier("lstm", 1, 2, hidden_size=6), CLASSES),
        "rolled": (rolled, {**SERIES, "head": "recursive"}),
    }
    for name, (model, fields) in models.items():
        report = exported(model.eval(), tmp_path_factory.mktemp("export"))
        certificate = certificate_document(model, inputs=InputRange.of(2))
        del certificate["metrics"]
        facts = {**fields, "cell": "lstm", "signature": report.signature}
        registry.publish(name, report.files, {**facts, "certificate": certificate})
        if name == "classes":
            registry.publish("all", report.files, {**facts, "certificate": {**certificate, "bounded_inputs": None}})
    return registry


@pytest.fixture(scope="module")
def client(registry: Registry) -> Iterator[httpx.Client]:
    yield from served_client(registry)


@pytest.fixture(scope="module")
def strict(registry: Registry) -> Iterator[httpx.Client]:
    yield from served_client(registry, refuse_inputs_outside=True)


def infer(client: httpx.Client, values: list[float], model: str = "classes", **further: Any) -> httpx.Response:
    x = json_tensor("x", np.array(values, np.float32).reshape(1, -1, 1))
    return client.post(f"/v2/models/{model}/infer", json={"inputs": [x], **further})


def series(client: httpx.Client, values: list[float], model: str = "classes") -> httpx.Response:
    task = "forecast" if model == "rolled" else "classify"
    # A longer second series, so that the first one is padded.
    body = {"model": model, "inputs": [{"series": values}, {"series": [0.0] * 9}]}
    return client.post(f"/v1/timeseries/{task}", json=body)


def session_step(client: httpx.Client, values: list[float]) -> httpx.Response:
    session = client.post("/v1/sessions", json={"model": "classes"}).json()["session_id"]
    return client.post(f"/v1/sessions/{session}/step", json={"values": [[value] for value in values]})


def in_sequence(client: httpx.Client, values: list[float]) -> httpx.Response:
    return infer(client, values, parameters={"sequence_id": 7, "sequence_start": True, "sequence_end": True})


def frame(client: httpx.Client, values: list[float]) -> dict[str, Any]:
    url = str(client.base_url).replace("http", "ws", 1)
    with connect(f"{url.rstrip('/')}/v1/stream?model=classes") as socket:
        socket.recv()
        socket.send(json.dumps({"values": [[value] for value in values]}))
        answer: dict[str, Any] = json.loads(socket.recv())
        return answer


def guard(client: httpx.Client, model: str = "classes") -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v2/models/{model}").raise_for_status().json()["parameters"]["input_guard"]
    return found


def named(answer: dict[str, Any]) -> int:
    content = {**answer, **(answer.get("parameters") or {})}
    return int(content.get("samples_outside_range", 0))


ROUTES = {
    "infer": lambda client, values: infer(client, values).raise_for_status().json(),
    "infer in a sequence": lambda client, values: in_sequence(client, values).raise_for_status().json(),
    "time series": lambda client, values: series(client, values).raise_for_status().json(),
    "session": lambda client, values: session_step(client, values).raise_for_status().json(),
    "websocket": frame,
}


@pytest.mark.parametrize("route", ROUTES)
def test_a_sample_outside_is_answered_counted_and_named(client: httpx.Client, route: str) -> None:
    before = guard(client)["outside"]
    assert named(ROUTES[route](client, INSIDE)) == 0
    assert guard(client)["outside"] == before
    answer = ROUTES[route](client, OUTSIDE)
    assert named(answer) == 2
    assert answer["outputs"]
    assert guard(client)["outside"] == before + 2


def test_requests_alike_are_checked_one_by_one(client: httpx.Client) -> None:
    # Requests that differ in their values alone share what is known of the first ones.
    found = [named(infer(client, values).raise_for_status().json()) for values in [INSIDE, INSIDE, OUTSIDE, INSIDE] * 2]
    assert found == [0, 0, 2, 0] * 2


def test_forecasts_that_a_recursive_head_reads_are_not_counted(client: httpx.Client) -> None:
    assert named(series(client, INSIDE, "rolled").raise_for_status().json()) == 0
    assert named(series(client, OUTSIDE, "rolled").raise_for_status().json()) == 2
    assert guard(client, "rolled")["outside"] == 2


def test_a_version_without_a_range_takes_everything(client: httpx.Client, strict: httpx.Client) -> None:
    for server in (client, strict):
        assert named(infer(server, [1e6], "all").raise_for_status().json()) == 0
        assert guard(server, "all") == {
            "ranges": None,
            "outside": 0,
            "note": "none: the certificate has no range of inputs",
        }


def test_metrics_and_metadata_tell_of_the_samples(client: httpx.Client, strict: httpx.Client) -> None:
    infer(client, OUTSIDE).raise_for_status()
    shown = guard(client)
    line = f'stablernn_samples_outside_range_total{{model="classes",version="1"}} {shown["outside"]:.1f}'
    assert line in client.get("/metrics").text
    assert (shown["ranges"], shown["note"]) == ([[-2.0, 2.0]], "samples outside are counted and named in the response")
    assert guard(strict)["note"] == "samples outside are refused"


@pytest.mark.parametrize("request_step", [infer, in_sequence, series, session_step])
def test_by_setting_a_sample_outside_is_refused(strict: httpx.Client, request_step: Any) -> None:
    assert request_step(strict, INSIDE).status_code == 200
    refused = request_step(strict, OUTSIDE)
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_input")
    assert "Sample 1 of sequence 0 has the value -2.5 of feature 0, outside -2 to 2" in refused.json()["error"]
    # Nothing of it has reached the state: what follows is answered.
    assert request_step(strict, INSIDE).status_code == 200
    assert guard(strict)["outside"] == 0


def test_a_refused_frame_leaves_the_stream_where_it_was(strict: httpx.Client) -> None:
    answer = frame(strict, OUTSIDE)
    assert answer["code"] == "bad_input"
    assert "outside -2 to 2" in answer["error"]
