"""Scores of simulations, correlations of residuals and ARX models, against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from stablernn.training.evaluation.simulation import LAGS, Residuals, fit_arx


def test_scores_are_those_of_the_formulas_for_outputs_of_any_unit() -> None:
    generator = np.random.default_rng(0)
    y = [generator.normal(size=(steps, 2)) * [1e-6, 1e3] for steps in (50, 70)]
    f = [each + generator.normal(size=each.shape) * [1e-7, 1e2] for each in y]
    y[0][:20, 1] = np.nan
    scores = Residuals(y, f, [np.zeros((len(each), 1)) for each in y]).scores(("small", "large"), 5)
    for index, name in enumerate(("small", "large")):
        a, b = (np.concatenate([each[5:, index] for each in part]) for part in (y, f))
        a, b = a[~np.isnan(a)], b[~np.isnan(a)]
        assert scores[f"rmse_{name}"] == pytest.approx(np.sqrt(np.mean((a - b) ** 2)), rel=1e-12)
        fit = 100 * (1 - np.linalg.norm(a - b) / np.linalg.norm(a - a.mean()))
        assert scores[f"fit_{name}"] == pytest.approx(fit, rel=1e-12)
    assert scores["fit"] == pytest.approx((scores["fit_small"] + scores["fit_large"]) / 2)


def test_bands_hold_what_is_white_and_show_what_is_left() -> None:
    generator = np.random.default_rng(1)
    u, noise = generator.normal(size=(2, 4000, 1))
    left = lfilter([0, 0, 0.3], [1], u, axis=0)
    white = Residuals([noise], [np.zeros_like(noise)], [u]).correlations(0, 5)
    assert all(each.share_outside <= 0.08 for each in white)
    _, crossed = Residuals([noise + left], [np.zeros_like(noise)], [u]).correlations(0, 5)
    # The residual follows the input by two samples.
    assert (np.argmax(np.abs(crossed.values)), len(crossed.values)) == (2, LAGS + 1)
    e, x = (noise + left)[5:, 0], u[5:, 0]
    expected = np.mean((e - e.mean())[2:] * (x - u.mean())[:-2]) / (e.std() * x.std())
    assert crossed.values[2] == pytest.approx(expected, rel=0.01)


def test_arx_finds_a_linear_machine_and_starts_at_rest() -> None:
    u = np.random.default_rng(2).normal(size=(600, 1)) + 3
    y = 1e9 * (5 + lfilter([0, 0.5, 0.2], [1, -1.5, 0.7], u[:, 0] - u[0, 0]))
    model = fit_arx([(u, y)])
    assert model is not None
    assert len(model.a) == 2
    np.testing.assert_allclose(model.a, [1.5, -0.7], atol=1e-6)
    np.testing.assert_allclose(model.simulate(u), y, atol=1e-3 * y.std())


def test_an_unstable_fit_is_made_stable() -> None:
    # Outputs that grow are fitted best by a pole outside of the unit circle.
    u = np.random.default_rng(3).normal(size=(300, 1))
    model = fit_arx([(u, lfilter([0, 1], [1, -1.02], u[:, 0]))])
    assert model is not None
    poles = np.roots([1, *-model.a])
    assert np.abs(poles).max() < 1
    assert np.isfinite(model.simulate(np.ones((100_000, 1)))).all()
