"""Training that stays inside the certified region: after each step parameters outside move to a near point of it.

The region of a cell is a set of parameters for which :meth:`stablernn.cells.StableCell.step_bound` proves a kind, small
enough to be projected onto in a few eigenvalues a step. With ``r = 1 - margin``:

    rnn, identity_rnn, rnn_orth, soft_orth      norm(W) <= r
    spectral_rnn, soft_orth factored            singular values <= r
    nnrnn                                       norm(L + T) <= r
    kru                                         norm of each of n factors <= r^(1/n)
    indrnn                                      |u| <= r
    fastrnn                                     sigmoid(beta) + sigmoid(alpha) norm(U) <= r
    incremental                                 |p start - 1| + norm(U) (...) <= r, with inner steps within 0 and 1/leak
    lipschitz                                   norm(I + eps (a A + W/2)) + norm(eps W/2) <= r
    noisy_rnn                                   norm(I + E (A + W/2) E) + norm(E W/2 E) <= r
    lipschitz_rk2                               norm(I + eps (A + W/2)) + 3 norm(eps W/2) <= sqrt(1 - 2 margin)
    neural_ode_rnn                              sum of |k_ij| over j != i <= r |k_ii|, -1/eps <= k_ii <= 0
    antisym_ablation                            the same, with k_ii <= -0.01
    fastgrnn, fastgrnn_lsq                      the same of U, without -1/eps
    antisymmetric, antisymmetric_g              sum of |s_ij| over j <= r damping
    lstm, momentum_lstm, sr_lstm, ode_lstm,
    slstm                                       forget gate <= r for inputs within the range of training

with a = linear_scale, and E^2 the steps of the units. Those of the Lipschitz RNN are around the middle of the slopes of
tanh, 1/2: W is in one matrix with A there, and its negative part damps too.

Each is convex, those of nnrnn at fixed phases and that of incremental at fixed inner steps, and the nearest point, in
the Frobenius norm of the matrices that it bounds, keeps their singular vectors. Why the step contracts there:
docs/background/stability.md. A matrix of low rank has both factors scaled alike, ``nnrnn`` is scaled where clipping
does not suffice, and ``antisymmetric`` by rows and columns, which is inside but not nearest. Cells that are certified
for all parameters have nothing to be projected but the bias of modReLU where it is positive, which makes a jump.

First the nearest points of sets of matrices, then the projection of each cell, then the tables and what uses them.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.linalg import EPSILON
from stablernn.cells import StableCell
from stablernn.cells._base import float64
from stablernn.cells.eunn import OFFSET
from stablernn.cells.lipschitz import SymmetricSkewCell
from stablernn.certificates.certificate import first_layer_boxes
from stablernn.certificates.input_range import InputRange
from stablernn.errors import ConfigError
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import SequenceModel
from stablernn.parametrizations import symmetric_skew
from stablernn.terms import terms

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
Kind = Literal["contracting", "non-expansive", "bounded"]

BY_CONSTRUCTION: dict[str, Kind] = {
    **dict.fromkeys(("lru", "ren"), "contracting"),
    **dict.fromkeys(("scornn", "exprnn", "dtriv", "urnn", "fc_urnn", "eunn", "lvf_mid"), "non-expansive"),
    **dict.fromkeys(("mingru", "minlstm", "nais_net"), "non-expansive"),
    **dict.fromkeys(("gru", "gru_d", "lem", "cfc", "lvf", "cornn", "smoothing"), "bounded"),
}
"""The kind that holds for all parameters, with softshrink or another nonlinearity without a jump."""


def within_norm(matrix: Tensor, bound: float) -> Tensor:
    """Return the nearest matrix of norm ``bound`` or less in the Frobenius norm: its singular values are clipped.

    Args:
        matrix: ``(m, n)`` float64, or complex128.
        bound: 0 or more.
    """
    return _clip_singular(matrix, *_right_singular(matrix), bound)


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


def _clip_recurrent(cell: Any, bound: float) -> None:
    cell.weight_hh.copy_(within_norm(cell.weight_hh.double(), bound))


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

_LSTMS = ("lstm", "momentum_lstm", "sr_lstm", "ode_lstm", "slstm")
"""Cells whose region depends on the range of their inputs, see :func:`_limit_forget_gate`."""
_RESTORED = ("antisymmetric_g", "antisym_ablation", "fastgrnn", "fastgrnn_lsq")
"""Cells that stay bounded by a dominant diagonal, see :func:`stablernn.bounds.step_bound.restoring_box`."""

WITHIN_RANGE = frozenset({*_LSTMS, *_RESTORED, "smoothing"})
"""Cells whose kind is that for inputs within the range of training, and regular steps; nothing holds for all inputs."""

ONLY_ON_REQUEST = WITHIN_RANGE | {"incremental", "neural_ode_rnn", "antisymmetric"}
"""Cells whose region costs accuracy, or proves nothing for all inputs: training is free unless it is asked for."""

_PROJECTED_KINDS: dict[str, Kind] = {
    **dict.fromkeys(PROJECTIONS, "contracting"),
    **dict.fromkeys((*_LSTMS, *_RESTORED), "bounded"),
    **dict.fromkeys(("neural_ode_rnn", "antisymmetric"), "non-expansive"),
}
"""The kind that projection keeps a cell in."""

_REASONS = {
    "unicornn": "its step loses no energy, so that an input in resonance makes the state grow without end",
    "ode_rnn": "a gate at one keeps what the flow adds at every step, and the state itself can open it",
    "rocket": "no weight of it is trained, its states are bounded in any case, and a sample is never forgotten",
}
"""Why a cell has no region, as the rest of a sentence."""


def certified_kind(cell: StableCell) -> Kind:
    """Return the kind that :func:`project` keeps a cell in, or that holds for all of its parameters.

    Of the cells in ``WITHIN_RANGE`` it is the kind for inputs within a range.

    Raises:
        ConfigError: If the cell, or an option of it, has no certified region.
    """
    kind = BY_CONSTRUCTION.get(cell.key) or _PROJECTED_KINDS.get(cell.key)
    if kind is None:
        reason = f": {_REASONS[cell.key]}" if cell.key in _REASONS else ""
        raise ConfigError(
            f"The cell '{cell.key}' has no certified region that training could stay in{reason}. Take one that has, "
            "such as lipschitz, rnn, lru or exprnn (all are in docs/background/stability.md), or leave "
            f"{terms().key('training.certified')} out."
        )
    # All at once: whoever sets one of them would otherwise be refused again because of the next.
    excluded = [(name, replacement) for name, is_excluded, replacement in _excluded_options(cell) if is_excluded]
    if excluded:
        values = " and ".join(f"{name}={getattr(cell, name)!r}" for name, _ in excluded)
        replacements = " and ".join(f"model.cell_options.{name} to {replacement}" for name, replacement in excluded)
        raise ConfigError(f"The cell '{cell.key}' has no certified region with {values}; set {replacements}.")
    return kind


def suggest_proof(cell: StableCell) -> str:
    """Return the option that would give a proof of a cell for which there is none, as a sentence."""
    if cell.is_fixed:
        return (
            f"No weight of the cell '{cell.key}' is trained, so that no training proves more. Take one with trained "
            "weights, such as lipschitz, rnn, lru or exprnn."
        )
    try:
        kind = certified_kind(cell)
    except ConfigError as error:
        return str(error)
    scope = " for inputs within the range of training" if is_within_range(cell) else ""
    setting = f"{terms().setting('training.certified', True)}{terms().flag('--certified')}"
    return f"Train with {setting}, which keeps '{cell.key}' {kind}{scope}."


def is_within_range(cell: StableCell) -> bool:
    """Return whether the cell's certified kind is for inputs within a range only."""
    return cell.key in WITHIN_RANGE


