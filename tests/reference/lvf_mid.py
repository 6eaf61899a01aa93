"""Latent vector field RNN, implicit midpoint rule (Azencot et al. 2021, eq. 16 in place of eq. 5).

    Phi = (I - (Dt/2) D)^{-1} (I + (Dt/2) D),  Dt the step, D from the field V as in eqs. 9, 12 to 14
    h_t = s(Phi h_{t-1} + U x_t)

Phi is orthogonal where D is skew (div V = 0): it is then the Cayley transform. The factor 1/2 and the sign of D are a
choice, see lvf.py, which also has s. Vectors are columns in the formula; a batch holds one state per row, so ``Phi h``
reads ``h @ Phi.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.lvf import activation, operator


def recurrent_matrix(V: Tensor, step: float, hard: bool = False) -> Tensor:
    """Phi (N, N) of eq. 16, by an explicit inverse: N is small here and a reference may be slow."""
    identity = torch.eye(V.shape[0], dtype=V.dtype)
    D = operator(V, hard)
    inverse: Tensor = torch.linalg.inv(identity - (step / 2) * D)
    return inverse @ (identity + (step / 2) * D)


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, *, step: float, nonlinearity: str, hard: bool = False
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with V (N, N), U (N, m), b (N)."""
    Phi, U = recurrent_matrix(params["V"], step, hard), params["U"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = activation(h @ Phi.T + x[:, t] @ U.T, params, nonlinearity)
        states.append(h)
    return torch.stack(states, dim=1)
