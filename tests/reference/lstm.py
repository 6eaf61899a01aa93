"""Long short-term memory with a forget gate and no peepholes (Hochreiter & Schmidhuber 1997; Gers et al. 2000).

    (i, f, g, q) = split(W x_t + U h_{t-1} + b)
    c_t = sigmoid(f) .* c_{t-1} + sigmoid(i) .* tanh(g)
    h_t = sigmoid(q) .* tanh(c_t)

Vectors are columns in the formula; a batch holds one state per row, so ``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor, c0: Tensor) -> tuple[Tensor, Tensor]:
    """All hidden and all cell states, each (B, T, N), of x (B, T, m), with W (4N, m), U (4N, N), b (4N)."""
    W, U, b = params["W"], params["U"], params["b"]
    size = h0.shape[1]
    h, c, hidden, memory = h0, c0, [], []
    for t in range(x.shape[1]):
        total = x[:, t] @ W.T + h @ U.T + b
        i, f, g, q = (total[:, k * size : (k + 1) * size] for k in range(4))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(q) * torch.tanh(c)
        hidden.append(h)
        memory.append(c)
    return torch.stack(hidden, dim=1), torch.stack(memory, dim=1)
