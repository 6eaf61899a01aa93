"""Requests of Flink SQL's connector for Triton, replayed from its source: Flink itself does not run here.

The connector is ``flink-models/flink-model-triton`` of https://github.com/apache/flink, which Flink has since 2.3; its
jar is not in the package ``apache-flink``. ``ask`` follows the Java of ``org.apache.flink.model.triton``:
``TritonInferenceModelFunction`` (commit f745f50b, with retries in later ones, which build the same requests),
``TritonTypeMapper`` (db1cf974) and ``TritonUtils`` (2e4caf9f).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from server_helpers import Published, Running, serve
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "examples" / "engines" / "README.md"
TOKEN = "flink-token-0123456789"
# TritonTypeMapper.toTritonDataType; an ARRAY has the datatype of its elements.
DATATYPES = {"BIGINT": "INT64", "FLOAT": "FP32", "STRING": "BYTES"}


def ask(
    url: str, values: list[Any], *, input: str, type: str = "FLOAT", output: str, options: dict[str, str]
) -> httpx.Response:
    """Send the value of a column ``ARRAY<type>`` in one row."""
    # What is not finite is text to Jackson, and the id of the sequence becomes that of the request.
    data = ["NaN" if value != value else value for value in values]
    body: dict[str, Any] = {
        "inputs": [{"name": input, "datatype": DATATYPES[type], "shape": [1, len(data)], "data": data}]
    }
    body["outputs"] = [{"name": output}]
    if "sequence-id" in options:
        body |= {"id": options["sequence-id"], "parameters": {"sequence_start": True}}
    headers = {"Accept-Encoding": "gzip"}
    if "auth-token" in options:
        headers["Authorization"] = f"Bearer {options['auth-token']}"
    version = options.get("model-version", "latest")
    path = f"/v2/models/{options['model-name']}/versions/{version}/infer"
    return httpx.post(url + path, json=body, headers=headers)


@pytest.fixture(scope="module")
def text_server(stream_models: Published) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=stream_models.root, models=("text",), infer_tokens=(TOKEN,))))


def test_the_documented_model_of_tokens_gets_the_bits_of_its_graph(
    stream_models: Published, text_server: Running
) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## In Flink SQL\n")[1].split("\n## ")[0]
    statement = r"CREATE MODEL \w+\nINPUT \((\w+) ARRAY<(\w+)>\)\nOUTPUT \((\w+) ARRAY<FLOAT>\)\nWITH \((.*?)\n\);"
    match = re.search(statement, section, re.S)
    assert match is not None
    options = dict(re.findall(r"'(.+?)' = '(.+?)'", match[4])) | {"auth-token": TOKEN}
    tokens = [3, 0, 0, 4, 1, 2]
    answer = ask(text_server.url, tokens, input=match[1], type=match[2], output=match[3], options=options)
    (output,) = answer.raise_for_status().json()["outputs"]
    row = np.array(output["data"], np.float32)
    expected = ServedModel.load(stream_models.registry.get("text:1"), "cpu").run_sequence(np.array([tokens]))["logits"]
    assert np.array_equal(row, expected.ravel())
    # The number of classes is 5: what follows the last token are the last five numbers.
    assert np.array_equal(row[-5:], expected[0, -1])
    # A token is given without the word Bearer.
    options["auth-token"] = f"Bearer {TOKEN}"
    assert ask(text_server.url, [1], input="x", output="y", options=options).status_code == 401


@pytest.mark.parametrize(
    ("values", "changes", "words"),
    [
        ([1.0, 2.0], {"input": "X", "output": "PROBABILITIES"}, "'PROBABILITIES'"),
        ([1.0, 2.0], {"options": {"model-name": "animals"}}, "'latest'"),
        ([1.0, 2.0], {}, "(batch, time, 1)"),
        (["[1.0, 2.0]"], {"type": "STRING"}, "'BYTES'"),
        ([1.0, np.nan], {}, "null or NaN"),
        (
            [1.0, 2.0],
            {"options": {"model-name": "animals", "model-version": "1", "sequence-id": "job"}},
            "sequence_id",
        ),
    ],
    ids=["names in upper case", "no model-version", "no axis of features", "text", "NaN", "a sequence"],
)
def test_other_requests_of_the_connector_are_refused_with_the_reason(
    server: Running, values: list[Any], changes: dict[str, Any], words: str
) -> None:
    statement = {"input": "x", "output": "probabilities", "options": {"model-name": "animals", "model-version": "1"}}
    response = ask(server.url, values, **(statement | changes))
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert words in response.json()["error"]
