"""Exponential RNN: Lezcano-Casado, Martinez-Rubio, "Cheap orthogonal constraints in neural networks", ICML 2019; and
its dynamic form, Lezcano-Casado, "Trivializations for gradient-based optimization on manifolds", NeurIPS 2019."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from stablernn.cells._base import check_choice
from stablernn.cells._catalog import register_cell
from stablernn.cells._plain import Nonlinearity, PlainCell
from stablernn.parametrizations import SKEW_INITS, SkewInit, cayley, exponential, initial_skew, skew, skew_size

_PAPER_OPTIONS = {"init": "cayley", "nonlinearity": "modrelu"}
_SOURCE = (
    "modReLU, initial values and training settings of the released code for pixel-by-pixel MNIST (170 hidden units). "
    "Its copy task takes init 'henaff' and an lr of 0.0002 with 0.00002 for A"
)
_TRAINING = {
    "practical": {"lr": 0.005, "orthogonal_lr": 0.001, "schedule": "one-cycle", "epochs": 80, "batch_size": 32},
    "paper": {"lr": 7e-4, "orthogonal_lr": 7e-5, "optimizer": "rmsprop", "epochs": 70, "batch_size": 128},
}

Parametrization = Literal["exp", "cayley"]


class _TrivializedCell(PlainCell):
    """Parameters and first values that the static and the dynamic form share."""

    nonlinearities = ("modrelu", "softshrink")
    orthogonal = ("weight_hh",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit,
        parametrization: Parametrization,
        nonlinearity: Nonlinearity,
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        check_choice(self, "init", init, SKEW_INITS)
        check_choice(self, "parametrization", parametrization, ("exp", "cayley"))
        self.init: SkewInit = init
        self.parametrization: Parametrization = parametrization
        self.weight_hh = nn.Parameter(torch.empty(skew_size(hidden_size)))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight_ih, std=(2 / self.input_size) ** 0.5)
        nn.init.uniform_(self.bias, -0.01, 0.01)
        with torch.no_grad():
            self.weight_hh.copy_(initial_skew(self.init, self.hidden_size))

    def rotation(self) -> Tensor:
        """exp(A), or its Cayley transform, column convention."""
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
        the step is therefore non-expansive: states under one input never move apart, and gradients by the state never
        grow. With ``modrelu`` (the paper's) this holds where every bias is 0 or less, and ends with the first positive
        one, at which s jumps at zero.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init: Distribution of the first A: ``henaff`` (the paper's for memory tasks, our default), ``cayley`` (the
            paper's for classification) or ``haar``; see :func:`stablernn.parametrizations.initial_skew`.
        parametrization: ``exp``, or ``cayley`` for :math:`B = (I + A)^{-1}(I - A)`, the code's other mode.
        nonlinearity: ``modrelu``, or ``softshrink`` (ours), which is modReLU with the bias ``-|b|`` and therefore
            1-Lipschitz.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is none of the words above.

    Example:
        >>> cell = ExpRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper's section 3 and its released code: U ~ N(0, 2/input_size), b ~ U(-0.01, 0.01), no other bias. The
        code multiplies rows, ``h @ B``, which is this with -A. It uses the initial values of ``cayley``, made for the
        Cayley transform, with exp as well.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit = "henaff",
        parametrization: Parametrization = "exp",
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
class DynamicTrivializationRNNCell(_TrivializedCell):
    r"""The exponential RNN with its exponential taken about a base point, which follows the matrix as it trains.

    .. math:: h_t = s(B h_{t-1} + U x_t), \quad B = B_0 \exp(A), \quad A^\top = -A

    Names are those of :class:`ExpRNNCell`; :math:`B_0` is ``base``, which is not trained. At the start A is 0. Every
    ``rebase`` optimizer steps :math:`B_0 \leftarrow B` and :math:`A \leftarrow 0`, which leaves B as it is: A stays
    small, where the exponential distorts distances least.

    Guarantee:
        That of :class:`ExpRNNCell`. So that rounding does not add up over many rebases, what is used of the base is
        the orthogonal matrix nearest to it.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init: Distribution of the skew matrix whose exponential is the first base: ``henaff``, ``cayley`` or ``haar``.
        parametrization: ``exp``, or ``cayley`` for :math:`B = B_0 (I + A)^{-1}(I - A)`.
        rebase: Optimizer steps from one change of the base to the next, K in the paper; 0 never changes it.
        project: After how many rebases the base is replaced by the orthogonal matrix nearest to it, M in the code; 0
            never does.
        nonlinearity: ``modrelu``, or ``softshrink`` (ours), which is modReLU with the bias ``-|b|`` and therefore
            1-Lipschitz.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    References:
        The paper's dynamic trivializations and its released code, whose first values are those of
        :class:`ExpRNNCell` and whose K and M are 100. The code counts the forward passes, so that its first rebase
        comes one step earlier. As there, the optimizer keeps its moments over a rebase.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit = "henaff",
        parametrization: Parametrization = "exp",
        rebase: int = 100,
        project: int = 100,
        nonlinearity: Nonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, init=init, parametrization=parametrization, nonlinearity=nonlinearity)
        for name, count in (("rebase", rebase), ("project", project)):
            if count < 0:
                raise ValueError(f"{name} must be 0 or more for {type(self).__name__}, got {count}.")
        self.rebase = rebase
        self.project = project
        self.base: Tensor
        self.rebases: Tensor
        self.register_buffer("base", torch.empty(hidden_size, hidden_size))
        self.register_buffer("rebases", torch.zeros((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.base.copy_(self.rotation())
            self.weight_hh.zero_()
            self.rebases.zero_()

    def base_matrix(self) -> Tensor:
        """The base B_0, orthogonal, column convention."""
        # One step of Newton's method for the nearest orthogonal matrix, which takes an error of 1e-6 to 1e-12.
        return 1.5 * self.base - 0.5 * self.base @ (self.base.T @ self.base)

    def recurrent_matrix(self) -> Tensor:
        return self.base_matrix() @ self.rotation()

    def missed_schedule(self) -> str | None:
        if not self.rebase or self._passes_since_schedule < self.rebase:
            return None
        return f"have moved the base of the recurrent matrix every {self.rebase} steps"

    def after_step(self, step: int, total_steps: int) -> None:
        super().after_step(step, total_steps)
        if not self.rebase or step % self.rebase:
            return
        self.base.copy_(self.recurrent_matrix())
        self.weight_hh.zero_()
        self.rebases += 1
        if self.project and int(self.rebases) % self.project == 0:
            left, _, right = torch.linalg.svd(self.base)
            self.base.copy_(left @ right)
