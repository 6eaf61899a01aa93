"""The differential equation ``h' = A h + f(W h + U x + b)`` behind residual steps, slopes of ``f`` within 0 to 1.

Theorem 1 is of Erichson and others, "Lipschitz recurrent neural networks" (ICLR 2021); the rates and the largest step
are ours, docs/stability.md derives them. Nothing that holds of the equation alone holds of a step of any length: a step
of length 0.5 along ``h' = -5 h`` multiplies the state by -1.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import optimize

from stablernn.bounds.linalg import UNIT, Matrix, log_norm_above, norm_above, slack, smallest_below
from stablernn.bounds.lure import Sector, sector_rate
from stablernn.bounds.step_bound import FLOAT32, Hypothesis, StepBound


def theorem_1(linear: Matrix, recurrent: Matrix) -> tuple[Hypothesis, ...]:
    """Return the conditions of theorem 1: the first two together with (a) or with all three lines of (b).

    The paper's (b) has no condition on ``W - W^T`` and is false without it; docs/stability.md has a counterexample. It
    is true of a symmetric ``W``: then ``-W`` is positive definite, and ``e^T (-W) e`` decreases along the difference
    ``e`` of any two solutions.

    Args:
        linear: A, ``(n, n)``.
        recurrent: W, ``(n, n)``.
    """
    growth, pull = log_norm_above(linear), norm_above(recurrent)
    product = linear.T @ recurrent
    return (
        _condition("theorem 1: largest eigenvalue of sym(A)", growth),
        _condition("theorem 1: -(smallest singular value of W)", -smallest_below(recurrent)),
        _condition("theorem 1 (a): mu2(A) + norm(W)", growth + pull),
        _condition("theorem 1 (b): largest eigenvalue of sym(W)", log_norm_above(recurrent)),
        _condition(
            "theorem 1 (b): -(smallest eigenvalue of sym(A^T W))", log_norm_above(-product) + slack(linear, recurrent)
        ),
        # The difference of two equal numbers is exactly 0, so that no rounding is allowed for.
        _condition(
            "theorem 1 (b), not in the paper: largest entry of abs(W - W^T)",
            float(np.abs(recurrent - recurrent.T).max()),
            strict=False,
        ),
    )


def _condition(name: str, value: float, *, strict: bool = True) -> Hypothesis:
    return Hypothesis(name, value, 0.0, strict=strict, of="differential equation")


def theorem_1_holds(conditions: tuple[Hypothesis, ...]) -> bool:
    """Return whether the equilibrium of the differential equation is globally exponentially stable by theorem 1.

    False does not mean that it is unstable, and True says nothing about the step of a cell.

    Args:
        conditions: As :func:`theorem_1` returns them.
    """
    negative, regular, a, *b = (condition.holds for condition in conditions)
    return negative and regular and (a or all(b))


def with_continuous(bound: StepBound, linear: Matrix, recurrent: Matrix) -> StepBound:
    """Return a step's bound with conditions and figures of its differential equation, which leave its rate alone."""
    conditions = theorem_1(linear, recurrent)
    figures = {
        "mu2_A": log_norm_above(linear),
        "norm_A": norm_above(linear),
        "norm_W": norm_above(recurrent),
        "continuous_rate": continuous_rate(linear, recurrent),
    }
    return replace(bound, conditions=conditions, figures=figures)


def continuous_rate(linear: Matrix, recurrent: Matrix) -> float:
    """A rate ``c``: two solutions under one input are ``exp(-c t)`` times as far apart after ``t``; below 0 they grow.

    The largest over ``l`` of ``-mu2(A + (I + l W^T)(I + l W) / (4 l))``; never below ``-mu2(A) - norm(W)``.
    """
    triangle = -log_norm_above(linear) - norm_above(recurrent)
    unit = np.eye(len(linear))
    return max(triangle, -_slope(linear, unit, recurrent, 0.0, _multiplier(linear, unit, recurrent)) / 2)


