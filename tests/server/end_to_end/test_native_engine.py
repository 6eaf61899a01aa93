"""A real server that runs its models by the engine ``native``, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.sync.client import connect

import stablernn as srn
from cli_helpers import first_document
from engine_helpers import KINDS, environment, publish, random_inputs
from published_models import Published, torch_answer
from step_forms import needs_native

pytestmark = needs_native


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Published:
    # A forecaster, a classifier of two layers with a mean, one of a plain cell; one that the engine does not run; and a
    # forecaster of the kind that training builds by default, as an ensemble.
    kinds = ["classes", "recursive", "rotations", "members", "window"]
    makers = KINDS | {
        "window": lambda: srn.Forecaster(
            "lipschitz", 1, 5, 9, scaling="context", window=16, season=7, skip="linear", patch_size=4, members=2
        )
    }
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), kinds, makers)


def native_environment(zoo: Published) -> dict[str, str]:
    """The environment of a process that finds the distribution where this one finds it."""
    import stablernn_native

    return environment(Path(stablernn_native.__file__).parents[1], STABLERNN_REGISTRY=str(zoo.root))


@pytest.fixture(scope="module")
def served(zoo: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    log = tmp_path_factory.mktemp("served") / "log"
    models = [word for name in ("classes", "recursive", "rotations", "window") for word in ("--model", name)]
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "stablernn_cli", "serve", "--port", "0", "--json", "--engine", "native", *models],
            env=native_environment(zoo),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield {**first_document(process.stdout), "log": log, "pid": process.pid}
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def client(served: dict[str, Any]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served["url"], timeout=30) as client:
        yield client


def infer(client: httpx.Client, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    types = {"float32": "FP32", "int64": "INT64"}
    tensors = [
        {
            "name": key,
            "shape": list(value.shape),
            "datatype": types[value.dtype.name],
            # A missing value is null.
            "data": [None if number != number else number for number in value.ravel().tolist()],
        }
        for key, value in inputs.items()
    ]
    body = client.post(f"/v2/models/{name}/infer", json={"inputs": tensors}).raise_for_status().json()
    return {output["name"]: np.array(output["data"], np.float32).reshape(output["shape"]) for output in body["outputs"]}


def test_metadata_and_log_name_engine_and_path(client: httpx.Client, served: dict[str, Any]) -> None:
    from stablernn_native import current_path

    facts = client.get("/v2/models/classes").raise_for_status().json()["parameters"]
    assert facts["engine"] == "native"
    assert facts["engine_note"].startswith("stablernn-native ")
    assert facts["engine_note"].endswith(f", path {current_path()}")
    assert (facts["device"], facts["device_note"]) == (
        "cpu",
        "auto: CPU, because the engine 'native' runs on nothing else",
    )
    assert "classes:1 is run by the engine 'native'. stablernn-native " in served["log"].read_text()


def test_the_process_has_no_torch(served: dict[str, Any], client: httpx.Client) -> None:
    client.get("/v2/health/ready").raise_for_status()
    mapped = Path(f"/proc/{served['pid']}/maps")
    if not mapped.exists():
        pytest.skip("needs /proc")
    libraries = mapped.read_text()
    assert "kernels.so" in libraries
    assert "libtorch" not in libraries


@pytest.mark.parametrize("name", ["classes", "rotations"])
def test_sequences_are_classified(client: httpx.Client, zoo: Published, name: str) -> None:
    model = zoo.torch_models[f"{name}:1"]
    inputs, _ = random_inputs(model, seed=8)
    answers = infer(client, name, inputs)
    for output, expected in torch_answer(model, inputs["x"], inputs["lengths"]).items():
        np.testing.assert_allclose(answers[output], expected, atol=1e-5, rtol=1e-5)


def test_a_forecast_is_rolled_out(client: httpx.Client, zoo: Published) -> None:
    x = np.random.default_rng(6).uniform(100, 600, (1, 12, 2)).astype(np.float32)
    body = {"model": "recursive", "inputs": [{"series": x[0].tolist()}]}
    outputs = client.post("/v1/timeseries/forecast", json=body).raise_for_status().json()["outputs"]
    expected = torch_answer(zoo.torch_models["recursive:1"], x)["mean"][0]
    mean = np.array(outputs[0]["content"][0]["mean_forecast"], np.float32).reshape(expected.shape)
    np.testing.assert_allclose(mean, expected, rtol=1e-4)


def test_a_stream_of_a_default_forecaster_has_the_bits_of_its_sequence(client: httpx.Client, zoo: Published) -> None:
    x = np.random.default_rng(7).uniform(100, 600, (1, 24, 1)).astype(np.float32)
    x[0, 9] = np.nan
    whole = infer(client, "window", {"x": x})
    answers = torch_answer(zoo.torch_models["window:1"], x)
    for output, expected in answers.items():
        np.testing.assert_allclose(whole[output], expected, rtol=1e-4)
    opened = client.post("/v1/sessions", json={"model": "window"}).raise_for_status().json()
    reply: dict[str, Any] = {}
    for start in range(0, 24, 4):
        values = [[None if value != value else value for value in row] for row in x[0, start : start + 4].tolist()]
        step = client.post(f"/v1/sessions/{opened['session_id']}/step", json={"values": values})
        reply = step.raise_for_status().json()
    for output in answers:
        assert np.array_equal(np.float32(reply["outputs"][-1][output]), whole[output][0]), output


def test_a_session_and_a_socket_have_the_bits_of_a_sequence(client: httpx.Client, served: dict[str, Any]) -> None:
    x = np.random.default_rng(10).uniform(100, 600, (1, 9, 2)).astype(np.float32)
    expected = infer(client, "classes", {"x": x})["logits"][0]
    opened = client.post("/v1/sessions", json={"model": "classes"}).raise_for_status().json()
    answer: dict[str, Any] = {}
    for sample in x[0]:
        step = client.post(f"/v1/sessions/{opened['session_id']}/step", json={"values": sample.tolist()})
        answer = step.raise_for_status().json()
    assert np.array_equal(np.float32(answer["outputs"][-1]["logits"]), expected)
    # The same samples by single requests that hand a token on, and by a socket that goes on from it.
    token = None
    for sample in x[0, :4]:
        body = {"model": "classes", "values": sample.tolist()} | ({"state_token": token} if token else {})
        token = client.post("/v1/step", json=body).raise_for_status().json()["state_token"]
    with connect(served["url"].replace("http", "ws") + "/v1/stream?model=classes") as socket:
        socket.recv()
        socket.send(json.dumps({"state_token": token}))
        socket.recv()
        reply: dict[str, Any] = {}
        for sample in x[0, 4:]:
            socket.send(json.dumps({"values": sample.tolist()}))
            reply = json.loads(socket.recv())
    assert reply["step"] == 9
    assert np.array_equal(np.float32(reply["outputs"][-1]["logits"]), expected)


def test_a_version_of_another_cell_is_refused(zoo: Published) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stablernn_cli", "serve", "--port", "0", "--engine", "native", "--model", "members"],
        env=native_environment(zoo),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert (
        "'members:1' cannot be served by the engine 'native': the step of the cell 'lstm' is of none of the four "
        "families, which this engine does not run. Use --engine onnx."
    ) in done.stderr
    assert "Traceback" not in done.stderr
