"""Gated AntisymmetricRNN (Chang, Chen, Haber, Chi, ICLR 2019, eq. 13; eq. 9 in the slides of January 2020).

    K = Wh - Wh^T - gamma I, shared by gate and candidate,  Wh strictly upper triangular
    z_t = sigmoid(K h_{t-1} + V_z x_t + b_z)
    h_t = h_{t-1} + eps z_t .* tanh(K h_{t-1} + V_h x_t + b_h)

A step of irregular length takes eps dt. Vectors are columns in the formula; a batch holds one state per row, so ``K h``
reads ``h @ K.T`` below.
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
    """All states (B, T, N) of x (B, T, m), with Wh (N, N), V_z, V_h (N, m), b_z, b_h (N); optionally dt (B, T)."""
    p, K = params, recurrent_matrix(params, gamma)
    h, states = h0, []
    for t in range(x.shape[1]):
        product = h @ K.T
        z = torch.sigmoid(product + x[:, t] @ p["V_z"].T + p["b_z"])
        h = h + step_length(eps, dt, t) * z * torch.tanh(product + x[:, t] @ p["V_h"].T + p["b_h"])
        states.append(h)
    return torch.stack(states, dim=1)
