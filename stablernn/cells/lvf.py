"""Latent vector field RNN: Azencot et al., "A differential geometry perspective on orthogonal recurrent models"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import norm_upper_bound
from stablernn.bounds.step_bound import Hypothesis, StepBound, irregular_step_bound
from stablernn.cells._base import (
    State,
    Weights,
    check_choice,
    check_not_negative,
    check_positive,
    empty_parameter,
    float64,
)
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._plain import PlainCell
from stablernn.cells._step_form import Nonlinearity
from stablernn.errors import ConfigError
from stablernn.parametrizations import (
    cayley_propagator,
    doubly_stochastic_skew,
    skew_size,
    skew_spectrum,
    vector_field,
)

_PAPER = "Azencot et al.: A Differential Geometry Perspective on Orthogonal Recurrent Models (2021)"
_SOURCE = (
    "nonlinearity and optimizer as in the text, which says Adam for all tasks; table 5 has RMSprop for TIMIT. "
    "step_size, divergence_weight, the initial weight_ih and all other training settings are our choice: the numbers "
    "of the paper's tables could not be read."
)
_TRAINING: dict[str, dict[str, Any]] = {
    "practical": practical(0.005, 80),
    "paper": {"lr": 0.001, "optimizer": "adam"},
}

Constraint = Literal["none", "soft", "hard"]


class _LVFCell(PlainCell):
    """Options, parameters and operator of the explicit and the implicit step; the defaults are the explicit one's."""

    nonlinearities = ("tanh", "modrelu", "softshrink")
    takes_dt = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.1,
        nonlinearity: Nonlinearity = "tanh",
        constraint: Constraint = "hard",
        divergence_weight: float = 0.0,
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        check_positive(self, step_size=step_size)
        check_choice(self, "constraint", constraint, ("none", "soft", "hard"))
        check_not_negative(self, divergence_weight=divergence_weight)
        if (divergence_weight > 0) != (constraint == "soft"):
            raise ValueError(
                f"divergence_weight of {type(self).__name__} is greater than 0 with constraint 'soft' and 0 otherwise, "
                f"got {divergence_weight} with {constraint!r}."
            )
        self.step_size = step_size
        self.constraint = constraint
        self.divergence_weight = divergence_weight
        self.weight_hh = empty_parameter(skew_size(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight_hh.copy_(doubly_stochastic_skew(self.hidden_size))
        super().reset_parameters()

    def operator(self) -> Tensor:
        """Return the linear operator D of the vector field, column convention."""
        return vector_field(self.weight_hh, self.hidden_size, divergence_free=self.constraint == "hard")

    def propagator(self) -> Tensor:
        """Return the matrix Phi that a step applies to the state."""
        raise NotImplementedError

    def recurrent_matrix(self) -> Tensor:
        return self.propagator()

    def step_bound(self) -> StepBound:
        # The symmetric part of D is diagonal: its eigenvalues, half the divergences, are the diagonal of D.
        divergence = float(float64(self.operator()).diagonal().max())
        return replace(
            super().step_bound(),
            conditions=(
                Hypothesis(
                    "proposition 2: largest diagonal entry of D", divergence, 0.0, subject="differential equation"
                ),
            ),
            figures={"norm_propagator": norm_upper_bound(float64(self.recurrent_matrix()))},
        )

    def irregular_bound(self) -> StepBound:
        # The propagator acts over the whole time, in parts, then input and nonlinearity once.
        regular = self.step_bound()
        if not all(hypothesis.holds for hypothesis in regular.hypotheses):
            return StepBound(hypotheses=regular.hypotheses)
        return replace(
            regular,
            norm="l2",
            metric=None,
            multipliers=None,
            other_norms=(),
            rate=self._largest_expansion(),
            gain=norm_upper_bound(float64(self.weight_ih)),
            output_gain=1.0,
        )

    def _largest_expansion(self) -> float:
        """Return the largest factor by which the propagator expands a state over a regular step, in any parts."""
        return irregular_step_bound(StepBound(rate=max(1.0, norm_upper_bound(float64(self.recurrent_matrix()))))).rate

    def penalty(self) -> Tensor | None:
        if self.constraint != "soft":
            return None
        # D + D^T = diag(div).
        divergence = 2 * self.operator().diagonal()
        return self.divergence_weight * divergence.square().sum()


@register_cell(
    "lvf",
    title="latent vector field RNN, explicit Euler",
    paper=_PAPER,
    year=2021,
    guarantee="none: for a skew D the Euler propagator expands, ||I + dt D|| = sqrt(1 + dt^2 ||D||^2)",
    family="plain",
    equation=(
        "D = S - diag(S 1), S skew; h <- s((I + step_size D) h + U x), "
        "s = tanh(. + b), modReLU or softshrink with bias b"
    ),
    paper_options={"step_size": 0.1, "nonlinearity": "modrelu", "constraint": "none"},
    paper_source=_SOURCE,
    training=_TRAINING,
)
class LVFRNNCell(_LVFCell):
    r"""A state that moves along a learned vector field on its own coordinates; explicit Euler.

    .. math:: h_t = s((I + dt\, D) h_{t-1} + U x_t), \quad D = S - \mathrm{diag}(S 1), \quad S^\top = -S

    In code: dt is ``step_size``; the strict upper triangle of S is ``weight_hh``; U is ``weight_ih``; ``bias`` is the
    bias of s: ``tanh(z + bias)``, or modReLU's own.

    Guarantee:
        None. ``constraint="hard"`` makes D = S skew, and then ``||I + dt S|| = sqrt(1 + dt^2 ||S||^2)`` is above one:
        only the implicit midpoint (:class:`LVFMidpointRNNCell`) preserves norms. With tanh the state stays within 1
        in every coordinate; with modReLU and softshrink nothing bounds it.

        ``hard`` also gives up ``D 1 = 0``. The paper says that its divergence-free fields, which have both properties,
        are the skew matrices of expRNN; they are only those whose rows sum to zero, of (N - 1)(N - 2)/2 dimensions and
        not N(N - 1)/2.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Time step dt, dimensionless, greater than 0. Our choice; the paper's is not known.
        nonlinearity: ``tanh`` (ours, with a bias inside), ``modrelu`` (the paper's on the copy task) or ``softshrink``
            (ours), which is modReLU with the bias ``-|b|`` and therefore 1-Lipschitz.
        constraint: ``none``; ``soft``, a penalty on the divergence; or ``hard``, no divergence. The default is ours.
        divergence_weight: Weight lambda of the penalty ``lambda sum_i div_i^2``, with ``soft`` only.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = LVFRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper's eq. 5 and 6. Sign and factor of D could not be read: D as above has all the properties that the
        paper states, and S is half of V^T - V there. V starts doubly stochastic (uniform entries, Sinkhorn), so D
        starts skew. The text trains with Adam, table 5 has RMSprop for TIMIT: we use Adam. An irregular step, which the
        paper does not have, moves the state along the field for that time, a long one in equal parts; input and
        nonlinearity act once, at its end.
    """

    def propagator(self) -> Tensor:
        d = self.operator()
        return torch.eye(self.hidden_size, dtype=d.dtype, device=d.device) + self.step_size * d

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        return self.advance(weights, state, drive, dt, 1)

    def advance(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None, substeps: int) -> State:
        """Apply the linear propagator, over a time ``dt`` in equal parts, then input and nonlinearity once."""
        (h,) = state
        propagator, bias = weights
        if dt is None:
            h = nn.functional.linear(h, propagator)
        else:
            part = dt / substeps
            # Phi h - h is step_size D h: this is the Euler step of length part * step_size.
            for _ in range(substeps):
                h = h + part * (nn.functional.linear(h, propagator) - h)
        return (self.activate(h + drive, bias),)


class LVFTimedWeights(NamedTuple):
    operator: Tensor
    """D, (hidden, hidden), skew."""
    bias: Tensor
    """The bias of the nonlinearity, (hidden,)."""
    basis: Tensor
    """D's eigenvectors in real form, (2 hidden, hidden), see :func:`stablernn.parametrizations.skew_spectrum`."""
    frequencies: Tensor
    """D's eigenvalues without the factor -i, (hidden,)."""


@register_cell(
    "lvf_mid",
    title="latent vector field RNN, implicit midpoint",
    paper=_PAPER,
    year=2021,
    guarantee="non-expansive by construction with constraint 'hard' and softshrink (the defaults) or tanh; else none",
    family="plain",
    equation=(
        "D = S - diag(S 1), S skew; Phi = (I - step_size/2 D)^-1 (I + step_size/2 D); h <- s(Phi h + U x), "
        "s = tanh(. + b), modReLU or softshrink with bias b"
    ),
    paper_options={"step_size": 1.0, "nonlinearity": "modrelu", "constraint": "none"},
    paper_source=_SOURCE,
    training={**_TRAINING, "practical": {**_TRAINING["practical"], "orthogonal_lr": 0.005}},
)
class LVFMidpointRNNCell(_LVFCell):
    r"""The latent vector field RNN with the implicit midpoint rule.

    .. math:: h_t = s(\Phi h_{t-1} + U x_t), \quad
        \Phi = (I - \tfrac{dt}{2} D)^{-1} (I + \tfrac{dt}{2} D), \quad D = S - \mathrm{diag}(S 1), \quad S^\top = -S

    Names are those of :class:`LVFRNNCell`.

    Guarantee:
        Non-expansive by construction with ``constraint="hard"`` and ``softshrink`` (the defaults, ours) or ``tanh``: D
        is skew, Phi is orthogonal, and the nonlinearity is 1-Lipschitz. Without ``hard`` none: the entries of diag(D)
        sum to zero, so a D that is not skew has a direction in which Phi expands, and an eigenvalue of D at 2/dt is a
        pole of Phi. With ``modrelu`` none once a bias is positive: it then jumps at zero.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size, constraint, divergence_weight: As for :class:`LVFRNNCell`.
        nonlinearity: ``tanh``, ``modrelu`` or ``softshrink`` (the default), as for :class:`LVFRNNCell`.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    References:
        The paper's eq. 16, with D and optimizer as for :class:`LVFRNNCell`. Irregular steps, which the paper does not
        have, require ``constraint="hard"``: one step of the midpoint rule over dt for each sample, which is orthogonal
        for any length, then input and nonlinearity once. Its matrix is never built: in an orthonormal basis of the skew
        D it is a rotation, by twice the arc tangent of half the time times a frequency. A step much longer than the
        fastest period rotates that component by almost half a turn and no more.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 1.0,
        nonlinearity: Nonlinearity = "softshrink",
        constraint: Constraint = "hard",
        divergence_weight: float = 0.0,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            step_size=step_size,
            nonlinearity=nonlinearity,
            constraint=constraint,
            divergence_weight=divergence_weight,
        )
        # Only a skew D has an orthonormal basis in which steps of all lengths are rotations.
        self.takes_dt = constraint == "hard"
        self.orthogonal = ("weight_hh",) if constraint == "hard" else ()

    def propagator(self) -> Tensor:
        return cayley_propagator(self.operator(), self.step_size)

    def _largest_expansion(self) -> float:
        # Only a skew field takes dt, and it rotates at any length; its basis is orthonormal to rounding in float32.
        return max(1.0, norm_upper_bound(float64(self.materialize_timed().basis)) ** 2)

    def check_takes_dt(self) -> None:
        """Refuse time steps unless the operator is skew: only then are steps of all lengths rotations in one basis.

        Raises:
            ConfigError: If ``constraint`` is not ``hard``.
        """
        if not self.takes_dt:
            raise ConfigError(
                f"The cell '{self.key}' takes dt with constraint='hard' only, got constraint='{self.constraint}'. "
                "Leave dt out, or take the cell lvf."
            )

    def substeps(self, longest: float) -> int:
        """Return 1: the midpoint rule preserves norms at any length."""
        return 1

    def materialize_timed(self) -> LVFTimedWeights:
        operator = self.operator()
        return LVFTimedWeights(operator, self.used_bias(), *skew_spectrum(operator))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        if dt is None:
            return super().step(weights, state, drive)
        (h,) = state
        operator, bias, basis, frequencies = weights
        half = (self.step_size / 2) * dt
        # (I + half D) / (I - half D) at D = -i w is (1 - i t) / (1 + i t) with t = half w.
        t = half * frequencies
        scale = 1 / (1 + t * t)
        rotated = _apply_spectral_function(h, basis, (1 - t * t) * scale, 2 * t * scale)
        if operator.requires_grad:
            # The basis has no gradient, but the equation that defines the step has one: a correction by its residual,
            # which is rounding in value, makes one more derivative right.
            for _ in range(2):
                velocity_after, velocity_before = (nn.functional.linear(v, operator) for v in (rotated, h))
                residual = (h + half * velocity_before) - (rotated - half * velocity_after)
                rotated = rotated + _apply_spectral_function(residual, basis, scale, t * scale)
        return (self.activate(rotated + drive, bias),)


def _apply_spectral_function(h: Tensor, basis: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return f(D) h for a function with f(-i w) = cosine - i sine."""
    # Coordinates [p | q] in the basis, rotated, and back: (batch, 2 hidden) to (batch, hidden).
    p, q = nn.functional.linear(h, basis).chunk(2, dim=-1)
    return torch.cat([cosine * p - sine * q, sine * p + cosine * q], dim=-1) @ basis
