"""Latent vector field RNN, explicit Euler (Azencot et al. 2021, eqs. 5, 6, 9, 12 to 14).

    V in R^{N x N}, the vector field on the edges, zero diagonal
    div_i = sum_j (V_ij - V_ji)
    D_ij  = (V_ji - V_ij) / 2 for i != j,  D_ii = div_i / 2
    Phi   = I + Dt D,  Dt the step
    h_t   = s(Phi h_{t-1} + U x_t)

s carries a trained vector b: it is modReLU, sign(z) max(|z| + b, 0) with sign(0) = 0, or tanh(z + b). The factor 1/2
and the overall sign of D could not be read in the paper's text; this choice has every property that the text states:
D 1 = 0, D is skew exactly where div = 0 and stable where div <= 0. (The divergences of a field sum to zero, so that
div <= 0 means div = 0.) A step of irregular length has Phi = I + Dt dt D. Vectors are columns in the formula; a batch
holds one state per row, so ``Phi h`` reads ``h @ Phi.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import step_length


def divergence(V: Tensor) -> Tensor:
    """div (N) of the field V (N, N): outgoing minus incoming edges of each node."""
    return V.sum(dim=1) - V.sum(dim=0)


def operator(V: Tensor, hard: bool = False) -> Tensor:
    """D (N, N), the directional derivative along V; the diagonal of V does not count.

    The hard constraint on the divergence keeps the skew part alone (D 1 = 0 is then lost).
    """
    rotation = (V.T - V) / 2
    return rotation if hard else rotation + torch.diag(divergence(V) / 2)


def activation(z: Tensor, params: dict[str, Tensor], nonlinearity: str) -> Tensor:
    """s(z): "tanh", "modrelu" or "softshrink" (soft thresholding), each with its trained vector b (N)."""
    if nonlinearity == "tanh":
        return torch.tanh(z + params["b"])
    if nonlinearity == "softshrink":
        return torch.sign(z) * torch.clamp(torch.abs(z) - torch.abs(params["b"]), min=0)
    assert nonlinearity == "modrelu"
    return torch.sign(z) * torch.clamp(torch.abs(z) + params["b"], min=0)


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    h0: Tensor,
    *,
    step: float,
    nonlinearity: str,
    hard: bool = False,
    dt: Tensor | None = None,
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with V (N, N), U (N, m), b (N); optionally dt (B, T)."""
    D, U = operator(params["V"], hard), params["U"]
    h, states = h0, []
    for t in range(x.shape[1]):
        moved = h + step_length(step, dt, t) * (h @ D.T)  # Phi h
        h = activation(moved + x[:, t] @ U.T, params, nonlinearity)
        states.append(h)
    return torch.stack(states, dim=1)
