"""The v2 routes: what they answer, and that the numbers are those of the torch model."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from server_helpers import Published, json_tensor, torch_answer


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata_answers_without_a_redirect(client: httpx.Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 200
    assert response.json()["name"] == "stablernn"
    assert "binary_tensor_data" in response.json()["extensions"]


def test_model_metadata_names_tensors_and_what_may_be_left_out(client: httpx.Client) -> None:
    metadata = client.get("/v2/models/flow").json()
    assert metadata["platform"] == "onnx_onnxv1"
    assert metadata["versions"] == ["1"]
    x, lengths, *states = metadata["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [-1, -1, 3], "parameters": {}}
    assert lengths == {
        "name": "lengths",
        "datatype": "INT64",
        "shape": [-1],
        "parameters": {"optional": True, "default": "the full length"},
    }
    assert states
    assert all(state["parameters"] == {"optional": True, "default": "zeros"} for state in states)
    mean, quantiles, *state_outputs = metadata["outputs"]
    assert (mean["name"], mean["shape"]) == ("mean", [-1, 5, 2])
    assert (quantiles["name"], quantiles["shape"]) == ("quantiles", [-1, 5, 2, 3])
    assert [output["name"] for output in state_outputs] == [f"{state['name']}_out" for state in states]


def test_model_metadata_says_what_the_model_is_and_where_it_runs(client: httpx.Client, published: Published) -> None:
    facts = client.get("/v2/models/animals/versions/2").json()["parameters"]
    assert facts["task"] == "classify"
    assert facts["labels"] == ["cat", "dog", "owl", "rat"]
    assert facts["features"] == ["loudness"]
    assert facts["version"] == "2"
    assert facts["digest"] == published.registry.get("animals:2").digest
    assert facts["device"] in ("cpu", "cuda")
    assert facts["device_note"].startswith("auto: ")


def test_config_holds_the_shapes_with_their_batch(client: httpx.Client) -> None:
    config = client.get("/v2/models/animals/config").json()
    assert config["max_batch_size"] == 0
    assert config["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, -1, 1], "optional": False}
    assert config["output"][0] == {"name": "logits", "data_type": "TYPE_FP32", "dims": [-1, 4]}


@pytest.mark.parametrize(
    ("path", "version"),
    [
        pytest.param("animals", "1", id="the loaded alias answers for the name"),
        pytest.param("animals@production", "1", id="alias"),
        pytest.param("animals%40production", "1", id="quoted alias"),
        pytest.param("animals:2", "2", id="name and version"),
        pytest.param("animals/versions/2", "2", id="version"),
        pytest.param("animals@production/versions/1", "1", id="alias and its version"),
    ],
)
def test_a_model_is_found_by_name_version_and_alias(
    client: httpx.Client, published: Published, path: str, version: str
) -> None:
    x = np.linspace(-3, 3, 7, dtype=np.float32).reshape(1, 7, 1)
    assert client.get(f"/v2/models/{path}/ready").json() == {"name": "animals", "ready": True}
    answer = client.post(f"/v2/models/{path}/infer", json={"inputs": [json_tensor("x", x)]}).json()
    assert answer["model_name"] == "animals"
    assert answer["model_version"] == version
    expected = torch_answer(published.torch_models[f"animals:{version}"], x)["probabilities"]
    got = {output["name"]: output for output in answer["outputs"]}["probabilities"]
    np.testing.assert_allclose(np.reshape(got["data"], got["shape"]), expected, rtol=0, atol=1e-5)


def test_infer_gives_every_output_unless_some_are_named(client: httpx.Client) -> None:
    body = {"inputs": [json_tensor("x", np.zeros((2, 3, 1), np.float32))]}
    names = [output["name"] for output in client.post("/v2/models/animals/infer", json=body).json()["outputs"]]
    assert names == [output["name"] for output in client.get("/v2/models/animals").json()["outputs"]]
    body["outputs"] = [{"name": "probabilities"}]
    answer = client.post("/v2/models/animals/infer", json=body).json()
    assert [output["name"] for output in answer["outputs"]] == ["probabilities"]
    assert answer["outputs"][0]["shape"] == [2, 4]


def test_null_and_bare_nan_are_the_same_missing_value(client: httpx.Client, published: Published) -> None:
    template = '{"inputs":[{"name":"x","shape":[1,4,1],"datatype":"FP32","data":[1.0,%s,2.5,%s]}]}'
    answers = [
        client.post("/v2/models/animals/infer", content=template % (word, word)).json()["outputs"]
        for word in ("null", "NaN")
    ]
    assert answers[0] == answers[1]
    x = np.array([1.0, np.nan, 2.5, np.nan], np.float32).reshape(1, 4, 1)
    expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"]
    np.testing.assert_allclose(answers[0][1]["data"], expected.ravel(), rtol=0, atol=1e-5)


def test_states_carry_a_series_on(client: httpx.Client) -> None:
    x = np.random.default_rng(6).normal(size=(1, 9, 3)).astype(np.float32)

    def outputs(inputs: list[dict[str, object]]) -> dict[str, dict[str, object]]:
        answer = client.post("/v2/models/flow/infer", json={"inputs": inputs}).json()
        return {output["name"]: output for output in answer["outputs"]}

    whole = outputs([json_tensor("x", x)])
    first = outputs([json_tensor("x", x[:, :5])])
    states = [{**value, "name": name.removesuffix("_out")} for name, value in first.items() if name.endswith("_out")]
    second = outputs([json_tensor("x", x[:, 5:]), *states])
    # JSON writes the shortest text that reads back as the same float32, so the two halves equal the whole exactly.
    assert second == whole
