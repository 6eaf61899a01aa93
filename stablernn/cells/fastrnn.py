"""FastRNN and FastGRNN: Kusupati, Singh, Bhatia, Kumar, Jain, Varma, "FastGRNN: a fast, accurate, stable and tiny
kilobyte sized gated recurrent neural network", NeurIPS 2018."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import Sector, dominance_bound, sector_bound
from stablernn.bounds.step_bound import StepBound, float64
from stablernn.cells._base import StableCell, State, check_finite, check_word
from stablernn.cells._catalog import register_cell

Nonlinearity = Literal["tanh", "relu", "quant_tanh"]
GateNonlinearity = Literal["sigmoid", "quant_sigmoid", "quant_sigmoid4"]

_PAPER = "Kusupati, Singh, Bhatia, Kumar, Jain, Varma: FastGRNN (NeurIPS 2018)"
_SOURCE = (
    "initial numbers as in the paper and its released code. Learning rate, batch size and the drop of the rate after "
    "200 of 300 epochs as in the paper for all tasks but pixel MNIST; it names the optimizer for one task only."
)
_PAPER_TRAINING = {
    "lr": 0.01,
    "optimizer": "adam",
    "schedule": "step",
    "lr_decay": 0.1,
    "step_epochs": 200,
    "epochs": 300,
    "batch_size": 100,
}
_TRAINING = {
    "practical": {"lr": 0.01, "schedule": "one-cycle", "epochs": 60, "batch_size": 32, "clip_norm": 1.0},
    "paper": _PAPER_TRAINING,
}
_GATED_GUARANTEE = "beyond sigmoid(zeta) the state grows by at most sigmoid(nu) a step (tanh); not contracting"

_BYTE = 127
"""Weights become whole numbers from -127 to 127 times a scale; -128, the byte without a negative, is left out."""

_THRESHOLD_EVERY = 15
"""Steps between two cuts of the second phase. Cut after every step, no number has the time to grow back to the size of
those that are kept, and the first cut would be the last."""


class _FastCell(StableCell):
    """Matrices W and U that may be of low rank, sparse and made of bytes; biases start at one.

    A matrix of low rank is the product of two factors; each factor counts as a matrix where it is thinned out and
    rounded. Training goes through three phases, each a third of its steps: all numbers move; the smallest are set to
    zero every few steps, to come back where the gradient wants it (iterative hard thresholding); the support is frozen.
    In evaluation a cell is always what its options say: of each matrix no more than the kept fraction is left, and each
    number is a byte times a scale.
    """

    biases = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        input_rank: int | None = None,
        recurrent_rank: int | None = None,
        input_kept: float = 1.0,
        recurrent_kept: float = 1.0,
        byte_weights: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.input_rank = self._checked_rank("input_rank", input_rank, min(input_size, hidden_size))
        self.recurrent_rank = self._checked_rank("recurrent_rank", recurrent_rank, hidden_size)
        for name, kept in (("input_kept", input_kept), ("recurrent_kept", recurrent_kept)):
            if not 0 < kept <= 1:
                raise ValueError(f"{name} must be greater than 0 and at most 1 for {type(self).__name__}, got {kept}.")
        self.input_kept = input_kept
        self.recurrent_kept = recurrent_kept
        self.byte_weights = byte_weights
        self.plans_ahead = min(input_kept, recurrent_kept) < 1
        self._compresses = byte_weights or input_kept < 1
        self._input = self._make_matrix("weight_ih", hidden_size, input_size, self.input_rank, input_kept)
        self._recurrent = self._make_matrix("weight_hh", hidden_size, hidden_size, self.recurrent_rank, recurrent_kept)
        self._fractions = dict.fromkeys(self._input, input_kept) | dict.fromkeys(self._recurrent, recurrent_kept)
        self.bias_ih = nn.Parameter(torch.empty(self.biases * hidden_size))

    def _checked_rank(self, name: str, rank: int | None, full: int) -> int:
        if rank is not None and not (rank >= 1 and rank % 1 == 0):
            raise ValueError(f"{name} must be a whole number, 1 or more, for {type(self).__name__}, got {rank}.")
        return full if rank is None else min(int(rank), full)

    def _make_matrix(self, name: str, rows: int, columns: int, rank: int, kept: float) -> tuple[str, ...]:
        """Parameters and masks of a matrix: itself, or its left and its right factor."""
        shapes = {name: (rows, columns)}
        if rank < min(rows, columns):
            shapes = {name: (rows, rank), f"{name}_right": (rank, columns)}
        for factor, shape in shapes.items():
            self.register_parameter(factor, nn.Parameter(torch.empty(shape)))
            if kept < 1:
                self.register_buffer(f"{factor}_support", torch.ones(shape, dtype=torch.bool))
        return tuple(shapes)

    def reset_parameters(self) -> None:
        for name, kept in self._fractions.items():
            nn.init.normal_(getattr(self, name), std=0.1)
            if kept < 1:
                getattr(self, f"{name}_support").fill_(True)
        nn.init.ones_(self.bias_ih)

    def missed_schedule(self) -> str | None:
        if not self.plans_ahead or not self._passes_since_schedule:
            return None
        return "have set the smallest weights to zero, so that training sees the sparse matrices that evaluation uses"

    def after_step(self, step: int, total_steps: int) -> None:
        super().after_step(step, total_steps)
        second, third = total_steps // 3 + 1, 2 * total_steps // 3 + 1
        if step < second:
            return
        for name, kept in self._fractions.items():
            if kept == 1:
                continue
            weight: Tensor = getattr(self, name)
            support = getattr(self, f"{name}_support")
            if step >= third:
                if bool(support.all()):
                    support.copy_(_largest(weight, kept))
                weight.mul_(support)
            elif (step - second) % _THRESHOLD_EVERY == 0:
                weight.mul_(_largest(weight, kept))

    def used(self, name: str) -> Tensor:
        """A matrix, or a factor of one, as a step uses it."""
        weight: Tensor = getattr(self, name)
        kept = self._fractions[name]
        if kept < 1:
            weight = weight * getattr(self, f"{name}_support")
            if not self.training:
                weight = weight * _largest(weight, kept)
        return self._rounded(weight)

    def _rounded(self, weight: Tensor) -> Tensor:
        return _as_bytes(weight) if self.byte_weights and not self.training else weight

    def recurrent_matrix(self) -> Tensor:
        matrix = self.used(self._recurrent[0])
        for name in self._recurrent[1:]:
            matrix = matrix @ self.used(name)
        return matrix

    def exact(self, factors: Sequence[str]) -> Matrix:
        """The product of a matrix's factors in float64."""
        return reduce(np.matmul, (float64(self.used(name)) for name in factors))

    def scalars(self) -> tuple[Tensor, ...]:
        """The two trained numbers, as the step uses them."""
        raise NotImplementedError

    def materialize(self) -> tuple[Tensor, ...]:
        """The scalars, each bias, the factors of W from left to right, and those of U."""
        factors = [self.used(name) for name in (*self._input, *self._recurrent)]
        return (*self.scalars(), *self._rounded(self.bias_ih).chunk(self.biases), *factors)

    def drive(self, x: Tensor) -> Tensor:
        # Where W is not used as it is kept, it is among the weights: thinned out and rounded once, not at every step.
        return x if self._compresses else _applied([getattr(self, name) for name in self._input], x)

    def product(self, weights: tuple[Tensor, ...], h: Tensor, drive: Tensor) -> Tensor:
        """``W x + U h``."""
        factors = weights[2 + self.biases :]
        count = len(self._input)
        driven = _applied(factors[:count], drive) if self._compresses else drive
        return driven + _applied(factors[count:], h)


