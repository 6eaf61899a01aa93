"""States stay where the certificate says: what a client supplies is checked, what the server computes is watched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from server_helpers import json_tensor, serve
from stablernn.export import export
from stablernn.models import Classifier
from stablernn_registry import Registry
from stablernn_server import Settings, create_app


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """``kept`` has a ball of radius 1 (rnn), ``tight`` the same weights with a ball that its states leave, ``free``
    none."""
    root = tmp_path_factory.mktemp("registry")
    registry = Registry(root)
    for name, cell, radius in (("kept", "rnn", None), ("tight", "rnn", 1e-3), ("free", "unicornn", None)):
        torch.manual_seed(0)
        model = Classifier(cell, input_size=1, num_classes=2, hidden_size=6).eval()
        report = export(model, tmp_path_factory.mktemp("export"))
        certificate = dict(report.certificate)
        if radius is not None:
            certificate["state_balls"] = [{**ball, "radius": radius} for ball in certificate["state_balls"]]
        fields = {"task": "classify", "cell": cell, "features": ["x"], "labels": ["a", "b"]}
        registry.publish(name, report.files, {**fields, "signature": report.signature, "certificate": certificate})
    settings = Settings(registry=Path(root), models=("kept", "tight", "free"))
    for running in serve(create_app(settings)):
        with httpx.Client(base_url=running.url) as client:
            yield client


def ask(client: httpx.Client, model: str, state: float | None = None, **body: Any) -> httpx.Response:
    inputs = [json_tensor("x", np.linspace(-3, 3, 8, dtype=np.float32).reshape(1, 8, 1))]
    if state is not None:
        inputs.append(json_tensor("state_1", np.full((1, 6), state, np.float32)))
    return client.post(f"/v2/models/{model}/infer", json={"inputs": inputs, **body})


def parameters(client: httpx.Client, model: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v2/models/{model}").raise_for_status().json()["parameters"]
    return found


def test_a_state_that_no_input_leads_to_is_refused(client: httpx.Client) -> None:
    assert ask(client, "kept", 1.0).status_code == 200
    refused = ask(client, "kept", -1.01)
    assert refused.status_code == 400
    assert refused.json() == {
        "error": "The state 'state_1' of sequence 0 has the norm 1.01 (linf), and no input leads this model beyond 1: "
        "it was not computed by it. Begin without a state, or with one that the server gave.",
        "code": "bad_input",
    }


def test_an_infinite_input_is_refused(client: httpx.Client) -> None:
    body = {"inputs": [{"name": "x", "shape": [1, 1, 1], "datatype": "FP32", "data": ["Infinity"]}]}
    assert client.post("/v2/models/kept/infer", json=body).status_code == 400
    text = '{"inputs":[{"name":"x","shape":[1,1,1],"datatype":"FP32","data":[1e39]}]}'
    assert client.post("/v2/models/kept/infer", content=text).status_code == 400


def test_a_state_that_leaves_its_ball_is_counted_logged_and_said(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert "parameters" not in ask(client, "kept").json()
    before = parameters(client, "tight")["state_guard"]["exits"]
    for body in ({}, {"outputs": [{"name": "probabilities"}]}):
        answer = ask(client, "tight", **body).raise_for_status().json()
        assert answer["parameters"] == {"states_outside_ball": "state_1"}
    assert [output["name"] for output in answer["outputs"]] == ["probabilities"]
    assert parameters(client, "tight")["state_guard"]["exits"] == before + 2
    assert "tight:1: the state 'state_1' came to the norm" in caplog.text


def test_metadata_shows_the_certificate_and_whether_there_is_a_guard(client: httpx.Client) -> None:
    kept, free = parameters(client, "kept"), parameters(client, "free")
    assert kept["certificate"]["state_ball"]["radius"] == pytest.approx(1.0)
    assert kept["state_guard"]["states"] == ["state_1"]
    assert free["state_guard"] == {
        "states": [],
        "exits": 0,
        "note": "none: the certificate knows no ball for any state",
    }
    assert ask(client, "free", 100.0).status_code == 200


def test_a_certificate_of_other_states_does_not_open(tmp_path: Path) -> None:
    from stablernn_server.runtime.guard import StateGuard

    ball = {"state": "state_9", "norm": "l2", "centre": 0.0, "radius": 1.0}
    with pytest.raises(ValueError, match="its certificate speaks of the state 'state_9', which its graphs do not have"):
        StateGuard({"state_balls": [ball]}, ["state_0"])
    with pytest.raises(ValueError, match="its certificate has state_balls that cannot be read"):
        StateGuard({"state_balls": [{**ball, "norm": "l1"}]}, ["state_9"])
