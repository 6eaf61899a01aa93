"""The differential equation ``h' = A h + f(W h + U x + b)`` behind residual steps, slopes of ``f`` within 0 to 1.

Theorem 1 is of Erichson and others, "Lipschitz recurrent neural networks" (ICLR 2021); the rates and the largest step
are ours, docs/background/stability.md derives them. Nothing that holds of the equation alone holds of a step of any
length: a step of length 0.5 along ``h' = -5 h`` multiplies the state by -1.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from stablernn.bounds.intervals import FLOAT32_EPSILON
from stablernn.bounds.linalg import (
    EPSILON,
    Matrix,
    log_norm_upper_bound,
    norm_upper_bound,
    rounding_error_bound,
    smallest_singular_value_lower_bound,
)
from stablernn.bounds.lure import LureSystem, lure_rate
from stablernn.bounds.step_bound import Hypothesis, StepBound

_MAX_LENGTH = 1e4
"""The longest Euler step that is looked for, in units of the given one."""


def theorem_1_conditions(linear: Matrix, recurrent: Matrix) -> tuple[Hypothesis, ...]:
    """Return the conditions of theorem 1: the first two together with (a) or with all three lines of (b).

    The paper's (b) has no condition on ``W - W^T`` and is false without it; docs/background/stability.md has a
    counterexample. It is true of a symmetric ``W``: then ``-W`` is positive definite, and ``e^T (-W) e`` decreases
    along the difference ``e`` of any two solutions.

    Args:
        linear: A, ``(n, n)``.
        recurrent: W, ``(n, n)``.
    """
    linear_growth, recurrent_norm = log_norm_upper_bound(linear), norm_upper_bound(recurrent)
    product = linear.T @ recurrent
    product_growth = log_norm_upper_bound(-product) + rounding_error_bound(linear, recurrent)
    return (
        _condition("theorem 1: largest eigenvalue of sym(A)", linear_growth),
        _condition("theorem 1: -(smallest singular value of W)", -smallest_singular_value_lower_bound(recurrent)),
        _condition("theorem 1 (a): mu2(A) + norm(W)", linear_growth + recurrent_norm),
        _condition("theorem 1 (b): largest eigenvalue of sym(W)", log_norm_upper_bound(recurrent)),
        _condition("theorem 1 (b): -(smallest eigenvalue of sym(A^T W))", product_growth),
        # The difference of two equal numbers is exactly 0, so that no rounding is allowed for.
        _condition(
            "theorem 1 (b), not in the paper: largest entry of abs(W - W^T)",
            float(np.abs(recurrent - recurrent.T).max()),
            strict=False,
        ),
    )


def _condition(name: str, value: float, *, strict: bool = True) -> Hypothesis:
    return Hypothesis(name, value, 0.0, strict=strict, subject="differential equation")


def theorem_1_holds(conditions: tuple[Hypothesis, ...]) -> bool:
    """Return whether the equilibrium of the differential equation is globally exponentially stable by theorem 1.

    False does not mean that it is unstable, and True says nothing about the step of a cell.

    Args:
        conditions: As :func:`theorem_1_conditions` returns them.
    """
    negative, regular, a, *b = (condition.holds for condition in conditions)
    return negative and regular and (a or all(b))


def with_continuous(bound: StepBound, linear: Matrix, recurrent: Matrix) -> StepBound:
    """Return a step's bound with conditions and figures of its differential equation, which leave its rate alone."""
    conditions = theorem_1_conditions(linear, recurrent)
    figures = {
        "mu2_A": log_norm_upper_bound(linear),
        "norm_A": norm_upper_bound(linear),
        "norm_W": norm_upper_bound(recurrent),
        "continuous_rate": continuous_rate(linear, recurrent),
    }
    return replace(bound, conditions=conditions, figures=figures)


def continuous_rate(linear: Matrix, recurrent: Matrix) -> float:
    """Return a rate ``c``: the distance of two solutions under one input shrinks at least as ``exp(-c t)``.

    Below 0 they may move apart. The largest over ``l`` of ``-mu2(A + (I + l W^T)(I + l W) / (4 l))``; never below
    ``-mu2(A) - norm(W)``.
    """
    triangle = -log_norm_upper_bound(linear) - norm_upper_bound(recurrent)
    unit = np.eye(len(linear))
    return max(triangle, -_slope(linear, unit, recurrent, 0.0, _equal_multipliers(linear, unit, recurrent)) / 2)


def largest_euler_step(step: LureSystem, bound: StepBound) -> float:
    """Return the longest Euler step up to which all steps are proved to be non-expansive; 0 if none is.

    In the 2-norm, in the norm of the given bound, or in the infinity norm, whichever allows the longest. Below it all
    steps are as good: a shorter one is a convex combination of it and the identity.

    Args:
        step: An Euler step, with neither ``D`` nor ``B``.
        bound: What is proved of it.

    Returns:
        In units of the given step.
    """
    linear, neurons = step.F - np.eye(len(step.F)), step.G
    lengths = [_longest_step(linear, neurons, step.V)]
    for norm in (bound, *bound.other_norms):
        metric = np.eye(len(linear)) if norm.metric is None else norm.metric
        inverse = np.linalg.inv(metric)
        system = metric @ linear @ inverse, metric @ neurons, step.V @ inverse
        if norm.metric is not None:
            lengths.append(_longest_step(*system))
        if norm.multipliers is not None:
            lengths.append(_longest_step(*system, norm.multipliers))
    for weights in (np.ones(len(linear)), bound.weights):
        if weights is not None:
            lengths.append(_longest_step_by_rows(linear, neurons @ step.V, weights))
    return max(lengths)