def _applied(factors: Sequence[Tensor], v: Tensor) -> Tensor:
    for factor in reversed(factors):
        v = nn.functional.linear(v, factor)
    return v


def _largest(weight: Tensor, kept: float) -> Tensor:
    """Where the largest entries stand, at most a fraction ``kept`` of them but one at least; none that is zero."""
    size = weight.detach().abs().flatten()
    # Rounded first: 0.29 of 100 is 28.999999999999996 in floating point.
    count = max(1, math.floor(round(kept * size.numel(), 6)))
    chosen = torch.zeros_like(size, dtype=torch.bool).index_fill(0, size.topk(count).indices, True)
    return (chosen & (size > 0)).view_as(weight)


def _as_bytes(weight: Tensor) -> Tensor:
    """Each entry as a whole number from -127 to 127, times one scale for the tensor: the largest entry is 127."""
    # In float64, so that no entry near the middle of two bytes is rounded otherwise in another precision.
    precise = weight.double()
    scale = precise.abs().max().clamp_min(torch.finfo(torch.float32).tiny) / _BYTE
    return (torch.round(precise / scale) * scale).to(weight.dtype)


def _function(z: Tensor, word: str) -> Tensor:
    match word:
        case "tanh":
            return torch.tanh(z)
        case "relu":
            return torch.relu(z)
        case "sigmoid":
            return torch.sigmoid(z)
        case "quant_tanh":
            return torch.clamp(z, -1, 1)
        case "quant_sigmoid":
            return torch.clamp((z + 1) / 2, 0, 1)
        case _:
            return torch.clamp((z + 2) / 4, 0, 1)


