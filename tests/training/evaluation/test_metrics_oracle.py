"""Our figures are those of ``utilsforecast``; where a definition differs, the exact relation of the two."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import utilsforecast.losses as oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stablernn.training.evaluation.metrics import forecast_metrics, quantile_metrics, seasonal_scale

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
SERIES, HORIZON, TRAIN, SEASON = 4, 6, 30, 5

sensible = st.floats(-1e3, 1e3, allow_subnormal=False).map(lambda x: 0.0 if abs(x) < 1e-3 else x)


class Case:
    """Four series with one window each, in our shapes and as data frames."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.train = random.normal(size=(SERIES, TRAIN)).cumsum(axis=1)
        self.truth = random.normal(size=(SERIES, HORIZON, 1)) * np.array([1, 5, 20, 0.1])[:, None, None]
        self.mean = self.truth + random.normal(size=self.truth.shape)
        self.quantiles = np.sort(self.mean[..., None] + random.normal(size=(*self.truth.shape, len(LEVELS))), axis=-1)
        self.scale = np.stack([seasonal_scale(values[:, None], SEASON) for values in self.train])

    def frame(self) -> pd.DataFrame:
        columns = {f"q{level:g}": self.quantiles[..., number].ravel() for number, level in enumerate(LEVELS)}
        return pd.DataFrame(
            {
                "unique_id": np.repeat(np.arange(SERIES), HORIZON),
                "ds": np.tile(np.arange(TRAIN, TRAIN + HORIZON), SERIES),
                "y": self.truth.ravel(),
                "model": self.mean.ravel(),
                "model-lo-80": columns["q0.1"],
                "model-hi-80": columns["q0.9"],
                **columns,
            }
        )

    def train_frame(self) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "unique_id": np.repeat(np.arange(SERIES), TRAIN),
                "ds": np.tile(np.arange(TRAIN), SERIES),
                "y": self.train.ravel(),
            }
        )

    def ours(self, *series: int) -> dict[str, float]:
        chosen = list(series or range(SERIES))
        points = forecast_metrics(
            self.mean[chosen], self.truth[chosen], scale=self.scale[chosen], series=np.arange(len(chosen))
        )
        return points | quantile_metrics(self.quantiles[chosen], self.truth[chosen], LEVELS)


def by_series(frame: pd.DataFrame, column: str = "model") -> np.ndarray:
    return frame.sort_values("unique_id")[column].to_numpy()


@pytest.mark.parametrize(
    ("name", "theirs", "factor"),
    [
        ("mae", oracle.mae, 1),
        ("mse", oracle.mse, 1),
        ("rmse", oracle.rmse, 1),
        ("wape", oracle.wape, 1),
        ("wape", oracle.nd, 1),
        # Theirs divides by |y| + |f|, ours by the mean of the two, as the M competitions do.
        ("smape", oracle.smape, 2),
    ],
    ids=["mae", "mse", "rmse", "wape", "nd", "smape"],
)
def test_errors_of_each_series(name: str, theirs: Callable[..., pd.DataFrame], factor: int) -> None:
    case = Case()
    expected = factor * by_series(theirs(case.frame(), ["model"]))
    assert [case.ours(series)[name] for series in range(SERIES)] == pytest.approx(expected)


def test_mase_of_each_series_and_of_all() -> None:
    case = Case()
    expected = by_series(oracle.mase(case.frame(), ["model"], SEASON, case.train_frame()))
    assert [case.ours(series)["mase"] for series in range(SERIES)] == pytest.approx(expected)
    assert case.ours()["mase"] == pytest.approx(expected.mean())


def test_pooled_errors_are_the_means_over_series_of_equal_length() -> None:
    case = Case()
    frame, ours = case.frame(), case.ours()
    assert ours["mae"] == pytest.approx(by_series(oracle.mae(frame, ["model"])).mean())
    assert ours["mse"] == pytest.approx(by_series(oracle.mse(frame, ["model"])).mean())
    assert ours["smape"] == pytest.approx(2 * by_series(oracle.smape(frame, ["model"])).mean())
    # These two are not: ours is the root of the pooled squares, and the pooled errors over the pooled sizes.
    assert ours["rmse"] == pytest.approx(math.sqrt(by_series(oracle.mse(frame, ["model"])).mean()))
    size = np.abs(case.truth).sum(axis=(1, 2))
    assert ours["wape"] == pytest.approx(np.average(by_series(oracle.wape(frame, ["model"])), weights=size))


@pytest.mark.parametrize("level", LEVELS)
def test_pinball_loss(level: float) -> None:
    case = Case()
    expected = by_series(oracle.quantile_loss(case.frame(), {"model": f"q{level:g}"}, q=level))
    assert [case.ours(series)[f"pinball_{level:g}"] for series in range(SERIES)] == pytest.approx(expected)


