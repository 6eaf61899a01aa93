"""Bounds of Lur'e systems: linear steps with nonlinearities of slopes within 0 to 1, as tanh, ReLU and shrinkage are.

A quadratic form by which the step contracts is searched, and a matrix inequality is checked
(docs/background/stability.md, "How a step is bounded"). Everything is computed in float64 on the matrices that the step
uses, and rounded to the safe side.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stablernn.bounds.intervals import FLOAT32_EPSILON
from stablernn.bounds.linalg import (
    EPSILON,
    Indices,
    Matrix,
    infinity_norm_upper_bound,
    inverse_error_factor,
    inverse_norm_upper_bound,
    norm_upper_bound,
    product_norm_upper_bound,
    round_to_float32,
    row_norm_upper_bound,
    similar_norm_upper_bound,
    smallest_singular_value_lower_bound,
)
from stablernn.bounds.norm_search import (
    LureMap,
    MatrixInequality,
    candidate_metrics,
    perron_vector,
    rate_lower_bound,
    search_multipliers,
    search_norm,
)
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound


@dataclass(frozen=True)
class LureSystem:
    """A step ``h <- F h + G w + B x + c``, ``w = f(V h + D w + U x + d)``, with the slopes of ``f`` within 0 to 1.

    ``f`` acts coordinate by coordinate; or on groups of coordinates, where its Jacobian is symmetric with eigenvalues
    within 0 to 1, and no ``D`` is given. The coordinates of a group must be named in ``groups``: a proof weighs the
    coordinates of ``w`` one by one, which is wrong where one depends on the argument of another.

    Attributes:
        F: ``(n, n)``.
        G: ``(n, q)``.
        V: ``(q, n)``.
        U: ``(q, m)``.
        D: ``(q, q)``, strictly lower triangular, so that ``w`` is computed in order; None for zeros.
        B: ``(n, m)``; None for zeros.
        c: ``(n,)``; None for zeros.
        f_max: The largest modulus of ``f``, infinity if it is unbounded.
        groups: ``(q,)``, the number of each neuron's group, from 0 on; None if ``f`` acts coordinate by coordinate.
        neuron_scale: ``(q,)``, factors by which ``w`` and its argument are those of the step, so that one multiplier
            suits all neurons; None for ones.
    """

    F: Matrix
    G: Matrix
    V: Matrix
    U: Matrix
    D: Matrix | None = None
    B: Matrix | None = None
    c: Matrix | None = None
    f_max: float = 1.0
    groups: Indices | None = None
    neuron_scale: Matrix | None = None

    @property
    def map(self) -> LureMap:
        """The map of differences of states."""
        groups = np.arange(len(self.V)) if self.groups is None else self.groups
        return LureMap(self.F, self.G, self.V, self.D, groups)


@dataclass(frozen=True)
class ProvedNorm:
    """A norm in which a rate of a step is proved, and how.

    Attributes:
        rate: The contraction rate.
        metric: ``T`` of the norm ``|T e|``, ``(n, n)``; None for the identity.
        multipliers: The diagonal of ``L`` that proves it, ``(q,)``.
    """

    rate: float
    metric: Matrix | None
    multipliers: Matrix


GivenNorm = tuple[Matrix | None, Matrix]
"""A metric, None for the identity, and multipliers."""
_given_norms: ContextVar[Sequence[GivenNorm] | None] = ContextVar("given_norms", default=None)


@contextmanager
def given_norms(norms: Sequence[GivenNorm] = ()) -> Iterator[None]:
    """Within the context, :func:`lure_bound` takes norms of a certificate in place of a search for better ones.

    With none it is quick, as training needs it after each epoch. With those of a stored certificate it verifies that
    certificate, whose norms a search on another machine would not find again to the last digit.

    Args:
        norms: Metrics, None for the identity, and the multipliers of each. They need not be right: whatever they do not
            prove is not used, and those that do not fit a step are left out.
    """
    token = _given_norms.set(norms)
    try:
        yield
    finally:
        _given_norms.reset(token)


def lure_bound(
    step: LureSystem,
    *,
    states: tuple[str, ...] = ("hidden",),
    output: int | None = None,
    hypotheses: tuple[Hypothesis, ...] = (),
    metrics: Sequence[Matrix] = (),
) -> StepBound:
    """Return the smallest rate that a search for a quadratic form proves, with its gains and an invariant ball if any.

    The rate holds in the norm ``|T e|`` in which :mod:`stablernn.bounds.norm_search` proves it. A few matrices
    ``T`` are tried, with the same multiplier for all neurons; from the best of them a search goes on to a full matrix
    and to a multiplier for each group of neurons. The norms tried before have larger rates but can have smaller gains,
    and are kept as ``other_norms`` of the bound.

    Args:
        step: The step.
        states: The state tensors that ``h`` is made of, one after the other.
        output: How many of the first coordinates are the output; None for all.
        hypotheses: Further conditions of the proof; nothing is proved if one fails.
        metrics: Further matrices ``T`` to try, of any scale.
    """
    if not all(hypothesis.holds for hypothesis in hypotheses):
        return StepBound(hypotheses=hypotheses)
    identity, candidate = _candidate_norms(step, metrics)
    best = _searched_norm(step, candidate)
    others = [norm for norm in (candidate, identity) if norm is not best]
    if candidate is identity:
        others = others[:1]
    if _given_norms.get() is None:
        others = [_proved_in(step, norm.metric, is_searched=True) for norm in others]
    # Of two balls the smaller one holds all states, too.
    balls = min(
        (_balls(step, states, norm.rate, norm.metric) for norm in (best, candidate)),
        key=lambda balls: balls[0].radius if balls and balls[0].norm == "l2" else -1.0 if balls else math.inf,
    )
    bounds = [_bound_in(step, norm, states, output, hypotheses) for norm in (best, *others)]
    return replace(bounds[0], balls=balls, other_norms=tuple(bounds[1:]))


def _bound_in(
    step: LureSystem, norm: ProvedNorm, states: tuple[str, ...], output: int | None, hypotheses: tuple[Hypothesis, ...]
) -> StepBound:
    """Return the bound in one norm, without its balls."""
    input_part = np.zeros((len(step.F), step.U.shape[1])) if step.B is None else step.B
    lure_map = replace(step.map, F=input_part, V=step.U)
    gain, _ = _best_multipliers(lure_map, None, norm.metric, is_searched=_given_norms.get() is None)
    output_gain = 1.0
    if norm.metric is not None:
        output_gain = norm_upper_bound(np.linalg.inv(norm.metric)[:output]) * inverse_error_factor(norm.metric)
    return StepBound(
        covers=states,
        norm="l2" if norm.metric is None else "weighted-l2",
        rate=norm.rate,
        gain=gain,
        output_gain=output_gain,
        metric=norm.metric,
        multipliers=norm.multipliers,
        neuron_scale=step.neuron_scale,
        hypotheses=hypotheses,
    )


def _candidate_norms(step: LureSystem, metrics: Sequence[Matrix]) -> tuple[ProvedNorm, ProvedNorm]:
    """Return the 2-norm and the best norm of a few candidates; multipliers are equal for all neurons, or by reach."""
    identity = best = _proved_in(step, None)
    # The identity is kept if it already reaches what no metric can improve on.
    if identity.rate > rate_lower_bound(step.map) * (1 + 1e-6):
        given = [matrix / np.linalg.norm(matrix, 2) for matrix in metrics]
        candidates: list[tuple[Matrix, list[Matrix]]] = [(metric, []) for metric in candidate_metrics(step.map)]
        for metric, extra_multipliers in [*candidates, *((metric, _by_reach(step.map, metric)) for metric in given)]:
            norm = _norm_of(step, metric, extra_multipliers)
            if norm is not None and norm.rate * (1 + 1e-6) < best.rate:
                best = norm
    return identity, best


def _by_reach(lure_map: LureMap, metric: Matrix) -> list[Matrix]:
    """Return multipliers in proportion to the squared length by which each neuron moves the state, in a norm.

    Where the lengths are those of the units' own steps, these need no search.

    Returns:
        One array ``(q,)``; none if all neurons reach equally far, or one reaches nowhere.
    """
    squares: Matrix = ((metric @ lure_map.G) ** 2).sum(axis=0)
    if not squares.min() > 1e-12 * squares.max() or squares.min() > squares.max() * (1 - 1e-6):
        return []
    if not lure_map.allows(squares):
        return []
    # With neurons scaled to reach equally far, the best of these multipliers is one for all neurons.
    roots = np.sqrt(squares)
    D = None if lure_map.D is None else roots[:, None] * lure_map.D / roots
    scaled = replace(lure_map, G=lure_map.G / roots, V=roots[:, None] * lure_map.V, D=D)
    return [_best_multipliers(scaled, metric, metric)[1] * squares]


def _norm_of(step: LureSystem, metric: Matrix | None, extra_multipliers: Sequence[Matrix] = ()) -> ProvedNorm | None:
    """Return what is proved in the norm of a metric rounded to float32; None if it is no norm."""
    form = None if metric is None else round_to_float32(metric)
    # A singular form is no norm.
    if form is not None and not (np.isfinite(form).all() and smallest_singular_value_lower_bound(form)):
        return None
    return _proved_in(step, form, extra_multipliers)


def _proved_in(
    step: LureSystem, metric: Matrix | None, extra_multipliers: Sequence[Matrix] = (), *, is_searched: bool = False
) -> ProvedNorm:
    """Return what :func:`_best_multipliers` prove in the norm of a metric, None for the identity."""
    rate, multipliers = _best_multipliers(
        step.map, metric, metric, is_searched=is_searched, extra_multipliers=extra_multipliers
    )
    return ProvedNorm(rate, metric, multipliers)


def _searched_norm(step: LureSystem, start: ProvedNorm) -> ProvedNorm:
    """Return the best norm that a search finds, or that is given in its place; the start itself if none is better."""
    context_norms, best = _given_norms.get(), start
    norms: Sequence[GivenNorm] = context_norms or ()
    if context_norms is None and _is_worth_a_search(start.rate, rate_lower_bound(step.map)):
        start_metric = np.eye(len(step.F)) if start.metric is None else start.metric
        solution = search_norm(step.map, start_metric, start.multipliers, lowest=rate_lower_bound(step.map))
        norms = () if solution is None else (solution,)
    for metric, multipliers in norms:
        if metric is not None and metric.shape != step.F.shape:
            continue
        norm = _norm_of(step, metric, [multipliers])
        if norm is not None and norm.rate * (1 + 1e-6) < best.rate:
            best = norm
    return best


def _is_worth_a_search(rate: float, lowest: float) -> bool:
    """Return whether a rate is so far above what no norm can improve on that a search is worth its time."""
    if not math.isfinite(rate) or rate <= lowest * (1 + 1e-6):
        return False
    # Near 1 the last thousandth decides on the kind of the certificate.
    return rate > lowest * (1 + 1e-3) or rate > 1 >= lowest


def lure_rate(step: LureSystem, metric: Matrix | None = None, multipliers: Matrix | None = None) -> float:
    """Return the rate that is proved in one given norm ``|T e|``, by one multiplier for all neurons or by given ones.

    Args:
        step: The step.
        metric: ``T``; None for the identity.
        multipliers: ``(q,)``, to try besides equal ones; None for none.
    """
    return _proved_in(step, metric, () if multipliers is None else [multipliers]).rate


def largest_state_norm(step: LureSystem, rate: float, metric: Matrix | None = None) -> float:
    """Return at least the 2-norm of every state reachable from the origin; infinity if inputs set no limit.

    Args:
        step: The step.
        rate: The rate that :func:`lure_rate` proves of it.
        metric: The norm of that rate.
    """
    (ball,) = _balls(step, ("",), rate, metric) or (Ball("", "l2", math.inf),)
    return ball.radius * (math.sqrt(len(step.F)) if ball.norm == "linf" else 1.0)


def lure_gain(lure_map: LureMap, *, metric: Matrix | None = None) -> float:
    """Return at least ``|F e + G w| / |T e|`` for differences ``w`` of neurons.

    Args:
        lure_map: The map; :attr:`LureSystem.map` with other matrices in place of those of the step.
        metric: ``T``, ``(n, n)``; None for the identity.
    """
    return _best_multipliers(lure_map, metric, None, is_searched=_given_norms.get() is None)[0]


def cholesky_factors(form: Matrix) -> list[Matrix]:
    """Return the ``T`` with ``T^T T`` the symmetric part of a quadratic form; no matrix if that is not positive."""
    try:
        return [np.linalg.cholesky((form + form.T) / 2).T.astype(np.float64)]
    except np.linalg.LinAlgError:
        # Raised for a form that is not positive definite.
        return []


def dominance_bound(step: LureSystem, bound: StepBound, metrics: Sequence[Matrix] = ()) -> StepBound:
    """Return a bound in the infinity norm, if its rate is below the given one; else the given one.

    Each row of the Jacobian, ``F_i + s_i G_ii V_i`` with one slope ``s_i``, is longest at a slope of 0 or of 1. Where a
    step stays the same at slope 0 and the matrix is diagonally dominant, the rate is 1, which no quadratic form shows.

    The given bound also stays where it has a rate of at most 1 without a search: the weights of an infinity norm can be
    stretched further than any quadratic form, and the gains in it as large.

    Args:
        step: With a diagonal ``G``, and neither ``D`` nor ``B``.
        bound: The bound that is proved of it otherwise.
        metrics: Those that :func:`lure_bound` was given for it.
    """
    if bound.norm is None:
        return bound
    lengths = np.diagonal(step.G)
    steepest = step.F + lengths[:, None] * step.V
    rows = np.concatenate([step.F, steepest])
    size = len(step.F)

    def rate(weights: Matrix) -> float:
        return infinity_norm_upper_bound(rows * weights[None] / np.tile(weights, 2)[:, None])

    weights = min((np.ones(size), round_to_float32(perron_vector(np.abs(steepest)))), key=rate)
    # A rate that rounding alone can lift above 1 is non-expansive, one that is larger by as little as 1e-6 is not.
    tolerance = 1 + size * FLOAT32_EPSILON
    if rate(weights) * (1 + 1e-6) >= bound.rate and not rate(weights) <= tolerance < bound.rate:
        return bound
    if bound.rate <= 1:
        with given_norms():
            plain_rate = lure_bound(step, metrics=metrics).rate
        if plain_rate <= 1:
            return bound
    return replace(
        bound,
        norm="linf",
        rate=rate(weights),
        gain=row_norm_upper_bound(lengths[:, None] * step.U / weights[:, None]),
        output_gain=float(np.linalg.norm(weights)) * (1 + size * EPSILON),
        metric=None,
        multipliers=None,
        neuron_scale=None,
        weights=None if (weights == 1).all() else weights,
        other_norms=(replace(bound, balls=(), other_norms=()), *bound.other_norms),
    )


def _best_multipliers(
    lure_map: LureMap,
    before: Matrix | None,
    after: Matrix | None,
    *,
    is_searched: bool = False,
    extra_multipliers: Sequence[Matrix] = (),
) -> tuple[float, Matrix]:
    """Return the least factor found and the multipliers that prove it; infinity if none proves anything.

    Args:
        lure_map: The map.
        before: The metric of differences before the map; None for the identity.
        after: The metric of differences after it; None for the identity.
        is_searched: True to search for a multiplier of each group; otherwise all have the same.
        extra_multipliers: Multipliers ``(q,)`` to try as well.
    """
    inequality = MatrixInequality(lure_map, before, after)
    factor, multiplier = _best_equal_multiplier(inequality, lure_map)
    best = factor, np.full(len(lure_map.V), multiplier)
    candidates = [*extra_multipliers]
    if is_searched and lure_map.groups.max(initial=0) > 0 and 0 < factor < math.inf:
        solution = search_multipliers(lure_map, before, after, best[1])
        candidates += [] if solution is None else [solution]
    for multipliers in candidates:
        candidate_factor = inequality.factor(multipliers) if lure_map.allows(multipliers) else math.inf
        # Equal multipliers stay where others are no better.
        if candidate_factor * (1 + 1e-9) < best[0]:
            best = candidate_factor, multipliers
    return best


def _best_equal_multiplier(inequality: MatrixInequality, lure_map: LureMap) -> tuple[float, float]:
    """Return the least factor over multipliers ``L = l I``, and that ``l``."""
    # Imported here, since it takes a fifth of a second, and most commands prove nothing.
    from scipy import optimize

    V, D = lure_map.V, lure_map.D
    outer = inequality.neuron_part
    smallest = norm_upper_bound(outer) ** 2
    # No multiplier below half of it proves anything, unless neurons read one another.
    floor = 0.5 if D is None else 0.0

    def proved(multiplier: float) -> float:
        return inequality.factor(np.full(len(V), multiplier))

    def factor(exponent: float) -> float:
        value = proved(smallest * (floor + math.exp(exponent)))
        # Too small a multiplier proves nothing; the search is to go on among larger ones.
        return value if math.isfinite(value) else 1e30 * (10 - exponent)

    if not smallest:
        return proved(1.0), 1.0
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
    return min([searched, *((proved(multiplier), multiplier) for multiplier in multipliers)])


def _balls(step: LureSystem, states: tuple[str, ...], rate: float, metric: Matrix | None) -> tuple[Ball, ...]:
    """Return the invariant ball of each state tensor; none if an input enters linearly or ``f`` is unbounded.

    A state grows by at most ``push`` a step beyond what the linear part, or the whole step by its rate, leaves of it:
    its radius is ``push / (1 - rate)``.
    """
    if not math.isfinite(step.f_max) or (step.B is not None and step.B.any()):
        return ()
    form = np.eye(len(step.F)) if metric is None else metric
    inverse_norm = 1.0 if metric is None else inverse_norm_upper_bound(metric)
    constant = np.zeros(len(step.F)) if step.c is None else step.c
    push = product_norm_upper_bound(form, step.G) * step.f_max * math.sqrt(step.G.shape[1])
    push += product_norm_upper_bound(form, constant[:, None])
    linear_rate = norm_upper_bound(step.F) if metric is None else similar_norm_upper_bound(step.F, metric)
    entry_push = infinity_norm_upper_bound(step.G) * step.f_max + float(np.abs(constant).max(initial=0.0))
    row_sum = infinity_norm_upper_bound(step.F)
    if row_sum < 1:
        return tuple(Ball(state, "linf", entry_push / (1 - row_sum)) for state in states)
    rate_bound = min(linear_rate, rate)
    if rate_bound < 1:
        return tuple(Ball(state, "l2", inverse_norm * push / (1 - rate_bound)) for state in states)
    return ()
