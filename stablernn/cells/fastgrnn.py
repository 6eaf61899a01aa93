"""FastGRNN: Kusupati, Singh, Bhatia, Kumar, Jain, Varma, "FastGRNN: a fast, accurate, stable and tiny kilobyte sized
gated recurrent neural network", NeurIPS 2018."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import gated_bound, largest_mix
from stablernn.bounds.intervals import (
    FLOAT32_EPSILON,
    Box,
    accumulated_rounding,
    grow_invariant,
    sigmoid,
)
from stablernn.bounds.linalg import EPSILON, Matrix, row_norms
from stablernn.bounds.step_bound import StepBound, ball_of, restoring_box
from stablernn.cells._base import State, Weights, check_choice, check_finite, empty_parameter, float64
from stablernn.cells._catalog import register_cell
from stablernn.cells._fast import (
    GATE_NONLINEARITIES,
    NONLINEARITIES,
    PAPER,
    PAPER_SOURCE,
    PAPER_TRAINING,
    TRAINING,
    Compression,
    FastCell,
    GateNonlinearity,
    Nonlinearity,
    activate,
)

_GUARANTEE = "beyond sigmoid(zeta) the state grows by at most sigmoid(nu) a step (tanh); not contracting"
_NO_COMPRESSION = Compression()


class _GatedFastCell(FastCell):
    """The gated step of both cells, whose gate and candidate share both matrices."""

    biases = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: Nonlinearity,
        gate_nonlinearity: GateNonlinearity,
        zeta_init: float,
        nu_init: float,
        compression: Compression = _NO_COMPRESSION,
    ) -> None:
        super().__init__(input_size, hidden_size, compression)
        check_choice(self, "nonlinearity", nonlinearity, NONLINEARITIES)
        check_choice(self, "gate_nonlinearity", gate_nonlinearity, GATE_NONLINEARITIES)
        check_finite(self, zeta_init=zeta_init, nu_init=nu_init)
        self.nonlinearity: Nonlinearity = nonlinearity
        self.gate_nonlinearity: GateNonlinearity = gate_nonlinearity
        self.zeta_init = zeta_init
        self.nu_init = nu_init
        self.zeta = empty_parameter()
        self.nu = empty_parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.zeta, self.zeta_init)
        nn.init.constant_(self.nu, self.nu_init)

    def scalars(self) -> tuple[Tensor, ...]:
        return torch.sigmoid(self.zeta), torch.sigmoid(self.nu)

    def step_bound_within(self, inputs: Box) -> StepBound:
        if (self.nonlinearity, self.gate_nonlinearity) != ("tanh", "sigmoid"):
            return self.step_bound()
        size = self.hidden_size
        zeta, nu = (float(scalar.detach()) for scalar in self.scalars())
        bias_z, bias_h = np.split(float64(self._quantized(self.bias_ih)), 2)
        matrix, drive = self.multiply_factors(self._recurrent), inputs.affine(self.multiply_factors(self._input))

        def ranges(states: Box) -> tuple[Box, Box, Box]:
            p = drive.plus(states.affine(matrix))
            gate, candidates = p.plus(Box(bias_z, bias_z)), p.plus(Box(bias_h, bias_h)).tanh()
            # z h + (zeta (1 - z) + nu) t does not leave a range with t (zeta + nu / (1 - z)) in it.
            opening = sigmoid(-gate.upper)
            scaled = candidates.with_zero().scaled(zeta + nu / np.maximum(opening, FLOAT32_EPSILON))
            return gate.sigmoid(), candidates, scaled.scaled(accumulated_rounding(opening))

        states = grow_invariant(size, lambda states: ranges(states)[2])
        if states is None:
            # A state that can open its own gate, but whose candidate always points back: below zeta a step adds at most
            # zeta + nu, beyond it nu.
            candidate_drive = drive.plus(Box(bias_h, bias_h))
            states = restoring_box(matrix, candidate_drive, nu)
            if states is None:
                return self.step_bound()
            states = states.hull(Box.around_zero(size, (zeta + nu) * (1 + 8 * FLOAT32_EPSILON)))
        gate, candidates, _ = ranges(states)

        def mixed(old: Matrix, by_p: Matrix) -> Matrix:
            # z (1 - z) (h - zeta t) + (zeta (1 - z) + nu) (1 - t^2), by the argument that both have in common.
            smallest = candidates.smallest_modulus
            farthest = states.distance(Box(zeta * candidates.lower, zeta * candidates.upper))

            def new(share: Matrix) -> Matrix:
                return by_p * (share * farthest + zeta * (1 - smallest**2))

            return largest_mix(old, new, gate.lower, gate.upper) + nu * (1 - smallest**2) * by_p * (1 + 64 * EPSILON)

        return gated_bound(
            lambda weights: mixed(weights, np.abs(matrix) @ weights),
            mixed(np.zeros(size), row_norms(self.multiply_factors(self._input))),
            covers=("hidden",),
            output=slice(None),
            balls=(ball_of("hidden", states),),
        )

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        zeta, nu, bias_z, bias_h = weights[:4]
        # One product W x + U h for both, which differ in their bias alone.
        p = self.pre_activation(weights, h, drive)
        z = activate(p + bias_z, self.gate_nonlinearity)
        return (z * h + (zeta * (1 - z) + nu) * activate(p + bias_h, self.nonlinearity),)


@register_cell(
    "fastgrnn",
    title="gate and candidate share low-rank, sparse, int8-quantized matrices",
    paper=PAPER,
    year=2018,
    guarantee=_GUARANTEE,
    equation=(
        "p = W x + U h; z = sigmoid(p + b_z); h <- z .* h + (sigmoid(zeta) (1 - z) + sigmoid(nu)) .* tanh(p + b_h); "
        "W = W1 W2 and U = U1 U2 of low rank, their factors sparse and quantized to int8"
    ),
    paper_options={"input_rank": 1, "recurrent_rank": 30, "recurrent_kept": 0.3},
    paper_source=(
        "ranks and kept fractions are those of pixel MNIST at 128 units, and so is the rate, halved every 200 epochs; "
        "how many epochs that task takes is not known, 300 are those of the others. Batch size and initial numbers as "
        "in the paper, the optimizer as it names it for one task. Three phases of equal length as in the released "
        "code; one int8 scale for each tensor is our choice."
    ),
    # Pixel MNIST halves the rate, where the other tasks divide it by 10.
    training={**TRAINING, "paper": {**PAPER_TRAINING, "lr_decay": 0.5}},
)
class FastGRNNCell(_GatedFastCell):
    r"""A gated step with two matrices that are of low rank, sparse and quantized to int8: a model of kilobytes.

    .. math::
        p_t = W x_t + U h_{t-1}, \quad z_t = \sigma(p_t + b_z), \quad
        h_t = z_t \odot h_{t-1} + (\sigma(\zeta) (1 - z_t) + \sigma(\nu)) \odot \tanh(p_t + b_h)

    In code: W is the product of ``weight_ih`` and ``weight_ih_right``, or ``weight_ih`` alone where it has full rank; U
    is that of ``weight_hh`` and ``weight_hh_right``, or ``weight_hh`` alone. ``bias_ih`` is b_z over b_h. ``zeta`` and
    ``nu`` are trained before their sigmoids.

    Each matrix, or each of its two factors, is sparsified and quantized on its own. Training has three phases, each a
    third of its steps: all entries train; every 15 steps all but the largest are set to zero, and may grow back in
    between; the support is frozen, and stored in the buffers ``*_support``. In evaluation, in every phase, no more than
    the given fraction of each matrix is nonzero, and each entry is an integer from -127 to 127 times one scale for the
    tensor (``zeta`` and ``nu`` are not quantized). So the small model is what is validated and exported, even if the
    best epoch is an early one.

    Guarantee:
        By construction with tanh (the default) or quant_tanh: :math:`|h_t| \le \max(|h_{t-1}|, \sigma(\zeta)) +
        \sigma(\nu)` in every coordinate. A gate at one keeps the state and still adds to it, so that it can grow for
        as long as the gate stays there; below :math:`\sigma(\zeta)` one step can add more than :math:`\sigma(\nu)`.
        Nothing makes trajectories approach each other, and for all inputs no rate is proved: the slope of the gate is
        multiplied by the state, which has no invariant ball. For inputs within a range there is one if the weights are
        small, or if a negative diagonal dominates each row of U, and with it a rate (tanh and sigmoid only). In
        evaluation the size of the model, too, holds by construction.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        nonlinearity: ``tanh``, ``relu`` or ``quant_tanh``, which clips z to -1 and 1.
        gate_nonlinearity: ``sigmoid``, ``quant_sigmoid``, (z + 1)/2, or ``quant_sigmoid4``, (z + 2)/4, both clipped to
            0 and 1.
        zeta_init: Initial zeta, before the sigmoid.
        nu_init: Initial nu, before the sigmoid.
        input_rank: Rank of W; None, or no less than its smaller side: W is one full matrix.
        recurrent_rank: Rank of U; None, or no less than hidden_size: U is one full matrix.
        input_kept: Fraction of the entries of W (or of each factor) that stays nonzero, above 0; 1 for a dense matrix.
        recurrent_kept: The same fraction for U. The default is ours.
        byte_weights: Whether evaluation quantizes matrices and biases to int8.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = FastGRNNCell(input_size=3, hidden_size=64, recurrent_rank=16)
        >>> cell.weight_hh.shape, cell.weight_hh_right.shape
        (torch.Size([64, 16]), torch.Size([16, 64]))

    References:
        The paper, and its released code for the three phases. There the support is fixed between two thresholdings, so
        that the first one decides; here entries that were set to zero train in between, so that they can grow back.
        There one scale serves all matrices and biases, here each has its own. The paper's models for arithmetic
        without exponentials are trained with quant_tanh and quant_sigmoid; the default is ours.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: Nonlinearity = "tanh",
        gate_nonlinearity: GateNonlinearity = "sigmoid",
        zeta_init: float = 1.0,
        nu_init: float = -4.0,
        input_rank: int | None = None,
        recurrent_rank: int | None = None,
        input_kept: float = 1.0,
        recurrent_kept: float = 0.5,
        byte_weights: bool = True,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            nonlinearity=nonlinearity,
            gate_nonlinearity=gate_nonlinearity,
            zeta_init=zeta_init,
            nu_init=nu_init,
            compression=Compression(
                input_rank=input_rank,
                recurrent_rank=recurrent_rank,
                input_density=input_kept,
                recurrent_density=recurrent_kept,
                quantize_int8=byte_weights,
            ),
        )


