"""FastRNN: Kusupati, Singh, Bhatia, Kumar, Jain, Varma, "FastGRNN: a fast, accurate, stable and tiny kilobyte sized
gated recurrent neural network", NeurIPS 2018."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.lure import LureSystem, dominance_bound, lure_bound
from stablernn.bounds.step_bound import StepBound
from stablernn.cells._base import State, Weights, check_choice, check_finite, empty_parameter
from stablernn.cells._catalog import register_cell
from stablernn.cells._fast import (
    NONLINEARITIES,
    PAPER,
    PAPER_SOURCE,
    TRAINING,
    Compression,
    FastCell,
    GateNonlinearity,
    Nonlinearity,
    activate,
)
from stablernn.cells.fastgrnn import FastGRNNCell, FastGRNNLSQCell

# The gated cells were part of this module, and stay importable from it.
__all__ = ["FastGRNNCell", "FastGRNNLSQCell", "FastRNNCell", "GateNonlinearity", "Nonlinearity"]


@register_cell(
    "fastrnn",
    title="weighted residual RNN with two trained scalars",
    paper=PAPER,
    year=2018,
    guarantee="with tanh the state stays within sigmoid(alpha) / (1 - sigmoid(beta)); contraction is not guaranteed",
    equation="c = f(W x + U h + b); h <- sigmoid(beta) h + sigmoid(alpha) c; W, U full or of low rank",
    paper_options={"alpha_init": -3.0, "beta_init": 3.0},
    paper_source=PAPER_SOURCE,
    training=TRAINING,
)
class FastRNNCell(FastCell):
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
        nonlinearity: ``tanh``, ``relu`` (the paper's for words) or ``quant_tanh``, which clips z to -1 and 1.
        alpha_init: Initial alpha before the sigmoid; the weight of the candidate c.
        beta_init: Initial beta before the sigmoid; the weight of the previous state.
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
        super().__init__(input_size, hidden_size, Compression(input_rank=input_rank, recurrent_rank=recurrent_rank))
        check_choice(self, "nonlinearity", nonlinearity, NONLINEARITIES)
        check_finite(self, alpha_init=alpha_init, beta_init=beta_init)
        self.nonlinearity: Nonlinearity = nonlinearity
        self.alpha_init = alpha_init
        self.beta_init = beta_init
        self.alpha = empty_parameter()
        self.beta = empty_parameter()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.alpha, self.alpha_init)
        nn.init.constant_(self.beta, self.beta_init)

    def scalars(self) -> tuple[Tensor, ...]:
        return torch.sigmoid(self.alpha), torch.sigmoid(self.beta)

    def lure_system(self) -> LureSystem:
        unit = np.eye(self.hidden_size)
        alpha, beta = (scalar.item() for scalar in self.scalars())
        recurrent, input_weights = self.multiply_factors(self._recurrent), self.multiply_factors(self._input)
        # tanh and quant_tanh end at 1.
        output_bound = math.inf if self.nonlinearity == "relu" else 1.0
        return LureSystem(beta * unit, alpha * unit, recurrent, input_weights, f_max=output_bound)

    def step_bound(self) -> StepBound:
        step = self.lure_system()
        return dominance_bound(step, lure_bound(step))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        alpha, beta, bias = weights[:3]
        candidate = activate(self.pre_activation(weights, h, drive) + bias, self.nonlinearity)
        return (beta * h + alpha * candidate,)
