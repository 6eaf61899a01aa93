"""Non-normal RNN (Kerg, Goyette, Puelma Touzel, Gidel, Vorontsov, Bengio, Lajoie, NeurIPS 2019).

    V   = P (L + T) P^T,  P = exp(A), A skew
    L   = blockdiag(g_k [[cos t_k, -sin t_k], [sin t_k, cos t_k]]),  for odd N the last block is the number g
    T   strictly upper triangular, zero inside the 2 x 2 blocks
    h_t = modReLU(V h_{t-1} + U x_t),  modReLU(z) = sign(z) max(|z| + b, 0)
    added to the loss: d sum_k (g_k - 1)^2

The released code leaves the entry of T inside each block free, so that |eigenvalue| = g is lost; the paper's statement
is kept here. Vectors are columns in the formula; a batch holds one state per row, so ``V h`` reads ``h @ V.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import exponential, modrelu, skew


def schur_form(params: dict[str, Tensor]) -> Tensor:
    """L + T (N, N)."""
    T, gamma, theta = params["T"], params["gamma"], params["theta"]
    size = T.shape[0]
    form = torch.triu(T, diagonal=1)
    for k in range(size // 2):
        i, j = 2 * k, 2 * k + 1
        c, s = gamma[k] * torch.cos(theta[k]), gamma[k] * torch.sin(theta[k])
        form[i, i], form[i, j] = c, -s  # in the place of T's entry inside the block
        form[j, i], form[j, j] = s, c
    if size % 2:
        form[-1, -1] = gamma[-1]
    return form


def recurrent_matrix(params: dict[str, Tensor]) -> Tensor:
    """V (N, N)."""
    P = exponential(skew(params["A"]))
    return P @ schur_form(params) @ P.T


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with U (N, m), b (N); gamma (ceil(N/2)), theta (floor(N/2)).

    T (N, N), of which the entries above the diagonal and outside the 2 x 2 blocks count; A (N, N), of which those above
    the diagonal count.
    """
    V, U = recurrent_matrix(params), params["U"]
    h, states = h0, []
    for t in range(x.shape[1]):
        h = modrelu(h @ V.T + x[:, t] @ U.T, params["b"])
        states.append(h)
    return torch.stack(states, dim=1)
