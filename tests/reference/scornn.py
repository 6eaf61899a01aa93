"""Scaled Cayley orthogonal RNN (Helfrich, Willmott, Ye, ICML 2018).

    W   = (I + A)^{-1} (I - A) D,  A skew,  D a fixed diagonal of +-1
    h_t = modReLU(W h_{t-1} + U x_t),  modReLU(z) = sign(z) max(|z| + b, 0)

Vectors are columns in the formula; a batch holds one state per row, so ``W h`` reads ``h @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import cayley, modrelu, skew


def recurrent_matrix(params: dict[str, Tensor]) -> Tensor:
    """W (N, N), by an explicit inverse: N is small here and a reference may be slow."""
    return cayley(skew(params["A"])) @ torch.diag(params["D"])


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with A (N, N), U (N, m), b (N) and D (N), the fixed signs.

    Of A only the entries above the diagonal count; those below are their negatives.
    """
    W, U, b = recurrent_matrix(params), params["U"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = modrelu(h @ W.T + x[:, t] @ U.T, b)
        states.append(h)
    return torch.stack(states, dim=1)
