"""Unitary evolution RNN: Arjovsky, Shah, Bengio, "Unitary evolution recurrent neural networks", ICML 2016."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stablernn.cells._base import empty_parameter
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._complex import ComplexNonlinearity, StartedComplexCell
from stablernn.cells._structured_products import FourierProduct, StructuredProduct
from stablernn.parametrizations import phase, reflect


@register_cell(
    "urnn",
    title="unitary evolution RNN",
    paper="Arjovsky, Shah, Bengio: Unitary Evolution Recurrent Neural Networks (ICML 2016)",
    year=2016,
    guarantee="unitary by construction; non-expansive with softshrink (the default), not with positive modReLU biases",
    family="plain",
    equation=(
        "W = D3 R2 F^-1 D2 P R1 F D1 on complex units: D diagonal with phases, F the discrete Fourier transform, R "
        "reflections, P a fixed permutation; h <- f(W h + V x), f = modReLU or softshrink with bias b, h_0 trained"
    ),
    paper_options={"nonlinearity": "modrelu"},
    paper_source=(
        "the released code: its initialization, and its settings for pixel MNIST (512 units) but for RMSprop's decay, "
        ".9 there and .99, torch's default, here"
    ),
    training={
        "practical": practical(0.005, 80),
        "paper": {"lr": 0.0001, "orthogonal_lr": 0.0001, "optimizer": "rmsprop", "batch_size": 50},
    },
)
class UnitaryEvolutionRNNCell(StartedComplexCell):
    r"""A unitary matrix made of diagonals, Fourier transforms, reflections and a permutation.

    .. math:: h_t = f(W h_{t-1} + V x_t), \quad W = D_3 R_2 \mathcal{F}^{-1} D_2 \Pi R_1 \mathcal{F} D_1
    .. math:: D_k = \mathrm{diag}(e^{i\theta_k}), \quad R_k = I - 2 v_k v_k^H / \|v_k\|^2, \quad
        f(z) = \frac{z}{|z| + 10^{-5}} \max(|z| + b, 0)

    In code: :math:`\theta_k` are the rows of ``phases``, :math:`v_k` those of ``reflections`` as [Re | Im], :math:`\Pi`
    is ``permutation``, V is ``weight_ih`` as [Re | Im], b is ``bias``, the trained :math:`h_0` is ``hidden_0``;
    :math:`|z|` is :math:`\sqrt{re^2 + im^2 + 10^{-10}}`.

    Guarantee:
        W is unitary by construction. With ``softshrink`` (ours, the default) the step is non-expansive: no two states
        move apart under one input. With ``modrelu`` that holds only while no bias is positive; a positive one expands a
        neighborhood of zero by up to (b + 1e-5) / 2e-5, and neither the paper nor its code prevents it.

    Args:
        input_size: Features per time step.
        hidden_size: Complex units, of any number.
        nonlinearity: ``modrelu`` (the paper's) or ``softshrink`` (ours), which is modReLU with the bias ``-|b|``.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden, ``(batch, 2 hidden_size)`` as [Re | Im], and started, ``(batch, 1)``: 0 before the first step,
          where ``hidden_0`` replaces hidden, 1 after it; zeros when omitted
        - output: the next state, same shapes and dtype as ``state``

    Raises:
        ValueError: If ``nonlinearity`` is unknown.

    Example:
        >>> cell = UnitaryEvolutionRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).hidden.shape
        torch.Size([2, 16])

    References:
        The paper and its released code, which reflects by the conjugate of v: that only renames the parameter. With
        its decoder, which reads all 2N outputs, the cell has 16 394 parameters for pixel MNIST at N = 512; the "9K" of
        a later table does not count this model.
    """

    orthogonal = ("phases", "reflections")

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: ComplexNonlinearity = "softshrink") -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        self.phases = empty_parameter(3, hidden_size)
        self.reflections = empty_parameter(2, 2 * hidden_size)
        # Drawn once and not trained: a buffer, so that it is stored with the weights.
        self.permutation: Tensor
        self.register_buffer("permutation", torch.empty(hidden_size, dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.uniform_(self.phases, -math.pi, math.pi)
        nn.init.xavier_uniform_(self.reflections)
        self.permutation.copy_(torch.randperm(self.hidden_size))

    def structured_product(self) -> StructuredProduct:
        normals = torch.complex(*self.reflections.chunk(2, dim=1))
        return FourierProduct(self.phases, normals, self.permutation)

    def complex_matrix(self) -> Tensor:
        d1, d2, d3 = phase(self.phases)
        v1, v2 = torch.complex(*self.reflections.chunk(2, dim=1))
        # Factor by factor from the right; a diagonal factor scales rows, the Fourier transforms act on columns.
        w: Tensor = torch.fft.fft(torch.diag(d1), dim=0, norm="ortho")
        w = d2[:, None] * reflect(w, v1)[self.permutation]
        w = d3[:, None] * reflect(torch.fft.ifft(w, dim=0, norm="ortho"), v2)
        return w
