"""Minimal GRU and LSTM: Feng, Tung, Ahmed, Bengio, Hajimirsadeghi, "Were RNNs all we needed?", 2024."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import largest_gated
from stablernn.bounds.intervals import Box, accumulated_rounding, sigmoid
from stablernn.bounds.linalg import EPSILON, row_norms
from stablernn.bounds.step_bound import StepBound, ball_of
from stablernn.cells._base import State, Weights, check_not_negative, empty_parameter, float64, uniform_
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._diagonal_recurrence import DiagonalCell, DiagonalRecurrence

_PAPER = "Feng, Tung, Ahmed, Bengio, Hajimirsadeghi: Were RNNs All We Needed? (2024)"
_GUARANTEE = (
    "non-expansive by construction: in each unit two states under one input approach, but at no rate uniform over "
    "inputs; a state stays in the range of its initial value and its candidates"
)
_SOURCE = (
    "the equations of the paper's text, gates without recurrent input; initial values and training settings are ours."
)
_TRAINING = {
    "practical": practical(0.03),
    "paper": {"lr": 0.001, "optimizer": "adam"},
}


class MinimalWeights(NamedTuple):
    """The empty tuple: gates and candidate are functions of the input, which :meth:`drive` computes."""


class _MinimalCell(DiagonalCell):
    """``h <- retention .* h + increment``, functions of the input alone, from ``gates`` gates and a candidate."""

    gates: int

    def __init__(self, input_size: int, hidden_size: int, *, init_memory: float = 64.0) -> None:
        super().__init__(input_size, hidden_size)
        check_not_negative(self, init_memory=init_memory)
        self.init_memory = init_memory
        # One block of rows for each gate, and the last for the candidate.
        self.weight_ih = empty_parameter((self.gates + 1) * hidden_size, input_size)
        self.bias_ih = empty_parameter((self.gates + 1) * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        uniform_(self.weight_ih, self.input_size)
        nn.init.zeros_(self.bias_ih)

    def draw_gate_bias(self) -> Tensor:
        """Draw log(1 + u init_memory) for each unit, with u uniform in [0, 1]."""
        return torch.rand(self.hidden_size).mul_(self.init_memory).log1p_()

    def affine_map(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return retention and increment of the state under inputs, each ``(..., hidden)``."""
        return self.gate(nn.functional.linear(x, self.weight_ih, self.bias_ih))

    def gate(self, projection: Tensor) -> tuple[Tensor, Tensor]:
        """Return retention and increment for the products with inputs, ``(..., (gates + 1) hidden)``."""
        raise NotImplementedError

    def recurrent_matrix(self) -> Tensor:
        """Return the diagonal matrix of the retention under a zero input; it differs from input to input."""
        return torch.diag(self.affine_map(self.weight_ih.new_zeros(self.input_size))[0])

    def step_bound(self) -> StepBound:
        # The supremum of the retention over all inputs is 1. How far an input moves the state depends on the state,
        # which has no bound: no gain.
        return StepBound(covers=("hidden",), norm="l2", rate=1.0, output_gain=1.0)

    def step_bound_within(self, inputs: Box) -> StepBound:
        drive = inputs.affine(float64(self.weight_ih), float64(self.bias_ih))
        *gates, candidate = drive.split(self.gates + 1)
        retention = self.retention_range(gates)
        # A convex combination of the state, which starts at zero, and of candidates.
        states = candidate.with_zero().scaled(accumulated_rounding(1 - retention.upper))
        *gate_norms, candidate_norm = np.split(row_norms(float64(self.weight_ih)), self.gates + 1)
        # The slope of the retention by the argument of each gate is at most retention (1 - retention).
        slope = largest_gated(np.zeros(self.hidden_size), np.ones(self.hidden_size), retention.lower, retention.upper)
        gains = slope * states.distance(candidate) * sum(gate_norms) + (1 - retention.lower) * candidate_norm
        return StepBound(
            covers=("hidden",),
            norm="l2",
            rate=float(retention.upper.max()),
            gain=float(np.linalg.norm(gains)) * (1 + 64 * len(gains) * EPSILON),
            output_gain=1.0,
            balls=(ball_of("hidden", states),) if states.is_finite else (),
        )

    def retention_range(self, gates: Sequence[Box]) -> Box:
        """Return the range of the retention for gates that, before their nonlinearities, are within boxes."""
        raise NotImplementedError

    def materialize(self) -> MinimalWeights:
        return MinimalWeights()

    def drive(self, x: Tensor) -> Tensor:
        # (..., 2 hidden)
        return torch.cat(self.affine_map(x), dim=-1)

    def diagonal_recurrence(self, weights: Weights, drive: Tensor) -> DiagonalRecurrence:
        return DiagonalRecurrence(*torch.unflatten(drive, -1, (2, 1, -1)).unbind(-3))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        retention, increment = drive.chunk(2, dim=-1)
        return (retention * h + increment,)


