"""A client that was not written here: NVIDIA's tritonclient, over a real port."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from server_helpers import Published, Running, torch_answer


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield client
    client.close()


def tensor(name: str, value: np.ndarray, *, binary: bool) -> triton.InferInput:
    datatype = {"float32": "FP32", "int64": "INT64", "float64": "FP64"}[value.dtype.name]
    item = triton.InferInput(name, list(value.shape), datatype)
    item.set_data_from_numpy(value, binary_data=binary)
    return item


def test_health_and_readiness(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("animals")
    assert client.is_model_ready("animals", "2")
    assert client.is_model_ready("animals@production")
    assert not client.is_model_ready("animals", "3")
    assert not client.is_model_ready("fish")


def test_metadata_and_config(client: triton.InferenceServerClient) -> None:
    assert client.get_server_metadata()["name"] == "stablernn"
    metadata = client.get_model_metadata("animals", "2")
    assert metadata["versions"] == ["1", "2"]
    assert metadata["inputs"][0] == {"name": "x", "datatype": "FP32", "shape": [-1, -1, 1], "parameters": {}}
    config = client.get_model_config("animals")
    assert config["name"] == "animals"
    assert config["max_batch_size"] == 0
    assert [item["name"] for item in config["output"]][:2] == ["logits", "probabilities"]


@pytest.mark.parametrize("binary_in", [True, False], ids=["binary in", "JSON in"])
@pytest.mark.parametrize("out", ["none named", "binary", "JSON"])
def test_infer(client: triton.InferenceServerClient, published: Published, binary_in: bool, out: str) -> None:
    x = np.random.default_rng(7).normal(size=(3, 11, 1)).astype(np.float32)
    lengths = np.array([11, 4, 7], np.int64)
    outputs = None
    if out != "none named":
        outputs = [
            triton.InferRequestedOutput(name, binary_data=out == "binary") for name in ("probabilities", "logits")
        ]
    inputs = [tensor("x", x, binary=binary_in), tensor("lengths", lengths, binary=binary_in)]
    result = client.infer("animals", inputs, model_version="2", request_id="r-1", outputs=outputs)

    response = result.get_response()
    assert response["id"] == "r-1"
    assert response["model_name"] == "animals"
    assert response["model_version"] == "2"
    assert all(("data" in output) == (out == "JSON") for output in response["outputs"])
    expected = torch_answer(published.torch_models["animals:2"], x, lengths)
    for name in ("logits", "probabilities"):
        got = result.as_numpy(name)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, expected[name], rtol=0, atol=1e-5)


def test_binary_and_json_give_the_same_bits(client: triton.InferenceServerClient) -> None:
    x = np.random.default_rng(8).normal(size=(2, 13, 3)).astype(np.float32)
    answers = [
        client.infer(
            "flow",
            [tensor("x", x, binary=binary)],
            outputs=[triton.InferRequestedOutput("quantiles", binary_data=binary)],
        ).as_numpy("quantiles")
        for binary in (True, False)
    ]
    assert answers[0].shape == (2, 5, 2, 3)
    assert np.array_equal(*answers)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_missing_values(client: triton.InferenceServerClient, published: Published, binary: bool) -> None:
    x = np.array([1.0, np.nan, 3.0, np.nan, np.nan], np.float32).reshape(1, 5, 1)
    got = client.infer("animals", [tensor("x", x, binary=binary)]).as_numpy("logits")
    np.testing.assert_allclose(got, torch_answer(published.torch_models["animals:1"], x)["logits"], atol=1e-5)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_classification_extension(client: triton.InferenceServerClient, published: Published, binary: bool) -> None:
    x = np.random.default_rng(9).normal(size=(2, 5, 1)).astype(np.float32)
    output = triton.InferRequestedOutput("probabilities", binary_data=binary, class_count=2)
    got = client.infer("animals", [tensor("x", x, binary=True)], outputs=[output]).as_numpy("probabilities")
    assert got.shape == (2, 2)
    expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"]
    for row, probabilities in zip(got, expected, strict=True):
        texts = [item.decode() if isinstance(item, bytes) else item for item in row]
        best = np.argsort(-probabilities)[:2]
        assert [text.split(":")[1:] for text in texts] == [[str(i), ["cat", "dog", "owl", "rat"][i]] for i in best]
        np.testing.assert_allclose([float(text.split(":")[0]) for text in texts], probabilities[best], atol=1e-5)


def test_an_error_reaches_the_client_as_our_sentence(client: triton.InferenceServerClient) -> None:
    x = np.zeros((2, 40, 5), np.float32)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("flow", [tensor("x", x, binary=True)])
    assert caught.value.status() == "400"
    assert caught.value.message() == ("x has 5 features, model 'flow:1' expects 3 (flow, rain, level).")


def test_what_the_server_cannot_do_is_refused_and_not_ignored(client: triton.InferenceServerClient) -> None:
    x = tensor("x", np.zeros((1, 2, 1), np.float32), binary=True)
    with pytest.raises(InferenceServerException, match="The parameter sequence_id is not supported"):
        client.infer("animals", [x], sequence_id=5, sequence_start=True)
    with pytest.raises(InferenceServerException, match="The Content-Encoding 'gzip' is not understood"):
        client.infer("animals", [x], request_compression_algorithm="gzip")
