"""Incremental RNN (iRNN): Kag, Zhang, Saligrama, "RNNs incrementally evolving on an equilibrium manifold: a panacea for
vanishing and exploding gradients?", ICLR 2020."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import EPSILON, Matrix, norm_upper_bound
from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_at_least,
    check_choice,
    check_positive,
    check_whole_number,
    empty_parameter,
    float64,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell

_MAX_NEURONS = 384
"""Number of neurons, in all inner steps together, up to which the matrix inequality is solved, in a few seconds."""


@register_cell(
    "incremental",
    title="inner steps towards an equilibrium of state and increment",
    paper="Kag, Zhang, Saligrama: Incremental RNN (ICLR 2020)",
    year=2020,
    guarantee="in the limit of many inner steps that converge dh_t/dh_{t-1} = -I; for few of them none",
    equation=(
        "g_0 = h or 0; g_i = g_{i-1} + e_i (f(U (g_{i-1} + h) + W x + b) - leak (g_{i-1} + h)), i = 1..K; h <- g_K"
    ),
    paper_options={"inner_steps": 1, "step_size": 0.01, "leak": 1.0, "nonlinearity": "relu", "start": "previous"},
    paper_source=(
        "from memory of the paper and from two related programs, as its code was not available: inner_steps up to "
        "5, leak 1, trained inner steps that start at 0.01. Whether the inner steps start at the previous state or at "
        "zero could not be settled: the option start has both. Training settings are our choice."
    ),
    training={
        "practical": practical(0.01, 80),
        "paper": {"lr": 0.001, "optimizer": "adam", "batch_size": 128},
    },
)
class IncrementalRNNCell(StableCell):
    r"""A step to the increment that, added to the old state, is an equilibrium of the input.

    .. math::
        g_0 = h_{t-1} \text{ or } 0, \quad
        g_i = g_{i-1} + e_i [f(U (g_{i-1} + h_{t-1}) + W x_t + b) - a (g_{i-1} + h_{t-1})], \quad h_t = g_K

    In code: the e_i are ``inner_lengths``, trained, one for each inner step, and initially ``step_size``; a is
    ``leak``, K is ``inner_steps``; U is ``weight_hh``, or with a low rank the product of ``weight_hh`` and
    ``weight_hh_right``; W is ``weight_ih``, b is ``bias_ih``.

    Guarantee:
        At the equilibrium f(U y + W x + b) = a y the sum y = g + h_{t-1} does not depend on h_{t-1}, if there is only
        one equilibrium; so dh_t/dh_{t-1} = -I exactly, which neither grows nor shrinks. This is a limit: with
        :math:`\rho = \max_i |1 - e_i a| + |e_i| \|U\| < 1` the Jacobian is within :math:`2 \rho^K` of -I (within
        :math:`\rho^K` when started at zero), and at the published K of 1 to 5 and e_i of 0.01 this says nothing. With
        relu and a large U the inner steps need not converge.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        inner_steps: K, 1 or more. The default is ours.
        step_size: Initial value of the inner steps e_i, greater than 0. The default is ours.
        leak: The factor a, greater than 0.
        nonlinearity: ``relu`` or ``tanh``.
        start: g_0, from which the inner steps start: the ``previous`` state, or ``zero``.
        recurrent_rank: Rank of U; None, or hidden_size and more: U is one full matrix.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = IncrementalRNNCell(input_size=3, hidden_size=8, inner_steps=3)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper. Its variant with one e for each inner step of each time step, which fixes the length of the
        sequences, is left out. U, W and b are initially uniform within 1/sqrt(hidden_size): our choice. The factors of
        a U of rank r are initially uniform within 3^(1/4)/sqrt(r) and 3^(1/4)/sqrt(hidden_size), so that its entries
        have the variance of those of a full one.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        inner_steps: int = 2,
        step_size: float = 0.5,
        leak: float = 1.0,
        nonlinearity: Literal["relu", "tanh"] = "relu",
        start: Literal["previous", "zero"] = "zero",
        recurrent_rank: int | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_at_least(self, 1, inner_steps=inner_steps)
        check_positive(self, step_size=step_size, leak=leak)
        check_choice(self, "nonlinearity", nonlinearity, ("relu", "tanh"))
        check_choice(self, "start", start, ("previous", "zero"))
        check_whole_number(self, "recurrent_rank", recurrent_rank)
        self.inner_steps = inner_steps
        self.step_size = step_size
        self.leak = leak
        self.nonlinearity = nonlinearity
        self.start = start
        self.recurrent_rank = hidden_size if recurrent_rank is None else min(int(recurrent_rank), hidden_size)
        rank = self.recurrent_rank
        self.weight_hh = empty_parameter(hidden_size, rank)
        if rank < hidden_size:
            self.weight_hh_right = empty_parameter(rank, hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.inner_lengths = empty_parameter(inner_steps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            uniform_(parameter, self.hidden_size)
        if self.recurrent_rank < self.hidden_size:
            uniform_(self.weight_hh, self.recurrent_rank)
            with torch.no_grad():
                # An entry of the product has a third of the variance of a full matrix: scale both factors by 3^(1/4).
                for factor in (self.weight_hh, self.weight_hh_right):
                    factor.mul_(3**0.25)
        nn.init.constant_(self.inner_lengths, self.step_size)

    def recurrent_matrix(self) -> Tensor:
        if self.recurrent_rank < self.hidden_size:
            return self.weight_hh @ self.weight_hh_right
        return self.weight_hh

    def materialize(self) -> Weights:
        """Return the inner step lengths, ``(inner_steps,)``, and the factors of U from left to right."""
        factors = [self.weight_hh]
        if self.recurrent_rank < self.hidden_size:
            factors.append(self.weight_hh_right)
        return (self.inner_lengths, *factors)

    def exact(self) -> Matrix:
        """Return U in float64."""
        left = float64(self.weight_hh)
        return left @ float64(self.weight_hh_right) if self.recurrent_rank < self.hidden_size else left

    def lure_system(self) -> LureSystem:
        """Return the inner steps of y = g + h, each a layer of neurons: ``y <- (1 - e a) y + e f(U y + W x + b)``."""
        recurrent, unit = self.exact(), np.eye(self.hidden_size)
        state_factors, final_state_factor, neuron_factors, final_neuron_factors = self._unrolled()
        # The neurons are scaled so that each inner step contributes alike: one multiplier then suits them all.
        scale = np.maximum(np.abs(final_neuron_factors), max(float(np.abs(final_neuron_factors).max()), 1e-12) / 100)
        return LureSystem(
            # h_t = y - h_{t-1}
            F=(final_state_factor - 1) * unit,
            G=_blocks(final_neuron_factors[None] / scale, unit),
            V=_blocks((state_factors * scale)[:, None], recurrent),
            U=_blocks(scale[:, None], float64(self.weight_ih)),
            # An inner step sees the neurons of those before it.
            D=_blocks(scale[:, None] * neuron_factors / scale, recurrent) if self.inner_steps > 1 else None,
            f_max=float(scale.max()) if self.nonlinearity == "tanh" else math.inf,
            neuron_scale=np.repeat(scale, self.hidden_size),
        )

    def step_bound(self) -> StepBound:
        state_factors, final_state_factor, _, final_neuron_factors = self._unrolled()
        lengths, recurrent_norm = np.abs(float64(self.inner_lengths)), norm_upper_bound(self.exact())
        factors = np.abs(1 - float64(self.inner_lengths) * self.leak) + lengths * recurrent_norm
        # The length of each inner step, times the factors by which the later ones can stretch its contribution.
        contributions = lengths * np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)
        # Rounding errors: of the sums and products here, and of the difference of the state's factor and 1.
        margin = 1 + 16 * self.inner_steps * EPSILON
        difference_error = 8 * self.inner_steps * EPSILON * (1 + abs(final_state_factor))
        linear_rate = abs(final_state_factor - 1) + difference_error
        by_norms = StepBound(
            covers=self.state_names,
            norm="l2",
            rate=(linear_rate + recurrent_norm * float(contributions @ np.abs(state_factors))) * margin,
            gain=norm_upper_bound(float64(self.weight_ih)) * float(contributions.sum()) * margin,
            output_gain=1.0,
        )
        by_lure_system = by_norms
        if self.inner_steps * self.hidden_size <= _MAX_NEURONS:
            by_lure_system = lure_bound(self.lure_system())
            others = (replace(other, rate=other.rate + difference_error) for other in by_lure_system.other_norms)
            rate = by_lure_system.rate + difference_error
            by_lure_system = replace(by_lure_system, rate=rate, other_norms=(*others, by_norms))
        # Only tanh bounds what the neurons add; the ball is the fixed point r = linear_rate r + added.
        added = float(np.abs(final_neuron_factors).sum()) * margin
        has_ball = self.nonlinearity == "tanh" and linear_rate * margin < 1
        return replace(
            min(by_lure_system, by_norms, key=lambda bound: bound.rate),
            balls=(Ball("hidden", "linf", added / (1 - linear_rate * margin)),) if has_ball else (),
            conditions=(
                Hypothesis(
                    "max of abs(1 - e leak) + abs(e) norm(U)",
                    float(factors.max()) * margin,
                    1.0,
                    strict=True,
                    subject="limit of many inner steps",
                ),
            ),
            figures={"norm_U": recurrent_norm},
        )

    def _unrolled(self) -> tuple[Matrix, float, Matrix, Matrix]:
        """Return y = g + h as a combination of h and of the neurons of the inner steps.

        Returns:
            The factor of h before each inner step, ``(inner_steps,)``, and after the last one; the factors of the
            neurons of all inner steps before each one, ``(inner_steps, inner_steps)``, and after the last one,
            ``(inner_steps,)``.
        """
        # y_0 = g_0 + h
        state_factor, neuron_factors = 2.0 if self.start == "previous" else 1.0, np.zeros(self.inner_steps)
        state_factors, all_neuron_factors = [], []
        for index, length in enumerate(float64(self.inner_lengths)):
            state_factors.append(state_factor)
            all_neuron_factors.append(neuron_factors)
            linear_factor = 1 - float(length) * self.leak
            state_factor, neuron_factors = linear_factor * state_factor, linear_factor * neuron_factors
            neuron_factors[index] = length
        return np.array(state_factors), state_factor, np.array(all_neuron_factors), neuron_factors

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        lengths, *factors = weights
        f = torch.relu if self.nonlinearity == "relu" else torch.tanh
        g = h if self.start == "previous" else torch.zeros_like(h)
        for length in lengths.unbind():
            y = g + h
            # From right to left: with a low rank, two thin products in place of one with U.
            product = y
            for factor in reversed(factors):
                product = nn.functional.linear(product, factor)
            g = g + length * (f(product + drive) - self.leak * y)
        return (g,)


def _blocks(numbers: Matrix, block: Matrix) -> Matrix:
    """Return a matrix of blocks, each the product of a number and the same block."""
    return np.kron(numbers, block).astype(np.float64)
