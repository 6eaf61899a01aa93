from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from stablernn.training.evaluation.metrics import (
    classification_metrics,
    confusion_matrix,
    drift,
    forecast_metrics,
    label_metrics,
    quantile_metrics,
    ratio,
    reliability,
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


def test_classes_that_never_occur_are_left_out_of_the_means() -> None:
    p, y = probabilities(60, 4)
    y[y == 3] = 0
    p[:, 3] = 0
    got = classification_metrics(p, y)
    assert got["macro_f1"] == pytest.approx(sk.f1_score(y, p.argmax(axis=1), average="macro"), abs=1e-6)
    assert math.isfinite(got["roc_auc"])


def test_one_class_only_has_no_roc_auc() -> None:
    p, y = probabilities(10, 3)
    assert math.isnan(classification_metrics(p, np.zeros_like(y))["roc_auc"])


def test_certain_and_wrong_has_a_finite_log_loss() -> None:
    got = classification_metrics(np.array([[1.0, 0.0]]), np.array([1]))
    assert got["log_loss"] == pytest.approx(-math.log(np.finfo(np.float32).eps))


def test_a_probability_rounded_above_one_is_no_logit() -> None:
    p = np.array([[1.0000001, 0.0], [0.0, 1.0000001]], dtype=np.float32)
    assert classification_metrics(p, np.array([0, 1]))["ece"] == 0.0


def test_a_missing_probability_makes_every_score_missing() -> None:
    p, y = probabilities(10, 3)
    p[4, 1] = np.nan
    assert all(math.isnan(value) for value in classification_metrics(p, y).values())


def test_confusion_matrix_equals_sklearn() -> None:
    p, y = probabilities(100, 5)
    predicted = p.argmax(axis=1)
    np.testing.assert_array_equal(confusion_matrix(predicted, y, 5), sk.confusion_matrix(y, predicted))


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


def test_mase_leaves_out_a_constant_series_unless_it_is_met_exactly() -> None:
    truth = np.zeros((3, 1, 1))
    mean = np.array([[[1.0]], [[0.0]], [[5.0]]])
    scale = np.array([[0.5], [0.0], [0.0]])
    got = forecast_metrics(mean, truth, scale=scale, series=np.array([0, 1, 2]))
    assert got["mase"] == pytest.approx((2.0 + 0.0) / 2)


def test_mase_without_any_scale_is_missing() -> None:
    got = forecast_metrics(np.ones((1, 2, 1)), np.zeros((1, 2, 1)), scale=np.array([[0.0]]), series=np.array([0]))
    assert math.isnan(got["mase"])


def test_zero_forecast_of_zero_truth_is_perfect() -> None:
    zero = np.zeros((1, 3, 1))
    got = forecast_metrics(zero, zero, scale=np.array([[0.0]]), series=np.array([0]))
    assert got == dict.fromkeys(("mse", "mae", "rmse", "mase", "smape", "wape"), 0.0)


def test_wape_of_a_wrong_forecast_of_zeros_is_missing() -> None:
    got = forecast_metrics(np.ones((1, 3, 1)), np.zeros((1, 3, 1)), scale=np.array([[1.0]]), series=np.array([0]))
    assert math.isnan(got["wape"])
    assert got["smape"] == 2.0


def test_a_missing_forecast_makes_the_scores_missing() -> None:
    mean = np.array([[[1.0], [np.nan]]])
    got = forecast_metrics(mean, np.ones((1, 2, 1)), scale=np.array([[1.0]]), series=np.array([0]))
    assert all(math.isnan(value) for value in got.values())
    quantiles = quantile_metrics(np.full((1, 2, 1, 2), np.nan), np.ones((1, 2, 1)), (0.1, 0.9))
    assert all(math.isnan(value) for value in quantiles.values())


def test_no_truth_at_all_gives_no_score() -> None:
    truth = np.full((2, 3, 1), np.nan)
    got = forecast_metrics(np.ones((2, 3, 1)), truth, scale=np.array([[1.0]]), series=np.array([0, 0]))
    got |= quantile_metrics(np.ones((2, 3, 1, 2)), truth, (0.1, 0.9))
    assert all(math.isnan(value) for value in got.values())


def test_coverage_counts_the_bounds_and_leaves_out_missing_truth() -> None:
    truth = np.array([[[0.0], [1.0], [2.0], [np.nan]]])
    quantiles = np.broadcast_to(np.array([1.0, 1.5, 2.0]), (1, 4, 1, 3))
    got = quantile_metrics(quantiles, truth, (0.1, 0.5, 0.9))
    assert got["coverage_0.8"] == pytest.approx(2 / 3)


def test_every_symmetric_pair_of_levels_has_a_coverage() -> None:
    got = quantile_metrics(np.zeros((1, 1, 1, 5)), np.zeros((1, 1, 1)), (0.05, 0.25, 0.5, 0.75, 0.9))
    assert [name for name in got if name.startswith("coverage")] == ["coverage_0.5"]


@pytest.mark.parametrize(
    ("above", "below", "expected"), [(1.0, 2.0, 0.5), (0.0, 0.0, 7.0), (0.0, 3.0, 0.0)], ids=["half", "0/0", "0/3"]
)
def test_ratio(above: float, below: float, expected: float) -> None:
    assert ratio(above, below, zero=7.0) == expected


def test_ratio_of_something_over_nothing_is_missing() -> None:
    assert math.isnan(ratio(1.0, 0.0, zero=7.0))


def test_seasonal_naive_repeats_the_last_season() -> None:
    values = np.arange(10.0)[:, None]
    got = seasonal_naive(values, np.array([10, 8]), season=4, horizon=6)
    np.testing.assert_array_equal(got[0, :, 0], [6, 7, 8, 9, 6, 7])
    np.testing.assert_array_equal(got[1, :, 0], [4, 5, 6, 7, 4, 5])


def test_seasonal_naive_sees_nothing_from_its_end_on() -> None:
    values = np.arange(10.0)[:, None]
    changed = values.copy()
    changed[7:] = 99
    ends = np.array([3, 5, 7])
    np.testing.assert_array_equal(
        seasonal_naive(values, ends, season=3, horizon=5), seasonal_naive(changed, ends, season=3, horizon=5)
    )


def test_without_a_season_the_last_observed_value_is_repeated() -> None:
    values = np.array([1.0, 5.0, np.nan])[:, None]
    np.testing.assert_array_equal(seasonal_naive(values, np.array([3]), season=1, horizon=3)[0, :, 0], [5, 5, 5])


def test_a_missing_value_one_season_back_uses_the_one_before() -> None:
    values = np.array([1.0, 2.0, 3.0, np.nan, 4.0, 5.0])[:, None]
    got = seasonal_naive(values, np.array([6]), season=3, horizon=3)
    np.testing.assert_array_equal(got[0, :, 0], [1, 4, 5])


def test_a_phase_never_seen_uses_the_last_observed_value() -> None:
    values = np.array([np.nan, 2.0, np.nan, 7.0, 3.0, np.nan])[:, None]
    got = seasonal_naive(values, np.array([6, 2, 0]), season=3, horizon=3)
    np.testing.assert_array_equal(got[0, :, 0], [7, 3, 3])
    np.testing.assert_array_equal(got[1, :, 0], [2, 2, 2])
    assert np.isnan(got[2]).all()


def test_seasonal_scale_by_hand() -> None:
    values = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [np.nan, 0.0], [5.0, 0.0]])
    # Pairs at lag 2 of the first target: |4 - 1| and |5 - 4|; the one with the missing value is left out.
    np.testing.assert_array_equal(seasonal_scale(values, 2), [2.0, 0.0])


