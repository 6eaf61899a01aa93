"""Training that stays inside the certified region: after each step parameters move to the nearest point of it.

The region of a cell is a set of parameters for which :meth:`stablernn.cells.StableCell.step_bound` proves a kind, small
enough to be projected onto in a few eigenvalues a step:

    rnn, identity_rnn, rnn_orth, soft_orth      norm(W) <= 1 - margin
    indrnn                                      |u| <= 1 - margin
    fastrnn                                     sigmoid(beta) + sigmoid(alpha) norm(U) <= 1 - margin
    lipschitz                                   norm(I + eps a A) + eps norm(W) <= 1 - margin, a = linear_scale
    noisy_rnn                                   norm(I + E A E) + norm(E)^2 norm(W) <= 1 - margin, E^2 the units' steps
    lipschitz_rk2                               norm(I + eps A) + 3 eps norm(W) <= sqrt(1 - 2 margin)

Each is convex in the matrices, and the nearest point in the Frobenius norm keeps their singular vectors. Why the step
contracts there: docs/stability.md. Of ``fastrnn`` with a matrix of low rank both factors are scaled alike, which is
inside but not nearest. Cells that are certified for all parameters have nothing to be projected but the bias of modReLU
where it is positive, which makes a jump.
"""

from __future__ import annotations

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
"""What holds for all parameters, softshrink or another nonlinearity without a jump given."""

UNIT_STEPS = (0.01, 10.0)
"""Within which multiples of ``step_size`` the units' own steps of ``noisy_rnn`` stay: what does not move is not damped,
and steps that are far apart leave the norm in which they contract too stretched to be of use."""


def certified_kind(cell: StableCell) -> Kind:
    """What :func:`project` keeps a cell's step, or what it is for all parameters.

    Raises:
        ConfigError: If the cell, or an option of it, leaves no region that training could be kept in.
    """
    if cell.key not in _PROJECTIONS and cell.key not in BY_CONSTRUCTION:
        raise ConfigError(
            f"The cell '{cell.key}' has no certified region that training could stay in. Take one that has, such as "
            "lipschitz, rnn, lru or exprnn (all are in docs/stability.md), or leave training.certified out."
        )
    for name, wrong, instead in _excluded(cell):
        if wrong:
            raise ConfigError(
                f"The cell '{cell.key}' has no certified region with {name}={getattr(cell, name)!r}; set "
                f"model.cell_options.{name} to {instead}."
            )
    return BY_CONSTRUCTION.get(cell.key, "contracting")


def is_projected(cell: StableCell) -> bool:
    """Whether the cell's rate is kept below 1 by projection, and so has a margin."""
    return cell.key in _PROJECTIONS


@torch.no_grad()
def project(cell: StableCell, margin: float) -> None:
    """Move a cell's parameters to the nearest point of its certified region, in place; those inside stay as they are.

    Args:
        cell: One for which :func:`certified_kind` gives a kind. Parameters that are not finite are left alone.
        margin: By how much the rate of its step stays below 1, 0 to 0.5; of no use to cells that are certified by
            construction.
    """
    if not all(bool(torch.isfinite(parameter).all()) for parameter in cell.parameters()):
        return
    if getattr(cell, "nonlinearity", None) == "modrelu":
        bias: Any = cell.bias
        bias.clamp_(max=-OFFSET if cell.key == "eunn" else 0.0)
    if cell.key in _PROJECTIONS:
        _PROJECTIONS[cell.key](cell, 1 - margin)


def within_norm(matrix: Tensor, bound: float) -> Tensor:
    """The matrix of norm ``bound`` or less that is nearest in the Frobenius norm: its singular values cut off.

    Args:
        matrix: ``(m, n)`` float64.
        bound: 0 or more.
    """
    values, vectors = _right_singular(matrix)
    return _cut(matrix, values, vectors, bound)