def is_projected(cell: StableCell) -> bool:
    """Return whether projection keeps the cell inside its region, by a margin."""
    return cell.key in _PROJECTED_KINDS


def largest_margin(cell: StableCell) -> float:
    """Return the margin that a projected cell's margin must be below, for its options to leave any parameters."""
    # Singular values lie within 1 - margin and 1 + margin by construction.
    is_spectral = cell.key == "spectral_rnn" or getattr(cell, "form", None) == "factored"
    margin: float = cell.margin if is_spectral else 1.0  # type: ignore[assignment]
    return margin


def least_margin(cell: StableCell) -> float:
    """Return the margin that a projected cell's margin must be above, for rounding in float32 to leave the proof."""
    if cell.key not in _RESTORED:
        return 0.0
    # A dominant diagonal must outweigh its row by what float32 can round the sum of both to.
    return 4 * (cell.hidden_size + 8) * FLOAT32_EPSILON


@torch.no_grad()
def project(cell: StableCell, margin: float, inputs: Box | None = None) -> None:
    """Move a cell's parameters into its certified region, in place; those inside stay as they are.

    Args:
        cell: One for which :func:`certified_kind` gives a kind. Parameters that are not finite are left alone.
        margin: By how much the rate of its step stays below 1, or of a region of dominant diagonals the share by which
            they exceed the rest of their rows, or of an LSTM its forget gate below 1, 0 to 0.5; of no use to cells that
            are certified by construction.
        inputs: Range of the cell's inputs, which cells of the LSTM family need.

    Raises:
        ValueError: If an LSTM has no range.
    """
    has_modrelu = getattr(cell, "nonlinearity", None) == "modrelu"
    if not (has_modrelu or is_projected(cell)):
        return
    # No decomposition takes NaN; the training loop stops at a loss that is not finite.
    if not all(bool(torch.isfinite(parameter).all()) for parameter in cell.parameters()):
        return
    if has_modrelu:
        bias: Any = cell.bias
        bias.clamp_(max=-OFFSET if cell.key == "eunn" else 0.0)
    if cell.key in PROJECTIONS:
        PROJECTIONS[cell.key](cell, 1 - margin)
    elif cell.key in _LSTMS:
        if inputs is None:
            raise ValueError(f"The region of the cell '{cell.key}' depends on the range of its inputs, got none.")
        _limit_forget_gate(cell, 1 - margin, inputs)


