from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stablernn.training.calibration import Conformal, conformal_offsets, scores_of

LEVELS = (0.1, 0.5, 0.9)


def offsets_of(truth: np.ndarray, quantiles: np.ndarray, scale: np.ndarray, levels: tuple[float, ...]) -> Conformal:
    return conformal_offsets([scores_of(truth, quantiles, scale, np.zeros(truth.shape), levels, len(truth))])


def calibrated(errors: np.ndarray, levels: tuple[float, ...] = LEVELS, half: float = 1.0, scale: float = 1.0) -> Any:
    """Truths (n, horizon, targets) around a forecast of 0 with quantiles from -half to half."""
    truth = errors if errors.ndim == 3 else errors[:, None, None]
    around = half * np.linspace(-1, 1, len(levels))
    quantiles = np.broadcast_to(around, (*truth.shape, len(levels)))
    return offsets_of(truth, quantiles, np.full((len(truth), 1, truth.shape[2]), scale), levels)


@pytest.mark.parametrize("n", [4, 9, 10, 39, 100])
def test_the_offset_is_the_finite_sample_quantile_of_the_scores(n: int) -> None:
    errors = np.random.default_rng(n).normal(size=n) * 3
    scores = sorted(abs(error) - 1 for error in errors)
    # The ceil((n + 1) 0.8)-th smallest: the 4th of 4, the 8th of 9, the 9th of 10, the 32nd of 39, the 81st of 100.
    place = {4: 4, 9: 8, 10: 9, 39: 32, 100: 81}[n]
    got = calibrated(errors)
    assert got.offsets.shape == (1, 1, 3)
    assert got.offsets.dtype == np.float32
    np.testing.assert_allclose(got.offsets[0, 0], [-scores[place - 1], 0, scores[place - 1]], rtol=1e-6)
    assert got.report["short"] == 0


def test_the_greater_side_counts() -> None:
    truth = np.array([-5.0, 4.0, 0.0, 2.0])[:, None, None]
    quantiles = np.broadcast_to([-1.0, 0.0, 3.0], (4, 1, 1, 3))
    # Scores: 4, 1, -1, -1; the fourth of four is the largest.
    got = offsets_of(truth, quantiles, np.ones((4, 1, 1)), LEVELS)
    np.testing.assert_array_equal(got.offsets[0, 0], [-4, 0, 4])
    assert got.report["coverage"] == {"0.8": {"before": 0.5, "after": 1.0}}


def test_each_sample_has_its_own_unit() -> None:
    errors = np.random.default_rng(0).normal(size=60)
    units = np.random.default_rng(1).uniform(0.1, 50, 60)
    quantiles = np.broadcast_to([-1.0, 0.0, 1.0], (60, 1, 1, 3)) * units[:, None, None, None]
    truth = (errors * units)[:, None, None]
    got = offsets_of(truth, quantiles, units[:, None, None], LEVELS)
    np.testing.assert_allclose(got.offsets, calibrated(errors).offsets, rtol=1e-5)


def test_steps_and_targets_are_calibrated_apart() -> None:
    errors = np.random.default_rng(0).normal(size=(40, 3, 2)) * np.arange(1, 7).reshape(3, 2)
    got = calibrated(errors)
    for step in range(3):
        for target in range(2):
            alone = calibrated(errors[:, step, target])
            np.testing.assert_array_equal(got.offsets[step, target], alone.offsets[0, 0])


def test_each_symmetric_pair_is_moved_and_the_rest_is_not() -> None:
    levels = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
    got = calibrated(np.random.default_rng(0).normal(size=200) * 5, levels)
    moved = got.offsets[0, 0]
    assert moved[3] == 0
    assert moved[7] == 0
    np.testing.assert_array_equal(moved[:3], -moved[[6, 5, 4]])
    assert moved[6] > moved[5] > moved[4] > 0
    assert got.report["levels_left"] == [0.99]
    assert list(got.report["coverage"]) == ["0.9", "0.8", "0.5"]


def test_missing_truths_are_left_out_by_step() -> None:
    errors = np.random.default_rng(0).normal(size=(30, 2, 1)) * 4
    errors[:10, 1] = np.nan
    got = calibrated(errors)
    np.testing.assert_array_equal(got.offsets[1, 0], calibrated(errors[10:, 1, 0]).offsets[0, 0])
    errors[:, 1] = np.nan
    got = calibrated(errors)
    np.testing.assert_array_equal(got.offsets[1, 0], [0, 0, 0])
    assert got.report["short"] == 1


def test_few_origins_share_the_scores_of_neighboring_steps() -> None:
    """Six origins of seven steps: five steps around each are pooled, and their 30 scores count for 6 sqrt(5)."""
    errors = np.random.default_rng(0).normal(size=(6, 7, 1)) * 4
    got = calibrated(errors).offsets[:, 0, 2]
    for step, first in enumerate((0, 0, 0, 1, 2, 2, 2)):
        scores = np.sort(np.abs(errors[:, first : first + 5]).ravel() - 1)
        # ceil(30 * 0.8 * (1 + 1 / 13.4)) is 26.
        assert got[step] == pytest.approx(scores[25], rel=1e-6)


def test_a_lower_quantile_is_zero_where_most_truths_are() -> None:
    # Of 100 truths 60 are zero, of which quantiles hold none; a shift of both ends would leave 20 of them out.
    truth = np.concatenate([np.zeros(60), np.linspace(1, 2, 40)])[:, None, None]
    lower = np.linspace(0.01, 0.6, 100)[:, None, None]
    quantiles = np.stack([lower, lower + 0.5, lower + 1], axis=-1)
    scores = scores_of(truth, quantiles, np.ones((100, 1, 1)), truth == 0, LEVELS, 100)
    got = conformal_offsets([scores])
    cut = np.maximum(quantiles + got.offsets, 0)
    assert (cut[:60, ..., 0] == 0).all()
    # The upper one holds ceil(101 * .8) = 81 of 100.
    assert int((truth <= cut[..., 2] + 1e-6).sum()) == 81


@pytest.mark.slow
@pytest.mark.parametrize("half", [0.1, 1.0, 20.0], ids=["too narrow", "narrow", "too wide"])
def test_new_truths_are_held_as_often_as_promised(half: float) -> None:
    """Over many calibration sets of exchangeable samples, coverage lies from 1 - a to 1 - a + 1 / (n + 1)."""
    random = np.random.default_rng(7)
    n, sets, fresh = 19, 4000, 20
    held = []
    for _ in range(sets):
        errors = random.standard_t(3, size=n + fresh)
        offset = calibrated(errors[:n], half=half).offsets[0, 0, 2]
        held.append(np.mean(np.abs(errors[n:]) <= half + offset))
    # ceil(20 * 0.8) / 20 is 0.8 to the digit; the error of the estimate is below 0.002.
    assert np.mean(held) == pytest.approx(0.8, abs=0.007)
