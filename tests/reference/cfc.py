"""Closed-form continuous-time network (Hasani, Lechner, Amini et al., Nature Machine Intelligence 2022).

    x   = backbone([u_t, h_{t-1}])
    s   = sigmoid(ta(x) dt + tb(x))
    h_t = (1 - s) .* tanh(f1(x)) + s .* tanh(f2(x))

u is the input; f1, f2, ta and tb are affine maps. The backbone is a chain of affine maps, each followed by the
activation; with no layer it is x = [u, h]. "lecun_tanh" is 1.7159 tanh(0.666 x), as in the released code. Vectors are
columns in the formula; a batch holds one state per row, so ``W x`` reads ``x @ W.T`` below.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def activation(x: Tensor, name: str) -> Tensor:
    """The backbone's nonlinearity: "lecun_tanh", "tanh", "relu", "silu" or "gelu"."""
    if name == "lecun_tanh":
        return 1.7159 * torch.tanh(0.666 * x)
    if name == "tanh":
        return torch.tanh(x)
    if name == "relu":
        return torch.relu(x)
    if name == "silu":
        return x * torch.sigmoid(x)
    assert name == "gelu"
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, *, backbone: str = "lecun_tanh", dt: Tensor | None = None
) -> Tensor:
    """All states (B, T, N) of x (B, T, m) and dt (B, T), 1 where None.

    The backbone's layers are W_1 (K, m + N), b_1 (K), W_2 (K, K), b_2 (K) and so on, as many as there are; then W_k
    (N, K) and b_k (N) for k in f1, f2, ta, tb, where K = m + N if the backbone has no layer.
    """
    p = params
    dt = torch.ones_like(x[:, :, 0]) if dt is None else dt

    def affine(v: Tensor, name: str) -> Tensor:
        return v @ p[f"W_{name}"].T + p[f"b_{name}"]

    h, states = h0, []
    for t in range(x.shape[1]):
        v, layer = torch.cat([x[:, t], h], dim=1), 1
        while f"W_{layer}" in p:
            v, layer = activation(affine(v, str(layer)), backbone), layer + 1
        s = torch.sigmoid(affine(v, "ta") * dt[:, t : t + 1] + affine(v, "tb"))
        h = (1 - s) * torch.tanh(affine(v, "f1")) + s * torch.tanh(affine(v, "f2"))
        states.append(h)
    return torch.stack(states, dim=1)
