"""The report on a streamed split: which samples and truths are paired, and what is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forecast_helpers import many_series
from stablernn.data import ForecastData
from stablernn.training.evaluation.backtest import stream_report

LEVELS = (0.1, 0.5, 0.9)
HORIZON = 2


def toy(series: int = 3) -> ForecastData:
    """Series of two channels with steps of about 1."""
    random = np.random.default_rng(0)
    return many_series([random.normal(0, 1, (40 + n, 2)).cumsum(axis=0) for n in range(series)], test_steps=12)


class Persistence:
    """Forecasts the last value, with an interval of 1 to either side; its state counts the steps read."""

    states = ()
    patch_stride = 1

    def __init__(self, stride: int = 1) -> None:
        self.patch_stride = stride

    def run_sequence(
        self, x: np.ndarray, lengths: np.ndarray, state: Mapping[str, Any] | None = None, **optional: np.ndarray
    ) -> dict[str, np.ndarray]:
        last = np.nan_to_num(x[:, -1, :1])
        mean = np.repeat(last[:, None], HORIZON, axis=1)
        return {"mean": mean, "quantiles": np.stack([mean - 1, mean, mean + 1], axis=-1)}

    def next_state(self, outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {}


class Recorder:
    """Records what it is run on, and answers intervals of twice the width and three alarms."""

    false_alarm_rate, block, reason = 0.01, 7, None

    def __init__(self) -> None:
        self.streams: list[tuple[np.ndarray, np.ndarray]] = []

    def run(self, x: np.ndarray, quantiles: np.ndarray) -> tuple[np.ndarray, int]:
        self.streams.append((x, quantiles))
        middle = quantiles[..., 1:2]
        return middle + 2 * (quantiles - middle), 3


@pytest.mark.parametrize("stride", [1, 2])
def test_a_stream_holds_the_samples_before_each_forecast_in_their_order(stride: int) -> None:
    data, monitor = toy(), Recorder()
    report = stream_report(Persistence(stride), data, "test", LEVELS, monitor)
    assert len(monitor.streams) == len(data.series)
    ends = [end for series, end in data.windows("test").origins if series == 0][::-1][::stride][::-1]
    x, quantiles = monitor.streams[0]
    values = data.series[0].values
    np.testing.assert_array_equal(x, [values[end - stride : end] for end in ends])
    np.testing.assert_array_equal(quantiles[:, 0, 0, 1], np.nan_to_num(values[np.array(ends) - 1, 0]))
    assert report["readings"] == stride * report["samples"] == stride * sum(len(part[0]) for part in monitor.streams)


def test_coverage_counts_true_values_inside_of_both_intervals() -> None:
    data, monitor = toy(), Recorder()
    report = stream_report(Persistence(), data, "test", LEVELS, monitor)
    inside, wider, count = 0, 0, 0
    for series, end in data.windows("test").origins:
        values = data.series[series].values
        for truth in values[end : end + HORIZON, data.target_indices[0]]:
            distance = abs(truth - np.nan_to_num(values[end - 1, 0]))
            count += not np.isnan(truth)
            inside, wider = inside + bool(distance <= 1), wider + bool(distance <= 2)
    assert 0 < inside < wider
    (row,) = report["coverage"]
    assert row == pytest.approx({"nominal": 0.8, "fixed": inside / count, "adaptive": wider / count, "width": 2.0})
    assert (report["alarms"], report["block"], report["false_alarm_rate"]) == (3 * len(data.series), 7, 0.01)


def test_a_missing_window_begins_another_stream() -> None:
    data = toy(1)
    whole, parts = Recorder(), Recorder()
    stream_report(Persistence(), data, "test", LEVELS, whole)
    values = data.series[0].values.copy()
    first = data.windows("test").origins[0][1]
    values[first + 2 : first + 2 + HORIZON] = np.nan
    gap = replace(data, series=(replace(data.series[0], values=values),))
    assert len(gap.windows("test")) < len(data.windows("test"))
    stream_report(Persistence(), gap, "test", LEVELS, parts)
    assert (len(whole.streams), len(parts.streams)) == (1, 2)
