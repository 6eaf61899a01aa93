"""Coupled oscillatory RNN, implicit-explicit step (Rusch & Mishra, ICLR 2021, "Coupled Oscillatory RNN").

    z_t = z_{t-1} + Dt (tanh(W y_{t-1} + Wz z_{t-1} + V x_t + b) - gamma y_{t-1} - epsilon z_{t-1})
    y_t = y_{t-1} + Dt z_t

y is the position (the hidden state), z the velocity; the second line takes the new z. The damping term is explicit, as
in the released code (the paper admits z_t too). Under irregular sampling Dt is multiplied by the time elapsed
before each step. Vectors are columns in the formula; a batch holds one state per row, so ``W y`` reads ``y @ W.T``.
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
    gamma: float,
    epsilon: float,
    dt: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """All y and all z, each (B, T, N), of x (B, T, m) and dt (B, T), 1 where None.

    With W and Wz (N, N), V (N, m), b (N); Dt of the paper is ``step`` times dt.
    """
    W, Wz, V, b = params["W"], params["Wz"], params["V"], params["b"]
    dt = torch.ones_like(x[:, :, 0]) if dt is None else dt
    y, z, positions, velocities = y0, z0, [], []
    for t in range(x.shape[1]):
        Dt = step * dt[:, t : t + 1]
        z = z + Dt * (torch.tanh(y @ W.T + z @ Wz.T + x[:, t] @ V.T + b) - gamma * y - epsilon * z)
        y = y + Dt * z
        positions.append(y)
        velocities.append(z)
    return torch.stack(positions, dim=1), torch.stack(velocities, dim=1)
