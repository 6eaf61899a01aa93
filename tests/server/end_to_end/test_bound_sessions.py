"""A server whose sessions are bound as on a GPU, and one that runs out of memory."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from bound_sessions import bind_sessions
from published_models import Published
from server_helpers import Running, serve
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app


@pytest.fixture
def running(published: Published, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    bind_sessions(monkeypatch)
    yield from serve(create_app(Settings(registry=published.root, models=("flow:1",), device="cpu")))


def test_sequences_and_sessions_get_the_bits_of_unbound_ones(running: Running, flow: ServedModel) -> None:
    x = np.random.default_rng(8).normal(size=(1, 6, 3)).astype(np.float32)
    expected = flow.run_numpy(x)["mean"]
    with httpx.Client(base_url=running.url) as client:
        opened = client.post("/v1/sessions", json={"model": "flow"}).raise_for_status().json()
        for sample in x[0]:
            answer = client.post(f"/v1/sessions/{opened['session_id']}/step", json={"values": sample.tolist()})
        mean = answer.raise_for_status().json()["outputs"][-1]["mean"]
        assert np.array_equal(np.float32(mean), expected[0])
        tensor = {"name": "x", "shape": [1, 6, 3], "datatype": "FP32", "data": x.ravel().tolist()}
        answer = client.post("/v2/models/flow/infer", json={"inputs": [tensor]}).raise_for_status()
    values = {output["name"]: output["data"] for output in answer.json()["outputs"]}
    assert np.array_equal(np.float32(values["mean"]), expected.ravel())
