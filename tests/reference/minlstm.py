"""Minimal LSTM (Feng, Tung, Ahmed, Bengio, Hajimirsadeghi, 2024, "Were RNNs All We Needed?").

    f   = sigmoid(W_f x_t),  i = sigmoid(W_i x_t)
    f'  = f / (f + i),       i' = i / (f + i)
    h_t = f' .* h_{t-1} + i' .* (W_h x_t)

The paper writes Linear(x_t) for the products, which leaves open whether they carry a bias; one is added where the
parameters hold it. This is the plain form, without the positive map that the paper's log-space variant puts on W_h x_t.
Vectors are columns in the formula; a batch holds one state per row, so ``W_f x`` reads ``x @ W_f.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with W_f, W_i and W_h (N, m) and, if any, b_f, b_i and b_h (N)."""
    none = torch.zeros_like(h0[0])
    b_f, b_i, b_h = params.get("b_f", none), params.get("b_i", none), params.get("b_h", none)
    h, states = h0, []
    for t in range(x.shape[1]):
        f = torch.sigmoid(x[:, t] @ params["W_f"].T + b_f)
        i = torch.sigmoid(x[:, t] @ params["W_i"].T + b_i)
        h = f / (f + i) * h + i / (f + i) * (x[:, t] @ params["W_h"].T + b_h)
        states.append(h)
    return torch.stack(states, dim=1)
