"""Gated recurrent unit (Cho et al. 2014) in the form cuDNN computes: the reset gate acts after the product.

    r = sigmoid(W_r x_t + U_r h_{t-1} + b_r)
    z = sigmoid(W_z x_t + U_z h_{t-1} + b_z)
    n = tanh(W_n x_t + b_n + r .* (U_n h_{t-1} + c_n))
    h_t = (1 - z) .* n + z .* h_{t-1}

The 2014 paper has U_n (r .* h) instead. Vectors are columns in the formula; a batch holds one state per row, so
``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with W_k (N, m), U_k (N, N), b_k (N) for k in r, z, n and c_n (N)."""
    p = params
    h, states = h0, []
    for t in range(x.shape[1]):
        u = x[:, t]
        r = torch.sigmoid(u @ p["W_r"].T + h @ p["U_r"].T + p["b_r"])
        z = torch.sigmoid(u @ p["W_z"].T + h @ p["U_z"].T + p["b_z"])
        n = torch.tanh(u @ p["W_n"].T + p["b_n"] + r * (h @ p["U_n"].T + p["c_n"]))
        h = (1 - z) * n + z * h
        states.append(h)
    return torch.stack(states, dim=1)
