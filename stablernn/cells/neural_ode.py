"""RNNs that integrate an equation in time: Rubanova, Chen, Duvenaud, "Latent ODEs for irregularly-sampled time series"
(ODE-RNN), NeurIPS 2019; and the neural ODE that Erichson et al., ICLR 2021, compare their Lipschitz RNN with."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.continuous import largest_euler_step
from stablernn.bounds.lure import LureSystem, dominance_bound, lure_bound
from stablernn.bounds.step_bound import StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    as_float32,
    check_choice,
    check_not_negative,
    check_positive,
    empty_parameter,
    float64,
    step_length,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._flow import SOLVERS, FlowCell, Solver, network_velocity, solver_step
from stablernn.cells._input_projection import project_input
from stablernn.cells._step_form import StepForm


class NeuralODEWeights(NamedTuple):
    recurrent: Tensor
    """W, (hidden, hidden)."""


@register_cell(
    "neural_ode_rnn",
    title="Euler step of h' = tanh(W h + U x + b) with a free matrix",
    paper="Rubanova, Chen, Duvenaud: Latent ODEs (NeurIPS 2019), as in Erichson et al. (ICLR 2021), eq. 11",
    year=2019,
    guarantee="a step moves the state by at most step_size sqrt(N), by construction; nothing else",
    family="residual",
    equation="h <- h + step_size tanh(W h + U x + b)",
    paper_options={"step_size": 0.03, "init_scale": 0.1},
    paper_source=(
        "values of the Lipschitz RNN on ordered MNIST, whose authors compare it with this cell; they give none of its "
        "own. init_scale from their released code."
    ),
    training={
        "practical": practical(0.005, 80),
        "paper": {
            "lr": 0.003,
            "optimizer": "adam",
            "schedule": "step",
            "lr_decay": 0.1,
            "step_epochs": 90,
            "epochs": 100,
            "batch_size": 128,
        },
    },
)
class NeuralODERNNCell(StableCell):
    r"""The simplest differential equation: a tanh of a free linear map; forward Euler, the input held over the step.

    .. math:: h_t = h_{t-1} + \epsilon \tanh(W h_{t-1} + U x_t + b)

    In code: :math:`\epsilon` is ``step_size``, W is ``weight_hh``, U is ``weight_ih``, b is ``bias_ih``.

    Guarantee:
        None by construction. Since tanh is at most 1, a step moves the state by at most step_size sqrt(hidden_size). W
        has no structure: an eigenvalue with a positive real part drives the state away from the origin. Where tanh is
        saturated a step does not change the difference of two states, so that no rate is below 1.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Euler step, dimensionless, greater than 0. The default is ours.
        init_scale: Standard deviation of W's entries times hidden_size, 0 or more. The default is that of the released
            code of the Lipschitz RNN.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``step_size`` is not positive or ``init_scale`` is negative.

    Example:
        >>> cell = NeuralODERNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        Erichson et al., eq. 11, "resRNN" in their code: W ~ N(0, (init_scale/hidden_size)^2), U and b as in torch's
        linear layers. It is the ``lipschitz`` cell without the linear term and with W free. :class:`ODERNNCell` is the
        model of Rubanova et al.
    """

    takes_dt = True
    is_euler = True

    def __init__(self, input_size: int, hidden_size: int, *, step_size: float = 0.5, init_scale: float = 0.1) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        check_not_negative(self, init_scale=init_scale)
        self.step_size = step_size
        self.init_scale = init_scale
        self.weight_hh = empty_parameter(hidden_size, hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight_hh, std=self.init_scale / self.hidden_size)
        for parameter in (self.weight_ih, self.bias_ih):
            uniform_(parameter, self.input_size)

    def recurrent_matrix(self) -> Tensor:
        return self.weight_hh

    def materialize(self) -> NeuralODEWeights:
        return NeuralODEWeights(self.weight_hh)

    def drive(self, x: Tensor) -> Tensor:
        return project_input(self, x, self.weight_ih, self.bias_ih)

    def lure_system(self) -> LureSystem:
        # F = I and G = step_size I of h <- F h + G tanh(W h + U x + b).
        unit = np.eye(self.hidden_size)
        return LureSystem(unit, as_float32(self.step_size) * unit, float64(self.weight_hh), float64(self.weight_ih))

    def step_bound(self) -> StepBound:
        step = self.lure_system()
        bound = dominance_bound(step, lure_bound(step))
        # largest_euler_step counts in steps of this length.
        return replace(bound, figures={"largest_euler_step": largest_euler_step(step, bound) * self.step_size})

    def step_form(self, weights: Weights) -> StepForm:
        return StepForm("residual", weights[0], step_size=self.step_size)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (w,) = weights
        return (h + step_length(self.step_size, dt) * torch.tanh(nn.functional.linear(h, w) + drive),)


class ODERNNWeights(NamedTuple):
    flow_in: Tensor
    """F_1, (flow_size, hidden)."""
    flow_in_bias: Tensor
    """c_1, (flow_size,)."""
    flow_out: Tensor
    """F_2, (hidden, flow_size)."""
    flow_out_bias: Tensor
    """c_2, (hidden,)."""
    recurrent: Tensor
    """The GRU's matrices of r, z and n, stacked, (3 hidden, hidden)."""
    bias: Tensor
    """c_n, the bias that the reset gate multiplies, (hidden,)."""


