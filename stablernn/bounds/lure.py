"""Bounds of Lur'e systems: linear steps with nonlinearities of slopes within 0 to 1, as tanh, ReLU and shrinkage are.

A quadratic form by which the step contracts is searched, and a matrix inequality is checked (docs/stability.md, "How a
step is bounded"). Everything is computed in float64 on the matrices that the step uses, and rounded to the safe side.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stablernn.bounds.linalg import (
    EPSILON,
    Matrix,
    infinity_norm_upper_bound,
    norm_upper_bound,
    round_to_float32,
    rounding_error_bound,
    row_norm_upper_bound,
    smallest_singular_value_lower_bound,
)
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound


@dataclass(frozen=True)
class LureSystem:
    """A step ``h <- F h + G w + B x + c``, ``w = f(V h + D w + U x + d)``, with the slopes of ``f`` within 0 to 1.

    ``f`` acts coordinate by coordinate; or on groups of coordinates, where its Jacobian is symmetric with eigenvalues
    within 0 to 1, and no ``D`` is given.

    Attributes:
        F: ``(n, n)``.
        G: ``(n, q)``.
        V: ``(q, n)``.
        U: ``(q, m)``.
        D: ``(q, q)``, strictly lower triangular, so that ``w`` is computed in order; None for zeros.
        B: ``(n, m)``; None for zeros.
        c: ``(n,)``; None for zeros.
        f_max: The largest modulus of ``f``, infinity if it is unbounded.
    """

    F: Matrix
    G: Matrix
    V: Matrix
    U: Matrix
    D: Matrix | None = None
    B: Matrix | None = None
    c: Matrix | None = None
    f_max: float = 1.0


def lure_bound(
    step: LureSystem,
    *,
    states: tuple[str, ...] = ("hidden",),
    output: int | None = None,
    hypotheses: tuple[Hypothesis, ...] = (),
    metrics: Sequence[Matrix] = (),
) -> StepBound:
    """Return the best rate that a few quadratic forms prove, its input gain, and an invariant ball if there is one.

    For differences of two states, ``w^T L (v - w) >= 0`` for ``L = l I``, ``l`` not negative. So a rate ``r`` in the
    norm ``|T e|`` is proved where, with ``P = T^T T``,

        [ r^2 P - F^T P F ,  -F^T P G - V^T L ;  .  ,  2 L - L D - D^T L - G^T P G ]  is positive semidefinite.

    Args:
        step: The step.
        states: The state tensors that ``h`` is made of, one after the other.
        output: How many of the first coordinates are the output; None for all.
        hypotheses: Further conditions of the proof; nothing is proved if one fails.
        metrics: Further matrices ``T`` to try, of any scale.
    """
    if not all(hypothesis.holds for hypothesis in hypotheses):
        return StepBound(hypotheses=hypotheses)
    size = len(step.F)
    rate, metric = _best_multiplier(step.F, step.G, step.V, step.D, None, None)[0], None
    # The identity is kept if it already reaches what no metric can improve on.
    if rate > _rate_lower_bound(step) * (1 + 1e-6):
        for candidate in [*_candidate_metrics(step), *(matrix / np.linalg.norm(matrix, 2) for matrix in metrics)]:
            form = round_to_float32(candidate)
            # A singular form is no norm.
            if not smallest_singular_value_lower_bound(form):
                continue
            form_rate, _ = _best_multiplier(step.F, step.G, step.V, step.D, form, form)
            if form_rate * (1 + 1e-6) < rate:
                rate, metric = form_rate, form
    input_part = np.zeros((size, step.U.shape[1])) if step.B is None else step.B
    gain, _ = _best_multiplier(input_part, step.G, step.U, step.D, None, metric)
    output_gain = 1.0
    if metric is not None:
        output_gain = norm_upper_bound(np.linalg.inv(metric)[:output]) * _inverse_error_factor(metric)
    return StepBound(
        covers=states,
        norm="l2" if metric is None else "weighted-l2",
        rate=rate,
        gain=gain,
        output_gain=output_gain,
        metric=metric,
        balls=_balls(step, states, rate, metric),
        hypotheses=hypotheses,
    )


def lure_rate(step: LureSystem, metric: Matrix | None = None) -> float:
    """Return the rate that :func:`lure_bound` proves in one given norm ``|T e|``, the 2-norm for None."""
    return _best_multiplier(step.F, step.G, step.V, step.D, metric, metric)[0]


def largest_state_norm(step: LureSystem, rate: float, metric: Matrix | None = None) -> float:
    """Return at least the 2-norm of every state reachable from the origin; infinity if inputs set no limit.

    Args:
        step: The step.
        rate: The rate that :func:`lure_rate` proves of it.
        metric: The norm of that rate.
    """
    (ball,) = _balls(step, ("",), rate, metric) or (Ball("", "l2", math.inf),)
    return ball.radius * (math.sqrt(len(step.F)) if ball.norm == "linf" else 1.0)


def lure_gain(F: Matrix, G: Matrix, V: Matrix, D: Matrix | None = None, *, metric: Matrix | None = None) -> float:
    """Return at least ``|F e + G w| / |T e|`` for differences ``w`` of neurons, as in :class:`LureSystem`.

    Args:
        F: ``(k, n)``.
        G: ``(k, q)``.
        V: ``(q, n)``.
        D: ``(q, q)``, strictly lower triangular; None for zeros.
        metric: ``T``, ``(n, n)``; None for the identity.
    """
    return _best_multiplier(F, G, V, D, metric, None)[0]


def cholesky_factors(form: Matrix) -> list[Matrix]:
    """Return the ``T`` with ``T^T T`` the symmetric part of a quadratic form; no matrix if that is not positive."""
    try:
        return [np.linalg.cholesky((form + form.T) / 2).T.astype(np.float64)]
    except np.linalg.LinAlgError:
        # Raised for a form that is not positive definite.
        return []


def dominance_bound(step: LureSystem, bound: StepBound) -> StepBound:
    """Return a bound in the infinity norm, if its rate is below the given one and that is above 1; else the given one.

    Each row of the Jacobian, ``F_i + s_i G_ii V_i`` with one slope ``s_i``, is longest at a slope of 0 or of 1. Where a
    step stays the same at slope 0 and the matrix is diagonally dominant, the rate is 1, which no quadratic form shows.

    Args:
        step: With a diagonal ``G``, and neither ``D`` nor ``B``.
        bound: The bound that is proved of it otherwise.
    """
    if bound.norm is None or bound.rate <= 1:
        return bound
    lengths = np.diagonal(step.G)
    steepest = step.F + lengths[:, None] * step.V
    rows = np.concatenate([step.F, steepest])
    size = len(step.F)

    def rate(weights: Matrix) -> float:
        return infinity_norm_upper_bound(rows * weights[None] / np.tile(weights, 2)[:, None])

    weights = min((np.ones(size), round_to_float32(_perron_vector(np.abs(steepest)))), key=rate)
    if rate(weights) * (1 + 1e-6) >= bound.rate:
        return bound
    return replace(
        bound,
        norm="linf",
        rate=rate(weights),
        gain=row_norm_upper_bound(lengths[:, None] * step.U / weights[:, None]),
        output_gain=float(np.linalg.norm(weights)) * (1 + size * EPSILON),
        metric=None,
        weights=None if (weights == 1).all() else weights,
    )


def _rate_lower_bound(step: LureSystem) -> float:
    """Return a rate below which no norm proves one: the largest spectral radius with all slopes at 0, or at 1."""
    inner = step.V if step.D is None else np.linalg.solve(np.eye(len(step.D)) - step.D, step.V)
    jacobians = (step.F, step.F + step.G @ inner)
    return max(float(np.abs(np.linalg.eigvals(jacobian)).max()) for jacobian in jacobians)


def _candidate_metrics(step: LureSystem) -> list[Matrix]:
    """Return matrices ``T`` worth trying: Lyapunov forms of the middle of the sector, and a diagonal one."""
    # Imported here, since it takes a fifth of a second, and most commands prove nothing.
    from scipy import linalg

    middle = step.F + step.G @ (step.V / 2)
    if step.D is not None:
        inner = np.linalg.solve(np.eye(len(step.D)) - step.D / 2, step.V)
        middle = step.F + step.G @ inner / 2
    metrics: list[Matrix] = []
    radius = float(np.abs(np.linalg.eigvals(middle)).max())
    with warnings.catch_warnings():
        # An inaccurate solution is only a worse candidate: `lure_bound` verifies whichever matrix it gets.
        # scipy says so by a LinAlgWarning or, of a nearly singular equation, by a RuntimeWarning.
        warnings.simplefilter("ignore", linalg.LinAlgWarning)
        warnings.simplefilter("ignore", RuntimeWarning)
        for margin in (0.1, 0.5):
            # The Lyapunov equation has a positive solution only for a spectral radius below 1.
            scaled = middle / (radius + margin * max(1 - radius, 0.05))
            try:
                form = linalg.solve_discrete_lyapunov(scaled.T, np.eye(len(middle)))
                factor = np.linalg.cholesky((form + form.T) / 2).T
            except np.linalg.LinAlgError:
                # Rounding has left the equation singular, or its solution not positive.
                continue
            metrics.append(factor / np.linalg.norm(factor, 2))
    if step.D is None:
        # By the Perron vectors: sqrt(left / right) is the diagonal scaling of the smallest norm of a matrix of moduli.
        moduli = np.abs(step.F) + np.abs(step.G) @ np.abs(step.V)
        left, right = _perron_vector(moduli.T), _perron_vector(moduli)
        metrics.append(np.diag(np.sqrt(left / right) / np.sqrt(left / right).max()))
    return metrics


def _perron_vector(entries: Matrix) -> Matrix:
    """Return a positive vector close to the Perron vector of a non-negative matrix, its largest entry 1."""
    largest_row_sum = max(float(np.abs(entries).sum(axis=1).max()), EPSILON)
    # Positive entries everywhere, so that the power iteration has one limit, and that is positive.
    shifted = entries / largest_row_sum + np.full_like(entries, 1e-6 / len(entries))
    vector = np.ones(len(entries))
    for _ in range(200):
        image = shifted @ vector + 1e-3 * vector
        vector = image / image.max()
    return np.maximum(vector, 1e-6)


def _best_multiplier(
    F: Matrix, G: Matrix, V: Matrix, D: Matrix | None, before: Matrix | None, after: Matrix | None
) -> tuple[float, float]:
    """Return the least factor over multipliers ``L = l I``, and that ``l``; infinity if none proves anything.

    Args:
        F: As in :class:`LureSystem`, as ``G``, ``V`` and ``D``; or the matrix of an input or an output in its place.
        G: See ``F``.
        V: See ``F``.
        D: See ``F``.
        before: The metric of differences before the map; None for the identity.
        after: The metric of differences after it; None for the identity.
    """
    # Imported here, as in `_candidate_metrics`.
    from scipy import optimize

    inequality = _MatrixInequality(F, G, V, D, before, after)
    outer = inequality.neuron_part
    smallest = norm_upper_bound(outer) ** 2
    # No multiplier below half of it proves anything, unless neurons read one another.
    floor = 0.5 if D is None else 0.0

    def factor(exponent: float) -> float:
        value = inequality.factor(smallest * (floor + math.exp(exponent)))
        # Too small a multiplier proves nothing; the search is to go on among larger ones.
        return value if math.isfinite(value) else 1e30 * (10 - exponent)

    if not smallest:
        return inequality.factor(1.0), 1.0
    best: Any = optimize.minimize_scalar(factor, bounds=(-7, 9), method="bounded", options={"xatol": 0.02})
    best_factor = float(best.fun) if best.fun < 1e30 else math.inf
    searched = best_factor, smallest * (floor + math.exp(float(best.x)))
    # Where V is a multiple of F^T P G, as of a gradient step, one multiplier cancels them: no search comes as close.
    cross = inequality.state_part.T @ outer
    squares = float((V * V).sum())
    cancelling = -float((cross * V.T).sum()) / max(squares, EPSILON)
    # Where V is next to nothing, the multiplier that makes both its terms alike lies beyond what is searched.
    balancing = float(np.linalg.norm(cross)) / math.sqrt(squares) if squares > 1e-24 * smallest else 1e12 * smallest
    multipliers = [multiplier for multiplier in (cancelling, balancing) if multiplier > smallest * floor]
    return min([searched, *((inequality.factor(multiplier), multiplier) for multiplier in multipliers)])


class _MatrixInequality:
    """The matrix inequality of a step, for which a search tries many multipliers ``l`` of ``L = l I``.

    Whatever does not depend on the multiplier is computed once, above all the singular values of the metrics.

    Args:
        F: As :func:`_best_multiplier` takes it, as all others.
        G: See ``F``.
        V: See ``F``.
        D: See ``F``.
        before: See ``F``.
        after: See ``F``.
    """

    def __init__(
        self, F: Matrix, G: Matrix, V: Matrix, D: Matrix | None, before: Matrix | None, after: Matrix | None
    ) -> None:
        self.state_part, self.neuron_part = (F, G) if after is None else (after @ F, after @ G)
        self._neurons, self._inner = V, D
        self._gram = self.neuron_part.T @ self.neuron_part
        self._cross = self.state_part.T @ self.neuron_part
        self._gram_error = rounding_error_bound(self.neuron_part, self.neuron_part)
        self._cross_error = rounding_error_bound(self.state_part, self.neuron_part)
        self._neurons_error = rounding_error_bound(V)
        # Of the terms of the multiplier.
        self._multiplier_terms = 2 + (0 if D is None else norm_upper_bound(D))
        self._inverse = None if before is None else np.linalg.inv(before)
        self._inverse_norm = 1.0 if before is None else _inverse_norm_upper_bound(before)
        self._inverse_factor = 1.0 if before is None else _inverse_error_factor(before)

    def factor(self, multiplier: float) -> float:
        """Return the least ``r`` for one multiplier, by the Schur complement; infinity if it proves nothing."""
        corner = 2 * multiplier * np.eye(len(self._gram)) - self._gram
        if self._inner is not None:
            corner = corner - multiplier * (self._inner + self._inner.T)
        side = self._cross + multiplier * self._neurons.T
        values, vectors = np.linalg.eigh((corner + corner.T) / 2)
        # The smallest eigenvalue less its error: of the product X^T X, and of the terms of the multiplier.
        error_of_multiplier = 8 * len(corner) * EPSILON * multiplier * self._multiplier_terms
        lowest = float(values[0]) - self._gram_error - error_of_multiplier
        if lowest <= 0:
            return math.inf
        # With every eigenvalue of the corner lowered by what rounding can have done, the complement only grows.
        half = (side @ vectors) / np.sqrt(values - (float(values[0]) - lowest))
        stacked: Matrix = np.concatenate([self.state_part, half.T])
        if self._inverse is not None:
            stacked = stacked @ self._inverse
        side_error = self._cross_error + multiplier * self._neurons_error
        error = rounding_error_bound(stacked) + 2 * side_error / math.sqrt(lowest) * self._inverse_norm
        return float(np.linalg.norm(stacked, 2)) * self._inverse_factor + error


def _inverse_norm_upper_bound(matrix: Matrix) -> float:
    """Return at least the norm of the inverse."""
    return 1 / max(smallest_singular_value_lower_bound(matrix), EPSILON * norm_upper_bound(matrix))


def _inverse_error_factor(matrix: Matrix) -> float:
    """Return the factor by which the norm of a product with the computed inverse can be too small."""
    return 1 + 8 * len(matrix) * EPSILON * norm_upper_bound(matrix) * _inverse_norm_upper_bound(matrix)


def _balls(step: LureSystem, states: tuple[str, ...], rate: float, metric: Matrix | None) -> tuple[Ball, ...]:
    """Return the invariant ball of each state tensor; none if an input enters linearly or ``f`` is unbounded.

    A state grows by at most ``push`` a step beyond what the linear part, or the whole step by its rate, leaves of it:
    its radius is ``push / (1 - rate)``.
    """
    if not math.isfinite(step.f_max) or (step.B is not None and step.B.any()):
        return ()
    scaled_gain = step.G if metric is None else metric @ step.G
    constant = np.zeros(len(step.F)) if step.c is None else step.c
    scaled_constant = constant if metric is None else metric @ constant
    inverse_norm = 1.0 if metric is None else _inverse_norm_upper_bound(metric)
    neurons_norm = math.sqrt(step.G.shape[1])
    push = norm_upper_bound(scaled_gain) * step.f_max * neurons_norm + float(np.linalg.norm(scaled_constant))
    similar: Matrix = step.F if metric is None else metric @ step.F @ np.linalg.inv(metric)
    linear_rate = norm_upper_bound(similar) * (1.0 if metric is None else _inverse_error_factor(metric))
    entry_push = infinity_norm_upper_bound(step.G) * step.f_max + float(np.abs(constant).max(initial=0.0))
    row_sum = infinity_norm_upper_bound(step.F)
    if row_sum < 1:
        return tuple(Ball(state, "linf", entry_push / (1 - row_sum)) for state in states)
    rate_bound = min(linear_rate, rate)
    if rate_bound < 1:
        return tuple(Ball(state, "l2", inverse_norm * push / (1 - rate_bound)) for state in states)
    return ()
