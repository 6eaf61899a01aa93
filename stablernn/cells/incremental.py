"""Incremental RNN (iRNN): Kag, Zhang, Saligrama, "RNNs incrementally evolving on an equilibrium manifold: a panacea for
vanishing and exploding gradients?", ICLR 2020."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import UNIT, Matrix, norm_above
from stablernn.bounds.lure import Sector, sector_bound
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound, float64
from stablernn.cells._base import StableCell, State, check_positive, check_word, uniform_
from stablernn.cells._catalog import register_cell

_MOST_NEURONS = 384
"""Of all inner steps together, up to which the matrix inequality is worked out, in a few seconds."""


@register_cell(
    "incremental",
    title="inner steps towards an equilibrium of state and increment",
    paper="Kag, Zhang, Saligrama: Incremental RNN (ICLR 2020)",
    year=2020,
    guarantee="in the limit of many inner steps that converge dh_t/dh_{t-1} = -I; for few of them none",
    family="general",
    equation=(
        "g_0 = h or 0; g_i = g_{i-1} + e_i (f(U (g_{i-1} + h) + W x + b) - leak (g_{i-1} + h)), i = 1..K; h <- g_K"
    ),
    paper_options={"inner_steps": 1, "step_size": 0.01, "leak": 1.0, "nonlinearity": "relu", "start": "previous"},
    paper_source=(
        "from memory of the paper and from two related programs, as its own code was not to be had: inner_steps up to "
        "5, leak 1, trained inner steps that start at 0.01. Whether the inner steps start at the previous state or at "
        "zero could not be settled: the option start has both. Training settings are our choice."
    ),
    training={
        "practical": {"lr": 0.01, "schedule": "one-cycle", "epochs": 80, "batch_size": 32, "clip_norm": 1.0},
        "paper": {"lr": 0.001, "optimizer": "adam", "batch_size": 128},
    },
)
class IncrementalRNNCell(StableCell):
    r"""The new state is the increment that brings the sum of it and the old state to an equilibrium of the input.

    .. math::
        g_0 = h_{t-1} \text{ or } 0, \quad
        g_i = g_{i-1} + e_i [f(U (g_{i-1} + h_{t-1}) + W x_t + b) - a (g_{i-1} + h_{t-1})], \quad h_t = g_K

    In code: the e_i are trained, one for each inner step, as ``inner_lengths``, and start at ``step_size``; a is
    ``leak``, K is ``inner_steps``; U is ``weight_hh``, of low rank the product of ``weight_hh`` and
    ``weight_hh_right``; W is ``weight_ih``, b is ``bias_ih``.

    Guarantee:
        At the equilibrium f(U y + W x + b) = a y the sum y = g + h_{t-1} does not depend on h_{t-1}, where there is
        one only; so dh_t/dh_{t-1} = -I exactly, which neither grows nor shrinks. That is a limit: with
        :math:`\rho = \max_i |1 - e_i a| + |e_i| \|U\| < 1` the Jacobian is within :math:`2 \rho^K` of -I (within
        :math:`\rho^K` when started at zero), and at the published K of 1 to 5 and e_i of 0.01 this says nothing. With
        relu and a large U the inner steps need not converge.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        inner_steps: K, 1 or more. The default is ours.
        step_size: Where the inner steps e_i start, greater than 0. The default is ours.
        leak: The factor a, greater than 0.
        nonlinearity: ``relu`` or ``tanh``.
        start: Where the inner steps start: at the ``previous`` state, or at ``zero``.
        recurrent_rank: Rank of U; None, or no less than hidden_size: U is one full matrix.

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
        The paper. It also trains one e for every inner step and every step of time, which fixes the length of the
        sequences: left out. U, W and b start uniform within 1/sqrt(hidden_size): our choice. The factors of a U of rank
        r start uniform within 3^(1/4)/sqrt(r) and 3^(1/4)/sqrt(hidden_size), so that its entries have the variance of
        those of a full one.
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
        if inner_steps < 1:
            raise ValueError(f"inner_steps must be 1 or more for {type(self).__name__}, got {inner_steps}.")
        check_positive(self, step_size=step_size, leak=leak)
        check_word(self, "nonlinearity", nonlinearity, ("relu", "tanh"))
        check_word(self, "start", start, ("previous", "zero"))
        if recurrent_rank is not None and not (recurrent_rank >= 1 and recurrent_rank % 1 == 0):
            raise ValueError(
                f"recurrent_rank must be a whole number, 1 or more, for {type(self).__name__}, got {recurrent_rank}."
            )
        self.inner_steps = inner_steps
        self.step_size = step_size
        self.leak = leak
        self.nonlinearity = nonlinearity
        self.start = start
        self.recurrent_rank = hidden_size if recurrent_rank is None else min(int(recurrent_rank), hidden_size)
        rank = self.recurrent_rank
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, rank))
        if rank < hidden_size:
            self.weight_hh_right = nn.Parameter(torch.empty(rank, hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size))
        self.inner_lengths = nn.Parameter(torch.empty(inner_steps))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            uniform_(parameter, self.hidden_size)
        if self.recurrent_rank < self.hidden_size:
            uniform_(self.weight_hh, self.recurrent_rank)
            with torch.no_grad():
                # A product of two uniform numbers has a third of the variance wanted: each takes the fourth root of 3.
                for factor in (self.weight_hh, self.weight_hh_right):
                    factor.mul_(3**0.25)
        nn.init.constant_(self.inner_lengths, self.step_size)

    def recurrent_matrix(self) -> Tensor:
        if self.recurrent_rank < self.hidden_size:
            return self.weight_hh @ self.weight_hh_right
        return self.weight_hh

    def materialize(self) -> tuple[Tensor, ...]:
        """The inner steps, one number each, and the factors of U from left to right."""
        factors = [self.weight_hh]
        if self.recurrent_rank < self.hidden_size:
            factors.append(self.weight_hh_right)
        return (self.inner_lengths, *factors)

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def exact(self) -> Matrix:
        """U in float64."""
        left = float64(self.weight_hh)
        return left @ float64(self.weight_hh_right) if self.recurrent_rank < self.hidden_size else left

    def sector(self) -> Sector:
        """The inner steps of y = g + h, each a layer of neurons: ``y <- (1 - e a) y + e f(U y + W x + b)``."""
        recurrent, unit = self.exact(), np.eye(self.hidden_size)
        seen, of_state, inner, of_neurons = self._expanded()
        # Neurons in units in which each inner step's give alike: one multiplier for all is then a good one.
        scale = np.maximum(np.abs(of_neurons), max(float(np.abs(of_neurons).max()), 1e-12) / 100)
        return Sector(
            F=(of_state - 1) * unit,
            G=_blocks(of_neurons[None] / scale, unit),
            V=_blocks((seen * scale)[:, None], recurrent),
            U=_blocks(scale[:, None], float64(self.weight_ih)),
            D=_blocks(scale[:, None] * inner / scale, recurrent) if self.inner_steps > 1 else None,
            reach=float(scale.max()) if self.nonlinearity == "tanh" else math.inf,
        )

    def step_bound(self) -> StepBound:
        seen, of_state, _, of_neurons = self._expanded()
        lengths, pull = np.abs(float64(self.inner_lengths)), norm_above(self.exact())
        factors = np.abs(1 - float64(self.inner_lengths) * self.leak) + lengths * pull
        # What each inner step adds, and the later ones make of it.
        added = lengths * np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)
        safe = 1 + 16 * self.inner_steps * UNIT
        kept = abs(of_state - 1) + 8 * self.inner_steps * UNIT * (1 + abs(of_state))
        simple = StepBound(
            covers=self.state_names,
            norm="l2",
            rate=(kept + pull * float(added @ np.abs(seen))) * safe,
            gain=norm_above(float64(self.weight_ih)) * float(added.sum()) * safe,
            output_gain=1.0,
        )
        found = simple
        if self.inner_steps * self.hidden_size <= _MOST_NEURONS:
            by_sector = sector_bound(self.sector())
            # What the difference of what stays and 1 has lost.
            found = replace(by_sector, rate=by_sector.rate + 8 * self.inner_steps * UNIT * (1 + abs(of_state)))
        reach = float(np.abs(of_neurons).sum()) * safe
        bounded = self.nonlinearity == "tanh" and kept * safe < 1
        return replace(
            min(found, simple, key=lambda bound: bound.rate),
            balls=(Ball("hidden", "linf", reach / (1 - kept * safe)),) if bounded else (),
            conditions=(
                Hypothesis(
                    "max of abs(1 - e leak) + abs(e) norm(U)",
                    float(factors.max()) * safe,
                    1.0,
                    strict=True,
                    of="limit of many inner steps",
                ),
            ),
            figures={"norm_U": pull},
        )

    def _expanded(self) -> tuple[Matrix, float, Matrix, Matrix]:
        """Of what y is made: how much of h before each inner step and after the last, then how much of the neurons of
        each inner step, likewise."""
        of_state, of_neurons = 2.0 if self.start == "previous" else 1.0, np.zeros(self.inner_steps)
        seen, inner = [], []
        for place, length in enumerate(float64(self.inner_lengths)):
            seen.append(of_state)
            inner.append(of_neurons)
            kept = 1 - float(length) * self.leak
            of_state, of_neurons = kept * of_state, kept * of_neurons
            of_neurons[place] = length
        return np.array(seen), of_state, np.array(inner), of_neurons

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        lengths, *factors = weights
        f = torch.relu if self.nonlinearity == "relu" else torch.tanh
        g = h if self.start == "previous" else torch.zeros_like(h)
        for length in lengths.unbind():
            y = g + h
            product = y
            for factor in reversed(factors):
                product = nn.functional.linear(product, factor)
            g = g + length * (f(product + drive) - self.leak * y)
        return (g,)


def _blocks(numbers: Matrix, block: Matrix) -> Matrix:
    """A matrix of blocks, each a number times the same one."""
    return np.kron(numbers, block).astype(np.float64)
