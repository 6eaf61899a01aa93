"""RNN that starts orthogonal: Henaff, Szlam, LeCun, "Recurrent orthogonal networks and long-memory tasks", ICML
2016."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablernn.cells._base import check_choice, empty_parameter
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._plain import PlainCell
from stablernn.cells._step_form import Nonlinearity
from stablernn.parametrizations import SKEW_INITS, SkewInit, exponential, initial_skew, skew


@register_cell(
    "rnn_orth",
    title="Elman RNN that starts orthogonal",
    paper="Henaff, Szlam, LeCun: Recurrent Orthogonal Networks and Long-Memory Tasks (ICML 2016)",
    year=2016,
    guarantee="none once it trains: W is orthogonal at the start and free afterwards",
    family="plain",
    equation=(
        "W_0 = exp(A_0), A_0 skew, W free; h <- s(W h + U x), "
        "s = tanh(. + b), relu(. + b), modReLU or softshrink with bias b"
    ),
    paper_options={"nonlinearity": "modrelu"},
    paper_source=(
        "the non-normal RNN's code, which compares with this cell on permuted MNIST (512 hidden units): init 'henaff', "
        "modReLU, epochs and batch size are its defaults, the lr is that of its table of results. Those results have "
        "another start, random orthogonal (init 'haar'), as for the copy task; for text the table has init 'cayley'"
    ),
    training={
        "practical": practical(0.002, 80),
        "paper": {"lr": 5e-5, "optimizer": "rmsprop", "epochs": 100, "batch_size": 100},
    },
)
class OrthogonalStartRNNCell(PlainCell):
    r"""The plain recurrence with a matrix that starts orthogonal and trains freely.

    .. math:: h_t = s(W h_{t-1} + U x_t), \quad W_0 = \exp(A_0), \quad A_0^\top = -A_0

    In code: W is ``weight_hh``, U is ``weight_ih``, ``bias`` is the bias of s.

    Guarantee:
        W is orthogonal at initialization only: in training gradients can come to vanish or explode. With ``tanh`` every
        coordinate of the state lies within 1; with the other nonlinearities the state has no bound.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init: Distribution of :math:`A_0`: ``henaff``, ``cayley`` or ``haar``; see
            :func:`stablernn.parametrizations.initial_skew`.
        nonlinearity: ``modrelu`` (as in the non-normal RNN's runs), ``tanh`` or ``relu``, or ``softshrink`` (ours),
            which is modReLU with the bias ``-|b|`` and has no jump.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is none of the values above.

    Example:
        >>> cell = OrthogonalStartRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper, as implemented in the non-normal RNN's code: U Glorot-normal, b ~ U(-0.01, 0.01). That code draws the
        angles of ``henaff`` from U(-pi, 0), here from U(-pi, pi), as in the code of the exponential RNN; with modReLU
        it has a second bias on U, which the published parameter count leaves out, as does this cell.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit = "henaff",
        nonlinearity: Nonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        check_choice(self, "init", init, SKEW_INITS)
        self.init: SkewInit = init
        self.weight_hh = empty_parameter(hidden_size, hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            # W_0 = exp(A_0), the only use of A_0.
            self.weight_hh.copy_(exponential(skew(initial_skew(self.init, self.hidden_size), self.hidden_size)))
        # As in the non-normal RNN's code.
        nn.init.xavier_normal_(self.weight_ih)
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def recurrent_matrix(self) -> Tensor:
        return self.weight_hh