def largest_step(step_of_length: Callable[[float], LureSystem], regular: float) -> float:
    """Return a step that is proved to be non-expansive in the 2-norm, where a twentieth more is not proved.

    For rules that are no Euler steps, of which a shorter one need not be as good. 0 if none is found down to a
    thousandth of the regular one.

    Args:
        step_of_length: Returns the step of a length.
        regular: The length to begin from.
    """

    def is_proved(length: float) -> bool:
        return lure_rate(step_of_length(length)) <= 1

    low = regular
    while not is_proved(low):
        low /= 2
        if low < 1e-3 * regular:
            return 0.0
    # Doubled only if the regular step itself was proved: one below it has an unproved double already.
    while low >= regular and low < 1e3 and is_proved(2 * low):
        low *= 2
    high = 2 * low
    while high > 1.05 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if is_proved(middle) else (low, middle)
    return low


def _longest_step(
    linear: Matrix,
    neurons: Matrix,
    recurrent: Matrix,
    multipliers: Matrix | None = None,
) -> float:
    """Return a length up to which the same multipliers prove rates up to 1, within a hundredth of the longest.

    Of the step ``h + s (linear h + neurons f(recurrent h))`` of length ``s``. The multipliers of length 1 are given, or
    they are equal and the best for no length.
    """
    if multipliers is None:
        multipliers = _equal_multipliers(linear, neurons, recurrent)

    def is_proved(length: float) -> bool:
        # A rate as far beyond 1 as a certificate's tolerance lets a matrix be that float32 has rounded.
        tolerance = 2 * len(linear) * FLOAT32_EPSILON / max(length, 1.0)
        return _slope(linear, neurons, recurrent, length, multipliers) <= tolerance

    # From 2 max(multipliers) / norm(neurons)^2 on, the corner in _slope is not positive.
    longest = 2 * float(multipliers.max()) / max(norm_upper_bound(neurons) ** 2, EPSILON)
    low, high = 0.0, min(_MAX_LENGTH, longest)
    if not is_proved(high * 1e-6):
        return 0.0
    while high > 1.01 * low and high > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if is_proved(middle) else (low, middle)
    return low


def _longest_step_by_rows(linear: Matrix, nonlinear: Matrix, weights: Matrix) -> float:
    """Return :func:`_longest_step` in the infinity norm, each coordinate divided by a weight.

    Every nonlinearity has a slope of its own: rows of the Jacobian lie between those of ``linear`` and of
    ``linear + nonlinear``.
    """
    longest = _MAX_LENGTH
    for matrix in (linear, linear + nonlinear):
        diagonal = np.diagonal(matrix)
        radii = (np.abs(matrix) @ weights) / weights - np.abs(diagonal)
        # abs(1 + s d) + s r <= 1 for a diagonal d below -r, up to s = 2 / (r - d).
        is_zero_row = (diagonal == 0) & (radii == 0)
        if not ((-diagonal >= radii) | is_zero_row).all():
            return 0.0
        if not is_zero_row.all():
            safe = 1 - 64 * len(weights) * EPSILON
            longest = min(longest, float((2 / (radii - diagonal)[~is_zero_row]).min()) * safe)
    return longest


def _equal_multipliers(linear: Matrix, neurons: Matrix, recurrent: Matrix) -> Matrix:
    """Return the multipliers, all the same, of the smallest slope of a step of no length."""
    # Imported here, since it takes a fifth of a second, and most commands prove nothing.
    from scipy import optimize

    def slope(exponent: float) -> float:
        return _slope(linear, neurons, recurrent, 0.0, np.full(len(recurrent), math.exp(exponent)))

    # The search is on a logarithmic scale around the ratio of the norms, which balances both factors of the side.
    center = math.log(max(norm_upper_bound(neurons), 1e-12) / max(norm_upper_bound(recurrent), 1e-12))
    best: Any = optimize.minimize_scalar(
        slope, bounds=(center - 6, center + 6), method="bounded", options={"xatol": 0.01}
    )
    return np.full(len(recurrent), math.exp(float(best.x)))


def _slope(linear: Matrix, neurons: Matrix, recurrent: Matrix, step: float, multipliers: Matrix) -> float:
    """Return ``(r^2 - 1) / step`` of an Euler step, its limit for a step of 0: it must not be positive."""
    corner = 2 * np.diag(multipliers) - step * neurons.T @ neurons
    side = neurons + step * linear.T @ neurons + recurrent.T * multipliers
    values = np.diagonal(corner)
    # A diagonal corner holds its eigenvalues already.
    if np.count_nonzero(corner) > len(values):
        values, vectors = np.linalg.eigh(corner)
        side = side @ vectors
    lowest = float(values.min()) - rounding_error_bound(corner)
    if lowest <= 0:
        return math.inf
    # Every eigenvalue is lowered by its error, with which the Schur complement only grows.
    side = side / np.sqrt(values - (values.min() - lowest))
    form = linear + linear.T + step * linear.T @ linear + side @ side.T
    return float(np.linalg.eigvalsh((form + form.T) / 2)[-1]) + rounding_error_bound(form)
