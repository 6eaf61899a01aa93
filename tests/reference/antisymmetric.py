"""AntisymmetricRNN (Chang, Chen, Haber, Chi, ICLR 2019; eq. 8 in the slides of January 2020).

    K = Wh - Wh^T - gamma I,  Wh strictly upper triangular
    h_t = h_{t-1} + eps tanh(K h_{t-1} + V x_t + b)

The slides index the input t-1 in eq. 8 and t in eq. 6; the paper has x_t, which is used here. A step of
irregular length takes eps dt. Vectors are columns in the formula; a batch holds one state per row, so ``K h`` reads
``h @ K.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import step_length


def recurrent_matrix(params: dict[str, Tensor], gamma: float) -> Tensor:
    """K (N, N); only the entries of Wh (N, N) above the diagonal count."""
    upper = torch.triu(params["Wh"], diagonal=1)
    return upper - upper.T - gamma * torch.eye(upper.shape[0], dtype=upper.dtype)


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, *, eps: float, gamma: float, dt: Tensor | None = None
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with Wh (N, N), V (N, m), b (N); optionally dt (B, T)."""
    K, V, b = recurrent_matrix(params, gamma), params["V"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = h + step_length(eps, dt, t) * torch.tanh(h @ K.T + x[:, t] @ V.T + b)
        states.append(h)
    return torch.stack(states, dim=1)
