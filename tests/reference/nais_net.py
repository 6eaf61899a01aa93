"""NAIS-Net as a recurrent cell (Ciccone, Gallieri, Masci, Osendorfer, Gomez, NeurIPS 2018).

    A   = -R^T R - e I,  0 < e < 1/2
    h_t = h_{t-1} + eps tanh(A h_{t-1} + B x_t + b)

After each optimizer step R is projected: with d = 1 - 2 e, if ||R^T R||_F > d then R <- sqrt(d / ||R^T R||_F) R. A step
of irregular length takes eps dt. Vectors are columns in the formula; a batch holds one state per row, so ``A h`` reads
``h @ A.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import step_length


def recurrent_matrix(R: Tensor, e: float) -> Tensor:
    """A (N, N), symmetric and negative definite."""
    return -R.T @ R - e * torch.eye(R.shape[0], dtype=R.dtype)


def projected(R: Tensor, e: float) -> Tensor:
    """R after the projection."""
    d, norm = 1 - 2 * e, torch.sqrt(((R.T @ R) ** 2).sum())
    return torch.sqrt(d / norm) * R if norm > d else R


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, *, e: float, eps: float, dt: Tensor | None = None
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with R (N, N), B (N, m), b (N); optionally dt (B, T)."""
    A, B, b = recurrent_matrix(params["R"], e), params["B"], params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = h + step_length(eps, dt, t) * torch.tanh(h @ A.T + x[:, t] @ B.T + b)
        states.append(h)
    return torch.stack(states, dim=1)