@register_cell(
    "fastrnn",
    title="weighted residual RNN with two trained scalars",
    paper=_PAPER,
    year=2018,
    guarantee="with tanh the state stays within sigmoid(alpha) / (1 - sigmoid(beta)); of contraction none",
    family="general",
    equation="c = f(W x + U h + b); h <- sigmoid(beta) h + sigmoid(alpha) c; W, U full or of low rank",
    paper_options={"alpha_init": -3.0, "beta_init": 3.0},
    paper_source=_SOURCE,
    training=_TRAINING,
)
class FastRNNCell(_FastCell):
    r"""A residual connection with two trained weights, which bound how gradients grow with the length of a sequence.

    .. math:: c_t = f(W x_t + U h_{t-1} + b), \quad h_t = \sigma(\beta) h_{t-1} + \sigma(\alpha) c_t

    In code: W is ``weight_ih``, U is ``weight_hh``, b is ``bias_ih``; of low rank each is the product of ``weight_ih``
    and ``weight_ih_right``, of ``weight_hh`` and ``weight_hh_right``. ``alpha`` and ``beta`` are trained before their
    sigmoids, and start at ``alpha_init`` and ``beta_init``.

    Guarantee:
        By construction with tanh (the default) or quant_tanh: the state stays within
        :math:`\sigma(\alpha) / (1 - \sigma(\beta))` in every coordinate, since each step multiplies it by
        :math:`\sigma(\beta) < 1` and adds at most :math:`\sigma(\alpha)`. With relu it can grow. Trajectories approach
        each other where :math:`\sigma(\beta) + \sigma(\alpha) \|U\| < 1`, which nothing enforces.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        nonlinearity: ``tanh``, ``relu`` (the paper's for words) or ``quant_tanh``, which is z cut off at -1 and 1.
        alpha_init: Where alpha starts, before the sigmoid; of the new part of the state.
        beta_init: Where beta starts, before the sigmoid; of the part that stays.
        input_rank: Rank of W; None, or no less than its smaller side: W is one full matrix.
        recurrent_rank: Rank of U; None, or no less than hidden_size: U is one full matrix.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = FastRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper, whose analysis wants alpha to fall with the length of the sequences and beta to be near 1 - alpha.
        W, U ~ 0.1 N(0, 1) and b = 1 as in the released code.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        nonlinearity: Nonlinearity = "tanh",
        alpha_init: float = -3.0,
        beta_init: float = 3.0,
        input_rank: int | None = None,
        recurrent_rank: int | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, input_rank=input_rank, recurrent_rank=recurrent_rank)
        check_word(self, "nonlinearity", nonlinearity, ("tanh", "relu", "quant_tanh"))
        check_finite(self, alpha_init=alpha_init, beta_init=beta_init)
        self.nonlinearity = nonlinearity
        self.alpha_init = alpha_init
        self.beta_init = beta_init
        self.alpha = nn.Parameter(torch.empty(()))
        self.beta = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.alpha_init)
        nn.init.constant_(self.beta, self.beta_init)

    def scalars(self) -> tuple[Tensor, ...]:
        return torch.sigmoid(self.alpha), torch.sigmoid(self.beta)

    def sector(self) -> Sector:
        unit = np.eye(self.hidden_size)
        alpha, beta = (number.item() for number in self.scalars())
        given, recurrent = self.exact(self._input), self.exact(self._recurrent)
        reach = math.inf if self.nonlinearity == "relu" else 1.0
        return Sector(beta * unit, alpha * unit, recurrent, given, reach=reach)

    def step_bound(self) -> StepBound:
        step = self.sector()
        return dominance_bound(step, sector_bound(step))

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        alpha, beta, bias = weights[:3]
        return (beta * h + alpha * _function(self.product(weights, h, drive) + bias, self.nonlinearity),)


class _FastGRNNCell(_FastCell):
    """The gated step, whose gate and candidate share both matrices."""

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
        input_rank: int | None = None,
        recurrent_rank: int | None = None,
        input_kept: float = 1.0,
        recurrent_kept: float = 1.0,
        byte_weights: bool = False,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            input_rank=input_rank,
            recurrent_rank=recurrent_rank,
            input_kept=input_kept,
            recurrent_kept=recurrent_kept,
            byte_weights=byte_weights,
        )
        check_word(self, "nonlinearity", nonlinearity, ("tanh", "relu", "quant_tanh"))
        check_word(self, "gate_nonlinearity", gate_nonlinearity, ("sigmoid", "quant_sigmoid", "quant_sigmoid4"))
        check_finite(self, zeta_init=zeta_init, nu_init=nu_init)
        self.nonlinearity = nonlinearity
        self.gate_nonlinearity = gate_nonlinearity
        self.zeta_init = zeta_init
        self.nu_init = nu_init
        self.zeta = nn.Parameter(torch.empty(()))
        self.nu = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.zeta, self.zeta_init)
        nn.init.constant_(self.nu, self.nu_init)

    def scalars(self) -> tuple[Tensor, ...]:
        return torch.sigmoid(self.zeta), torch.sigmoid(self.nu)

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        zeta, nu, bias_z, bias_h = weights[:4]
        p = self.product(weights, h, drive)
        z = _function(p + bias_z, self.gate_nonlinearity)
        return (z * h + (zeta * (1 - z) + nu) * _function(p + bias_h, self.nonlinearity),)


@register_cell(
    "fastgrnn",
    title="gate and candidate share low-rank, sparse matrices of bytes",
    paper=_PAPER,
    year=2018,
    guarantee=_GATED_GUARANTEE,
    family="general",
    equation=(
        "p = W x + U h; z = sigmoid(p + b_z); h <- z .* h + (sigmoid(zeta) (1 - z) + sigmoid(nu)) .* tanh(p + b_h); "
        "W = W1 W2 and U = U1 U2 of low rank, their factors sparse and in bytes"
    ),
    paper_options={"input_rank": 1, "recurrent_rank": 30, "recurrent_kept": 0.3},
    paper_source=(
        "ranks and kept fractions are those of pixel MNIST at 128 units, and so is the rate, halved every 200 epochs; "
        "how many epochs that task takes is not known, 300 are those of the others. Batch size and initial numbers as "
        "in the paper, the optimizer as it names it for one task. Three phases of equal length as in the released "
        "code; one scale of bytes for each tensor is our choice."
    ),
    training={**_TRAINING, "paper": {**_PAPER_TRAINING, "lr_decay": 0.5}},
)
class FastGRNNCell(_FastGRNNCell):
    r"""A gated step of two matrices, both of low rank, sparse and made of bytes: a model of kilobytes.

    .. math::
        p_t = W x_t + U h_{t-1}, \quad z_t = \sigma(p_t + b_z), \quad
        h_t = z_t \odot h_{t-1} + (\sigma(\zeta) (1 - z_t) + \sigma(\nu)) \odot \tanh(p_t + b_h)

    In code: W is the product of ``weight_ih`` and ``weight_ih_right``, or ``weight_ih`` alone where it has full rank; U
    likewise of ``weight_hh`` and ``weight_hh_right``. ``bias_ih`` is b_z over b_h. ``zeta`` and ``nu`` are trained
    before their sigmoids.

    Each matrix, or each of its two factors, is thinned out and rounded by itself. Training has three phases, each a
    third of its steps: all numbers move; every 15 steps all but the largest are set to zero, and may grow
    back in between; the support is frozen, and kept in the buffers ``*_support``. In evaluation, in every phase, no
    more than the kept fraction of each matrix is left, and each number is a whole number from -127 to 127 times one
    scale for the tensor (``zeta`` and ``nu`` stay as they are). So what is validated and exported is the small model,
    also where the best epoch is an early one.

    Guarantee:
        By construction with tanh (the default) or quant_tanh: :math:`|h_t| \le \max(|h_{t-1}|, \sigma(\zeta)) +
        \sigma(\nu)` in every coordinate. A gate at one keeps the state and still adds to it, so that it can grow for
        as long as the gate stays there; below :math:`\sigma(\zeta)` one step can add more than :math:`\sigma(\nu)`.
        Nothing makes trajectories approach each other, and no rate is proved: the slope of the gate is multiplied by
        the state, which no ball holds. In evaluation also the model's size holds by construction, as said above.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        nonlinearity: ``tanh``, ``relu`` or ``quant_tanh``, which is z cut off at -1 and 1.
        gate_nonlinearity: ``sigmoid``, ``quant_sigmoid``, (z + 1)/2, or ``quant_sigmoid4``, (z + 2)/4, both cut off at
            0 and 1.
        zeta_init: Where zeta starts, before the sigmoid.
        nu_init: Where nu starts, before the sigmoid.
        input_rank: Rank of W; None, or no less than its smaller side: W is one full matrix.
        recurrent_rank: Rank of U; None, or no less than hidden_size: U is one full matrix.
        input_kept: Fraction of the numbers of W (or of each factor) that is kept; 1 keeps all.
        recurrent_kept: The same of U. The default is ours.
        byte_weights: Whether matrices and biases are rounded to bytes in evaluation.

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
        The paper, and its released code for the three phases. There the support is held between two cuts, so that the
        first one decides; here numbers that were cut move in between, which is what lets them come back. There one
        scale serves all matrices and biases, here each has its own. The paper's models for arithmetic without
        exponentials are trained with quant_tanh and quant_sigmoid; the default is ours.
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
            input_rank=input_rank,
            recurrent_rank=recurrent_rank,
            input_kept=input_kept,
            recurrent_kept=recurrent_kept,
            byte_weights=byte_weights,
        )


