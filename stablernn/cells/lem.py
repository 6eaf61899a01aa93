"""LEM: Rusch, Mishra, Erichson, Mahoney, "Long expressive memory for sequence modeling", ICLR 2022."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import gated_bound, largest_convex_step
from stablernn.bounds.intervals import Box, accumulated_rounding, shrink_invariant
from stablernn.bounds.linalg import EPSILON, Matrix, row_norms
from stablernn.bounds.step_bound import Hypothesis, StepBound, ball_of
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_positive,
    empty_parameter,
    float64,
    step_length,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell


class LEMWeights(NamedTuple):
    recurrent: Tensor
    """W_1, W_2 and W_z, stacked, which act on the hidden state, (3 hidden, hidden)."""
    memory: Tensor
    """W_y, which acts on the new memory, (hidden, hidden)."""


@register_cell(
    "lem",
    title="long expressive memory, two gated time scales",
    paper="Rusch, Mishra, Erichson, Mahoney: Long Expressive Memory for Sequence Modeling (ICLR 2022)",
    year=2022,
    guarantee="hidden state and memory stay within 1 by construction for step_size <= 1; not contracting",
    equation=(
        "a = step_size sigmoid(W1 y + V1 x + b1); c = step_size sigmoid(W2 y + V2 x + b2); "
        "z <- (1 - c) .* z + c .* tanh(Wz y + Vz x + bz); y <- (1 - a) .* y + a .* tanh(Wy z + Vy x + by) (the new z)"
    ),
    paper_options={"step_size": 0.31},
    paper_source="the released code's settings for permuted MNIST with 128 units, training included.",
    training={
        "practical": practical(0.02),
        "paper": {
            "lr": 0.0073,
            "optimizer": "adam",
            "schedule": "step",
            "lr_decay": 0.1,
            "step_epochs": 100,
            "epochs": 120,
            "batch_size": 128,
            "clip_norm": 1.1,
        },
    },
)
class LEMCell(StableCell):
    r"""Two coupled ordinary differential equations with learned time scales, one implicit-explicit step.

    .. math::
        a = \Delta t \, \sigma(W_1 y_{t-1} + V_1 x_t + b_1), \quad
        c = \Delta t \, \sigma(W_2 y_{t-1} + V_2 x_t + b_2)
    .. math::
        z_t = (1 - c) \odot z_{t-1} + c \odot \tanh(W_z y_{t-1} + V_z x_t + b_z), \quad
        y_t = (1 - a) \odot y_{t-1} + a \odot \tanh(W_y z_t + V_y x_t + b_y)

    In code: y is ``hidden``, z is ``memory``, :math:`\Delta t` is ``step_size``; ``weight_hh`` is W_1 over W_2 over
    W_z, ``weight_memory`` is W_y; ``weight_ih`` and ``bias_ih`` have four blocks, for 1, 2, z and y.

    Guarantee:
        By construction if ``step_size`` is at most 1, for any weights and inputs: each step is a convex combination of
        hidden state or memory and a tanh, coordinate by coordinate, so that both stay within 1 once they are there;
        this holds for steps of any length. Above 1 the combination is not convex and the bound is lost; a regular step
        s below 2 keeps both within ``s / (2 - s)``. For small weights no regular step drives two states within 1 apart,
        in a weighted infinity norm; for larger weights no such bound holds, and the paper's bounds on gradients grow
        with them. No rate below 1 holds for all inputs: they can make both time scales arbitrarily long. Inputs within
        a range cannot, and small weights contract.

    Args:
        input_size: Features per time step.
        hidden_size: Length of hidden state and memory.
        step_size: Largest share of a state that a step replaces, greater than 0. The default is ours.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and memory, each ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next hidden and memory

    Raises:
        ValueError: If ``step_size`` is not positive.

    Example:
        >>> hidden, memory = LEMCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> memory.shape
        torch.Size([2, 8])

    References:
        The paper's recurrence, with the indices 1 and 2 of the released code (the paper swaps them) and one bias for
        each product for which the code has two. All parameters start uniform within 1 / sqrt(hidden_size), as there.
    """

    state_names = ("hidden", "memory")
    takes_dt = True

    def __init__(self, input_size: int, hidden_size: int, *, step_size: float = 0.5) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        self.step_size = step_size
        self.weight_hh = empty_parameter(3 * hidden_size, hidden_size)
        self.weight_memory = empty_parameter(hidden_size, hidden_size)
        self.weight_ih = empty_parameter(4 * hidden_size, input_size)
        self.bias_ih = empty_parameter(4 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            uniform_(parameter, self.hidden_size)

    def recurrent_matrix(self) -> Tensor:
        """Return W_1, W_2, W_z and W_y, stacked, ``(4 hidden, hidden)``; the last acts on the memory."""
        return torch.cat([self.weight_hh, self.weight_memory])

    def step_bound(self) -> StepBound:
        return self.step_bound_within(Box.around_zero(self.input_size, math.inf))

    def step_bound_within(self, inputs: Box) -> StepBound:
        size, step = self.hidden_size, self.step_size
        # The fixed point r = |1 - step| r + step of the largest coordinate, where step exceeds 1.
        radius = 1.0 if step <= 1 else step / (2 - step) * (1 + 4 * EPSILON) if step < 2 else math.inf
        w_1, w_2, w_z = float64(self.weight_hh).reshape(3, size, size)
        w_y = float64(self.weight_memory)
        states, candidates, replaced = self._ranges(inputs, radius)
        # Of the hidden state and of the memory.
        ranges = [
            {"states": box, "candidates": candidate, "shares": Box(1 - share.upper, 1 - share.lower)}
            for box, candidate, share in zip(states.split(2), candidates.split(2), replaced.split(2), strict=True)
        ]

        # With s the share that stays and 1 - s = step sigmoid(g), the slope of s is (1 - s) (1 - (1 - s) / step).
        def gate_slope(share: Matrix) -> Matrix:
            return np.clip(1 - (1 - share) / step, 0, 1)

        def mixed(
            old: Matrix, by_gates: tuple[Matrix, Matrix], by_z: Matrix, by_y: Callable[[Matrix], Matrix]
        ) -> Matrix:
            # The memory first: the hidden state depends on the new one.
            y_old, z_old = np.split(old, 2)
            z = largest_convex_step(z_old, by_gates[1], by_z, gate_slope=gate_slope, **ranges[1])
            y = largest_convex_step(y_old, by_gates[0], by_y(z), gate_slope=gate_slope, **ranges[0])
            return np.concatenate([y, z])

        def row_sums(weights: Matrix) -> Matrix:
            y = weights[:size]
            by_1, by_2, by_z = (np.abs(matrix) @ y for matrix in (w_1, w_2, w_z))
            return mixed(weights, (by_1, by_2), by_z, lambda memory: np.abs(w_y) @ memory)

        v_1, v_2, v_z, v_y = row_norms(float64(self.weight_ih)).reshape(4, size)
        return gated_bound(
            row_sums,
            mixed(np.zeros(2 * size), (v_1, v_2), v_z, lambda memory: v_y + np.abs(w_y) @ memory),
            covers=self.state_names,
            output=slice(size),
            balls=tuple(
                ball_of(name, box) for name, box in zip(self.state_names, states.split(2), strict=True) if box.is_finite
            ),
            hypotheses=(Hypothesis("step_size", step, 1.0),),
        )

    def _ranges(self, inputs: Box, radius: float) -> tuple[Box, Box, Box]:
        """Return the ranges of both states, one after the other, of the tanh of each, and of the shares replaced by it.

        Args:
            inputs: Of the cell.
            radius: Within which the states are, whatever the inputs.
        """
        step = self.step_size
        w_1, w_2, w_z = float64(self.weight_hh).reshape(3, self.hidden_size, -1)
        w_y = float64(self.weight_memory)
        drive_1, drive_2, drive_z, drive_y = inputs.affine(float64(self.weight_ih), float64(self.bias_ih)).split(4)

        def candidates(states: Box) -> Box:
            y, z = states.split(2)
            return drive_y.plus(z.affine(w_y)).join(drive_z.plus(y.affine(w_z))).tanh()

        def replaced_shares(states: Box) -> Box:
            y, _ = states.split(2)
            gates = drive_1.plus(y.affine(w_1)).join(drive_2.plus(y.affine(w_2))).sigmoid()
            return Box(step * gates.lower, np.minimum(step * gates.upper, 1.0))

        states = Box.around_zero(2 * self.hidden_size, radius)
        if step <= 1:
            # Both are mixed with a tanh; the new memory, which the hidden state sees, is in the memory's box again.
            states = shrink_invariant(
                states, lambda box: candidates(box).scaled(accumulated_rounding(replaced_shares(box).lower))
            )
        return states, candidates(states), replaced_shares(states)

    def irregular_bound(self) -> StepBound:
        # A shorter step retains a larger share of the state, and the candidate is a tanh as before.
        return StepBound(balls=self.step_bound().balls)

    def materialize(self) -> LEMWeights:
        return LEMWeights(self.weight_hh, self.weight_memory)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        y, z = state
        recurrent, memory = weights
        length = step_length(self.step_size, dt)
        drive_1, drive_2, drive_z, drive_y = drive.chunk(4, dim=-1)
        w_1, w_2, w_z = nn.functional.linear(y, recurrent).chunk(3, dim=-1)
        a = length * torch.sigmoid(w_1 + drive_1)
        c = length * torch.sigmoid(w_2 + drive_2)
        z = (1 - c) * z + c * torch.tanh(w_z + drive_z)
        y = (1 - a) * y + a * torch.tanh(nn.functional.linear(z, memory) + drive_y)
        return y, z
