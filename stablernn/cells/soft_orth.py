"""Soft orthogonality: Vorontsov, Trabelsi, Kadoury, Pal, "On orthogonality and learning recurrent networks with long
term dependencies", ICML 2017."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import Ball, StepBound
from stablernn.cells._base import StableCell, State, Weights, check_choice, check_not_negative, empty_parameter, float64
from stablernn.cells._catalog import register_cell
from stablernn.parametrizations import exponential, initial_skew, skew, skew_size

Form = Literal["penalty", "factored", "unbounded"]


class PenaltyWeights(NamedTuple):
    recurrent: Tensor
    """W, (hidden, hidden)."""


class FactoredWeights(NamedTuple):
    recurrent: Tensor
    """W, (hidden, hidden)."""
    hidden_0: Tensor
    """The trained first state h_0, (hidden,)."""


@register_cell(
    "soft_orth",
    title="tanh RNN regularized toward orthogonality",
    paper=(
        "Vorontsov, Trabelsi, Kadoury, Pal: On Orthogonality and Learning Recurrent Networks with Long Term "
        "Dependencies (ICML 2017)"
    ),
    year=2017,
    guarantee="penalty (default): none, encouraged only; factored: expands by at most 1 + margin, by construction",
    equation=(
        "h <- tanh(W h + U x + b); penalty: penalty_weight ||W^T W - I||_F^2 is added to the loss; "
        "factored: W = P diag(s) Q^T, P and Q orthogonal, s = 1 + 2 margin (sigmoid(p) - 1/2), h_0 trained"
    ),
    paper_options={"penalty_weight": 0.001, "margin": 0.01},
    paper_source=(
        "margin is one of the paper's; penalty_weight is our choice, since none is published for any run. The training "
        "settings are the released code's defaults but for RMSprop's decay, .9 there and .99, torch's default, here, "
        "and for the factors, which plain geodesic steps move there"
    ),
    training={
        "practical": {
            "lr": 0.003,
            "orthogonal_lr": 0.001,
            "schedule": "one-cycle",
            "epochs": 80,
            "batch_size": 32,
            "clip_norm": 1.0,
        },
        "paper": {"lr": 1e-4, "orthogonal_lr": 1e-6, "optimizer": "rmsprop", "weight_decay": 1e-4, "clip_norm": 100.0},
    },
)
class SoftOrthogonalRNNCell(StableCell):
    r"""The tanh recurrence with a nearly orthogonal matrix, by a penalty or by its factorization.

    .. math:: h_t = \tanh(W h_{t-1} + U x_t + b)

    With ``form="penalty"`` W is free and :math:`\lambda \lVert W^\top W - I \rVert_F^2` is added to the loss. With
    ``form="factored"`` and a trained :math:`h_0`

    .. math:: W = P\, \mathrm{diag}(s)\, Q^\top, \quad s = 1 + 2 m (\sigma(p) - \tfrac12), \quad
        P = \exp(A_P), \quad Q = \exp(A_Q), \quad A^\top = -A

    In code: :math:`\lambda` is ``penalty_weight``, m is ``margin``; W is ``weight_hh``, or :math:`A_P` and :math:`A_Q`
    are ``weight_left`` and ``weight_right`` (their strict upper triangles, row by row), p is ``spectrum`` and
    :math:`h_0` is ``hidden_0``; U is ``weight_ih``, b is ``bias_ih``. P and Q are the paper's U and V.

    Guarantee:
        ``penalty``: none; the penalty only pulls W toward orthogonality, the more the higher its weight. ``factored``:
        by construction every singular value of W is within ``margin`` of 1, so that a step drives states apart by a
        factor of at most 1 + margin. ``unbounded`` has orthogonal factors and free singular values: no bound. In every
        form each coordinate of the state lies within 1.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        form: ``penalty``; ``factored``; or ``unbounded``, which is ``factored`` with :math:`s = 1 + p`, the paper's
            infinite margin.
        penalty_weight: :math:`\lambda`, 0 or more, with ``penalty`` only. Our choice, in both presets.
        margin: m, the largest distance of a singular value from 1, 0 or more, with ``factored`` only. The default is
            our choice among the paper's, 0 to 1; the preset ``paper`` has 0.01.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden, ``(batch, hidden_size)``; except with ``penalty`` also started, ``(batch, 1)``: 0 before the
          first step, where ``hidden_0`` replaces hidden, 1 after it; zeros when omitted
        - output: the next state, same shapes and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = SoftOrthogonalRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper and its released code: W starts as a random orthogonal matrix, p, b and h_0 at 0, U uniform within
        0.01. The code draws both P and Q; here Q starts at the identity, which makes W no less random and spares a
        logarithm. The code keeps P and Q orthogonal by geodesic steps, in which its direction is G^T W - W^T G,
        where steepest descent needs G W^T - W G^T; here they are exponentials, whose gradients are right. The code
        clips unbounded singular values at 0, here they can change sign.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        form: Form = "penalty",
        penalty_weight: float = 0.01,
        margin: float = 0.1,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_choice(self, "form", form, ("penalty", "factored", "unbounded"))
        check_not_negative(self, penalty_weight=penalty_weight, margin=margin)
        self.form: Form = form
        self.penalty_weight = penalty_weight
        self.margin = margin
        # The state dict has the parameters of the chosen form only.
        if form == "penalty":
            self.weight_hh = empty_parameter(hidden_size, hidden_size)
        else:
            self.state_names = ("hidden", "started")
            self.orthogonal = ("weight_left", "weight_right")
            self.weight_left = empty_parameter(skew_size(hidden_size))
            self.weight_right = empty_parameter(skew_size(hidden_size))
            self.spectrum = empty_parameter(hidden_size)
            self.hidden_0 = empty_parameter(hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, 1)[: len(self.state_names)]

    def reset_parameters(self) -> None:
        if self.form == "penalty":
            nn.init.orthogonal_(self.weight_hh)
        else:
            with torch.no_grad():
                self.weight_left.copy_(initial_skew("haar", self.hidden_size))
            nn.init.zeros_(self.weight_right)
            nn.init.zeros_(self.spectrum)
            nn.init.zeros_(self.hidden_0)
        nn.init.uniform_(self.weight_ih, -0.01, 0.01)
        nn.init.zeros_(self.bias_ih)

    def factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return P, s and Q of the forms other than ``penalty``."""
        p, q = (exponential(skew(weight, self.hidden_size)) for weight in (self.weight_left, self.weight_right))
        if self.form == "unbounded":
            return p, 1 + self.spectrum, q
        return p, 1 + 2 * self.margin * (torch.sigmoid(self.spectrum) - 0.5), q

    def recurrent_matrix(self) -> Tensor:
        if self.form == "penalty":
            return self.weight_hh
        p, s, q = self.factors()
        return p * s @ q.T

    def materialize(self) -> PenaltyWeights | FactoredWeights:
        recurrent = self.recurrent_matrix()
        return PenaltyWeights(recurrent) if self.form == "penalty" else FactoredWeights(recurrent, self.hidden_0)

    def lure_system(self) -> LureSystem:
        # F = 0 and G = I of h <- F h + G tanh(W h + U x + b).
        size = self.hidden_size
        return LureSystem(
            np.zeros((size, size)), np.eye(size), float64(self.recurrent_matrix()), float64(self.weight_ih)
        )

    def step_bound(self) -> StepBound:
        bound = lure_bound(self.lure_system())
        if self.form == "penalty":
            return bound
        # The flag "started" is 0 or 1.
        return replace(bound, balls=(*bound.balls, Ball("started", "linf", 1.0)))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        if self.form == "penalty":
            (w,), (h,) = weights, state
            return (torch.tanh(nn.functional.linear(h, w) + drive),)
        (w, hidden_0), (h, started) = weights, state
        # The zeros of a new state mark a sequence that has not started: (batch, 1), broadcast over the units.
        h = torch.where(started > 0, h, hidden_0)
        return torch.tanh(nn.functional.linear(h, w) + drive), torch.ones_like(started)

    def penalty(self) -> Tensor | None:
        if self.form != "penalty":
            return None
        w = self.weight_hh
        gram = w.T @ w - torch.eye(self.hidden_size, dtype=w.dtype, device=w.device)
        return self.penalty_weight * gram.square().sum()
