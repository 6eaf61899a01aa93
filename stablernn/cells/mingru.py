"""Minimal GRU and LSTM: Feng, Tung, Ahmed, Bengio, Hajimirsadeghi, "Were RNNs all we needed?", 2024."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from stablernn.bounds.step_bound import StepBound
from stablernn.cells._base import StableCell, State, check_not_negative, uniform_
from stablernn.cells._catalog import register_cell

_PAPER = "Feng, Tung, Ahmed, Bengio, Hajimirsadeghi: Were RNNs All We Needed? (2024)"
_GUARANTEE = (
    "non-expansive by construction: unit by unit two states under one input approach, at no rate that inputs cannot "
    "undo; none leaves the range of its start and its candidates"
)
_SOURCE = (
    "the equations of the paper's text, gates without recurrent input; initial values and training settings are ours."
)
_TRAINING = {
    "practical": {"lr": 0.03, "schedule": "one-cycle", "epochs": 60, "batch_size": 32, "clip_norm": 1.0},
    "paper": {"lr": 0.001, "optimizer": "adam"},
}


class MinimalWeights(NamedTuple):
    """Nothing: gates and candidate are functions of the input, which :meth:`drive` computes."""


class _MinimalCell(StableCell):
    """``h <- kept .* h + added``, both functions of the input alone, from ``gates`` gates and a candidate."""

    gates: int

    def __init__(self, input_size: int, hidden_size: int, *, init_memory: float) -> None:
        super().__init__(input_size, hidden_size)
        check_not_negative(self, init_memory=init_memory)
        self.init_memory = init_memory
        self.weight_ih = nn.Parameter(torch.empty((self.gates + 1) * hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty((self.gates + 1) * hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        uniform_(self.weight_ih, self.input_size)
        nn.init.zeros_(self.bias_ih)

    def spread(self) -> Tensor:
        """A bias for each unit's gate, log(1 + u init_memory) with u uniform in [0, 1]."""
        return torch.rand(self.hidden_size).mul_(self.init_memory).log1p_()

    def decay(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What is kept of the state, and what is added to it, each ``(..., hidden)``."""
        raise NotImplementedError

    def recurrent_matrix(self) -> Tensor:
        """The diagonal matrix of what is kept where the input is zero; it differs from input to input."""
        return torch.diag(self.decay(self.weight_ih.new_zeros(self.input_size))[0])

    def step_bound(self) -> StepBound:
        # The least upper bound of a gate over all inputs is 1. How far an input moves the state depends on the state,
        # which has no bound: no gain.
        return StepBound(covers=("hidden",), norm="l2", rate=1.0, output_gain=1.0)

    def materialize(self) -> MinimalWeights:
        return MinimalWeights()

    def drive(self, x: Tensor) -> Tensor:
        return torch.cat(self.decay(x), dim=-1)

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        kept, added = drive.chunk(2, dim=-1)
        return (kept * h + added,)


@register_cell(
    "mingru",
    title="minimal GRU: its gate sees the input alone",
    paper=_PAPER,
    year=2024,
    guarantee=_GUARANTEE,
    family="general",
    equation="z = sigmoid(W_z x + b_z); h <- (1 - z) .* h + z .* (W_h x + b_h)",
    paper_options={"init_memory": 0.0},
    paper_source=_SOURCE,
    training=_TRAINING,
)
class MinGRUCell(_MinimalCell):
    r"""A GRU whose gate does not see the state, so that the recurrence is linear and every unit a running mean.

    .. math:: z = \sigma(W_z x_t + b_z), \quad h_t = (1 - z) \odot h_{t-1} + z \odot (W_h x_t + b_h)

    In code: W and b are ``weight_ih`` and ``bias_ih``, rows in the order z, h.

    Guarantee:
        By construction, for any parameters: the state is a convex combination of its start and of the candidates
        ``W_h x + b_h``, and never leaves their range. Two states under one input approach in every unit, by the factor
        ``1 - z < 1`` a step; over inputs that are bounded this rate is bounded away from 1, for example by
        ``sigmoid(|W_z| max|x| - b_z)``, but over all inputs its supremum is 1. In float32 a gate below about
        ``sigmoid(-16)`` keeps everything, and near there the range holds to rounding only, which adds up over some 1/z
        steps.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init_memory: How far the units' time constants are spread at the start: from 2 to ``2 + init_memory`` steps, 0
            or more. Our choice.

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
        to positive numbers, is not offered: it serves a parallel scan in low precision. That the linear maps have a
        bias is our choice. One layer sees no order but that of decay; the paper stacks two or three.
    """

    gates = 1

    def __init__(self, input_size: int, hidden_size: int, *, init_memory: float = 64.0) -> None:
        super().__init__(input_size, hidden_size, init_memory=init_memory)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = -self.spread()

    def decay(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z, candidate = nn.functional.linear(x, self.weight_ih, self.bias_ih).chunk(2, dim=-1)
        # sigmoid(-z), not 1 - sigmoid(z): a small share that is kept keeps its digits.
        return torch.sigmoid(-z), torch.sigmoid(z) * candidate


@register_cell(
    "minlstm",
    title="minimal LSTM: its gates see the input alone",
    paper=_PAPER,
    year=2024,
    guarantee=_GUARANTEE,
    family="general",
    equation="f, i = sigmoid(W x + b); h <- f/(f + i) .* h + i/(f + i) .* (W_h x + b_h)",
    paper_options={"init_memory": 0.0},
    paper_source=_SOURCE,
    training=_TRAINING,
)
class MinLSTMCell(_MinimalCell):
    r"""An LSTM without output gate whose gates do not see the state and sum to one.

    .. math::
        f, i = \sigma(W x_t + b), \quad h_t = \frac{f}{f + i} \odot h_{t-1} + \frac{i}{f + i} \odot (W_h x_t + b_h)

    In code: W and b are ``weight_ih`` and ``bias_ih``, rows in the order f, i, h.

    Guarantee:
        That of :class:`MinGRUCell`, with the factor ``f/(f + i)`` in place of ``1 - z``.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init_memory: How far the units' time constants are spread at the start: from 2 to ``2 + init_memory`` steps, 0
            or more. Our choice.

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

    def __init__(self, input_size: int, hidden_size: int, *, init_memory: float = 64.0) -> None:
        super().__init__(input_size, hidden_size, init_memory=init_memory)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        size, spread = self.hidden_size, self.spread()
        with torch.no_grad():
            # sigmoid(s) / (sigmoid(s) + sigmoid(-s)) = sigmoid(s): the time constants of the minimal GRU.
            self.bias_ih[:size] = spread
            self.bias_ih[size : 2 * size] = -spread

    def decay(self, x: Tensor) -> tuple[Tensor, Tensor]:
        f, i, candidate = nn.functional.linear(x, self.weight_ih, self.bias_ih).chunk(3, dim=-1)
        # f / (f + i) = (1 + e^-i) / (2 + e^-f + e^-i). Every term is divided by the largest: none overflows. Not by
        # logarithms: the runtime's seem to differ in the last bit with a value's place in the batch.
        largest = torch.relu(torch.maximum(-f, -i)).detach()
        one = torch.exp(-largest)
        kept, added = one + torch.exp(-i - largest), one + torch.exp(-f - largest)
        total = kept + added
        return kept / total, added / total * candidate
