"""A version of complete sequences: whole sequences are answered, and every way to stream says why it is not one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from published_models import publish
from server_helpers import json_tensor, served_client, torch_answer
from stablernn.nn.models import Classifier
from stablernn_registry import Registry

LABELS = ["wave", "circle", "swipe"]
REFUSAL = "'gestures:1' cannot stream: it resamples each sequence to 20 samples over its whole length"


@pytest.fixture(scope="module")
def model() -> Classifier:
    torch.manual_seed(0)
    model = Classifier("lru", 2, 3, 8, resample_steps=20, patch_size=8, patch_stride=2, patch_embedding=8)
    random = np.random.default_rng(0)
    model.fit_scaling([random.normal(size=(length, 2)).astype(np.float32) for length in (5, 20, 61)])
    return model.eval()


@pytest.fixture(scope="module")
def registry(model: Classifier, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    registry = Registry(tmp_path_factory.mktemp("registry"))
    fields = {"task": "classify", "labels": LABELS, "features": ["x", "y"]}
    publish(registry, "gestures", model, tmp_path_factory.mktemp("export"), **fields)
    return registry


@pytest.fixture(scope="module")
def client(registry: Registry) -> Iterator[httpx.Client]:
    yield from served_client(registry)


def draw(count: int, time: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, time, 2)).astype(np.float32)


def test_whole_sequences_are_inferred_as_by_torch(client: httpx.Client, model: Classifier) -> None:
    x, lengths = draw(3, 70), np.array([70, 12, 3])
    body = {"inputs": [json_tensor("x", x), json_tensor("lengths", lengths)]}
    response = client.post("/v2/models/gestures/infer", json=body)
    assert response.status_code == 200, response.text
    outputs = {output["name"]: output["data"] for output in response.json()["outputs"]}
    assert list(outputs) == ["logits", "probabilities"]
    expected = torch_answer(model, x, lengths)["probabilities"]
    np.testing.assert_allclose(np.reshape(outputs["probabilities"], (3, 3)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", {"model": "gestures"}),
        ("/v1/step", {"model": "gestures", "values": [0.0, 1.0]}),
        (
            "/v2/models/gestures/infer",
            {
                "parameters": {"sequence_id": 7, "sequence_start": True},
                "inputs": [json_tensor("x", np.zeros((1, 4, 2), np.float32))],
            },
        ),
    ],
    ids=["session", "token", "sequence"],
)
def test_streams_are_refused_with_the_reason_and_what_to_do(client: httpx.Client, path: str, body: Any) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400
    error = response.json()
    assert error["code"] == "no_streams"
    assert error["error"].startswith(REFUSAL)
    assert "/v1/timeseries/classify" in error["error"]


def test_a_websocket_is_refused(client: httpx.Client) -> None:
    address = f"ws://127.0.0.1:{client.base_url.port}/v1/stream?model=gestures"
    with pytest.raises(InvalidStatus) as caught, connect(address):
        pass
    assert caught.value.response.status_code == 400
    assert REFUSAL.encode() in caught.value.response.body
