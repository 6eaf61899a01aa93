"""Clients that were not written here, over a real port: NVIDIA's tritonclient, and the protocol's generated one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from open_inference.openapi.client import OpenInferenceClient
from open_inference.openapi.types.inference_request import InferenceRequest
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from server_helpers import DATATYPES, Published, Running, json_tensor, serve, torch_answer
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app

LABELS = ["cat", "dog", "owl", "rat"]


@pytest.fixture(scope="module")
def foreign(server: Running) -> Iterator[InferenceServerClient]:
    with InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        yield client


@pytest.fixture
def control(published: Published) -> Iterator[InferenceServerClient]:
    """As ``foreign``, to a server that may be changed: only ``animals@production`` is served."""
    app = create_app(Settings(registry=published.root, models=("animals@production",), reload_seconds=0))
    for running in serve(app):
        with InferenceServerClient(f"127.0.0.1:{running.port}") as client:
            yield client


def tensor(name: str, value: np.ndarray, *, binary: bool) -> InferInput:
    item = InferInput(name, list(value.shape), DATATYPES[value.dtype.name])
    item.set_data_from_numpy(value, binary_data=binary)
    return item


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_health_and_readiness(foreign: InferenceServerClient) -> None:
    assert foreign.is_server_live() is True
    assert foreign.is_server_ready() is True
    assert foreign.is_model_ready("animals") is True
    assert foreign.is_model_ready("animals", "2") is True
    assert foreign.is_model_ready("animals@production") is True
    assert foreign.is_model_ready("animals", "3") is False
    assert foreign.is_model_ready("fish") is False


def test_metadata_and_config(foreign: InferenceServerClient) -> None:
    server = foreign.get_server_metadata()
    assert server["name"] == "stablernn"
    assert {"binary_tensor_data", "sequence", "model_repository", "statistics"} <= set(server["extensions"])
    metadata = foreign.get_model_metadata("animals", "2")
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, -1, 1], "parameters": {}}
    config = foreign.get_model_config("animals")
    assert (config["name"], config["max_batch_size"]) == ("animals", 0)
    assert [item["name"] for item in config["output"]][:2] == ["logits", "probabilities"]


@pytest.mark.parametrize(("binary_in", "out"), [(True, "default"), (False, "binary"), (True, "JSON")])
def test_inference_equals_torch(
    foreign: InferenceServerClient, published: Published, binary_in: bool, out: str
) -> None:
    x = noise(3, 9, 1, seed=7)
    lengths = np.array([9, 4, 1], np.int64)
    outputs = None
    if out != "default":
        outputs = [InferRequestedOutput(name, binary_data=out == "binary") for name in ("logits", "probabilities")]
    inputs = [tensor("x", x, binary=binary_in), tensor("lengths", lengths, binary=binary_in)]
    result = foreign.infer(
        "animals",
        inputs,
        model_version="2",
        request_id="r-1",
        outputs=outputs,
        priority=1,
        timeout=30_000_000,
    )
    response = result.get_response()
    assert (response["id"], response["model_name"], response["model_version"]) == ("r-1", "animals", "2")
    # Without a list of outputs, the client asks for all of them as raw bytes.
    assert all(("data" in output) == (out == "JSON") for output in response["outputs"])
    expected = torch_answer(published.torch_models["animals:2"], x, lengths)
    for name in ("logits", "probabilities"):
        got = result.as_numpy(name)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=1e-5)
    assert (result.as_numpy("state_0_out") is None) == (out != "default")


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize(("sent", "back"), [(None, None), ("gzip", "deflate"), ("deflate", "gzip")])
def test_compression(
    foreign: InferenceServerClient, flow: ServedModel, binary: bool, sent: str | None, back: str | None
) -> None:
    x = noise(40, 13, 3, seed=9)
    result = foreign.infer(
        "flow",
        [tensor("x", x, binary=binary)],
        outputs=[InferRequestedOutput("quantiles", binary_data=binary)],
        request_compression_algorithm=sent,
        response_compression_algorithm=back,
    )
    assert np.array_equal(result.as_numpy("quantiles").astype(np.float32), flow.run_sequence(x)["quantiles"])


@pytest.mark.parametrize(("name", "binary"), [(2**63, True), ("a stream", False)], ids=["number", "text"])
def test_a_sequence_in_pieces_gives_the_bits_of_the_whole(
    foreign: InferenceServerClient, animals: ServedModel, name: int | str, binary: bool
) -> None:
    x = noise(2, 30, 1, seed=3)
    # Three steps in the middle are missing.
    x[0, 11:14] = np.nan
    expected = animals.run_sequence(x)
    ends = [1, 2, 12, 13, 30]
    starts = [0, *ends[:-1]]
    for start, end in zip(starts, ends, strict=True):
        result = foreign.infer(
            "animals@production",
            [tensor("x", x[:, start:end], binary=binary)],
            sequence_id=name,
            sequence_start=start == 0,
            sequence_end=end == 30,
            outputs=[InferRequestedOutput("logits", binary_data=binary)],
        )
        assert result.get_response()["parameters"]["sequence_id"] == name
        whole = animals.run_sequence(x[:, :end])["logits"]
        assert np.array_equal(result.as_numpy("logits").astype(np.float32), whole), end
    assert np.array_equal(whole, expected["logits"])
    with pytest.raises(InferenceServerException, match="has ended. Begin it with sequence_start=true") as caught:
        foreign.infer("animals@production", [tensor("x", x[:, :1], binary=binary)], sequence_id=name)
    assert caught.value.status() == "409"


def test_classification_extension(foreign: InferenceServerClient, published: Published) -> None:
    x = noise(2, 5, 1, seed=9)
    output = InferRequestedOutput("probabilities", class_count=2)
    got = foreign.infer("animals", [tensor("x", x, binary=True)], outputs=[output]).as_numpy("probabilities")
    assert got.shape == (2, 2)
    expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"]
    for row, probabilities in zip(got, expected, strict=True):
        texts = [item.decode() if isinstance(item, bytes) else item for item in row]
        best = np.argsort(-probabilities)[:2]
        assert [text.split(":")[1:] for text in texts] == [[str(i), LABELS[i]] for i in best]
        np.testing.assert_allclose([float(text.split(":")[0]) for text in texts], probabilities[best], atol=1e-5)


def test_errors_reach_the_client_as_our_sentence(foreign: InferenceServerClient) -> None:
    x = noise(1, 4, 1)

    def refused(model: str, value: np.ndarray, **options: Any) -> tuple[str, str]:
        with pytest.raises(InferenceServerException) as caught:
            foreign.infer(model, [tensor("x", value, binary=True)], **options)
        return caught.value.status(), caught.value.message()

    status, sentence = refused("flow", noise(2, 40, 5))
    assert (status, "5 features" in sentence, "'flow:1'" in sentence) == ("400", True, True)
    for model, options, expected, words in (
        ("animal", {}, "404", "Did you mean 'animals'?"),
        ("animals", {"model_version": "7"}, "404", "no version 7"),
        ("animals", {"sequence_id": "never begun"}, "409", "'never begun'"),
        ("animals", {"timeout": 1}, "504", "deadline"),
    ):
        status, sentence = refused(model, x, **options)
        assert (status, words in sentence) == (expected, True), sentence


def test_loading_and_unloading(control: InferenceServerClient) -> None:
    rows = control.get_model_repository_index()
    state = {(row["name"], row["version"]): (row["state"], row["reason"]) for row in rows}
    assert state["animals", "1"] == ("READY", "")
    assert state["animals", "2"] == ("UNAVAILABLE", "not loaded")
    assert state["flow", "1"] == ("UNAVAILABLE", "not loaded")
    control.load_model("flow")
    control.load_model("animals:2")
    assert control.is_model_ready("flow")
    assert control.is_model_ready("animals", "2")
    assert control.infer("animals", [tensor("x", noise(1, 2, 1), binary=True)]).get_response()["model_version"] == "1"
    control.unload_model("flow")
    assert not control.is_model_ready("flow")
    control.unload_model("animals", unload_dependents=True)
    assert not control.is_model_ready("animals")
    assert {row["reason"] for row in control.get_model_repository_index() if row["name"] in ("animals", "flow")} == {
        "unloaded on request"
    }
    for arguments, options, status in ((("fish",), {}, "404"), (("flow",), {"config": "{}"}, "400")):
        with pytest.raises(InferenceServerException, match=r"fish|'config'") as caught:
            control.load_model(*arguments, **options)
        assert caught.value.status() == status


@pytest.fixture(scope="module")
def typed(server: Running) -> Iterator[OpenInferenceClient]:
    with httpx.Client(timeout=60) as http_client:
        yield OpenInferenceClient(base_url=server.url, httpx_client=http_client)


def test_the_generated_client_reads_health_and_metadata(typed: OpenInferenceClient) -> None:
    typed.check_server_liveness()
    typed.check_server_readiness()
    typed.check_model_readiness("animals")
    typed.check_model_version_readiness("animals", "2")
    server = typed.read_server_metadata()
    assert (server.name, "sequence" in server.extensions) == ("stablernn", True)
    for model in (typed.read_model_metadata("flow"), typed.read_model_version_metadata("flow", "1")):
        assert (model.name, model.platform, model.versions) == ("flow", "onnx_onnxv1", ["1"])
        assert [(item.name, item.datatype, item.shape) for item in model.inputs][0] == ("x", "FP32", [-1, -1, 3])


def test_the_generated_client_reads_answers(typed: OpenInferenceClient, published: Published) -> None:
    x = noise(2, 6, 1)
    request = InferenceRequest.parse_obj(
        {"id": "a", "inputs": [json_tensor("x", x)], "outputs": [{"name": "logits"}], "parameters": {"sequence_id": 0}}
    )
    for answer in (
        typed.model_infer("animals", request=request),
        typed.model_version_infer("animals", "1", request=request),
    ):
        assert (answer.id, answer.model_name, answer.model_version) == ("a", "animals", "1")
        (output,) = answer.outputs
        assert (output.name, output.datatype, output.shape) == ("logits", "FP32", [2, 4])
        expected = torch_answer(published.torch_models["animals:1"], x)["logits"].reshape(-1)
        np.testing.assert_allclose(output.data.dict()["__root__"], expected, atol=1e-5)
