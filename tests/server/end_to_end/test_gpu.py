"""On a CUDA GPU: a server with either engine answers a client that is not ours, and continues streams."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton

from cli_helpers import first_document
from engine_helpers import CUDA_ENGINES, NEEDS_GPU, environment, publish, random_inputs
from published_models import Published, torch_answer
from stablernn.export.parity import SEQUENCE_CAP, max_errors

pytestmark = NEEDS_GPU
TOLERANCE = SEQUENCE_CAP


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), ["classes"])


@pytest.fixture(scope="module", params=CUDA_ENGINES)
def served(
    request: pytest.FixtureRequest, zoo: Published, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The engine, and the URL of a real process that runs it on CUDA."""
    with (tmp_path_factory.mktemp("served") / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stablernn_cli", "serve", "--port", "0", "--json"]
            + ["--device", "cuda", "--engine", request.param],
            env=environment(STABLERNN_REGISTRY=str(zoo.root)),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield request.param, first_document(process.stdout)["url"]
    finally:
        process.kill()
        process.communicate()


def test_a_foreign_client_gets_the_numbers_of_the_model(served: tuple[str, str], zoo: Published) -> None:
    engine, url = served
    facts = httpx.get(f"{url}/v2/models/classes").json()["parameters"]
    assert (facts["engine"], facts["device"]) == (engine, "cuda")
    inputs, _ = random_inputs(zoo.torch_models["classes:1"], seed=3)
    client = triton.InferenceServerClient(url.removeprefix("http://"))
    tensors = []
    for name, datatype in (("x", "FP32"), ("lengths", "INT64")):
        tensors.append(triton.InferInput(name, list(inputs[name].shape), datatype))
        tensors[-1].set_data_from_numpy(inputs[name])
    result = client.infer("classes", tensors)
    expected = torch_answer(zoo.torch_models["classes:1"], inputs["x"], inputs["lengths"])
    assert max_errors(expected, {name: result.as_numpy(name) for name in expected})[1] <= TOLERANCE
    client.close()


def test_a_session_is_streamed(served: tuple[str, str], zoo: Published) -> None:
    _, url = served
    x = np.random.default_rng(4).uniform(100, 600, (1, 9, 2)).astype(np.float32)
    with httpx.Client(base_url=url, timeout=30) as client:
        opened = client.post("/v1/sessions", json={"model": "classes"}).raise_for_status().json()
        answer: dict[str, Any] = {}
        for sample in x[0]:
            step = client.post(f"/v1/sessions/{opened['session_id']}/step", json={"values": sample.tolist()})
            answer = step.raise_for_status().json()
    assert answer["step"] == 9
    expected = torch_answer(zoo.torch_models["classes:1"], x)["logits"][0]
    np.testing.assert_allclose(answer["outputs"][-1]["logits"], expected, rtol=TOLERANCE, atol=TOLERANCE)
