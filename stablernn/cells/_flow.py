"""Cells whose state follows the vector field of a small network between samples, and ODE solvers of a few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.linalg import Matrix
from stablernn.cells._base import StableCell, empty_parameter, float64, uniform_

Solver = Literal["euler", "midpoint", "heun", "rk4"]
SOLVERS: tuple[Solver, ...] = ("euler", "midpoint", "heun", "rk4")


def solver_step(solver: Solver, velocity: Callable[[Tensor], Tensor], h: Tensor, length: float | Tensor) -> Tensor:
    """Return the state after one step of ``h' = velocity(h)``.

    Args:
        solver: ``euler``, ``midpoint`` (explicit), ``heun``, or ``rk4`` (the classical Runge-Kutta rule).
        velocity: The vector field.
        h: The state.
        length: Length of the step; a tensor for one length per sample.
    """
    # The names k1 to k4 are those of the Runge-Kutta literature.
    k1 = velocity(h)
    match solver:
        case "euler":
            return h + length * k1
        case "midpoint":
            return h + length * velocity(h + length / 2 * k1)
        case "heun":
            return h + length / 2 * (k1 + velocity(h + length * k1))
        case "rk4":
            k2 = velocity(h + length / 2 * k1)
            k3 = velocity(h + length / 2 * k2)
            k4 = velocity(h + length * k3)
            return h + length / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


class FlowCell(StableCell):
    """Parameters F_1, c_1, F_2 and c_2 of a cell whose state flows between samples.

    A subclass calls :meth:`add_flow` where these parameters stand in its state dict, and :meth:`reset_flow` when it
    draws its own.
    """

    def add_flow(self, units: int) -> None:
        """Register the parameters of a network with ``units`` units in its hidden layer."""
        self.flow_in = empty_parameter(units, self.hidden_size)
        self.flow_in_bias = empty_parameter(units)
        self.flow_out = empty_parameter(self.hidden_size, units)
        self.flow_out_bias = empty_parameter(self.hidden_size)

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
