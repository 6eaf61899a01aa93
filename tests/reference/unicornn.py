"""Undamped independent controlled oscillatory RNN, symplectic Euler (Rusch & Mishra, ICML 2021, "UnICORNN").

    z_t = z_{t-1} - Dt sigmoid(c) .* (tanh(w .* y_{t-1} + V x_t + b) + alpha y_{t-1})
    y_t = y_{t-1} + Dt sigmoid(c) .* z_t

y is the position (the hidden state), z the velocity; the second line takes the new z, and undoing the two lines in
reverse order inverts the step exactly. Under irregular sampling Dt is multiplied by the time elapsed before each step.
Vectors are columns in the formula; a batch holds one state per row, so ``V x`` reads ``x @ V.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    y0: Tensor,
    z0: Tensor,
    *,
    step: float,
    alpha: float,
    dt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All y and all z, each (B, T, N), of x (B, T, m) and dt (B, T), 1 where None.

    With w, c and b (N), V (N, m); Dt of the paper is ``step`` times dt.
    """
    w, c, V, b = params["w"], params["c"], params["V"], params["b"]
    dt = torch.ones_like(x[:, :, 0]) if dt is None else dt
    y, z, positions, velocities = y0, z0, [], []
    for t in range(x.shape[1]):
        Dt = step * dt[:, t : t + 1]
        z = z - Dt * torch.sigmoid(c) * (torch.tanh(w * y + x[:, t] @ V.T + b) + alpha * y)
        y = y + Dt * torch.sigmoid(c) * z
        positions.append(y)
        velocities.append(z)
    return torch.stack(positions, dim=1), torch.stack(velocities, dim=1)
