"""Bounds of steps that are linear but for nonlinearities with slopes within 0 to 1: tanh, ReLU, a shrinkage.

Such a step is written as a Lur'e system; a quadratic form by which it contracts is searched, and a matrix inequality is
checked. Everything is computed in float64 on the matrices that the step uses, and rounded to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg, optimize

from stablernn.bounds.linalg import (
    UNIT,
    Matrix,
    as_float32,
    norm_above,
    norm_above_rows,
    row_sum_above,
    slack,
    smallest_below,
)
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound


@dataclass(frozen=True)
class Sector:
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
        reach: The largest modulus of ``f``, infinity where it has none.
    """

    F: Matrix
    G: Matrix
    V: Matrix
    U: Matrix
    D: Matrix | None = None
    B: Matrix | None = None
    c: Matrix | None = None
    reach: float = 1.0


def sector_bound(
    step: Sector,
    *,
    states: tuple[str, ...] = ("hidden",),
    output: int | None = None,
    hypotheses: tuple[Hypothesis, ...] = (),
    metrics: Sequence[Matrix] = (),
) -> StepBound:
    """The best rate that a few quadratic forms give, its input gain, and a ball where there is one.

    For differences of two states, ``w^T L (v - w) >= 0`` for ``L = l I``, ``l`` not negative. So a rate ``r`` in the
    norm ``|T e|`` is proved where, with ``P = T^T T``,

        [ r^2 P - F^T P F ,  -F^T P G - V^T L ;  .  ,  2 L - L D - D^T L - G^T P G ]  is positive semidefinite.

    Args:
        step: The step.
        states: The state tensors that ``h`` is made of, one after the other.
        output: How many of the first coordinates are the output; None for all.
        hypotheses: What else the proof rests on; where one fails nothing is proved.
        metrics: Further matrices ``T`` to try, of any scale.
    """
    if not all(one.holds for one in hypotheses):
        return StepBound(hypotheses=hypotheses)
    size = len(step.F)
    rate, metric = _best_multiplier(step.F, step.G, step.V, step.D, None, None)[0], None
    if rate > _least_rate(step) * (1 + 1e-6):
        for tried in [*_metrics(step), *(given / np.linalg.norm(given, 2) for given in metrics)]:
            form = as_float32(tried)
            if not smallest_below(form):
                continue
            proved, _ = _best_multiplier(step.F, step.G, step.V, step.D, form, form)
            if proved * (1 + 1e-6) < rate:
                rate, metric = proved, form
    gain, _ = _best_multiplier(
        np.zeros((size, step.U.shape[1])) if step.B is None else step.B, step.G, step.U, step.D, None, metric
    )
    return StepBound(
        covers=states,
        norm="l2" if metric is None else "weighted-l2",
        rate=rate,
        gain=gain,
        output_gain=1.0 if metric is None else norm_above(np.linalg.inv(metric)[:output]) * _inverse_error(metric),
        metric=metric,
        balls=_balls(step, states, rate, metric),
        hypotheses=hypotheses,
    )


def sector_rate(step: Sector, metric: Matrix | None = None) -> float:
    """The rate that :func:`sector_bound` proves in one given norm ``|T e|``, the 2-norm for None."""
    return _best_multiplier(step.F, step.G, step.V, step.D, metric, metric)[0]


def largest_state(step: Sector, rate: float, metric: Matrix | None = None) -> float:
    """At least the 2-norm of every state that can be reached from the origin; infinity where inputs set no limit.

    Args:
        step: The step.
        rate: What :func:`sector_rate` proves of it.
        metric: In which norm.
    """
    (ball,) = _balls(step, ("",), rate, metric) or (Ball("", "l2", math.inf),)
    return ball.radius * (math.sqrt(len(step.F)) if ball.norm == "linf" else 1.0)


def sector_gain(F: Matrix, G: Matrix, V: Matrix, D: Matrix | None = None, *, metric: Matrix | None = None) -> float:
    """At least ``|F e + G w| / |T e|`` for differences ``w`` of neurons, ``f(V e + D w)`` as in :class:`Sector`.

    Args:
        F: ``(k, n)``.
        G: ``(k, q)``.
        V: ``(q, n)``.
        D: ``(q, q)``, strictly lower triangular; None for zeros.
        metric: ``T``, ``(n, n)``; None for the identity.
    """
    return _best_multiplier(F, G, V, D, metric, None)[0]


