"""Linear recurrent unit: Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu, De, "Resurrecting RNNs", ICML 2023."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import UNIT, Matrix, norm_above
from stablernn.bounds.linear_response import Response
from stablernn.bounds.step_bound import GELU_SLOPE, StepBound, float64
from stablernn.cells._base import StableCell, State, check_positive, check_word
from stablernn.cells._catalog import register_cell

Activation = Literal["none", "gelu"]


class LRUWeights(NamedTuple):
    real: Tensor
    """Re l, (hidden,)."""
    imaginary: Tensor
    """Im l, (hidden,)."""
    output: Tensor
    """[Re C | -Im C], (hidden, 2 hidden): acts on [Re h | Im h]."""


@register_cell(
    "lru",
    title="linear recurrent unit: complex, diagonal",
    paper="Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu, De: Resurrecting Recurrent Neural Networks (ICML 2023)",
    year=2023,
    guarantee="contracting by construction: linear with every |eigenvalue| < 1, for any value of the parameters",
    family="general",
    equation=(
        "l = exp(-exp(nu) + i exp(theta)); h <- l .* h + exp(gamma) .* (B x), complex; y = f(Re(C h) + D x), "
        "f = gelu or nothing"
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
class LRUCell(StableCell):
    r"""A linear system of independent complex units, stable by its parametrization, read out through its real part.

    .. math::
        \lambda = \exp(-e^{\nu} + i e^{\theta}), \quad
        h_t = \lambda \odot h_{t-1} + e^{\gamma} \odot (B x_t), \quad y_t = f(\mathrm{Re}(C h_t) + D x_t)

    In code: nu is ``log_decay``, theta is ``log_phase``, gamma is ``log_gain``; B is ``weight_ih``, rows [Re B; Im B];
    C is ``weight_output``, columns [Re C | Im C]; D is ``weight_skip``. The state is the output y and h as real numbers
    [Re h | Im h]; f is ``activation``.

    Guarantee:
        By construction: ``|l| = exp(-exp(nu)) < 1``. Two states under one input approach, unit by unit, by exactly the
        factor ``|l|`` a step in modulus, and a bounded input gives a bounded state. The output is a function of this
        state and the input. So that no rounding puts an ``l`` on the unit circle, its modulus ends four last digits
        below 1, in float32 at ``1 - 4.8e-7``: slower decays than that are not to be had.

    Args:
        input_size: Features per time step.
        hidden_size: Number of complex units, and length of the output.
        min_radius: Smallest ``|l|`` at the start, 0 to ``max_radius``. The default is ours.
        max_radius: Largest ``|l|`` at the start, above ``min_radius``, up to 1. The default is ours.
        max_phase: Largest angle of l at the start, in radians.
        activation: What acts on the output: ``none``, the paper's equation, or ``gelu`` (the default, ours: without it
            a stack of layers is one linear system; the paper puts a block with a gate there).

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: output ``(batch, hidden_size)`` and hidden ``(batch, 2 hidden_size)``, or both without ``batch``; zeros
          when omitted
        - output: the next output and hidden state

    Raises:
        ValueError: If the radii are not in order within 0 to 1, ``max_phase`` is not positive, or the activation is
            another.

    Example:
        >>> output, hidden = LRUCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> hidden.shape
        torch.Size([2, 16])

    References:
        The paper's unit in the parametrization and initialization of the released minimal version. There D is
        diagonal, for as many outputs as inputs; here it is any matrix (our choice), drawn as B and C are with a
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
        check_word(self, "activation", activation, ("none", "gelu"))
        self.min_radius = min_radius
        self.max_radius = max_radius
        self.max_phase = max_phase
        self.activation = activation
        self.log_decay = nn.Parameter(torch.empty(hidden_size))
        self.log_phase = nn.Parameter(torch.empty(hidden_size))
        self.log_gain = nn.Parameter(torch.empty(hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(2 * hidden_size, input_size))
        self.weight_output = nn.Parameter(torch.empty(hidden_size, 2 * hidden_size))
        self.weight_skip = nn.Parameter(torch.empty(hidden_size, input_size))
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (self.hidden_size, 2 * self.hidden_size)

    def reset_parameters(self) -> None:
        least, most = self.min_radius**2, self.max_radius**2
        # Uniform over the ring's area. Neither end is drawn exactly: its logarithm would not be finite.
        square = torch.rand(self.hidden_size, dtype=torch.float64).clamp_(1e-6, 1 - 1e-6) * (most - least) + least
        angle = torch.rand(self.hidden_size).clamp_(1e-6) * self.max_phase
        with torch.no_grad():
            self.log_decay.copy_((-0.5 * square.log()).log())
            self.log_phase.copy_(angle.log())
            # White input of variance 1 then gives a state of variance about 1, whatever the radius.
            self.log_gain.copy_(0.5 * (1 - square).log())
        nn.init.normal_(self.weight_ih, std=(2 * self.input_size) ** -0.5)
        nn.init.normal_(self.weight_output, std=self.hidden_size**-0.5)
        nn.init.normal_(self.weight_skip, std=self.input_size**-0.5)

    def eigenvalues(self) -> Tensor:
        """l, ``(hidden_size,)``, complex."""
        return torch.complex(*self._parts())

    def recurrent_matrix(self) -> Tensor:
        """The real form of diag(l), ``(2 hidden, 2 hidden)``, acting on [Re h; Im h]."""
        real, imaginary = (torch.diag(part) for part in self._parts())
        return torch.cat([torch.cat([real, -imaginary], dim=1), torch.cat([imaginary, real], dim=1)])

    def materialize(self) -> LRUWeights:
        real, imaginary = self.weight_output.chunk(2, dim=1)
        return LRUWeights(*self._parts(), torch.cat([real, -imaginary], dim=1))

    def step_bound(self) -> StepBound:
        weights = self.materialize()
        moduli = np.hypot(float64(weights.real), float64(weights.imaginary))
        # In the precision of the model, which rounds the product.
        added = float64(torch.exp(self.log_gain).repeat(2)[:, None] * self.weight_ih)
        if not np.isfinite(added).all():
            return StepBound()
        slope, read = GELU_SLOPE if self.activation == "gelu" else 1.0, float64(weights.output)
        return StepBound(
            covers=("hidden",),
            norm="l2",
            rate=float(moduli.max()) * (1 + 2 * UNIT),
            gain=norm_above(added),
            output_gain=slope * norm_above(read),
            output_input_gain=slope * norm_above(float64(self.weight_skip)),
            response=self._response(weights, added, slope) if norm_above(added) * norm_above(read) < 1e100 else None,
        )

    def _response(self, weights: LRUWeights, added: Matrix, slope: float) -> Response:
        read = float64(weights.output)
        return Response(
            poles=float64(weights.real) + 1j * float64(weights.imaginary),
            given=added[: self.hidden_size] + 1j * added[self.hidden_size :],
            # [Re C, -Im C] on [Re h; Im h].
            read=read[:, : self.hidden_size] - 1j * read[:, self.hidden_size :],
            skip=float64(self.weight_skip),
            slope=slope,
        )

    def drive(self, x: Tensor) -> Tensor:
        gain = torch.exp(self.log_gain).repeat(2)[:, None]
        return nn.functional.linear(x, torch.cat([gain * self.weight_ih, self.weight_skip]))

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        _, hidden = state
        real, imaginary, output = weights
        a, b = hidden.chunk(2, dim=-1)
        size = self.hidden_size
        added_a, added_b, skip = torch.split(drive, size, dim=-1)
        h = torch.cat([real * a - imaginary * b + added_a, imaginary * a + real * b + added_b], dim=-1)
        y = nn.functional.linear(h, output) + skip
        return nn.functional.gelu(y) if self.activation == "gelu" else y, h

    def _parts(self) -> tuple[Tensor, Tensor]:
        # Beyond e^80 single precision ends, and infinity has no sine and no slope.
        slowest = 1 - 4 * torch.finfo(self.log_decay.dtype).eps
        radius = torch.exp(-torch.exp(self.log_decay.clamp(max=80))).clamp(max=slowest)
        phase = torch.exp(self.log_phase.clamp(max=80))
        return radius * torch.cos(phase), radius * torch.sin(phase)