def project_model(model: SequenceModel, margin: float, inputs: InputRange | None = None) -> None:
    """Run :func:`project` on all layers of all members.

    Args:
        model: A model with such cells, with its scaling fitted.
        margin: As of :func:`project`.
        inputs: Range of the raw inputs, which cells of the LSTM family need.
    """
    if model.rnn.first.cells[0].key not in _LSTMS or inputs is None:
        for cell in model.rnn.cells:
            project(cell, margin)
        return
    stacks = [stack for stack in model.rnn.stacks if isinstance(stack, StableRNN)]
    # An embedding trains, so that the range behind it changes with every step.
    for stack, box in zip(stacks, first_layer_boxes(model, inputs.for_features(model.input_size)), strict=True):
        for cell in stack.cells:
            project(cell, margin, box)
            # The hidden state, which the layer above reads, has a ball for all inputs.
            box = Box.around_zero(cell.output_size, cell.step_bound().balls[0].radius)


def _excluded_options(cell: Any) -> list[tuple[str, bool, str]]:
    """Return options without a certified region: name, whether the cell has it set so, and the value to set instead."""
    match cell.key:
        case "soft_orth":
            return [("margin", cell.form == "factored" and not cell.margin, "more than 0")]
        case "spectral_rnn":
            return [("margin", not cell.margin, "more than 0")]
        case "lvf_mid":
            return [("constraint", cell.constraint != "hard", "hard")]
        case "lvf":
            return [("nonlinearity", cell.nonlinearity != "tanh", "tanh")]
        case "lipschitz":
            return [("skew_weight", cell.skew_weight == 1, "less than 1"), ("linear_scale", not cell.linear_scale, "1")]
        case "lipschitz_rk2" | "noisy_rnn":
            return [("skew_weight", cell.skew_weight == 1, "less than 1")]
        case "nais_net":
            return [("step_size", cell.step_size > 2, "2 or less")]
        case "lem":
            return [("step_size", cell.step_size >= 2, "1 or less")]
        case "gru_d":
            return [("imputation", cell.imputation != "none", "none")]
        case "cornn":
            # An oscillator that fades too slowly has no ball, whatever its weights are.
            return [("damping", not cell.state_balls(), "a larger number")]
        case "antisymmetric":
            is_too_strong = cell.step_size * cell.damping >= 2
            return [("damping", not cell.damping or is_too_strong, f"more than 0, less than {2 / cell.step_size:g}")]
        case "fastgrnn" | "fastgrnn_lsq":
            return [
                ("nonlinearity", cell.nonlinearity != "tanh", "tanh"),
                ("gate_nonlinearity", cell.gate_nonlinearity != "sigmoid", "sigmoid"),
                # A dominant diagonal does not survive low rank, thresholding and rounding to int8.
                ("recurrent_rank", cell.recurrent_rank < cell.hidden_size, "null"),
                ("recurrent_kept", cell.recurrent_kept < 1, "1"),
                ("byte_weights", cell.byte_weights, "false"),
            ]
        case "antisymmetric_g":
            return [("damping", not cell.damping, "more than 0")]
        case _:
            return []
