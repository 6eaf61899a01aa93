"""Lipschitz RNN: Erichson, Azencot, Queiruga, Hodgkinson, Mahoney, "Lipschitz recurrent neural networks", ICLR 2021."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.continuous import largest_euler_step, largest_step, with_continuous
from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    as_float32,
    check_finite,
    check_not_negative,
    check_positive,
    empty_parameter,
    float64,
    step_length,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._input_projection import project_input
from stablernn.cells._step_form import StepForm
from stablernn.parametrizations import symmetric_skew

_PAPER = "Erichson, Azencot, Queiruga, Hodgkinson, Mahoney: Lipschitz Recurrent Neural Networks (ICLR 2021)"
_PAPER_OPTIONS = {
    "step_size": 0.03,
    "skew_weight": 0.75,
    "linear_damping": 0.001,
    "recurrent_damping": 0.001,
    "init_scale": 0.1,
}
_SOURCE = (
    "the paper's table 8 for ordered MNIST, training settings included; init_scale from the released code (its column "
    "in the table is lost): entries have standard deviation init_scale / hidden_size. At these values theorem 1 does "
    "not hold at the start."
)
_TRAINING = {
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
}


class LipschitzWeights(NamedTuple):
    stacked: Tensor
    """The linear matrix A over the recurrent matrix W, (2 hidden, hidden): one product a step."""


class SymmetricSkewCell(StableCell):
    """Options, parameters and matrices of the cells with a symmetric-skew matrix in linear term and recurrent product.

    A subclass with further parameters registers them in :meth:`add_parameters`, before they are drawn.
    """

    takes_dt = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.5,
        skew_weight: float = 0.75,
        linear_damping: float = 0.001,
        recurrent_damping: float = 0.001,
        init_scale: float = 0.1,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        if not 0 <= skew_weight <= 1:
            raise ValueError(f"skew_weight must be from 0 to 1 for {type(self).__name__}, got {skew_weight}.")
        check_not_negative(self, init_scale=init_scale)
        check_finite(self, linear_damping=linear_damping, recurrent_damping=recurrent_damping)
        self.step_size = step_size
        self.skew_weight = skew_weight
        self.linear_damping = linear_damping
        self.recurrent_damping = recurrent_damping
        self.init_scale = init_scale
        self.add_parameters()
        self.reset_parameters()

    def add_parameters(self) -> None:
        """Register the parameters, in the order of the state dict."""
        self.weight_linear = empty_parameter(self.hidden_size, self.hidden_size)
        self.weight_hh = empty_parameter(self.hidden_size, self.hidden_size)
        self.weight_ih = empty_parameter(self.hidden_size, self.input_size)
        self.bias_ih = empty_parameter(self.hidden_size)

    def reset_parameters(self) -> None:
        # A standard deviation of init_scale / hidden_size, not / sqrt(hidden_size), as in the released code.
        for weight in (self.weight_linear, self.weight_hh):
            nn.init.normal_(weight, std=self.init_scale / self.hidden_size)
        for parameter in (self.weight_ih, self.bias_ih):
            uniform_(parameter, self.input_size)

    def linear_matrix(self) -> Tensor:
        """Return the matrix A of the linear term, column convention."""
        return symmetric_skew(self.weight_linear, self.skew_weight, self.linear_damping)

    def recurrent_matrix(self) -> Tensor:
        return symmetric_skew(self.weight_hh, self.skew_weight, self.recurrent_damping)

    def materialize(self) -> LipschitzWeights:
        # (2 hidden, hidden): one product gives both A h and W h.
        return LipschitzWeights(torch.cat([self.linear_matrix(), self.recurrent_matrix()]))

    def drive(self, x: Tensor) -> Tensor:
        return project_input(self, x, self.weight_ih, self.bias_ih)


@register_cell(
    "lipschitz",
    title="Lipschitz RNN, forward Euler",
    paper=_PAPER,
    year=2021,
    guarantee="conditional: contracting where certified; theorem 1 is about the differential equation, not the step",
    family="residual",
    equation=(
        "A, W = (1-b)(M + M^T) + b(M - M^T) - g I, each from its own M; "
        "h <- h + step_size (linear_scale A h + tanh(W h + U x + bias))"
    ),
    paper_options=_PAPER_OPTIONS,
    paper_source=_SOURCE,
    training=_TRAINING,
)
class LipschitzRNNCell(SymmetricSkewCell):
    r"""A linear system plus a Lipschitz nonlinearity, both with a symmetric-skew matrix; forward Euler.

    .. math:: h_t = h_{t-1} + \epsilon (\alpha A h_{t-1} + \tanh(W h_{t-1} + U x_t + b))
    .. math:: A = (1-\beta)(M_A + M_A^\top) + \beta (M_A - M_A^\top) - \gamma_A I, \quad
        W \text{ in the same way}

    In code: :math:`\epsilon` is ``step_size``, :math:`\beta` is ``skew_weight`` (one for both matrices),
    :math:`\gamma_A` and :math:`\gamma_W` are ``linear_damping`` and ``recurrent_damping``, :math:`M_A` and
    :math:`M_W` are ``weight_linear`` and ``weight_hh``, U is ``weight_ih``, b is ``bias_ih``, :math:`\alpha` is
    ``linear_scale`` (the paper's ablation, eq. 12; 1 is the model itself, 0 drops the linear term).

    Guarantee:
        Conditional: none by construction, not even at our defaults. The step contracts where
        ``||I + step_size A|| + step_size ||W|| < 1``, and where its certificate proves it under a weaker condition.

        Theorem 1 is about the differential equation: it is globally exponentially stable if sym(A) is negative
        definite, W is nonsingular and (a) the smallest singular value of sym(A) is above the largest of W. The paper's
        alternative (b), sym(W) negative and A^T W + W^T A positive definite, holds for a symmetric W
        (``skew_weight=0``) and fails for others in general: ``tests/bounds/test_false_claims.py``. Where theorem 1
        holds, the Euler step can still explode: with ``step_size linear_damping = 2.5`` it multiplies the state by
        about -1.5.

        The parametrization confines the spectrum (proposition 1) but enforces none of these conditions: at the
        published MNIST settings and at our defaults theorem 1 does not hold even at initialization, and the state of an
        untrained cell grows over tens of thousands of steps. For endless streams raise ``linear_damping``, which helps
        only while ``step_size linear_damping < 2`` (times ``linear_scale``), or use ``lvf_mid``.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Euler step, dimensionless, greater than 0. The default is ours.
        skew_weight: Share of the skew part, 0 to 1; 1 is purely skew-symmetric.
        linear_damping: Shift of A's diagonal, 1/step; the step can contract only while it is below 2 / step_size.
        recurrent_damping: Shift of W's diagonal, 1/step.
        init_scale: Standard deviation of the raw matrices' entries times hidden_size. The default is that of
            the released code.
        linear_scale: Factor of the linear term.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``step_size`` is not positive, ``skew_weight`` is outside 0 to 1 or ``init_scale`` is negative.

    Example:
        >>> cell = LipschitzRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper's eq. 1, 2, 6 and 9. It has two dampings, its released code one; two are used here.
    """

    is_euler = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.5,
        skew_weight: float = 0.75,
        linear_damping: float = 0.001,
        recurrent_damping: float = 0.001,
        init_scale: float = 0.1,
        linear_scale: float = 1.0,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            step_size=step_size,
            skew_weight=skew_weight,
            linear_damping=linear_damping,
            recurrent_damping=recurrent_damping,
            init_scale=init_scale,
        )
        check_finite(self, linear_scale=linear_scale)
        self.linear_scale = linear_scale

    def lure_system(self) -> LureSystem:
        unit, linear = np.eye(self.hidden_size), self.linear_scale * float64(self.linear_matrix())
        step_size = as_float32(self.step_size)
        return LureSystem(
            unit + step_size * linear,
            step_size * unit,
            float64(self.recurrent_matrix()),
            float64(self.weight_ih),
        )

    def step_bound(self) -> StepBound:
        step, linear = self.lure_system(), self.linear_scale * float64(self.linear_matrix())
        bound = with_continuous(lure_bound(step), linear, step.V)
        # largest_euler_step counts in steps of this length.
        longest = largest_euler_step(step, bound) * self.step_size
        return replace(bound, figures={**bound.figures, "largest_euler_step": longest})

    def step_form(self, weights: Weights) -> StepForm:
        linear, recurrent = weights[0].chunk(2)
        scaled = linear if self.linear_scale == 1 else self.linear_scale * linear
        return StepForm("residual", recurrent, linear=scaled, step_size=self.step_size)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (stacked,) = weights
        linear, recurrent = nn.functional.linear(h, stacked).chunk(2, dim=-1)
        return (h + step_length(self.step_size, dt) * (self.linear_scale * linear + torch.tanh(recurrent + drive)),)


@register_cell(
    "lipschitz_rk2",
    title="Lipschitz RNN, explicit midpoint",
    paper=_PAPER,
    year=2021,
    guarantee="conditional: contracting where certified; theorem 1 is about the differential equation, not the step",
    family="two-stage",
    equation=(
        "f(h, x) = A h + tanh(W h + U x + bias), A and W as in lipschitz; "
        "h <- h + step_size f(h + (step_size / 2) f(h, x), x)"
    ),
    paper_options=_PAPER_OPTIONS,
    paper_source=_SOURCE,
    training=_TRAINING,
)
class LipschitzRK2RNNCell(SymmetricSkewCell):
    r"""The Lipschitz RNN stepped by the explicit midpoint rule, the input held over the step.

    .. math:: f(h, x) = A h + \tanh(W h + U x + b), \quad
        h_t = h_{t-1} + \epsilon f(h_{t-1} + \tfrac{\epsilon}{2} f(h_{t-1}, x_t), x_t)

    Matrices and names are those of :class:`LipschitzRNNCell`.

    Guarantee:
        Conditional, as for :class:`LipschitzRNNCell`: theorem 1 is about the differential equation, and the midpoint
        rule needs its own bound on the step. A larger ``linear_damping`` helps only while
        ``step_size linear_damping < 2``, as for the Euler step; beyond it the step multiplies the state by
        ``1 - z + z^2 / 2`` with ``z = step_size linear_damping``, which is above 1.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Length of the midpoint step, dimensionless, greater than 0. The default is ours.
        skew_weight, linear_damping, recurrent_damping, init_scale: As for :class:`LipschitzRNNCell`.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    References:
        The paper's eq. 10; the released code takes one ``midpoint`` step of torchdiffeq over [0, step_size], which
        is the same. It has no ``linear_scale``.
    """

    def lure_system(self) -> LureSystem:
        return self._lure_system_of_step(as_float32(self.step_size))

    def _lure_system_of_step(self, length: float) -> LureSystem:
        linear, recurrent, input_weights = (
            float64(matrix) for matrix in (self.linear_matrix(), self.recurrent_matrix(), self.weight_ih)
        )
        # Two stages, w_1 = tanh(W h + U x + b) and w_2 = tanh(W m + U x + b) at the midpoint
        # m = (I + length/2 A) h + length/2 w_1; then h <- h + length (A m + w_2).
        half, unit = length / 2, np.eye(self.hidden_size)
        to_middle = unit + half * linear
        return LureSystem(
            F=unit + length * linear @ to_middle,
            G=np.hstack([length * half * linear, length * unit]),
            V=np.vstack([recurrent, recurrent @ to_middle]),
            U=np.vstack([input_weights, input_weights]),
            D=np.block([[np.zeros_like(unit), np.zeros_like(unit)], [half * recurrent, np.zeros_like(unit)]]),
        )

    def step_bound(self) -> StepBound:
        linear, recurrent = float64(self.linear_matrix()), float64(self.recurrent_matrix())
        bound = with_continuous(super().step_bound(), linear, recurrent)
        # 0 unless the differential equation itself is proved to contract.
        longest = (
            largest_step(self._lure_system_of_step, self.step_size) if bound.figures["continuous_rate"] > 0 else 0.0
        )
        return replace(bound, figures={**bound.figures, "largest_midpoint_step": longest})

    def step_form(self, weights: Weights) -> StepForm:
        linear, recurrent = weights[0].chunk(2)
        return StepForm("two-stage", recurrent, linear=linear, step_size=self.step_size)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (stacked,) = weights

        def velocity(h: Tensor) -> Tensor:
            linear, recurrent = nn.functional.linear(h, stacked).chunk(2, dim=-1)
            return linear + torch.tanh(recurrent + drive)

        length = step_length(self.step_size, dt)
        return (h + length * velocity(h + (length / 2) * velocity(h)),)