@register_cell(
    "mingru",
    title="minimal GRU: its gate sees the input alone",
    paper=_PAPER,
    year=2024,
    guarantee=_GUARANTEE,
    equation="z = sigmoid(W_z x + b_z); h <- (1 - z) .* h + z .* (W_h x + b_h)",
    paper_options={"init_memory": 0.0},
    paper_source=_SOURCE,
    training=_TRAINING,
)
class MinGRUCell(_MinimalCell):
    r"""A GRU whose gate does not see the state, so that the recurrence is linear and every unit is a running mean.

    .. math:: z = \sigma(W_z x_t + b_z), \quad h_t = (1 - z) \odot h_{t-1} + z \odot (W_h x_t + b_h)

    In code: W and b are ``weight_ih`` and ``bias_ih``, rows in the order z, h.

    Guarantee:
        By construction, for any parameters: the state is a convex combination of its start and of the candidates
        ``W_h x + b_h``, and never leaves their range. Two states under one input approach in every unit, by the factor
        ``1 - z < 1`` a step; over inputs that are bounded this rate is bounded away from 1, for example by
        ``sigmoid(|W_z| max|x| - b_z)``, but over all inputs its supremum is 1. In float32 a gate below about
        ``sigmoid(-16)`` retains everything, and near there the range holds only up to rounding, which accumulates over
        about 1/z steps.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init_memory: Range of the units' initial time constants, 0 or more: from 2 to ``2 + init_memory`` steps. Our
            choice.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``init_memory`` is negative.

    Example:
        >>> cell = MinGRUCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper's equations for a sequence computed step by step. Its variant in log space, which maps the candidate
        to positive numbers, is not offered: it serves a parallel scan in low precision. The bias of the linear maps is
        our choice. A single layer distinguishes the order of inputs only by their decay; the paper stacks two or three.
    """

    gates = 1

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = -self.draw_gate_bias()

    def retention_range(self, gates: Sequence[Box]) -> Box:
        (z,) = gates
        return z.negated().sigmoid()

    def gate(self, projection: Tensor) -> tuple[Tensor, Tensor]:
        z, candidate = projection.chunk(2, dim=-1)
        # sigmoid(-z), not 1 - sigmoid(z), which cancels digits of a small retention.
        return torch.sigmoid(-z), torch.sigmoid(z) * candidate


@register_cell(
    "minlstm",
    title="minimal LSTM: its gates see the input alone",
    paper=_PAPER,
    year=2024,
    guarantee=_GUARANTEE,
    equation="f, i = sigmoid(W x + b); h <- f/(f + i) .* h + i/(f + i) .* (W_h x + b_h)",
    paper_options={"init_memory": 0.0},
    paper_source=_SOURCE,
    training=_TRAINING,
)
class MinLSTMCell(_MinimalCell):
    r"""An LSTM without output gate, whose gates do not see the state and sum to one.

    .. math::
        f, i = \sigma(W x_t + b), \quad h_t = \frac{f}{f + i} \odot h_{t-1} + \frac{i}{f + i} \odot (W_h x_t + b_h)

    In code: W and b are ``weight_ih`` and ``bias_ih``, rows in the order f, i, h.

    Guarantee:
        That of :class:`MinGRUCell`, with the factor ``f/(f + i)`` in place of ``1 - z``.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init_memory: As for :class:`MinGRUCell`.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``init_memory`` is negative.

    Example:
        >>> cell = MinLSTMCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        As for :class:`MinGRUCell`. Numerator and denominator are scaled alike, so that two closed gates give no 0/0.
    """

    gates = 2

    def reset_parameters(self) -> None:
        super().reset_parameters()
        size, bias = self.hidden_size, self.draw_gate_bias()
        with torch.no_grad():
            # sigmoid(b) / (sigmoid(b) + sigmoid(-b)) = sigmoid(b): the time constants of the minimal GRU.
            self.bias_ih[:size] = bias
            self.bias_ih[size : 2 * size] = -bias

    def retention_range(self, gates: Sequence[Box]) -> Box:
        f, i = gates
        # f / (f + i) = sigmoid(log f - log i); it grows with f and falls with i.
        low, high = (
            sigmoid(np.logaddexp(0, -i_end) - np.logaddexp(0, -f_end))
            for f_end, i_end in ((f.lower, i.upper), (f.upper, i.lower))
        )
        margin = 64 * EPSILON * (1 + f.modulus + i.modulus)
        return Box(np.maximum(low * (1 - margin), 0.0), np.minimum(high * (1 + margin), 1.0))

    def gate(self, projection: Tensor) -> tuple[Tensor, Tensor]:
        f, i, candidate = projection.chunk(3, dim=-1)
        # f / (f + i) = (1 + e^-i) / (2 + e^-f + e^-i), each term divided by the largest so that none overflows. Not by
        # logarithms: those of the runtime seem to differ in the last bit with the position of a value in the batch.
        exponent = torch.relu(torch.maximum(-f, -i)).detach()
        unit = torch.exp(-exponent)
        forget, write = unit + torch.exp(-i - exponent), unit + torch.exp(-f - exponent)
        total = forget + write
        return forget / total, write / total * candidate