def within_sum(first: Tensor, second: Tensor, bound: float, *, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """The pair with ``norm(first) + factor * norm(second) <= bound`` that is nearest in the Frobenius norm.

    With ``t`` the norm of the first that is best, both have their singular values cut off, at ``t`` and at
    ``(bound - t) / factor``.

    Args:
        first: ``(m, n)`` float64.
        second: ``(p, q)`` float64.
        bound: 0 or more.
        factor: Greater than 0.
    """
    (values, vectors), (others, axes) = _right_singular(first), _right_singular(second)
    if float(values[-1]) + factor * float(others[-1]) <= bound:
        return first, second
    level = _level(values, others, bound, factor)
    return _cut(first, values, vectors, level), _cut(second, others, axes, (bound - level) / factor)


def _level(values: Tensor, others: Tensor, bound: float, factor: float) -> float:
    """The norm of the first where what a change of it saves in one matrix is what it costs in the other."""
    low, high = 0.0, bound
    for _ in range(60):
        middle = (low + high) / 2
        saved = float((values - middle).clamp_min(0).sum())
        spent = float((others - (bound - middle) / factor).clamp_min(0).sum()) / factor
        low, high = (middle, high) if saved > spent else (low, middle)
    return low


def _right_singular(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values in ascending order, and the right singular vectors as columns."""
    squares, vectors = torch.linalg.eigh(matrix.T @ matrix)
    return squares.clamp_min(0).sqrt(), vectors


def _cut(matrix: Tensor, values: Tensor, vectors: Tensor, bound: float) -> Tensor:
    if float(values[-1]) <= bound:
        return matrix
    shares = torch.where(values > bound, bound / values.clamp_min(torch.finfo(values.dtype).tiny), 1.0)
    return matrix @ (vectors * shares) @ vectors.T


def _clip_recurrent(cell: Any, bound: float) -> None:
    matrix = cell.weight_hh.double()
    cell.weight_hh.copy_(within_norm(matrix, bound))


def _clip_diagonal(cell: Any, bound: float) -> None:
    cell.weight_hh.clamp_(-bound, bound)


def _project_fast(cell: Any, bound: float) -> None:
    alpha, beta = (number.double() for number in cell.scalars())
    matrix = alpha * cell.recurrent_matrix().double()
    kept = beta * torch.eye(cell.hidden_size, dtype=matrix.dtype, device=matrix.device)
    held, used = within_sum(kept, matrix, bound)
    if held is not kept:
        cell.beta.copy_(torch.logit(held[0, 0].clamp_min(torch.finfo(torch.float32).tiny)))
    if used is matrix:
        return
    if cell.recurrent_rank == cell.hidden_size:
        cell.weight_hh.copy_(used / alpha)
        return
    share = float(torch.linalg.matrix_norm(used, 2) / torch.linalg.matrix_norm(matrix, 2))
    for factor in (cell.weight_hh, cell.weight_hh_right):
        factor.mul_(math.sqrt(share))


def _project_symmetric_skew(cell: Any, bound: float) -> None:
    if cell.key == "noisy_rnn":
        cell.unit_steps.clamp_(*(share * cell.step_size for share in UNIT_STEPS))
        steps = cell.unit_steps.double()
    else:
        steps = cell.weight_hh.new_full((cell.hidden_size,), cell.step_size, dtype=torch.float64)
    factor = 1.0
    if cell.key == "lipschitz_rk2":
        factor, bound = 3.0, math.sqrt(max(0.0, 2 * bound - 1))
    lengths = getattr(cell, "linear_scale", 1.0) * steps.sqrt()[:, None] * steps.sqrt()
    longest = steps.max()
    whole = torch.eye(cell.hidden_size).to(lengths) + lengths * cell.linear_matrix().double()
    recurrent = longest * cell.recurrent_matrix().double()
    kept, used = within_sum(whole, recurrent, bound, factor=factor)
    _move(cell, cell.weight_linear, (kept - whole) / lengths)
    _move(cell, cell.weight_hh, (used - recurrent) / longest)


def _move(cell: SymmetricSkewCell, weight: Tensor, change: Tensor) -> None:
    """Change the symmetric-skew matrix made of a weight by so much."""
    share = cell.skew_weight
    moved = (change + change.T) / (4 * (1 - share))
    if share:
        moved = moved + (change - change.T) / (4 * share)
    weight.add_(moved.to(weight.dtype))


def _excluded(cell: Any) -> list[tuple[str, bool, str]]:
    """Options that leave no region: name, whether they are set so here, and what to set in their place."""
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
