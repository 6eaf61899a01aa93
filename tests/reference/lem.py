"""Long expressive memory (Rusch, Mishra, Erichson, Mahoney, ICLR 2022).

    a   = Dt sigmoid(W1 y_{t-1} + V1 x_t + b1)
    c   = Dt sigmoid(W2 y_{t-1} + V2 x_t + b2)
    z_t = (1 - c) .* z_{t-1} + c .* tanh(Wz y_{t-1} + Vz x_t + bz)
    y_t = (1 - a) .* y_{t-1} + a .* tanh(Wy z_t + Vy x_t + by)

y is the hidden state, z the memory; the last line takes the new z. The indices are the released code's, where 1 is the
time scale of y and 2 that of z; the paper counts them the other way round. Under irregular sampling Dt is multiplied by
the time elapsed before each step. Vectors are columns in the formula; a batch holds one state per row, so ``W1 y``
reads ``y @ W1.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sequence(
    params: dict[str, Tensor], x: Tensor, y0: Tensor, z0: Tensor, *, step: float, dt: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """All y and all z, each (B, T, N), of x (B, T, m) and dt (B, T), 1 where None.

    With W1, W2, Wz, Wy (N, N), V1, V2, Vz, Vy (N, m), b1, b2, bz, by (N); Dt of the paper is ``step`` times dt.
    """
    p = params
    dt = torch.ones_like(x[:, :, 0]) if dt is None else dt
    y, z, hidden, memory = y0, z0, [], []
    for t in range(x.shape[1]):
        u, Dt = x[:, t], step * dt[:, t : t + 1]
        a = Dt * torch.sigmoid(y @ p["W1"].T + u @ p["V1"].T + p["b1"])
        c = Dt * torch.sigmoid(y @ p["W2"].T + u @ p["V2"].T + p["b2"])
        z = (1 - c) * z + c * torch.tanh(y @ p["Wz"].T + u @ p["Vz"].T + p["bz"])
        y = (1 - a) * y + a * torch.tanh(z @ p["Wy"].T + u @ p["Vy"].T + p["by"])
        hidden.append(y)
        memory.append(z)
    return torch.stack(hidden, dim=1), torch.stack(memory, dim=1)
