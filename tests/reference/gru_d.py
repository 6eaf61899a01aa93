"""GRU with decay for missing and irregular observations (Che, Purushotham, Cho, Sontag, Liu, Sci. Rep. 2018, "GRU-D").

    m_t   = 1 where x_t was observed, 0 where it is missing (NaN)
    delta = dt_t + elapsed,  elapsed after the step: 0 where m_t = 1, delta where m_t = 0
    last  = m_t .* x_t + (1 - m_t) .* last
    gx    = exp(-max(0, w_gx .* delta + b_gx))
    gh    = exp(-max(0, W_gh delta + b_gh))
    x^    = m_t .* x_t + (1 - m_t) .* (gx .* last + (1 - gx) .* mean),  mean = 0
    h^    = gh .* h_{t-1}
    z     = sigmoid(W_z x^ + U_z h^ + V_z m_t + b_z)
    r     = sigmoid(W_r x^ + U_r h^ + V_r m_t + b_r)
    n     = tanh(W_n x^ + U_n (r .* h^) + V_n m_t + b_n)
    h_t   = (1 - z) .* h^ + z .* n

This is the GRU of the paper: the reset gate acts before the product, and z weighs the candidate n (the paper's h~), the
reverse of gru.py. The empirical mean is that of standardized inputs, 0. delta and elapsed count from 0 before the first
step, where the paper sets the first delta to 0: with the zero start the two differ only in the decay after a value that
is missing from the beginning. Vectors are columns in the formula; a batch holds one state per row, so ``W_z x`` reads
``x @ W_z.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, last0: Tensor, elapsed0: Tensor, *, dt: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """All hidden (B, T, N), last (B, T, m) and elapsed (B, T, m) states of x (B, T, m) and dt (B, T), 1 where None.

    With w_gx and b_gx (m), W_gh (N, m), b_gh (N), and W_k (N, m), U_k (N, N), V_k (N, m), b_k (N) for k in z, r, n.
    """
    p = params
    dt = torch.ones_like(x[:, :, 0]) if dt is None else dt
    h, last, elapsed = h0, last0, elapsed0
    hidden, lasts, times = [], [], []
    for t in range(x.shape[1]):
        observed = ~torch.isnan(x[:, t])
        m = observed.to(x.dtype)
        delta = dt[:, t : t + 1] + elapsed
        # Not m * x + (1 - m) * last: a NaN times 0 is a NaN.
        last = torch.where(observed, x[:, t], last)
        gx = torch.exp(-torch.relu(p["w_gx"] * delta + p["b_gx"]))
        gh = torch.exp(-torch.relu(delta @ p["W_gh"].T + p["b_gh"]))
        v = torch.where(observed, last, gx * last)
        h = gh * h
        z = torch.sigmoid(v @ p["W_z"].T + h @ p["U_z"].T + m @ p["V_z"].T + p["b_z"])
        r = torch.sigmoid(v @ p["W_r"].T + h @ p["U_r"].T + m @ p["V_r"].T + p["b_r"])
        n = torch.tanh(v @ p["W_n"].T + (r * h) @ p["U_n"].T + m @ p["V_n"].T + p["b_n"])
        h = (1 - z) * h + z * n
        elapsed = (1 - m) * delta
        hidden.append(h)
        lasts.append(last)
        times.append(elapsed)
    return torch.stack(hidden, dim=1), torch.stack(lasts, dim=1), torch.stack(times, dim=1)
