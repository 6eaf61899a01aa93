"""Forecasts that are told more than their past, from the file to the served answer: three ways, the same numbers."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_helpers import UNPLOTTED, Workplace, post, run_alone, served

HORIZON = 4
CONTEXT = 14
SERIES = {"north": 3.0, "south": 8.0}
MODELS = {
    "known": "--future promo --static size --calendar week,year",
    "rolled": "--future promo --calendar week --set model.head=recursive --set data.channels=y,promo",
    "joined": "--members 2 --patch-size 3 --patch-stride 2 --set model.scaling=context",
}
EACH_MODEL = pytest.mark.parametrize(
    "name", ["known", *(pytest.param(name, marks=pytest.mark.slow) for name in ("rolled", "joined"))]
)
FEATURES = {"known": ["y", "promo"], "rolled": ["y", "promo"], "joined": ["y", "promo", "size"]}


def write_shops(path: Path, steps: int, *, ahead: int = 0) -> None:
    """Daily sales of two shops, with promotions known ``ahead`` days beyond the last sale; one sale is missing."""
    day = np.arange(steps + ahead)
    dates = np.datetime_as_string(np.datetime64("2024-01-01") + day, unit="D")
    lines = ["unique_id,ds,y,promo,size"]
    for name, size in SERIES.items():
        sales = 10 * size + 4 * np.sin(2 * np.pi * day / 7) + 6 * promotions(len(day))
        for step, date in enumerate(dates):
            value = "" if step >= steps or (name, step) == ("north", steps - 3) else f"{sales[step]:.3f}"
            lines.append(f"{name},{date},{value},{promotions(len(day))[step]},{size}")
    path.write_text("\n".join(lines) + "\n")


def promotions(steps: int) -> np.ndarray:
    return (np.arange(steps) % 5 == 0).astype(int)


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("shops"))
    write_shops(place.path("shops.csv"), 80)
    write_shops(place.path("new.csv"), 60, ahead=HORIZON)
    write_shops(place.path("past.csv"), 60)
    return place


def publish(shops: Workplace, name: str) -> None:
    """Train and export a model, once."""
    task = f"--horizon {HORIZON} --context-length {CONTEXT} --target y --hidden-size 4 --max-steps 3"
    if not shops.path(name).exists():
        shops.ok(f"-q train {UNPLOTTED} --data shops.csv --cell lipschitz {task} {MODELS[name]} --run-dir {name}")
        shops.ok(f"-q export {name} --name {name}")


def table(shops: Workplace, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with shops.path(name).open() as file:
        return list(csv.DictReader(file))


def predicted(shops: Workplace, target: str, name: str) -> dict[str, np.ndarray]:
    """By series, mean and quantiles of each step ahead, as ``predict`` writes them."""
    shops.ok(f"-q predict {target} --input", source(name), "--output", "answers.csv")
    rows = table(shops, "answers.csv")
    assert list(rows[0]) == ["unique_id", "ds", "mean", "q0.1", "q0.5", "q0.9"]
    assert [row["ds"] for row in rows[:HORIZON]] == ["2024-03-01", "2024-03-02", "2024-03-03", "2024-03-04"]
    columns = ("mean", "q0.1", "q0.5", "q0.9")
    return {
        series: np.array([[float(row[key]) for key in columns] for row in rows if row["unique_id"] == series])
        for series in SERIES
    }


def source(name: str) -> str:
    return "past.csv" if name == "joined" else "new.csv"


def request(name: str, series: str, shops: Workplace) -> dict[str, Any]:
    """What a client sends of a series that stands in the file."""
    rows = [row for row in table(shops, source(name)) if row["unique_id"] == series]
    past = [[float(row[key]) if row[key] else None for key in FEATURES[name]] for row in rows[:60]]
    item: dict[str, Any] = {"name": series, "series": past, "start_timestamp": "2024-01-01T00:00:00Z"}
    if name != "joined":
        item["future"] = {"promo": [float(row["promo"]) for row in rows[60:]]}
    if name == "known":
        item["static"] = {"size": SERIES[series]}
    return item


def ask(url: str, name: str, *items: dict[str, Any], **options: Any) -> Any:
    answer = post(f"{url}/v1/timeseries/forecast", {"model": name, "inputs": items, "options": options})
    return [output["content"][0] for output in answer["outputs"]]


def numbers(content: dict[str, Any]) -> np.ndarray:
    return np.array([content["mean_forecast"], *(content["quantiles"][level] for level in ("0.1", "0.5", "0.9"))]).T


@EACH_MODEL
def test_run_version_and_server_give_the_same_forecast(shops: Workplace, name: str) -> None:
    publish(shops, name)
    by_torch, by_runtime = predicted(shops, name, name), predicted(shops, f"{name}:1", name)
    with served(shops) as url:
        answers = ask(url, name, *(request(name, series, shops) for series in SERIES))
    for series, content in zip(SERIES, answers, strict=True):
        assert (content["name"], content["start_timestamp"]) == (series, "2024-03-01T00:00:00Z")
        # Values near 0 round as those of the scale of the series do.
        scale = np.abs(by_torch[series]).max()
        np.testing.assert_allclose(by_runtime[series], by_torch[series], rtol=2e-5, atol=1e-6 * scale)
        np.testing.assert_allclose(numbers(content), by_runtime[series], rtol=1e-6)
        spread = by_runtime[series][:, 1:]
        assert (np.diff(spread, axis=1) >= 0).all()


@EACH_MODEL
def test_the_example_of_a_run_is_answered_as_its_last_test_window(
    shops: Workplace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stablernn.training import load_run, load_run_data
    from stablernn.training.evaluation.predictors import predict
    from stablernn.training.evaluation.torch_predictor import TorchPredictor
    from stablernn.training.tasks import task_for

    publish(shops, name)
    monkeypatch.chdir(shops.folder)
    run = load_run(Path(name))
    data = load_run_data(run.config)
    example = task_for(data).example()
    assert example is not None
    windows = data.split("test")
    np.testing.assert_array_equal(np.array(example["actual"], np.float32).T, windows.gather([len(windows) - 1]).y[0])
    mean = predict(TorchPredictor(run.model), windows)["mean"][-1, :, 0]
    with served(shops) as url:
        [content] = ask(url, name, example["input"])
    np.testing.assert_allclose(content["mean_forecast"], mean, rtol=2e-5, atol=1e-5)


@EACH_MODEL
def test_run_and_version_score_the_same(shops: Workplace, name: str) -> None:
    publish(shops, name)
    by_torch, by_runtime = (shops.document(f"eval {target}")["metrics"] for target in (name, f"{name}:1"))
    for key in ("mae", "crps"):
        # Values are some tens, of which float32 keeps seven digits.
        assert by_runtime[key] == pytest.approx(by_torch[key], rel=1e-5, abs=1e-5)


@pytest.mark.slow
def test_backtest_of_a_recursive_version_goes_over_the_whole_horizon(shops: Workplace) -> None:
    publish(shops, "rolled")
    words = "--backtest windows=2,step=3 --json"
    first, second = (
        shops.ok(f"-q eval {target} {words}").json["backtest"]["carried"]["metrics"]["mae"]
        for target in ("rolled", "rolled:1")
    )
    assert second == pytest.approx(first, rel=1e-5)


def test_what_is_told_changes_the_answer(shops: Workplace) -> None:
    publish(shops, "known")
    item = request("known", "north", shops)
    others = [{**item, "future": {"promo": [None] * 4}}, {**item, "static": None}]
    others.append({**item, "start_timestamp": "2024-01-04T00:00:00Z"})
    with served(shops) as url:
        whole, *changed = (numbers(content) for content in ask(url, "known", item, *others))
    assert all(np.abs(each - whole).max() > 1e-6 for each in changed)


def test_rows_that_are_needed_ahead_are_asked_for(shops: Workplace) -> None:
    publish(shops, "known")
    for target in ("known", "known:1"):
        assert shops(f"-q predict {target} --input past.csv").sentence == (
            "'past.csv': series 'north' has 0 rows behind its last observation, 4 are needed, one for each step to "
            "forecast, with promo."
        )


@pytest.mark.slow
def test_a_recursive_version_is_predicted_without_torch(shops: Workplace) -> None:
    publish(shops, "rolled")
    predict = "-q predict rolled:1 --input new.csv"
    result, has_torch = run_alone(shops, predict)
    assert (result.code, result.err, has_torch) == (0, "", False)
    assert result.out == shops.ok(predict).out
