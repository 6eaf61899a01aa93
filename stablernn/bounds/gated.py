"""Bounds of gated steps, where products of states occur: from bounds on the rows of the Jacobian.

What is asked is how a largest coordinate shrinks, each divided by a weight.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stablernn.bounds.linalg import UNIT, Matrix, as_float32
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound


def gated_bound(
    image: Callable[[Matrix], Matrix],
    given: Matrix,
    *,
    covers: tuple[str, ...],
    output: slice,
    balls: tuple[Ball, ...] = (),
    hypotheses: tuple[Hypothesis, ...] = (),
) -> StepBound:
    """A rate from bounds on the moduli in each row of the Jacobian, which need not all be largest at once.

    For any positive weights ``w``, ``max_i image(w)_i / w_i`` bounds the factor by which a step changes
    ``max_i |e_i| / w_i``. Weights are searched.

    Args:
        image: Gives, for weights ``(n,)``, at least ``sum_j |d next_i / d state_j| w_j``, of each row ``i`` the largest
            over all states and inputs.
        given: ``(n,)``, at least the 2-norm of ``d next_i / d x``.
        covers: The state tensors that the ``n`` coordinates are, one after the other.
        output: Which coordinates are the output.
        balls: Where states can be.
        hypotheses: What else the proof rests on; where one fails no rate is proved.
    """
    if not all(one.holds for one in hypotheses) or not np.isfinite(image(np.ones(len(given)))).all():
        return StepBound(balls=balls, hypotheses=hypotheses)
    used = weights = np.ones(len(given))
    rate = _largest_ratio(image(used), used)
    # Coordinates that grow most get more weight, in strides of their own length: an excess can be tiny far from the
    # weights that remove it.
    for stride in np.geomspace(0.5, 0.002, 150):
        growth = image(weights) / weights
        spread = float(growth.max() - growth.min())
        if spread == 0:
            break
        weights = weights * (1 + stride * (growth - growth.min()) / spread)
        weights = np.maximum(weights / weights.max(), 1e-6)
        tried = as_float32(weights)
        ratio = _largest_ratio(image(tried), tried)
        if ratio < rate * (1 - 1e-6):
            used, rate = tried, ratio
    is_plain = bool((used == 1).all())
    return StepBound(
        covers=covers,
        norm="linf",
        rate=rate,
        gain=float((given / used).max()) * (1 + 4 * UNIT),
        output_gain=float(np.linalg.norm(used[output])) * (1 + len(used) * UNIT),
        weights=None if is_plain else used,
        balls=balls,
        hypotheses=hypotheses,
    )


def _largest_ratio(image: Matrix, weights: Matrix) -> float:
    """At least the largest ratio, and 1 where none is above."""
    rate = float((image / weights).max()) * (1 + 4 * UNIT)
    return min(rate, 1.0) if (image <= weights).all() else rate


def largest_mix(kept: Matrix, replaced: Callable[[Matrix], Matrix], least: float = 0.0) -> Matrix:
    """At least ``s kept + (1 - s) replaced(s)`` for every share ``s`` from ``least`` to 1, coordinate by coordinate.

    Exactly ``kept`` where ``replaced(1)`` is smaller.

    Args:
        kept: ``(n,)``, not negative.
        replaced: Of shares ``(k, 1)`` what ``(k, n)`` is mixed in, not decreasing with the share.
        least: The smallest share, 0 to 1.
    """
    shares = np.linspace(least, 1, 257)[:, None]
    safe = 1 + 64 * len(kept) * UNIT
    # On a piece (1 - s) is largest at its start and what is mixed in at its end.
    excess = ((1 - shares[:-1]) * (replaced(shares[1:]) * safe - kept)).max(axis=0)
    return np.where(excess > 0, (kept + excess) * (1 + 4 * UNIT), kept)


def largest_bend(slope: Matrix, shift: Matrix) -> Matrix:
    """The largest of ``(1 - t^2) slope + t shift`` over ``t`` from 0 to 1, entry by entry, for entries not negative.

    With ``t`` the modulus of a tanh this is its slope beside what grows with its value.
    """
    inside = shift <= 2 * slope
    return np.where(inside, slope + shift * (shift / np.where(inside & (slope > 0), 4 * slope, 1.0)), shift)


def largest_gated(value: Matrix, change: Matrix) -> Matrix:
    """The largest of ``r value + r (1 - r) change`` over ``r`` from 0 to 1, entry by entry, for entries not negative.

    With ``r`` a sigmoid this is what it lets through beside what goes by its slope.
    """
    inside = value < change
    return np.where(inside, (value + change) ** 2 / np.where(inside, 4 * change, 1.0), value)
