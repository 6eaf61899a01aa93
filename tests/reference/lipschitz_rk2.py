"""Lipschitz RNN, explicit midpoint rule (Erichson et al., ICLR 2021, eqs. 1, 2, 6, 10).

    f(h, x) = A h + tanh(W h + U x + b),  A and W as in eq. 6
    k   = f(h_{t-1}, x_t)
    h_t = h_{t-1} + eps f(h_{t-1} + (eps / 2) k, x_t)

The input is held over the step: both stages see x_t. A step of irregular length takes eps dt. Vectors are columns in
the formula; a batch holds one state per row, so ``A h`` reads ``h @ A.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import step_length


def symmetric_skew(M: Tensor, beta: float, gamma: float) -> Tensor:
    """The symmetric-skew decomposition of eq. 6, (N, N)."""
    identity = torch.eye(M.shape[0], dtype=M.dtype)
    return (1 - beta) * (M + M.T) + beta * (M - M.T) - gamma * identity


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    h0: Tensor,
    *,
    eps: float,
    beta: float,
    gamma_A: float,
    gamma_W: float,
    dt: Tensor | None = None,
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with M_A and M_W (N, N), U (N, m), b (N); optionally dt (B, T)."""
    A = symmetric_skew(params["M_A"], beta, gamma_A)
    W = symmetric_skew(params["M_W"], beta, gamma_W)
    U, b = params["U"], params["b"]

    def f(h: Tensor, u: Tensor) -> Tensor:
        return h @ A.T + torch.tanh(h @ W.T + u @ U.T + b)

    h, states = h0, []
    for t in range(x.shape[1]):
        k = f(h, x[:, t])
        step = step_length(eps, dt, t)
        h = h + step * f(h + (step / 2) * k, x[:, t])
        states.append(h)
    return torch.stack(states, dim=1)