def factors_of(form: Matrix) -> list[Matrix]:
    """The matrix ``T`` with ``T^T T`` the symmetric part of a quadratic form; none where that is not positive."""
    try:
        return [np.linalg.cholesky((form + form.T) / 2).T.astype(np.float64)]
    except np.linalg.LinAlgError:
        return []


def dominance_bound(step: Sector, bound: StepBound) -> StepBound:
    """A bound of the largest coordinate, where that is a smaller rate than a given one above 1; else the given one.

    Each row of the Jacobian, ``F_i + s_i G_ii V_i`` with one slope ``s_i``, is longest at a slope of 0 or of 1. Where a
    step stays the same at slope 0 and the matrix is diagonally dominant, the rate is 1, which no quadratic form shows.

    Args:
        step: With a diagonal ``G``, and neither ``D`` nor ``B``.
        bound: What is proved of it otherwise.
    """
    if bound.norm is None or bound.rate <= 1:
        return bound
    lengths = np.diagonal(step.G)
    steepest = step.F + lengths[:, None] * step.V
    rows = np.concatenate([step.F, steepest])
    size = len(step.F)

    def rate(weights: Matrix) -> float:
        return row_sum_above(rows * weights[None] / np.tile(weights, 2)[:, None])

    weights = min((np.ones(size), as_float32(_perron(np.abs(steepest)))), key=rate)
    if rate(weights) * (1 + 1e-6) >= bound.rate:
        return bound
    return replace(
        bound,
        norm="linf",
        rate=rate(weights),
        gain=norm_above_rows(lengths[:, None] * step.U / weights[:, None]),
        output_gain=float(np.linalg.norm(weights)) * (1 + size * UNIT),
        metric=None,
        weights=None if (weights == 1).all() else weights,
    )


def _least_rate(step: Sector) -> float:
    """What no norm proves less than: the largest spectral radius with all slopes at 0, or at 1."""
    inner = step.V if step.D is None else np.linalg.solve(np.eye(len(step.D)) - step.D, step.V)
    return max(float(np.abs(np.linalg.eigvals(one)).max()) for one in (step.F, step.F + step.G @ inner))


def _metrics(step: Sector) -> list[Matrix]:
    """Matrices ``T`` worth a try: the Lyapunov form of the middle of the sector, a diagonal one."""
    middle = step.F + step.G @ (step.V / 2)
    if step.D is not None:
        inner = np.linalg.solve(np.eye(len(step.D)) - step.D / 2, step.V)
        middle = step.F + step.G @ inner / 2
    found: list[Matrix] = []
    radius = float(np.abs(np.linalg.eigvals(middle)).max())
    for margin in (0.1, 0.5):
        scaled = middle / (radius + margin * max(1 - radius, 0.05))
        try:
            form = linalg.solve_discrete_lyapunov(scaled.T, np.eye(len(middle)))
            factor = np.linalg.cholesky((form + form.T) / 2).T
        except np.linalg.LinAlgError:
            continue
        found.append(factor / np.linalg.norm(factor, 2))
    bounded = np.abs(step.F) + np.abs(step.G) @ np.abs(step.V) if step.D is None else None
    if bounded is not None:
        left, right = _perron(bounded.T), _perron(bounded)
        found.append(np.diag(np.sqrt(left / right) / np.sqrt(left / right).max()))
    return found


def _perron(entries: Matrix) -> Matrix:
    """A positive vector close to the Perron vector of a non-negative matrix, its largest entry 1."""
    total = max(float(np.abs(entries).sum(axis=1).max()), UNIT)
    shifted = entries / total + np.full_like(entries, 1e-6 / len(entries))
    vector = np.ones(len(entries))
    for _ in range(200):
        following = shifted @ vector + 1e-3 * vector
        vector = following / following.max()
    return np.maximum(vector, 1e-6)


