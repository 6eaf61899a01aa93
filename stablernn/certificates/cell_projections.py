"""The projection of each cell onto its certified region; :mod:`stablernn.certificates.projection` lists the regions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.linalg import EPSILON
from stablernn.cells._base import float64
from stablernn.cells.lipschitz import SymmetricSkewCell
from stablernn.certificates.matrix_projections import (
    with_bounded_rows,
    with_dominant_diagonal,
    within_norm,
    within_sum,
)
from stablernn.parametrizations import symmetric_skew

UNIT_STEPS = (0.01, 10.0)
"""Smallest and largest step of a unit of ``noisy_rnn``, in multiples of ``step_size``: a unit that does not move is not
damped, and steps that are far apart leave the norm in which they contract too stretched to be of use."""
LEAST_DAMPING = 0.01
"""Smallest modulus of a dominant diagonal that leads a state back, 1/step; the default damping of ``antisymmetric``."""
_LINEAR_SHARE = 0.9
"""Share of the rate that the inner steps of ``incremental`` may take, so that something is left for the matrix."""
_SCHUR_ROUNDS = 2
"""Rounds of clipping the Schur form of ``nnrnn``. After one the scale is smaller, which costs accuracy on digits; two
take a tenth of a training step at 128 units."""


def _clip_recurrent(cell: Any, bound: float) -> None:
    matrix = cell.weight_hh.double()
    cell.weight_hh.copy_(within_norm(matrix, bound))


def _clip_diagonal(cell: Any, bound: float) -> None:
    cell.weight_hh.clamp_(-bound, bound)


def _clip_spectrum(cell: Any, bound: float) -> None:
    """Bound the singular values of ``P diag(s) Q^T``, whose factors are orthogonal by construction."""
    if getattr(cell, "form", None) == "unbounded":
        # s = 1 + p, of either sign.
        cell.spectrum.clamp_(-1 - bound, -1 + bound)
        return
    # s = 1 + 2 margin (sigmoid(p) - 1/2) is at most the bound up to this p.
    share = 0.5 - (1 - bound) / (2 * cell.margin)
    cell.spectrum.clamp_(max=math.log(share / (1 - share)))
    # With a margin above 1 + bound, s reaches below minus the bound.
    lowest = 0.5 - (1 + bound) / (2 * cell.margin)
    if lowest > 0:
        cell.spectrum.clamp_(min=math.log(lowest / (1 - lowest)))


def _project_soft_orth(cell: Any, bound: float) -> None:
    (_clip_recurrent if cell.form == "penalty" else _clip_spectrum)(cell, bound)


def _clip_kronecker_factors(cell: Any, bound: float) -> None:
    """Bound the norm of a Kronecker product, which is the product of the norms of its factors."""
    factors, offset = cell.factor_matrices(), 0
    factor_bound = bound ** (1 / len(factors))
    for factor in factors:
        precise = factor.to(torch.complex128)
        clipped = within_norm(precise, factor_bound)
        if clipped is not precise:
            # The real part comes first, then the imaginary part, each row by row.
            values = torch.cat([clipped.real.flatten(), clipped.imag.flatten()])
            cell.weight_hh[offset : offset + len(values)].copy_(values)
        offset += 2 * factor.numel()


def _clip_schur_form(cell: Any, bound: float) -> None:
    """Bound the norm of ``P (L + T) P^T``, which is that of the Schur form ``L + T``, at fixed phases.

    The forms with given phases are a linear space. Clipping singular values leaves it, and the nearest form of the
    space has a norm that is hardly larger than the bound; what is still larger after two rounds is scaled.
    """
    for _ in range(_SCHUR_ROUNDS):
        # In the precision of the parameters: the scale below makes up for what rounding leaves.
        form = cell.schur_form()
        clipped = within_norm(form, bound)
        if clipped is form:
            return
        _set_schur_form(cell, clipped)
    # The root of the largest eigenvalue of the product takes a third of the time of a singular value.
    nearest = cell.schur_form().double()
    norm = math.sqrt(float(torch.linalg.eigvalsh(nearest.T @ nearest)[-1]))
    if norm > bound:
        for parameter in (cell.gain, cell.weight_upper):
            parameter.mul_(bound / norm)


def _set_schur_form(cell: Any, matrix: Tensor) -> None:
    """Set gains and couplings of ``nnrnn`` to those of the form nearest to a matrix, at the phases that it has."""
    size, pairs = cell.hidden_size, cell.hidden_size // 2
    rows, columns = torch.triu_indices(size, size, offset=1, device=matrix.device)
    cell.weight_upper.copy_(matrix[rows, columns][rows // 2 != columns // 2])
    first = torch.arange(0, 2 * pairs, 2, device=matrix.device)
    # Half of the inner product with the block of the rotation, whose squared norm is 2.
    cosines = (matrix[first, first] + matrix[first + 1, first + 1]) / 2
    sines = (matrix[first + 1, first] - matrix[first, first + 1]) / 2
    phase = cell.phase
    gains = cosines * torch.cos(phase) + sines * torch.sin(phase)
    cell.gain.copy_(torch.cat([gains, matrix.diagonal()[2 * pairs :]]))


def _project_incremental(cell: Any, bound: float) -> None:
    """Bound the linear part of the inner steps by their lengths, and the rest of the rate by the norm of U.

    With y = g + h the last inner step leaves ``h_K = p y_0 - h + (what the neurons add)``, where ``p`` is the product
    of the factors ``1 - e leak`` and ``y_0`` is h, or 2 h.
    """
    count, leak, start = cell.inner_steps, cell.leak, 2.0 if cell.start == "previous" else 1.0
    # abs(start p - 1) is at most the linear part's share; each factor takes an equal part of it, and none exceeds 1.
    linear_bound = _LINEAR_SHARE * bound
    lowest, highest = (1 - linear_bound) / start, min(1.0, (1 + linear_bound) / start)
    cell.inner_lengths.clamp_((1 - highest ** (1 / count)) / leak, (1 - lowest ** (1 / count)) / leak)
    lengths: list[float] = cell.inner_lengths.double().tolist()

    def rate(norm: float) -> float:
        """Return the bound of the rate by norms, as the cell's step_bound has it, for a norm of U."""
        factor, added = start, 0.0
        for length in lengths:
            # A neuron's contribution is stretched by the later inner steps, as is that of the neurons before.
            added = added * (1 - length * leak + length * norm) + length * norm * factor
            factor *= 1 - length * leak
        return abs(factor - 1) + added

    matrix = cell.recurrent_matrix().double()
    largest = float(torch.linalg.matrix_norm(matrix, 2))
    if rate(largest) <= bound:
        return
    low, high = 0.0, largest
    # The rate rises with the norm.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rate(middle) <= bound else (low, middle)
    if cell.recurrent_rank == cell.hidden_size:
        cell.weight_hh.copy_(within_norm(matrix, low))
    else:
        _scale_factors(cell, low / largest)


