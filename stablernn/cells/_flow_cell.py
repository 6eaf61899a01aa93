"""The vector field ``f(h) = F_2 tanh(F_1 h + c_1) + c_2`` of the cells whose state flows along a small network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.linalg import Matrix
from stablernn.cells._base import StableCell, float64, uniform_


class FlowCell(StableCell):
    """Parameters F_1, c_1, F_2 and c_2 of a cell whose state flows between samples.

    A subclass calls :meth:`add_flow` where these parameters stand in its state dict, and :meth:`reset_flow` when it
    draws its own.
    """

    def add_flow(self, units: int) -> None:
        """Register the parameters of a network with ``units`` units in its hidden layer."""
        self.flow_in = nn.Parameter(torch.empty(units, self.hidden_size))
        self.flow_in_bias = nn.Parameter(torch.empty(units))
        self.flow_out = nn.Parameter(torch.empty(self.hidden_size, units))
        self.flow_out_bias = nn.Parameter(torch.empty(self.hidden_size))

    def reset_flow(self) -> None:
        """Draw the parameters as torch's linear layers do, the outer layer at a tenth."""
        for parameter in (self.flow_in, self.flow_in_bias):
            uniform_(parameter, self.hidden_size)
        # A fan-in 100 times as large makes the bound a tenth: the flow starts slow.
        for parameter in (self.flow_out, self.flow_out_bias):
            uniform_(parameter, 100 * len(self.flow_in))

    def flow_weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return F_1, c_1, F_2 and c_2."""
        return self.flow_in, self.flow_in_bias, self.flow_out, self.flow_out_bias

    def velocity_bounds(self) -> Matrix:
        """Return the largest modulus of each coordinate of f, ``(hidden,)``, in float32 too."""
        bounds: Matrix = np.abs(float64(self.flow_out)).sum(axis=1) + np.abs(float64(self.flow_out_bias))
        # A float32 sum of so many products can exceed the exact one.
        rounded: Matrix = bounds * (1 + (len(self.flow_in) + 8) * FLOAT32_EPSILON)
        return rounded

    def flow_move(self, start: Box, length: float) -> Box:
        """Return the range of the change of the state along the flow, in any steps of any solver.

        Args:
            start: Of the state before the flow.
            length: Time of the flow.
        """
        flow_in, flow_in_bias, flow_out, flow_out_bias = map(float64, self.flow_weights())
        # Wherever a solver takes a velocity, the state has moved by at most the largest one; what it adds in the end is
        # the mean of velocities, times the length.
        reach = length * self.velocity_bounds()
        passed = start.plus(Box(-reach, reach))
        return passed.affine(flow_in, flow_in_bias).tanh().affine(flow_out, flow_out_bias).scaled(length)


def network_velocity(flow_weights: tuple[Tensor, ...]) -> Callable[[Tensor], Tensor]:
    """Return f for weights as :meth:`FlowCell.flow_weights` returns them."""
    flow_in, flow_in_bias, flow_out, flow_out_bias = flow_weights

    def velocity(h: Tensor) -> Tensor:
        inner = torch.tanh(nn.functional.linear(h, flow_in, flow_in_bias))
        return nn.functional.linear(inner, flow_out, flow_out_bias)

    return velocity
