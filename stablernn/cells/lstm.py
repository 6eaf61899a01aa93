"""LSTM: Hochreiter, Schmidhuber, "Long short-term memory", Neural Computation 1997; forget gate: Gers et al., 2000."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import gated_bound, largest_gated, largest_gated_tanh
from stablernn.bounds.intervals import Box, accumulated_range, shrink_invariant, sigmoid
from stablernn.bounds.linalg import Matrix, row_norms
from stablernn.bounds.step_bound import Ball, StepBound, ball_of
from stablernn.cells._base import StableCell, State, Weights, empty_parameter, float64, uniform_
from stablernn.cells._catalog import practical, register_cell


class LSTMWeights(NamedTuple):
    recurrent: Tensor
    """The matrices of the four gates, stacked, (4 hidden, hidden)."""


@register_cell(
    "lstm",
    title="long short-term memory",
    paper="Hochreiter, Schmidhuber: Long short-term memory (Neural Computation 1997)",
    year=1997,
    guarantee="the hidden state stays within 1 by construction, the cell state can grow; not contracting",
    equation=(
        "i, f, g, o = split(W x + U h + b); c <- sigmoid(f) .* c + sigmoid(i) .* tanh(g); h <- sigmoid(o) .* tanh(c)"
    ),
    paper_source="forget bias 1, one bias vector; the training settings are ours.",
    training={
        "practical": practical(0.01),
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
        None by construction. The hidden state lies within 1; the cell state grows by at most 1 a step. For all inputs
        no rate exists: the forget gate amplifies a difference of hidden states in proportion to the cell state, which
        has no bound. For inputs within a range the forget gate stays away from 1: the cell state has a ball, and small
        weights contract.

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
        self.weight_hh = empty_parameter(4 * hidden_size, hidden_size)
        self.weight_ih = empty_parameter(4 * hidden_size, input_size)
        self.bias_ih = empty_parameter(4 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.weight_hh, self.weight_ih):
            uniform_(weight, self.hidden_size)
        nn.init.zeros_(self.bias_ih)
        with torch.no_grad():
            # The second block of i, f, g, o.
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = self.forget_bias

    def recurrent_matrix(self) -> Tensor:
        """Return U of the four gates, stacked, ``(4 hidden, hidden)``."""
        return self.weight_hh

    def materialize(self) -> LSTMWeights:
        return LSTMWeights(self.weight_hh)

    def step_bound(self) -> StepBound:
        # The hidden state is a sigmoid times a tanh; the cell state has no ball.
        return StepBound(balls=(Ball("hidden", "linf", 1.0),))

    def step_bound_within(self, inputs: Box) -> StepBound:
        drive = inputs.affine(float64(self.weight_ih), float64(self.bias_ih))
        recurrent = float64(self.weight_hh)
        hidden = shrink_invariant(
            Box.around_zero(self.hidden_size, 1.0),
            lambda hidden: memory_ranges(drive.plus(hidden.affine(recurrent))).hidden,
        )
        memory = memory_ranges(drive.plus(hidden.affine(recurrent)))
        balls = (ball_of("hidden", hidden),)
        if not memory.cell.is_finite:
            return StepBound(balls=balls)

        def mixed(cell: Matrix, by_gate: Matrix) -> Matrix:
            by_i, by_f, by_g, by_o = np.split(by_gate, 4)
            forget, write = memory.gates[1], memory.gates[0]
            cell = largest_gated(cell, memory.cell.modulus * by_f, forget.lower, forget.upper) + largest_gated_tanh(
                by_g, by_i, write, memory.candidate
            )
            return np.concatenate([largest_gated_tanh(cell, by_o, memory.gates[2], memory.cell.tanh()), cell])

        def row_sums(weights: Matrix) -> Matrix:
            by_hidden, by_cell = np.split(weights, 2)
            return mixed(by_cell, np.abs(recurrent) @ by_hidden)

        return gated_bound(
            row_sums,
            mixed(np.zeros(self.hidden_size), row_norms(float64(self.weight_ih))),
            covers=self.state_names,
            output=slice(self.hidden_size),
            balls=(*balls, ball_of("cell", memory.cell)),
        )

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, c = state
        (recurrent,) = weights
        return update_memory(nn.functional.linear(h, recurrent) + drive, c)


def update_memory(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return the next hidden and cell state of an LSTM.

    Args:
        gates: i, f, g and o before their nonlinearities, ``(batch, 4 hidden)``.
        c: The cell state before the step, ``(batch, hidden)``.
    """
    i, f, g, o = gates.chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


class MemoryRanges(NamedTuple):
    """Ranges in one step of :func:`update_memory`, each of ``hidden`` coordinates."""

    gates: tuple[Box, Box, Box]
    """i, f and o after their sigmoids."""
    candidate: Box
    """The tanh of g."""
    cell: Box
    """The cell state, which starts at zero, after any number of steps."""
    hidden: Box
    """The next hidden state."""


def memory_ranges(gates: Box) -> MemoryRanges:
    """Return the ranges in a step of an LSTM whose gates, before their nonlinearities, are within a box.

    Args:
        gates: i, f, g and o, ``(4 hidden,)`` intervals.
    """
    i, f, g, o = gates.split(4)
    write, forget, output, candidate = i.sigmoid(), f.sigmoid(), o.sigmoid(), g.tanh()
    change = write.times(candidate)
    # c = f c + change has its fixed point at change / (1 - f); 1 - f = sigmoid(-f) loses no digits.
    cell = accumulated_range(change, sigmoid(-f.upper))
    return MemoryRanges((write, forget, output), candidate, cell, output.times(cell.tanh()))
