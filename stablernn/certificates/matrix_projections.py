"""Nearest points of regions of matrices, in the Frobenius norm: balls of the spectral norm, and dominant diagonals."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable

import torch
from torch import Tensor


def within_norm(matrix: Tensor, bound: float) -> Tensor:
    """Return the nearest matrix of norm ``bound`` or less in the Frobenius norm: its singular values are clipped.

    Args:
        matrix: ``(m, n)`` float64, or complex128.
        bound: 0 or more.
    """
    values, vectors = _right_singular(matrix)
    return _clip_singular(matrix, values, vectors, bound)


def within_sum(first: Tensor, second: Tensor, bound: float, *, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return the nearest pair with ``norm(first) + factor * norm(second) <= bound`` in the Frobenius norm.

    With ``t`` the best norm of the first, the singular values of both are clipped, at ``t`` and at
    ``(bound - t) / factor``.

    Args:
        first: ``(m, n)`` float64.
        second: ``(p, q)`` float64.
        bound: 0 or more.
        factor: Greater than 0.
    """
    first_values, first_vectors = _right_singular(first)
    second_values, second_vectors = _right_singular(second)
    if float(first_values[-1]) + factor * float(second_values[-1]) <= bound:
        return first, second
    level = _best_norm(first_values, second_values, bound, factor)
    return (
        _clip_singular(first, first_values, first_vectors, level),
        _clip_singular(second, second_values, second_vectors, (bound - level) / factor),
    )


def _best_norm(first_values: Tensor, second_values: Tensor, bound: float, factor: float) -> float:
    """Return the norm of the first at which a small change saves in one matrix what it costs in the other."""
    saving, cost = _excess(first_values), _excess(second_values)
    low, high = 0.0, bound
    # Bisection of the derivative of the squared distance, which is monotonic in the norm.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if saving(middle) > cost((bound - middle) / factor) / factor else (low, middle)
    return low


def _excess(values: Tensor) -> Callable[[float], float]:
    """Return the sum of what values, in ascending order, exceed a level by, as a function of the level."""
    numbers: list[float] = values.tolist()
    sums = [*itertools.accumulate(reversed(numbers), initial=0.0)]

    def excess(level: float) -> float:
        count = len(numbers) - bisect.bisect_right(numbers, level)
        return sums[count] - count * level

    return excess


def _right_singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the singular values in ascending order, and the right singular vectors as columns."""
    squares, vectors = torch.linalg.eigh(matrix.mH @ matrix)
    return squares.clamp_min(0).sqrt(), vectors


def _clip_singular(matrix: Tensor, values: Tensor, vectors: Tensor, bound: float) -> Tensor:
    """Return the matrix with its singular values clipped; the same tensor if none exceeds the bound."""
    if float(values[-1]) <= bound:
        return matrix
    scales = torch.where(values > bound, bound / values.clamp_min(torch.finfo(values.dtype).tiny), 1.0)
    return matrix @ (vectors * scales) @ vectors.mH


def with_dominant_diagonal(matrix: Tensor, share: float, smallest: float, largest: float) -> Tensor:
    """Return the nearest matrix with a negative diagonal that dominates its rows.

    Of each row, with ``-k`` on the diagonal, the moduli of the others sum to at most ``share * k``, and ``k`` is from
    ``smallest`` to ``largest``. These conditions are convex, and those of a row concern that row alone.

    Args:
        matrix: ``(n, n)`` float64; returned as it is if it is inside.
        share: Greater than 0.
        smallest: 0 or more.
        largest: ``smallest`` or more.
    """
    damping = -matrix.diagonal()
    moduli = matrix.abs().fill_diagonal_(0)
    is_inside = (moduli.sum(dim=1) <= share * damping) & (damping >= smallest) & (damping <= largest)
    if bool(is_inside.all()):
        return matrix
    # Shrinking the others by a threshold t raises the damping by share * t: the normal of the cone. Of the sorted
    # moduli the first c exceed t = (their sum - share * k) / (c + share^2), which is largest for the right c.
    descending = moduli.sort(dim=1, descending=True).values
    counts = torch.arange(len(matrix) + 1, dtype=matrix.dtype, device=matrix.device)
    partial_sums = torch.nn.functional.pad(descending.cumsum(dim=1), (1, 0))
    cone_thresholds = (partial_sums - share * damping[:, None]) / (counts + share**2)
    threshold = cone_thresholds.amax(dim=1).clamp_min(0)
    raised_damping = damping + share * threshold
    # A damping beyond a limit ends there, and the others in the ball of the 1-norm that it allows.
    used_damping = raised_damping.clamp(smallest, largest)
    ball_thresholds = (partial_sums[:, 1:] - share * used_damping[:, None]) / counts[1:]
    threshold = torch.where(used_damping == raised_damping, threshold, ball_thresholds.amax(dim=1).clamp_min(0))
    # The moduli have zeros on the diagonal.
    return matrix.sign() * (moduli - threshold[:, None]).clamp_min(0) - torch.diag(used_damping)


def with_bounded_rows(skew_matrix: Tensor, bound: float) -> Tensor:
    """Return a skew-symmetric matrix whose moduli sum to at most ``bound`` in each row.

    An entry is scaled by the smaller of two factors, those that its row and its column would need alone, so that the
    matrix stays skew-symmetric. It is inside, but not the nearest one.

    Args:
        skew_matrix: ``(n, n)`` float64; returned as it is if it is inside.
        bound: 0 or more.
    """
    sums = skew_matrix.abs().sum(dim=1)
    if bool((sums <= bound).all()):
        return skew_matrix
    factors = (bound / sums.clamp_min(torch.finfo(sums.dtype).tiny)).clamp_max(1)
    return skew_matrix * torch.minimum(factors[:, None], factors)
