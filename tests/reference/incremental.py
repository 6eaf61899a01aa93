"""Incremental RNN, iRNN (Kag, Zhang, Saligrama, ICLR 2020).

    g_0 = h_{t-1}, or 0
    g_i = g_{i-1} + e_i [f(U (g_{i-1} + h_{t-1}) + W x_t + b) - a (g_{i-1} + h_{t-1})],  i = 1 .. K
    h_t = g_K

Vectors are columns in the formula; a batch holds one state per row, so ``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    h0: Tensor,
    *,
    a: float = 1.0,
    nonlinearity: str = "relu",
    start: str = "previous",
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with U (N, N), or U1 (N, r) and U2 (r, N), W (N, m), b (N), e (K).

    e may also be (T, K), a row for each step of time. relu or tanh; the inner steps start at "previous" or "zero".
    """
    U = params["U"] if "U" in params else params["U1"] @ params["U2"]
    W, b, e = params["W"], params["b"], params["e"]
    assert nonlinearity in ("relu", "tanh")
    assert start in ("previous", "zero")
    f = torch.relu if nonlinearity == "relu" else torch.tanh
    h, states = h0, []
    for t in range(x.shape[1]):
        e_t = e[t] if e.dim() == 2 else e
        g = h if start == "previous" else torch.zeros_like(h)
        for i in range(e_t.shape[0]):
            g = g + e_t[i] * (f((g + h) @ U.T + x[:, t] @ W.T + b) - a * (g + h))
        h = g
        states.append(h)
    return torch.stack(states, dim=1)
