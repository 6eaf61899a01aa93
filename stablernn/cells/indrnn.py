"""IndRNN: Li, Li, Cook, Zhu, Gao, "Independently recurrent neural network (IndRNN): building a longer and deeper RNN",
CVPR 2018."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.lure import LureSystem
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_whole_number,
    empty_parameter,
    float64,
    pass_through,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell


class IndRNNWeights(NamedTuple):
    recurrent: Tensor
    """u, (hidden,)."""


@register_cell(
    "indrnn",
    title="independent units, each with its own recurrent weight",
    paper="Li, Li, Cook, Zhu, Gao: Independently Recurrent Neural Network (IndRNN) (CVPR 2018)",
    year=2018,
    guarantee="non-expansive by construction: |u| is clamped to 1 (the default); the state can grow",
    family="plain",
    equation="h <- relu(u .* h + W x + b), |u| <= 2^(1/max_length)",
    paper_options={"max_length": 784},
    paper_source=(
        "max_length is the length of MNIST by pixels, training settings as in the released code, which takes 6 layers "
        "and more; epochs and schedule are our choice."
    ),
    training={
        "practical": practical(0.01),
        "paper": {"lr": 0.0002, "optimizer": "adam", "batch_size": 128},
    },
)
class IndRNNCell(StableCell):
    r"""Units that remember only their own state; they interact in the next layer, so that one layer alone is weak.

    .. math:: h_t = \operatorname{relu}(u \odot h_{t-1} + W x_t + b), \quad |u| \le 2^{1/T}

    In code: u is ``weight_hh``, one number for each unit, W is ``weight_ih``, b is ``bias_ih``, T is ``max_length``.

    Guarantee:
        By construction: the step uses u clamped to the bound, whatever the parameter is, and passes its gradient
        through unchanged. One step multiplies the distance of two states under the same input by at most 2^(1/T),
        hence T steps by at most 2; without a ``max_length`` the bound is 1 and no number of steps drives states apart.
        ``after_step`` clamps the parameter itself, so that it does not drift beyond the bound. The state is not
        bounded: with u = 1 a unit accumulates its inputs.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        max_length: T, the steps over which a state may double, 1 or more; None bounds u by 1, our choice.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``max_length`` is below 1.

    Example:
        >>> cell = IndRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper's recurrence with relu; the default bound in its released code is 5^(1/T). u is initially uniform on
        [0, 2^(1/T)]. For tasks with long memory the paper may initialize the last layer's u at its upper end, and it
        puts batch normalization between layers: neither is implemented. The default training settings are ours.
    """

    def __init__(self, input_size: int, hidden_size: int, *, max_length: int | None = None) -> None:
        super().__init__(input_size, hidden_size)
        check_whole_number(self, "max_length", max_length)
        self.max_length = max_length
        self.weight_hh = empty_parameter(hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.reset_parameters()

    @property
    def bound(self) -> float:
        """Largest modulus of u, 2^(1/T)."""
        return 1.0 if self.max_length is None else float(2.0 ** (1 / self.max_length))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight_hh, 0, self.bound)
        uniform_(self.weight_ih, self.input_size)
        nn.init.zeros_(self.bias_ih)

    def after_step(self, step: int, total_steps: int) -> None:
        # A parameter far beyond the bound would have to come back before the step changes again.
        self.weight_hh.clamp_(-self.bound, self.bound)

    def recurrent_weights(self) -> Tensor:
        """Return u as the step uses it, (hidden,), within the bound."""
        return pass_through(self.weight_hh, self.weight_hh.clamp(-self.bound, self.bound))

    def recurrent_matrix(self) -> Tensor:
        """Return the diagonal matrix of u."""
        return torch.diag(self.recurrent_weights())

    def materialize(self) -> IndRNNWeights:
        return IndRNNWeights(self.recurrent_weights())

    def lure_system(self) -> LureSystem:
        # No linear part: the whole step is the relu, whose slopes lie within 0 to 1 and whose values have no bound.
        size = self.hidden_size
        return LureSystem(
            np.zeros((size, size)),
            np.eye(size),
            np.diag(float64(self.recurrent_weights())),
            float64(self.weight_ih),
            f_max=math.inf,
        )

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (u,) = weights
        # Independent units: an elementwise product in place of a matrix.
        return (torch.relu(u * h + drive),)
