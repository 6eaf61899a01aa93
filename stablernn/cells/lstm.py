"""LSTM: Hochreiter, Schmidhuber, "Long short-term memory", Neural Computation 1997; forget gate: Gers et al., 2000."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stablernn.bounds.step_bound import Ball, StepBound
from stablernn.cells._base import StableCell, State, uniform_
from stablernn.cells._catalog import register_cell


class LSTMWeights(NamedTuple):
    recurrent: Tensor
    """The four gates' matrices, one over the other, (4 hidden, hidden)."""


@register_cell(
    "lstm",
    title="long short-term memory",
    paper="Hochreiter, Schmidhuber: Long short-term memory (Neural Computation 1997)",
    year=1997,
    guarantee="the hidden state stays within 1 by construction, the cell state can grow; not contracting",
    family="general",
    equation=(
        "i, f, g, o = split(W x + U h + b); c <- sigmoid(f) .* c + sigmoid(i) .* tanh(g); h <- sigmoid(o) .* tanh(c)"
    ),
    paper_source="forget bias 1, one bias vector; the training settings are ours.",
    training={
        "practical": {"lr": 0.01, "schedule": "one-cycle", "epochs": 60, "batch_size": 32, "clip_norm": 1.0},
        "paper": {"lr": 0.001, "optimizer": "rmsprop"},
    },
)
class LSTMCell(StableCell):
    r"""Gated cell memory, without peepholes.

    .. math::
        (i, f, g, o) = W x_t + U h_{t-1} + b, \quad
        c_t = \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g), \quad h_t = \sigma(o) \odot \tanh(c_t)

    In code: W is ``weight_ih``, U is ``weight_hh``, b is ``bias_ih``, gates in torch's order i, f, g, o.

    Guarantee:
        None by construction. The hidden state lies within 1; the cell state grows by at most 1 a step. No rate is
        proved, for none exists: what the forget gate makes of a difference of hidden states grows with the cell state,
        which has no bound.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        forget_bias: Initial bias of the forget gate.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and cell, each ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next hidden and cell state

    Example:
        >>> hidden, cell_state = LSTMCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> cell_state.shape
        torch.Size([2, 8])

    References:
        Equal to ``torch.nn.LSTM`` with its second bias at zero.
    """

    state_names = ("hidden", "cell")

    def __init__(self, input_size: int, hidden_size: int, *, forget_bias: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        self.forget_bias = forget_bias
        self.weight_hh = nn.Parameter(torch.empty(4 * hidden_size, hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(4 * hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty(4 * hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.weight_hh, self.weight_ih):
            uniform_(weight, self.hidden_size)
        nn.init.zeros_(self.bias_ih)
        with torch.no_grad():
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = self.forget_bias

    def recurrent_matrix(self) -> Tensor:
        """U of the four gates, one over the other, ``(4 hidden, hidden)``."""
        return self.weight_hh

    def materialize(self) -> LSTMWeights:
        return LSTMWeights(self.weight_hh)

    def step_bound(self) -> StepBound:
        return StepBound(balls=(Ball("hidden", "linf", 1.0),))

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, c = state
        (recurrent,) = weights
        i, f, g, o = (nn.functional.linear(h, recurrent) + drive).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
