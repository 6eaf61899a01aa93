"""Standard errors of differences between forecasts whose windows overlap and whose series have much in common."""

from __future__ import annotations

import numpy as np
import pytest

from stablernn.training.loop.linear_forecast import standard_error


def windows(series: int, ends: int) -> np.ndarray:
    """Origins of all windows of so many series, series by series."""
    return np.stack([np.repeat(np.arange(series), ends), np.tile(np.arange(ends) + 7, series)], axis=1)


def classical(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def test_windows_that_do_not_overlap_count_each() -> None:
    differences = np.random.default_rng(0).normal(size=30)
    assert standard_error(differences, windows(1, 30), horizon=1) == pytest.approx(classical(differences))


def test_one_window_of_each_series_counts_each() -> None:
    differences = np.random.default_rng(0).normal(size=30)
    origins = np.stack([np.arange(30), np.arange(30)], axis=1)
    assert standard_error(differences, origins, horizon=5) == pytest.approx(classical(differences))


def test_windows_whose_targets_overlap_count_as_one_stretch() -> None:
    stretches = np.random.default_rng(0).normal(size=6)
    # Five origins in a row, 5 steps ahead, share a target.
    found = standard_error(np.repeat(stretches, 5), windows(1, 30), horizon=5)
    assert found == pytest.approx(classical(stretches))


def test_what_all_series_have_in_common_is_no_evidence() -> None:
    common = np.random.default_rng(0).normal(size=4)
    assert standard_error(np.tile(common, 50), windows(50, 4), horizon=1) == pytest.approx(classical(common))


def test_what_all_times_have_in_common_is_no_evidence() -> None:
    common = np.random.default_rng(0).normal(size=4)
    assert standard_error(np.repeat(common, 50), windows(4, 50), horizon=1) == pytest.approx(classical(common))


@pytest.mark.parametrize("ends", [1, 5])
def test_one_time_of_one_series_says_nothing(ends: int) -> None:
    assert standard_error(np.arange(ends, dtype=np.float64), windows(1, ends), horizon=5) is None
