"""Kronecker recurrent unit (Jose, Cisse, Fleuret, ICML 2018), in complex numbers.

    W   = W_1 (x) ... (x) W_F,  W_f complex, p_f x p_f,  prod p_f = N
    h_t = modReLU(W h_{t-1} + U x_t),  modReLU(z) = z max(|z| + b, 0) / (|z| + 1e-5),  |z| = sqrt(re^2 + im^2 + 1e-10)
    added to the loss: lam sum_f ||W_f^H W_f - I||_F^2

The bias is modReLU's real b, one number a unit. Vectors are columns in the formula; a batch holds one state per row,
so ``W h`` reads ``h @ W.T`` below (a transpose, never a conjugate transpose).
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import complex_modrelu, stacked


def factors(params: dict[str, Tensor]) -> list[Tensor]:
    """W_1, ..., W_F, complex."""
    count = sum(name.endswith("_re") and name.startswith("W_") for name in params)
    return [torch.complex(params[f"W_{f}_re"], params[f"W_{f}_im"]) for f in range(1, count + 1)]


def recurrent_matrix(params: dict[str, Tensor]) -> Tensor:
    """W (N, N) complex: the first factor acts on the slowest index."""
    W = torch.ones(1, 1, dtype=torch.complex128)
    for factor in factors(params):
        W = torch.kron(W, factor)
    return W


def penalty(params: dict[str, Tensor]) -> Tensor:
    """sum_f ||W_f^H W_f - I||_F^2."""
    total = torch.zeros((), dtype=torch.float64)
    for W in factors(params):
        excess = W.conj().T @ W - torch.eye(W.shape[0], dtype=W.dtype)
        total = total + (excess.real**2 + excess.imag**2).sum()
    return total


def sequence(params: dict[str, Tensor], x: Tensor, hidden0: Tensor) -> Tensor:
    """All states [Re | Im] (B, T, 2N) of x (B, T, m).

    With W_f_re and W_f_im (p_f, p_f) for f = 1, ..., F ("W_1_re", "W_1_im", ...); U_re, U_im (N, m); b (N). hidden0 is
    (B, 2N).
    """
    W, U, size = recurrent_matrix(params), torch.complex(params["U_re"], params["U_im"]), params["b"].shape[0]
    h, states = torch.complex(hidden0[:, :size], hidden0[:, size:]), []
    for t in range(x.shape[1]):
        h = complex_modrelu(h @ W.T + x[:, t].to(U.dtype) @ U.T, params["b"])
        states.append(h)
    return stacked(states)
