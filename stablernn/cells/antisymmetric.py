"""AntisymmetricRNN: Chang, Chen, Haber, Chi, "AntisymmetricRNN: a dynamical system view on recurrent neural networks",
ICLR 2019."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.continuous import largest_euler_step
from stablernn.bounds.intervals import Box
from stablernn.bounds.linalg import norm_upper_bound
from stablernn.bounds.lure import LureSystem, dominance_bound, lure_bound
from stablernn.bounds.step_bound import Hypothesis, StepBound, ball_of, restoring_box
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    as_float32,
    check_not_negative,
    check_positive,
    empty_parameter,
    float64,
    step_length,
)
from stablernn.cells._catalog import register_cell
from stablernn.cells._input_projection import project_input
from stablernn.cells._step_form import StepForm
from stablernn.parametrizations import skew, skew_size

_PAPER = "Chang, Chen, Haber, Chi: AntisymmetricRNN (ICLR 2019)"
_PAPER_OPTIONS = {"step_size": 0.01, "damping": 0.01, "init_scale": 1.0}
_SOURCE = (
    "step_size from the grid {.01, .1, 1}, damping from {.001, .01, .1, 1}, init_scale (sigma_w) from "
    "{0, 1, 2, 4, 8, 16} of the paper; which of them a table row used is not published, so the triple is "
    "our choice. Of the training settings batch_size is published and lr is one value of the grid; epochs and schedule "
    "are ours (the paper trains 50,000 steps)."
)

_TRAINING = {
    "practical": {
        "lr": 0.005,
        "schedule": "one-cycle",
        "epochs": 80,
        "batch_size": 32,
        "weight_decay": 0.3,
        "clip_norm": 1.0,
    },
    "paper": {"lr": 0.1, "optimizer": "sgd", "momentum": 0.9, "batch_size": 128},
}


class AntisymmetricWeights(NamedTuple):
    recurrent: Tensor
    """``W - W.T - damping I``, (hidden, hidden)."""


@register_cell(
    "antisymmetric",
    title="Euler step of h' = tanh((W - W^T - gamma I) h + V x + b)",
    paper=_PAPER,
    year=2019,
    guarantee="a step moves the state by at most step_size sqrt(N); eigenvalues of Jacobians bound no trajectory",
    family="residual",
    equation="h <- h + step_size tanh((W - W^T - damping I) h + V x + b)",
    paper_options=_PAPER_OPTIONS,
    paper_source=_SOURCE,
    training=_TRAINING,
)
class AntisymmetricRNNCell(StableCell):
    r"""A recurrent step with an antisymmetric matrix, so that its linear part neither grows nor decays.

    .. math:: h_t = h_{t-1} + \epsilon \tanh((W - W^\top - \gamma I) h_{t-1} + V x_t + b)

    In code: :math:`\epsilon` is ``step_size``, :math:`\gamma` is ``damping``; W is strictly upper triangular, and
    ``weight_hh`` holds its :math:`N(N-1)/2` entries row by row; V is ``weight_ih``, b is ``bias_ih``.

    Guarantee:
        By construction a step moves the state by at most step_size sqrt(hidden_size), since tanh saturates. The step is
        non-expansive in the infinity norm if the moduli in each row of W - W^T sum to r <= gamma with
        step_size (gamma + r) <= 2; in a 2-norm, weighted or not, it is so for no W except 0.

        The paper's criteria bound eigenvalues of single Jacobians. Those of the differential equation,
        diag(s')(W - W^T - gamma I), have real parts in [-gamma max s', -gamma min s']. The Euler criterion
        max |1 + step_size lambda| <= 1 holds at every state if step_size <= 2 gamma / (gamma^2 + ||W - W^T||^2), and
        never for gamma = 0. Neither bounds a trajectory, along which the Jacobian changes: even if both hold, inputs
        that saturate two units in turn drive two states apart exponentially, however near they were
        (``tests/bounds/test_false_claims.py``). Certificates list the criterion as a condition and do not use it.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Euler step, dimensionless, greater than 0. The default is ours.
        damping: Shift of the diagonal, 1/step, 0 or more.
        init_scale: Standard deviation of the entries of W times sqrt(hidden_size), 0 or more.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``step_size`` is not positive, or ``damping`` or ``init_scale`` is negative.

    Example:
        >>> cell = AntisymmetricRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper. Slides about it (their eq. 8) subtract gamma from the whole matrix, use variances as standard
        deviations and shift the input's index, x_{t-1} in one place and x_t in another; this is the paper's form:
        x_t, V ~ N(0, 1/input_size), W ~ N(0, init_scale^2/hidden_size).
    """

    takes_dt = True
    is_euler = True
    # Number of blocks in weight_ih and bias_ih; subclasses with a gate have 2.
    gates = 1

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.3,
        damping: float = 0.01,
        init_scale: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        check_not_negative(self, damping=damping, init_scale=init_scale)
        self.step_size = step_size
        self.damping = damping
        self.init_scale = init_scale
        self.weight_hh = empty_parameter(*self._weight_hh_shape())
        self.weight_ih = empty_parameter(self.gates * hidden_size, input_size)
        self.bias_ih = empty_parameter(self.gates * hidden_size)
        self.reset_parameters()

    def _weight_hh_shape(self) -> tuple[int, ...]:
        # The paper's parameter counts have N (N - 1) / 2 recurrent weights, too.
        return (skew_size(self.hidden_size),)

    def reset_parameters(self) -> None:
        # As in the paper; subclasses with other shapes draw from the same distributions.
        nn.init.normal_(self.weight_hh, std=self.init_scale * self.hidden_size**-0.5)
        nn.init.normal_(self.weight_ih, std=self.input_size**-0.5)
        nn.init.zeros_(self.bias_ih)

    def recurrent_matrix(self) -> Tensor:
        s = skew(self.weight_hh, self.hidden_size)
        return s - self.damping * torch.eye(self.hidden_size, dtype=s.dtype, device=s.device)

    def materialize(self) -> AntisymmetricWeights:
        return AntisymmetricWeights(self.recurrent_matrix())

    def drive(self, x: Tensor) -> Tensor:
        return project_input(self, x, self.weight_ih, self.bias_ih)

    def lure_system(self) -> LureSystem | None:
        return self._ungated_lure_system() if self.gates == 1 else None

    def _ungated_lure_system(self) -> LureSystem:
        # h + step_size tanh(K h + V x): the linear part is the identity, the nonlinearity enters by step_size I.
        unit = np.eye(self.hidden_size)
        return LureSystem(
            unit, as_float32(self.step_size) * unit, float64(self.recurrent_matrix()), float64(self.weight_ih)
        )

    def step_bound(self) -> StepBound:
        step = self._ungated_lure_system()
        skew_norm, damping = norm_upper_bound((step.V - step.V.T) / 2), -float(step.V[0, 0])
        # Eigenvalues of S - damping I are -damping + i s with |s| <= norm(S). The Euler criterion for them,
        # (1 - step_size damping)^2 + (step_size s)^2 <= 1, is solved for step_size.
        squared_modulus = damping**2 + skew_norm**2
        limit = 2 * damping / squared_modulus if squared_modulus else 0.0
        criterion = Hypothesis(
            "step_size against 2 damping / (damping^2 + norm(S)^2)", self.step_size, limit, subject="single Jacobians"
        )
        bound = dominance_bound(step, lure_bound(step))
        return replace(
            bound,
            conditions=(criterion,),
            figures={
                "norm_S": skew_norm,
                "damping": damping,
                "largest_euler_step": largest_euler_step(step, bound) * self.step_size,
            },
        )

    def step_bound_within(self, inputs: Box) -> StepBound:
        bound = self.step_bound()
        # The last block is that of the tanh. A gate scales its values by at most 1 and leaves their signs.
        drive = inputs.affine(float64(self.weight_ih), float64(self.bias_ih)).split(self.gates)[-1]
        states = restoring_box(float64(self.recurrent_matrix()), drive, self.step_size)
        return bound if states is None else replace(bound, balls=(ball_of("hidden", states),))

    def step_form(self, weights: Weights) -> StepForm:
        return StepForm("residual" if self.gates == 1 else "shared gate", weights[0], step_size=self.step_size)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (k,) = weights
        return (h + step_length(self.step_size, dt) * torch.tanh(nn.functional.linear(h, k) + drive),)


@register_cell(
    "antisymmetric_g",
    title="antisymmetric with a gate that shares the matrix",
    paper=_PAPER,
    year=2019,
    guarantee="none: the gated Jacobian can have eigenvalues with positive real part (docs/background/stability.md)",
    family="shared gate",
    equation=(
        "K = W - W^T - damping I; z = sigmoid(K h + V_z x + b_z); h <- h + step_size z .* tanh(K h + V_h x + b_h)"
    ),
    paper_options=_PAPER_OPTIONS,
    paper_source=_SOURCE,
    training=_TRAINING,
)
class GatedAntisymmetricRNNCell(AntisymmetricRNNCell):
    r"""An antisymmetric step with a gate on the update; both use one matrix :math:`K = W - W^\top - \gamma I`.

    .. math::
        z_t = \sigma(K h_{t-1} + V_z x_t + b_z), \quad
        h_t = h_{t-1} + \epsilon z_t \odot \tanh(K h_{t-1} + V_h x_t + b_h)

    In code: ``weight_ih`` is V_z stacked on V_h, ``bias_ih`` is b_z stacked on b_h.

    Guarantee:
        None. The paper says that the gated Jacobian is a diagonal times an antisymmetric matrix; the diagonal is
        z [(1 - t^2) + (1 - z) t] with t = tanh(.), which is negative for t near -1, and with mixed signs
        eigenvalues can be real and positive. ``tests/cells/guarantees/test_antisymmetric.py`` shows one. The diagonal
        lies within -1/4 to 1, which bounds how far a step drives two states apart. For inputs within a range the state
        is bounded if the moduli in each row of W - W^T sum to less than gamma.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Euler step, dimensionless, greater than 0. The default is ours.
        damping: Shift of the diagonal, 1/step, 0 or more.
        init_scale: Standard deviation of the entries of W times sqrt(hidden_size), 0 or more.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    References:
        The paper's gated form, "equation 13" in its text.
    """

    gates = 2

    def step_bound(self) -> StepBound:
        # The gated tanh has slopes from -1/4 to 1: a linear part of slope -1/4, and a nonlinearity with slopes from 0
        # to 5/4. Gate and candidate have different inputs, so the system is given none, and f no bound of its modulus.
        unit, k = np.eye(self.hidden_size), float64(self.recurrent_matrix())
        step_size = as_float32(self.step_size)
        linear_part, nonlinear_part = unit - step_size / 4 * k, 1.25 * step_size * unit
        no_input = np.zeros((self.hidden_size, self.input_size))
        bound = lure_bound(LureSystem(linear_part, nonlinear_part, k, no_input, f_max=math.inf))
        # The slope by the gate's input is z (1 - z) t, by the candidate's z (1 - t^2): their squares sum to 1 at most.
        input_gain = step_size * norm_upper_bound(float64(self.weight_ih))

        def with_input(bound: StepBound) -> StepBound:
            metric_norm = 1.0 if bound.metric is None else norm_upper_bound(bound.metric)
            return replace(bound, gain=metric_norm * input_gain)

        return replace(with_input(bound), other_norms=tuple(with_input(other) for other in bound.other_norms))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (k,) = weights
        recurrent = nn.functional.linear(h, k)
        drive_z, drive_h = drive.chunk(2, dim=-1)
        z = torch.sigmoid(recurrent + drive_z)
        return (h + step_length(self.step_size, dt) * z * torch.tanh(recurrent + drive_h),)


@register_cell(
    "antisym_ablation",
    title="antisymmetric_g with a free matrix",
    paper=_PAPER,
    year=2019,
    guarantee="none: it is what is left of antisymmetric_g without the antisymmetric matrix",
    family="shared gate",
    equation="z = sigmoid(K h + V_z x + b_z); h <- h + step_size z .* tanh(K h + V_h x + b_h); K free, less damping I",
    paper_options={"step_size": 0.01, "damping": 0.0, "init_scale": 1.0},
    paper_source=(
        "the paper does not say whether the damping stays in this model: there is none, which is our choice. "
        f"step_size and init_scale as for antisymmetric: {_SOURCE}"
    ),
    training=_TRAINING,
)
class AblationRNNCell(GatedAntisymmetricRNNCell):
    r"""A gated antisymmetric step with a free matrix K in place of the antisymmetric one: the paper's ablation.

    .. math::
        z_t = \sigma(K h_{t-1} + V_z x_t + b_z), \quad
        h_t = h_{t-1} + \epsilon z_t \odot \tanh(K h_{t-1} + V_h x_t + b_h)

    In code: ``weight_hh``, ``(hidden_size, hidden_size)``, minus ``damping`` I is K; ``weight_ih`` is V_z stacked on
    V_h, ``bias_ih`` is b_z stacked on b_h.

    Guarantee:
        None, neither for the continuous equation nor for the step. Since the gate is at most 1 and tanh saturates, a
        step moves the state by at most step_size sqrt(hidden_size). The gated tanh has slopes within -1/4 to 1, which
        bounds how far a step drives two states apart.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Euler step, dimensionless, greater than 0. The default is ours.
        damping: Shift of the diagonal, 1/step, 0 or more. The paper does not say whether it stays; 0 is our choice.
        init_scale: Standard deviation of the entries of K times sqrt(hidden_size), 0 or more.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``step_size`` is not positive, or ``damping`` or ``init_scale`` is negative.

    References:
        The paper's table 2, "ablation model", which "replaces the matrices in equation 13", the gated one. K is drawn
        like W of the other cells, N(0, init_scale^2/hidden_size), diagonal included.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.3,
        damping: float = 0.0,
        init_scale: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, step_size=step_size, damping=damping, init_scale=init_scale)

    def _weight_hh_shape(self) -> tuple[int, ...]:
        return (self.hidden_size, self.hidden_size)

    def recurrent_matrix(self) -> Tensor:
        k = self.weight_hh
        return k - self.damping * torch.eye(self.hidden_size, dtype=k.dtype, device=k.device)