def largest_euler_step(step: Sector, bound: StepBound) -> float:
    """The longest Euler step up to which no step is proved to drive states apart; 0 where none is.

    In the 2-norm, in the norm of the given bound, or as a largest coordinate, whichever carries furthest. Below it all
    steps are as good: a shorter one is a mean of it and of the identity.

    Args:
        step: An Euler step, with neither ``D`` nor ``B``.
        bound: What is proved of it.

    Returns:
        In units of the given step.
    """
    linear, given = step.F - np.eye(len(step.F)), step.G
    found = [_longest(linear, given, step.V)]
    if bound.metric is not None:
        back = np.linalg.inv(bound.metric)
        found.append(_longest(bound.metric @ linear @ back, bound.metric @ given, step.V @ back))
    for weights in (np.ones(len(linear)), bound.weights):
        if weights is not None:
            found.append(_longest_by_rows(linear, given @ step.V, weights))
    return max(found)


def largest_step(sector: Callable[[float], Sector], regular: float) -> float:
    """A step that is proved not to drive states apart in the 2-norm, where a twentieth more is not proved.

    For rules that are no Euler steps, of which a shorter one need not be as good. 0 where none is found down to a
    thousandth of the regular one.

    Args:
        sector: Gives the step of a length.
        regular: The length to begin from.
    """

    def is_proved(length: float) -> bool:
        return sector_rate(sector(length)) <= 1

    low = regular
    while not is_proved(low):
        low /= 2
        if low < 1e-3 * regular:
            return 0.0
    while low >= regular and low < 1e3 and is_proved(2 * low):
        low *= 2
    high = 2 * low
    while high > 1.05 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if is_proved(middle) else (low, middle)
    return low


def _longest(linear: Matrix, given: Matrix, recurrent: Matrix, most: float = 1e4) -> float:
    """A length of the step ``h + s (linear h + given f(recurrent h))`` up to which one multiplier proves rates up to 1.

    Within a hundredth of the longest.
    """
    multiplier = _multiplier(linear, given, recurrent)

    def is_proved(length: float) -> bool:
        # A rate as far beyond 1 as a certificate's tolerance lets a matrix be that float32 has rounded.
        allowed = 2 * len(linear) * FLOAT32 / max(length, 1.0)
        return _slope(linear, given, recurrent, length, multiplier) <= allowed

    low, high = 0.0, min(most, 2 * multiplier / max(norm_above(given) ** 2, UNIT))
    if not is_proved(high * 1e-6):
        return 0.0
    while high > 1.01 * low and high > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if is_proved(middle) else (low, middle)
    return low


def _longest_by_rows(linear: Matrix, moved: Matrix, weights: Matrix, most: float = 1e4) -> float:
    """The same for the largest coordinate, each divided by a weight, where every nonlinearity has its own slope."""
    longest = most
    for matrix in (linear, linear + moved):
        diagonal = np.diagonal(matrix)
        around = (np.abs(matrix) @ weights) / weights - np.abs(diagonal)
        # abs(1 + s d) + s r <= 1 for a diagonal d below -r, up to s = 2 / (r - d).
        flat = (diagonal == 0) & (around == 0)
        if not ((-diagonal >= around) | flat).all():
            return 0.0
        if not flat.all():
            longest = min(longest, float((2 / (around - diagonal)[~flat]).min()) * (1 - 64 * len(weights) * UNIT))
    return longest


def _multiplier(linear: Matrix, given: Matrix, recurrent: Matrix) -> float:
    """That of the smallest slope of a step of no length."""

    def slope(exponent: float) -> float:
        return _slope(linear, given, recurrent, 0.0, math.exp(exponent))

    centre = math.log(max(norm_above(given), 1e-12) / max(norm_above(recurrent), 1e-12))
    best: Any = optimize.minimize_scalar(
        slope, bounds=(centre - 6, centre + 6), method="bounded", options={"xatol": 0.01}
    )
    return math.exp(float(best.x))


def _slope(linear: Matrix, given: Matrix, recurrent: Matrix, step: float, multiplier: float) -> float:
    """``(r^2 - 1) / step`` of an Euler step, its limit for a step of 0: what must not be positive."""
    corner = 2 * multiplier * np.eye(given.shape[1]) - step * given.T @ given
    side = given + step * linear.T @ given + multiplier * recurrent.T
    values = np.diagonal(corner)
    if np.count_nonzero(corner) > len(values):
        values, vectors = np.linalg.eigh(corner)
        side = side @ vectors
    lowest = float(values.min()) - slack(corner)
    if lowest <= 0:
        return math.inf
    side = side / np.sqrt(values - (values.min() - lowest))
    whole = linear + linear.T + step * linear.T @ linear + side @ side.T
    return float(np.linalg.eigvalsh((whole + whole.T) / 2)[-1]) + slack(whole)
