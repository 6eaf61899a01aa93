"""FastRNN (Kusupati, Singh, Bhatia, Kumar, Jain, Varma, NeurIPS 2018).

    c_t = f(W x_t + U h_{t-1} + b)
    h_t = sigmoid(beta) h_{t-1} + sigmoid(alpha) c_t

Low rank: W = W1 W2, U = U1 U2. Sparsity: each of these matrices is multiplied, entry by entry, by its fixed mask of 0
and 1. Vectors are columns in the formula; a batch holds one state per row, so ``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def matrix(params: dict[str, Tensor], letter: str) -> Tensor:
    """W or U: dense or of low rank, each factor with its mask where there is one."""

    def masked(name: str) -> Tensor:
        return params[name] * params[f"mask_{name}"] if f"mask_{name}" in params else params[name]

    return masked(letter) if letter in params else masked(f"{letter}1") @ masked(f"{letter}2")


def function(z: Tensor, nonlinearity: str) -> Tensor:
    """tanh, sigmoid, relu, or a piecewise linear stand-in for fixed-point arithmetic."""
    if nonlinearity == "tanh":
        return torch.tanh(z)
    if nonlinearity == "sigmoid":
        return torch.sigmoid(z)
    if nonlinearity == "relu":
        return torch.relu(z)
    if nonlinearity == "quantTanh":
        return torch.clamp(z, -1, 1)
    if nonlinearity == "quantSigm":
        return torch.clamp((z + 1) / 2, 0, 1)
    assert nonlinearity == "quantSigm4"
    return torch.clamp((z + 2) / 4, 0, 1)


def sequence(params: dict[str, Tensor], x: Tensor, h0: Tensor, *, nonlinearity: str = "tanh") -> Tensor:
    """All states (B, T, N) of x (B, T, m), with b (N) and the scalars alpha and beta, before the sigmoid.

    W is (N, m), or W1 (N, r) and W2 (r, m); U is (N, N), or U1 (N, s) and U2 (s, N). Optional masks of the same shapes:
    mask_W, mask_U, or mask_W1, mask_W2, mask_U1, mask_U2.
    """
    W, U, b = matrix(params, "W"), matrix(params, "U"), params["b"]
    h, states = h0, []
    for t in range(x.shape[1]):
        c = function(x[:, t] @ W.T + h @ U.T + b, nonlinearity)
        h = torch.sigmoid(params["beta"]) * h + torch.sigmoid(params["alpha"]) * c
        states.append(h)
    return torch.stack(states, dim=1)
