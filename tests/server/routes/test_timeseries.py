"""``/v1/timeseries``: KServe's field names, any lengths, calendar time, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from server_helpers import Published, torch_answer

# Field names of KServe's response types (python/kserve/kserve/protocol/rest/timeseries/types.py, required ones).
KSERVE_RESPONSE = {"id", "created_at", "status", "model", "outputs"}
KSERVE_OUTPUT = {"type", "id", "status", "content"}
KSERVE_FORECAST = {"type", "name", "mean_forecast", "frequency", "start_timestamp"}

OBSERVED = [1.0, 1.5, None, 2.0, 2.5, 2.25, 2.0, 3.0]


def forecast(client: httpx.Client, *inputs: dict[str, Any], model: str = "co2", **options: Any) -> dict[str, Any]:
    body = {"model": model, "inputs": list(inputs), "options": options}
    response = client.post("/v1/timeseries/forecast", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_models_lists_names_as_kserve_does(client: httpx.Client) -> None:
    assert client.get("/v1/timeseries/models").json() == ["animals", "co2", "flow"]


def test_a_request_as_kserve_documents_it_is_answered_in_its_field_names(client: httpx.Client) -> None:
    answer = forecast(
        client,
        {
            "type": "univariate_time_series",
            "name": "mauna-loa",
            "series": OBSERVED,
            "frequency": "week",
            "start_timestamp": "2024-01-06T00:00:00Z",
        },
        horizon=3,
        quantiles=[0.1, 0.9],
    )
    assert answer.keys() >= KSERVE_RESPONSE
    assert (answer["status"], answer["error"], answer["model"]) == ("completed", None, "co2")
    [output] = answer["outputs"]
    assert output.keys() >= KSERVE_OUTPUT
    [content] = output["content"]
    assert content.keys() >= KSERVE_FORECAST
    assert content["name"] == "mauna-loa"
    assert content["type"] == "univariate_time_series"
    assert content["frequency"] == "week"
    # Eight weekly values from January 6 end on February 24; the forecast begins a week later.
    assert content["start_timestamp"] == "2024-03-02T00:00:00Z"
    assert len(content["mean_forecast"]) == 3
    assert list(content["quantiles"]) == ["0.1", "0.9"]
    assert len(content["quantiles"]["0.9"]) == 3


def test_the_numbers_are_the_models_on_its_context(client: httpx.Client, published: Published) -> None:
    [output] = forecast(client, {"series": OBSERVED})["outputs"]
    [content] = output["content"]
    # co2 was published with context_length 6: what `predict` would look at is the last six values.
    x = np.array(OBSERVED, np.float32)[None, -6:, None]
    expected = torch_answer(published.torch_models["co2:1"], x)
    assert content["context_used"] == 6
    np.testing.assert_allclose(content["mean_forecast"], expected["mean"][0, :, 0], atol=1e-5)
    for index, level in enumerate(("0.1", "0.5", "0.9")):
        np.testing.assert_allclose(content["quantiles"][level], expected["quantiles"][0, :, 0, index], atol=1e-5)


def test_a_shorter_horizon_is_the_beginning_of_the_whole_one(client: httpx.Client) -> None:
    whole, cut = (
        forecast(client, {"series": OBSERVED}, **options)["outputs"][0]["content"][0]
        for options in ({}, {"horizon": 2})
    )
    assert len(whole["mean_forecast"]) == 4
    assert cut["mean_forecast"] == whole["mean_forecast"][:2]
    assert cut["quantiles"]["0.5"] == whole["quantiles"]["0.5"][:2]


def test_several_targets_come_as_an_array_per_step(client: httpx.Client, published: Published) -> None:
    x = np.random.default_rng(3).normal(size=(1, 7, 3)).astype(np.float32)
    series = {"type": "multivariate_time_series", "series": x[0].tolist()}
    [content] = forecast(client, series, model="flow")["outputs"][0]["content"]
    assert content["type"] == "multivariate_time_series"
    assert content["targets"] == ["flow", "level"]
    assert content["context_used"] == 7
    expected = torch_answer(published.torch_models["flow:1"], x)
    np.testing.assert_allclose(content["mean_forecast"], expected["mean"][0], atol=1e-5)
    np.testing.assert_allclose(content["quantiles"]["0.9"], expected["quantiles"][0, :, :, 2], atol=1e-5)


@pytest.mark.parametrize(
    ("task", "model", "features"), [("classify", "animals", 1), ("forecast", "flow", 3)], ids=["classify", "forecast"]
)
def test_series_of_unequal_length_answer_as_if_alone(
    client: httpx.Client, task: str, model: str, features: int
) -> None:
    noise = np.random.default_rng(4)
    inputs = [{"series": noise.normal(size=(length, features)).tolist()} for length in (9, 2, 17, 1)]

    def contents(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        response = client.post(f"/v1/timeseries/{task}", json={"model": model, "inputs": items})
        return [{**output["content"][0], "name": ""} for output in response.json()["outputs"]]

    assert contents(inputs) == [contents([item])[0] for item in inputs]


def test_without_a_start_there_is_no_time_but_the_trained_frequency(client: httpx.Client) -> None:
    [content] = forecast(client, {"series": OBSERVED})["outputs"][0]["content"]
    assert content["start_timestamp"] is None
    assert content["frequency"] == "W"
    assert content["name"] == "0"


def test_classify_gives_labels_most_probable_first(client: httpx.Client, published: Published) -> None:
    x = np.random.default_rng(5).normal(size=(2, 12, 1)).astype(np.float32)
    body = {"model": "animals@production", "inputs": [{"name": f"s{i}", "series": x[i].tolist()} for i in range(2)]}
    answer = client.post("/v1/timeseries/classify", json=body).json()
    expected = torch_answer(published.torch_models["animals:1"], x)["probabilities"]
    assert answer["model"] == "animals"
    assert answer["model_version"] == "1"
    for index, output in enumerate(answer["outputs"]):
        [content] = output["content"]
        assert output["status"] == "completed"
        assert content["name"] == f"s{index}"
        order = np.argsort(-expected[index])
        assert list(content["probabilities"]) == [["cat", "dog", "owl", "rat"][i] for i in order]
        assert content["label"] == next(iter(content["probabilities"]))
        np.testing.assert_allclose(list(content["probabilities"].values()), expected[index][order], atol=1e-5)


def test_more_fields_than_are_known_are_allowed_as_in_kserve(client: httpx.Client) -> None:
    body = {
        "model": "co2",
        "inputs": [{"series": [1, 2], "station": "mlo"}],
        "options": {"horizon": 1, "temperature": 0.5},
        "metadata": {"user": "a"},
        "trace": True,
    }
    assert client.post("/v1/timeseries/forecast", json=body).status_code == 200


def bad(model: str = "co2", options: dict[str, Any] | None = None, **item: Any) -> dict[str, Any]:
    return {"model": model, "inputs": [{"series": [1.0, 2.0], **item}], "options": options or {}}


UNIX = "'2023-11-14T22:13:20Z' in Unix "
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({}, "model: field required"),
    ({"model": "co2", "inputs": []}, "inputs: list should have at least 1 item"),
    (bad(options={"horizon": 9}), "options.horizon must be at most 4, which the model 'co2' was trained for, got 9."),
    (bad(options={"horizon": "3"}), "options.horizon: input should be a valid integer"),
    (bad(options={"quantiles": [0.95]}), "options.quantiles: the model 'co2' has 0.1, 0.5, 0.9, got 0.95."),
    (bad(series=[[]]), "inputs.0.series is empty"),
    (bad(series=[1, "two"]), "inputs.0.series holds text"),
    (bad(series="1,2,3"), "inputs.0.series must be an array of numbers, got text."),
    (bad(series=[1.0, 1e39]), "inputs.0.series holds an infinite value at (1, 0)"),
    (bad(series=[[1, 2], [3]]), "inputs.0.series is not rectangular"),
    (bad(series=[[1, 2], [3, 4]]), "inputs.0.series has 2 features, model 'co2:1' expects 1 (co2)."),
    (bad(series=[[[1]]]), "inputs.0.series must be flat"),
    (bad(type="univariate_time_series", series=[[1]]), "must be a flat array"),
    (bad(type="multivariate_time_series"), "must be an array of arrays"),
    (bad(frequency="fortnight"), "Unknown frequency 'fortnight'."),
    (bad(start_timestamp="yesterday"), "The start_timestamp must be ISO 8601"),
    (bad(start_timestamp=1700000000), f"{UNIX}seconds"),
    (bad(start_timestamp="1700000000000"), f"{UNIX}milliseconds"),
    (bad(start_timestamp="9999-12-31", frequency="week"), "lie beyond the year 9999."),
    (bad(frequency="D"), "The model was trained on steps of 'W', got the frequency 'D'."),
    (bad("flow", series=[[1, 2, 3]], start_timestamp="2024-01-01"), "start_timestamp needs a frequency"),
    (bad("animals"), "The model 'animals' was trained for 'classify', not 'forecast'"),
]


@pytest.mark.parametrize(("body", "words"), REFUSED, ids=range(len(REFUSED)))
def test_forecast_refuses(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    response = client.post("/v1/timeseries/forecast", json=body)
    assert (response.status_code, response.json()["code"]) == (400, "bad_input")
    assert words in response.json()["error"]


def test_classify_refuses_more_classes_than_there_are(client: httpx.Client) -> None:
    response = client.post("/v1/timeseries/classify", json=bad("animals", {"top_k": 5}))
    assert response.status_code == 400
    assert "options.top_k must be at most the 4 classes of 'animals', got 5." in response.json()["error"]
