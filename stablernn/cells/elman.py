"""The tanh RNN: Elman, "Finding structure in time", 1990; trained by backpropagation since Rumelhart, Hinton,
Williams, 1986."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.lure import LureSystem
from stablernn.cells._base import StableCell, State, Weights, empty_parameter, float64
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._input_projection import project_input
from stablernn.cells._step_form import StepForm


class ElmanWeights(NamedTuple):
    recurrent: Tensor
    """W, (hidden, hidden)."""


@register_cell(
    "rnn",
    title="tanh Elman RNN",
    paper="Rumelhart, Hinton, Williams: Learning representations by back-propagating errors (Nature 1986)",
    year=1986,
    guarantee="the state stays within 1 by construction; contracting only where the trained ||W|| < 1",
    family="plain",
    equation="h <- tanh(W h + U x + b)",
    paper_source="Glorot-uniform W and U, as the baseline in the unitary RNN's code; the training settings are ours.",
    training={
        "practical": practical(0.001),
        "paper": {"lr": 0.001, "optimizer": "rmsprop"},
    },
)
class ElmanRNNCell(StableCell):
    r"""The plain tanh recurrence.

    .. math:: h_t = \tanh(W h_{t-1} + U x_t + b)

    In code: W is ``weight_hh``, U is ``weight_ih``, b is ``bias_ih``.

    Guarantee:
        None by construction. Every coordinate of the state lies within 1; the step contracts if the largest singular
        value of the trained W is below one.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Example:
        >>> cell = ElmanRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        Equal to ``torch.nn.RNN`` with its second bias at zero.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_hh = empty_parameter(hidden_size, hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Glorot-uniform, like the baseline in the unitary RNN's code.
        nn.init.xavier_uniform_(self.weight_hh)
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.zeros_(self.bias_ih)

    def recurrent_matrix(self) -> Tensor:
        return self.weight_hh

    def materialize(self) -> ElmanWeights:
        return ElmanWeights(self.weight_hh)

    def lure_system(self) -> LureSystem:
        # No linear part: the whole step is the tanh, whose slopes lie within 0 to 1.
        size = self.hidden_size
        return LureSystem(np.zeros((size, size)), np.eye(size), float64(self.weight_hh), float64(self.weight_ih))

    def drive(self, x: Tensor) -> Tensor:
        return project_input(self, x, self.weight_ih, self.bias_ih)

    def step_form(self, weights: Weights) -> StepForm:
        return StepForm("plain", weights[0])

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (w,) = weights
        return (torch.tanh(nn.functional.linear(h, w) + drive),)