def _scale_factors(cell: Any, scale: float) -> None:
    """Scale a product of two factors; both alike, so that the rank stays. It is inside the region, but not nearest."""
    for factor in (cell.weight_hh, cell.weight_hh_right):
        factor.mul_(math.sqrt(scale))


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
    # What the other term leaves: the norm of the clipped matrix is off by the rounding of one that may be far larger.
    left = min(bound - float(projected_identity[0, 0]), float(torch.linalg.matrix_norm(projected, 2)))
    _scale_factors(cell, left / float(torch.linalg.matrix_norm(matrix, 2)))


def _project_dominant(cell: Any, bound: float) -> None:
    """Let the negative diagonal of a free matrix dominate its rows."""
    # antisym_ablation subtracts its damping from the diagonal.
    matrix = cell.recurrent_matrix().double()
    # A state with an invariant box needs a diagonal that is strictly negative. Beyond 1 / step_size it would overshoot,
    # which a step of FastGRNN, whose gates limit it, cannot.
    smallest = 0.0 if cell.key == "neural_ode_rnn" else LEAST_DAMPING
    largest = 1 / cell.step_size if hasattr(cell, "step_size") else math.inf
    projected = with_dominant_diagonal(matrix, bound, min(smallest, largest), largest)
    if projected is not matrix:
        cell.weight_hh.add_(projected - matrix)


def _project_antisymmetric(cell: Any, bound: float) -> None:
    """Bound the rows of S below the damping, which is the diagonal."""
    damping = cell.damping
    skew_part = cell.recurrent_matrix().double() + damping * torch.eye(
        cell.hidden_size, dtype=torch.float64, device=cell.weight_hh.device
    )
    # Where tanh is steepest, rows need step_size (damping + sum) <= 2, too. The box of the gated cell does not.
    limit = damping if cell.gates > 1 else min(damping, 2 / cell.step_size - damping)
    projected = with_bounded_rows(skew_part, bound * limit)
    if projected is not skew_part:
        rows, columns = torch.triu_indices(cell.hidden_size, cell.hidden_size, offset=1, device=projected.device)
        cell.weight_hh.copy_(projected[rows, columns])


