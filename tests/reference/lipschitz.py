"""Lipschitz RNN, forward Euler (Erichson, Azencot, Queiruga, Hodgkinson, Mahoney, ICLR 2021, eqs. 1, 2, 6, 9).

    A = (1 - beta) (M_A + M_A^T) + beta (M_A - M_A^T) - gamma_A I
    W = (1 - beta) (M_W + M_W^T) + beta (M_W - M_W^T) - gamma_W I
    h_t = h_{t-1} + eps (alpha A h_{t-1} + tanh(W h_{t-1} + U x_t + b))

alpha is the ablation's factor on the linear term (eq. 12), 1 in the model itself. A step of irregular length takes
eps dt. Vectors are columns in the formula; a batch holds one state per row, so ``A h`` reads ``h @ A.T`` below.
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
    alpha: float = 1.0,
    dt: Tensor | None = None,
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with M_A and M_W (N, N), U (N, m), b (N); optionally dt (B, T)."""
    A = symmetric_skew(params["M_A"], beta, gamma_A)
    W = symmetric_skew(params["M_W"], beta, gamma_W)
    U, b = params["U"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        slope = alpha * (h @ A.T) + torch.tanh(h @ W.T + x[:, t] @ U.T + b)
        h = h + step_length(eps, dt, t) * slope
        states.append(h)
    return torch.stack(states, dim=1)
