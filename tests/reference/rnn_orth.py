"""RNN whose W starts orthogonal and is free afterwards (Henaff, Szlam, LeCun 2016).

    h_t = f(W h_{t-1} + U x_t)

f carries the one trained vector b: it is modReLU, sign(z) max(|z| + b, 0), or tanh(z + b), or relu(z + b). Vectors are
columns in the formula; a batch holds one state per row, so ``W h`` reads ``h @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import activation


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor, *, nonlinearity: str = "modrelu") -> Tensor:
    """All states (B, T, N) of x (B, T, m), with W (N, N), U (N, m), b (N); modrelu, tanh or relu."""
    W, U, b = params["W"], params["U"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = activation(h @ W.T + x[:, t] @ U.T, b, nonlinearity)
        states.append(h)
    return torch.stack(states, dim=1)
