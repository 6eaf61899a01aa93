"""Exponential RNN: Lezcano-Casado, Martinez-Rubio, "Cheap orthogonal constraints in neural networks", ICML 2019; and
its dynamic form, Lezcano-Casado, "Trivializations for gradient-based optimization on manifolds", NeurIPS 2019."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablernn.cells._base import check_at_least, check_choice, empty_parameter
from stablernn.cells._catalog import register_cell
from stablernn.cells._plain import PlainCell, RebasingCell
from stablernn.cells._step_form import Nonlinearity
from stablernn.parametrizations import (
    ORTHOGONAL_MAPS,
    SKEW_INITS,
    OrthogonalMap,
    SkewInit,
    cayley,
    exponential,
    initial_skew,
    nearest_orthogonal,
    skew,
    skew_size,
)

_PAPER_OPTIONS = {"init": "cayley", "nonlinearity": "modrelu"}
_SOURCE = (
    "modReLU, initial values and training settings of the released code for pixel-by-pixel MNIST (170 hidden units). "
    "Its copy task takes init 'henaff' and an lr of 0.0002 with 0.00002 for A"
)
_TRAINING = {
    "practical": {"lr": 0.005, "orthogonal_lr": 0.001, "schedule": "one-cycle", "epochs": 80, "batch_size": 32},
    "paper": {"lr": 7e-4, "orthogonal_lr": 7e-5, "optimizer": "rmsprop", "epochs": 70, "batch_size": 128},
}


class _TrivializedCell(PlainCell):
    """A cell with an orthogonal matrix exp(A) or its Cayley transform, shared by the static and the dynamic form."""

    nonlinearities = ("modrelu", "softshrink")
    orthogonal = ("weight_hh",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit,
        parametrization: OrthogonalMap,
        nonlinearity: Nonlinearity,
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        check_choice(self, "init", init, SKEW_INITS)
        check_choice(self, "parametrization", parametrization, ORTHOGONAL_MAPS)
        self.init: SkewInit = init
        self.parametrization: OrthogonalMap = parametrization
        # The strict upper triangle of A.
        self.weight_hh = empty_parameter(skew_size(hidden_size))

    def reset_parameters(self) -> None:
        # As in the released code: He-normal for U, and no bias other than that of modReLU.
        nn.init.normal_(self.weight_ih, std=(2 / self.input_size) ** 0.5)
        nn.init.uniform_(self.bias, -0.01, 0.01)
        with torch.no_grad():
            self.weight_hh.copy_(initial_skew(self.init, self.hidden_size))

    def rotation(self) -> Tensor:
        """Return exp(A), or the Cayley transform of A, column convention."""
        # Both maps take a skew matrix to an orthogonal one with determinant 1.
        a = skew(self.weight_hh, self.hidden_size)
        return exponential(a) if self.parametrization == "exp" else cayley(a)


@register_cell(
    "exprnn",
    title="orthogonal matrix as the exponential of a skew one",
    paper="Lezcano-Casado, Martinez-Rubio: Cheap Orthogonal Constraints in Neural Networks (ICML 2019)",
    year=2019,
    guarantee="orthogonal by construction; non-expansive with softshrink (default), not with positive modReLU biases",
    family="plain",
    equation="B = exp(A), A skew; h <- s(B h + U x), s = modReLU or softshrink with bias b",
    paper_options=_PAPER_OPTIONS,
    paper_source=_SOURCE,
    training=_TRAINING,
)
class ExpRNNCell(_TrivializedCell):
    r"""An orthogonal recurrent matrix, the exponential of a skew-symmetric one.

    .. math:: h_t = s(B h_{t-1} + U x_t), \quad B = \exp(A), \quad A^\top = -A

    In code: the strict upper triangle of A is ``weight_hh``, read row by row; U is ``weight_ih``; ``bias`` is the bias
    of s.

    Guarantee:
        By construction B is orthogonal, with determinant 1, at every stage of training. With ``softshrink`` (ours)
        the step is therefore non-expansive: states under one input never move apart, and gradients with respect to the
        state never grow. With ``modrelu`` (the paper's) this holds while every bias is 0 or less; with a positive one s
        jumps at zero.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init: Distribution of the initial A: ``henaff`` (the paper's for memory tasks, our default), ``cayley`` (the
            paper's for classification) or ``haar``; see :func:`stablernn.parametrizations.initial_skew`.
        parametrization: ``exp``, or ``cayley`` for :math:`B = (I + A)^{-1}(I - A)`, the code's other mode.
        nonlinearity: ``modrelu``, or ``softshrink`` (ours), which is modReLU with the bias ``-|b|`` and therefore
            1-Lipschitz.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is none of these values.

    Example:
        >>> cell = ExpRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper's section 3 and its released code: U ~ N(0, 2/input_size), b ~ U(-0.01, 0.01), no other bias. The
        code multiplies rows, ``h @ B``, which is this cell with -A. With exp, too, it uses the initial values of
        ``cayley``, which were designed for the Cayley transform.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit = "henaff",
        parametrization: OrthogonalMap = "exp",
        nonlinearity: Nonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, init=init, parametrization=parametrization, nonlinearity=nonlinearity)
        self.reset_parameters()

    def recurrent_matrix(self) -> Tensor:
        return self.rotation()


@register_cell(
    "dtriv",
    title="exponential RNN about a base that moves",
    paper="Lezcano-Casado: Trivializations for Gradient-Based Optimization on Manifolds (NeurIPS 2019)",
    year=2019,
    guarantee="orthogonal by construction; non-expansive with softshrink (default), not with positive modReLU biases",
    family="plain",
    equation=(
        "B = B_0 exp(A), A skew; every 'rebase' optimizer steps B_0 <- B, A <- 0; "
        "h <- s(B h + U x), s = modReLU or softshrink with bias b"
    ),
    paper_options=_PAPER_OPTIONS,
    paper_source=_SOURCE,
    training=_TRAINING,
)
class DynamicTrivializationRNNCell(RebasingCell, _TrivializedCell):
    r"""The exponential RNN about a base point that follows the matrix in training.

    .. math:: h_t = s(B h_{t-1} + U x_t), \quad B = B_0 \exp(A), \quad A^\top = -A

    Names are those of :class:`ExpRNNCell`; :math:`B_0` is ``base``, which is not trained. A starts at 0. Every
    ``rebase`` optimizer steps :math:`B_0 \leftarrow B` and :math:`A \leftarrow 0`, which does not change B: A stays
    small, where the exponential distorts distances least.

    Guarantee:
        That of :class:`ExpRNNCell`. The step uses the orthogonal matrix nearest to the base, so that rounding errors do
        not accumulate over many rebases.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init: Distribution of the skew matrix whose exponential is the initial base: ``henaff``, ``cayley`` or ``haar``.
        parametrization: ``exp``, or ``cayley`` for :math:`B = B_0 (I + A)^{-1}(I - A)`.
        rebase: Optimizer steps from one change of the base to the next, K in the paper; 0 never changes it.
        project: Number of rebases after which the base is replaced by the orthogonal matrix nearest to it, M in the
            code; 0 never replaces it.
        nonlinearity: ``modrelu``, or ``softshrink`` (ours), which is modReLU with the bias ``-|b|`` and therefore
            1-Lipschitz.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    References:
        The paper's dynamic trivializations and its released code, whose initial values are those of
        :class:`ExpRNNCell` and whose K and M are 100. The code counts forward passes, so that its first rebase
        is one step earlier. As there, the optimizer keeps its moments over a rebase.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit = "henaff",
        parametrization: OrthogonalMap = "exp",
        rebase: int = 100,
        project: int = 100,
        nonlinearity: Nonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, init=init, parametrization=parametrization, nonlinearity=nonlinearity)
        check_at_least(self, 0, rebase=rebase, project=project)
        self.rebase = rebase
        self.project = project
        self.base: Tensor
        self.rebases: Tensor
        # Buffers, so that checkpoints hold the base and the count.
        self.register_buffer("base", torch.empty(hidden_size, hidden_size))
        self.register_buffer("rebases", torch.zeros((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            # The initial matrix of the static form becomes the base.
            self.base.copy_(self.rotation())
            self.weight_hh.zero_()
            self.rebases.zero_()

    def base_matrix(self) -> Tensor:
        """Return the base B_0, orthogonal, column convention."""
        return nearest_orthogonal(self.base)

    def recurrent_matrix(self) -> Tensor:
        return self.base_matrix() @ self.rotation()

    def move_base(self) -> None:
        self.base.copy_(self.recurrent_matrix())
        self.weight_hh.zero_()
        self.rebases += 1
        if self.project and int(self.rebases) % self.project == 0:
            # The orthogonal factor of the polar decomposition is the nearest orthogonal matrix.
            left, _, right = torch.linalg.svd(self.base)
            self.base.copy_(left @ right)
