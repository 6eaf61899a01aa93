from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forecast_helpers import Sums, many_series
from stablernn.data import ClassificationData, ForecastData, load_data
from stablernn.errors import DataError, UnknownNameError
from stablernn.training import evaluate, predict
from stablernn.training.evaluation.baselines import Baselines
from stablernn.training.evaluation.metrics import classification_metrics
from stablernn.training.evaluation.scorers import ForecastScorer, naive_season


@pytest.fixture(scope="module")
def digits() -> ClassificationData:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    return data


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> ForecastData:
    """Two series of season 4 with a gap and two channels, of which the second is forecast."""
    rows = ["unique_id,ds,a,b"]
    for name, level in (("p", 0), ("q", 100)):
        for step in range(60):
            b = "" if step in (30, 55) else level + 10 * (step % 4) + step / 10
            rows.append(f"{name},{step},{step},{b}")
    path = tmp_path_factory.mktemp("series") / "two.csv"
    path.write_text("\n".join(rows))
    data = load_data(str(path), target="b", season=4, horizon=6, context_length=5, validation_steps=8, test_steps=8)
    assert isinstance(data, ForecastData)
    return data


class Repeats:
    """The seasonal naive forecast, made from the context alone."""

    def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, *, dt: None = None) -> dict[str, np.ndarray]:
        b = x[:, :, 1]
        mean = np.stack([b[:, -4 + step % 4] for step in range(6)], axis=1)[..., None]
        return {"mean": mean, "quantiles": mean[..., None] + np.array([-1.0, 0.0, 1.0])}


class Knows:
    """Answers with the truth, in a class order of its own."""

    def __init__(self, y: np.ndarray, classes: int) -> None:
        self.answers = iter(np.eye(classes, dtype=np.float32)[y])

    def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, *, dt: None = None) -> dict[str, np.ndarray]:
        return {"probabilities": np.stack([next(self.answers) for _ in x])}


def own(scores: dict[str, Any]) -> dict[str, float]:
    """The predictor's scores without those of the baselines."""
    return {name: value for name, value in scores.items() if not isinstance(value, dict)}


def test_the_seasonal_naive_forecast_scores_like_itself(series: ForecastData) -> None:
    got = evaluate(Repeats(), series, "validation", quantiles=(0.1, 0.5, 0.9))
    plain = {name: value for name, value in got.items() if name in got["seasonal_naive"]}
    assert plain == pytest.approx(got["seasonal_naive"])
    assert got["relative_mae"] == pytest.approx(1.0)
    # Between two seasons b grows by .4 and .8, so every truth lies within 1 of the forecast.
    assert got["coverage_0.8"] == 1.0
    assert got["mase"] == pytest.approx(got["mae"] / 0.4)


class Shapes:
    """Zeros of a shape."""

    def __init__(self, shape: tuple[int, ...], name: str = "mean") -> None:
        self.shape = shape
        self.name = name

    def run_numpy(self, x: np.ndarray, lengths: np.ndarray | None = None, *, dt: None = None) -> dict[str, np.ndarray]:
        return {self.name: np.zeros((len(x), *self.shape))}


def test_naive_is_the_last_observed_value(series: ForecastData) -> None:
    got = evaluate(Shapes((6, 1)), series, "test")
    # Steps 52..57, 53..58, 54..59 of two equal shapes; the missing step 55 is left out, and stands in for nothing.
    errors = []
    for end in (52, 53, 54):
        b = [10 * (step % 4) + step / 10 for step in range(60)]
        last = end - 1
        errors += [abs(b[step] - b[last]) for step in range(end, end + 6) if step != 55]
    assert got["naive"]["mae"] == pytest.approx(np.mean(errors), rel=1e-5)


@pytest.mark.parametrize(("horizon", "season"), [(1, 1), (5, 7)])
def test_the_season_of_the_naive_forecast_errs_least_over_the_horizon(
    horizon: int, season: int, tmp_path: Path
) -> None:
    # A week before errs by 2. One step before errs by up to 2, and several by more: 2.6 on average up to five.
    rows = [
        f"{date(2024, 1, 1) + timedelta(day)},{2 * min(day % 7, 7 - day % 7) + 2 * (day // 7)}" for day in range(120)
    ]
    (tmp_path / "d.csv").write_text("\n".join(["ds,y", *rows]))
    data = load_data(tmp_path / "d.csv", season=7, horizon=horizon, context_length=14)
    assert isinstance(data, ForecastData)
    assert naive_season(data) == season


def test_labels_are_matched_by_word(digits: ClassificationData) -> None:
    order = tuple(reversed(digits.labels))
    got = evaluate(Knows(9 - digits.validation.y, 10), digits, "validation", labels=order)
    assert got["accuracy"] == 1.0
    expected = classification_metrics(np.eye(10)[digits.validation.y], digits.validation.y)
    assert {name: got[name] for name in expected} == expected
    # The baselines are of the data, in whatever order the predictor has its classes.
    assert got["ridge"] == Baselines(digits).scores("validation")["ridge"]


