"""Models that answer at every step, behind a real server: whole numbers in, outputs of all steps out."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import numpy as np
import pytest

import stream_helpers
from published_models import publish
from server_helpers import Published, json_tensor, raw_request, served_client, torch_answer
from stablernn_registry import Registry
from stablernn_runtime import ServedModel

LETTERS = ["a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """``text:1``, which follows tokens."""
    root = tmp_path_factory.mktemp("registry")
    # Shared with the tests of streams, and so exported once for both.
    text, fields = stream_helpers.fitted()["text"]
    publish(Registry(root), "text", text, tmp_path_factory.mktemp("export"), **fields)
    return Published(root, {"text:1": text})


@pytest.fixture(scope="module")
def text(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("text:1"), "cpu")


@pytest.fixture(scope="module")
def client(published: Published) -> Iterator[httpx.Client]:
    yield from served_client(published.registry, max_elements=2000)


TOKENS = np.array([[0, 4, 2, 1], [3, 3, 0, 0]])


def test_tokens_in_and_logits_of_every_step_out(client: httpx.Client, published: Published) -> None:
    body = {"inputs": [json_tensor("tokens", TOKENS)], "outputs": [{"name": "logits"}]}
    (output,) = client.post("/v2/models/text/infer", json=body).raise_for_status().json()["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [2, 4, 5])
    expected = torch_answer(published.torch_models["text:1"], TOKENS)["logits"]
    np.testing.assert_allclose(np.reshape(output["data"], (2, 4, 5)), expected, atol=1e-5)


def test_int32_tokens_as_raw_bytes(client: httpx.Client, published: Published) -> None:
    body, headers = raw_request({"tokens": TOKENS.astype(np.int32)}, outputs=[{"name": "logits"}])
    answer = client.post("/v2/models/text/infer", content=body, headers=headers).raise_for_status().json()
    expected = torch_answer(published.torch_models["text:1"], TOKENS)["logits"]
    np.testing.assert_allclose(np.reshape(answer["outputs"][0]["data"], (2, 4, 5)), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (np.array([[0, 1, 5]]), "tokens must be from 0 to 4"),
        (np.array([[-1]]), "got -1 at (0, 0)"),
        (np.zeros((1, 2), np.float32), "tokens must hold whole numbers (int64), got float32."),
        (np.zeros((1, 2, 5), np.int64), "tokens must have the shape (batch, time)"),
    ],
    ids=range(4),
)
def test_a_bad_input_says_what_is_wrong(tokens: np.ndarray, words: str, client: httpx.Client) -> None:
    answer = client.post("/v2/models/text/infer", json={"inputs": [json_tensor("tokens", tokens)]})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_the_outputs_of_all_steps_count_against_the_limit(client: httpx.Client) -> None:
    body = {"inputs": [json_tensor("tokens", np.zeros((1, 500), np.int64))]}
    assert client.post("/v2/models/text/infer", json=body).status_code == 413
