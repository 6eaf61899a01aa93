"""GRU: Cho et al., "Learning phrase representations using RNN encoder-decoder", EMNLP 2014; in cuDNN's form."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import gated_bound, largest_convex_step, largest_gated
from stablernn.bounds.intervals import Box, accumulated_rounding, shrink_invariant, sigmoid
from stablernn.bounds.linalg import Matrix, row_norms
from stablernn.bounds.step_bound import StepBound, ball_of
from stablernn.cells._base import StableCell, State, Weights, empty_parameter, float64, uniform_
from stablernn.cells._catalog import practical, register_cell


class GRUWeights(NamedTuple):
    recurrent: Tensor
    """The matrices of r, z and n, stacked, (3 hidden, hidden)."""
    bias: Tensor
    """c_n, inside the reset gate's product, (hidden,)."""


@register_cell(
    "gru",
    title="gated recurrent unit",
    paper="Cho et al.: Learning phrase representations using RNN encoder-decoder (EMNLP 2014)",
    year=2014,
    guarantee="the state stays within 1 once it is there, by construction; not contracting",
    equation=("r, z = sigmoid(W x + U h + b); n = tanh(W_n x + b_n + r .* (U_n h + c_n)); h <- (1 - z) .* n + z .* h"),
    paper_source=(
        "cuDNN's form with an update bias of 1; the sources name the unit and publish no row for it, so the training "
        "settings are ours."
    ),
    training={
        "practical": practical(0.01),
        "paper": {"lr": 0.001, "optimizer": "adam"},
    },
)
class GRUCell(StableCell):
    r"""A cell with two gates: one resets the part of the state that the candidate sees, one mixes candidate and state.

    .. math::
        r, z = \sigma(W x_t + U h_{t-1} + b), \quad n = \tanh(W_n x_t + b_n + r \odot (U_n h_{t-1} + c_n)), \quad
        h_t = (1 - z) \odot n + z \odot h_{t-1}

    In code: W is ``weight_ih``, U is ``weight_hh``, b is ``bias_ih``, c_n is ``bias_hn``; rows in torch's order
    r, z, n.

    Guarantee:
        The bound by construction: a state within 1 in every coordinate stays so, since each step mixes it with a tanh.
        If the recurrent weights are small, no step drives two states within 1 apart, in a weighted infinity norm. No
        rate below 1 holds for all inputs: they can bring z arbitrarily close to 1. Inputs within a range cannot, and
        small weights contract.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        update_bias: Initial bias of the update gate z: above 0 most of the state is kept at first. Our choice.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Example:
        >>> cell = GRUCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        Equal to ``torch.nn.GRU`` with the second bias of r and z at zero.
    """

    def __init__(self, input_size: int, hidden_size: int, *, update_bias: float = 1.0) -> None:
        super().__init__(input_size, hidden_size)
        self.update_bias = update_bias
        self.weight_hh = empty_parameter(3 * hidden_size, hidden_size)
        self.weight_ih = empty_parameter(3 * hidden_size, input_size)
        self.bias_ih = empty_parameter(3 * hidden_size)
        self.bias_hn = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            uniform_(parameter, self.hidden_size)
        with torch.no_grad():
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = self.update_bias

    def recurrent_matrix(self) -> Tensor:
        """Return U of r, z and n, stacked, ``(3 hidden, hidden)``."""
        return self.weight_hh

    def step_bound(self) -> StepBound:
        return self.step_bound_within(Box.around_zero(self.input_size, math.inf))

    def step_bound_within(self, inputs: Box) -> StepBound:
        size = self.hidden_size
        u_r, u_z, u_n = float64(self.weight_hh).reshape(3, size, size)
        drive_r, drive_z, drive_n = inputs.affine(float64(self.weight_ih), float64(self.bias_ih)).split(3)

        def reset_gate(states: Box) -> tuple[Box, Box]:
            return drive_r.plus(states.affine(u_r)).sigmoid(), states.affine(u_n, float64(self.bias_hn))

        def candidate(states: Box) -> Box:
            reset, reset_input = reset_gate(states)
            return drive_n.plus(reset.times(reset_input)).tanh()

        def image(states: Box) -> Box:
            # Each step mixes the state with the candidate.
            update = drive_z.plus(states.affine(u_z))
            return candidate(states).scaled(accumulated_rounding(sigmoid(-update.upper)))

        states = shrink_invariant(Box.around_zero(size, 1.0), image)
        reset, reset_input = reset_gate(states)
        # Either is a bound; the second one is exact for a box around zero.
        reset_size = np.minimum(reset_input.modulus, np.abs(u_n) @ states.modulus + np.abs(float64(self.bias_hn)))
        candidates, update = candidate(states), drive_z.plus(states.affine(u_z)).sigmoid()

        def mixed(old: Matrix, by_r: Matrix, by_z: Matrix, by_n: Matrix) -> Matrix:
            candidate_slope = largest_gated(by_n, reset_size * by_r, reset.lower, reset.upper)
            return largest_convex_step(old, by_z, candidate_slope, states=states, candidates=candidates, shares=update)

        # The slope r (1 - r) of the reset gate.
        reset_slope = largest_gated(np.zeros(size), np.ones(size), reset.lower, reset.upper)
        w_r, w_z, w_n = row_norms(float64(self.weight_ih)).reshape(3, -1)
        return gated_bound(
            lambda weights: mixed(weights, *(np.abs(matrix) @ weights for matrix in (u_r, u_z, u_n))),
            largest_convex_step(
                np.zeros(size),
                w_z,
                w_n + reset_size * w_r * reset_slope,
                states=states,
                candidates=candidates,
                shares=update,
            ),
            covers=("hidden",),
            output=slice(None),
            balls=(ball_of("hidden", states),),
        )

    def materialize(self) -> GRUWeights:
        return GRUWeights(self.weight_hh, self.bias_hn)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        recurrent, bias = weights
        u_r, u_z, u_n = nn.functional.linear(h, recurrent).chunk(3, dim=-1)
        w_r, w_z, w_n = drive.chunk(3, dim=-1)
        r = torch.sigmoid(w_r + u_r)
        z = torch.sigmoid(w_z + u_z)
        n = torch.tanh(w_n + r * (u_n + bias))
        return ((1 - z) * n + z * h,)
