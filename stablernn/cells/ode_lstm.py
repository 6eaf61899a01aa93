"""ODE-LSTM: Lechner, Hasani, "Learning long-term dependencies in irregularly-sampled time series", 2020."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box, shrink_invariant
from stablernn.bounds.step_bound import Ball, StepBound, ball_of
from stablernn.cells._base import (
    State,
    Weights,
    check_choice,
    check_finite,
    check_whole_number,
    empty_parameter,
    float64,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._flow import FlowCell, Solver, network_velocity, solver_step
from stablernn.cells.lstm import MemoryRanges, memory_ranges, update_memory

_SOLVER_STEPS = 3
"""Steps of the solver between two samples, as in the released code."""


class ODELSTMWeights(NamedTuple):
    recurrent: Tensor
    """The LSTM's matrices of i, f, g and o, stacked, (4 hidden, hidden)."""
    flow_in: Tensor
    """F_1, (flow_size, hidden)."""
    flow_in_bias: Tensor
    """c_1, (flow_size,)."""
    flow_out: Tensor
    """F_2, (hidden, flow_size)."""
    flow_out_bias: Tensor
    """c_2, (hidden,)."""


@register_cell(
    "ode_lstm",
    title="LSTM whose hidden state flows between samples",
    paper="Lechner, Hasani: Learning Long-Term Dependencies in Irregularly-Sampled Time Series (2020)",
    year=2020,
    guarantee="the hidden state stays bounded by construction, the cell state can grow by 1 a step; not contracting",
    equation=(
        "(h, c) <- LSTM(x, (h, c)) as the cell lstm; h <- flow of f over dt, in 3 steps of the solver, "
        "f(h) = F_2 tanh(F_1 h + c_1) + c_2"
    ),
    paper_options={"solver": "rk4"},
    paper_source=(
        "the released code's three solver steps, and of the solvers that it offers the classical Runge-Kutta rule; "
        "forget bias, the start of the flow and all training settings are ours."
    ),
    training={
        "practical": practical(0.01),
        "paper": {"lr": 0.005, "optimizer": "adam"},
    },
)
class ODELSTMCell(FlowCell):
    r"""An LSTM step at each sample, after which the hidden state flows along a learned vector field until the next.

    .. math::
        (h', c_t) = \mathrm{LSTM}(x_t, (h_{t-1}, c_{t-1})), \quad
        h_t = h' + \int_0^{dt_t} f(h)\, ds, \quad f(h) = F_2 \tanh(F_1 h + c_1) + c_2

    In code: the LSTM's letters are those of :class:`stablernn.cells.LSTMCell`; F_1, c_1 are ``flow_in`` and
    ``flow_in_bias``, F_2, c_2 are ``flow_out`` and ``flow_out_bias``. The integral is taken in three equal steps of the
    solver, whatever dt is.

    Guarantee:
        None by construction. The cell state, which does not flow, grows by at most 1 a step. Coordinate i of the hidden
        state stays within ``1 + dt (sum_j |F_2 ij| + |c_2 i|)``: the parenthesis bounds f. For inputs within a range
        the cell state has a ball in regular steps. No rate is proved, for reasons as of
        :class:`stablernn.cells.LSTMCell`.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        solver: ``euler``, ``heun`` or ``rk4``, which evaluate f once, twice and four times a step.
        flow_size: Units of the flow's hidden layer, 1 or more; None: hidden_size, as in the released code.
        forget_bias: Initial bias of the forget gate. Our choice.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and cell, each ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next hidden and cell state

    Raises:
        ValueError: If ``solver`` is none of the above or ``flow_size`` is below 1.

    Example:
        >>> cell = ODELSTMCell(input_size=3, hidden_size=8)
        >>> hidden, cell_state = cell(torch.zeros(2, 3), dt=torch.tensor([0.5, 3.0]))
        >>> hidden.shape
        torch.Size([2, 8])

    References:
        The paper's ODE-LSTM. Its adaptive solver (dopri5) is not offered: no exported graph can choose steps by the
        data. The flow starts small, its outer layer at a tenth of torch's linear layers: our choice.
    """

    state_names = ("hidden", "cell")
    takes_dt = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        solver: Literal["euler", "heun", "rk4"] = "euler",
        flow_size: int | None = None,
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_choice(self, "solver", solver, ("euler", "heun", "rk4"))
        check_finite(self, forget_bias=forget_bias)
        check_whole_number(self, "flow_size", flow_size)
        self.solver: Solver = solver
        self.flow_size = flow_size
        self.forget_bias = forget_bias
        units = hidden_size if flow_size is None else flow_size
        self.weight_hh = empty_parameter(4 * hidden_size, hidden_size)
        self.weight_ih = empty_parameter(4 * hidden_size, input_size)
        self.bias_ih = empty_parameter(4 * hidden_size)
        self.add_flow(units)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.weight_hh, self.weight_ih):
            uniform_(weight, self.hidden_size)
        nn.init.zeros_(self.bias_ih)
        with torch.no_grad():
            # The second block of i, f, g, o.
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = self.forget_bias
        self.reset_flow()

    def substeps(self, longest: float) -> int:
        """Return 1: the LSTM takes a sample once, and the flow always has three steps."""
        return 1

    def recurrent_matrix(self) -> Tensor:
        """Return U of the LSTM's four gates, stacked, ``(4 hidden, hidden)``; the flow is not part of it."""
        return self.weight_hh

    def materialize(self) -> ODELSTMWeights:
        return ODELSTMWeights(self.weight_hh, *self.flow_weights())

    def step_bound(self) -> StepBound:
        radius = float((1 + self.velocity_bounds()).max()) * (1 + 8 * FLOAT32_EPSILON)
        return StepBound(balls=(Ball("hidden", "linf", radius),))

    def step_bound_within(self, inputs: Box) -> StepBound:
        recurrent, velocities = float64(self.weight_hh), self.velocity_bounds()
        drive = inputs.affine(float64(self.weight_ih), float64(self.bias_ih))

        def memory(hidden: Box) -> MemoryRanges:
            return memory_ranges(drive.plus(hidden.affine(recurrent)))

        def image(hidden: Box) -> Box:
            start = memory(hidden).hidden
            return start.plus(self.flow_move(start, 1.0))

        start = Box.around_zero(self.hidden_size, 1.0)
        hidden = shrink_invariant(start.plus(Box(-velocities, velocities)), image)
        boxes = {"hidden": hidden, "cell": memory(hidden).cell}
        return StepBound(balls=tuple(ball_of(name, box) for name, box in boxes.items() if box.is_finite))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, c = state
        recurrent, *flow_weights = weights
        h, c = update_memory(nn.functional.linear(h, recurrent) + drive, c)
        velocity = network_velocity(tuple(flow_weights))
        length = (1.0 if dt is None else dt) / _SOLVER_STEPS
        for _ in range(_SOLVER_STEPS):
            h = solver_step(self.solver, velocity, h, length)
        return h, c
