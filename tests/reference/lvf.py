"""Latent vector field RNN, explicit Euler (Azencot et al. 2021, eqs. 5, 6, 9, 12 to 14).

    V in R^{N x N}, the vector field on the edges, zero diagonal
    div_i = sum_j (V_ij - V_ji)
    D_ij  = (V_ji - V_ij) / 2 for i != j,  D_ii = div_i / 2
    Phi   = I + dt D
    h_t   = s(Phi h_{t-1} + U x_t)

s carries a trained vector b: it is modReLU, sign(z) max(|z| + b, 0) with sign(0) = 0, or tanh(z + b). The factor 1/2
and the overall sign of D could not be read in the paper's text; this choice has every property that the text states:
D 1 = 0, D is skew exactly where div = 0 and stable where div <= 0. (The divergences of a field sum to zero, so that
div <= 0 means div = 0.) Vectors are columns in the formula; a batch holds one state per row, so ``Phi h`` reads
``h @ Phi.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def divergence(V: Tensor) -> Tensor:
    """div (N) of the field V (N, N): outgoing minus incoming edges of each node."""
    return V.sum(dim=1) - V.sum(dim=0)


def operator(V: Tensor, hard: bool = False) -> Tensor:
    """D (N, N), the directional derivative along V; the diagonal of V does not count.

    The hard constraint on the divergence keeps the skew part alone (D 1 = 0 is then lost).
    """
    rotation = (V.T - V) / 2
    return rotation if hard else rotation + torch.diag(divergence(V) / 2)


def recurrent_matrix(V: Tensor, dt: float, hard: bool = False) -> Tensor:
    """Phi (N, N) of eq. 5."""
    return torch.eye(V.shape[0], dtype=V.dtype) + dt * operator(V, hard)


def activation(z: Tensor, params: dict[str, Tensor], nonlinearity: str) -> Tensor:
    """s(z): "tanh", "modrelu" or "softshrink" (soft thresholding), each with its trained vector b (N)."""
    if nonlinearity == "tanh":
        return torch.tanh(z + params["b"])
    if nonlinearity == "softshrink":
        return torch.sign(z) * torch.clamp(torch.abs(z) - torch.abs(params["b"]), min=0)
    assert nonlinearity == "modrelu"
    return torch.sign(z) * torch.clamp(torch.abs(z) + params["b"], min=0)


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, *, dt: float, nonlinearity: str, hard: bool = False
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with V (N, N), U (N, m), b (N)."""
    Phi, U = recurrent_matrix(params["V"], dt, hard), params["U"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = activation(h @ Phi.T + x[:, t] @ U.T, params, nonlinearity)
        states.append(h)
    return torch.stack(states, dim=1)
