"""Neural ODE RNN, the comparator of the Lipschitz RNN (Erichson et al., ICLR 2021, eq. 11), by forward Euler.

    h_t = h_{t-1} + eps tanh(W h_{t-1} + U x_t + b),  W free

A step of irregular length takes eps dt. Vectors are columns in the formula; a batch holds one state per row, so ``W h``
reads ``h @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import step_length


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor, *, eps: float, dt: Tensor | None = None) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with W (N, N), U (N, m), b (N); optionally dt (B, T)."""
    W, U, b = params["W"], params["U"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = h + step_length(eps, dt, t) * torch.tanh(h @ W.T + x[:, t] @ U.T + b)
        states.append(h)
    return torch.stack(states, dim=1)
