"""Models that answer at every step, behind a real server: whole numbers in, outputs of all steps out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import stream_helpers
from exports import exported
from server_helpers import Published, Running, json_tensor, serve, torch_answer
from stablernn.nn.models import SequencePredictor
from stablernn_registry import ManifestError, ManifestFields, Registry
from stablernn_runtime import ServedModel
from stablernn_server import InputError, ModelLoadError, Settings, create_app

LETTERS = ["a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """``text:1`` follows tokens, ``frames:1`` two numbers a step."""
    root = tmp_path_factory.mktemp("registry")
    # Shared with the tests of streams, and so exported once for both.
    text, _ = stream_helpers.fitted()["text"]
    torch.manual_seed(0)
    frames = SequencePredictor("lipschitz", 2, 2, 8, output="real")
    noise = np.random.default_rng(0)
    for fit in (frames.fit_scaling, frames.fit_targets):
        fit([noise.normal(2.0, 3.0, (50, 2)).astype(np.float32)])
    fields: dict[str, dict[str, Any]] = {
        "text": {"cell": "lstm", "output": "categorical", "features": LETTERS, "labels": LETTERS},
        "frames": {"cell": "lipschitz", "output": "real", "features": ["l", "r"], "targets": ["l", "r"]},
    }
    models = {"text": text.eval(), "frames": frames.eval()}
    for name, model in models.items():
        report = exported(model, tmp_path_factory.mktemp("export"))
        facts = {"task": "predict-next", "signature": report.signature, "parity": report.parity, **fields[name]}
        Registry(root).publish(name, report.files, facts)
    return Published(root, {f"{name}:1": model for name, model in models.items()})


@pytest.fixture(scope="module")
def text(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("text:1"), "cpu")


@pytest.fixture(scope="module")
def running(published: Published) -> Iterator[Running]:
    settings = Settings(registry=published.root, max_elements=2000)
    yield from serve(create_app(settings))


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url) as client:
        yield client


TOKENS = np.array([[0, 4, 2, 1], [3, 3, 0, 0]])


def test_tokens_in_and_logits_of_every_step_out(client: httpx.Client, published: Published) -> None:
    body = {"inputs": [json_tensor("tokens", TOKENS)], "outputs": [{"name": "logits"}]}
    (output,) = client.post("/v2/models/text/infer", json=body).raise_for_status().json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [2, 4, 5])
    expected = torch_answer(published.torch_models["text:1"], TOKENS)["logits"]
    np.testing.assert_allclose(np.reshape(output["data"], (2, 4, 5)), expected, atol=1e-5)


def test_int32_tokens_as_raw_bytes(client: httpx.Client, published: Published) -> None:
    raw = TOKENS.astype("<i4").tobytes()
    tensor = {"name": "tokens", "shape": [2, 4], "datatype": "INT32", "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "logits"}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    answer = client.post("/v2/models/text/infer", content=head + raw, headers=headers).raise_for_status().json()
    expected = torch_answer(published.torch_models["text:1"], TOKENS)["logits"]
    np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], (2, 4, 5)), expected, atol=1e-5)


def test_a_state_goes_on_over_http(client: httpx.Client) -> None:
    whole = client.post("/v2/models/text/infer", json={"inputs": [json_tensor("tokens", TOKENS)]}).json()["outputs"]
    first = client.post("/v2/models/text/infer", json={"inputs": [json_tensor("tokens", TOKENS[:, :3])]}).json()
    states = [
        {"name": output["name"].removesuffix("_out"), **{key: output[key] for key in ("shape", "datatype", "data")}}
        for output in first["outputs"]
        if output["name"].startswith("state_")
    ]
    body = {"inputs": [json_tensor("tokens", TOKENS[:, 3:]), *states]}
    second = client.post("/v2/models/text/infer", json=body).json()["outputs"]
    assert np.array_equal(np.reshape(second[0]["data"], (2, 5)), np.reshape(whole[0]["data"], (2, 4, 5))[:, 3])
    assert [output["data"] for output in second[1:]] == [output["data"] for output in whole[1:]]


def test_metadata_says_what_goes_in_and_what_is_said(client: httpx.Client) -> None:
    metadata = client.get("/v2/models/text").json()
    assert metadata["inputs"][0] == {"name": "tokens", "datatype": "INT64", "shape": [-1, -1], "parameters": {}}
    assert metadata["outputs"][0]["shape"] == [-1, -1, 5]
    facts = metadata["parameters"]
    assert (facts["task"], facts["output"], facts["labels"]) == ("predict-next", "categorical", LETTERS)
    config = client.get("/v2/models/text/config").json()
    assert config["input"][0] == {"name": "tokens", "data_type": "TYPE_INT64", "dims": [-1, -1], "optional": False}


def test_numbers_in_and_numbers_of_every_step_out(client: httpx.Client, published: Published) -> None:
    x = np.random.default_rng(1).normal(size=(1, 6, 2)).astype(np.float32)
    body = {"inputs": [json_tensor("x", x)], "outputs": [{"name": "mean"}]}
    (output,) = client.post("/v2/models/frames/infer", json=body).raise_for_status().json()["outputs"]
    expected = torch_answer(published.torch_models["frames:1"], x)["mean"]
    np.testing.assert_allclose(np.reshape(output["data"], (1, 6, 2)), expected, atol=1e-4)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beyond": (
        json_tensor("tokens", np.array([[0, 1, 5]])),
        "tokens must be from 0 to 4, their places in the vocabulary of model 'text:1', got 5 at (0, 2).",
    ),
    "below": (
        json_tensor("tokens", np.array([[-1]])),
        "tokens must be from 0 to 4, their places in the vocabulary of model 'text:1', got -1 at (0, 0).",
    ),
    "numbers": (
        json_tensor("tokens", np.zeros((1, 2), np.float32)),
        "tokens must hold whole numbers (int64), got float32.",
    ),
    "channels": (
        json_tensor("tokens", np.zeros((1, 2, 5), np.int64)),
        "tokens must have the shape (batch, time) for model 'text:1', got (1, 2, 5).",
    ),
    "empty": (
        json_tensor("tokens", np.zeros((1, 0), np.int64)),
        "tokens is empty: it needs at least one time step, got the shape (1, 0).",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_input_says_what_is_wrong(case: str, client: httpx.Client) -> None:
    tensor, sentence = REFUSED[case]
    answer = client.post("/v2/models/text/infer", json={"inputs": [tensor]})
    assert (answer.status_code, answer.json()["error"]) == (400, sentence)


def test_x_is_not_an_input_of_it(client: httpx.Client) -> None:
    body = {"inputs": [json_tensor("x", np.zeros((1, 2, 1), np.float32))]}
    answer = client.post("/v2/models/text/infer", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Unknown input 'x'.")


def test_the_outputs_of_all_steps_count_against_the_limit(client: httpx.Client) -> None:
    body = {"inputs": [json_tensor("tokens", np.zeros((1, 500), np.int64))]}
    assert client.post("/v2/models/text/infer", json=body).status_code == 413


def test_it_neither_classifies_nor_forecasts(client: httpx.Client) -> None:
    for task in ("classify", "forecast"):
        answer = client.post(f"/v1/timeseries/{task}", json={"model": "text", "inputs": [{"series": [1, 2]}]})
        assert answer.status_code == 400
        assert "predict-next" in answer.json()["error"]


def test_stepping_gives_the_bits_of_every_step(text: ServedModel) -> None:
    whole = text.run_sequence(TOKENS)
    state: Mapping[str, np.ndarray] = {}
    for time in range(4):
        outputs = text.run_step(TOKENS[:, time], state)
        state = text.next_state(outputs)
        assert np.array_equal(outputs["logits"], whole["logits"][:, time])
    assert text.run_numpy(TOKENS).keys() == {"logits"}
    with pytest.raises(InputError) as caught:
        text.run_step(TOKENS)
    assert str(caught.value) == "tokens must have the shape (batch,) for model 'text:1', got (2, 4)."


def test_lengths_belong_to_the_tokens(text: ServedModel) -> None:
    with pytest.raises(InputError) as caught:
        text.run_numpy(TOKENS, np.array([4, 5]))
    assert str(caught.value) == "lengths must lie between 1 and the 4 time steps of tokens, got 5."


def test_a_manifest_with_other_classes_is_not_served(published: Published, tmp_path: Path) -> None:
    version = published.registry.get("text:1")
    files = {name: tmp_path / name for name in ("step.onnx", "sequence.onnx")}
    for name, path in files.items():
        path.write_bytes(version.read(name))
    fields = {**version.manifest.model_dump(include=set(ManifestFields.model_fields)), "labels": LETTERS[:4]}
    wrong = Registry(tmp_path / "registry").publish("wrong", files, fields)
    with pytest.raises(ModelLoadError) as caught:
        ServedModel.load(wrong, "cpu")
    assert str(caught.value) == (
        "'wrong:1' cannot be served: its manifest promises the output 'logits' in the shape (1, 2, 4), the graph gives "
        "(1, 2, 5)."
    )


@pytest.mark.parametrize(("output", "field"), [("real", "targets"), ("bernoulli", "labels")])
def test_a_manifest_names_what_is_said(output: str, field: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    fields = {"task": "predict-next", "cell": "lstm", "signature": {}, "features": ["x"], "output": output}
    with pytest.raises(ManifestError) as caught:
        Registry(tmp_path / "registry").publish("m", {"a.txt": tmp_path / "a.txt"}, fields)
    assert f"task 'predict-next' needs the field '{field}', got None" in str(caught.value)
