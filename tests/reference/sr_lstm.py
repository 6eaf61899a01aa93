"""Scheduled-restart LSTM, Nesterov momentum (Nguyen, Baraniuk, Bertozzi, Osher, Wang, NeurIPS 2020, "MomentumRNN").

    k   = 1, 2, .., F, 1, 2, .., F, 1, ..
    p_t = U h_{t-1} + b_h - s (W x_t + b_x)
    (i, f, g, q) = split(p_t + (k - 1)/(k + 2) (p_t - p_{t-1}))
    c_t = sigmoid(f) .* c_{t-1} + sigmoid(i) .* tanh(g)
    h_t = sigmoid(q) .* tanh(c_t)

p (4N) has one block of N for each gate in the order i, f, g, q. The carried count is the k of the step before, 0 at the
start and again after the F-th step of a cycle, so that k = count + 1. A step with k = 1 has the factor 0: it does not
see p_{t-1}, which is why p_0 = 0 is no choice. The count is one number a row, a differentiable input like any state.
Vectors are columns in the formula; a batch holds one state per row, so ``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

GATES = "ifgq"


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    h0: Tensor,
    c0: Tensor,
    p0: Tensor,
    count0: Tensor,
    *,
    s: float,
    F: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All hidden (B, T, N), cell (B, T, N), p (B, T, 4N) and count (B, T, 1) states of x (B, T, m).

    With W_k (N, m), U_k (N, N), bx_k (N), bh_k (N) for k in i, f, g, q.
    """
    size = h0.shape[1]
    h, c, count = h0, c0, count0
    previous = [p0[:, j * size : (j + 1) * size] for j in range(4)]
    hidden, memory, drives, counts = [], [], [], []
    for t in range(x.shape[1]):
        u = x[:, t]
        k = count + 1  # (B, 1)
        p = [
            h @ params[f"U_{gate}"].T + params[f"bh_{gate}"] - s * (u @ params[f"W_{gate}"].T + params[f"bx_{gate}"])
            for gate in GATES
        ]
        i, f, g, q = (now + (k - 1) / (k + 2) * (now - before) for now, before in zip(p, previous, strict=True))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(q) * torch.tanh(c)
        previous = p
        count = torch.where(k >= F, torch.zeros_like(k), k)
        hidden.append(h)
        memory.append(c)
        drives.append(torch.cat(p, dim=1))
        counts.append(count)
    return (
        torch.stack(hidden, dim=1),
        torch.stack(memory, dim=1),
        torch.stack(drives, dim=1),
        torch.stack(counts, dim=1),
    )
