"""Efficient unitary RNN: Jing et al., "Tunable efficient unitary neural networks (EUNN)", ICML 2017."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import Hypothesis, StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_choice,
    check_positive,
    check_whole_number,
    empty_parameter,
    float64,
)
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._complex import ComplexNonlinearity, complex_bound, complex_lure_system
from stablernn.cells._plain import PlainWeights
from stablernn.parametrizations import (
    butterfly_pairs,
    complex_modrelu,
    count_pairs,
    modrelu,
    neighbor_pairs,
    phase,
    real_form,
    rotate,
)

Variant = Literal["complex", "real"]
Style = Literal["tunable", "fft"]

OFFSET = 0.01
"""Constant that the paper's modReLU adds to the modulus."""


@register_cell(
    "eunn",
    title="efficient unitary RNN (EURNN)",
    paper=(
        "Jing, Shen, Dubcek, Peurifoy, Skirlo, LeCun, Tegmark, Soljacic: Tunable Efficient Unitary Neural Networks "
        "(EUNN) and their Application to RNNs (ICML 2017)"
    ),
    year=2017,
    guarantee="unitary by construction; non-expansive with softshrink (the default), not with positive modReLU biases",
    family="plain",
    equation=(
        "W = D F_L .. F_1, F_l rotations of disjoint pairs of units, D diagonal with phases; "
        "h <- f(W h + U x), f = modReLU or softshrink with bias b, complex or real; output Re h"
    ),
    paper_options={"nonlinearity": "modrelu", "input_scale": 0.01},
    paper_source=(
        "the released code's defaults, its copy task's training settings but for RMSprop's decay, .9 there and .99, "
        "torch's default, here; no capacity is published for language models"
    ),
    training={
        "practical": practical(0.005, 80),
        "paper": {"lr": 0.001, "orthogonal_lr": 0.001, "optimizer": "rmsprop", "batch_size": 128},
    },
)
class EfficientUnitaryRNNCell(StableCell):
    r"""A unitary or orthogonal matrix that is a product of any number of layers of 2 x 2 rotations.

    .. math:: h_t = f(W h_{t-1} + U x_t), \quad W = D F_L \cdots F_1, \quad D = \mathrm{diag}(e^{i\omega})

    Layer F_l rotates disjoint pairs (i, j) of units, each by separate angles:

    .. math:: h_i \leftarrow \cos\theta\, h_i - e^{i\varphi} \sin\theta\, h_j, \quad
        h_j \leftarrow \sin\theta\, h_i + e^{i\varphi} \cos\theta\, h_j
    .. math:: f(z) = \frac{z}{n} \max(n + b, 0), \quad n = |z| + 0.01

    In code: :math:`\theta`, :math:`\varphi` and :math:`\omega` are ``theta``, ``phi`` and ``omega``, the angles of
    the first layer first; U is ``weight_ih``, complex as [Re | Im]; b is ``bias``; :math:`|z|` is
    :math:`\sqrt{re^2 + im^2 + 10^{-10}}`. The real variant has no :math:`\varphi` and :math:`\omega`, and
    :math:`f(z) = \mathrm{sign}(z) \max(|z| + 0.01 + b, 0)`.

    Guarantee:
        W is unitary, in the real variant orthogonal, by construction. With ``softshrink`` (ours, the default) the step
        is non-expansive: no two states move apart under one input. With ``modrelu`` (the paper's) this holds while
        every b is 0 or less, and in the real variant -0.01 or less: with its initial b = 0 it jumps by 0.02 at zero.
        A positive b stretches complex numbers near zero by up to 1 + 100 b.

    Args:
        input_size: Features per time step.
        hidden_size: Units. If the number is odd, one end of each layer has no partner and is left unchanged.
        capacity: Layers L of ``tunable``, 1 or more; None is 2, as in the released code. With ``hidden_size`` of them W
            can be any unitary matrix. ``fft`` has a fixed number of layers and takes None only.
        variant: ``complex``, or ``real``.
        style: ``tunable``: pairs (0, 1), (2, 3), .. and (1, 2), (3, 4), .. in turn; or ``fft``: log2(hidden_size)
            layers paired as in a fast Fourier transform, for which ``hidden_size`` is a power of two.
        nonlinearity: ``modrelu`` (the paper's), or ``softshrink`` (ours): in the complex variant modReLU with the bias
            ``-|b|``, in the real one ``sign(z) max(|z| - |b|, 0)``.
        input_scale: The initial entries of U are uniform within this, greater than 0. The paper's is 0.01.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and imaginary, the parts of h, each ``(batch, hidden_size)``; in the real variant hidden alone;
          zeros when omitted
        - output: the next state, same shapes and dtype as ``state``; the next layer reads hidden

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = EfficientUnitaryRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).hidden.shape
        torch.Size([2, 8])

    References:
        The paper and its released code, which draws angles from U(-3.14, 3.14): here they are from U(-pi, pi). As there
        U ~ U(-0.01, 0.01) in the preset ``paper``, and b = 0 (softshrink's within 0.01, since a threshold has no
        gradient at 0). The code requires an even L and an even number of units, here both may be odd.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        capacity: int | None = None,
        variant: Variant = "complex",
        style: Style = "tunable",
        nonlinearity: ComplexNonlinearity = "softshrink",
        input_scale: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_whole_number(self, "capacity", capacity)
        check_choice(self, "variant", variant, ("complex", "real"))
        check_choice(self, "style", style, ("tunable", "fft"))
        check_choice(self, "nonlinearity", nonlinearity, ("modrelu", "softshrink"))
        check_positive(self, input_scale=input_scale)
        # A power of two has a single bit set.
        if style == "fft" and hidden_size.bit_count() > 1:
            raise ValueError(
                f"hidden_size must be a power of two for {type(self).__name__} with style 'fft', got {hidden_size}."
            )
        if style == "fft" and capacity is not None:
            raise ValueError(
                f"capacity of {type(self).__name__} is for style 'tunable', got {capacity} with style 'fft', which has "
                "log2(hidden_size) layers. Leave capacity out."
            )
        layers = 2 if capacity is None else int(capacity)
        self.capacity = None if style == "fft" else layers
        self.variant: Variant = variant
        self.style: Style = style
        self.nonlinearity: ComplexNonlinearity = nonlinearity
        self.input_scale = input_scale
        partners = butterfly_pairs(hidden_size) if style == "fft" else neighbor_pairs(hidden_size, layers)
        # Not persistent: the partners follow from the options.
        self.partners: Tensor
        self.register_buffer("partners", partners, persistent=False)
        self.theta = empty_parameter(count_pairs(partners))
        self.orthogonal = ("theta",)
        if variant == "complex":
            self.state_names = ("hidden", "imaginary")
            self.orthogonal = ("theta", "phi", "omega")
            self.phi = nn.Parameter(torch.empty_like(self.theta))
            self.omega = empty_parameter(hidden_size)
        self.weight_ih = empty_parameter(len(self.state_names) * hidden_size, input_size)
        self.bias = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for name in self.orthogonal:
            nn.init.uniform_(getattr(self, name), -math.pi, math.pi)
        nn.init.uniform_(self.weight_ih, -self.input_scale, self.input_scale)
        # A threshold |b| has no gradient at exactly zero, where modReLU starts.
        bound = 0.01 if self.nonlinearity == "softshrink" else 0.0
        nn.init.uniform_(self.bias, -bound, bound)

    def complex_matrix(self) -> Tensor:
        """Return the matrix W, ``(hidden_size, hidden_size)``, column convention; real in the real variant."""
        # The layers act on the columns of the identity, F_1 first and D last.
        identity = torch.eye(self.hidden_size, dtype=self.theta.dtype, device=self.theta.device)
        if self.variant == "real":
            return rotate(identity, self.partners, self.theta)
        rotated = rotate(torch.complex(identity, 0 * identity), self.partners, self.theta, self.phi)
        return phase(self.omega)[:, None] * rotated

    def recurrent_matrix(self) -> Tensor:
        w = self.complex_matrix()
        return w if self.variant == "real" else real_form(w)

    def used_bias(self) -> Tensor:
        """Return the bias that the nonlinearity adds to the modulus, 0.01 included."""
        if self.nonlinearity == "modrelu":
            return self.bias + OFFSET
        return -self.bias.abs() if self.variant == "real" else OFFSET - self.bias.abs()

    def materialize(self) -> PlainWeights:
        return PlainWeights(self.recurrent_matrix(), self.used_bias())

    def lure_system(self) -> LureSystem:
        recurrent, bias = self.materialize()
        if self.variant == "complex":
            return complex_lure_system(recurrent, self.weight_ih, bias, OFFSET)
        unit = np.eye(self.hidden_size)
        return LureSystem(0 * unit, unit, float64(recurrent), float64(self.weight_ih), f_max=math.inf)

    def step_bound(self) -> StepBound:
        bias = self.used_bias()
        if self.variant == "complex":
            return complex_bound(self.lure_system(), bias, OFFSET, states=self.state_names, output=self.hidden_size)
        # Real modReLU jumps at 0 if the bias that it adds is positive.
        highest = Hypothesis("largest bias of modReLU, 0.01 included", float(bias.detach().max()), 0.0)
        return lure_bound(self.lure_system(), hypotheses=(highest,))

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        recurrent, bias = weights
        # (batch, hidden), in the complex variant (batch, 2 hidden) as [Re | Im]
        z = nn.functional.linear(torch.cat(state, dim=-1), recurrent) + drive
        if self.variant == "real":
            return (modrelu(z, bias),)
        hidden, imaginary = complex_modrelu(z, bias, OFFSET).chunk(2, dim=-1)
        return hidden, imaginary