def test_a_training_part_shorter_than_a_season_is_scaled_at_lag_one() -> None:
    np.testing.assert_array_equal(seasonal_scale(np.array([[1.0], [2.0], [5.0]]), 12), [2.0])


def test_a_training_part_without_pairs_has_no_scale() -> None:
    assert np.isnan(seasonal_scale(np.array([[1.0], [np.nan], [5.0], [np.nan]]), 1)).all()
    assert np.isnan(seasonal_scale(np.zeros((1, 1)), 1)).all()


def test_crps_at_many_levels_is_that_of_a_normal_distribution() -> None:
    levels = (np.arange(500) + 0.5) / 500
    quantiles = np.array([statistics.NormalDist().inv_cdf(level) for level in levels])
    for truth in (0.0, 1.3):
        # Gneiting and Raftery (2007), section 4.2: y (2 P(y) - 1) + 2 p(y) - 1 / sqrt(pi).
        standard = statistics.NormalDist()
        expected = truth * (2 * standard.cdf(truth) - 1) + 2 * standard.pdf(truth) - 1 / math.sqrt(math.pi)
        got = quantile_metrics(quantiles[None, None, None], np.full((1, 1, 1), truth), list(levels))
        assert got["crps"] == pytest.approx(expected, abs=2e-3)


