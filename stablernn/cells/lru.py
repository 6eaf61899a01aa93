"""Linear recurrent unit: Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu, De, "Resurrecting RNNs", ICML 2023."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import EPSILON, Matrix, norm_upper_bound
from stablernn.bounds.linear_response import ImpulseResponse
from stablernn.bounds.step_bound import GELU_SLOPE, StepBound
from stablernn.cells._base import State, Weights, check_choice, check_positive, empty_parameter, float64
from stablernn.cells._catalog import register_cell
from stablernn.cells._diagonal_recurrence import DiagonalCell, DiagonalRecurrence

Activation = Literal["none", "gelu"]


class LRUWeights(NamedTuple):
    real: Tensor
    """Re l, (hidden,)."""
    imaginary: Tensor
    """Im l, (hidden,)."""
    output: Tensor
    """[Re C | -Im C], (hidden, 2 hidden), which acts on [Re h | Im h]."""


@register_cell(
    "lru",
    title="linear recurrent unit: complex, diagonal",
    paper="Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu, De: Resurrecting Recurrent Neural Networks (ICML 2023)",
    year=2023,
    guarantee="contracting by construction: linear with every |eigenvalue| < 1, for any value of the parameters",
    equation=(
        "l = exp(-exp(nu) + i exp(theta)); h <- l .* h + exp(gamma) .* (B x), complex; y = f(Re(C h) + D x), "
        "f = gelu or identity"
    ),
    paper_options={"min_radius": 0.0, "max_radius": 1.0, "activation": "none"},
    paper_source=(
        "the released minimal version's range of radii and phases, which the paper narrows for long sequences; its "
        "block around the unit (normalization, gated linear unit) is no part of the cell; training settings are ours."
    ),
    training={
        "practical": {
            "lr": 0.005,
            "schedule": "one-cycle",
            "epochs": 30,
            "batch_size": 32,
            "clip_norm": 1.0,
            "weight_decay": 0.05,
        },
        "paper": {"lr": 0.001, "optimizer": "adamw", "schedule": "cosine"},
    },
)
class LRUCell(DiagonalCell):
    r"""A linear system of independent complex units, stable by parametrization, whose real part is read out.

    .. math::
        \lambda = \exp(-e^{\nu} + i e^{\theta}), \quad
        h_t = \lambda \odot h_{t-1} + e^{\gamma} \odot (B x_t), \quad y_t = f(\mathrm{Re}(C h_t) + D x_t)

    In code: nu is ``log_decay``, theta is ``log_phase``, gamma is ``log_gain``; B is ``weight_ih``, rows [Re B; Im B];
    C is ``weight_output``, columns [Re C | Im C]; D is ``weight_skip``. The state is the output y and h as real numbers
    [Re h | Im h]; f is ``activation``.

    Guarantee:
        By construction: ``|l| = exp(-exp(nu)) < 1``. Two states under one input approach each other, unit by unit, by
        exactly the factor ``|l|`` a step in modulus, and a bounded input gives a bounded state. The output is a
        function of this state and the input. So that rounding puts no ``l`` on the unit circle, its modulus is at most
        four machine epsilons below 1, in float32 ``1 - 4.8e-7``: no slower decay is possible.

    Args:
        input_size: Features per time step.
        hidden_size: Number of complex units, and length of the output.
        min_radius: Smallest initial ``|l|``, 0 to ``max_radius``. The default is ours.
        max_radius: Largest initial ``|l|``, above ``min_radius``, up to 1. The default is ours.
        max_phase: Largest initial angle of l, in radians.
        activation: Nonlinearity of the output: ``none``, the paper's equation, or ``gelu`` (the default, ours: without
            it a stack of layers is one linear system; the paper has a gated block there).

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: output ``(batch, hidden_size)`` and hidden ``(batch, 2 hidden_size)``, or both without ``batch``; zeros
          when omitted
        - output: the next output and hidden state

    Raises:
        ValueError: If the radii are not in order within 0 to 1, ``max_phase`` is not positive, or the activation is
            unknown.

    Example:
        >>> output, hidden = LRUCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> hidden.shape
        torch.Size([2, 16])

    References:
        The paper's unit in the parametrization and initialization of the released minimal version. There D is
        diagonal, for as many outputs as inputs; here it is a full matrix (our choice), normal as B and C, with a
        variance of 1/inputs.
    """

    state_names = ("output", "hidden")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        min_radius: float = 0.9,
        max_radius: float = 0.999,
        max_phase: float = 2 * math.pi,
        activation: Activation = "gelu",
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 <= min_radius < max_radius <= 1:
            raise ValueError(
                f"min_radius and max_radius of LRUCell must be in this order within 0 to 1, "
                f"got {min_radius} and {max_radius}."
            )
        check_positive(self, max_phase=max_phase)
        check_choice(self, "activation", activation, ("none", "gelu"))
        self.min_radius = min_radius
        self.max_radius = max_radius
        self.max_phase = max_phase
        self.activation = activation
        self.log_decay = empty_parameter(hidden_size)
        self.log_phase = empty_parameter(hidden_size)
        self.log_gain = empty_parameter(hidden_size)
        self.weight_ih = empty_parameter(2 * hidden_size, input_size)
        self.weight_output = empty_parameter(hidden_size, 2 * hidden_size)
        self.weight_skip = empty_parameter(hidden_size, input_size)
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, 2 * self.hidden_size)

    def reset_parameters(self) -> None:
        low, high = self.min_radius**2, self.max_radius**2
        # Uniform over the area of the ring. Clamped: the logarithms of radii 0 and 1 and of angle 0 are infinite.
        square = torch.rand(self.hidden_size, dtype=torch.float64).clamp_(1e-6, 1 - 1e-6) * (high - low) + low
        angle = torch.rand(self.hidden_size).clamp_(1e-6) * self.max_phase
        with torch.no_grad():
            self.log_decay.copy_((-0.5 * square.log()).log())
            self.log_phase.copy_(angle.log())
            # gamma = log sqrt(1 - |l|^2): white input of variance 1 gives a state of variance about 1 at any radius.
            self.log_gain.copy_(0.5 * (1 - square).log())
        nn.init.normal_(self.weight_ih, std=(2 * self.input_size) ** -0.5)
        nn.init.normal_(self.weight_output, std=self.hidden_size**-0.5)
        nn.init.normal_(self.weight_skip, std=self.input_size**-0.5)

    def eigenvalues(self) -> Tensor:
        """Return l, ``(hidden_size,)``, complex."""
        return torch.complex(*self._eigenvalue_parts())

    def recurrent_matrix(self) -> Tensor:
        """Return the real form of diag(l), ``(2 hidden, 2 hidden)``, which acts on [Re h; Im h]."""
        real, imaginary = (torch.diag(part) for part in self._eigenvalue_parts())
        return torch.cat([torch.cat([real, -imaginary], dim=1), torch.cat([imaginary, real], dim=1)])

    def materialize(self) -> LRUWeights:
        real, imaginary = self.weight_output.chunk(2, dim=1)
        return LRUWeights(*self._eigenvalue_parts(), torch.cat([real, -imaginary], dim=1))

    def step_bound(self) -> StepBound:
        weights = self.materialize()
        moduli = np.hypot(float64(weights.real), float64(weights.imaginary))
        # In the precision of the model, which rounds the product: (2 hidden, input).
        input_weights = float64(self._scaled_input_weights())
        if not np.isfinite(input_weights).all():
            return StepBound()
        slope, readout = GELU_SLOPE if self.activation == "gelu" else 1.0, float64(weights.output)
        # So that squares of the impulse response stay finite in float64.
        has_response = norm_upper_bound(input_weights) * norm_upper_bound(readout) < 1e100
        return StepBound(
            covers=("hidden",),
            norm="l2",
            rate=float(moduli.max()) * (1 + 2 * EPSILON),
            gain=norm_upper_bound(input_weights),
            output_gain=slope * norm_upper_bound(readout),
            output_input_gain=slope * norm_upper_bound(float64(self.weight_skip)),
            impulse_response=self._response(weights, input_weights, slope) if has_response else None,
        )

    def _response(self, weights: LRUWeights, input_weights: Matrix, slope: float) -> ImpulseResponse:
        readout, size = float64(weights.output), self.hidden_size
        return ImpulseResponse(
            poles=float64(weights.real) + 1j * float64(weights.imaginary),
            input_weights=input_weights[:size] + 1j * input_weights[size:],
            # C of [Re C | -Im C].
            output_weights=readout[:, :size] - 1j * readout[:, size:],
            skip=float64(self.weight_skip),
            slope=slope,
        )

    def drive(self, x: Tensor) -> Tensor:
        # (..., 3 hidden): Re and Im of exp(gamma) B x, then D x.
        return nn.functional.linear(x, torch.cat([self._scaled_input_weights(), self.weight_skip]))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        _, hidden = state
        real, imaginary, _ = weights
        a, b = hidden.chunk(2, dim=-1)
        input_a, input_b, skip = torch.split(drive, self.hidden_size, dim=-1)
        # The complex product l h = (real + i imaginary) (a + i b) in real numbers.
        h = torch.cat([real * a - imaginary * b + input_a, imaginary * a + real * b + input_b], dim=-1)
        return self._output(weights, h, skip), h

    def diagonal_recurrence(self, weights: Weights, drive: Tensor) -> DiagonalRecurrence:
        increment, skip = torch.split(drive, [2 * self.hidden_size, self.hidden_size], dim=-1)
        return DiagonalRecurrence(torch.stack(weights[:2]), torch.unflatten(increment, -1, (2, -1)), skip)

    def recurrent_state(self, state: State) -> Tensor:
        return torch.unflatten(state[1], -1, (2, -1))

    def state_after(self, weights: Weights, h: Tensor, skip: Tensor | None) -> State:
        assert skip is not None
        hidden = h.flatten(-2)
        return self._output(weights, hidden, skip), hidden

    def _output(self, weights: Weights, hidden: Tensor, skip: Tensor) -> Tensor:
        y = nn.functional.linear(hidden, weights[2]) + skip
        return nn.functional.gelu(y) if self.activation == "gelu" else y

    def _scaled_input_weights(self) -> Tensor:
        """Return exp(gamma) B in its real form, ``(2 hidden, input)``."""
        return torch.exp(self.log_gain).repeat(2)[:, None] * self.weight_ih

    def _eigenvalue_parts(self) -> tuple[Tensor, Tensor]:
        """Return Re l and Im l, each ``(hidden,)``."""
        # Clamped: float32 overflows a little beyond e^80, and infinity has no sine and no gradient.
        slowest = 1 - 4 * torch.finfo(self.log_decay.dtype).eps
        radius = torch.exp(-torch.exp(self.log_decay.clamp(max=80))).clamp(max=slowest)
        phase = torch.exp(self.log_phase.clamp(max=80))
        return radius * torch.cos(phase), radius * torch.sin(phase)
