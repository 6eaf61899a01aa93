"""The ablation of the gated AntisymmetricRNN (Chang, Chen, Haber, Chi, ICLR 2019, table 2): eq. 13 with a free matrix.

    z_t = sigmoid(K h_{t-1} + V_z x_t + b_z)
    h_t = h_{t-1} + eps z_t .* tanh(K h_{t-1} + V_h x_t + b_h)

K is the free matrix, less gamma I where gamma is not 0: the paper does not say that the damping stays. A step of
irregular length takes eps dt. Vectors are columns in the formula; a batch holds one state per row, so ``K h`` reads
``h @ K.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import step_length


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, *, eps: float, gamma: float = 0.0, dt: Tensor | None = None
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with K (N, N), V_z, V_h (N, m), b_z, b_h (N); optionally dt (B, T)."""
    p, K = params, params["K"] - gamma * torch.eye(h0.shape[1], dtype=h0.dtype)
    h, states = h0, []
    for t in range(x.shape[1]):
        product = h @ K.T
        z = torch.sigmoid(product + x[:, t] @ p["V_z"].T + p["b_z"])
        h = h + step_length(eps, dt, t) * z * torch.tanh(product + x[:, t] @ p["V_h"].T + p["b_h"])
        states.append(h)
    return torch.stack(states, dim=1)
