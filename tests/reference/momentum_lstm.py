"""Momentum LSTM (Nguyen, Baraniuk, Bertozzi, Osher, Wang, NeurIPS 2020, "MomentumRNN").

    v_t = mu v_{t-1} + s (W x_t + b_x)
    (i, f, g, q) = split(v_t + U h_{t-1} + b_h)
    c_t = sigmoid(f) .* c_{t-1} + sigmoid(i) .* tanh(g)
    h_t = sigmoid(q) .* tanh(c_t)

v (4N) is the momentum of the input drive, one block of N for each gate in the order i, f, g, q; both biases are the
released code's (b_x is scaled by s and accumulated like the input). Vectors are columns in the formula; a batch holds
one state per row, so ``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

GATES = "ifgq"


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, c0: Tensor, v0: Tensor, *, mu: float, s: float
) -> tuple[Tensor, Tensor, Tensor]:
    """All hidden (B, T, N), cell (B, T, N) and momentum (B, T, 4N) states of x (B, T, m).

    With W_k (N, m), U_k (N, N), bx_k (N), bh_k (N) for k in i, f, g, q.
    """
    p, size = params, h0.shape[1]
    h, c, hidden, memory, momentum = h0, c0, [], [], []
    v = {k: v0[:, j * size : (j + 1) * size] for j, k in enumerate(GATES)}
    for t in range(x.shape[1]):
        u = x[:, t]
        v = {k: mu * v[k] + s * (u @ p[f"W_{k}"].T + p[f"bx_{k}"]) for k in GATES}
        i, f, g, q = (v[k] + h @ p[f"U_{k}"].T + p[f"bh_{k}"] for k in GATES)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(q) * torch.tanh(c)
        hidden.append(h)
        memory.append(c)
        momentum.append(torch.cat([v[k] for k in GATES], dim=1))
    return torch.stack(hidden, dim=1), torch.stack(memory, dim=1), torch.stack(momentum, dim=1)
