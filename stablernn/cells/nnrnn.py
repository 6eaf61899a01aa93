"""Non-normal RNN: Kerg, Goyette, Puelma Touzel, Gidel, Vorontsov, Bengio, Lajoie, "Non-normal recurrent neural network
(nnRNN): learning long time dependencies while improving expressivity with transient dynamics", NeurIPS 2019."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablernn.cells._base import check_choice, check_not_negative, empty_parameter
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells._plain import PlainCell
from stablernn.cells._step_form import Nonlinearity
from stablernn.parametrizations import SKEW_INITS, SkewInit, exponential, initial_skew, skew, skew_size


@register_cell(
    "nnrnn",
    title="Schur form with rotations and a free upper triangle",
    paper=(
        "Kerg, Goyette, Puelma Touzel, Gidel, Vorontsov, Bengio, Lajoie: Non-normal Recurrent Neural Network (nnRNN): "
        "Learning Long Time Dependencies while Improving Expressivity with Transient Dynamics (NeurIPS 2019)"
    ),
    year=2019,
    guarantee="eigenvalue moduli are as parametrized, pulled to 1 by a penalty; no bound on growth: V is not normal",
    family="plain",
    equation=(
        "V = P (L + T) P^T, P = exp(A), A skew, L = blockdiag(g rot(t)), T strictly upper outside the blocks; "
        "h <- s(V h + U x), s = modReLU or softshrink with bias b"
    ),
    paper_options={"nonlinearity": "modrelu"},
    paper_source=(
        "the copy task's values in the released code, training settings included (128 hidden units). Its permuted "
        "MNIST takes gain_penalty 0.1, upper_penalty 0.0001, an lr of 0.0002 with 0.00002 for A"
    ),
    training={
        "practical": practical(0.005, 80),
        "paper": {"lr": 5e-4, "orthogonal_lr": 1e-6, "optimizer": "rmsprop", "batch_size": 10},
    },
)
class NonNormalRNNCell(PlainCell):
    r"""A recurrent matrix in Schur form: an orthogonal basis, plane rotations, and couplings between the planes.

    .. math:: h_t = s(V h_{t-1} + U x_t), \quad V = P (\Lambda + T) P^\top, \quad P = \exp(A), \quad A^\top = -A

    :math:`\Lambda` has the blocks :math:`\gamma_k \begin{bmatrix} \cos\theta_k & -\sin\theta_k \\ \sin\theta_k &
    \cos\theta_k \end{bmatrix}` and for odd sizes a last entry :math:`\gamma`; T is strictly upper triangular and zero
    inside these blocks.

    In code: the strict upper triangle of A is ``weight_hh``, read row by row; :math:`\gamma` is ``gain`` and
    :math:`\theta` is ``phase``; the entries of T above the blocks are ``weight_upper``, read row by row; U is
    ``weight_ih``; ``bias`` is the bias of s.

    Guarantee:
        By construction the eigenvalues of V are :math:`\gamma_k e^{\pm i \theta_k}`, whatever T is; the penalty
        :math:`\delta \sum_k (\gamma_k - 1)^2` pulls their moduli to 1. This bounds no norm: with T the matrix is not
        normal, ``||V||`` is unbounded, and states can grow for many steps even if every modulus is below one.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        init: Distribution of the first A: ``cayley`` (the paper's), ``henaff`` or ``haar``; see
            :func:`stablernn.parametrizations.initial_skew`.
        gain_penalty: :math:`\delta` of the penalty on the moduli, 0 or more.
        upper_penalty: Weight decay of T, 0 or more: half of this times ``||T||^2`` is added to the loss.
        nonlinearity: ``modrelu`` (the paper's), or ``softshrink`` (ours), which is modReLU with the bias ``-|b|``.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = NonNormalRNNCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3)).shape
        torch.Size([2, 8])

    References:
        The paper's section 3 and its released code: gains start at 1, angles uniform on (0, 2 pi), T at 0, U
        Glorot-normal, b ~ U(-0.01, 0.01). The code's T is also free inside the blocks, which loses the guarantee above:
        angle 1 and an entry 0.5 give a modulus of 0.761. Here it is zero there, as in the paper, which is one parameter
        less for each two units. Odd sizes are ours; the code takes even ones. Its weight decay on T is a penalty here,
        so that it acts under every optimizer.
    """

    nonlinearities = ("modrelu", "softshrink")
    orthogonal = ("weight_hh",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        init: SkewInit = "cayley",
        gain_penalty: float = 1e-4,
        upper_penalty: float = 1e-6,
        nonlinearity: Nonlinearity = "softshrink",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        check_choice(self, "init", init, SKEW_INITS)
        check_not_negative(self, gain_penalty=gain_penalty, upper_penalty=upper_penalty)
        self.init: SkewInit = init
        self.gain_penalty = gain_penalty
        self.upper_penalty = upper_penalty
        # An odd size has one unit outside the blocks: it has a gain, but no phase.
        pairs = hidden_size // 2
        self.weight_hh = empty_parameter(skew_size(hidden_size))
        self.weight_upper = empty_parameter(skew_size(hidden_size) - pairs)
        self.gain = empty_parameter(hidden_size - pairs)
        self.phase = empty_parameter(pairs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight_hh.copy_(initial_skew(self.init, self.hidden_size))
            self.weight_upper.zero_()
            self.gain.fill_(1)
            self.phase.uniform_(0, 2 * torch.pi)
        nn.init.xavier_normal_(self.weight_ih)
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def schur_form(self) -> Tensor:
        """Return Lambda + T, (hidden, hidden)."""
        size, pairs = self.hidden_size, self.hidden_size // 2
        rows, columns = torch.triu_indices(size, size, offset=1, device=self.gain.device)
        # T is zero inside the 2 x 2 blocks, so that it leaves the eigenvalues alone.
        is_off_block = rows // 2 != columns // 2
        # First index of each block, and that of the unit of an odd size that is in none.
        first = torch.arange(0, 2 * pairs, 2, device=self.gain.device)
        last = torch.arange(2 * pairs, size, device=self.gain.device)
        cosines, sines = self.gain[:pairs] * torch.cos(self.phase), self.gain[:pairs] * torch.sin(self.phase)
        rows = torch.cat([rows[is_off_block], first, first + 1, first + 1, first, last])
        columns = torch.cat([columns[is_off_block], first, first + 1, first, first + 1, last])
        values = torch.cat([self.weight_upper, cosines, cosines, sines, -sines, self.gain[pairs:]])
        return values.new_zeros(size, size).index_put((rows, columns), values)

    def recurrent_matrix(self) -> Tensor:
        p = exponential(skew(self.weight_hh, self.hidden_size))
        return p @ self.schur_form() @ p.T

    def penalty(self) -> Tensor | None:
        gains, upper = (self.gain - 1).square().sum(), self.weight_upper.square().sum()
        return self.gain_penalty * gains + self.upper_penalty / 2 * upper
