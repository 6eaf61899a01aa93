"""Bounds of gated steps, where products of states occur: from bounds on the rows of the Jacobian.

The norm is the infinity norm, each coordinate divided by a weight.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

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


def _largest_ratio(row_sums: Matrix, weights: Matrix) -> float:
    """Return at least the largest ratio, and exactly 1 rather than slightly more if none exceeds 1."""
    rate = float((row_sums / weights).max()) * (1 + 4 * EPSILON)
    return min(rate, 1.0) if (row_sums <= weights).all() else rate


def largest_mix(old: Matrix, new: Callable[[Matrix], Matrix], smallest_share: float = 0.0) -> Matrix:
    """Return at least ``s old + (1 - s) new(s)`` for every share ``s`` up to 1, coordinate by coordinate.

    Exactly ``old`` where ``new(1)`` is smaller.

    Args:
        old: ``(n,)``, not negative.
        new: Returns, for shares ``(k, 1)``, the values ``(k, n)`` that are mixed in, not decreasing with the share.
        smallest_share: Where shares begin, 0 to 1.
    """
    shares = np.linspace(smallest_share, 1, 257)[:, None]
    safe = 1 + 64 * len(old) * EPSILON
    # Within an interval (1 - s) is largest at its start and new(s) at its end.
    excess = ((1 - shares[:-1]) * (new(shares[1:]) * safe - old)).max(axis=0)
    return np.where(excess > 0, (old + excess) * (1 + 4 * EPSILON), old)


def largest_bend(slope: Matrix, shift: Matrix) -> Matrix:
    """Return the largest of ``(1 - t^2) slope + t shift`` over ``t`` from 0 to 1, entry by entry, for entries >= 0.

    With ``t`` the modulus of a tanh this is a term that goes by its slope and one that grows with its value.
    """
    # The maximum is at t = shift / (2 slope), or at 1 if that lies beyond.
    is_inside = shift <= 2 * slope
    return np.where(is_inside, slope + shift * (shift / np.where(is_inside & (slope > 0), 4 * slope, 1.0)), shift)


def largest_gated(value: Matrix, change: Matrix) -> Matrix:
    """Return the largest of ``r value + r (1 - r) change`` over ``r`` from 0 to 1, entry by entry, for entries >= 0.

    With ``r`` a sigmoid this is a term that it lets through and one that goes by its slope.
    """
    # The maximum is at r = (value + change) / (2 change), or at 1 if that lies beyond.
    is_inside = value < change
    return np.where(is_inside, (value + change) ** 2 / np.where(is_inside, 4 * change, 1.0), value)
