"""The matrix inequality by which a factor of a step is proved, and the search for the norm that proves the smallest.

For differences ``e`` of states and ``w`` of neurons of a Lur'e system (:mod:`stablernn.bounds.lure`),
``w^T L (V e + D w - w) >= 0`` for every diagonal matrix ``L`` of multipliers that are not negative and equal within
each group of neurons. So ``|S (F e + G w)| <= r |T e|``, with ``P = S^T S``, where

    [ r^2 T^T T - F^T P F ,  -F^T P G - V^T L                  ]
    [ .                   ,  2 L - L D - D^T L - G^T P G       ]

is positive semidefinite: :class:`MatrixInequality` checks that with a bound on all that rounding can do. Candidates and
search need not be trusted: what they return is verified by it. The largest eigenvalue is smoothed by the logarithm of a
sum of exponentials, ever more closely, and minimized by L-BFGS. The inequality is convex in ``T^T T`` and the
multipliers together, so that one start is enough.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stablernn.bounds.linalg import (
    EPSILON,
    Indices,
    Matrix,
    inverse_error_factor,
    inverse_norm_upper_bound,
    norm_upper_bound,
    rounding_error_bound,
)

_SHARPNESS = (20.0, 80.0, 320.0, 1280.0)
"""Sharpness of the smoothed eigenvalue in each stage; at ``s`` the factor is smooth over a range of about ``1 / s``."""
_MOST_EVALUATIONS = 320
_FEWEST_EVALUATIONS = 40
"""With fewer, nothing worth the time is found."""
_WORK = 1.5e9
"""Of a search, in cubes of the sizes of the matrices: about 2 seconds on one core."""
_BARRIER = 0.01
"""Weight of the barrier that keeps the corner positive, over the sharpness."""
_MULTIPLIER_EVALUATIONS = 80
_LARGEST_CONDITION = 1e4
"""Of a norm, times the root of its size; beyond it, gains in that norm are worth little."""
_HISTORY = 12
"""Steps that L-BFGS remembers."""
_START_FACTORS = (1.05, 1.5, 3.0, 10.0)
"""Multiples of the multipliers to begin from; the first that satisfies the inequality with some room is taken."""

_Evaluation = tuple[float, Matrix, float]
"""The smoothed value, its gradient, and the factor itself."""


@dataclass(frozen=True)
class LureMap:
    """A map ``F e + G w`` of differences, ``w`` those of neurons that read ``V e + D w``.

    Attributes:
        F: As in :class:`stablernn.bounds.lure.LureSystem`, or the matrix of an input or an output in its place.
        G: ``(k, q)``.
        V: ``(q, n)``.
        D: ``(q, q)``, or None for zeros.
        groups: ``(q,)``, the group of each neuron, from 0 on; the neurons of a group have the same multiplier.
    """

    F: Matrix
    G: Matrix
    V: Matrix
    D: Matrix | None
    groups: Indices

    def allows(self, multipliers: Matrix) -> bool:
        """Return whether the inequality of the neurons holds for some multipliers.

        That is so where none is negative and those of a group are the same.
        """
        if multipliers.shape != self.groups.shape or not (np.isfinite(multipliers) & (multipliers >= 0)).all():
            return False
        return bool((multipliers == self.spread(self.of_groups(multipliers))).all())

    def spread(self, of_groups: Matrix) -> Matrix:
        """Return the multiplier of each neuron, given that of each group."""
        multipliers: Matrix = of_groups[self.groups]
        return multipliers

    def of_groups(self, multipliers: Matrix) -> Matrix:
        """Return the multiplier of the first neuron of each group."""
        _, first = np.unique(self.groups, return_index=True)
        return multipliers[first]


class MatrixInequality:
    """The matrix inequality of a map, for which a search tries many multipliers.

    Whatever does not depend on the multipliers is computed once, above all the singular values of the metrics.

    Args:
        lure_map: The map.
        before: The metric of differences before the map; None for the identity.
        after: The metric of differences after it; None for the identity.
    """

    def __init__(self, lure_map: LureMap, before: Matrix | None, after: Matrix | None) -> None:
        F, G, D = lure_map.F, lure_map.G, lure_map.D
        self.state_part, self.neuron_part = (F, G) if after is None else (after @ F, after @ G)
        self._neurons, self._inner = lure_map.V, D
        self._gram = self.neuron_part.T @ self.neuron_part
        self._cross = self.state_part.T @ self.neuron_part
        self._gram_error = rounding_error_bound(self.neuron_part, self.neuron_part)
        self._cross_error = rounding_error_bound(self.state_part, self.neuron_part)
        self._state_error = 0.0
        if after is not None:
            # Of the products with the metric, which can be much smaller than its norm times that of the matrix.
            self._state_error, neuron_error = rounding_error_bound(after, F), rounding_error_bound(after, G)
            neuron_norm, state_norm = (float(np.linalg.norm(part)) for part in (self.neuron_part, self.state_part))
            self._gram_error += neuron_error * (2 * neuron_norm + neuron_error)
            self._cross_error += self._state_error * (neuron_norm + neuron_error) + state_norm * neuron_error
        # Of the terms of the multipliers.
        self._multiplier_terms = 2 + (0 if D is None else 2 * norm_upper_bound(D))
        self._inverse = None if before is None else np.linalg.inv(before)
        self._inverse_norm = 1.0 if before is None else inverse_norm_upper_bound(before)
        self._inverse_factor = 1.0 if before is None else inverse_error_factor(before)

    def factor(self, multipliers: Matrix) -> float:
        """Return the least ``r`` for some multipliers, by the Schur complement; infinity if they prove nothing.

        Args:
            multipliers: The diagonal of ``L``, ``(q,)``; not negative.
        """
        # Multipliers of a damaged certificate can be too large, and prove nothing then.
        with np.errstate(over="ignore", invalid="ignore"):
            corner = 2 * np.diag(multipliers) - self._gram
            if self._inner is not None:
                inner = multipliers[:, None] * self._inner
                corner = corner - (inner + inner.T)
            weighted_neurons = multipliers[:, None] * self._neurons
            side = self._cross + weighted_neurons.T
        if not (np.isfinite(corner).all() and np.isfinite(side).all()):
            return math.inf
        values, vectors = np.linalg.eigh((corner + corner.T) / 2)
        # The smallest eigenvalue less its error: of the product X^T X, and of the terms of the multipliers.
        largest = float(multipliers.max(initial=0.0))
        error_of_multipliers = 8 * len(corner) * EPSILON * largest * self._multiplier_terms
        lowest = float(values[0]) - self._gram_error - error_of_multipliers
        if not lowest > 0:
            return math.inf
        # With every eigenvalue of the corner lowered by what rounding can have done, the complement only grows.
        half = (side @ vectors) / np.sqrt(values - (float(values[0]) - lowest))
        stacked: Matrix = np.concatenate([self.state_part, half.T])
        if self._inverse is not None:
            stacked = stacked @ self._inverse
        side_error = self._cross_error + rounding_error_bound(weighted_neurons)
        error = rounding_error_bound(stacked)
        error += (self._state_error + 2 * side_error / math.sqrt(lowest)) * self._inverse_norm
        return float(np.linalg.norm(stacked, 2)) * self._inverse_factor + error


def rate_lower_bound(lure_map: LureMap) -> float:
    """Return a rate below which no norm proves one: the largest spectral radius with all slopes at 0, or at 1."""
    inner = lure_map.V if lure_map.D is None else np.linalg.solve(np.eye(len(lure_map.D)) - lure_map.D, lure_map.V)
    jacobians = (lure_map.F, lure_map.F + lure_map.G @ inner)
    return max(float(np.abs(np.linalg.eigvals(jacobian)).max()) for jacobian in jacobians)


def candidate_metrics(lure_map: LureMap) -> list[Matrix]:
    """Return matrices ``T`` worth trying: Lyapunov forms of the middle of the sector, and a diagonal one."""
    # Imported here, since it takes a fifth of a second, and most commands prove nothing.
    from scipy import linalg

    middle = lure_map.F + lure_map.G @ (lure_map.V / 2)
    if lure_map.D is not None:
        inner = np.linalg.solve(np.eye(len(lure_map.D)) - lure_map.D / 2, lure_map.V)
        middle = lure_map.F + lure_map.G @ inner / 2
    metrics: list[Matrix] = []
    radius = float(np.abs(np.linalg.eigvals(middle)).max())
    with warnings.catch_warnings():
        # An inaccurate solution is only a worse candidate, since whatever a metric proves is verified.
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
    if lure_map.D is None:
        # By the Perron vectors: sqrt(left / right) is the diagonal scaling of the smallest norm of a matrix of moduli.
        moduli = np.abs(lure_map.F) + np.abs(lure_map.G) @ np.abs(lure_map.V)
        left, right = perron_vector(moduli.T), perron_vector(moduli)
        metrics.append(np.diag(np.sqrt(left / right) / np.sqrt(left / right).max()))
    return metrics


def perron_vector(entries: Matrix) -> Matrix:
    """Return a positive vector close to the Perron vector of a non-negative matrix, its largest entry 1."""
    largest_row_sum = max(float(np.abs(entries).sum(axis=1).max()), EPSILON)
    # Positive entries everywhere, so that the power iteration has one limit, and that is positive.
    shifted = entries / largest_row_sum + np.full_like(entries, 1e-6 / len(entries))
    vector = np.ones(len(entries))
    for _ in range(200):
        image = shifted @ vector + 1e-3 * vector
        vector = image / image.max()
    return np.maximum(vector, 1e-6)


# Steps that overflow prove nothing, and are taken back.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def search_norm(
    lure_map: LureMap, metric: Matrix, multipliers: Matrix, *, lowest: float
) -> tuple[Matrix, Matrix] | None:
    """Return a metric and multipliers that prove a smaller factor in the norm ``|T e|`` before and after the map.

    Args:
        lure_map: The map, ``F`` being square.
        metric: ``T`` to begin from, not singular.
        multipliers: ``(q,)``, to begin from; positive.
        lowest: A factor below which none can be proved, where the search ends.

    Returns:
        The metric, its largest singular value 1, and the multipliers; None where the matrices are so large that a
        search would take too long, or no start was found.
    """
    evaluations = _affordable(lure_map)
    if evaluations < _FEWEST_EVALUATIONS:
        return None
    size = len(lure_map.F)
    scale = np.sqrt(size) / np.linalg.norm(metric)
    exponents = _exponents(lure_map, multipliers * scale**2)

    def at(sharpness: float) -> Callable[[Matrix], _Evaluation | None]:
        return lambda point: _evaluate_norm(lure_map, point[: size * size].reshape(size, size), point, sharpness)

    start = _feasible(np.concatenate([(metric * scale).ravel(), exponents]), size * size, at(_SHARPNESS[0]))
    if start is None:
        return None
    best = _minimize(at, start, evaluations, lowest)
    form = best[: size * size].reshape(size, size)
    norm = float(np.linalg.norm(form, 2))
    return form / norm, _multipliers(lure_map, best[size * size :]) / norm**2


# Steps that overflow prove nothing, and are taken back.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def search_multipliers(
    lure_map: LureMap, before: Matrix | None, after: Matrix | None, multipliers: Matrix
) -> Matrix | None:
    """Return multipliers that prove a smaller factor between two given norms; None as of :func:`search_norm`.

    Args:
        lure_map: The map.
        before: The metric of differences before the map; None for the identity.
        after: The metric of differences after it; None for the identity.
        multipliers: ``(q,)``, to begin from; positive.
    """
    evaluations = min(_MULTIPLIER_EVALUATIONS, _affordable(lure_map))
    if evaluations < _FEWEST_EVALUATIONS:
        return None
    state_part, neuron_part = (lure_map.F, lure_map.G) if after is None else (after @ lure_map.F, after @ lure_map.G)
    inverse = np.linalg.inv(np.eye(lure_map.F.shape[1]) if before is None else before).astype(np.float64)

    def evaluate(exponents: Matrix, sharpness: float) -> _Evaluation | None:
        factors = _factorize(lure_map, state_part, neuron_part, inverse, exponents)
        if factors is None:
            return None
        value, weights, factor = _smoothed(factors, sharpness)
        gradient = _multiplier_gradient(lure_map, factors, inverse @ weights @ inverse.T, exponents, sharpness)
        return value, gradient, factor

    def at(sharpness: float) -> Callable[[Matrix], _Evaluation | None]:
        return lambda exponents: evaluate(exponents, sharpness)

    start = _feasible(_exponents(lure_map, multipliers), 0, at(_SHARPNESS[0]))
    return None if start is None else _multipliers(lure_map, _minimize(at, start, evaluations, 0.0))


def _multipliers(lure_map: LureMap, exponents: Matrix) -> Matrix:
    """Return the multiplier of each neuron, from the logarithm of that of each group."""
    return lure_map.spread(np.exp(exponents))


def _exponents(lure_map: LureMap, multipliers: Matrix) -> Matrix:
    """Return the logarithm of the multiplier of each group."""
    logarithms: Matrix = np.log(np.maximum(lure_map.of_groups(multipliers), 1e-300))
    return logarithms


def _affordable(lure_map: LureMap) -> int:
    return int(min(_MOST_EVALUATIONS, _WORK / (lure_map.F.shape[1] ** 3 + len(lure_map.V) ** 3)))


def _feasible(point: Matrix, first_exponent: int, evaluate: Callable[[Matrix], _Evaluation | None]) -> Matrix | None:
    """Return the point with its multipliers multiplied until the inequality holds; None if it never does."""
    for factor in _START_FACTORS:
        scaled = point.copy()
        scaled[first_exponent:] += np.log(factor)
        if evaluate(scaled) is not None:
            return scaled
    return None


@dataclass(frozen=True)
class _Factors:
    """The Schur complement of the inequality, relative to the norm before the map.

    Attributes:
        eigenvalues: Of the complement, ascending; the factor is the root of the last.
        vectors: Its eigenvectors.
        complement: ``A``, ``(n, n)``.
        response: ``K = C^-1 S^T``, ``(q, n)``, the neurons' differences that are worst.
        corner_inverse: ``C^-1``, ``(q, q)``.
        barrier: ``-log det C`` less its value for a corner of the multipliers alone.
    """

    eigenvalues: Matrix
    vectors: Matrix
    complement: Matrix
    response: Matrix
    corner_inverse: Matrix
    barrier: float


def _factorize(
    lure_map: LureMap, state_part: Matrix, neuron_part: Matrix, inverse: Matrix, exponents: Matrix
) -> _Factors | None:
    """Return the factors for some multipliers; None if they prove nothing."""
    # Imported here, since it takes a fifth of a second, and most commands prove nothing.
    from scipy import linalg

    multipliers = _multipliers(lure_map, exponents)
    corner = 2 * np.diag(multipliers) - neuron_part.T @ neuron_part
    if lure_map.D is not None:
        inner = multipliers[:, None] * lure_map.D
        corner = corner - inner - inner.T
    side = state_part.T @ neuron_part + lure_map.V.T * multipliers
    if not (np.isfinite(corner).all() and np.isfinite(side).all()):
        return None
    try:
        root = np.linalg.cholesky(corner)
    except np.linalg.LinAlgError:
        # Raised for a corner that is not positive definite.
        return None
    half = linalg.solve_triangular(root, side.T, lower=True, check_finite=False)
    stacked = np.concatenate([state_part, half]) @ inverse
    complement = stacked.T @ stacked
    if not np.isfinite(complement).all():
        return None
    eigenvalues, vectors = np.linalg.eigh(complement)
    root_inverse = linalg.solve_triangular(root, np.eye(len(root)), lower=True, check_finite=False)
    barrier = float(np.log(multipliers).sum() - 2 * np.log(np.diagonal(root)).sum())
    # Of a smaller eigenvalue the logarithm has no slope that float64 can hold.
    if eigenvalues[-1] < 1e-200:
        return None
    return _Factors(eigenvalues, vectors, complement, root_inverse.T @ half, root_inverse.T @ root_inverse, barrier)


def _smoothed(factors: _Factors, sharpness: float) -> tuple[float, Matrix, float]:
    """Return the smoothed logarithm of the largest eigenvalue with the barrier, its gradient by ``A``, and the factor.

    That is ``log m + log(sum(exp(s (m_i / m - 1)))) / s`` with ``m`` the largest of the eigenvalues ``m_i``, which is
    independent of the matrix's scale but for the term ``log m``.
    """
    eigenvalues, vectors = factors.eigenvalues, factors.vectors
    largest = float(eigenvalues[-1])
    terms = np.exp(sharpness * (eigenvalues / largest - 1))
    shares = terms / terms.sum()
    slopes = shares / largest
    slopes[-1] += (1 - float(shares @ eigenvalues) / largest) / largest
    value = np.log(largest) + (np.log(terms.sum()) + _BARRIER * factors.barrier) / sharpness
    return float(value), (vectors * slopes) @ vectors.T, float(np.sqrt(largest))


def _evaluate_norm(lure_map: LureMap, metric: Matrix, point: Matrix, sharpness: float) -> _Evaluation | None:
    """Return the value at a metric, followed in ``point`` by the logarithms of the multipliers."""
    exponents = point[metric.size :]
    try:
        inverse = np.linalg.inv(metric).astype(np.float64)
    except np.linalg.LinAlgError:
        return None
    if not np.linalg.norm(metric) * np.linalg.norm(inverse) < _LARGEST_CONDITION * len(metric):
        return None
    factors = _factorize(lure_map, metric @ lure_map.F, metric @ lure_map.G, inverse, exponents)
    if factors is None:
        return None
    value, weights, factor = _smoothed(factors, sharpness)
    # With A = X^T M X and X = T^-1: tr(W dA) = tr(X W X^T dM) - 2 tr(X W A dT), and dM by T is J^T dP J, P = T^T T.
    covariance = inverse @ weights @ inverse.T
    jacobian = lure_map.F + lure_map.G @ factors.response
    by_metric = 2 * metric @ (jacobian @ covariance @ jacobian.T) - 2 * (inverse @ weights @ factors.complement).T
    neuron_part = metric @ lure_map.G
    by_metric += 2 * _BARRIER / sharpness * (neuron_part @ factors.corner_inverse) @ lure_map.G.T
    by_exponents = _multiplier_gradient(lure_map, factors, covariance, exponents, sharpness)
    return value, np.concatenate([by_metric.ravel(), by_exponents]), factor


def _multiplier_gradient(
    lure_map: LureMap, factors: _Factors, covariance: Matrix, exponents: Matrix, sharpness: float
) -> Matrix:
    """Return the gradient by the logarithm of each group's multiplier."""
    response = factors.response
    spread = response @ covariance
    # dM by L is 2 K^T dL V - K^T (2 dL - dL D - D^T dL) K.
    by_neuron = 2 * (spread * lure_map.V).sum(axis=1) - 2 * (spread * response).sum(axis=1)
    if lure_map.D is not None:
        by_neuron = by_neuron + 2 * (spread * (lure_map.D @ response)).sum(axis=1)
    # The barrier: of log det C by L, and of the logarithms of the multipliers.
    inverse = factors.corner_inverse
    slopes = np.diagonal(inverse if lure_map.D is None else inverse - lure_map.D @ inverse)
    by_neuron = by_neuron + _BARRIER / sharpness * (1 / _multipliers(lure_map, exponents) - 2 * slopes)
    by_group = np.bincount(
        lure_map.groups, weights=by_neuron * _multipliers(lure_map, exponents), minlength=len(exponents)
    )
    return by_group.astype(np.float64)


