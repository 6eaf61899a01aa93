"""FastGRNN (Kusupati, Singh, Bhatia, Kumar, Jain, Varma, NeurIPS 2018).

    p_t = W x_t + U h_{t-1}
    z_t = g(p_t + b_g)
    c_t = f(p_t + b_u)
    h_t = z_t .* h_{t-1} + (sigmoid(zeta) (1 - z_t) + sigmoid(nu)) .* c_t

g is the sigmoid and f is tanh, or their piecewise linear stand-ins. W and U dense, of low rank and masked as in
fastrnn.py: dense and unmasked they are FastGRNN-LSQ (minus low rank, sparsity and quantization). Vectors are columns in
the formula; a batch holds one state per row, so ``U h`` reads ``h @ U.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.fastrnn import function, matrix


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    h0: Tensor,
    *,
    gate_nonlinearity: str = "sigmoid",
    nonlinearity: str = "tanh",
) -> Tensor:
    """All states (B, T, N) of x (B, T, m), with b_g and b_u (N) and the scalars zeta and nu, before the sigmoid.

    W and U, or their factors and masks, as in fastrnn.py.
    """
    W, U = matrix(params, "W"), matrix(params, "U")
    zeta, nu = torch.sigmoid(params["zeta"]), torch.sigmoid(params["nu"])
    h, states = h0, []
    for t in range(x.shape[1]):
        p = x[:, t] @ W.T + h @ U.T
        z = function(p + params["b_g"], gate_nonlinearity)
        c = function(p + params["b_u"], nonlinearity)
        h = z * h + (zeta * (1 - z) + nu) * c
        states.append(h)
    return torch.stack(states, dim=1)
