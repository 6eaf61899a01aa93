"""Exponential RNN (Lezcano-Casado, Martinez-Rubio, ICML 2019).

    A   = triu(M, 1) - triu(M, 1)^T
    B   = exp(A), or as an option the Cayley transform (I + A)^{-1} (I - A)
    h_t = modReLU(B h_{t-1} + U x_t),  modReLU(z) = sign(z) max(|z| + b, 0)

Vectors are columns in the formula; a batch holds one state per row, so ``B h`` reads ``h @ B.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import modrelu, orthogonal, skew


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor, *, parametrization: str = "exp") -> Tensor:
    """All states (B, T, N) of x (B, T, m), with M (N, N), U (N, m), b (N); exp or cayley.

    Of M only the entries above the diagonal count.
    """
    B, U = orthogonal(skew(params["M"]), parametrization), params["U"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = modrelu(h @ B.T + x[:, t] @ U.T, params["b"])
        states.append(h)
    return torch.stack(states, dim=1)
