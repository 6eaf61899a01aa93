"""Spectral RNN (Zhang, Lei, Dhillon, ICML 2018): the singular value decomposition, parametrized by reflections.

    W   = H(u_0) ... H(u_{n-1}) diag(s) H(v_{n-1}) ... H(v_0),  H(u) = I - 2 u u^T / ||u||^2
    s   = 1 + 2 r (sigmoid(p) - 1/2)
    h_t = f(W h_{t-1} + M x_t + b)

u_k and v_k act on the last N - k units: their first k entries are zero. Applied to a state, v_0 comes first and u_0
last. Vectors are columns in the formula; a batch holds one state per row, so ``W h`` reads ``h @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import activation, reflection


def recurrent_matrix(params: dict[str, Tensor], r: float) -> Tensor:
    """W (N, N)."""
    u, v, p = torch.triu(params["u"]), torch.triu(params["v"]), params["p"]
    left = right = torch.eye(p.shape[0], dtype=p.dtype)
    for k in range(u.shape[0]):
        left = left @ reflection(u[k])
    for k in range(v.shape[0]):
        right = reflection(v[k]) @ right
    return left @ torch.diag(1 + 2 * r * (torch.sigmoid(p) - 0.5)) @ right


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, *, r: float = 0.01, nonlinearity: str = "relu"
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with u and v (n, N), p (N), M (N, m), b (N); relu, tanh or modrelu.

    Row k of u and of v is one vector, of which entries k, k+1, ... count; it need not have length one.
    """
    W, M = recurrent_matrix(params, r), params["M"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = activation(h @ W.T + x[:, t] @ M.T, params["b"], nonlinearity)
        states.append(h)
    return torch.stack(states, dim=1)
