"""States stay where the certificate says, on every route: what a client supplies is checked, what the server computes
is watched; and no route takes an infinite number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import torch

import stream_helpers
from exports import exported
from published_models import publish
from server_helpers import json_tensor, raw_request, served_client
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn_registry import Registry

SIX: dict[str, Any] = {"hidden_size": 6}
CLASSES: dict[str, Any] = {"task": "classify", "features": ["x"], "labels": ["a", "b"]}
SERIES: dict[str, Any] = {"task": "forecast", "features": ["x"], "targets": ["x"], "horizon": 3, "quantiles": [0.5]}
TIGHT = 1e-3
HORIZON = 3


def built() -> dict[str, tuple[SequenceModel, dict[str, Any]]]:
    """The model and the fields of each name."""

    def forecaster(cell: str, features: int = 1, **further: Any) -> Forecaster:
        return Forecaster(cell, features, HORIZON, quantiles=[0.5], **SIX, **further)

    return {
        "kept": (Classifier("rnn", 1, 2, **SIX), CLASSES),
        "free": (Classifier("unicornn", 1, 2, **SIX), CLASSES),
        "rolled": (forecaster("rnn", head="recursive"), {**SERIES, "head": "recursive"}),
    }


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Each model as it is, and where it has a ball as ``NAME-tight``, with one that its states leave."""
    registry = Registry(tmp_path_factory.mktemp("registry"))
    torch.manual_seed(0)
    for name, (model, fields) in built().items():
        report = exported(model.eval(), tmp_path_factory.mktemp("export"))
        true = dict(report.certificate)
        tight = true | {"state_balls": [{**ball, "radius": TIGHT} for ball in true["state_balls"]]}
        facts = {**fields, "cell": true["cell"], "signature": report.signature}
        registry.publish(name, report.files, {**facts, "certificate": true})
        if true["state_balls"]:
            registry.publish(f"{name}-tight", report.files, {**facts, "certificate": tight})
        if name == "free":
            stored = {**true, "kind": "local", "holds": True}
            registry.publish("withdrawn", report.files, {**facts, "certificate": stored})
    # Shared with the tests of streams, and so exported once for both.
    shared = stream_helpers.fitted()
    for name in ("fed", "still", "timed"):
        model, fields = shared[name]
        assert isinstance(model, Forecaster)
        facts = {"task": "forecast", "targets": fields["features"][:1], "horizon": model.horizon}
        publish(
            registry,
            name,
            model,
            tmp_path_factory.mktemp("export"),
            quantiles=stream_helpers.QUANTILES,
            **facts | fields,
        )
    return registry


@pytest.fixture(scope="module")
def client(registry: Registry) -> Iterator[httpx.Client]:
    yield from served_client(registry)


def ask(client: httpx.Client, model: str, state: float | None = None, **body: Any) -> httpx.Response:
    inputs = [json_tensor("x", np.linspace(-3, 3, 8, dtype=np.float32).reshape(1, 8, 1))]
    if state is not None:
        inputs.append(json_tensor("state_1", np.full((1, 6), state, np.float32)))
    return client.post(f"/v2/models/{model}/infer", json={"inputs": inputs, **body})


def tell(client: httpx.Client, task: str, model: str, **item: Any) -> httpx.Response:
    body = {"model": model, "inputs": [{"series": [1.0, -2.0, 3.0, None, 2.5], **item}]}
    return client.post(f"/v1/timeseries/{task}", json=body)


