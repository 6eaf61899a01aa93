"""Engines behind the command and the server: errors, metadata, and the numbers that clients get."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.http as triton

from cli_helpers import first_document
from engine_helpers import KINDS, environment, publish, random_inputs
from published_models import Published, torch_answer
from stablernn.export.parity import max_errors
from stablernn_runtime.engines.plugins import entry_points


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), list(KINDS))


def installed_without(folder: Path, *absent: str) -> Path:
    """A folder with what is installed here, but for some packages."""
    folder.mkdir()
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            if not entry.name.startswith(absent):
                (folder / entry.name).symlink_to(entry)
    return folder


MISSING = {
    "torch": (
        ("torch",),
        "The engine 'torch' cannot be used: the package 'torch' is not installed here. Install 'stablernn' with all "
        "that it needs ('pip install .' in the checkout), or use --engine onnx.",
        1,
    ),
    "the entry point": (
        ("stablernn-", "stablernn_native-", "_editable_impl_stablernn"),
        "The engine 'torch' is not registered in this environment: no installed package has it in the entry-point "
        "group 'stablernn.engines'. Install the library with 'pip install .' in the checkout. Allowed here: auto, "
        "onnx.",
        2,
    ),
}


@pytest.mark.parametrize("what", MISSING)
def test_serve_says_what_to_install(zoo: Published, tmp_path: Path, what: str) -> None:
    absent, sentence, code = MISSING[what]
    packages = installed_without(tmp_path / "packages", *absent)
    done = subprocess.run(
        # Without -S, the interpreter would add the folder of everything that is installed.
        [sys.executable, "-S", "-m", "stablernn_cli", "serve", "--port", "0", "--engine", "torch"],
        env=environment(packages, STABLERNN_REGISTRY=str(zoo.root)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr.splitlines()[-1] == f"Error: {sentence}"
    assert done.returncode == code


def test_an_unknown_engine_is_wrong_usage(zoo: Published) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stablernn_cli", "serve", "--port", "0", "--engine", "tensorflow"],
        env=environment(STABLERNN_REGISTRY=str(zoo.root)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr.splitlines()[-1].startswith(
        f"Error: Unknown engine 'tensorflow'. Allowed here: {', '.join(['auto', 'onnx', *sorted(entry_points())])}. "
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 2


@pytest.fixture(scope="module")
def served(zoo: Published, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A real process that was told to use torch."""
    log = tmp_path_factory.mktemp("served") / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "stablernn_cli", "serve", "--port", "0", "--json", "--engine", "torch"],
            env=environment(STABLERNN_REGISTRY=str(zoo.root)),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    try:
        yield {**first_document(process.stdout), "log": log}
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def client(served: dict[str, Any]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served["url"], timeout=30) as client:
        yield client


def test_metadata_and_log_name_the_engine(client: httpx.Client, served: dict[str, Any]) -> None:
    facts = client.get("/v2/models/classes").raise_for_status().json()["parameters"]
    assert facts["engine"] == "torch"
    assert facts["engine_note"] == f"torch {torch.__version__}"
    assert facts["device"] == "cuda" if torch.cuda.is_available() else "cpu"
    assert f"classes:1 is run by the engine 'torch'. torch {torch.__version__}" in served["log"].read_text()


def test_a_foreign_client_gets_the_numbers_of_the_model(served: dict[str, Any], zoo: Published) -> None:
    inputs, _ = random_inputs(zoo.torch_models["classes:1"], seed=8)
    client = triton.InferenceServerClient(served["url"].removeprefix("http://"))
    tensors = []
    for name, datatype in (("x", "FP32"), ("lengths", "INT64")):
        tensors.append(triton.InferInput(name, list(inputs[name].shape), datatype))
        tensors[-1].set_data_from_numpy(inputs[name])
    result = client.infer("classes", tensors)
    expected = torch_answer(zoo.torch_models["classes:1"], inputs["x"], inputs["lengths"])
    assert max_errors(expected, {name: result.as_numpy(name) for name in expected})[1] < 1e-5
    client.close()


def test_series_are_classified(client: httpx.Client, zoo: Published) -> None:
    x = np.random.default_rng(9).uniform(100, 600, (2, 12, 2)).astype(np.float32)
    body = {"model": "classes", "inputs": [{"series": series.tolist()} for series in x]}
    outputs = client.post("/v1/timeseries/classify", json=body).raise_for_status().json()["outputs"]
    expected = torch_answer(zoo.torch_models["classes:1"], x)["probabilities"]
    for output, row in zip(outputs, expected, strict=True):
        found = output["content"][0]["probabilities"]
        np.testing.assert_allclose([found[f"c{number}"] for number in range(3)], row, atol=1e-5)


def test_bad_input_is_refused_in_the_same_words(client: httpx.Client) -> None:
    tensor = {"name": "tokens", "shape": [1, 2], "datatype": "INT64", "data": [0, 6]}
    answer = client.post("/v2/models/tokens/infer", json={"inputs": [tensor]})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_input")
    assert answer.json()["error"] == (
        "tokens must be from 0 to 5, their places in the vocabulary of model 'tokens:1', got 6 at (0, 1)."
    )


def test_a_stream_is_stepped_by_the_same_engine(client: httpx.Client, zoo: Published) -> None:
    x = np.random.default_rng(10).uniform(100, 600, (1, 9, 2)).astype(np.float32)
    opened = client.post("/v1/sessions", json={"model": "classes"}).raise_for_status().json()
    answer: dict[str, Any] = {}
    for sample in x[0]:
        step = client.post(f"/v1/sessions/{opened['session_id']}/step", json={"values": sample.tolist()})
        answer = step.raise_for_status().json()
    assert answer["step"] == 9
    expected = torch_answer(zoo.torch_models["classes:1"], x)["logits"][0]
    np.testing.assert_allclose(answer["outputs"][-1]["logits"], expected, atol=1e-4)
