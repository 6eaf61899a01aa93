from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn import metrics as sk

from stablernn.training.evaluation.metrics import (
    classification_metrics,
    drift,
    forecast_metrics,
    quantile_metrics,
    seasonal_naive,
    seasonal_scale,
)


def probabilities(samples: int, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) + 1.5 * np.eye(classes)[y]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return p.astype(np.float32), y


@pytest.mark.parametrize("classes", [2, 3, 10], ids=lambda n: f"K{n}")
def test_classification_equals_sklearn(classes: int) -> None:
    p, y = probabilities(200, classes)
    got = classification_metrics(p, y)
    predicted = p.argmax(axis=1)
    assert got["accuracy"] == sk.accuracy_score(y, predicted)
    assert got["macro_f1"] == pytest.approx(sk.f1_score(y, predicted, average="macro"), abs=1e-6)
    assert got["log_loss"] == pytest.approx(sk.log_loss(y, p, labels=range(classes)), abs=1e-6)
    areas = [sk.roc_auc_score(y == label, p[:, label]) for label in range(classes)]
    assert got["roc_auc"] == pytest.approx(np.mean(areas), abs=1e-6)


def test_calibration_error_equals_its_definition() -> None:
    p, y = probabilities(500, 4)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    expected = 0.0
    for lower in np.arange(15) / 15:
        inside = (confidence > lower) & (confidence <= lower + 1 / 15)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert classification_metrics(p, y)["ece"] == pytest.approx(expected, abs=1e-6)


def test_certain_and_wrong_has_a_finite_log_loss() -> None:
    got = classification_metrics(np.array([[1.0, 0.0]]), np.array([1]))
    assert got["log_loss"] == pytest.approx(-math.log(np.finfo(np.float32).eps))


def test_forecast_errors_by_hand() -> None:
    truth = np.array([[[2.0], [4.0]], [[6.0], [np.nan]]])
    mean = np.array([[[1.0], [4.0]], [[9.0], [100.0]]])
    got = forecast_metrics(mean, truth, scale=np.array([[2.0]]), series=np.array([0, 0]))
    assert got == {
        "mse": pytest.approx((1 + 0 + 9) / 3),
        "mae": pytest.approx(4 / 3),
        "rmse": pytest.approx(math.sqrt(10 / 3)),
        "mase": pytest.approx(4 / 3 / 2),
        "smape": pytest.approx((2 * 1 / 3 + 0 + 2 * 3 / 15) / 3),
        "wape": pytest.approx(4 / 12),
    }


def test_mase_is_the_mean_over_series_and_targets() -> None:
    truth = np.zeros((3, 1, 2))
    mean = np.array([[[1.0, 2.0]], [[3.0, 2.0]], [[8.0, 6.0]]])
    got = forecast_metrics(mean, truth, scale=np.array([[1.0, 2.0], [4.0, 3.0]]), series=np.array([0, 0, 1]))
    assert got["mase"] == pytest.approx(np.mean([2 / 1, 2 / 2, 8 / 4, 6 / 3]))


def test_a_missing_forecast_makes_the_scores_missing() -> None:
    mean = np.array([[[1.0], [np.nan]]])
    got = forecast_metrics(mean, np.ones((1, 2, 1)), scale=np.array([[1.0]]), series=np.array([0]))
    assert all(math.isnan(value) for value in got.values())
    quantiles = quantile_metrics(np.full((1, 2, 1, 2), np.nan), np.ones((1, 2, 1)), (0.1, 0.9))
    assert all(math.isnan(value) for value in quantiles.values())


def test_coverage_counts_the_bounds_and_leaves_out_missing_truth() -> None:
    truth = np.array([[[0.0], [1.0], [2.0], [np.nan]]])
    quantiles = np.broadcast_to(np.array([1.0, 1.5, 2.0]), (1, 4, 1, 3))
    got = quantile_metrics(quantiles, truth, (0.1, 0.5, 0.9))
    assert got["coverage_0.8"] == pytest.approx(2 / 3)


def test_seasonal_naive_repeats_the_last_season() -> None:
    values = np.arange(10.0)[:, None]
    got = seasonal_naive(values, np.array([10, 8]), season=4, horizon=6)
    np.testing.assert_array_equal(got[0, :, 0], [6, 7, 8, 9, 6, 7])
    np.testing.assert_array_equal(got[1, :, 0], [4, 5, 6, 7, 4, 5])


def test_without_a_season_the_last_observed_value_is_repeated() -> None:
    values = np.array([1.0, 5.0, np.nan])[:, None]
    np.testing.assert_array_equal(seasonal_naive(values, np.array([3]), season=1, horizon=3)[0, :, 0], [5, 5, 5])


def test_a_missing_value_one_season_back_uses_the_one_before() -> None:
    values = np.array([1.0, 2.0, 3.0, np.nan, 4.0, 5.0])[:, None]
    got = seasonal_naive(values, np.array([6]), season=3, horizon=3)
    np.testing.assert_array_equal(got[0, :, 0], [1, 4, 5])


def test_seasonal_scale_by_hand() -> None:
    values = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [np.nan, 0.0], [5.0, 0.0]])
    # Pairs at lag 2 of the first target: |4 - 1| and |5 - 4|; the one with the missing value is left out.
    np.testing.assert_array_equal(seasonal_scale(values, 2), [2.0, 0.0])


def test_drift_goes_on_with_the_line_through_the_first_and_the_last_value() -> None:
    values = np.array([np.nan, 1.0, 7.0, 4.0, np.nan, 100.0])[:, None]
    got = drift(values, np.array([5]), horizon=3)
    # Observed are steps 1 to 3, of which the line rises by 3 in 2; the first step to forecast is two after the last.
    np.testing.assert_allclose(got[0, :, 0], [4 + 1.5 * 2, 4 + 1.5 * 3, 4 + 1.5 * 4])
