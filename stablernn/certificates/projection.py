"""Training that stays inside the certified region: after each step parameters outside move to a near point of it.

The region of a cell is a set of parameters for which :meth:`stablernn.cells.StableCell.step_bound` proves a kind, small
enough to be projected onto in a few eigenvalues a step:

    rnn, identity_rnn, rnn_orth, soft_orth      norm(W) <= 1 - margin
    indrnn                                      |u| <= 1 - margin
    fastrnn                                     sigmoid(beta) + sigmoid(alpha) norm(U) <= 1 - margin
    lipschitz                                   norm(I + eps (a A + W/2)) + norm(eps W/2) <= 1 - margin
    noisy_rnn                                   norm(I + E (A + W/2) E) + norm(E W/2 E) <= 1 - margin
    lipschitz_rk2                               norm(I + eps (A + W/2)) + 3 norm(eps W/2) <= sqrt(1 - 2 margin)

with a = linear_scale, and E^2 the steps of the units. The last three are around the middle of the slopes of tanh, 1/2:
W is in one matrix with A there, and its negative part damps too.

Each is convex, and the nearest point, in the Frobenius norm of the matrices that it bounds, keeps their singular
vectors. Why the step contracts there: docs/stability.md. Of ``fastrnn`` with a matrix of low rank both factors are
scaled alike, which is inside but not nearest. Cells that are certified for all parameters have nothing to be projected
but the bias of modReLU where it is positive, which makes a jump.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.cells.eunn import OFFSET
from stablernn.cells.lipschitz import SymmetricSkewCell
from stablernn.errors import ConfigError

Kind = Literal["contracting", "non-expansive"]

BY_CONSTRUCTION: dict[str, Kind] = {
    "lru": "contracting",
    **dict.fromkeys(("scornn", "exprnn", "dtriv", "urnn", "fc_urnn", "eunn", "lvf_mid"), "non-expansive"),
    **dict.fromkeys(("mingru", "minlstm"), "non-expansive"),
}
"""The kind that holds for all parameters, with softshrink or another nonlinearity without a jump."""

UNIT_STEPS = (0.01, 10.0)
"""Smallest and largest step of a unit of ``noisy_rnn``, in multiples of ``step_size``: a unit that does not move is not
damped, and steps that are far apart leave the norm in which they contract too stretched to be of use."""


def certified_kind(cell: StableCell) -> Kind:
    """Return the kind that :func:`project` keeps a cell in, or that holds for all of its parameters.

    Raises:
        ConfigError: If the cell, or an option of it, has no certified region.
    """
    if cell.key not in _PROJECTIONS and cell.key not in BY_CONSTRUCTION:
        raise ConfigError(
            f"The cell '{cell.key}' has no certified region that training could stay in. Take one that has, such as "
            "lipschitz, rnn, lru or exprnn (all are in docs/stability.md), or leave training.certified out."
        )
    for name, is_excluded, replacement in _excluded_options(cell):
        if is_excluded:
            raise ConfigError(
                f"The cell '{cell.key}' has no certified region with {name}={getattr(cell, name)!r}; set "
                f"model.cell_options.{name} to {replacement}."
            )
    return BY_CONSTRUCTION.get(cell.key, "contracting")


def is_projected(cell: StableCell) -> bool:
    """Return whether projection keeps the cell's rate below 1, by a margin."""
    return cell.key in _PROJECTIONS


@torch.no_grad()
def project(cell: StableCell, margin: float) -> None:
    """Move a cell's parameters into its certified region, in place; those inside stay as they are.

    Args:
        cell: One for which :func:`certified_kind` gives a kind. Parameters that are not finite are left alone.
        margin: By how much the rate of its step stays below 1, 0 to 0.5; of no use to cells that are certified by
            construction.
    """
    # No decomposition takes NaN; the training loop stops at a loss that is not finite.
    if not all(bool(torch.isfinite(parameter).all()) for parameter in cell.parameters()):
        return
    if getattr(cell, "nonlinearity", None) == "modrelu":
        bias: Any = cell.bias
        bias.clamp_(max=-OFFSET if cell.key == "eunn" else 0.0)
    if cell.key in _PROJECTIONS:
        _PROJECTIONS[cell.key](cell, 1 - margin)


