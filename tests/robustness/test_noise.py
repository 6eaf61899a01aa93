"""Noise: how much of it there is, what it leaves alone, and its standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from stablernn.robustness.attacks import KINDS, Array, NoiseInput, jitter, noise_curve, salt_and_pepper, white


def values(samples: int = 200, steps: int = 40) -> NoiseInput:
    random = np.random.default_rng(0)
    x = random.normal(3, 2, (samples, steps, 2)).astype(np.float32)
    x[0, 3:6, 1] = np.nan
    lengths = np.full(samples, steps)
    lengths[1] = 7
    return NoiseInput(x, lengths, np.array([2.0, 0.5]), np.array([-9.0, -8.0]), np.array([9.0, 8.0]))


def random() -> np.random.Generator:
    return np.random.default_rng(1)


def test_white_noise_is_in_units_of_the_scale() -> None:
    given = values()
    noise = white(given, 0.3, random()) - given.x
    assert np.nanstd(noise, axis=(0, 1)) == pytest.approx([0.6, 0.15], rel=0.02)
    assert np.array_equal(np.isnan(noise), np.isnan(given.x))


def test_salt_and_pepper_hit_with_their_probability() -> None:
    given = values()
    noisy = salt_and_pepper(given, 0.2, random())
    hit = (noisy != given.x) & ~np.isnan(given.x)
    assert hit.mean() == pytest.approx(0.2, abs=0.01)
    for feature in range(2):
        assert set(noisy[..., feature][hit[..., feature]]) == {given.low[feature], given.high[feature]}
    assert np.array_equal(np.isnan(noisy), np.isnan(given.x))


def test_jitter_reads_a_straight_line_at_moved_times_and_stays_inside() -> None:
    steps = 60
    ramp = np.broadcast_to(np.arange(steps, dtype=np.float32)[None, :, None], (300, steps, 1)).copy()
    given = NoiseInput(ramp, np.full(300, steps), np.ones(1), np.zeros(1), np.ones(1))
    moved = jitter(given, 0.5, random()) - ramp
    assert moved[:, 5:-5].std() == pytest.approx(0.5, rel=0.03)
    assert np.array_equal(jitter(given, 0.0, random()), ramp)
    read = jitter(given, 10.0, random())
    assert read.min() == 0
    assert read.max() == steps - 1


def test_jitter_reads_nothing_from_the_padding_and_does_not_widen_gaps() -> None:
    given = values()
    given.x[1, 7:] = 1e6
    moved = jitter(given, 1.0, random())
    assert np.nanmax(moved[1, :7]) < 100
    share = [np.isnan(jitter(given, 0.3, np.random.default_rng(seed)))[0].mean() for seed in range(200)]
    assert np.mean(share) == pytest.approx(3 / 80, rel=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_a_curve_begins_at_the_clean_accuracy_and_leaves_the_padding(kind: str) -> None:
    given = values()
    given.x[1, 7:] = 17.0
    seen: list[Array] = []

    def predict(x: Array) -> Array:
        seen.append(x)
        return np.nan_to_num(x[:, :7, 0]).mean(axis=1) > 3

    truth = predict(given.x)
    curve = noise_curve(predict, given, truth, kind)
    levels = KINDS[kind][1]
    assert curve["levels"] == [0.0, *levels]
    assert curve["accuracy"][0] == 1
    assert curve["standard_error"][0] == 0
    assert curve["accuracy"][-1] < 1
    assert len(seen) == 2 + 5 * len(levels)
    assert all((x[1, 7:] == 17.0).all() for x in seen)
    assert curve == noise_curve(predict, given, truth, kind)


def test_mean_and_standard_error_are_those_of_the_draws() -> None:
    given = values(50)
    scores: list[float] = []

    def predict(x: Array) -> Array:
        found = np.nan_to_num(x[..., 0]).mean(axis=1) > 3
        scores.append(float((found == truth).mean()))
        return found

    truth = np.zeros(50)
    curve = noise_curve(predict, given, truth, "white", draws=3)
    assert curve["accuracy"][1] == pytest.approx(np.mean(scores[1:4]))
    assert curve["standard_error"][1] == pytest.approx(np.std(scores[1:4], ddof=1) / math.sqrt(3))
