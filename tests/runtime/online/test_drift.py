"""The test for drift: its rate of false alarms, its delay, and equality however samples arrive."""

from __future__ import annotations

import numpy as np
import pytest

from stablernn_runtime.drift import REFERENCE_BLOCKS, DriftDetector

BLOCK = 10
RATE = 1e-3


def alarms(values: np.ndarray, rate: float = RATE) -> np.ndarray:
    """Whether each reading of ``(streams, readings)`` raises an alarm, of forecasts of a constant."""
    detector = DriftDetector(rate, BLOCK, 1, 1)
    center = np.zeros((*values.shape, 1, 1), np.float32)
    _, evidence = detector.advance({}, values[..., None, None].astype(np.float32), center, center + 2.56)
    return evidence >= 1


def moving_average(noise: np.ndarray) -> np.ndarray:
    """Noise with a memory of three readings, less than a block."""
    return noise + np.roll(noise, 1, 1) + np.roll(noise, 2, 1)


SERIES = {"independent": lambda noise: noise, "a short memory": moving_average, "heavy tails": lambda noise: noise**3}


@pytest.mark.parametrize(
    "name", ["heavy tails", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SERIES][:2])]
)
def test_stationary_series_raise_no_more_alarms_than_the_stated_rate(name: str) -> None:
    values = SERIES[name](np.random.default_rng(0).normal(size=(300, 3000)))
    count, expected = alarms(values).sum(), RATE * values.size
    # The bound is no estimate: the rate is about half of it. Alarms of streams are independent.
    assert 0.1 * expected < count <= expected


@pytest.mark.parametrize(
    ("change", "blocks"),
    [
        (lambda noise, t: noise + 2 * (t >= 0), 8),
        (lambda noise, t: noise * np.where(t >= 0, 3, 1), 8),
        (lambda noise, t: noise + 0.02 * np.maximum(t, 0), 20),
        # Smaller residuals are a change, too.
        (lambda noise, t: noise * np.where(t >= 0, 0.2, 1), 8),
    ],
    ids=["level", "variance", "trend", "smaller variance"],
)
def test_a_shift_raises_an_alarm_within_some_blocks(change, blocks: int) -> None:
    noise = np.random.default_rng(1).normal(size=(100, 1000))
    is_alarm = alarms(change(noise, np.arange(1000) - 500), 1e-4)
    later = is_alarm[:, 500 : 500 + blocks * BLOCK].any(axis=1)
    assert later.mean() > 0.9
    assert is_alarm[:, :500].mean() <= 1e-4


def test_no_alarm_comes_before_the_reference_is_complete() -> None:
    values = np.random.default_rng(2).normal(size=(50, REFERENCE_BLOCKS * BLOCK))
    values[:, 100:] += 100
    assert not alarms(values, 0.05).any()


def test_a_stream_starts_over_after_an_alarm() -> None:
    values = np.random.default_rng(3).normal(size=(1, 3000))
    values[:, 1000:] += 50
    (positions,) = np.nonzero(alarms(values, 1e-4)[0])
    # Once for each figure: what comes after the shift is the new reference.
    assert 1 <= len(positions) <= 2
    assert ((positions > 1000) & (positions < 1200)).all()


@pytest.mark.parametrize(("horizon", "stride"), [(1, 1), (5, 1), (5, 2), (2, 3)])
def test_samples_one_by_one_and_streams_together_give_the_same_bits(horizon: int, stride: int) -> None:
    random = np.random.default_rng(4)
    streams, steps = 2, 200
    values = random.normal(size=(streams, steps, stride, 2)).astype(np.float32)
    values[:, steps // 2 :] += 3
    values[random.random(values.shape) < 0.1] = np.nan
    center = random.normal(size=(streams, steps, horizon, 2)).astype(np.float32)
    width = random.random((streams, steps, horizon, 2)).astype(np.float32)
    detector = DriftDetector(0.01, 4, horizon, 2, stride)
    whole, evidence = detector.advance({}, values, center, width)
    assert (evidence >= 1).any()
    for stream in range(streams):
        states: dict[str, np.ndarray] = {}
        for step in range(steps):
            part = (slice(stream, stream + 1), slice(step, step + 1))
            states, share = detector.advance(states, values[part], center[part], width[part])
            assert share[0, 0] == evidence[stream, step]
        assert all(np.array_equal(states[name][0], whole[name][stream]) for name in detector.state_shapes)
    assert {name: (value.shape[1:], value.dtype) for name, value in whole.items()} == detector.state_shapes


def test_blocks_without_values_and_forecasts_without_width_are_left_out() -> None:
    values = np.random.default_rng(5).normal(size=(1, 1000)).astype(np.float32)
    detector = DriftDetector(RATE, BLOCK, 1, 1)
    center = np.zeros((1, 1000, 1, 1), np.float32)
    missing, _ = detector.advance({}, np.full((1, 1000, 1, 1), np.nan, np.float32), center, center + 1)
    flat, _ = detector.advance({}, values[..., None, None], center, center)
    for states in (missing, flat):
        assert states["drift.counts"].tolist() == [[0, 0, 0, 0]]
