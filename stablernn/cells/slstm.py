"""sLSTM: Beck, Poeppel, Spanring, Auer, Prudnikova, Kopp, Klambauer, Brandstetter, Hochreiter, "xLSTM: extended long
short-term memory", NeurIPS 2024."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import (
    FLOAT32_EPSILON,
    LARGEST_FLOAT32_SUM,
    Box,
    accumulated_rounding,
    shrink_invariant,
    sigmoid,
)
from stablernn.bounds.linalg import Matrix
from stablernn.bounds.step_bound import Ball, StepBound, ball_of
from stablernn.cells._base import StableCell, State, Weights, check_choice, empty_parameter, float64, uniform_
from stablernn.cells._catalog import practical, register_cell

_LARGEST_NORMALIZER = 1e30
"""Bounds beyond this are not stated: float32 would overflow on the way there."""
Init = Literal["spread", "released"]


class SLSTMWeights(NamedTuple):
    recurrent: Tensor
    """The block-diagonal matrices of i, f, z and o, stacked, (4 hidden, hidden)."""


@register_cell(
    "slstm",
    title="xLSTM's scalar-memory cell, exponential gates",
    paper="Beck et al.: xLSTM: Extended Long Short-Term Memory (NeurIPS 2024)",
    year=2024,
    guarantee="the output stays within 1 by construction, a weighted mean of tanh; not contracting",
    equation=(
        "i', f', z', o' = split(W x + R h + b); m' = max(i', m + log sigmoid(f')), at the start i'; i = exp(i' - m'), "
        "f = exp(m + log sigmoid(f') - m'); c <- f .* c + i .* tanh(z'); n <- f .* n + i; h <- sigmoid(o') .* c / n"
    ),
    paper_options={"num_heads": 1, "init": "released"},
    paper_source=(
        "R and the forget biases start as in the released code, W's start is our choice; the code takes 4 heads (they "
        "must divide hidden_size, so the preset has 1); the paper trains the cell in blocks for language only, so the "
        "training settings are our choice."
    ),
    training={
        "practical": practical(0.01),
        "paper": {"lr": 0.001, "optimizer": "adamw"},
    },
)
class SLSTMCell(StableCell):
    r"""An LSTM with exponential gates, scaled by a stabilizer and normalized by the sum of its weights.

    .. math::
        (\tilde i, \tilde f, \tilde z, \tilde o) = W x_t + R h_{t-1} + b, \quad
        m_t = \max(\tilde i, m_{t-1} + \log \sigma(\tilde f))
    .. math::
        i = e^{\tilde i - m_t}, \quad f = e^{m_{t-1} + \log \sigma(\tilde f) - m_t}, \quad
        c_t = f \odot c_{t-1} + i \odot \tanh(\tilde z), \quad n_t = f \odot n_{t-1} + i, \quad
        h_t = \sigma(\tilde o) \odot c_t / n_t

    In code: c is ``cell``, n is ``normalizer``, m is ``stabilizer``; W is ``weight_ih``, b is ``bias_ih``, rows in the
    order i, f, z, o. R is block-diagonal: a unit sees the units of its head only, ``weight_hh`` has those
    ``hidden_size / num_heads`` columns of each row. A normalizer of 0 marks the start of a sequence: then
    :math:`m_t = \tilde i`, hence i = 1 and f = 0, for any other state.

    Guarantee:
        By construction, from the start of a sequence and for any weights and inputs: c / n is a mean of all previous
        tanh with positive weights, so the output stays within 1. Gates i and f are at most 1 and one of them is 1, so
        that from the first step on the normalizer is 1 or more and nothing overflows; the normalizer grows by at most 1
        a step. The stabilizer follows the gates' inputs and changes no output. Nothing makes the step contract, and no
        rate is proved: cell state and normalizer have no bound, and the gates amplify differences in proportion to
        them. For inputs within a range both have balls, unless the forget gate reaches 1.

    Args:
        input_size: Features per time step.
        hidden_size: Units.
        num_heads: Groups of units that see each other, a divisor of hidden_size.
        init: ``spread`` starts R uniform within 1 / sqrt(hidden_size) and the forget biases of each head evenly from 3
            to 6; ``released`` starts R at zero and the forget biases at 5 falling to -7, as the released code does in
            its first block. The default is our choice; so is the initial W of both, uniform within
            1 / sqrt(input_size).

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden, cell, normalizer and stabilizer, each ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros
          when omitted
        - output: the next hidden, cell, normalizer and stabilizer

    Raises:
        ValueError: If ``num_heads`` does not divide ``hidden_size``, or ``init`` is unknown.

    Example:
        >>> state = SLSTMCell(input_size=3, hidden_size=8, num_heads=2)(torch.zeros(2, 3))
        >>> state.normalizer.detach().unique()
        tensor([1.])

    References:
        The paper's sLSTM with its stabilizer and the sigmoid forget gate, as in the released code. That code decides
        once for the whole batch whether a sequence starts; here the normalizer decides for each unit of each sequence.
        The block around the cell (convolution, normalization, projections) is not included.
    """

    state_names = ("hidden", "cell", "normalizer", "stabilizer")

    def __init__(self, input_size: int, hidden_size: int, *, num_heads: int = 1, init: Init = "spread") -> None:
        super().__init__(input_size, hidden_size)
        if num_heads < 1 or hidden_size % num_heads:
            raise ValueError(
                f"num_heads must divide hidden_size for {type(self).__name__}, got {num_heads} heads "
                f"for {hidden_size} units."
            )
        check_choice(self, "init", init, ("spread", "released"))
        self.num_heads = num_heads
        self.init = init
        self.weight_hh = empty_parameter(4 * hidden_size, hidden_size // num_heads)
        self.weight_ih = empty_parameter(4 * hidden_size, input_size)
        self.bias_ih = empty_parameter(4 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        uniform_(self.weight_ih, self.input_size)
        # From 0 at the first unit of a head to 1 at its last.
        position = torch.linspace(0, 1, self.hidden_size // self.num_heads).repeat(self.num_heads)
        if self.init == "spread":
            uniform_(self.weight_hh, self.hidden_size)
            forget_bias = 3 + 3 * position
        else:
            nn.init.zeros_(self.weight_hh)
            forget_bias = 5 - 12 * position**0.3
        nn.init.zeros_(self.bias_ih)
        with torch.no_grad():
            # The second block of i, f, z, o.
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = forget_bias

    def recurrent_matrix(self) -> Tensor:
        """Return R of i, f, z and o as full matrices, stacked, ``(4 hidden, hidden)``."""
        units = torch.arange(self.hidden_size, device=self.weight_hh.device)
        head = units // (self.hidden_size // self.num_heads)
        # (hidden, hidden), repeated for the four gates.
        same_head = (head[:, None] == head).repeat(4, 1)
        return torch.where(same_head, self.weight_hh.repeat(1, self.num_heads), 0)

    def materialize(self) -> SLSTMWeights:
        return SLSTMWeights(self.recurrent_matrix())

    def step_bound(self) -> StepBound:
        return StepBound(balls=(Ball("hidden", "linf", 1.0),))

    def step_bound_within(self, inputs: Box) -> StepBound:
        drive = inputs.affine(float64(self.weight_ih), float64(self.bias_ih))
        recurrent, size = float64(self.recurrent_matrix()), self.hidden_size

        def gates(hidden: Box) -> tuple[Box, Box, Box, Box]:
            i, f, z, o = drive.plus(hidden.affine(recurrent)).split(4)
            return i, f, z.tanh().with_zero(), o.sigmoid()

        def shares(i: Box, f: Box) -> Matrix:
            # 1 - sigmoid(f). The rounding of an exponent is a share of m, which stays within the range of i.
            return sigmoid(-f.upper) / (1 + i.modulus)

        def output(hidden: Box) -> Box:
            i, f, candidate, o = gates(hidden)
            # The cell state divided by the normalizer is a mean of tanh, but for the rounding of both.
            mean = candidate.scaled(accumulated_rounding(shares(i, f)) ** 2).meet(Box.around_zero(size, 1.0))
            return o.times(mean)

        hidden = shrink_invariant(Box.around_zero(size, 1.0), output)
        i, f, candidate, _ = gates(hidden)
        normalizer = _largest_normalizer(i, f, shares(i, f))
        if not (normalizer < _LARGEST_NORMALIZER).all():
            return StepBound(balls=(ball_of("hidden", hidden),))
        # The cell state is a sum of tanh with the weights of the normalizer.
        balls = {
            "hidden": hidden,
            "cell": candidate.scaled(normalizer),
            "normalizer": Box(0 * normalizer, normalizer),
            "stabilizer": i.with_zero(),
        }
        return StepBound(balls=tuple(ball_of(name, box) for name, box in balls.items()))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, c, n, m = state
        (recurrent,) = weights
        i, f, z, o = (nn.functional.linear(h, recurrent) + drive).chunk(4, dim=-1)
        has_started = n != 0
        # In double precision: a runtime's float32 logarithm may depend on the position of a number in the batch.
        log_retained = m + nn.functional.logsigmoid(f.double()).to(f.dtype)
        m = torch.where(has_started, torch.maximum(i, log_retained), i)
        i = torch.exp(i - m)
        # At the start m does not bound log_retained, whose exponential could overflow: replaced before it is taken.
        f = torch.where(has_started, torch.exp(torch.where(has_started, log_retained, m) - m), torch.zeros_like(m))
        c = f * c + i * torch.tanh(z)
        n = f * n + i
        return torch.sigmoid(o) * c / n, c, n, m


def _largest_normalizer(i: Box, f: Box, shares: Matrix) -> Matrix:
    """Return at least the normalizer after any number of steps, ``(hidden,)``.

    It is a sum over all earlier steps. The term of the step k steps ago is at most 1, since m is at least the exponent
    of each, and at most ``exp(width) sigmoid(f)^k``, since m is at least each i, whose range has that width.

    Args:
        i: Range of the input gate before its exponential.
        f: Range of the forget gate before its sigmoid.
        shares: Of the normalizer that a step loses, as far as rounding can make up for it.
    """
    width, lost = i.upper - i.lower, sigmoid(-f.upper)

    def total(lost: Matrix, rounding: float) -> Matrix:
        # Terms of 1, which rounding lets grow, until the second bound takes over, which then is a geometric series. It
        # is one from the start on where the range is narrow.
        equal_terms = width / -np.log1p(-lost) + 1
        equal_terms = equal_terms * np.exp(rounding * equal_terms)
        return np.fmin(equal_terms + 1 / lost, np.exp(width) / lost)

    # Where nothing is certain to be lost, the divisions give infinity.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        exact = total(lost, 0.0)
        rounded = total(lost / accumulated_rounding(shares), 8 * FLOAT32_EPSILON)
        # A float32 sum of terms of at most 1 ends to grow.
        largest: Matrix = np.fmin(rounded, np.maximum(exact, LARGEST_FLOAT32_SUM)) * (1 + 4 * FLOAT32_EPSILON)
    return largest
