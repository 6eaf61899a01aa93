"""sLSTM, the scalar-memory cell with exponential gates (Beck et al., NeurIPS 2024, "xLSTM").

    k~  = W_k x_t + R_k h_{t-1} + b_k  for k in i, f, z, o
    m_t = max(i~, m_{t-1} + log sigmoid(f~)),  on the first step m_t = i~
    i   = exp(i~ - m_t),  f = exp(m_{t-1} + log sigmoid(f~) - m_t)
    c_t = f .* c_{t-1} + i .* tanh(z~)
    n_t = f .* n_{t-1} + i
    h_t = sigmoid(o~) .* c_t / n_t

R_k is block-diagonal: a head sees its own N/heads units only, head j the j-th run of consecutive ones. The first step
is known by the normalizer, unit by unit: n is 0 before it, and from it on never below 1, as i or f is 1. Where n = 0
the stabilizer stands for -inf, whatever the carried m: then m_t = i~, i = 1 and f = 0. Vectors are columns in the
formula; a batch holds one state per row, so ``W x`` reads ``x @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def log_sigmoid(v: Tensor) -> Tensor:
    """log sigmoid(v), which is -log(1 + exp(-v)) without its overflow."""
    return -torch.logaddexp(torch.zeros_like(v), -v)


def recurrent(R: Tensor, h: Tensor) -> Tensor:
    """R h (B, N) of h (B, N), with one block of R (heads, N/heads, N/heads) for each head."""
    size = R.shape[1]
    return torch.cat([h[:, j * size : (j + 1) * size] @ block.T for j, block in enumerate(R)], dim=1)


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, c0: Tensor, n0: Tensor, m0: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All h, c, n (normalizer) and m (stabilizer), each (B, T, N), of x (B, T, m).

    With W_k (N, m), R_k (heads, N/heads, N/heads), b_k (N) for k in i, f, z, o.
    """
    p = params
    h, c, n, m = h0, c0, n0, m0
    hidden, memory, normalizers, stabilizers = [], [], [], []
    for t in range(x.shape[1]):
        i_, f_, z_, o_ = (x[:, t] @ p[f"W_{k}"].T + recurrent(p[f"R_{k}"], h) + p[f"b_{k}"] for k in "ifzo")
        decayed = torch.where(n == 0, -torch.inf, m) + log_sigmoid(f_)
        m = torch.maximum(i_, decayed)
        i, f = torch.exp(i_ - m), torch.exp(decayed - m)
        c = f * c + i * torch.tanh(z_)
        n = f * n + i
        h = torch.sigmoid(o_) * c / n
        hidden.append(h)
        memory.append(c)
        normalizers.append(n)
        stabilizers.append(m)
    return (
        torch.stack(hidden, dim=1),
        torch.stack(memory, dim=1),
        torch.stack(normalizers, dim=1),
        torch.stack(stabilizers, dim=1),
    )