def _minimize(
    at: Callable[[float], Callable[[Matrix], _Evaluation | None]], point: Matrix, evaluations: int, lowest: float
) -> Matrix:
    """Return the point of the smallest factor that L-BFGS comes to, through all stages of sharpness."""
    best = point, np.inf
    for stage, sharpness in enumerate(_SHARPNESS):
        share = evaluations // len(_SHARPNESS)
        point, reached = _descend(at(sharpness), point, share, lowest)
        if reached[1] < best[1]:
            best = reached
        if best[1] <= lowest * (1 + 1e-4) or stage == len(_SHARPNESS) - 1:
            break
    return best[0]


def _descend(
    evaluate: Callable[[Matrix], _Evaluation | None], point: Matrix, evaluations: int, lowest: float
) -> tuple[Matrix, tuple[Matrix, float]]:
    """Run L-BFGS with backtracking from a feasible point.

    Returns:
        The last point, and the point of the smallest factor with that factor.
    """
    current = evaluate(point)
    assert current is not None
    value, gradient, factor = current
    best, used = (point, factor), 1
    steps: list[tuple[Matrix, Matrix]] = []
    while used < evaluations and best[1] > lowest * (1 + 1e-4):
        direction = _direction(gradient, steps)
        slope = float(gradient @ direction)
        length, candidate = 1.0, None
        while slope < 0 and length > 1e-6 and used < evaluations:
            used += 1
            candidate = evaluate(point + length * direction)
            if candidate is not None and candidate[0] <= value + 1e-4 * length * slope:
                break
            # What is infeasible is far off.
            length, candidate = length * (0.25 if candidate is None else 0.5), None
        if candidate is None:
            if not steps:
                break
            # The curvature remembered misleads; the gradient alone always descends.
            steps = []
            continue
        step, change = length * direction, candidate[1] - gradient
        if step @ change > 1e-10 * np.linalg.norm(step) * np.linalg.norm(change):
            steps = [*steps, (step, change)][-_HISTORY:]
        progress = value - candidate[0]
        point, (value, gradient, factor) = point + step, candidate
        best = min(best, (point, factor), key=lambda reached: reached[1])
        if progress < 1e-7:
            break
    return point, best


def _direction(gradient: Matrix, steps: list[tuple[Matrix, Matrix]]) -> Matrix:
    """Return the direction of L-BFGS by the two-loop recursion; a tenth of the unit gradient downhill at first."""
    if not steps:
        first: Matrix = -0.1 * gradient / max(float(np.linalg.norm(gradient)), 1e-300)
        return first
    direction, shares = -gradient, []
    for step, change in reversed(steps):
        share = step @ direction / (step @ change)
        shares.append(share)
        direction = direction - share * change
    step, change = steps[-1]
    direction = direction * (step @ change) / (change @ change)
    for (step, change), share in zip(steps, reversed(shares), strict=True):
        direction = direction + (share - change @ direction / (step @ change)) * step
    return direction
