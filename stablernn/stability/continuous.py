"""The differential equation ``h' = A h + f(W h + U x + b)`` behind residual steps, slopes of ``f`` within 0 to 1.

Theorem 1 is of Erichson and others, "Lipschitz recurrent neural networks" (ICLR 2021); the rates and the largest step
are ours, docs/stability.md derives them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize

from stablernn.stability._linear import Matrix, log_norm_above, norm_above, slack, smallest_below
from stablernn.stability.bounds import Hypothesis, StepBound


def theorem_1(linear: Matrix, recurrent: Matrix) -> tuple[Hypothesis, ...]:
    """The conditions of theorem 1: the first two together with (a) or with both lines of (b).

    Args:
        linear: A, ``(n, n)``.
        recurrent: W, ``(n, n)``.
    """
    growth, pull = log_norm_above(linear), norm_above(recurrent)
    product = linear.T @ recurrent
    return (
        Hypothesis("theorem 1: largest eigenvalue of sym(A)", growth, 0.0, strict=True),
        Hypothesis("theorem 1: -(smallest singular value of W)", -smallest_below(recurrent), 0.0, strict=True),
        Hypothesis("theorem 1 (a): mu2(A) + norm(W)", growth + pull, 0.0, strict=True),
        Hypothesis("theorem 1 (b): largest eigenvalue of sym(W)", log_norm_above(recurrent), 0.0, strict=True),
        Hypothesis(
            "theorem 1 (b): -(smallest eigenvalue of sym(A^T W))",
            log_norm_above(-product) + slack(linear, recurrent),
            0.0,
            strict=True,
        ),
    )


def theorem_1_holds(conditions: tuple[Hypothesis, ...]) -> bool:
    """Whether what :func:`theorem_1` gave makes the equilibrium globally exponentially stable."""
    first, second, a, *b = (one.holds for one in conditions)
    return first and second and (a or all(b))


def with_continuous(bound: StepBound, linear: Matrix, recurrent: Matrix) -> StepBound:
    """A step's bound with what holds of its differential equation beside it."""
    conditions = theorem_1(linear, recurrent)
    figures = {
        "mu2_A": log_norm_above(linear),
        "norm_A": norm_above(linear),
        "norm_W": norm_above(recurrent),
        "continuous_rate": continuous_rate(linear, recurrent),
        "largest_euler_step": largest_euler_step(linear, recurrent),
    }
    return replace(bound, local=theorem_1_holds(conditions), conditions=conditions, figures=figures)


def continuous_rate(linear: Matrix, recurrent: Matrix) -> float:
    """A rate ``c``: two solutions under one input are ``exp(-c t)`` times as far apart after ``t``; below 0 they grow.

    The largest over ``l`` of ``-mu2(A + (I + l W^T)(I + l W) / (4 l))``; never below ``-mu2(A) - norm(W)``.
    """
    triangle = -log_norm_above(linear) - norm_above(recurrent)
    return max(triangle, -_slope(linear, recurrent, 0.0, _multiplier(linear, recurrent)) / 2)


def largest_euler_step(linear: Matrix, recurrent: Matrix, most: float = 1e3) -> float:
    """The longest Euler step up to which the step is proved to contract in the 2-norm; 0 where none is."""
    multiplier = _multiplier(linear, recurrent)
    if _slope(linear, recurrent, 0.0, multiplier) >= 0:
        return 0.0
    low, high = 0.0, min(most, 2 * multiplier)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _slope(linear, recurrent, middle, multiplier) < 0 else (low, middle)
    return low


def _multiplier(linear: Matrix, recurrent: Matrix) -> float:
    def slope(exponent: float) -> float:
        return _slope(linear, recurrent, 0.0, math.exp(exponent))

    centre = -math.log(max(norm_above(recurrent), 1e-12))
    best: Any = optimize.minimize_scalar(
        slope, bounds=(centre - 6, centre + 6), method="bounded", options={"xatol": 0.01}
    )
    return math.exp(float(best.x))


def _slope(linear: Matrix, recurrent: Matrix, step: float, multiplier: float) -> float:
    """``(r^2 - 1) / step`` of an Euler step, its limit for a step of 0: what must be negative."""
    if 2 * multiplier <= step:
        return math.inf
    side = np.eye(len(linear)) + step * linear.T + multiplier * recurrent.T
    whole = linear + linear.T + step * linear.T @ linear + side @ side.T / (2 * multiplier - step)
    return float(np.linalg.eigvalsh((whole + whole.T) / 2)[-1]) + slack(whole)
