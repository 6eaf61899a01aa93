"""Adaptive intervals against the update of their definition, and the bound on their coverage for any sequence."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stablernn_runtime.adaptive_intervals import MAX_FACTOR, MAX_PENDING, STEP_SIZE, AdaptiveIntervals

LEVELS = [0.1, 0.5, 0.9]


def forecasts(steps: int, horizon: int, targets: int = 1, seed: int = 0) -> np.ndarray:
    """Sorted quantiles after each sample, ``(1, steps, horizon, targets, levels)``."""
    noise = np.random.default_rng(seed).normal(size=(1, steps, horizon, targets, 3))
    return np.sort(noise, axis=-1).astype(np.float32)


def by_definition(values: np.ndarray, quantiles: np.ndarray, spacing: int) -> tuple[np.ndarray, np.ndarray]:
    """Intervals of one target and one pair, and whether each scored forecast missed, by a plain loop in float64.

    Returns:
        ``(steps, horizon, 2)``, and ``(scored forecasts of the first step ahead,)``.
    """
    steps, horizon = quantiles.shape[:2]
    theta = np.zeros(horizon)
    intervals = np.empty((steps, horizon, 2))
    misses = []
    for t in range(steps):
        for h in range(1, horizon + 1):
            origin = t - h
            if origin >= 0 and origin % spacing == 0 and not math.isnan(values[t]):
                low, high = intervals[origin, h - 1]
                missed = not low <= values[t] <= high
                theta[h - 1] = max(theta[h - 1] + STEP_SIZE * (missed - 0.2), -math.log(MAX_FACTOR))
                if h == 1:
                    misses.append(missed)
        low, middle, high = quantiles[t].T
        factor = np.exp(theta)
        intervals[t] = np.stack([middle - factor * (middle - low), middle + factor * (high - middle)], axis=-1)
    return intervals, np.array(misses)


@pytest.mark.parametrize(
    "horizon",
    [
        1,
        8,
        9,
    ],
)
def test_intervals_are_those_of_the_definition(horizon: int) -> None:
    steps = 300
    values = np.random.default_rng(1).normal(size=steps).astype(np.float32) * 3
    values[40:50] = np.nan
    quantiles = forecasts(steps, horizon)
    intervals = AdaptiveIntervals(horizon, 1, LEVELS)
    assert intervals.spacing == math.ceil(horizon / MAX_PENDING)
    expected, misses = by_definition(values, quantiles[0, :, :, 0].astype(np.float64), intervals.spacing)
    update = intervals.advance({}, values[None, :, None, None], quantiles)
    actual = update.quantiles[0, :, :, 0]
    np.testing.assert_allclose(actual[..., [0, 2]], expected, rtol=1e-3, atol=1e-4)
    # The median is the model's own.
    np.testing.assert_array_equal(actual[..., 1], quantiles[0, :, :, 0, 1])
    if horizon == 1:
        assert update.counts.tolist() == [[[len(misses), misses.sum()]]]


@pytest.mark.parametrize(("horizon", "stride"), [(7, 1), (7, 3), (3, 4), (20, 2)])
def test_samples_one_by_one_and_streams_together_give_the_same_bits(horizon: int, stride: int) -> None:
    random = np.random.default_rng(2)
    streams, steps = 3, 40
    values = random.normal(size=(streams, steps, stride, 2)).astype(np.float32)
    values[random.random(values.shape) < 0.1] = np.nan
    quantiles = np.sort(random.normal(size=(streams, steps, horizon, 2, 5)), axis=-1).astype(np.float32)
    intervals = AdaptiveIntervals(horizon, 2, [0.05, 0.1, 0.5, 0.9, 0.95], stride)
    whole = intervals.advance({}, values, quantiles)
    for stream in range(streams):
        states: dict[str, np.ndarray] = {}
        for step in range(steps):
            part = (slice(stream, stream + 1), slice(step, step + 1))
            update = intervals.advance(states, values[part], quantiles[part])
            assert np.array_equal(update.quantiles, whole.quantiles[part])
            states = update.states
        assert all(np.array_equal(states[name][0], whole.states[name][stream]) for name in intervals.state_shapes)
    assert {name: (value.shape[1:], value.dtype) for name, value in whole.states.items()} == intervals.state_shapes


SEQUENCES = {
    "noise": lambda t: np.random.default_rng(3).normal(size=len(t)),
    "jumps": lambda t: np.where(t % 500 < 250, 0.0, 1e5),
    "heavy tails": lambda t: np.random.default_rng(5).standard_cauchy(len(t)),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_share_of_misses_stays_within_the_bound_for_any_sequence(name: str) -> None:
    steps, horizon = 1500, 3
    values = SEQUENCES[name](np.arange(steps)).astype(np.float32)
    quantiles = np.broadcast_to(np.array([-1.0, 0.1, 1.0], np.float32), (1, steps, horizon, 1, 3))
    intervals = AdaptiveIntervals(horizon, 1, LEVELS)
    answered = intervals.advance({}, values[None, :, None, None], quantiles).quantiles[0, :, :, 0].astype(np.float64)
    for ahead in range(1, horizon + 1):
        low, high = answered[:-ahead, ahead - 1, 0], answered[:-ahead, ahead - 1, 2]
        is_missed = (values[ahead:] < low) | (values[ahead:] > high)
        scored = np.arange(1, len(is_missed) + 1)
        excess = is_missed.cumsum() / scored - 0.2
        assert (excess <= [intervals.excess_bound(0, count) for count in scored]).all()
        # No factor is at its lower limit in these sequences.
        assert (excess >= -math.log(MAX_FACTOR) / (STEP_SIZE * scored) - 1e-6).all()


def test_a_constant_series_narrows_its_intervals_to_the_limit_and_widens_them_again() -> None:
    intervals = AdaptiveIntervals(1, 1, LEVELS)
    quantiles = np.broadcast_to(np.float32([-1, 0, 1]), (1, 600, 1, 1, 3))
    update = intervals.advance({}, np.zeros((1, 600, 1, 1), np.float32), quantiles)
    assert update.quantiles[0, -1, 0, 0, 2] == pytest.approx(1 / MAX_FACTOR, rel=1e-5)
    # Without the limit, as many values would miss as were covered.
    noise = np.random.default_rng(0).normal(size=(1, 600, 1, 1)).astype(np.float32)
    later = intervals.advance(update.states, noise, quantiles)
    assert later.counts[0, 0, 1] <= 0.2 * 600 + 2 * math.log(MAX_FACTOR) / STEP_SIZE


def test_coverage_counts_scored_and_covered_forecasts() -> None:
    intervals = AdaptiveIntervals(1, 1, LEVELS)
    assert intervals.coverage({}) == [{"nominal": 0.8, "scored": 0, "covered": 0}]
    values = np.float32([0, 0, 5, np.nan, 0]).reshape(1, 5, 1, 1)
    update = intervals.advance({}, values, np.broadcast_to(np.float32([-1, 0, 1]), (1, 5, 1, 1, 3)))
    states = {name: value[0] for name, value in update.states.items()}
    assert intervals.coverage(states) == [{"nominal": 0.8, "scored": 3, "covered": 2}]
