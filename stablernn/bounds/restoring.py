"""Invariant boxes of steps that move a state by a bounded amount, towards the origin wherever it is far away."""

from __future__ import annotations

import numpy as np

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.linalg import Matrix


def restoring_box(matrix: Matrix, drive: Box, longest_move: float) -> Box | None:
    """Return a cube that no step leaves, for a matrix whose negative diagonal dominates its rows; None for others.

    The step is ``h <- h + s(K h + d)``, where every coordinate of ``s`` has the sign of its argument and a modulus of
    at most ``longest_move``, e. With ``-k`` the diagonal entry of a row of K and ``r`` the sum of the other moduli, the
    cube of radius ``R >= e`` is invariant if ``k (R - e) >= r R + abs(d)``: a coordinate of at most ``R - e`` stays
    below R in any case, and beyond it the argument is negative or zero, so that the step leads back, by at most e.

    Args:
        matrix: K, ``(n, n)``.
        drive: Range of d, ``(n,)``.
        longest_move: e, greater than 0.
    """
    damping, moduli = -np.diagonal(matrix), np.abs(matrix).sum(axis=1)
    others = moduli - np.abs(damping)
    # The argument in float32 is off by the rounding of each product and sum. The state is off by the rounding of its
    # own sum, which lets a coordinate that may move freely end slightly further out.
    relative_error = (matrix.shape[1] + 8) * FLOAT32_EPSILON * moduli
    surplus = damping - others - 2 * relative_error
    if not drive.is_finite or not (surplus > 0).all():
        return None
    move = longest_move * (1 + 8 * FLOAT32_EPSILON)
    radius = float(np.max((damping * move + drive.modulus * (1 + 8 * FLOAT32_EPSILON)) / surplus, initial=move))
    return Box.around_zero(len(matrix), radius * (1 + 8 * FLOAT32_EPSILON))
