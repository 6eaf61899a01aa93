"""Minimal GRU (Feng, Tung, Ahmed, Bengio, Hajimirsadeghi, 2024, "Were RNNs All We Needed?").

    z_t = sigmoid(W_z x_t)
    h_t = (1 - z_t) .* h_{t-1} + z_t .* (W_h x_t)

The paper writes Linear(x_t) for the products, which leaves open whether they carry a bias; one is added where the
parameters hold it. This is the plain form, without the positive map that the paper's log-space variant puts on W_h x_t.
Vectors are columns in the formula; a batch holds one state per row, so ``W_z x`` reads ``x @ W_z.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with W_z and W_h (N, m) and, if any, b_z and b_h (N)."""
    none = torch.zeros_like(h0[0])
    b_z, b_h = params.get("b_z", none), params.get("b_h", none)
    h, states = h0, []
    for t in range(x.shape[1]):
        z = torch.sigmoid(x[:, t] @ params["W_z"].T + b_z)
        h = (1 - z) * h + z * (x[:, t] @ params["W_h"].T + b_h)
        states.append(h)
    return torch.stack(states, dim=1)
