"""The parts of the benchmark of streams: shifts, what detectors are given, and the tables of its page."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark_scripts import script
from stablernn_runtime.drift import DriftDetector


def test_detectors_of_river_get_the_residuals_of_the_test() -> None:
    random = np.random.default_rng(0)
    streams = random.normal(size=(2, 60)).astype(np.float32)
    quantiles = np.sort(random.normal(size=(2, 60, 3, 1, 3)), axis=-1).astype(np.float32)
    z = script("online").residuals(streams, quantiles)
    detector = DriftDetector(1e-3, 10, 3, 1)
    width = quantiles[..., 2] - quantiles[..., 0]
    states, _ = detector.advance({}, streams[:, :, None, None], quantiles[..., 1], width)
    # The means of the six blocks, of which the first lacks the first reading.
    blocks = np.nanmean(z.reshape(2, 6, 10), axis=2)
    np.testing.assert_allclose(states["drift.reference"][:, 0, :6], blocks, rtol=1e-4, atol=1e-5)


def test_shifts_begin_at_their_onset_and_leave_the_first_stream_as_it_is() -> None:
    values = np.random.default_rng(1).normal(size=400)
    streams, facts = script("online").shifted(values, 2.0)
    assert np.array_equal(streams[0], values)
    assert len(streams) == len(facts) == 1 + 3 * 2 * 4
    for stream, fact in zip(streams[1:], facts[1:], strict=True):
        onset = fact["onset"]
        assert np.array_equal(stream[:onset], values[:onset])
        change = stream[onset:] - values[onset:]
        if fact["kind"] == "level":
            np.testing.assert_allclose(np.abs(change), 6.0)
        if fact["kind"] == "trend":
            np.testing.assert_allclose(np.abs(change), 0.06 * np.arange(len(change)))


def test_coverage_pairs_each_forecast_with_its_true_value() -> None:
    streams = np.arange(10.0)[None]
    # The forecast of each step ahead is right, with a width of 1, but for the second step at the origin 4.
    lower = np.arange(10.0)[None, :, None] + np.arange(1, 3) - 0.5
    lower[0, 4, 1] += 10
    covered, width, score = script("online").coverage(streams, lower, lower + 1, 3, 10)
    assert covered == pytest.approx(13 / 14)
    assert width == 1.0
    assert score == pytest.approx(1 + 10 * 9.5 / 14)


def test_delays_count_the_readings_from_the_shift_to_the_first_alarm() -> None:
    alarms = np.zeros((3, 1000), np.bool_)
    alarms[0, [5, 100, 120]] = True
    alarms[1, 903] = True
    assert script("online").delays(alarms, [100, 900, 10]) == {"shifts": 3, "detected": 2, "delay": 2.5}
