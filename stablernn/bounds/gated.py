"""Bounds of gated steps, where products of states occur: from bounds on the rows of the Jacobian.

The norm is the infinity norm, each coordinate divided by a weight.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stablernn.bounds.intervals import Box
from stablernn.bounds.linalg import EPSILON, Matrix, round_to_float32
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound


def gated_bound(
    row_sums: Callable[[Matrix], Matrix],
    input_norms: Matrix,
    *,
    covers: tuple[str, ...],
    output: slice,
    balls: tuple[Ball, ...] = (),
    hypotheses: tuple[Hypothesis, ...] = (),
) -> StepBound:
    """Prove a rate from bounds on the moduli in each row of the Jacobian, which need not all be largest at once.

    For any positive weights ``w``, ``max_i row_sums(w)_i / w_i`` bounds the factor by which a step changes
    ``max_i |e_i| / w_i``. Weights are searched.

    Args:
        row_sums: Returns, for weights ``(n,)``, at least ``sum_j |d next_i / d state_j| w_j``, of each row ``i`` the
            largest over all states and inputs.
        input_norms: ``(n,)``, at least the 2-norm of ``d next_i / d x``.
        covers: The state tensors that the ``n`` coordinates are, one after the other.
        output: Which coordinates are the output.
        balls: Invariant balls of the states.
        hypotheses: Further conditions of the proof; no rate is proved if one fails.
    """
    ones = np.ones(len(input_norms))
    if not all(hypothesis.holds for hypothesis in hypotheses) or not np.isfinite(row_sums(ones)).all():
        return StepBound(balls=balls, hypotheses=hypotheses)
    best_weights = weights = ones
    rate = _largest_ratio(row_sums(best_weights), best_weights)
    # Coordinates that grow most get more weight, in strides of their own length: an excess can be tiny far from the
    # weights that remove it.
    for stride in np.geomspace(0.5, 0.002, 150):
        growth = row_sums(weights) / weights
        spread = float(growth.max() - growth.min())
        if spread == 0:
            break
        weights = weights * (1 + stride * (growth - growth.min()) / spread)
        weights = np.maximum(weights / weights.max(), 1e-6)
        # The rate is proved of the weights as the certificate writes them down.
        candidate = round_to_float32(weights)
        ratio = _largest_ratio(row_sums(candidate), candidate)
        if ratio < rate * (1 - 1e-6):
            best_weights, rate = candidate, ratio
    is_unweighted = bool((best_weights == 1).all())
    return StepBound(
        covers=covers,
        norm="linf",
        rate=rate,
        gain=float((input_norms / best_weights).max()) * (1 + 4 * EPSILON),
        output_gain=float(np.linalg.norm(best_weights[output])) * (1 + len(best_weights) * EPSILON),
        weights=None if is_unweighted else best_weights,
        balls=balls,
        hypotheses=hypotheses,
    )


def largest_convex_step(
    old: Matrix,
    gate: Matrix,
    candidate: Matrix,
    *,
    states: Box,
    candidates: Box,
    shares: Box,
    gate_slope: Callable[[Matrix], Matrix] = lambda share: share,
) -> Matrix:
    """Bound ``d next / d state`` of ``next = s state + (1 - s) tanh(v)``, whose share ``s`` depends on the state too.

    Args:
        old: ``(n,)``, of the state itself.
        gate: ``(n,)``, of the argument of the sigmoid that ``s`` is made of.
        candidate: ``(n,)``, of ``v``.
        states: Range of the state that is mixed.
        candidates: Range of ``tanh(v)``.
        shares: Range of ``s``.
        gate_slope: Returns for shares ``(k, n)`` the slope of ``s`` divided by ``1 - s``, not decreasing with them.
    """
    smallest, largest = candidates.smallest_modulus, candidates.modulus
    distances, farthest = candidates.distance(states), states.modulus

    def mixed_in(share: Matrix) -> Matrix:
        slope = gate_slope(share) * gate
        # The slope of the share is multiplied by |tanh(v) - state|, which is at most |state| + |tanh(v)|, with
        # (1 - tanh^2) candidate at the same argument, and at most the distance of the two ranges.
        together = slope * farthest + largest_bend(candidate, slope, smallest, largest)
        return np.minimum(together, slope * distances + (1 - smallest**2) * candidate)

    return largest_mix(old, mixed_in, shares.lower, shares.upper)


def _largest_ratio(row_sums: Matrix, weights: Matrix) -> float:
    """Return at least the largest ratio, and exactly 1 rather than slightly more if none exceeds 1."""
    rate = float((row_sums / weights).max()) * (1 + 4 * EPSILON)
    return min(rate, 1.0) if (row_sums <= weights).all() else rate


def largest_mix(
    old: Matrix,
    new: Callable[[Matrix], Matrix],
    smallest_share: Matrix | float = 0.0,
    largest_share: Matrix | float = 1.0,
) -> Matrix:
    """Return at least ``s old + (1 - s) new(s)`` for every share ``s``, coordinate by coordinate.

    Exactly ``old`` where ``new(1)`` is smaller and shares go up to 1.

    Args:
        old: ``(n,)``, not negative.
        new: Returns, for shares ``(k, n)``, the values ``(k, n)`` that are mixed in, not decreasing with the share.
        smallest_share: Where shares begin, ``(n,)`` or a number, from 0 to 1.
        largest_share: Where they end.
    """
    start, end = np.broadcast_to(smallest_share, old.shape), np.broadcast_to(largest_share, old.shape)
    shares: Matrix = np.linspace(start, end, 257)
    safe = 1 + 64 * len(old) * EPSILON
    difference = new(shares[1:]) * safe - old
    # Within an interval 1 - s is largest at its start and smallest at its end, and new(s) is largest at its end.
    excess = (np.where(difference > 0, 1 - shares[:-1], 1 - shares[1:]) * difference).max(axis=0)
    # Where both nearly cancel, the rounding is a share of what is subtracted.
    return np.where(excess == 0, old, (old + excess) * (1 + 4 * EPSILON) + np.where(excess < 0, 8 * EPSILON * old, 0.0))


def largest_bend(slope: Matrix, shift: Matrix, smallest: Matrix | float = 0.0, largest: Matrix | float = 1.0) -> Matrix:
    """Return the largest of ``(1 - t^2) slope + t shift`` over ``t``, entry by entry, for entries >= 0.

    With ``t`` the modulus of a tanh this is a term that goes by its slope and one that grows with its value.

    Args:
        slope: Any shape.
        shift: Any shape.
        smallest: Where the values of ``t`` begin, from 0 to 1.
        largest: Where they end.
    """
    # The maximum is at t = shift / (2 slope), or at the nearest end if that lies beyond.
    is_inside = (slope > 0) & (shift <= 2 * slope)
    peak = np.where(is_inside, shift / np.where(is_inside, 2 * slope, 1.0), 1.0)
    t = np.clip(peak, smallest, largest)
    bend: Matrix = ((1 - t**2) * slope + t * shift) * (1 + 8 * EPSILON)
    return bend


def largest_gated(
    value: Matrix, change: Matrix, smallest: Matrix | float = 0.0, largest: Matrix | float = 1.0
) -> Matrix:
    """Return the largest of ``r value + r (1 - r) change`` over ``r``, entry by entry, for entries >= 0.

    With ``r`` a sigmoid this is a term that it lets through and one that goes by its slope.

    Args:
        value: Any shape.
        change: Any shape.
        smallest: Where the values of ``r`` begin, from 0 to 1.
        largest: Where they end.
    """
    # The maximum is at r = (value + change) / (2 change), or at the nearest end if that lies beyond.
    is_inside = value < change
    peak = np.where(is_inside, (value + change) / np.where(is_inside, 2 * change, 1.0), 1.0)
    r = np.clip(peak, smallest, largest)
    gated: Matrix = (r * value + r * (1 - r) * change) * (1 + 8 * EPSILON)
    return gated


def largest_gated_tanh(value: Matrix, change: Matrix, gate: Box, bent: Box) -> Matrix:
    """Return the largest of ``r (1 - t^2) value + r (1 - r) t change``, entry by entry, for entries >= 0.

    With ``r`` a sigmoid and ``t`` the modulus of a tanh this is the slope of their product.

    Args:
        value: ``(n,)``, of the argument of the tanh.
        change: ``(n,)``, of the argument of the sigmoid.
        gate: Range of ``r``.
        bent: Range of the tanh.
    """
    ends = np.linspace(bent.smallest_modulus, bent.modulus, 65)
    # Within an interval 1 - t^2 is largest at its start and t at its end.
    products = largest_gated((1 - ends[:-1] ** 2) * value, ends[1:] * change, gate.lower, gate.upper)
    largest: Matrix = products.max(axis=0)
    return largest