def test_width_is_the_mean_distance_of_the_bounds() -> None:
    quantiles = np.array([[[[0.0, 1.0, 3.0]], [[2.0, 2.0, 2.0]], [[0.0, 5.0, 100.0]]]])
    truth = np.array([[[1.0], [1.0], [np.nan]]])
    assert quantile_metrics(quantiles, truth, (0.1, 0.5, 0.9))["width_0.8"] == 1.5


def test_labels_alone_are_scored_like_probabilities() -> None:
    p, y = probabilities(80, 5)
    whole = classification_metrics(p, y)
    assert label_metrics(p.argmax(axis=1), y, 5) == {name: whole[name] for name in ("accuracy", "macro_f1")}


def test_a_bin_holds_its_upper_bound_and_an_empty_one_has_no_mean() -> None:
    table = reliability(np.array([[0.6, 0.4], [1.0, 0.0], [0.5, 0.5]]), np.array([0, 1, 0]), bins=2)
    np.testing.assert_array_equal(table["samples"], [1, 2])
    np.testing.assert_array_equal(table["accuracy"], [1.0, 0.5])
    table = reliability(np.array([[1.0, 0.0]]), np.array([0]), bins=2)
    assert np.isnan(table["confidence"][0])


def test_drift_goes_on_with_the_line_through_the_first_and_the_last_value() -> None:
    values = np.array([np.nan, 1.0, 7.0, 4.0, np.nan, 100.0])[:, None]
    got = drift(values, np.array([5]), horizon=3)
    # Observed are steps 1 to 3, of which the line rises by 3 in 2; the first step to forecast is two after the last.
    np.testing.assert_allclose(got[0, :, 0], [4 + 1.5 * 2, 4 + 1.5 * 3, 4 + 1.5 * 4])


def test_drift_from_one_value_is_that_value_and_from_none_is_missing() -> None:
    values = np.array([[np.nan, 2.0], [np.nan, np.nan], [3.0, 1.0]])
    got = drift(values, np.array([0, 1, 3]), horizon=2)
    assert np.isnan(got[0]).all()
    assert np.isnan(got[1, :, 0]).all()
    np.testing.assert_array_equal(got[1, :, 1], [2, 2])
    np.testing.assert_array_equal(got[2, :, 0], [3, 3])


@settings(deadline=None)
@given(start=st.floats(-100, 100), slope=st.floats(-10, 10), end=st.integers(2, 20), horizon=st.integers(1, 10))
def test_drift_is_exact_on_a_straight_line(start: float, slope: float, end: int, horizon: int) -> None:
    line = start + slope * np.arange(40)
    got = drift(line[:, None], np.array([end]), horizon=horizon)
    np.testing.assert_allclose(got[0, :, 0], line[end : end + horizon], atol=1e-9)
