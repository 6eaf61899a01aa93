"""MomentumRNN: Nguyen, Baraniuk, Bertozzi, Osher, Wang, "MomentumRNN: integrating momentum into recurrent neural
networks", NeurIPS 2020."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import Box, accumulated_range, shrink_invariant
from stablernn.bounds.step_bound import Ball, StepBound, ball_of
from stablernn.cells._base import StableCell, State, Weights, check_finite, check_positive, empty_parameter, float64
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells.lstm import MemoryRanges, memory_ranges, update_memory

_PAPER = (
    "Nguyen, Baraniuk, Bertozzi, Osher, Wang: MomentumRNN: Integrating Momentum into Recurrent Neural Networks "
    "(NeurIPS 2020)"
)
_PAPER_TRAINING = {
    "lr": 0.001,
    "optimizer": "rmsprop",
    "epochs": 150,
    "batch_size": 128,
    "clip_norm": 1.0,
}


class MomentumWeights(NamedTuple):
    recurrent: Tensor
    """The matrices of the four gates, stacked, (4 hidden, hidden)."""
    bias: Tensor
    """b_h, the bias of the recurrent product, (4 hidden,)."""


class _MomentumCell(StableCell):
    """Parameters of both LSTMs and their initialization."""

    def __init__(self, input_size: int, hidden_size: int, *, input_scale: float, forget_bias: float) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, input_scale=input_scale)
        check_finite(self, forget_bias=forget_bias)
        self.input_scale = input_scale
        self.forget_bias = forget_bias
        self.weight_hh = empty_parameter(4 * hidden_size, hidden_size)
        self.weight_ih = empty_parameter(4 * hidden_size, input_size)
        self.bias_hh = empty_parameter(4 * hidden_size)
        self.bias_ih = empty_parameter(4 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.weight_ih)
        # As in the released code: only the block of the input gate becomes the identity, the others start at zero.
        nn.init.eye_(self.weight_hh)
        with torch.no_grad():
            # The forget bias, the second block of i, f, g, o, stands in both vectors, as in the released code.
            for bias in (self.bias_hh, self.bias_ih):
                bias.zero_()
                bias[self.hidden_size : 2 * self.hidden_size] = self.forget_bias

    def recurrent_matrix(self) -> Tensor:
        """Return U of the four gates, stacked, ``(4 hidden, hidden)``."""
        return self.weight_hh

    def materialize(self) -> MomentumWeights:
        return MomentumWeights(self.weight_hh, self.bias_hh)

    def step_bound(self) -> StepBound:
        # The hidden state is a sigmoid times a tanh; the cell state has no ball.
        return StepBound(balls=(Ball("hidden", "linf", 1.0),))

    def step_bound_within(self, inputs: Box) -> StepBound:
        scale, recurrent, bias = self.input_scale, float64(self.weight_hh), float64(self.bias_hh)
        drive = inputs.affine(scale * float64(self.weight_ih), scale * float64(self.bias_ih))

        def memory(hidden: Box) -> MemoryRanges:
            return memory_ranges(self.gate_ranges(drive, hidden.affine(recurrent, bias)))

        hidden = shrink_invariant(Box.around_zero(self.hidden_size, 1.0), lambda hidden: memory(hidden).hidden)
        cell = memory(hidden).cell
        boxes = {"hidden": hidden, "cell": cell, **self.other_ranges(drive, hidden.affine(recurrent, bias))}
        balls = [ball_of(name, box) for name, box in boxes.items() if box.is_finite]
        return StepBound(balls=tuple(balls))

    def gate_ranges(self, drive: Box, products: Box) -> Box:
        """Return the range of the gates before their nonlinearities, for drives and ``U h + b_h`` within boxes."""
        raise NotImplementedError

    def other_ranges(self, drive: Box, products: Box) -> dict[str, Box]:
        """Return the ranges of the state tensors besides hidden and cell state, by name."""
        raise NotImplementedError

    def drive(self, x: Tensor) -> Tensor:
        return self.input_scale * nn.functional.linear(x, self.weight_ih, self.bias_ih)


@register_cell(
    "momentum_lstm",
    title="LSTM with momentum on its input",
    paper=_PAPER,
    year=2020,
    guarantee="the hidden state stays within 1 by construction, the cell state can grow; not contracting",
    equation=(
        "v <- momentum v + input_scale (W x + b_x); i, f, g, o = split(v + U h + b_h); "
        "c <- sigmoid(f) .* c + sigmoid(i) .* tanh(g); h <- sigmoid(o) .* tanh(c)"
    ),
    paper_options={"momentum": 0.6, "input_scale": 0.6, "forget_bias": 1.0},
    paper_source=(
        "the released code's settings for ordered MNIST with 256 units, training included but for RMSprop's decay, .9 "
        "there and .99, torch's default, here; it reports the best test accuracy over the epochs, without a validation "
        "split."
    ),
    training={
        "practical": practical(0.02),
        "paper": _PAPER_TRAINING,
    },
)
class MomentumLSTMCell(_MomentumCell):
    r"""An LSTM that accumulates its projected input as heavy-ball momentum accumulates gradients.

    .. math::
        v_t = \mu v_{t-1} + s (W x_t + b_x), \quad (i, f, g, o) = v_t + U h_{t-1} + b_h
    .. math::
        c_t = \sigma(f) \odot c_{t-1} + \sigma(i) \odot \tanh(g), \quad h_t = \sigma(o) \odot \tanh(c_t)

    In code: :math:`\mu` is ``momentum``, s is ``input_scale``; W is ``weight_ih``, U is ``weight_hh``, b_x and b_h are
    ``bias_ih`` and ``bias_hh``, gates in torch's order i, f, g, o. With momentum 0 and input_scale 1 it is the LSTM.

    Guarantee:
        None by construction. The hidden state lies within 1, the cell state grows by at most 1 a step, and v stays
        bounded for bounded inputs since momentum is below 1. For inputs within a range all three have balls. No rate
        is proved, for reasons as of :class:`stablernn.cells.LSTMCell`.

    Args:
        input_size: Features per time step.
        hidden_size: Length of hidden and cell state.
        momentum: Share of v that a step retains, from 0 to less than 1.
        input_scale: Factor of the projected input, greater than 0.
        forget_bias: Initial bias of the forget gate, in both vectors as in the released code: that of the input is
            scaled and accumulated too, so that the gate converges to (1 + input_scale / (1 - momentum)) times it.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and cell, each ``(batch, hidden_size)`` or ``(hidden_size,)``, and momentum,
          ``(batch, 4 hidden_size)`` or ``(4 hidden_size,)``; zeros when omitted
        - output: the next hidden, cell and momentum

    Raises:
        ValueError: If ``momentum`` is outside its range or ``input_scale`` is not positive.

    Example:
        >>> hidden, cell_state, momentum = MomentumLSTMCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> momentum.shape
        torch.Size([2, 32])

    References:
        The paper's MomentumLSTM with two bias vectors, as in the released code. The initialization is that of the code:
        W orthogonal, U the identity in the block of the input gate and zero in the others, biases zero except in the
        forget gate.
    """

    state_names = ("hidden", "cell", "momentum")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        momentum: float = 0.6,
        input_scale: float = 0.6,
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, input_scale=input_scale, forget_bias=forget_bias)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be from 0 to less than 1 for {type(self).__name__}, got {momentum}.")
        self.momentum = momentum

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.hidden_size, self.hidden_size, 4 * self.hidden_size

    def gate_ranges(self, drive: Box, products: Box) -> Box:
        return self.other_ranges(drive, products)["momentum"].plus(products)

    def other_ranges(self, drive: Box, products: Box) -> dict[str, Box]:
        return {"momentum": accumulated_range(drive, np.full(len(drive.lower), 1 - self.momentum))}

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, c, v = state
        recurrent, bias = weights
        v = self.momentum * v + drive
        return *update_memory(v + nn.functional.linear(h, recurrent, bias), c), v


@register_cell(
    "sr_lstm",
    title="LSTM with Nesterov momentum and scheduled restarts",
    paper=_PAPER,
    year=2020,
    guarantee="the hidden state stays within 1 by construction, the cell state can grow; not contracting",
    equation=(
        "k = 1, .., restart, 1, ..; p <- U h + b_h - input_scale (W x + b_x); "
        "i, f, g, o = split(p + (k - 1) / (k + 2) (p - its value before)); then as momentum_lstm"
    ),
    paper_options={"restart": 2, "input_scale": 1.0, "forget_bias": 1.0},
    paper_source=(
        "the released code's settings for ordered MNIST with 256 units, training included but for RMSprop's decay, .9 "
        "there and .99, torch's default, here; on permuted MNIST it takes restart 40 and input_scale .9."
    ),
    training={
        "practical": practical(0.02),
        "paper": _PAPER_TRAINING,
    },
)
class ScheduledRestartLSTMCell(_MomentumCell):
    r"""An LSTM whose gates look ahead as Nesterov's method does, with a momentum that grows and starts over.

    .. math::
        p_t = U h_{t-1} + b_h - s (W x_t + b_x), \quad
        (i, f, g, o) = p_t + \tfrac{k-1}{k+2} (p_t - p_{t-1}), \quad k = 1, \dots, F, 1, \dots

    Cell and hidden state follow as in :class:`MomentumLSTMCell`. In code: s is ``input_scale``, F is ``restart``;
    W is ``weight_ih``, U is ``weight_hh``, b_x and b_h are ``bias_ih`` and ``bias_hh``. The state carries
    :math:`p_{t-1}` as ``previous`` and the k of the previous step as ``count``, 0 after the last step of a cycle.

    Guarantee:
        None by construction. The hidden state lies within 1, the cell state grows by at most 1 a step. For inputs
        within a range all tensors have balls. No rate is proved, for reasons as of :class:`stablernn.cells.LSTMCell`.

    Args:
        input_size: Features per time step.
        hidden_size: Length of hidden and cell state.
        restart: Steps per momentum cycle, 1 or more; 1 is without momentum.
        input_scale: Factor of the projected input, greater than 0. The default is ours.
        forget_bias: Initial bias of the forget gate, in both vectors as in the released code. That of the input has a
            negative sign here: the gate sees (1 - input_scale) times it, nothing at the paper's input_scale 1. The
            default is ours.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and cell, each ``(batch, hidden_size)`` or ``(hidden_size,)``, previous,
          ``(batch, 4 hidden_size)`` or ``(4 hidden_size,)``, and count, ``(batch, 1)`` or ``(1,)``; zeros when omitted
        - output: the next hidden, cell, previous and count

    Raises:
        ValueError: If ``restart`` is below 1 or ``input_scale`` is not positive.

    Example:
        >>> state = ScheduledRestartLSTMCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> state.count
        tensor([[1.],
                [1.]])

    References:
        The paper's scheduled-restart LSTM (SRLSTM) in the form of the released code, initialized as
        :class:`MomentumLSTMCell`. A sequence starts at k = 1, where the previous p has no effect.
    """

    state_names = ("hidden", "cell", "previous", "count")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        restart: int = 2,
        input_scale: float = 0.5,
        forget_bias: float = 3.0,
    ) -> None:
        super().__init__(input_size, hidden_size, input_scale=input_scale, forget_bias=forget_bias)
        if restart < 1:
            raise ValueError(f"restart must be 1 or more for {type(self).__name__}, got {restart}.")
        self.restart = restart

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return self.hidden_size, self.hidden_size, 4 * self.hidden_size, 1

    def step_bound(self) -> StepBound:
        return StepBound(balls=(Ball("hidden", "linf", 1.0), Ball("count", "linf", self.restart - 1.0)))

    def gate_ranges(self, drive: Box, products: Box) -> Box:
        p = products.plus(drive.negated())
        # The largest count is restart - 1. In the first step of a cycle, whatever was before has no effect.
        lead = (self.restart - 1) / (self.restart + 2) * p.distance(p)
        return p.plus(Box(-lead, lead))

    def other_ranges(self, drive: Box, products: Box) -> dict[str, Box]:
        previous = products.plus(drive.negated()).with_zero()
        return {"previous": previous, "count": Box(np.zeros(1), np.full(1, self.restart - 1.0))}

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, c, previous, count = state
        recurrent, bias = weights
        p = nn.functional.linear(h, recurrent, bias) - drive
        # With count = k - 1 steps of the cycle done, (k - 1) / (k + 2) is count / (count + 3).
        gates = p + count / (count + 3) * (p - previous)
        # Compared at half a step, so that no rounding of the count moves the restart.
        count = torch.where(count + 1.5 > self.restart, torch.zeros_like(count), count + 1)
        return *update_memory(gates, c), p, count
