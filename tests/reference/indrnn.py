"""Independently recurrent network (Li, Li, Cook, Zhu, Gao, CVPR 2018).

    h_t = relu(u .* h_{t-1} + W x_t + b)

The bound on |u| is kept by the training loop, not by the recurrence. Vectors are columns in the formula; a batch holds
one state per row, so ``W x`` reads ``x @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with u (N), W (N, m), b (N)."""
    u, W, b = params["u"], params["W"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = torch.relu(u * h + x[:, t] @ W.T + b)
        states.append(h)
    return torch.stack(states, dim=1)
