"""Patches, recursive heads, and what a forecast is told beside its past, behind a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stream_helpers
from exports import exported
from server_helpers import Published, json_tensor, served_client
from session_helpers import opened as opened_session
from session_helpers import step
from stablernn.data.forecasting import calendar_values
from stablernn.data.table.frequency import parse_frequency
from stablernn.nn.models import Forecaster, SequenceModel
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.calendar import step_frequency, step_times
from stablernn_server import ModelLoadError, Settings, create_app

QUANTILES = [0.1, 0.5, 0.9]
WAVES = ["calendar_day_sin", "calendar_day_cos", "calendar_week_sin", "calendar_week_cos"]


def fitted() -> dict[str, tuple[SequenceModel, dict[str, Any]]]:
    """The model and the facts of each name; all but ``single`` are those of the tests of streams."""
    # The calendar of "told" stands between the columns, as it may in a file with channels in an order of its own.
    models = {name: stream_helpers.fitted()[name] for name in ("told", "fed", "patched", "timed")}
    timed, _ = models["timed"]
    models["timed"] = timed, {"features": ["load"], "context_length": 5}
    told, facts = models["told"]
    # The days of a place, which begin at 23:00 or 22:00 UTC.
    berlin = {"preprocessing": {"repairs": {"timezone": "Europe/Berlin"}}}
    models |= {"days": (told, {**facts, "frequency": "D", **berlin}), "local": (told, {**facts, **berlin})}
    torch.manual_seed(0)
    options: dict[str, Any] = {"hidden_size": 6, "quantiles": QUANTILES}
    single = Forecaster("lipschitz", 1, 3, head="recursive", patch_size=2, patch_stride=1, **options)
    single.fit_scaling([np.random.default_rng(0).normal(5.0, 3.0, (60, 1)).astype(np.float32)])
    return models | {"single": (single, {"features": ["load"], "head": "recursive"})}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    root = tmp_path_factory.mktemp("registry")
    models = fitted()
    for name, (model, fields) in models.items():
        folder = tmp_path_factory.mktemp("export")
        report = exported(model.eval(), folder)
        files = dict(report.files)
        facts: dict[str, Any] = {"task": "forecast", "cell": model.rnn.first.cell, **fields}
        facts["signature"] = report.signature
        if isinstance(model, Forecaster):
            facts = {"targets": ["load"], "horizon": model.horizon, "quantiles": QUANTILES, **facts}
            if name == "fed":
                files["calibration.json"] = folder / "calibration.json"
                files["calibration.json"].write_text(json.dumps({"intervals": {"offsets": model.offsets.tolist()}}))
        Registry(root).publish(name, files, facts)
    return Published(root, {name: model for name, (model, _) in models.items()})


@pytest.fixture(scope="module")
def client(published: Published) -> Iterator[httpx.Client]:
    yield from served_client(published.registry)


def by_torch(model: SequenceModel, x: np.ndarray, **known: np.ndarray) -> dict[str, np.ndarray]:
    with torch.no_grad():
        tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in known.items()}
        outputs, _ = model.run(torch.from_numpy(x), **tensors)
    return {name: value.numpy() for name, value in outputs.items()}


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(5.0, 3.0, shape).astype(np.float32)


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=2e-5, err_msg=name)


# The runtime.


def test_a_recursive_head_is_rolled_out_with_its_offsets(published: Published) -> None:
    x, future = normal(3, 9, 3), normal(3, 4, 1)
    x[0, 4:6] = np.nan
    future[1, 2] = np.nan
    model, torch_model = ServedModel.load(published.registry.get("fed"), "cpu"), published.torch_models["fed"]
    found = model.run_numpy(x, future=future)
    assert found["quantiles"].shape == (3, 4, 2, 3)
    assert_close(found, by_torch(torch_model, x, future=future))
    assert_close(model.run_numpy(x), by_torch(torch_model, x))
    assert np.abs(model.run_numpy(x)["mean"] - found["mean"]).max() > 1e-4


# Versions that are refused.


REFUSED: list[tuple[str, Callable[[dict[str, Any], Path], Any], str]] = [
    (
        "fed",
        lambda fields, file: file.write_text('{"intervals": {"offsets": [[0, 0, 0]]}}'),
        "(4, 2, 3), got (1, 3).",
    ),
    ("fed", lambda fields, file: file.write_text("none"), "offsets of quantiles"),
    ("single", lambda fields, file: fields.update(targets=["y"]), "'y'"),
    ("told", lambda fields, file: fields.update(static=["size"]), "'static' of sequence"),
    ("told", lambda fields, file: fields.update(static=None), "an input 'static'"),
]


@pytest.mark.parametrize(("name", "change", "words"), REFUSED, ids=range(len(REFUSED)))
def test_a_version_that_does_not_fit_itself_is_refused(
    published: Published, tmp_path: Path, name: str, change: Callable[[dict[str, Any], Path], Any], words: str
) -> None:
    version = published.registry.get(name)
    fields = version.manifest.model_dump(exclude={"schema_number", "name", "version", "created", "files"})
    files = {file: version.path(file) for file in version.manifest.files}
    files["calibration.json"] = tmp_path / "calibration.json"
    files["calibration.json"].write_text("{}")
    change(fields, files["calibration.json"])
    registry = Registry(tmp_path / "registry")
    registry.publish(name, files, fields)
    with pytest.raises(ModelLoadError, match=re.escape(words)):
        create_app(Settings(registry=registry.root))


# The v2 routes.


def test_metadata_marks_what_may_be_left_out_and_names_it(client: httpx.Client) -> None:
    metadata = client.get("/v2/models/told").json()
    tensors = {tensor["name"]: tensor for tensor in metadata["inputs"]}
    assert tensors["static"]["parameters"] == {"optional": True, "default": "not known"}
    assert (tensors["future"]["shape"], tensors["static"]["shape"]) == ([-1, 3, 5], [-1, 2])
    facts = metadata["parameters"]
    assert (facts["static"], facts["future"]) == (["size", "age"], ["price", *WAVES])
    assert facts["calendar"][1] == {"name": "week", "period": 604800.0, "phase": 345600.0}
    assert client.get("/v2/models/fed").json()["parameters"]["head"] == "recursive"


def test_infer_takes_null_for_what_is_not_known(client: httpx.Client, published: Published) -> None:
    x, static = normal(1, 5, 6), np.array([[np.nan, 2.0]], np.float32)
    tensor = {"name": "static", "shape": [1, 2], "datatype": "FP32", "data": [None, 2.0]}
    body = {"inputs": [json_tensor("x", x), tensor], "outputs": [{"name": "mean"}]}
    (output,) = client.post("/v2/models/told/infer", json=body).raise_for_status().json()["outputs"]
    expected = by_torch(published.torch_models["told"], x, static=static)["mean"]
    np.testing.assert_allclose(np.reshape(output["data"], expected.shape), expected, atol=2e-5)


# The time-series routes.


def asked(model: str = "told", options: dict[str, Any] | None = None, **item: Any) -> dict[str, Any]:
    columns = {"told": 2, "days": 2, "local": 2, "fed": 3}.get(model, 1)
    series = np.arange(4 * columns, dtype=float).reshape(4, columns).tolist()
    known = {"single": None, "timed": None, "fed": {"b": [1, 2, 3, 4]}}.get(model, {"price": [3, 4, 5]})
    start = {"start_timestamp": "2024-03-01T21:00:00Z", "frequency": "h"}
    given = {"series": series, **start, "future": known, **item}
    return {"model": model, "inputs": [given], "options": options or {}}


def answer(client: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = client.post("/v1/timeseries/forecast", json=body).raise_for_status().json()
    found: dict[str, Any] = content["outputs"][0]["content"][0]
    return found


def test_the_server_makes_the_calendar_itself(client: httpx.Client, published: Published) -> None:
    hours = np.datetime64("2024-03-01T21:00", "ns") + np.arange(7) * np.timedelta64(1, "h")
    waves = calendar_values(hours, ["day", "week"])
    columns = np.arange(8, dtype=np.float32).reshape(4, 2)
    x = np.concatenate([columns[:, :1], waves[:4], columns[:, 1:]], axis=1)[None]
    price = np.array([[3.0], [np.nan], [5.0]], np.float32)
    future = np.concatenate([price, waves[4:]], axis=1)[None]
    static = np.array([[np.nan, 7.0]], np.float32)
    expected = by_torch(published.torch_models["told"], x, static=static, future=future)
    body = asked("local", future={"price": [3, None, 5]}, static={"age": 7})
    content = answer(client, body)
    np.testing.assert_allclose(content["mean_forecast"], expected["mean"][0, :, 0], atol=2e-5)
    np.testing.assert_allclose(content["quantiles"]["0.9"], expected["quantiles"][0, :, 0, 2], atol=2e-5)
    # The same instant in another zone, and the hourly grid that the model was trained on.
    body["inputs"][0] |= {"start_timestamp": "2024-03-01T22:30:00+01:30", "frequency": None}
    assert answer(client, body)["mean_forecast"] == content["mean_forecast"]
    # And as the file that was trained on has it.
    body["inputs"][0]["start_timestamp"] = "2024-03-01 22:00"
    local = answer(client, body)
    assert local["mean_forecast"] == content["mean_forecast"]
    assert local["start_timestamp"] == "2024-03-02T01:00:00Z"


def test_days_of_a_zone_begin_when_they_do_there(client: httpx.Client) -> None:
    dates = answer(client, asked("days", start_timestamp="2024-03-29", frequency=None))
    assert dates["start_timestamp"] == "2024-04-02T00:00:00"
    # In the night to March 31 clocks went forward.
    instants = answer(client, asked("days", start_timestamp="2024-03-28T23:00:00Z", frequency=None))
    assert instants["start_timestamp"] == "2024-04-01T22:00:00Z"
    assert instants["mean_forecast"] == dates["mean_forecast"]
    session = opened_session(client, "days")
    for time in ("2024-03-29T23:00:00Z", "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z", "2024-04-02"):
        step(client, session, [1.0, 2.0], time=time).raise_for_status()


def test_several_series_have_calendars_of_their_own(client: httpx.Client) -> None:
    one, other = asked(), asked(start_timestamp="2023-07-09T04:00:00Z", static={"size": 2})
    other["inputs"][0]["series"] = other["inputs"][0]["series"][:2]
    both = {**one, "inputs": [*one["inputs"], *other["inputs"]]}
    outputs = client.post("/v1/timeseries/forecast", json=both).raise_for_status().json()["outputs"]
    for output, alone in zip(outputs, (one, other), strict=True):
        assert output["content"][0]["mean_forecast"] == answer(client, alone)["mean_forecast"]


def test_a_served_recursive_forecast_is_the_model_s(client: httpx.Client, published: Published) -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    future = np.array([[[1.0], [2.0], [3.0], [4.0]]], np.float32)
    expected = by_torch(published.torch_models["fed"], x, future=future)
    content = answer(client, asked("fed", future={"b": [1, 2, 3, 4]}))
    np.testing.assert_allclose(content["mean_forecast"], expected["mean"][0], atol=2e-5)
    np.testing.assert_allclose(content["quantiles"]["0.1"], expected["quantiles"][0, :, :, 0], atol=2e-5)
    assert content["targets"] == ["c", "a"]


def test_fewer_steps_need_fewer_values(client: httpx.Client) -> None:
    whole = answer(client, asked("fed", future={"b": [1, 2, 3, 4]}))["mean_forecast"]
    assert answer(client, asked("fed", {"horizon": 2}, future={"b": [1, 2]}))["mean_forecast"] == whole[:2]


BAD: list[tuple[dict[str, Any], str]] = [
    (asked(start_timestamp=None), "inputs.0.start_timestamp is missing"),
    (asked("local", start_timestamp="2024-10-27T02:30:00"), "such as '2024-10-27T02:30:00+02:00'"),
    (asked(future={}), "inputs.0.future.price is missing"),
    (asked(future={"calendar_day_sin": [0, 0, 0]}), "inputs.0.future.calendar_day_sin"),
    (asked(series=[[1, 2, 3, 4, 5, 6]]), "expects 2 (load, price)."),
    (asked(future={"prise": [1, 2, 3]}), "Did you mean 'price'?"),
    (asked("single", static={"size": 1}), "'single' takes none."),
    (asked(future={"price": [1, 2]}), "inputs.0.future.price"),
    (asked(options={"horizon": 2}, future={"price": [1, 2, 3, 4]}), "2 to 3 numbers"),
    (asked(future={"price": [[1], [2], [3]]}), "got 2 levels."),
    (asked(future={"price": [1, 2, 1e39]}), "inputs.0.future.price holds an infinite"),
    (asked(static={"size": [1], "age": [2]}), "inputs.0.static"),
    (asked(static=[1, 2]), "inputs.0.static"),
    (asked(start_timestamp="0900-01-01"), "1678 to 2261"),
    (asked(series=[[None, 1.0]] * 4), "only missing values of load"),
    (asked(options={"horizn": 2}), "Did you mean 'horizon'?"),
    (asked(futures={"price": [1, 2, 3]}), "Did you mean 'future'?"),
    (asked("single", dt=[1.0] * 4), "takes no dt"),
    (asked("timed", dt=[1.0, 1.0]), "inputs.0.dt"),
    (asked("timed", dt=[1.0, 1.0, 1.0, 5.0]), "dt must be at most 4"),
]


@pytest.mark.parametrize(("body", "words"), BAD, ids=range(len(BAD)))
def test_forecast_refuses(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    response = client.post("/v1/timeseries/forecast", json=body)
    assert response.status_code == 400
    assert words in response.json()["error"]


@given(
    st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)).map(lambda moment: moment.replace(microsecond=0)),
    st.sampled_from(["min", "15min", "h", "D", "2D", "B", "MS", "QS", "YS", "ME", "BMS", "BME", "MS-30"]),
    st.integers(0, 20),
    st.integers(1, 30),
)
def test_times_are_those_that_training_reads(start: datetime, frequency: str, first: int, count: int) -> None:
    if frequency.endswith("S"):
        start = start.replace(day=min(start.day, 27))
    if frequency == "B":
        start -= timedelta(days=max(0, start.weekday() - 4))
    grid = parse_frequency(frequency)
    # Onto the grid, which moves the start of months with an edge only.
    start = grid.at(np.datetime64(start, "ns"), np.zeros(1, np.int64))[0].astype("datetime64[us]").item()
    stamps = grid.at(np.datetime64(start, "ns"), np.arange(first, first + count))
    expected = stamps.astype("datetime64[ns]").astype(np.int64) * 1e-9
    word = step_frequency(None, frequency)
    assert word is not None
    assert np.array_equal(step_times(start.isoformat(), first, count, word), expected)


def test_the_time_between_values_is_told_by_dt(client: httpx.Client, published: Published) -> None:
    # What lies before the five steps that the model looks at does not matter, nor does the first of them.
    series, dt = [1.0, 2.0, 4.0, 3.0, 5.0, 6.0, 4.0], [3.0, 3.0, 3.0, 0.5, 2.0, 1.0, 3.5]
    body = {"model": "timed", "inputs": [{"series": series, "dt": dt}, {"series": series[:3]}]}
    answer = client.post("/v1/timeseries/forecast", json=body)
    assert answer.status_code == 200, answer.text
    found = [output["content"][0]["mean_forecast"] for output in answer.json()["outputs"]]
    model = published.torch_models["timed"]
    for forecast, values, steps in zip(found, (series[2:], series[:3]), ([1, 0.5, 2, 1, 3.5], [1, 1, 1]), strict=True):
        x = np.array(values, dtype=np.float32)[None, :, None]
        expected = by_torch(model, x, dt=np.array([steps], dtype=np.float32))["mean"][0, :, 0]
        np.testing.assert_allclose(forecast, expected, rtol=1e-5)
