"""Full-capacity unitary RNN (Wisdom, Powers, Hershey, Le Roux, Atlas, NeurIPS 2016), in complex numbers.

    A   skew-Hermitian, A^H = -A
    W   = f(A) B_0,  B_0 a fixed unitary matrix
    f   = exp(A), or the paper's (I + A/2)^{-1} (I - A/2)
    h_t = modReLU(W h_{t-1} + V x_t), modReLU and the trained h_0 as in urnn.py

The paper multiplies W by the second f at A = l (G W^H - W G^H), with G the gradient and l the learning rate: with B_0
moved to W after each step, that is a gradient step on A from 0. exp covers the same manifold. Vectors are columns in
the formula; a batch holds one state per row, so ``W h`` reads ``h @ W.T`` (a transpose, never a conjugate transpose).
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import cayley, exponential, skew_hermitian
from reference.urnn import unitary_sequence


def recurrent_matrix(params: dict[str, Tensor], parametrization: str) -> Tensor:
    """W (N, N) complex, of S, Y, B0_re and B0_im (N, N)."""
    A = skew_hermitian(params["S"], params["Y"])
    assert parametrization in ("exp", "cayley")
    step = exponential(A) if parametrization == "exp" else cayley(A / 2)
    return step @ torch.complex(params["B0_re"], params["B0_im"])


def sequence(
    params: dict[str, Tensor], x: Tensor, hidden0: Tensor, started0: Tensor, *, parametrization: str = "exp"
) -> tuple[Tensor, Tensor]:
    """All states [Re | Im] (B, T, 2N) of x (B, T, m), and the marks (B, T, 1) that a sequence has started.

    With S (N, N), of which the entries above the diagonal count: they are Re A there; Y (N, N), of which those above
    and on the diagonal count: they are Im A there; B0_re, B0_im (N, N); V_re, V_im (N, m); b, h0_re, h0_im (N).
    hidden0 is (B, 2N), started0 (B, 1): where it is 0, h_0 replaces the row of hidden0.
    """
    return unitary_sequence(recurrent_matrix(params, parametrization), params, x, hidden0, started0)