@pytest.mark.parametrize(
    ("found", "expected", "fits"),
    [
        (("a", "b"), ("b", "a"), False),
        (("a", "b"), ("channel_0", "channel_1"), True),
        (("channel_0", "channel_1"), ("b", "a"), True),
    ],
    ids=["both named", "model without names", "data without names"],
)
def test_features_of_sequences_are_compared_where_both_have_names(
    digits: ClassificationData, found: tuple[str, ...], expected: tuple[str, ...], fits: bool
) -> None:
    train, validation = (replace(one, x=np.repeat(one.x, 2, axis=2)) for one in (digits.train, digits.validation))
    data = replace(digits, features=found, train=train, validation=validation)
    predictor = Shapes((10,), "probabilities")
    if fits:
        assert evaluate(predictor, data, "validation", features=expected)
    else:
        with pytest.raises(DataError, match="was loaded with the features a, b, the model expects b, a"):
            evaluate(predictor, data, "validation", features=expected)


@pytest.mark.parametrize(
    ("labels", "features", "classes", "split", "message"),
    [
        (
            ("0", "1", "2"),
            None,
            3,
            "validation",
            "has the label '3', which the model was not trained on; it knows 0, 1",
        ),
        (None, None, 3, "validation", "'digits' has 10 classes, the model answers 3"),
        (None, ("a", "b", "c"), 10, "validation", r"'digits' has 1 feature, the model expects 3 \(a, b, c\)"),
        (None, None, 10, "test", "'digits' has no test split"),
        (None, None, 10, "tset", "Unknown split 'tset'. Did you mean 'test'?"),
    ],
)
def test_sequences_that_the_model_was_not_made_for(
    labels: Any, features: Any, classes: int, split: str, message: str, digits: ClassificationData
) -> None:
    error = UnknownNameError if split == "tset" else DataError
    with pytest.raises(error, match=message):
        evaluate(
            Shapes((classes,), "probabilities"), replace(digits, test=None), split, labels=labels, features=features
        )


def test_the_scale_of_mase_is_of_the_training_steps_alone(tmp_path: Path) -> None:
    # In training y alternates between 0 and 1; then it jumps by 50, which would make any later scale larger.
    rows = [f"{step},{step % 2 if step < 40 else 50 * (step % 2)}" for step in range(60)]
    (tmp_path / "d.csv").write_text("\n".join(["ds,y", *rows]))
    data = load_data(tmp_path / "d.csv", season=1, horizon=2, context_length=4, validation_steps=10, test_steps=10)
    for split in ("validation", "test"):
        got = evaluate(Shapes((2, 1)), data, split)
        assert got["mase"] == pytest.approx(got["mae"] / 1.0)
        assert got["mae"] == pytest.approx(25)


def test_the_seasonal_naive_forecast_repeats_the_season_that_errs_least_in_training() -> None:
    hours = np.arange(24 * 28)
    daily = np.sin(2 * np.pi * hours / 24)[:, None]
    weekly = daily + (hours // 24 % 7 >= 5)[:, None]
    for values, season in ((daily, 24), (weekly, 168), (weekly[:300], 24)):
        data = many_series([values], frequency="h", season=24)
        scorer = ForecastScorer(data, "test")
        ends = scorer.origins[:, 1]
        expected = data.series[0].values[ends[:, None] - season + np.arange(2)]
        np.testing.assert_array_equal(scorer.naive_forecast("seasonal_naive"), expected)


def test_windows_without_a_value_in_their_context_are_scored_for_nobody() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(40, 1)).astype(np.float32)
    values[30:34] = np.nan
    data = many_series([values], season=1)
    windows = data.windows("test")
    # Origins are 31 to 38: both targets of 31 and 32 are missing, and so is all that 34 sees.
    assert [end for _, end in windows.origins] == [33, 35, 36, 37, 38]
    assert (windows.dropped, windows.without_context) == (2, 1)
    scores = evaluate(Sums(), data)
    errors = []
    for end in (33, 35, 36, 37, 38):
        last = values[:end, 0][~np.isnan(values[:end, 0])][-1]
        errors += [abs(truth - last) for truth in values[end : end + 2, 0] if not np.isnan(truth)]
    assert scores["naive"]["mae"] == pytest.approx(np.mean(errors))


def test_a_chosen_window_is_scored_like_a_split_of_its_own(series: ForecastData) -> None:
    whole = ForecastScorer(series, "validation", quantiles=(0.1, 0.5, 0.9))
    chosen = np.array([1, 4])
    part = ForecastScorer(series, "validation", quantiles=(0.1, 0.5, 0.9), windows=chosen)
    outputs = predict(Repeats(), whole.source)
    picked = predict(Repeats(), part.source)
    assert part.samples == 2
    for name, values in picked.items():
        np.testing.assert_array_equal(values, outputs[name][chosen])
    np.testing.assert_array_equal(part.truth, whole.truth[chosen])
    for name in ("seasonal_naive", "naive", "drift"):
        np.testing.assert_array_equal(part.naive_forecast(name), whole.naive_forecast(name)[chosen])
    errors = np.abs(picked["mean"] - part.truth)
    assert part.score(picked)["mae"] == pytest.approx(np.nanmean(errors))
