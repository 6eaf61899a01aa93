"""IRNN, the rectified RNN that starts at the identity (Le, Jaitly, Hinton 2015).

    h_t = relu(W h_{t-1} + U x_t + b),  at the start W = I and b = 0

Vectors are columns in the formula; a batch holds one state per row, so ``W h`` reads ``h @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with W (N, N), U (N, m), b (N)."""
    W, U, b = params["W"], params["U"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = torch.relu(h @ W.T + x[:, t] @ U.T + b)
        states.append(h)
    return torch.stack(states, dim=1)
