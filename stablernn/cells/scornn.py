"""Scaled Cayley orthogonal RNN: Helfrich, Willmott, Ye, "Orthogonal recurrent neural networks with scaled Cayley
transform", ICML 2018."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablernn.cells._base import check_choice, empty_parameter
from stablernn.cells._catalog import register_cell
from stablernn.cells._plain import PlainCell
from stablernn.cells._step_form import Nonlinearity
from stablernn.parametrizations import SKEW_INITS, SkewInit, cayley, initial_skew, skew, skew_size


@register_cell(
    "scornn",
    title="orthogonal matrix as a scaled Cayley transform",
    paper="Helfrich, Willmott, Ye: Orthogonal Recurrent Neural Networks with Scaled Cayley Transform (ICML 2018)",
    year=2018,
    guarantee="orthogonal by construction; non-expansive with softshrink (default), not with positive modReLU biases",
    family="plain",
    equation=(
        "W = (I + A)^-1 (I - A) D, A skew, D = diag(+-1); h <- s(W h + U x), s = modReLU or softshrink with bias b"
    ),
    paper_options={"nonlinearity": "modrelu"},
    paper_source=(
        "the released code's values for pixel-by-pixel MNIST (170 hidden units), training settings included but for "
        "RMSprop's decay, .9 there and .99, torch's default, here. The copy and adding tasks take half of the signs "
        "negative; adding takes Adam for all but A."
    ),
    training={
        "practical": {"lr": 0.01, "orthogonal_lr": 0.002, "schedule": "one-cycle", "epochs": 80, "batch_size": 32},
        "paper": {"lr": 1e-3, "orthogonal_lr": 1e-4, "optimizer": "rmsprop", "epochs": 70, "batch_size": 50},
    },
)
class ScaledCayleyRNNCell(PlainCell):
    r"""An orthogonal recurrent matrix: the Cayley transform of a skew-symmetric one with some columns negated.

    .. math:: h_t = s(W h_{t-1} + U x_t), \quad W = (I + A)^{-1} (I - A) D, \quad A^\top = -A

    In code: the strict upper triangle of A is ``weight_hh``, read row by row; D is diagonal, 1 but for its last
    ``negative_signs`` entries, which are -1, and not trained; U is ``weight_ih``; ``bias`` is the bias of s.

    Guarantee:
        By construction W is orthogonal at every stage of training; D compensates for the Cayley transform, which has no
        eigenvalue -1. With ``softshrink`` (ours) the step is therefore non-expansive: states under one input never move
        apart, and gradients with respect to the state never grow. With ``modrelu`` (the paper's) this holds as long as
        every bias is 0 or less; with a positive one s jumps at zero.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        negative_signs: Number of entries -1 in D, 0 to ``hidden_size``; None for a tenth of the units, as in the paper
            for MNIST. The copy and the adding task have half of them there.
        init: Distribution of the first A: ``cayley`` (the paper's), ``henaff`` or ``haar``; see
            :func:`stablernn.parametrizations.initial_skew`.
        nonlinearity: ``modrelu``, or ``softshrink`` (ours), which is modReLU with the bias ``-|b|`` and therefore
            1-Lipschitz.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = ScaledCayleyRNNCell(input_size=3, hidden_size=20)
        >>> cell.negative_signs
        2

    References:
        The paper's section 3 and its released code: U starts uniform within 0.01, biases at 0 (softshrink's uniform
        within 0.01: a threshold has no gradient at 0). The code multiplies rows, ``h @ W``, and differentiates W by
        hand; autograd gives the same gradient.
    """

    nonlinearities = ("modrelu", "softshrink")
    orthogonal = ("weight_hh",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        negative_signs: int | None = None,
        init: SkewInit = "cayley",
        nonlinearity: Nonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        if negative_signs is not None and not 0 <= negative_signs <= hidden_size:
            raise ValueError(
                f"negative_signs must be from 0 to the {hidden_size} hidden units for {type(self).__name__}, "
                f"got {negative_signs}."
            )
        check_choice(self, "init", init, SKEW_INITS)
        self.negative_signs = hidden_size // 10 if negative_signs is None else negative_signs
        self.init: SkewInit = init
        self.weight_hh = empty_parameter(skew_size(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # As in the released code, in place of the wider draw of the base class.
        nn.init.uniform_(self.weight_ih, -0.01, 0.01)
        with torch.no_grad():
            self.weight_hh.copy_(initial_skew(self.init, self.hidden_size))

    def recurrent_matrix(self) -> Tensor:
        # The diagonal of D, which scales the columns.
        signs = self.weight_hh.new_ones(self.hidden_size)
        signs[self.hidden_size - self.negative_signs :] = -1
        return cayley(skew(self.weight_hh, self.hidden_size)) * signs