def within_norm(matrix: Tensor, bound: float) -> Tensor:
    """Return the nearest matrix of norm ``bound`` or less in the Frobenius norm: its singular values are clipped.

    Args:
        matrix: ``(m, n)`` float64.
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
    squares, vectors = torch.linalg.eigh(matrix.T @ matrix)
    return squares.clamp_min(0).sqrt(), vectors


def _clip_singular(matrix: Tensor, values: Tensor, vectors: Tensor, bound: float) -> Tensor:
    """Return the matrix with its singular values clipped; the same tensor if none exceeds the bound."""
    if float(values[-1]) <= bound:
        return matrix
    scales = torch.where(values > bound, bound / values.clamp_min(torch.finfo(values.dtype).tiny), 1.0)
    return matrix @ (vectors * scales) @ vectors.T


def _clip_recurrent(cell: Any, bound: float) -> None:
    matrix = cell.weight_hh.double()
    cell.weight_hh.copy_(within_norm(matrix, bound))


def _clip_diagonal(cell: Any, bound: float) -> None:
    cell.weight_hh.clamp_(-bound, bound)


def _project_fast(cell: Any, bound: float) -> None:
    alpha, beta = (number.double() for number in cell.scalars())
    matrix = alpha * cell.recurrent_matrix().double()
    identity_part = beta * torch.eye(cell.hidden_size, dtype=matrix.dtype, device=matrix.device)
    projected_identity, projected = within_sum(identity_part, matrix, bound)
    # within_sum returns its arguments if they are inside: parameters are then left as they are, to the last bit.
    if projected_identity is not identity_part:
        cell.beta.copy_(torch.logit(projected_identity[0, 0].clamp_min(torch.finfo(torch.float32).tiny)))
    if projected is matrix:
        return
    if cell.recurrent_rank == cell.hidden_size:
        cell.weight_hh.copy_(projected / alpha)
        return
    # Both factors of a low rank are scaled alike, so that the rank stays: inside, but not nearest.
    scale = float(torch.linalg.matrix_norm(projected, 2) / torch.linalg.matrix_norm(matrix, 2))
    for factor in (cell.weight_hh, cell.weight_hh_right):
        factor.mul_(math.sqrt(scale))


def _project_symmetric_skew(cell: Any, bound: float) -> None:
    if cell.key == "noisy_rnn":
        cell.unit_steps.clamp_(*(multiple * cell.step_size for multiple in UNIT_STEPS))
        steps = cell.unit_steps.double()
    else:
        steps = cell.weight_hh.new_full((cell.hidden_size,), cell.step_size, dtype=torch.float64)
    factor = 1.0
    if cell.key == "lipschitz_rk2":
        # With bound = 1 - margin, this is sqrt(1 - 2 margin), as the table of this module states.
        factor, bound = 3.0, math.sqrt(max(0.0, 2 * bound - 1))
    # In the norm scaled by the units' steps the matrices are E A E and E W E, entry by entry sqrt(e_i e_j) times them.
    scales = steps.sqrt()[:, None] * steps.sqrt()
    linear_scale = getattr(cell, "linear_scale", 1.0)
    deviation = scales * cell.recurrent_matrix().double() / 2
    middle = torch.eye(cell.hidden_size).to(scales) + scales * linear_scale * cell.linear_matrix().double() + deviation
    projected_middle, projected_deviation = within_sum(middle, deviation, bound, factor=factor)
    change = (projected_deviation - deviation) / scales
    _add_to_matrix(cell, cell.weight_hh, 2 * change)
    _add_to_matrix(cell, cell.weight_linear, ((projected_middle - middle) / scales - change) / linear_scale)


def _add_to_matrix(cell: SymmetricSkewCell, weight: Tensor, change: Tensor) -> None:
    """Change a free weight so that the symmetric-skew matrix built from it changes by ``change``."""
    skew_weight = cell.skew_weight
    # The matrix is (1 - s) (M + M^T) + s (M - M^T) of the free M, so that each part is solved for alone.
    weight_change = (change + change.T) / (4 * (1 - skew_weight))
    if skew_weight:
        weight_change = weight_change + (change - change.T) / (4 * skew_weight)
    weight.add_(weight_change.to(weight.dtype))


def _excluded_options(cell: Any) -> list[tuple[str, bool, str]]:
    """Return options without a certified region: name, whether the cell has it set so, and the value to set instead."""
    match cell.key:
        case "soft_orth":
            return [("form", cell.form != "penalty", "penalty")]
        case "lvf_mid":
            return [("constraint", cell.constraint != "hard", "hard")]
        case "lipschitz":
            return [("skew_weight", cell.skew_weight == 1, "less than 1"), ("linear_scale", not cell.linear_scale, "1")]
        case "lipschitz_rk2" | "noisy_rnn":
            return [("skew_weight", cell.skew_weight == 1, "less than 1")]
        case _:
            return []


_PROJECTIONS: dict[str, Callable[[Any, float], None]] = {
    **dict.fromkeys(("rnn", "identity_rnn", "rnn_orth", "soft_orth"), _clip_recurrent),
    "indrnn": _clip_diagonal,
    "fastrnn": _project_fast,
    **dict.fromkeys(("lipschitz", "lipschitz_rk2", "noisy_rnn"), _project_symmetric_skew),
}