@register_cell(
    "ode_rnn",
    title="flow of a small network between samples, a GRU at each",
    paper="Rubanova, Chen, Duvenaud: Latent ODEs (NeurIPS 2019)",
    year=2019,
    guarantee="none",
    equation=(
        "f(h) = F_2 tanh(F_1 h + c_1) + c_2; h <- flow of f over step_size dt; then h <- GRU(x, h) as the cell gru"
    ),
    paper_options={"solver": "euler", "solver_steps": 1, "flow_size": 100},
    paper_source=(
        "tanh flow of 100 units, Euler or dopri5 with tolerances 1e-4 and 1e-5, as in the released code; the step and "
        "all training settings are our choice."
    ),
    training={
        "practical": practical(0.005),
        "paper": {"lr": 0.01, "optimizer": "adam", "batch_size": 100},
    },
)
class ODERNNCell(FlowCell):
    r"""A state that flows along a learned vector field between samples, and that each sample updates by a GRU.

    .. math::
        \tilde h = h_{t-1} + \int_0^{\epsilon\, dt_t} f(h)\, ds, \quad f(h) = F_2 \tanh(F_1 h + c_1) + c_2, \quad
        h_t = \mathrm{GRU}(x_t, \tilde h)

    In code: :math:`\epsilon` is ``step_size``; F_1, c_1 are ``flow_in`` and ``flow_in_bias``, F_2, c_2 are ``flow_out``
    and ``flow_out_bias``; the GRU's letters are those of :class:`stablernn.cells.GRUCell`. The integral is taken in
    ``solver_steps`` equal steps of the solver over a regular interval, and in more of them over a longer one, so that
    none is longer.

    Guarantee:
        None: neither the flow nor the GRU is constrained. A gate at one retains what the flow adds at every step, so
        that the state has no invariant ball; and the slope of the gate is multiplied by the state, so that without a
        ball there is no rate either.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Time of the flow between two regular samples, greater than 0. Our choice.
        solver: ``euler``, ``midpoint``, ``heun`` or ``rk4``, which evaluate f once, twice, twice and four times a step.
        solver_steps: Steps of the solver over a regular interval, 1 or more.
        flow_size: Units of the flow's hidden layer, 1 or more.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = ODERNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3), dt=torch.tensor([0.5, 3.0])).shape
        torch.Size([2, 8])

    References:
        The paper's algorithm 1. Its dopri5 chooses steps by the data, which no exported graph can: the steps are fixed
        here. Its gates are networks of two layers over a mean and a deviation, here the plain GRU; its mask, by which a
        sample without any value does not update the state, is the models' ``mask_channel`` here, an ordinary input.
        The flow starts small, its outer layer at a tenth of torch's linear layers: our choice.
    """

    takes_dt = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 1.0,
        solver: Solver = "heun",
        solver_steps: int = 1,
        flow_size: int = 100,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        check_choice(self, "solver", solver, SOLVERS)
        for name, count in (("solver_steps", solver_steps), ("flow_size", flow_size)):
            if count < 1:
                raise ValueError(f"{name} must be 1 or more for {type(self).__name__}, got {count}.")
        self.step_size = step_size
        self.solver: Solver = solver
        self.solver_steps = solver_steps
        self.flow_size = flow_size
        self.add_flow(flow_size)
        self.weight_hh = empty_parameter(3 * hidden_size, hidden_size)
        self.weight_ih = empty_parameter(3 * hidden_size, input_size)
        self.bias_ih = empty_parameter(3 * hidden_size)
        self.bias_hn = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.reset_flow()
        for parameter in (self.weight_hh, self.weight_ih, self.bias_ih, self.bias_hn):
            uniform_(parameter, self.hidden_size)
        with torch.no_grad():
            # As in the cell gru: an update bias above zero retains the state at first.
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = 1.0

    def recurrent_matrix(self) -> Tensor:
        """Return the GRU's matrices of r, z and n, stacked, ``(3 hidden, hidden)``."""
        return self.weight_hh

    def materialize(self) -> ODERNNWeights:
        return ODERNNWeights(*self.flow_weights(), self.weight_hh, self.bias_hn)

    def drive(self, x: Tensor) -> Tensor:
        return project_input(self, x, self.weight_ih, self.bias_ih)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        return self.advance(weights, state, drive, dt, 1)

    def advance(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None, substeps: int) -> State:
        """Flow in ``substeps`` times as many steps of the solver; the GRU takes the sample once, after the flow."""
        (h,) = state
        *flow_weights, recurrent, bias = weights
        velocity = network_velocity(tuple(flow_weights))
        count = self.solver_steps * substeps
        length = step_length(self.step_size, dt) / count
        for _ in range(count):
            h = solver_step(self.solver, velocity, h, length)
        # The step of the cell gru, from the state after the flow.
        u_r, u_z, u_n = nn.functional.linear(h, recurrent).chunk(3, dim=-1)
        w_r, w_z, w_n = drive.chunk(3, dim=-1)
        r = torch.sigmoid(w_r + u_r)
        z = torch.sigmoid(w_z + u_z)
        n = torch.tanh(w_n + r * (u_n + bias))
        return ((1 - z) * n + z * h,)