@register_cell(
    "fastgrnn_lsq",
    title="FastGRNN without low rank, sparsity and quantization",
    paper=PAPER,
    year=2018,
    guarantee=_GUARANTEE,
    equation=(
        "p = W x + U h; z = sigmoid(p + b_z); h <- z .* h + (sigmoid(zeta) (1 - z) + sigmoid(nu)) .* tanh(p + b_h)"
    ),
    paper_options={},
    paper_source=PAPER_SOURCE,
    training=TRAINING,
)
class FastGRNNLSQCell(_GatedFastCell):
    r"""FastGRNN with full matrices; the name's "-LSQ" stands for minus low rank, sparsity and quantization.

    The step and its letters are those of :class:`FastGRNNCell`; W is ``weight_ih`` and U is ``weight_hh``.

    Guarantee:
        That of :class:`FastGRNNCell` for the state: by construction with tanh (the default) or quant_tanh it grows by
        at most :math:`\sigma(\nu)` a step beyond :math:`\sigma(\zeta)`, and no rate is proved.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        nonlinearity, gate_nonlinearity, zeta_init, nu_init: As for :class:`FastGRNNCell`.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside the values listed above.

    References:
        The paper. W, U ~ 0.1 N(0, 1) and biases of 1 as in the released code.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: Nonlinearity = "tanh",
        gate_nonlinearity: GateNonlinearity = "sigmoid",
        zeta_init: float = 1.0,
        nu_init: float = -4.0,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            nonlinearity=nonlinearity,
            gate_nonlinearity=gate_nonlinearity,
            zeta_init=zeta_init,
            nu_init=nu_init,
        )
