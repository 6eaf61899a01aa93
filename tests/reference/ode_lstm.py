"""ODE-LSTM (Lechner & Hasani 2020, "Learning Long-Term Dependencies in Irregularly-Sampled Time Series").

    (i, f, g, q) = split(W x_t + U h_{t-1} + b)
    c_t = sigmoid(f) .* c_{t-1} + sigmoid(i) .* tanh(g)
    h'  = sigmoid(q) .* tanh(c_t)
    h_t = flow of dh/ds = W_2 tanh(W_1 h + b_1) + b_2 over the time dt_t, from h'

The flow is three equal steps of a fixed-step solver: forward Euler, Heun's (the explicit trapezoid) or the classical
fourth-order Runge-Kutta. It moves the hidden state only, after the LSTM step. Vectors are columns in the formula; a
batch holds one state per row, so ``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def field(params: dict[str, Tensor], h: Tensor) -> Tensor:
    """dh/ds, of the shape of h (B, N)."""
    return torch.tanh(h @ params["W_1"].T + params["b_1"]) @ params["W_2"].T + params["b_2"]


def solver_step(params: dict[str, Tensor], h: Tensor, s: Tensor, solver: str) -> Tensor:
    """One step of length s (B, 1) of "euler", "heun" or "rk4" from h (B, N)."""
    k1 = field(params, h)
    if solver == "euler":
        return h + s * k1
    if solver == "heun":
        return h + s * (k1 + field(params, h + s * k1)) / 2
    assert solver == "rk4"
    k2 = field(params, h + s / 2 * k1)
    k3 = field(params, h + s / 2 * k2)
    k4 = field(params, h + s * k3)
    return h + s * (k1 + 2 * k2 + 2 * k3 + k4) / 6


def sequence(
    params: dict[str, Tensor], x: Tensor, h0: Tensor, c0: Tensor, *, solver: str, dt: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """All hidden and all cell states, each (B, T, N), of x (B, T, m) and dt (B, T), 1 where None.

    With W_k (N, m), U_k (N, N), b_k (N) for k in i, f, g, q, and the field's W_1 (K, N), b_1 (K), W_2 (N, K), b_2 (N).
    """
    p = params
    dt = torch.ones_like(x[:, :, 0]) if dt is None else dt
    h, c, hidden, memory = h0, c0, [], []
    for t in range(x.shape[1]):
        i, f, g, q = (x[:, t] @ p[f"W_{k}"].T + h @ p[f"U_{k}"].T + p[f"b_{k}"] for k in "ifgq")
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(q) * torch.tanh(c)
        for _ in range(3):
            h = solver_step(p, h, dt[:, t : t + 1] / 3, solver)
        hidden.append(h)
        memory.append(c)
    return torch.stack(hidden, dim=1), torch.stack(memory, dim=1)
