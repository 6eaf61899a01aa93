"""coRNN: Rusch, Mishra, "Coupled oscillatory recurrent neural network (coRNN): an accurate and (gradient) stable
architecture for learning long time dependencies", ICLR 2021."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import Ball, StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    as_float32,
    check_positive,
    empty_parameter,
    float64,
    step_length,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell


class CoRNNWeights(NamedTuple):
    recurrent: Tensor
    """The matrices of position and velocity side by side, (hidden, 2 hidden): one product a step."""


@register_cell(
    "cornn",
    title="coupled oscillators, driven and damped",
    paper="Rusch, Mishra: Coupled Oscillatory Recurrent Neural Network (coRNN) (ICLR 2021)",
    year=2021,
    guarantee="with regular steps the state stays bounded by construction, for any weights and inputs; not contracting",
    equation=(
        "z <- z + step_size (tanh(W y + Wz z + V x + b) - stiffness y - damping z); y <- y + step_size z (the new z)"
    ),
    paper_options={"step_size": 0.042, "stiffness": 2.7, "damping": 4.7},
    paper_source=(
        "the released code's settings for ordered MNIST with 256 units, training included; on permuted MNIST it takes "
        "step_size .076, stiffness .4, damping 8 and lr .0054."
    ),
    training={
        "practical": practical(0.01),
        "paper": {
            "lr": 0.0021,
            "optimizer": "adam",
            "schedule": "step",
            "lr_decay": 0.1,
            "step_epochs": 100,
            "epochs": 120,
            "batch_size": 120,
        },
    },
)
class CoRNNCell(StableCell):
    r"""Oscillators coupled through a tanh: one implicit-explicit step of their second-order equation.

    .. math::
        z_t = z_{t-1} + \Delta t \, (\tanh(W y_{t-1} + \mathcal{W} z_{t-1} + V x_t + b)
            - \gamma y_{t-1} - \epsilon z_{t-1}), \quad
        y_t = y_{t-1} + \Delta t \, z_t

    In code: y is ``hidden``, z is ``velocity``, :math:`\Delta t` is ``step_size``, :math:`\gamma` is ``stiffness``,
    :math:`\epsilon` is ``damping``; W is ``weight_hh``, :math:`\mathcal{W}` is ``weight_velocity``, V is
    ``weight_ih``, b is ``bias_ih``.

    Guarantee:
        By construction, for any weights and inputs: each unit is a damped linear oscillator with a force within
        [-1, 1], whose step is stable if 2 step_size damping + step_size^2 stiffness < 4, which is required. Regular
        steps thus keep the state within a bound that does not depend on time. With the default options so do steps of
        varying length, since one norm shrinks at every length. With any options and steps up to the regular one, if
        also step_size damping <= 1 and step_size stiffness < damping, the energy stiffness |y|^2 + |z|^2 grows by at
        most hidden_size step_size / (damping - step_size stiffness) a step (the paper's proposition for the implicit
        damping, in the form for the explicit one). The coupling through the tanh can still drive trajectories apart; if
        the trained weights are small, :meth:`step_bound` proves that it does not. The paper's bounds on gradients need
        small weights, too, which nothing enforces.

    Args:
        input_size: Features per time step.
        hidden_size: Number of oscillators.
        step_size: Length of a step, greater than 0. The default is ours.
        stiffness: Restoring force, greater than 0. The default is ours.
        damping: Damping of the velocity, greater than 0. The default is ours.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and velocity, each ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next hidden and velocity

    Raises:
        ValueError: If an option is not positive, or the step is too long for stiffness and damping.

    Example:
        >>> hidden, velocity = CoRNNCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> hidden.shape
        torch.Size([2, 8])

    References:
        The paper's recurrence, which leaves open whether the damping acts on the old velocity or the new one; here it
        is the old one, as in the released code. Initial weights are as there, uniform within
        1 / sqrt(input_size + 2 hidden_size).
    """

    state_names = ("hidden", "velocity")
    takes_dt = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.5,
        stiffness: float = 0.5,
        damping: float = 0.5,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size, stiffness=stiffness, damping=damping)
        # Jury's criterion for the matrix of _oscillator(): its determinant is 1 - step_size damping, its trace
        # 2 - step_size damping - step_size^2 stiffness.
        stability_number = 2 * step_size * damping + step_size**2 * stiffness
        if stability_number >= 4:
            raise ValueError(
                f"step_size is too long for CoRNNCell: 2 step_size damping + step_size^2 stiffness must be less than 4 "
                f"for a stable step, got {stability_number:g}."
            )
        self.step_size = step_size
        self.stiffness = stiffness
        self.damping = damping
        self.weight_hh = empty_parameter(hidden_size, hidden_size)
        self.weight_velocity = empty_parameter(hidden_size, hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            uniform_(parameter, self.input_size + 2 * self.hidden_size)

    def recurrent_matrix(self) -> Tensor:
        """Return W and the velocity's matrix side by side, ``(hidden, 2 hidden)``."""
        return torch.cat([self.weight_hh, self.weight_velocity], dim=1)

    def materialize(self) -> CoRNNWeights:
        return CoRNNWeights(self.recurrent_matrix())

    def lure_system(self) -> LureSystem:
        # The state is [y | z]. The force changes z by step_size, and y by step_size of that, since y takes the new z.
        unit, step_size = np.eye(self.hidden_size), as_float32(self.step_size)
        return LureSystem(
            F=np.block([[factor * unit for factor in row] for row in self._oscillator()]),
            G=np.block([[step_size**2 * unit], [step_size * unit]]),
            V=float64(self.recurrent_matrix()),
            U=float64(self.weight_ih),
        )

    def step_bound(self) -> StepBound:
        bound = lure_bound(self.lure_system(), states=self.state_names, output=self.hidden_size)
        return replace(bound, balls=self.state_balls())

    def _oscillator(self) -> Matrix:
        """Return the matrix of a step of one unit (y, z) without force, ``(2, 2)``."""
        step_size, stiffness, damping = (
            as_float32(option) for option in (self.step_size, self.stiffness, self.damping)
        )
        velocity = np.array([-step_size * stiffness, 1 - step_size * damping])
        return np.stack([np.array([1.0, 0.0]) + step_size * velocity, velocity])

    def state_balls(self) -> tuple[Ball, ...]:
        """Return bounds of position and velocity of a unit under forces within 1.

        They are the sums of the moduli of its impulse response. Those of the first n steps are summed; the rest of the
        response is the same, n steps later, times the n-th power of the matrix.
        """
        matrix, steps = self._oscillator(), 1
        power = matrix
        # Squared until the rest hardly counts; the number of steps limits the time that slow oscillators take.
        while np.abs(power).sum(axis=1).max() > 1e-6 and steps < 2**16:
            power, steps = power @ power, 2 * steps
        # Still slower ones get no ball.
        if np.abs(power).sum(axis=1).max() > 0.5:
            return ()
        step_size = as_float32(self.step_size)
        response, total = np.array([step_size**2, step_size]), np.zeros(2)
        for _ in range(steps):
            response, total = matrix @ response, total + np.abs(response)
        # All sums s satisfy s <= total + |power| s.
        radii = np.linalg.solve(np.eye(2) - np.abs(power), total) * (1 + 1e-6)
        return tuple(Ball(name, "linf", float(radius)) for name, radius in zip(self.state_names, radii, strict=True))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        y, z = state
        (recurrent,) = weights
        length = step_length(self.step_size, dt)
        force = torch.tanh(nn.functional.linear(torch.cat([y, z], dim=-1), recurrent) + drive)
        z = z + length * (force - self.stiffness * y - self.damping * z)
        return y + length * z, z
