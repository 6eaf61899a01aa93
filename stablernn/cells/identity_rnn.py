"""IRNN: Le, Jaitly, Hinton, "A simple way to initialize recurrent networks of rectified linear units", 2015."""

from __future__ import annotations

from torch import Tensor, nn

from stablernn.cells._base import check_not_negative, empty_parameter
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._plain import PlainCell


@register_cell(
    "identity_rnn",
    title="ReLU RNN started at the identity (IRNN)",
    paper="Le, Jaitly, Hinton: A Simple Way to Initialize Recurrent Networks of Rectified Linear Units (arXiv 2015)",
    year=2015,
    guarantee="non-expansive at the start only; training does not keep it",
    family="plain",
    equation="h <- relu(W h + U x + b), at the start W = I and b = 0",
    paper_options={"init_scale": 0.001},
    paper_source=(
        "the paper's start, and its stochastic gradient descent with clipped gradients; lr, batch_size and clip_norm "
        "are our choice (the paper searches lr and clip_norm for each task)."
    ),
    training={
        "practical": practical(0.003),
        "paper": {"lr": 0.01, "optimizer": "sgd", "batch_size": 16, "clip_norm": 1.0},
    },
)
class IdentityRNNCell(PlainCell):
    r"""The plain recurrence with rectified units, which initially copies its state and adds the input.

    .. math:: h_t = \operatorname{relu}(W h_{t-1} + U x_t + b), \quad W_0 = I, \; b_0 = 0

    In code: W is ``weight_hh``, U is ``weight_ih``, b is ``bias``. "iRNN" with a small i is another cell,
    ``incremental``.

    Guarantee:
        Initially only: with W = I a step drives no two states apart. Training changes W freely, and a relu bounds
        nothing: if the largest singular value of W exceeds 1, the state can grow without limit.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init_scale: Standard deviation of the initial entries of U, 0 or more. The default is ours, the paper's is
            0.001.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``init_scale`` is negative.

    Example:
        >>> cell = IdentityRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper. Equal to ``torch.nn.RNN`` with ``nonlinearity="relu"`` and its second bias at zero.
    """

    def __init__(self, input_size: int, hidden_size: int, *, init_scale: float = 0.3) -> None:
        super().__init__(input_size, hidden_size, nonlinearity="relu")
        check_not_negative(self, init_scale=init_scale)
        self.init_scale = init_scale
        self.weight_hh = empty_parameter(hidden_size, hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # The paper's W = I and b = 0; its U is Gaussian, too, with a standard deviation of 0.001.
        nn.init.eye_(self.weight_hh)
        nn.init.normal_(self.weight_ih, std=self.init_scale)
        nn.init.zeros_(self.bias)

    def recurrent_matrix(self) -> Tensor:
        return self.weight_hh