def parameters(client: httpx.Client, model: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v2/models/{model}").raise_for_status().json()["parameters"]
    return found


def exits(client: httpx.Client, model: str) -> int:
    found: int = parameters(client, model)["state_guard"]["exits"]
    return found


def refusal(response: httpx.Response) -> str:
    assert (response.status_code, response.json()["code"]) == (400, "bad_input"), response.text
    found: str = response.json()["error"]
    return found


# What a client supplies.


@pytest.mark.parametrize("model", ["kept", "rolled"])
def test_a_state_that_no_input_leads_to_is_refused(client: httpx.Client, model: str) -> None:
    assert ask(client, model, 1.0).status_code == 200
    assert "state 'state_1' of sequence 0 has the norm 1.01 (linf)" in refusal(ask(client, model, -1.01))


def test_the_sequence_whose_state_lies_outside_is_named(client: httpx.Client) -> None:
    state = np.zeros((3, 6), np.float32)
    state[2, 4] = 7
    inputs = [json_tensor("x", np.zeros((3, 2, 1), np.float32)), json_tensor("state_1", state)]
    body = {"inputs": inputs, "outputs": [{"name": "logits"}]}
    assert "of sequence 2 has the norm 7 (linf)" in refusal(client.post("/v2/models/kept/infer", json=body))


@pytest.mark.parametrize("model", ["kept", "free"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_state_that_is_no_number_is_refused_with_and_without_a_ball(
    client: httpx.Client, model: str, value: float
) -> None:
    state = np.full((1, 6), value, np.float32)
    body, headers = raw_request({"x": np.zeros((1, 1, 1), np.float32), "state_1": state})
    answer = client.post(f"/v2/models/{model}/infer", content=body, headers=headers)
    assert "state_1 holds values that are not finite" in refusal(answer)


TENSORS = {
    "x": ("kept", [1, 1, 1], None),
    "state_1": ("kept", [1, 6], None),
    "dt": ("timed", [1, 1], None),
    "future": ("fed", [1, 1, 1], 3),
    "static": ("still", [1, 2], 1),
}
WORDS = {
    "Infinity": "The body holds an infinite value; values must be finite, and a missing one is null or NaN.",
    "-Infinity": "The body holds an infinite value; values must be finite, and a missing one is null or NaN.",
    "1e400": "The body is not JSON: number is infinity when parsed as double",
    "1e39": "",
    "-1e39": "",
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("name", TENSORS)
def test_an_infinite_tensor_is_refused_whatever_it_is_for(client: httpx.Client, name: str, word: str) -> None:
    model, shape, features = TENSORS[name]
    numbers = ",".join([word] * int(np.prod(shape)))
    tensor = f'{{"name":"{name}","shape":{shape},"datatype":"FP32","data":[{numbers}]}}'
    x = f'{{"name":"x","shape":[1,1,{features or 1}],"datatype":"FP32","data":[{",".join("0" * (features or 1))}]}}'
    body = f'{{"inputs":[{tensor if name == "x" else f"{x},{tensor}"}]}}'
    said = refusal(client.post(f"/v2/models/{model}/infer", content=body))
    assert said.startswith(WORDS[word] or name)
    assert "finite" in said or "infinity" in said


FIELDS = {
    "series": ("classify", "kept", '"series":[0,%s,1]'),
    "series of a recursive head": ("forecast", "rolled", '"series":[0,%s,1]'),
    "dt": ("forecast", "timed", '"series":[0,1,2],"dt":[1,%s,1]'),
    "dt that does not count": ("forecast", "timed", '"series":[0,1,2],"dt":[%s,1,1]'),
    "future": ("forecast", "fed", '"series":[[0,1,2],[2,3,4]],"future":{"b":[1,%s,3,4]}'),
    "static": ("forecast", "still", '"series":[0,1],"static":{"size":%s}'),
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("field", FIELDS)
def test_an_infinite_number_in_a_series_is_refused_wherever_it_stands(
    client: httpx.Client, field: str, word: str
) -> None:
    task, model, item = FIELDS[field]
    fine = f'{{"model":"{model}","inputs":[{{{item % "1"}}}]}}'
    assert client.post(f"/v1/timeseries/{task}", content=fine).status_code == 200
    body = f'{{"model":"{model}","inputs":[{{{item % word}}}]}}'
    said = refusal(client.post(f"/v1/timeseries/{task}", content=body))
    assert said.startswith(WORDS[word] or f"inputs.0.{field.split()[0]}")
    assert "finite" in said or "infinity" in said


@pytest.mark.parametrize("word", ["NaN", "null"])
def test_what_is_missing_is_taken_where_the_model_takes_it(client: httpx.Client, word: str) -> None:
    for field, (task, model, item) in FIELDS.items():
        body = f'{{"model":"{model}","inputs":[{{{item % word}}}]}}'
        answer = client.post(f"/v1/timeseries/{task}", content=body)
        assert answer.status_code == (400 if field.startswith("dt") else 200), field
    for name, (model, shape, features) in TENSORS.items():
        numbers = ",".join([word] * int(np.prod(shape)))
        tensor = f'{{"name":"{name}","shape":{shape},"datatype":"FP32","data":[{numbers}]}}'
        x = f'{{"name":"x","shape":[1,1,{features or 1}],"datatype":"FP32","data":[{",".join("0" * (features or 1))}]}}'
        body = f'{{"inputs":[{tensor if name == "x" else f"{x},{tensor}"}]}}'
        answer = client.post(f"/v2/models/{model}/infer", content=body)
        assert answer.status_code == (400 if name in ("state_1", "dt") else 200), name


# What the server computes.


def test_a_state_that_leaves_its_ball_is_counted_logged_and_said(
    client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert "parameters" not in ask(client, "kept").json()
    before = exits(client, "kept-tight")
    asked: list[dict[str, Any]] = [{}, {"outputs": [{"name": "probabilities"}]}]
    answer: dict[str, Any] = {}
    for body in asked:
        answer = ask(client, "kept-tight", **body).raise_for_status().json()
        assert answer["parameters"] == {"states_outside_ball": "state_1"}
    assert [output["name"] for output in answer["outputs"]] == ["probabilities"]
    assert exits(client, "kept-tight") == before + 2
    assert "kept-tight:1: the state 'state_1' came to the norm" in caplog.text


@pytest.mark.parametrize(
    ("task", "kept", "tight", "runs"),
    [
        ("classify", "kept", "kept-tight", 1),
        # Its own forecasts are read one by one: one run over what was observed, one for each further step ahead.
        ("forecast", "rolled", "rolled-tight", HORIZON),
    ],
)
def test_series_are_watched_as_tensors_are(
    client: httpx.Client, caplog: pytest.LogCaptureFixture, task: str, kept: str, tight: str, runs: int
) -> None:
    before = exits(client, kept)
    assert "states_outside_ball" not in tell(client, task, kept).raise_for_status().json()
    assert exits(client, kept) == before == 0
    caplog.clear()
    before = exits(client, tight)
    answer = tell(client, task, tight).raise_for_status().json()
    assert answer["states_outside_ball"] == ["state_1"]
    assert answer["outputs"][0]["status"] == "completed"
    assert exits(client, tight) == before + runs
    assert caplog.text.count(f"{tight}:1: the state 'state_1' came to the norm") == runs


def test_metadata_shows_the_certificate_and_whether_there_is_a_guard(client: httpx.Client) -> None:
    kept, free = parameters(client, "kept"), parameters(client, "free")
    assert kept["certificate"]["state_ball"]["radius"] == pytest.approx(1.0)
    assert kept["state_guard"]["states"] == ["state_1"]
    assert free["state_guard"] == {
        "states": [],
        "exits": 0,
        "note": "none: the certificate has no ball for any state",
    }
    assert ask(client, "free", 100.0).status_code == 200


def test_metadata_shows_a_certificate_of_the_withdrawn_kind_as_none(client: httpx.Client, registry: Registry) -> None:
    stored = registry.get("withdrawn").manifest.certificate
    assert stored is not None
    assert (stored["kind"], stored["holds"]) == ("local", True)
    shown = parameters(client, "withdrawn")["certificate"]
    assert shown == {**stored, "kind": "none", "holds": False, "stored_kind": "local"}
    assert "stored_kind" not in parameters(client, "free")["certificate"]
