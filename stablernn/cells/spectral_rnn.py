"""Spectral RNN: Zhang, Lei, Dhillon, "Stabilizing gradients for deep neural networks via efficient SVD
parameterization", ICML 2018."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablernn.cells._base import check_not_negative, empty_parameter
from stablernn.cells._catalog import register_cell
from stablernn.cells._plain import PlainCell
from stablernn.cells._step_form import Nonlinearity
from stablernn.parametrizations import reflections


@register_cell(
    "spectral_rnn",
    title="singular values near 1, singular vectors by reflections",
    paper=(
        "Zhang, Lei, Dhillon: Stabilizing Gradients for Deep Neural Networks via Efficient SVD Parameterization "
        "(ICML 2018)"
    ),
    year=2018,
    guarantee="singular values within 1 +- margin by construction, so a step expands by at most 1 + margin (relu)",
    family="plain",
    equation=(
        "W = H(u_0) .. H(u_n) diag(s) H(v_n) .. H(v_0), H reflections, s = 1 + 2 margin (sigmoid(p) - 1/2); "
        "h <- f(W h + M x + b), f = relu, tanh, modReLU or softshrink"
    ),
    paper_options={"num_reflections": None, "margin": 0.01, "nonlinearity": "relu"},
    paper_source=(
        "the released code's defaults and the training settings of its example (the adding task, 128 hidden units and "
        "16 reflections). Its lr falls by a hundredth each epoch"
    ),
    training={
        "practical": {"lr": 0.005, "orthogonal_lr": 0.001, "schedule": "one-cycle", "epochs": 80, "batch_size": 32},
        "paper": {
            "lr": 0.001,
            "orthogonal_lr": 0.001,
            "optimizer": "adam",
            "schedule": "step",
            "step_epochs": 1,
            "lr_decay": 0.99,
            "epochs": 100,
            "batch_size": 128,
        },
    },
)
class SpectralRNNCell(PlainCell):
    r"""A recurrent matrix by its singular value decomposition, whose orthogonal factors are products of reflections.

    .. math:: h_t = f(W h_{t-1} + M x_t + b), \quad
        W = H(u_0) \cdots H(u_{n-1})\, \mathrm{diag}(s)\, H(v_{n-1}) \cdots H(v_0), \quad
        H(u) = I - 2 \frac{u u^\top}{u^\top u}, \quad s = 1 + 2 r (\sigma(p) - \tfrac12)

    In code: :math:`u_k` and :math:`v_k` are row k of ``weight_left`` and ``weight_right``; they act on the last
    ``hidden_size - k`` units, so that the first k entries do not count. n is ``num_reflections``, p is ``spectrum``,
    r is ``margin``, M is ``weight_ih``, b is ``bias``. After each optimizer step the vectors are masked and normalized,
    which changes nothing but the size of their next steps.

    Guarantee:
        By construction every singular value of W is within ``margin`` of 1. relu, tanh and softshrink are 1-Lipschitz,
        so with them a step drives states apart by a factor of at most 1 + margin; modReLU with a positive bias jumps.
        With fewer reflections than units W cannot be every such matrix.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        num_reflections: Vectors on each side, 1 to ``hidden_size``; None for a quarter of the units.
        margin: r, the largest distance of a singular value from 1, 0 or more.
        nonlinearity: ``relu`` (the paper's), ``tanh`` or ``modrelu``, or ``softshrink`` (ours), which is modReLU with
            the bias ``-|b|``.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = SpectralRNNCell(input_size=3, hidden_size=8)
        >>> cell.num_reflections
        2

    References:
        The paper and its released code: vectors and M Glorot-uniform, p and b at 0. The code applies one reflection
        after the other to the state in each step; here their product is formed once a sequence.
    """

    orthogonal = ("weight_left", "weight_right")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_reflections: int | None = None,
        margin: float = 0.01,
        nonlinearity: Nonlinearity = "relu",
    ) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        # A quarter of the units is the released code's default.
        count = max(1, hidden_size // 4) if num_reflections is None else num_reflections
        if not 1 <= count <= hidden_size:
            raise ValueError(
                f"num_reflections must be from 1 to the {hidden_size} hidden units for {type(self).__name__}, "
                f"got {count}."
            )
        check_not_negative(self, margin=margin)
        self.num_reflections = count
        self.margin = margin
        self.weight_left = empty_parameter(count, hidden_size)
        self.weight_right = empty_parameter(count, hidden_size)
        self.spectrum = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for weight in (self.weight_left, self.weight_right, self.weight_ih):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.spectrum)
        # Masks and normalizes the vectors just drawn.
        with torch.no_grad():
            self.after_step(0, 0)

    def singular_values(self) -> Tensor:
        """Return the singular values of W, (hidden,), in the order of ``spectrum``."""
        return 1 + 2 * self.margin * (torch.sigmoid(self.spectrum) - 0.5)

    def recurrent_matrix(self) -> Tensor:
        return (reflections(self.weight_left) * self.singular_values()) @ reflections(self.weight_right).T

    def after_step(self, step: int, total_steps: int) -> None:
        # Row k acts on the last hidden_size - k units: the upper triangle.
        for weight in (self.weight_left, self.weight_right):
            weight.copy_(nn.functional.normalize(torch.triu(weight), dim=1))