def _limit_forget_gate(cell: Any, bound: float, inputs: Box) -> None:
    """Bound the forget gate of an LSTM for inputs within a box: a row's weights are scaled, its bias lowered.

    The argument of a unit's gate is its bias and a part that is homogeneous in the unit's rows of W and U. Over the box
    of inputs, and hidden states within theirs, the largest value of that part is scaled to what the bias leaves.

    Args:
        cell: An LSTM, or a variant of one.
        bound: The largest value of the gate, 0.5 or more.
        inputs: Range of the cell's inputs.
    """
    rows = slice(cell.hidden_size, 2 * cell.hidden_size)
    limit = math.log(bound / (1 - bound))
    # Of the variants with momentum, the bias of the input is accumulated as its product is, and scaled with it.
    has_momentum = hasattr(cell, "bias_hh")
    bias = (cell.bias_hh if has_momentum else cell.bias_ih)[rows]
    # Something is left for the weights.
    bias.clamp_(max=limit - min(1.0, limit / 2))
    hidden = Box.around_zero(cell.hidden_size, cell.step_bound().balls[0].radius)
    weight_ih, recurrent = float64(cell.weight_ih), float64(cell.recurrent_matrix())
    if has_momentum:
        drive = inputs.affine(cell.input_scale * weight_ih, cell.input_scale * float64(cell.bias_ih))
        largest = cell.gate_ranges(drive, hidden.affine(recurrent)).upper[rows]
    else:
        largest = inputs.affine(weight_ih[rows]).plus(hidden.affine(recurrent[rows])).upper
    remaining = limit - float64(bias)
    scales = np.where(largest > remaining, remaining / np.maximum(largest, EPSILON), 1.0)
    if (scales == 1).all():
        return
    factors = torch.from_numpy(scales * (1 - FLOAT32_EPSILON)).to(cell.weight_ih)
    factors[torch.from_numpy(scales == 1)] = 1.0
    for parameter in (cell.weight_ih, cell.weight_hh):
        parameter[rows] *= factors[:, None]
    if has_momentum:
        cell.bias_ih[rows] *= factors


def _project_symmetric_skew(cell: Any, bound: float) -> None:
    if cell.key == "noisy_rnn":
        cell.unit_steps.clamp_(*(multiple * cell.step_size for multiple in UNIT_STEPS))
        steps = cell.unit_steps.double()
    else:
        steps = cell.weight_hh.new_full((cell.hidden_size,), cell.step_size, dtype=torch.float64)
    factor = 1.0
    if cell.key == "lipschitz_rk2":
        # With bound = 1 - margin, this is sqrt(1 - 2 margin), as the table of regions states.
        factor, bound = 3.0, math.sqrt(max(0.0, 2 * bound - 1))
    # In the norm scaled by the units' steps the matrices are E A E and E W E, entry by entry sqrt(e_i e_j) times them.
    scales = steps.sqrt()[:, None] * steps.sqrt()
    linear_scale = getattr(cell, "linear_scale", 1.0)
    # In float64 from the weights on: rounding is of their size, which can be far larger than that of the result.
    linear = symmetric_skew(cell.weight_linear.double(), cell.skew_weight, cell.linear_damping)
    recurrent = symmetric_skew(cell.weight_hh.double(), cell.skew_weight, cell.recurrent_damping)
    deviation = scales * recurrent / 2
    middle = torch.eye(cell.hidden_size).to(scales) + scales * linear_scale * linear + deviation
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
    # Rounded as a whole: the change alone would be off by the rounding of its own size, which can be far larger.
    weight.copy_(weight.double() + weight_change)


PROJECTIONS: dict[str, Callable[[Any, float], None]] = {
    **dict.fromkeys(("rnn", "identity_rnn", "rnn_orth"), _clip_recurrent),
    "soft_orth": _project_soft_orth,
    "spectral_rnn": _clip_spectrum,
    "kru": _clip_kronecker_factors,
    "nnrnn": _clip_schur_form,
    "incremental": _project_incremental,
    "indrnn": _clip_diagonal,
    "fastrnn": _project_fast,
    **dict.fromkeys(("lipschitz", "lipschitz_rk2", "noisy_rnn"), _project_symmetric_skew),
    **dict.fromkeys(("neural_ode_rnn", "antisym_ablation", "fastgrnn", "fastgrnn_lsq"), _project_dominant),
    **dict.fromkeys(("antisymmetric", "antisymmetric_g"), _project_antisymmetric),
}
"""By cell, the function that moves its parameters into the region of a bound, 1 less the margin."""

RANGE_PROJECTIONS: dict[str, Callable[[Any, float, Box], None]] = dict.fromkeys(
    ("lstm", "momentum_lstm", "sr_lstm", "ode_lstm", "slstm"), _limit_forget_gate
)
"""The same of cells whose region depends on the range of their inputs."""