def _best_multiplier(
    F: Matrix, G: Matrix, V: Matrix, D: Matrix | None, before: Matrix | None, after: Matrix | None
) -> tuple[float, float]:
    """The least factor over multipliers ``L = l I``, and that ``l``; infinity where none proves anything."""
    outer = G if after is None else after @ G
    least = norm_above(outer) ** 2
    # No multiplier below half of it proves anything, unless neurons read one another.
    floor = 0.5 if D is None else 0.0

    def factor(exponent: float) -> float:
        value = _factor(F, G, V, D, before, after, least * (floor + math.exp(exponent)))
        # Too small a multiplier proves nothing; the search is to go on among larger ones.
        return value if math.isfinite(value) else 1e30 * (10 - exponent)

    if not least:
        return _factor(F, G, V, D, before, after, 1.0), 1.0
    best: Any = optimize.minimize_scalar(factor, bounds=(-7, 9), method="bounded", options={"xatol": 0.02})
    found = float(best.fun) if best.fun < 1e30 else math.inf, least * (floor + math.exp(float(best.x)))
    # Where V is a multiple of F^T P G, as of a gradient step, one multiplier cancels them: no search comes as close.
    cross = (F if after is None else after @ F).T @ outer
    squares = float((V * V).sum())
    # Where V is next to nothing, the multiplier that makes both its terms alike lies beyond what is searched.
    alike = float(np.linalg.norm(cross)) / math.sqrt(squares) if squares > 1e-24 * least else 1e12 * least
    levels = [level for level in (-float((cross * V.T).sum()) / max(squares, UNIT), alike) if level > least * floor]
    return min([found, *((_factor(F, G, V, D, before, after, level), level) for level in levels)])


def _factor(
    F: Matrix, G: Matrix, V: Matrix, D: Matrix | None, before: Matrix | None, after: Matrix | None, multiplier: float
) -> float:
    """The least ``r`` of the matrix inequality for one multiplier, by its Schur complement."""
    Y, X = (F, G) if after is None else (after @ F, after @ G)
    corner = 2 * multiplier * np.eye(G.shape[1]) - X.T @ X
    if D is not None:
        corner = corner - multiplier * (D + D.T)
    side = Y.T @ X + multiplier * V.T
    values, vectors = np.linalg.eigh((corner + corner.T) / 2)
    lowest = (
        float(values[0]) - slack(X, X) - 8 * len(corner) * UNIT * multiplier * (2 + (0 if D is None else norm_above(D)))
    )
    if lowest <= 0:
        return math.inf
    # With every eigenvalue of the corner lowered by what rounding can have done, the complement only grows.
    half = (side @ vectors) / np.sqrt(values - (float(values[0]) - lowest))
    stacked: Matrix = np.concatenate([Y, half.T])
    if before is not None:
        stacked = stacked @ np.linalg.inv(before)
    sides = slack(Y, X) + multiplier * slack(V)
    spread = slack(stacked) + 2 * sides / math.sqrt(lowest) * (1.0 if before is None else _inverse_above(before))
    error = 1.0 if before is None else _inverse_error(before)
    return float(np.linalg.norm(stacked, 2)) * error + spread


def _inverse_above(matrix: Matrix) -> float:
    """At least the norm of the inverse."""
    return 1 / max(smallest_below(matrix), UNIT * norm_above(matrix))


def _inverse_error(matrix: Matrix) -> float:
    """By what factor the norm of a product with the computed inverse can be too small."""
    return 1 + 8 * len(matrix) * UNIT * norm_above(matrix) * _inverse_above(matrix)


def _balls(step: Sector, states: tuple[str, ...], rate: float, metric: Matrix | None) -> tuple[Ball, ...]:
    """What each state tensor stays in, from the origin: nothing where an input or a nonlinearity has no bound."""
    if not math.isfinite(step.reach) or (step.B is not None and step.B.any()):
        return ()
    pushed = step.G if metric is None else metric @ step.G
    constant = np.zeros(len(step.F)) if step.c is None else step.c
    moved = constant if metric is None else metric @ constant
    inverse = 1.0 if metric is None else _inverse_above(metric)
    push = norm_above(pushed) * step.reach * math.sqrt(step.G.shape[1]) + float(np.linalg.norm(moved))
    turned: Matrix = step.F if metric is None else metric @ step.F @ np.linalg.inv(metric)
    linear = norm_above(turned) * (1.0 if metric is None else _inverse_error(metric))
    widest = row_sum_above(step.G) * step.reach + float(np.abs(constant).max(initial=0.0))
    kept = row_sum_above(step.F)
    if kept < 1:
        return tuple(Ball(state, "linf", widest / (1 - kept)) for state in states)
    rest = min(linear, rate)
    if rest < 1:
        return tuple(Ball(state, "l2", inverse * push / (1 - rest)) for state in states)
    return ()
