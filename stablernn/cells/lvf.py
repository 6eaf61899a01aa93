"""Latent vector field RNN: Azencot et al., "A differential geometry perspective on orthogonal recurrent models"."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from stablernn.cells._base import StableCell, State, check_not_negative, check_positive, uniform_
from stablernn.cells._catalog import register_cell
from stablernn.parametrizations import cayley_propagator, doubly_stochastic_skew, modrelu, skew_size, vector_field

_PAPER = "Azencot et al.: A Differential Geometry Perspective on Orthogonal Recurrent Models (2021)"
_SOURCE = (
    "nonlinearity and optimizer as in the text. step_size, divergence_weight, the initial weight_ih and all other "
    "training settings are our choice: the paper's tables could not be read."
)
_TRAINING = {
    "practical": {"lr": 0.005, "schedule": "one-cycle", "epochs": 80, "batch_size": 32, "clip_norm": 1.0},
    "paper": {"lr": 0.001, "optimizer": "adam"},
}

Nonlinearity = Literal["tanh", "modrelu", "softshrink"]
Constraint = Literal["none", "soft", "hard"]


class LVFWeights(NamedTuple):
    propagator: Tensor
    """Phi, (hidden, hidden)."""
    bias: Tensor
    """What the nonlinearity adds, (hidden,)."""


class _LVFCell(StableCell):
    """Parameters and nonlinearity that the explicit and the implicit step share."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float,
        nonlinearity: Nonlinearity,
        constraint: Constraint,
        divergence_weight: float,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        if nonlinearity not in ("tanh", "modrelu", "softshrink"):
            raise ValueError(
                f"nonlinearity of {type(self).__name__} is 'tanh', 'modrelu' or 'softshrink', got {nonlinearity!r}."
            )
        if constraint not in ("none", "soft", "hard"):
            raise ValueError(f"constraint of {type(self).__name__} is 'none', 'soft' or 'hard', got {constraint!r}.")
        check_not_negative(self, divergence_weight=divergence_weight)
        if (divergence_weight > 0) != (constraint == "soft"):
            raise ValueError(
                f"divergence_weight of {type(self).__name__} is greater than 0 with constraint 'soft' and 0 otherwise, "
                f"got {divergence_weight} with {constraint!r}."
            )
        self.step_size = step_size
        self.nonlinearity = nonlinearity
        self.constraint = constraint
        self.divergence_weight = divergence_weight
        self.weight_hh = nn.Parameter(torch.empty(skew_size(hidden_size)))
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight_hh.copy_(doubly_stochastic_skew(self.hidden_size))
        uniform_(self.weight_ih, self.input_size)
        # A threshold |b| has no gradient at exactly zero, where modReLU starts.
        bound = 0.01 if self.nonlinearity == "softshrink" else 0.0
        nn.init.uniform_(self.bias, -bound, bound)

    def operator(self) -> Tensor:
        """The linear operator D of the vector field, column convention."""
        return vector_field(self.weight_hh, self.hidden_size, divergence_free=self.constraint == "hard")

    def propagator(self) -> Tensor:
        """The matrix Phi that a step applies to the state."""
        raise NotImplementedError

    def recurrent_matrix(self) -> Tensor:
        return self.propagator()

    def materialize(self) -> LVFWeights:
        bias = -self.bias.abs() if self.nonlinearity == "softshrink" else self.bias
        return LVFWeights(self.propagator(), bias)

    def penalty(self) -> Tensor | None:
        if self.constraint != "soft":
            return None
        divergence = 2 * self.operator().diagonal()
        return self.divergence_weight * divergence.square().sum()

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih)

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor) -> State:
        (h,) = state
        propagator, bias = weights
        z = nn.functional.linear(h, propagator) + drive
        return (torch.tanh(z + bias) if self.nonlinearity == "tanh" else modrelu(z, bias),)


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
    r"""The state moves along a learned vector field on its own coordinates; explicit Euler.

    .. math:: h_t = s((I + dt\, D) h_{t-1} + U x_t), \quad D = S - \mathrm{diag}(S 1), \quad S^\top = -S

    In code: dt is ``step_size``; the strict upper triangle of S is ``weight_hh``; U is ``weight_ih``; ``bias`` is the
    bias of s: ``tanh(z + bias)``, or modReLU's own.

    Guarantee:
        None. ``constraint="hard"`` makes D = S skew, and then ``||I + dt S|| = sqrt(1 + dt^2 ||S||^2)`` is above one:
        only the implicit midpoint (:class:`LVFMidpointRNNCell`) preserves norms. With tanh the state stays within 1
        in every coordinate; with modReLU and softshrink nothing bounds it.

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
        The paper's eq. 5 and 6. V starts doubly stochastic (uniform entries, Sinkhorn), so D starts skew.
    """

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
        super().__init__(
            input_size,
            hidden_size,
            step_size=step_size,
            nonlinearity=nonlinearity,
            constraint=constraint,
            divergence_weight=divergence_weight,
        )

    def propagator(self) -> Tensor:
        d = self.operator()
        return torch.eye(self.hidden_size, dtype=d.dtype, device=d.device) + self.step_size * d


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
    training=_TRAINING,
)
class LVFMidpointRNNCell(_LVFCell):
    r"""The latent vector field stepped by the implicit midpoint rule.

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
        step_size: Time step dt, dimensionless, greater than 0. Our choice; the paper's is not known.
        nonlinearity: ``tanh`` (ours, with a bias inside), ``modrelu`` (the paper's on the copy task) or ``softshrink``
            (ours, the default), which is modReLU with the bias ``-|b|`` and therefore 1-Lipschitz.
        constraint: ``none``; ``soft``, a penalty on the divergence; or ``hard``, no divergence. The default is ours.
        divergence_weight: Weight lambda of the penalty ``lambda sum_i div_i^2``, with ``soft`` only.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    References:
        The paper's eq. 16.
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

    def propagator(self) -> Tensor:
        return cayley_propagator(self.operator(), self.step_size)