@register_cell(
    "fastgrnn_lsq",
    title="FastGRNN without low rank, sparsity and quantization",
    paper=_PAPER,
    year=2018,
    guarantee=_GATED_GUARANTEE,
    family="general",
    equation=(
        "p = W x + U h; z = sigmoid(p + b_z); h <- z .* h + (sigmoid(zeta) (1 - z) + sigmoid(nu)) .* tanh(p + b_h)"
    ),
    paper_options={},
    paper_source=_SOURCE,
    training=_TRAINING,
)
class FastGRNNLSQCell(_FastGRNNCell):
    r"""FastGRNN with full matrices; the name's "-LSQ" stands for minus low rank, sparsity and quantization.

    .. math::
        p_t = W x_t + U h_{t-1}, \quad z_t = \sigma(p_t + b_z), \quad
        h_t = z_t \odot h_{t-1} + (\sigma(\zeta) (1 - z_t) + \sigma(\nu)) \odot \tanh(p_t + b_h)

    In code: W is ``weight_ih``, U is ``weight_hh``, ``bias_ih`` is b_z over b_h; ``zeta`` and ``nu`` are trained before
    their sigmoids.

    Guarantee:
        By construction with tanh (the default) or quant_tanh: :math:`|h_t| \le \max(|h_{t-1}|, \sigma(\zeta)) +
        \sigma(\nu)` in every coordinate. A gate at one keeps the state and still adds to it, so that it can grow for
        as long as the gate stays there; below :math:`\sigma(\zeta)` one step can add more than :math:`\sigma(\nu)`.
        Nothing makes trajectories approach each other, and no rate is proved: the slope of the gate is multiplied by
        the state, which no ball holds.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        nonlinearity: ``tanh``, ``relu`` or ``quant_tanh``, which is z cut off at -1 and 1.
        gate_nonlinearity: ``sigmoid``, ``quant_sigmoid``, (z + 1)/2, or ``quant_sigmoid4``, (z + 2)/4, both cut off at
            0 and 1.
        zeta_init: Where zeta starts, before the sigmoid.
        nu_init: Where nu starts, before the sigmoid.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

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
