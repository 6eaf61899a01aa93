"""Linear forecasts: exact by any way of summing up, and chosen by the latest training windows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from forecast_helpers import many_series
from stablernn.data import ForecastData
from stablernn.data.types import LinearForecast
from stablernn.errors import InterruptedRun
from stablernn.nn.models import Forecaster
from stablernn.training import Progress, load_config, train
from stablernn.training.data_report import check_run_data
from stablernn.training.dry_run import add_plan
from stablernn.training.loop import linear_forecast
from stablernn.training.loop.linear_forecast import (
    Folds,
    Regression,
    Rows,
    choose_linear_forecast,
    confirmed_seasons,
    fit_forecaster,
    seasonal_mask,
    skip_weights,
)
from stablernn.training.settings.config import ModelConfig

PERIOD = 13


def choose(data: ForecastData, **settings: Any) -> ForecastData:
    return choose_linear_forecast(data, ModelConfig(**settings))


def weekly(count: int = 3, steps: int = 150, *, amplitude: float = 1.0, **changes: Any) -> ForecastData:
    """Series with a period that nobody names, and noise."""
    random = np.random.default_rng(0)
    time = np.arange(steps)
    values = [
        10 + amplitude * np.sin(2 * np.pi * (time + 4 * number) / PERIOD) + 0.1 * random.normal(size=steps)
        for number in range(count)
    ]
    settings: dict[str, Any] = {"season": 1, "horizon": 2, "context_length": 4, "has_default_context": True}
    settings |= {"validation_steps": 30, "test_steps": 20}
    return many_series([series[:, None] for series in values], **(settings | changes))


def test_a_context_that_holds_the_period_is_chosen() -> None:
    data = weekly()
    got = choose(data)
    assert got.context_length > PERIOD
    tried = got.notes["linear_forecast"]
    assert tried["chosen"]["context_length"] == got.context_length
    scores = {row["context_length"]: row["mase"] for row in tried["tried"]}
    assert list(scores) == [2, 3, 4, 8, 16, 32, 64]
    assert scores[got.context_length] < 0.7 * scores[4]
    assert {word: count["kept"] for word, count in got.notes["windows"].items()} == {
        word: len(got.windows(word)) for word in ("train", "validation", "test")
    }
    assert len(got.windows("validation")) == len(data.windows("validation"))


def test_a_choice_takes_one_thread_whatever_the_caller_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes of a search have, which would wait for each other: six seconds in place of .2."""
    numbers: set[int] = set()
    compare = linear_forecast._compare

    def spy(*arguments: Any) -> Any:
        numbers.update(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return compare(*arguments)

    monkeypatch.setattr(linear_forecast, "_compare", spy)
    with threadpool_limits(2, user_api="blas"):
        choose(weekly())
    assert numbers == {1}


@pytest.mark.parametrize(
    ("frequency", "periods", "seasons"),
    [("h", (24, 168), (24, 168)), ("h", (24,), (24,)), ("D", (7,), (7,)), ("D", (), ()), ("MS", (12,), (12,))],
)
def test_seasons_are_those_of_the_frequency_that_the_values_have(
    frequency: str, periods: tuple[int, ...], seasons: tuple[int, ...]
) -> None:
    time, random = np.arange(1200), np.random.default_rng(0)
    # A pulse once a period has a significant autocorrelation at no shorter lag.
    pulses = [np.where(time % period < max(1, period // 12), 6.0, 0.0) for period in periods]
    values = 0.1 * time + random.normal(size=1200) + sum(pulses)
    data = replace(many_series([values[:, None]], season=1, horizon=2, context_length=4), frequency=frequency)
    assert confirmed_seasons(data) == seasons


def walks(**changes: Any) -> ForecastData:
    settings = {"season": 1, "context_length": 4, "has_default_context": True, "validation_steps": 30, "test_steps": 20}
    values = [np.cumsum(one.values, axis=0) for one in weekly(amplitude=0.0, steps=300).series]
    return many_series([series - 10 * np.arange(1, 301)[:, None] for series in values], **(settings | changes))


def test_the_last_value_is_the_forecast_of_a_random_walk() -> None:
    linear = choose(walks()).linear
    assert linear is not None
    assert (linear.context_length, linear.prior, linear.log) == (2, 1, False)


@pytest.mark.parametrize("is_multiplicative", [True, False])
def test_logarithms_are_taken_where_they_forecast_the_values_better(is_multiplicative: bool) -> None:
    time, random = np.arange(240), np.random.default_rng(0)
    wave, noise = np.sin(2 * np.pi * time / 12), 0.02 * random.normal(size=240)
    values = np.exp(0.015 * time + 0.5 * wave + noise) if is_multiplicative else 30 + 0.1 * time + 9 * wave + 9 * noise
    settings: dict[str, Any] = {"season": 12, "horizon": 12, "context_length": 24, "has_default_context": True}
    data = many_series([values[:, None]], **settings, validation_steps=24, test_steps=24)
    linear = choose(data).linear
    assert linear is not None
    assert linear.log is is_multiplicative


@pytest.mark.parametrize(
    ("changes", "settings", "expected"),
    [
        ({"has_default_context": False}, {}, {"context_length": 4}),
        ({}, {"window": 5}, {"context_length": 5}),
        (
            {},
            {
                "log": True,
                "skip_prior": "drift",
                "skip_strength": 0.5,
                "skip_seasons": (7,),
            },
            {"log": True, "prior": "drift", "strength": 0.5, "seasons": (7,)},
        ),
    ],
)
def test_settings_of_the_user_stay(changes: Any, settings: Any, expected: dict[str, Any]) -> None:
    data = weekly(**changes)
    got = choose(data, **settings)
    assert got.linear is not None
    assert vars(got.linear).items() >= expected.items()
    if changes or "window" in settings:
        assert got.context_length == data.context_length


@pytest.mark.parametrize("prior", ["mean", 1, "drift"])
@pytest.mark.parametrize("values", [[1, 2, 4], [3] * 9, [0] * 9, [math.nan] * 4 + [7, math.nan], range(12)])
def test_series_that_say_nothing_get_a_forecast_without_parameters(values: Sequence[float], prior: Any) -> None:
    settings: dict[str, Any] = {"horizon": 1, "context_length": 1, "has_default_context": True}
    series = np.array(values, dtype=np.float64)[:, None]
    data = many_series([series], **settings, season=1, validation_steps=0, test_steps=0)
    got = choose(data, skip_prior=prior)
    assert got.linear is not None
    weights = skip_weights(got, got.linear, 1)
    assert weights.shape == (1, got.context_length)
    assert np.isfinite(weights).all()


def test_a_choice_does_not_see_what_is_held_out() -> None:
    data = weekly(season=7, horizon=7)
    values = [one.values.copy() for one in data.series]
    for series in values:
        series[-data.validation_steps - data.test_steps :] = 1e4 * np.random.default_rng(1).normal(size=(50, 1))
    other = replace(data, series=tuple(replace(one, values=new) for one, new in zip(data.series, values, strict=True)))
    first, second = choose(data), choose(other)
    assert first.notes["linear_forecast"] == second.notes["linear_forecast"]
    assert first.linear is not None
    assert np.array_equal(skip_weights(first, first.linear, 7), skip_weights(second, first.linear, 7))


def direct_weights(values: Any, linear: LinearForecast, horizon: int, ends: Any) -> Any:
    """Ridge regression with all rows written out: their penalty is further rows of a least squares."""
    context, rows, truths = linear.context_length, [], []
    for number, series in enumerate(values):
        known = np.log(series) if linear.log else series
        filled = known[np.maximum.accumulate(np.where(np.isnan(known), 0, np.arange(len(known))))]
        changes = np.abs(np.diff(filled))
        for end in ends[number]:
            if end < context or np.isnan(series[end : end + horizon]).any():
                continue
            mean = filled[end - context : end].mean()
            scale = changes.mean()
            rows.append((filled[end - context : end] - mean) / scale)
            truths.append((filled[end : end + horizon] - mean) / scale)
    features, wanted = np.stack(rows), np.stack(truths)
    penalty = np.sqrt(linear.strength * (features**2).sum() / context)
    prior = np.zeros((horizon, context))
    if linear.prior == "drift":
        line = np.arange(1, horizon + 1) / (context - 1)
        prior[:, -1], prior[:, 0] = 1 + line, -line
    elif linear.prior != "mean":
        for step in range(horizon):
            prior[step, context - linear.prior + step % linear.prior] = 1
    mask = seasonal_mask(linear.seasons, context, horizon)
    weights = prior.copy()
    for step in range(horizon):
        read = np.arange(context) if mask is None else np.flatnonzero(mask[step])
        matrix = np.concatenate([features[:, read], penalty * np.eye(len(read))])
        rest = np.concatenate([wanted[:, step] - features @ prior[step], np.zeros(len(read))])
        weights[step, read] += np.linalg.lstsq(matrix, rest, rcond=None)[0]
    return weights


CANDIDATES = [
    LinearForecast(5, strength=0.1),
    LinearForecast(12, prior=1, strength=1e-3),
    LinearForecast(12, log=True, prior="drift", strength=0.01),
    LinearForecast(28, log=True, prior=7, strength=1.0, seasons=(13,)),
]


def with_gaps() -> ForecastData:
    data = weekly(2, 160, horizon=3)
    values = [one.values.copy() for one in data.series]
    values[0][[17, 18, 60]] = np.nan
    values[1] = values[1][40:]
    return replace(data, series=tuple(replace(one, values=new) for one, new in zip(data.series, values, strict=True)))


@pytest.mark.parametrize("linear", CANDIDATES)
def test_weights_are_those_of_a_direct_regression_and_the_scale_of_a_window_cancels(linear: LinearForecast) -> None:
    data = replace(with_gaps(), context_length=linear.context_length)
    training = [values[:, 0].astype(np.float64) for values in data.training_values()]
    ends = [range(len(values) - 2) for values in training]
    wanted = direct_weights(training, linear, 3, ends)
    assert skip_weights(data, linear, 3) == pytest.approx(wanted, rel=1e-6, abs=1e-8)
    settings: Any = {"scaling": "context", "window": linear.context_length, "log": linear.log, "skip": "linear"}
    model = Forecaster("rnn", 1, 3, 4, quantiles=(), **settings).eval()
    model.fit_scaling(data.training_values())
    fit_forecaster(model, data, linear)
    x = data.series[1].values[-linear.context_length :]
    known = np.log(x[:, 0].astype(np.float64)) if linear.log else x[:, 0].astype(np.float64)
    forecast = known.mean() + wanted @ (known - known.mean())
    with torch.no_grad():
        got = model(torch.from_numpy(x[None]))[0, :, 0].numpy()
    assert got == pytest.approx(np.exp(forecast) if linear.log else forecast, rel=1e-5)


@pytest.mark.parametrize("linear", CANDIDATES)
def test_the_fit_for_a_fold_shares_its_sums_and_reads_what_ends_before_it(linear: LinearForecast) -> None:
    data = with_gaps()
    training = [values[:, 0].astype(np.float64) for values in data.training_values()]
    rows = Rows(data, log=linear.log)
    contexts = [5, 12, 28, 40]
    folds = Folds(rows, contexts, [1] * 4)
    shared = folds.cross_products(rows)[linear.context_length]
    # The median of 102 and 62 origins has 4 folds of 33 of them.
    for fold, (_, products) in enumerate(shared):
        begin = 33 - 33 * fold // 4
        ends = [range(len(values) - 2 - begin - 3 + 1) for values in training]
        wanted = direct_weights(training, linear, 3, ends)
        (got,) = Regression(products).weights(linear.strength, [linear.prior], linear.seasons)
        assert got == pytest.approx(wanted, rel=1e-6, abs=1e-8)


TINY = ["model.cell=rnn", "model.hidden_size=4", "training.max_steps=2", "training.device=cpu", "task.horizon=2"]
TINY += ["training.plots=false"]


def write(path: Path) -> Path:
    rows = [
        f"{one.unique_id},{time},{value:.4f}" for one in weekly().series for time, value in enumerate(one.values[:, 0])
    ]
    path.write_text("\n".join(["unique_id,ds,y", *rows]) + "\n")
    return path


def test_a_run_records_what_was_tried_and_resumes_with_it(tmp_path: Path) -> None:
    overrides = [f"data.source={write(tmp_path / 'weekly.csv')}", *TINY]

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        train(load_config(overrides=overrides), tmp_path / "run", progress=stop)
    summary = train(None, tmp_path / "run", resume=True)
    context = summary["linear_forecast"]["chosen"]["context_length"]
    assert context > PERIOD
    described = json.loads((tmp_path / "run/data.json").read_text())
    assert described["context_length"] == context
    assert described["notes"]["linear_forecast"] == summary["linear_forecast"]
    config = load_config(overrides=overrides)
    _, plan = add_plan(check_run_data(config), config)
    assert plan is not None
    assert plan["context_length"] == context
