"""Clients that were not written here, over a real port: NVIDIA's tritonclient, and the protocol's generated one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from open_inference.openapi.client import OpenInferenceClient
from open_inference.openapi.core.api_error import ApiError
from open_inference.openapi.errors.bad_request_error import BadRequestError
from open_inference.openapi.types.inference_error_response import InferenceErrorResponse
from open_inference.openapi.types.inference_request import InferenceRequest
from open_inference.openapi.types.metadata_model_error_response import MetadataModelErrorResponse
from tritonclient.utils import InferenceServerException

from server_helpers import DATATYPES, Published, Running, json_tensor, serve, torch_answer
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app

LABELS = ["cat", "dog", "owl", "rat"]
Call = Callable[..., Any]


@pytest.fixture(scope="module", params=["sync", "aio"])
def calls(server: Running, request: pytest.FixtureRequest) -> Iterator[Call]:
    """``calls(method, ...)`` of one of the two clients."""
    yield from caller(server, request.param)


@pytest.fixture(params=["sync", "aio"])
def control(published: Published, request: pytest.FixtureRequest) -> Iterator[Call]:
    """As ``calls``, to a server that may be changed: only ``animals@production`` is served."""
    app = create_app(Settings(registry=published.root, models=("animals@production",), reload_seconds=0))
    for running in serve(app):
        yield from caller(running, request.param)


def caller(server: Running, kind: str) -> Iterator[Call]:
    address = f"127.0.0.1:{server.port}"
    if kind == "sync":
        client = triton.InferenceServerClient(address)
        yield lambda name, *args, **kwargs: getattr(client, name)(*args, **kwargs)
        client.close()
        return
    with asyncio.Runner() as runner:

        async def opened() -> triton_aio.InferenceServerClient:
            return triton_aio.InferenceServerClient(address)

        aio = runner.run(opened())

        async def awaited(answer: Awaitable[Any]) -> Any:
            return await answer

        yield lambda name, *args, **kwargs: runner.run(awaited(getattr(aio, name)(*args, **kwargs)))
        runner.run(aio.close())


def tensor(name: str, value: np.ndarray, *, binary: bool) -> triton.InferInput:
    item = triton.InferInput(name, list(value.shape), DATATYPES[value.dtype.name])
    item.set_data_from_numpy(value, binary_data=binary)
    return item


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_health_and_readiness(calls: Call) -> None:
    assert calls("is_server_live") is True
    assert calls("is_server_ready") is True
    assert calls("is_model_ready", "animals") is True
    assert calls("is_model_ready", "animals", "2") is True
    assert calls("is_model_ready", "animals@production") is True
    assert calls("is_model_ready", "animals", "3") is False
    assert calls("is_model_ready", "fish") is False


def test_metadata_and_config(calls: Call) -> None:
    server = calls("get_server_metadata")
    assert server["name"] == "stablernn"
    assert {"binary_tensor_data", "sequence", "model_repository", "statistics"} <= set(server["extensions"])
    metadata = calls("get_model_metadata", "animals", "2")
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, -1, 1], "parameters": {}}
    config = calls("get_model_config", "animals")
    assert (config["name"], config["max_batch_size"]) == ("animals", 0)
    assert [item["name"] for item in config["output"]][:2] == ["logits", "probabilities"]


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("out", ["default", "binary", "JSON"])
def test_inference_equals_torch(calls: Call, published: Published, binary_in: bool, out: str) -> None:
    x = noise(3, 9, 1, seed=7)
    lengths = np.array([9, 4, 1], np.int64)
    outputs = None
    if out != "default":
        outputs = [
            triton.InferRequestedOutput(name, binary_data=out == "binary") for name in ("logits", "probabilities")
        ]
    inputs = [tensor("x", x, binary=binary_in), tensor("lengths", lengths, binary=binary_in)]
    result = calls(
        *("infer", "animals", inputs),
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


def test_binary_and_json_give_the_same_bits(calls: Call, flow: ServedModel) -> None:
    x = noise(2, 13, 3, seed=8)
    expected = flow.run_sequence(x)["quantiles"]
    for binary_in in (True, False):
        for binary_out in (True, False):
            output = triton.InferRequestedOutput("quantiles", binary_data=binary_out)
            got = calls("infer", "flow", [tensor("x", x, binary=binary_in)], outputs=[output]).as_numpy("quantiles")
            assert np.array_equal(got.astype(np.float32), expected)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
@pytest.mark.parametrize("sent", [None, "gzip", "deflate"])
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_compression(calls: Call, flow: ServedModel, binary: bool, sent: str | None, back: str | None) -> None:
    x = noise(40, 13, 3, seed=9)
    result = calls(
        *("infer", "flow", [tensor("x", x, binary=binary)]),
        outputs=[triton.InferRequestedOutput("quantiles", binary_data=binary)],
        request_compression_algorithm=sent,
        response_compression_algorithm=back,
    )
    assert np.array_equal(result.as_numpy("quantiles").astype(np.float32), flow.run_sequence(x)["quantiles"])


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [("gzip", "gzip"), ("deflate", "deflate"), ("br, gzip;q=0", None), ("identity", None)],
)
def test_a_long_answer_is_compressed_as_asked_for(client: httpx.Client, accepted: str, encoding: str | None) -> None:
    body = {"inputs": [json_tensor("x", noise(40, 13, 3))], "outputs": [{"name": "quantiles"}]}
    answer = client.post("/v2/models/flow/infer", json=body, headers={"Accept-Encoding": accepted})
    assert answer.headers.get("content-encoding") == encoding
    assert answer.headers.get("vary") == (encoding and "Accept-Encoding")
    assert answer.json()["outputs"][0]["shape"] == [40, 5, 2, 3]


@pytest.mark.parametrize("name", [7, 2**63, "a stream"], ids=["number", "large number", "text"])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_a_sequence_in_pieces_gives_the_bits_of_the_whole(
    calls: Call, animals: ServedModel, name: int | str, binary: bool
) -> None:
    x = noise(2, 30, 1, seed=3)
    # Three steps in the middle are missing.
    x[0, 11:14] = np.nan
    expected = animals.run_sequence(x)
    ends = [1, 2, 12, 13, 30]
    starts = [0, *ends[:-1]]
    for start, end in zip(starts, ends, strict=True):
        result = calls(
            *("infer", "animals@production", [tensor("x", x[:, start:end], binary=binary)]),
            sequence_id=name,
            sequence_start=start == 0,
            sequence_end=end == 30,
            outputs=[triton.InferRequestedOutput("logits", binary_data=binary)],
        )
        assert result.get_response()["parameters"]["sequence_id"] == name
        whole = animals.run_sequence(x[:, :end])["logits"]
        assert np.array_equal(result.as_numpy("logits").astype(np.float32), whole), end
    assert np.array_equal(whole, expected["logits"])
    with pytest.raises(InferenceServerException, match="has ended. Begin it with sequence_start=true") as caught:
        calls("infer", "animals@production", [tensor("x", x[:, :1], binary=binary)], sequence_id=name)
    assert caught.value.status() == "409"


def test_sequences_of_several_clients_do_not_mix(calls: Call, animals: ServedModel) -> None:
    series = {"one": noise(1, 8, 1, seed=1), "two": noise(1, 8, 1, seed=2), 1: noise(1, 8, 1, seed=4)}
    for step in range(8):
        for name, x in series.items():
            result = calls(
                *("infer", "animals@production", [tensor("x", x[:, step : step + 1], binary=True)]),
                sequence_id=name,
                sequence_start=step == 0,
                sequence_end=step == 7,
            )
            assert np.array_equal(result.as_numpy("logits"), animals.run_sequence(x[:, : step + 1])["logits"])


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_missing_values(calls: Call, published: Published, binary: bool) -> None:
    x = np.array([1.0, np.nan, 3.0, np.nan, np.nan], np.float32).reshape(1, 5, 1)
    got = calls("infer", "animals", [tensor("x", x, binary=binary)]).as_numpy("logits")
    np.testing.assert_allclose(got, torch_answer(published.torch_models["animals:1"], x)["logits"], atol=1e-5)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_classification_extension(calls: Call, published: Published, binary: bool) -> None:
    x = noise(2, 5, 1, seed=9)
    output = triton.InferRequestedOutput("probabilities", binary_data=binary, class_count=2)
    got = calls("infer", "animals", [tensor("x", x, binary=True)], outputs=[output]).as_numpy("probabilities")
    assert got.shape == (2, 2)
    expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"]
    for row, probabilities in zip(got, expected, strict=True):
        texts = [item.decode() if isinstance(item, bytes) else item for item in row]
        best = np.argsort(-probabilities)[:2]
        assert [text.split(":")[1:] for text in texts] == [[str(i), LABELS[i]] for i in best]
        np.testing.assert_allclose([float(text.split(":")[0]) for text in texts], probabilities[best], atol=1e-5)


def test_errors_reach_the_client_as_our_sentence(calls: Call) -> None:
    x = noise(1, 4, 1)

    def refused(model: str, value: np.ndarray, **options: Any) -> tuple[str, str]:
        with pytest.raises(InferenceServerException) as caught:
            calls("infer", model, [tensor("x", value, binary=True)], **options)
        return caught.value.status(), caught.value.message()

    assert refused("flow", noise(2, 40, 5)) == (
        "400",
        "x has 5 features, model 'flow:1' expects 3 (flow, rain, level).",
    )
    assert refused("animal", x) == (
        "404",
        "Unknown model 'animal'. Did you mean 'animals'? Served models: animals, co2, flow.",
    )
    status, sentence = refused("animals", x, model_version="7")
    assert (status, sentence[:45]) == ("404", "The model 'animals' has no version 7 here. Se")
    status, sentence = refused("animals", x, sequence_id="never begun")
    assert status == "409"
    assert sentence.startswith(
        "The sequence 'never begun' of the model 'animals' was not begun in this server process."
    )
    status, sentence = refused("animals", x, timeout=1)
    assert status == "504"


def test_loading_and_unloading(control: Call) -> None:
    rows = control("get_model_repository_index")
    state = {(row["name"], row["version"]): (row["state"], row["reason"]) for row in rows}
    assert state["animals", "1"] == ("READY", "")
    assert state["animals", "2"] == ("UNAVAILABLE", "not loaded")
    assert state["flow", "1"] == ("UNAVAILABLE", "not loaded")
    control("load_model", "flow")
    control("load_model", "animals:2")
    assert control("is_model_ready", "flow")
    assert control("is_model_ready", "animals", "2")
    assert (
        control("infer", "animals", [tensor("x", noise(1, 2, 1), binary=True)]).get_response()["model_version"] == "1"
    )
    control("unload_model", "flow")
    assert not control("is_model_ready", "flow")
    control("unload_model", "animals", unload_dependents=True)
    assert not control("is_model_ready", "animals")
    assert {row["reason"] for row in control("get_model_repository_index") if row["name"] in ("animals", "flow")} == {
        "unloaded on request"
    }
    with pytest.raises(InferenceServerException, match="Unknown model 'fish' in the registry") as caught:
        control("load_model", "fish")
    assert caught.value.status() == "404"
    with pytest.raises(InferenceServerException, match="'config' is not supported: models come from the") as caught:
        control("load_model", "flow", config="{}")
    assert caught.value.status() == "400"


def test_statistics(control: Call) -> None:
    for _ in range(3):
        control("infer", "animals", [tensor("x", noise(2, 2, 1), binary=True)])
    for found in (control("get_inference_statistics"), control("get_inference_statistics", "animals", "1")):
        row = next(row for row in found["model_stats"] if row["version"] == "1")
        assert (row["name"], row["inference_count"], row["execution_count"]) == ("animals", 6, 3)
        assert row["inference_stats"]["success"]["count"] == 3


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


def test_the_generated_client_reads_errors(typed: OpenInferenceClient) -> None:
    request = InferenceRequest.parse_obj({"inputs": [json_tensor("x", noise(1, 2, 2))]})
    with pytest.raises(BadRequestError) as refused:
        typed.model_infer("animals", request=request)
    sentence = InferenceErrorResponse.parse_obj(refused.value.body).error
    assert sentence == "x has 2 features, model 'animals:1' expects 1 (loudness)."
    with pytest.raises(ApiError, match="status_code: 404") as unknown:
        typed.read_model_metadata("fish")
    body = MetadataModelErrorResponse.parse_obj(unknown.value.body)
    assert str(body.error).startswith("Unknown model 'fish'.")
