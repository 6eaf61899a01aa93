"""Noisy RNN (Lim, Erichson, Hodgkinson, Mahoney, NeurIPS 2021): the Lipschitz RNN with noise in training.

    A, W as in lipschitz.py (symmetric-skew decomposition of M_A, M_W)
    h_t = h_{t-1} + d .* mu_t .* (A h_{t-1} + tanh(W h_{t-1} + U x_t + b)) + s_a n_t
    mu_t = (1 - s_m) + s_m u_t

n_t is standard normal and u_t uniform on (0, 1), one draw a unit, a step and a sample; in evaluation mu = 1 and
s_a = 0. d is a trained step for each unit; a step of irregular length takes d dt. Vectors are columns in the formula; a
batch holds one state per row, so ``A h`` reads ``h @ A.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.lipschitz import symmetric_skew
from reference.pieces import step_length


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    h0: Tensor,
    *,
    beta: float,
    gamma_A: float,
    gamma_W: float,
    dt: Tensor | None = None,
    additive: float = 0.0,
    multiplicative: float = 0.0,
    normal: Tensor | None = None,
    uniform: Tensor | None = None,
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with M_A and M_W (N, N), U (N, m), b (N), d (N); optionally dt (B, T).

    ``normal`` and ``uniform`` (B, T, N) are the draws n and u, scaled by ``additive`` s_a and ``multiplicative`` s_m;
    without them there is no noise of that kind.
    """
    A = symmetric_skew(params["M_A"], beta, gamma_A)
    W = symmetric_skew(params["M_W"], beta, gamma_W)
    U, b, d = params["U"], params["b"], params["d"]
    h, states = h0, []
    for t in range(x.shape[1]):
        slope = h @ A.T + torch.tanh(h @ W.T + x[:, t] @ U.T + b)
        if uniform is not None:
            slope = ((1 - multiplicative) + multiplicative * uniform[:, t]) * slope
        h = h + d * step_length(1.0, dt, t) * slope
        if normal is not None:
            h = h + additive * normal[:, t]
        states.append(h)
    return torch.stack(states, dim=1)
