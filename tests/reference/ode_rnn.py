"""ODE-RNN (Rubanova, Chen, Duvenaud, NeurIPS 2019), with a solver of fixed steps.

    f(h) = F_2 tanh(F_1 h + c_1) + c_2
    h~   = ODESolve(f, h_{t-1}, time eps dt_t)
    h_t  = GRU(h~, x_t), the gates as in gru.py

The flow comes first, the observation after it. With a mask (1 observed, 0 missing) the GRU's input is
[mask .* x, mask], and where the whole mask is 0 the GRU leaves h~ as it is. The solver takes equal sub-steps of Euler,
of the midpoint rule, of Heun or of the classical Runge-Kutta method. Vectors are columns in the formula; a batch holds
one state per row, so ``F_1 h`` reads ``h @ F_1.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import step_length


def slope(params: dict[str, Tensor], h: Tensor) -> Tensor:
    """f(h), (B, N)."""
    return torch.tanh(h @ params["F_1"].T + params["c_1"]) @ params["F_2"].T + params["c_2"]


def flow(params: dict[str, Tensor], h: Tensor, length: float | Tensor, solver: str, substeps: int) -> Tensor:
    """h after the time ``length``, a number or (B, 1)."""
    d = length / substeps
    for _ in range(substeps):
        k1 = slope(params, h)
        if solver == "euler":
            h = h + d * k1
        elif solver == "midpoint":
            h = h + d * slope(params, h + d / 2 * k1)
        elif solver == "heun":
            h = h + d / 2 * (k1 + slope(params, h + d * k1))
        else:
            assert solver == "rk4"
            k2 = slope(params, h + d / 2 * k1)
            k3 = slope(params, h + d / 2 * k2)
            k4 = slope(params, h + d * k3)
            h = h + d / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return h


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    h0: Tensor,
    *,
    solver: str = "euler",
    substeps: int = 1,
    eps: float = 1.0,
    dt: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with a hidden layer of H units: F_1 (H, N), c_1 (H), F_2 (N, H), c_2 (N).

    The GRU has W_k (N, m), U_k (N, N), b_k (N) for k in r, z, n and c_n (N); with a mask (B, T, m), W_k is (N, 2m).
    Optionally dt (B, T).
    """
    p = params
    h, states = h0, []
    for t in range(x.shape[1]):
        h = flow(p, h, step_length(eps, dt, t), solver, substeps)
        u = x[:, t] if mask is None else torch.cat([mask[:, t] * x[:, t], mask[:, t]], dim=1)
        r = torch.sigmoid(u @ p["W_r"].T + h @ p["U_r"].T + p["b_r"])
        z = torch.sigmoid(u @ p["W_z"].T + h @ p["U_z"].T + p["b_z"])
        n = torch.tanh(u @ p["W_n"].T + p["b_n"] + r * (h @ p["U_n"].T + p["c_n"]))
        updated = (1 - z) * n + z * h
        h = updated if mask is None else torch.where(mask[:, t].sum(dim=1, keepdim=True) > 0, updated, h)
        states.append(h)
    return torch.stack(states, dim=1)