def test_crps_is_twice_the_multi_quantile_loss() -> None:
    case = Case()
    models = {"model": [f"q{level:g}" for level in LEVELS]}
    expected = 2 * by_series(oracle.mqloss(case.frame(), models, np.array(LEVELS)))
    assert [case.ours(series)["crps"] for series in range(SERIES)] == pytest.approx(expected)
    assert case.ours()["crps"] == pytest.approx(expected.mean())


def test_crps_over_the_mean_size_of_the_truth_is_the_scaled_crps() -> None:
    case = Case()
    models = {"model": [f"q{level:g}" for level in LEVELS]}
    expected = by_series(oracle.scaled_crps(case.frame(), models, np.array(LEVELS)))
    size = np.abs(case.truth).mean(axis=(1, 2))
    assert [case.ours(series)["crps"] / size[series] for series in range(SERIES)] == pytest.approx(expected)


def test_coverage_of_the_interval() -> None:
    case = Case()
    expected = by_series(oracle.coverage(case.frame(), ["model"], 80))
    assert [case.ours(series)["coverage_0.8"] for series in range(SERIES)] == pytest.approx(expected)


def test_width_is_the_winkler_score_less_its_penalty() -> None:
    case = Case()
    frame = case.frame()
    inside = frame.assign(y=frame["model-lo-80"])
    expected = by_series(oracle.winkler_score(inside, ["model"], 80))
    assert [case.ours(series)["width_0.8"] for series in range(SERIES)] == pytest.approx(expected)


@settings(deadline=None)
@given(truth=arrays(np.float64, (3, 2, 1), elements=sensible), mean=arrays(np.float64, (3, 2, 1), elements=sensible))
def test_any_numbers_give_the_figures_of_utilsforecast(truth: np.ndarray, mean: np.ndarray) -> None:
    frame = pd.DataFrame({"unique_id": 0, "ds": np.arange(6), "y": truth.ravel(), "model": mean.ravel()})
    got = forecast_metrics(mean, truth, scale=np.ones((1, 1)), series=np.zeros(3, dtype=int))
    for name, theirs, factor in (
        ("mae", oracle.mae, 1),
        ("mse", oracle.mse, 1),
        ("rmse", oracle.rmse, 1),
        ("smape", oracle.smape, 2),
    ):
        assert got[name] == pytest.approx(factor * by_series(theirs(frame, ["model"]))[0], rel=1e-9, abs=1e-12)
    expected = by_series(oracle.wape(frame, ["model"]))[0]
    if np.isnan(expected) and not np.abs(mean).any():
        # A perfect forecast of zeros: missing there, without fault here.
        assert got["wape"] == 0
    else:
        assert got["wape"] == pytest.approx(expected, nan_ok=True)


@settings(max_examples=20, deadline=None)
@given(
    truth=arrays(np.float64, (4, 1, 1), elements=sensible),
    quantiles=arrays(np.float64, (4, 1, 1, 3), elements=sensible),
    shift=st.floats(-100, 100),
    unit=st.floats(0.01, 100),
)
def test_quantile_scores_move_with_the_data(
    truth: np.ndarray, quantiles: np.ndarray, shift: float, unit: float
) -> None:
    levels = (0.1, 0.5, 0.9)
    ordered = np.sort(quantiles, axis=-1)
    first = quantile_metrics(ordered, truth, levels)
    moved = quantile_metrics(shift + unit * ordered, shift + unit * truth, levels)
    for name in ("pinball_0.1", "pinball_0.9", "crps", "width_0.8"):
        assert moved[name] == pytest.approx(unit * first[name], rel=1e-6, abs=1e-6 * unit)
        assert first[name] >= 0
    assert 0 <= first["coverage_0.8"] <= 1
    # The median's part of the score is half of its absolute error.
    assert first["pinball_0.5"] == pytest.approx(np.abs(truth - ordered[..., 1]).mean() / 2)


@settings(deadline=None)
@given(truth=arrays(np.float64, (4, 3, 2), elements=sensible), mean=arrays(np.float64, (4, 3, 2), elements=sensible))
def test_bounds_of_the_errors(truth: np.ndarray, mean: np.ndarray) -> None:
    got = forecast_metrics(mean, truth, scale=np.ones((1, 2)), series=np.zeros(4, dtype=int))
    assert 0 <= got["smape"] <= 2
    assert got["mae"] <= got["rmse"] * (1 + 1e-9)
    assert got["mase"] == pytest.approx(got["mae"])
