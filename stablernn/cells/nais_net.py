"""NAIS-Net as a recurrent cell: Ciccone, Gallieri, Masci, Osendorfer, Gomez, "NAIS-Net: stable deep networks from
non-autonomous differential equations", NeurIPS 2018."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.continuous import largest_euler_step
from stablernn.bounds.linalg import log_norm_upper_bound
from stablernn.bounds.lure import LureSystem, cholesky_factors, dominance_bound, lure_bound
from stablernn.bounds.step_bound import Hypothesis, StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    as_float32,
    check_positive,
    empty_parameter,
    float64,
    pass_through,
    step_length,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._input_projection import project_input
from stablernn.cells._step_form import StepForm

_PROJECTION_TOLERANCE = 1e-5
"""Relative excess of ||R^T R||_F over its bound up to which R counts as projected: the rounding of a projection."""


class NAISWeights(NamedTuple):
    recurrent: Tensor
    """``-R^T R - margin I``, (hidden, hidden)."""


@register_cell(
    "nais_net",
    title="Euler step with a symmetric negative definite matrix, projected",
    paper="Ciccone, Gallieri, Masci, Osendorfer, Gomez: NAIS-Net (NeurIPS 2018)",
    year=2018,
    guarantee="non-expansive in the norm of -A by construction for step_size <= 2; its 2-norm can exceed 1",
    family="residual",
    equation="A = -R^T R - margin I, R projected; h <- h + step_size tanh(A h + B x + b)",
    paper_options={"step_size": 1.0, "margin": 0.01},
    paper_source=(
        "step_size and margin as usual with this model. The paper has no sequential one: this is the cell that later "
        "papers compare with, whose start and training settings are not published and are our choice."
    ),
    training={
        "practical": practical(0.01, 80),
        "paper": {"lr": 0.001, "optimizer": "adam", "batch_size": 128},
    },
)
class NAISNetCell(StableCell):
    r"""A residual step with a symmetric matrix whose eigenvalues lie between -1 and 0.

    .. math:: h_t = h_{t-1} + \epsilon \tanh(A h_{t-1} + B x_t + b), \quad A = -R^\top R - e I

    R is projected: with :math:`d = 1 - 2e`, if :math:`\|R^\top R\|_F > d` then
    :math:`R \leftarrow \sqrt{d / \|R^\top R\|_F}\, R`. The paper does so after every optimizer step, as ``after_step``
    does here. A is always built from the projected R; the gradient passes to the parameter unchanged.

    In code: :math:`\epsilon` is ``step_size``, e is ``margin``, R is ``weight_hh``, B is ``weight_ih``, b is
    ``bias_ih``.

    Guarantee:
        By construction the eigenvalues of A lie in [-(1 - e), -e] and, with step_size at most 1, those of the Jacobian
        I + step_size diag(tanh') A of the step between 0 and 1 at every state and input. They are those of a matrix
        that is symmetric in coordinates scaled by tanh'^(-1/2), which differ from state to state: the 2-norm can exceed
        1, and two trajectories can move apart for a while. ``tests/cells/guarantees/test_residual.py`` shows such a
        step. Eigenvalues of single Jacobians bound no trajectory; the norm ``|(-A)^(1/2) e|`` does, in which no step
        drives two states apart while step_size ||A|| <= 2: with P = -A and slopes S within 0 to 1 a step turns P into
        ``P - P (2 step_size S - step_size^2 S P S) P``.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Euler step, dimensionless, greater than 0.
        margin: Distance e of A's eigenvalues from 0 and from -1, between 0 and 0.5.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``step_size`` is not positive or ``margin`` is not between 0 and 0.5.

    Example:
        >>> cell = NAISNetCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper, whose layers become steps here. Two public versions scale R^T R by the root where the bound needs its
        square, d/||R^T R||_F, so that their spectrum leaves the interval; the root is right for R, as here.
        R starts as a projected random Gaussian matrix, b at zero: our choice.
    """

    takes_dt = True
    is_euler = True

    def __init__(self, input_size: int, hidden_size: int, *, step_size: float = 1.0, margin: float = 0.01) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        if not 0 < margin < 0.5:
            raise ValueError(f"margin must be between 0 and 0.5 for {type(self).__name__}, got {margin}.")
        self.step_size = step_size
        self.margin = margin
        self.weight_hh = empty_parameter(hidden_size, hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight_hh, std=self.hidden_size**-0.5)
        uniform_(self.weight_ih, self.input_size)
        nn.init.zeros_(self.bias_ih)
        with torch.no_grad():
            self.project()

    def project(self) -> None:
        """Scale R so that ||R^T R||_F is at most 1 - 2 margin."""
        # R^T R scales with the square of R, hence the root.
        norm = torch.linalg.matrix_norm(self.weight_hh.T @ self.weight_hh)
        self.weight_hh.mul_(torch.sqrt(torch.clamp((1 - 2 * self.margin) / norm, max=1.0)))

    def after_step(self, step: int, total_steps: int) -> None:
        self.project()

    def projected(self) -> Tensor:
        """Return the R of which A is built: the parameter, scaled down if ||R^T R||_F exceeds 1 - 2 margin."""
        # Also without after_step, so that a training loop that leaves it out has the guarantee.
        r, bound = self.weight_hh.detach(), 1 - 2 * self.margin
        norm = torch.linalg.matrix_norm(r.T @ r)
        scale = torch.where(norm > bound * (1 + _PROJECTION_TOLERANCE), torch.sqrt(bound / norm), 1.0)
        return pass_through(self.weight_hh, r * scale)

    def recurrent_matrix(self) -> Tensor:
        r = self.projected()
        return -r.T @ r - self.margin * torch.eye(self.hidden_size, dtype=r.dtype, device=r.device)

    def materialize(self) -> NAISWeights:
        return NAISWeights(self.recurrent_matrix())

    def drive(self, x: Tensor) -> Tensor:
        return project_input(self, x, self.weight_ih, self.bias_ih)

    def lure_system(self) -> LureSystem:
        unit = np.eye(self.hidden_size)
        return LureSystem(
            unit, as_float32(self.step_size) * unit, float64(self.recurrent_matrix()), float64(self.weight_ih)
        )

    def step_bound(self) -> StepBound:
        step = self.lure_system()
        largest, smallest = log_norm_upper_bound(step.V), -log_norm_upper_bound(-step.V)
        conditions = (
            Hypothesis("largest eigenvalue of A", largest, 0.0, strict=True, subject="single Jacobians"),
            Hypothesis("-(smallest eigenvalue of A)", -smallest, 1.0, strict=True, subject="single Jacobians"),
            Hypothesis("step_size", self.step_size, 1.0, subject="single Jacobians"),
        )
        # The norm of -A is the one in which the guarantee holds.
        metrics = cholesky_factors(-step.V)
        bound = dominance_bound(step, lure_bound(step, metrics=metrics), metrics)
        return replace(
            bound,
            conditions=conditions,
            figures={"largest_euler_step": largest_euler_step(step, bound) * self.step_size},
        )

    def step_form(self, weights: Weights) -> StepForm:
        return StepForm("residual", weights[0], step_size=self.step_size)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        (a,) = weights
        return (h + step_length(self.step_size, dt) * torch.tanh(nn.functional.linear(h, a) + drive),)
