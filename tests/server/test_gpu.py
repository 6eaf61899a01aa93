"""On a CUDA GPU: both engines run there, agree with the CPU, carry streams on, and answer a client that is not ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime as ort
import pytest
import torch
import tritonclient.http as triton

from cli_helpers import first_document
from engine_helpers import KINDS, publish, random_inputs, sequence, zeros
from server_helpers import Published, torch_answer
from stablernn.export.parity import SEQUENCE_CAP, _max_errors, _split_steps
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.session import cuda_devices

GPUS = cuda_devices()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not GPUS, reason="needs an NVIDIA GPU: " + ("no driver" if GPUS is None else "the driver sees none")
    ),
]

ROOT = Path(__file__).parents[2]
ENGINES = [
    pytest.param(
        "onnx",
        marks=pytest.mark.skipif(
            "CUDAExecutionProvider" not in ort.get_available_providers(), reason="ONNX Runtime is built without CUDA"
        ),
    ),
    pytest.param("torch", marks=pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")),
]
TOLERANCE = SEQUENCE_CAP


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), list(KINDS))


@pytest.mark.parametrize("engine", ENGINES)
def test_it_runs_on_cuda(zoo: Published, engine: str) -> None:
    model = ServedModel.load(zoo.registry.get("classes"), "cuda", engine=engine)
    assert (model.engine, model.placement.device) == (engine, "cuda")
    if engine == "onnx":
        for graph in (model.sequence, model.step):
            assert graph.session.get_providers()[0] == "CUDAExecutionProvider"
            assert graph.session.get_provider_options()["CUDAExecutionProvider"]["use_tf32"] == "0"
    else:
        before = torch.cuda.max_memory_allocated()
        model.run_numpy(np.zeros((64, 200, 2), np.float32))
        assert torch.cuda.max_memory_allocated() > before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_numbers_are_those_of_the_cpu(
    zoo: Published, engine: str, kind: str, record_property: Callable[[str, object], None]
) -> None:
    version = zoo.registry.get(kind)
    cpu, gpu = ServedModel.load(version, "cpu"), ServedModel.load(version, "cuda", engine=engine)
    inputs, _ = random_inputs(zoo.torch_models[f"{kind}:1"], seed=1)
    expected = sequence(cpu, inputs, zeros(cpu, 5))
    difference = _max_errors(expected, sequence(gpu, inputs, zeros(cpu, 5)))[1]
    record_property("max_rel_error", difference)
    print(
        f"{kind} by {engine} on {torch.cuda.get_device_name() if torch.cuda.is_available() else 'a GPU'}: ", difference
    )
    assert difference <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_stream_comes_to_what_the_whole_sequence_comes_to(zoo: Published, engine: str, kind: str) -> None:
    gpu = ServedModel.load(zoo.registry.get(kind), "cuda", engine=engine)
    model = zoo.torch_models[f"{kind}:1"]
    inputs, known = random_inputs(model, seed=2)
    del inputs["lengths"]
    whole = sequence(gpu, inputs, {})
    states, outputs = zeros(gpu, 5), {}
    for sample in _split_steps(model, {name: value for name, value in inputs.items() if name not in known}):
        outputs = gpu.run(gpu.step, {**sample, **known, **states})
        states = gpu.next_state(outputs)
    if model.every_step:
        whole = {name: value if name in gpu.sequence.state_outputs else value[:, -1] for name, value in whole.items()}
    assert _max_errors(whole, outputs)[1] <= TOLERANCE


def test_auto_says_what_it_measured(zoo: Published) -> None:
    model = ServedModel.load(zoo.registry.get("classes"), "auto", engine="auto")
    assert model.placement.device == "cuda"
    assert model.engine_note.startswith("auto: ")
    if torch.cuda.is_available() and "CUDAExecutionProvider" in ort.get_available_providers():
        assert " measured on cuda: one sequence of " in model.engine_note


@pytest.fixture(scope="module", params=ENGINES)
def served(
    request: pytest.FixtureRequest, zoo: Published, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """The engine, and the URL of a real process that runs it on CUDA."""
    paths = (ROOT, ROOT / "cli", ROOT / "server", ROOT / "registry")
    with (tmp_path_factory.mktemp("served") / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "stablernn_cli", "serve", "--port", "0", "--json"]
            + ["--device", "cuda", "--engine", request.param],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "STABLERNN_REGISTRY": str(zoo.root)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield request.param, first_document(process.stdout)["url"]
    finally:
        process.kill()
        process.wait()


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
    assert _max_errors(expected, {name: result.as_numpy(name) for name in expected})[1] <= TOLERANCE
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
