"""Requests of Flink SQL's connector for Triton, replayed from its source: Flink itself does not run here.

The connector is ``flink-models/flink-model-triton`` of https://github.com/apache/flink, which Flink has since 2.3; its
jar is not in the package ``apache-flink``. The functions below follow the Java of
``org.apache.flink.model.triton``: ``TritonInferenceModelFunction`` (commit f745f50b, with retries in later ones, which
build the same requests), ``TritonTypeMapper`` (db1cf974) and ``TritonUtils`` (2e4caf9f).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from server_helpers import Published, Running, serve
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app
from stream_helpers import publish

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"
TOKEN = "flink-token-0123456789"
# TritonTypeMapper.toTritonDataType; an ARRAY has the datatype of its elements.
DATATYPES = {"INT": "INT32", "BIGINT": "INT64", "FLOAT": "FP32", "DOUBLE": "FP64", "STRING": "BYTES"}


@dataclass(frozen=True)
class CreateModel:
    """A statement ``CREATE MODEL`` with the one column in and the one out that the connector allows.

    Attributes:
        input: Name and type of the input column.
        output: Name and type of the output column.
        options: Options of ``WITH``.
        is_case_kept: Whether tensors have the names of the columns as they are written, as with the proposed change
            FLINK-40684, or in upper case.
    """

    input: tuple[str, str]
    output: tuple[str, str]
    options: Mapping[str, str] = field(default_factory=dict)
    is_case_kept: bool = False


def inference_url(endpoint: str, name: str, version: str) -> str:
    """``TritonUtils.buildInferenceUrl``."""
    base = endpoint.rstrip("/")
    if not base.endswith("/v2/models"):
        base += "/models" if base.endswith("/v2") else "/v2/models"
    return f"{base}/{name}/versions/{version}/infer"


def json_number(value: Any, element_type: str) -> Any:
    """A number as Jackson writes it: a FLOAT with the digits of a float32, and what is not finite as text."""
    if value is None or element_type == "STRING":
        return value
    if element_type in ("INT", "BIGINT"):
        return int(value)
    number = float(str(np.float32(value))) if element_type == "FLOAT" else float(value)
    return number if np.isfinite(number) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]


def request_body(model: CreateModel, value: Any) -> dict[str, Any]:
    """``TritonInferenceModelFunction.buildInferenceRequest`` for the value of the column in one row."""
    (input_name, input_type), (output_name, _) = model.input, model.output
    array = re.fullmatch(r"ARRAY<(\w+)>", input_type)
    element_type = array[1] if array else input_type
    items = value if array and value is not None else [value]
    shape = [1, 0 if value is None else len(items)] if array else [1]
    if model.options.get("flatten-batch-dim") == "true" and len(shape) > 1:
        shape = shape[1:]
    if not model.is_case_kept:
        input_name, output_name = input_name.upper(), output_name.upper()
    body: dict[str, Any] = {}
    # The id of the sequence becomes that of the request, not the parameter sequence_id.
    if "sequence-id" in model.options:
        body["id"] = model.options["sequence-id"]
    parameters: dict[str, Any] = {}
    if "priority" in model.options:
        parameters["priority"] = int(model.options["priority"])
    for option in ("sequence-start", "sequence-end"):
        if model.options.get(option) == "true":
            parameters[option.replace("-", "_")] = True
    if parameters:
        body["parameters"] = parameters
    data = [json_number(item, element_type) for item in items]
    body["inputs"] = [{"name": input_name, "datatype": DATATYPES[element_type], "shape": shape, "data": data}]
    body["outputs"] = [{"name": output_name}]
    return body


def send(server: Running, model: CreateModel, body: Mapping[str, Any]) -> httpx.Response:
    """``TritonInferenceModelFunction.asyncPredict``, which sends a request for each row."""
    options = model.options
    headers = {"Content-Type": "application/json; charset=utf-8", "Accept-Encoding": "gzip"}
    content = json.dumps(body).encode()
    if options.get("compression") == "gzip":
        headers["Content-Encoding"] = "gzip"
        content = gzip.compress(content)
    if "auth-token" in options:
        headers["Authorization"] = f"Bearer {options['auth-token']}"
    # As ConfigOption.mapType reads it.
    headers |= dict(item.split(":", 1) for item in options.get("custom-headers", "").split(",") if item)
    endpoint = options.get("endpoint", server.url)
    url = inference_url(endpoint, options["model-name"], options.get("model-version", "latest"))
    return httpx.post(url, content=content, headers=headers)


def read_row(model: CreateModel, response: httpx.Response) -> Any:
    """``TritonInferenceModelFunction.parseInferenceResponse``: all numbers of the output, or the first one."""
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    # (n,)
    numbers = np.array(output["data"], np.float64)
    output_type = model.output[1]
    values = numbers.astype(np.float64 if "DOUBLE" in output_type else np.float32)
    return values if output_type.startswith("ARRAY") else values[0]


def complete(body: dict[str, Any], features: int) -> dict[str, Any]:
    """Write names as the model has them, and the axes of batch, time and features: what a proxy would have to do."""
    (tensor,), (output,) = body["inputs"], body["outputs"]
    shape = [1, len(tensor["data"]) // features, features]
    return {
        **body,
        "inputs": [{**tensor, "name": tensor["name"].lower(), "shape": shape}],
        "outputs": [{"name": output["name"].lower()}],
    }


def classifier(**options: str) -> CreateModel:
    names = {"model-name": "animals", "model-version": "1"}
    columns = ("x", "ARRAY<FLOAT>"), ("probabilities", "ARRAY<FLOAT>")
    return CreateModel(*columns, {**names, **{name.replace("_", "-"): value for name, value in options.items()}})


def documented() -> CreateModel:
    """The statement in the documentation."""
    section = PAGE.read_text(encoding="utf-8").split("\n### In Flink SQL\n")[1].split("\n## ")[0]
    match = re.search(
        r"CREATE MODEL \w+\nINPUT \((\w+) (\S+)\)\nOUTPUT \((\w+) (\S+)\)\nWITH \((.*?)\n\);", section, re.S
    )
    assert match is not None
    options = dict(re.findall(r"'(.+?)' = '(.+?)'", match[5]))
    return CreateModel((match[1], match[2]), (match[3], match[4]), options, is_case_kept=True)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """The model ``text``, which predicts the next of its tokens, among others."""
    return publish(tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("exports"))


@pytest.fixture(scope="module")
def text_server(text: Published) -> Iterator[Running]:
    yield from serve(create_app(Settings(registry=text.root, models=("text",), infer_tokens=(TOKEN,))))


@pytest.mark.parametrize("element_type", ["BIGINT", "INT"])
def test_the_documented_model_of_tokens_gets_the_bits_of_its_graph(
    text: Published, text_server: Running, element_type: str
) -> None:
    model = documented()
    options = {**model.options, "endpoint": text_server.url, "auth-token": TOKEN}
    model = replace(model, input=(model.input[0], f"ARRAY<{element_type}>"), options=options)
    tokens = np.array([[3, 0, 0, 4, 1, 2]])
    expected = ServedModel.load(text.registry.get("text:1"), "cpu").run_sequence(tokens)["logits"]
    row = read_row(model, send(text_server, model, request_body(model, tokens[0])))
    assert np.array_equal(row, expected.ravel())
    # The number of classes is 5: what follows the last token are the last five numbers.
    assert np.array_equal(row[-5:], expected[0, -1])


def test_a_token_is_given_without_the_word_bearer(text_server: Running) -> None:
    model = documented()
    for token, status in ((TOKEN, 200), (f"Bearer {TOKEN}", 401)):
        model = replace(model, options={**model.options, "endpoint": text_server.url, "auth-token": token})
        assert send(text_server, model, request_body(model, [1, 2])).status_code == status


@pytest.mark.parametrize("column", ["ARRAY<FLOAT>", "ARRAY<DOUBLE>"])
@pytest.mark.parametrize(
    "options",
    [{}, {"compression": "gzip"}, {"priority": "1", "sequence_id": "job", "custom_headers": "X-Job:a,X-Run:7"}],
    ids=["plain", "gzip", "priority, id and headers"],
)
def test_a_classifier_gets_the_bits_of_its_graph_once_names_and_shape_are_completed(
    server: Running, animals: ServedModel, column: str, options: dict[str, str]
) -> None:
    model = replace(classifier(**options), input=("x", column))
    x = np.random.default_rng(5).normal(size=(1, 9, 1)).astype(np.float32)
    values = [None if step == 3 else value for step, value in enumerate(x.ravel().tolist())]
    x[0, 3] = np.nan
    row = read_row(model, send(server, model, complete(request_body(model, values), 1)))
    assert np.array_equal(row, animals.run_sequence(x)["probabilities"].ravel())


def test_a_forecaster_gets_the_bits_of_its_graph_once_names_and_shape_are_completed(
    server: Running, flow: ServedModel
) -> None:
    x = np.random.default_rng(6).normal(size=(1, 12, 3)).astype(np.float32)
    expected = flow.run_sequence(x)
    for name in ("mean", "quantiles"):
        for output_type in ("ARRAY<FLOAT>", "FLOAT"):
            options = {"model-name": "flow", "model-version": "1"}
            model = CreateModel(("x", "ARRAY<FLOAT>"), (name, output_type), options)
            row = read_row(model, send(server, model, complete(request_body(model, x.ravel()), 3)))
            # (horizon, targets[, quantiles]) in row-major order; a column without ARRAY gets the first number only.
            assert np.array_equal(row, expected[name].ravel() if output_type != "FLOAT" else expected[name].flat[0])


REFUSALS: dict[str, tuple[CreateModel, Any, str]] = {
    "names in upper case": (
        classifier(),
        [1.0, 2.0],
        "Unknown output 'PROBABILITIES'. The model 'animals:1' gives logits, probabilities, state_0_out, state_1_out.",
    ),
    "no model-version": (
        classifier(model_version="latest"),
        [1.0, 2.0],
        "The version of a model is a number from 1, got 'latest'.",
    ),
    "no axis of features": (
        replace(classifier(), is_case_kept=True),
        [1.0, 2.0],
        "x must have the shape (batch, time, 1) for model 'animals:1', got (1, 2).",
    ),
    "no axis of the batch": (
        replace(classifier(flatten_batch_dim="true"), is_case_kept=True),
        [1.0, 2.0],
        "x must have the shape (batch, time, 1) for model 'animals:1', got (2,).",
    ),
    "a number": (
        replace(classifier(), input=("x", "FLOAT"), is_case_kept=True),
        1.0,
        "x must have the shape (batch, time, 1) for model 'animals:1', got (1,).",
    ),
    "text": (
        replace(classifier(), input=("x", "STRING"), is_case_kept=True),
        "[1.0, 2.0]",
        "The datatype of input 'x' must be one of FP32, FP64, INT64, INT32, got 'BYTES'.",
    ),
    "NaN": (
        replace(classifier(), is_case_kept=True),
        [1.0, np.nan],
        "The data of input 'x' holds text; only numbers, and null or NaN for missing values, are allowed.",
    ),
    "a row without an array": (
        replace(classifier(), is_case_kept=True),
        None,
        "The data of input 'x' does not fit its shape [1, 0]: got 1 flat values.",
    ),
    "a sequence": (
        replace(classifier(sequence_id="job", sequence_start="true"), is_case_kept=True),
        [1.0, 2.0],
        "The parameters sequence_start and sequence_end need a sequence_id, a number from 1 or text.",
    ),
}


@pytest.mark.parametrize("case", list(REFUSALS))
def test_other_requests_of_the_connector_are_refused_with_the_reason(server: Running, case: str) -> None:
    model, value, sentence = REFUSALS[case]
    response = send(server, model, request_body(model, value))
    assert (response.status_code, response.json()) == (400, {"error": sentence, "code": "bad_input"})


def test_requests_of_a_sequence_id_alone_share_no_state(server: Running) -> None:
    """``sequence-id`` without ``sequence-start`` is answered, as if each row were a series of its own."""
    model = classifier(sequence_id="job")
    first, second = (send(server, model, complete(request_body(model, [1.0, 2.0]), 1)) for _ in range(2))
    assert first.json() == second.json()
    assert "parameters" not in first.json()


@pytest.mark.parametrize("path", ["", "/", "/v2", "/v2/models", "/v2/models/"])
def test_each_form_of_the_endpoint_is_answered(server: Running, path: str) -> None:
    model = classifier(endpoint=server.url + path)
    assert send(server, model, complete(request_body(model, [1.0]), 1)).status_code == 200
