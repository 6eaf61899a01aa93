"""Full-capacity unitary RNN: Wisdom et al., "Full-capacity unitary recurrent neural networks", NeurIPS 2016."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablernn.cells._base import check_at_least, check_choice, empty_parameter
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._complex import ComplexNonlinearity, StartedComplexCell
from stablernn.cells._plain import RebasingCell
from stablernn.cells.urnn import UnitaryEvolutionRNNCell
from stablernn.parametrizations import (
    ORTHOGONAL_MAPS,
    OrthogonalMap,
    cayley,
    exponential,
    nearest_orthogonal,
    skew_hermitian,
)


@register_cell(
    "fc_urnn",
    title="full-capacity unitary RNN",
    paper=("Wisdom, Powers, Hershey, Le Roux, Atlas: Full-Capacity Unitary Recurrent Neural Networks (NeurIPS 2016)"),
    year=2016,
    guarantee="unitary by construction; non-expansive with softshrink (the default), not with positive modReLU biases",
    family="plain",
    equation=(
        "W = exp(A) B or (I + A/2)^-1 (I - A/2) B on complex units, A skew-Hermitian, B a unitary base; "
        "h <- f(W h + V x), f = modReLU or softshrink with bias b, h_0 trained"
    ),
    paper_options={"parametrization": "cayley", "rebase": 1, "nonlinearity": "modrelu"},
    paper_source=(
        "the released code's settings for pixel MNIST (116 units; its lr for 512 is 0.0001). The code divides the "
        "gradient of W by RMSprop's denominator entry by entry before it is made skew-Hermitian, ours afterwards"
    ),
    training={
        "practical": practical(0.005, 80),
        "paper": {"lr": 0.001, "orthogonal_lr": 1e-6, "optimizer": "rmsprop", "epochs": 200, "batch_size": 50},
    },
)
class FullCapacityUnitaryRNNCell(RebasingCell, StartedComplexCell):
    r"""An arbitrary unitary matrix, trained along the unitary group.

    .. math:: h_t = f(W h_{t-1} + V x_t), \quad W = \exp(A) B \;\text{ or }\; (I + \tfrac12 A)^{-1} (I - \tfrac12 A) B,
        \quad A^H = -A, \quad f(z) = \frac{z}{|z| + 10^{-5}} \max(|z| + b, 0)

    In code: A is built from ``weight_hh``, as many real numbers as the unitary group has dimensions
    (:func:`stablernn.parametrizations.skew_hermitian`), initially 0; the base B is ``base``, complex as [Re | Im],
    not trained, initially a random matrix of :class:`UnitaryEvolutionRNNCell`; V is ``weight_ih`` as [Re | Im], b is
    ``bias``, the trained :math:`h_0` is ``hidden_0``; :math:`|z|` is :math:`\sqrt{re^2 + im^2 + 10^{-10}}`.

    Every ``rebase`` optimizer steps B becomes W and A becomes 0. ``cayley`` with ``rebase=1`` is then the paper's
    step: gradient descent with rate l on ``weight_hh`` replaces W by
    :math:`(I + \tfrac{l}{2} P)^{-1} (I - \tfrac{l}{2} P) W`, where :math:`P = G W^H - W G^H` for the gradient G of W.

    Guarantee:
        W is unitary by construction. The step uses the unitary matrix nearest to the base, so that rounding errors do
        not accumulate over many rebases. With ``softshrink`` (ours, the default) the step is non-expansive: no two
        states move apart under one input. With ``modrelu`` (the paper's) this holds only while no bias is positive.

    Args:
        input_size: Features per time step.
        hidden_size: Complex units.
        parametrization: ``exp``, which reaches every unitary matrix (ours), or ``cayley`` (the paper's step).
        rebase: Optimizer steps from one change of the base to the next; 0 never changes it. The paper's step is 1.
        nonlinearity: ``modrelu`` (the paper's) or ``softshrink`` (ours), which is modReLU with the bias ``-|b|``.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden, ``(batch, 2 hidden_size)`` as [Re | Im], and started, ``(batch, 1)``: 0 before the first step,
          which uses ``hidden_0`` in place of hidden, 1 after it; zeros when omitted
        - output: the next state, same shapes and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = FullCapacityUnitaryRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).hidden.shape
        torch.Size([2, 16])

    References:
        The paper and its released code, whose input, h_0 and bias are those of the unitary evolution RNN. The code
        has :math:`10^{-5}` under the root of :math:`|z|`, by which zero has the modulus .003; here it is
        :math:`10^{-10}`, as in the other complex cells.
    """

    orthogonal = ("weight_hh",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        parametrization: OrthogonalMap = "exp",
        rebase: int = 0,
        nonlinearity: ComplexNonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        check_choice(self, "parametrization", parametrization, ORTHOGONAL_MAPS)
        check_at_least(self, 0, rebase=rebase)
        self.parametrization: OrthogonalMap = parametrization
        self.rebase = rebase
        # N^2 real numbers, the dimension of the unitary group U(N).
        self.weight_hh = empty_parameter(hidden_size, hidden_size)
        # (hidden, 2 hidden): [Re | Im]
        self.base: Tensor
        self.register_buffer("base", torch.empty(hidden_size, 2 * hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.weight_hh)
        initial = UnitaryEvolutionRNNCell(self.input_size, self.hidden_size).double()
        with torch.no_grad():
            self._set_base(initial.complex_matrix())

    def base_matrix(self) -> Tensor:
        """Return the base B, ``(hidden_size, hidden_size)`` complex and unitary, column convention."""
        return nearest_orthogonal(torch.complex(*self.base.chunk(2, dim=1)))

    def complex_matrix(self) -> Tensor:
        generator = skew_hermitian(self.weight_hh)
        # Halved, since cayley(A / 2) is the paper's (I + A/2)^-1 (I - A/2).
        rotation = exponential(generator) if self.parametrization == "exp" else cayley(generator / 2)
        return rotation @ self.base_matrix()

    def move_base(self) -> None:
        self._set_base(self.complex_matrix())
        self.weight_hh.zero_()

    def _set_base(self, w: Tensor) -> None:
        self.base.copy_(torch.cat([w.real, w.imag], dim=1))
