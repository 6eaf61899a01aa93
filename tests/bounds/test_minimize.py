"""The search of a minimum within bounds, against SciPy's."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from stablernn.bounds.minimize import minimize_bounded

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "parabola": lambda x: (x - 0.3) ** 2,
    "at the lower bound": lambda x: x,
    "at the upper bound": lambda x: -x,
    "constant": lambda x: 1.0,
    "two minima": lambda x: math.cos(3 * x) + 0.1 * x,
    "kink": lambda x: abs(x - 1.7),
    "steps": lambda x: float(round(x)),
    "wall": lambda x: (x - 1) ** 2 if x > 0.2 else 1e30 * (10 - x),
    "infinite below": lambda x: math.exp(x) if x > 1 else math.inf,
    "flat": lambda x: (x - 0.5) ** 8,
}


@pytest.mark.parametrize("tolerance", [1e-8, 1e-4, 0.02])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_the_minimum_that_scipy_finds_to_the_last_bit(name: str, tolerance: float) -> None:
    function = FUNCTIONS[name]
    # SciPy warns of differences of infinities.
    with np.errstate(invalid="ignore"):
        expected = minimize_scalar(function, bounds=(-2.5, 4.0), method="bounded", options={"xatol": tolerance})
    assert minimize_bounded(function, -2.5, 4.0, tolerance=tolerance) == (expected.x, expected.fun)


def test_random_polynomials_have_the_minima_that_scipy_finds() -> None:
    for seed in range(200):
        coefficients = np.random.default_rng(seed).normal(size=6)

        def function(x: float, coefficients: np.ndarray = coefficients) -> float:
            return float(np.polyval(coefficients, x))

        expected = minimize_scalar(function, bounds=(-1.0, 2.0), method="bounded")
        assert minimize_bounded(function, -1.0, 2.0) == (expected.x, expected.fun)


def test_a_minimum_lies_within_the_tolerance() -> None:
    assert minimize_bounded(lambda x: (x - 0.3) ** 2, -2.0, 4.0, tolerance=1e-6).x == pytest.approx(0.3, abs=1e-6)
