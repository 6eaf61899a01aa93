"""Contracting recurrent equilibrium network, acyclic (Revay, Wang, Manchester, IEEE TAC 2023).

    x_{t+1} = A x_t + B1 w_t + B2 u_t + bx
    v_t     = C1 x_t + D11 w_t + D12 u_t + bv,  w_t = tanh(v_t),  D11 strictly lower triangular
    y_t     = C2 x_t + D21 w_t + D22 u_t + by

u is the input, x the state, y the output. The matrices come from the free X and Y1, for any value of them:

    H   = X^T X + eps I, in blocks of sizes n, q, n, symmetric and positive definite
    P   = H33,  E = (H11 + P / ab^2 + Y1 - Y1^T) / 2,  L = diag(H22) / 2
    A   = E^-1 H31,  B1 = E^-1 H32,  B2 = E^-1 B2',  C1 = -L^-1 H21,  D11 = -L^-1 tril(H22, -1),  D12 = L^-1 D12'

With F = E A, S = E B1, R = L C1 and G = L D11 these give back H = [[E + E^T - P/ab^2, -R^T, F^T], [-R, 2L - G - G^T,
S^T], [F, S, P]], the paper's inequality H > 0. Its Schur complement by P says that for the difference (dx, dw, dv) of
two trajectories under the same input

    |E dx+|^2 <= dx^T (E + E^T - P/ab^2) dx - 2 dw^T L (dv - dw)    in the norm |z|^2 = z^T P^-1 z,

where E + E^T - P/ab^2 <= ab^2 E^T P^-1 E, and dw .* (dv - dw) >= 0 as tanh has slopes in [0, 1]. Hence

    V(dx+) <= ab^2 V(dx),    V(dx) = dx^T E^T P^-1 E dx.

Vectors are columns in the formula; a batch holds one state per row, so ``A x`` reads ``x @ A.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def matrices(params: dict[str, Tensor], *, eps: float, ab: float) -> dict[str, Tensor]:
    """A, B1, B2, C1, D11, D12 of the recurrence, and E and P of its metric E^T P^-1 E."""
    X, Y1 = params["X"], params["Y1"]
    n, q = Y1.shape[0], X.shape[0] - 2 * Y1.shape[0]
    H = X.T @ X + eps * torch.eye(2 * n + q, dtype=X.dtype)
    H11, H21, H22 = H[:n, :n], H[n : n + q, :n], H[n : n + q, n : n + q]
    H31, H32, P = H[n + q :, :n], H[n + q :, n : n + q], H[n + q :, n + q :]
    E = (H11 + P / ab**2 + Y1 - Y1.T) / 2
    L = torch.diag(torch.diag(H22)) / 2
    E_inverse, L_inverse = torch.linalg.inv(E), torch.linalg.inv(L)
    return {
        "A": E_inverse @ H31,
        "B1": E_inverse @ H32,
        "B2": E_inverse @ params["B2"],
        "C1": -L_inverse @ H21,
        "D11": -L_inverse @ torch.tril(H22, diagonal=-1),
        "D12": L_inverse @ params["D12"],
        "E": E,
        "P": P,
    }


def sequence(
    params: dict[str, Tensor], x: Tensor, y0: Tensor, x0: Tensor, *, eps: float, ab: float
) -> tuple[Tensor, Tensor]:
    """All outputs y_t (B, T, N) and the states x_{t+1} (B, T, n) of the inputs x (B, T, m), the paper's u.

    With X (2n + q, 2n + q), Y1 (n, n), B2 (n, m) and D12 (q, m) for the formula's B2' and D12', bx (n), bv (q), C2
    (N, n), D21 (N, q), D22 (N, m), by (N). The output before the first step, y0, is not an input of the recurrence: it
    is there for its place in the state.
    """
    p, k = params, matrices(params, eps=eps, ab=ab)
    state, outputs, hidden = x0, [], []
    for t in range(x.shape[1]):
        u = x[:, t]
        known = state @ k["C1"].T + u @ k["D12"].T + p["bv"]
        units: list[Tensor] = []
        for i in range(known.shape[1]):
            v = known[:, i]
            for j in range(i):
                v = v + k["D11"][i, j] * units[j]
            units.append(torch.tanh(v))
        w = torch.stack(units, dim=1)
        outputs.append(state @ p["C2"].T + w @ p["D21"].T + u @ p["D22"].T + p["by"])
        state = state @ k["A"].T + w @ k["B1"].T + u @ k["B2"].T + p["bx"]
        hidden.append(state)
    return torch.stack(outputs, dim=1), torch.stack(hidden, dim=1)
