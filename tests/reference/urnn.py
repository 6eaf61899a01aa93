"""Unitary evolution RNN (Arjovsky, Shah, Bengio, ICML 2016), in complex numbers.

    W   = D_3 R_2 F^{-1} D_2 Pi R_1 F D_1
    D_k = diag(exp(i theta_k))
    R_k = I - 2 v_k v_k^H / ||v_k||^2
    F_jk = exp(-2 pi i j k / N) / sqrt(N),  F^{-1} = F^H
    (Pi h)_j = h_{pi(j)}, a fixed permutation
    h_t = modReLU(W h_{t-1} + V x_t),  modReLU(z) = z max(|z| + b, 0) / (|z| + 1e-5),  |z| = sqrt(re^2 + im^2 + 1e-10)

h_0 is trained: it stands in for the state of a sequence that has not started. Vectors are columns in the formula; a
batch holds one state per row, so ``W h`` reads ``h @ W.T`` below (a transpose, never a conjugate transpose).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.pieces import complex_modrelu, reflection, stacked


def fourier_matrix(size: int) -> Tensor:
    """F (N, N), unitary."""
    index = torch.arange(size, dtype=torch.float64)
    angle = -2 * math.pi * torch.outer(index, index) / size
    return torch.complex(torch.cos(angle), torch.sin(angle)) / math.sqrt(size)


def permutation_matrix(permutation: Tensor) -> Tensor:
    """Pi (N, N), with (Pi h)_j = h_{permutation[j]}."""
    size = permutation.shape[0]
    return torch.eye(size, dtype=torch.complex128)[permutation]


def recurrent_matrix(params: dict[str, Tensor]) -> Tensor:
    """W (N, N) complex, of theta (3, N), v_re and v_im (2, N), permutation (N) of integers."""
    theta = params["theta"]
    D = [torch.diag(torch.complex(torch.cos(theta[k]), torch.sin(theta[k]))) for k in range(3)]
    v = torch.complex(params["v_re"], params["v_im"])
    R = [reflection(v[k]) for k in range(2)]
    F, Pi = fourier_matrix(theta.shape[1]), permutation_matrix(params["permutation"])
    return D[2] @ R[1] @ F.conj().T @ D[1] @ Pi @ R[0] @ F @ D[0]


def unitary_sequence(
    W: Tensor, params: dict[str, Tensor], x: Tensor, hidden0: Tensor, started0: Tensor
) -> tuple[Tensor, Tensor]:
    """The recurrence with a given complex W (N, N): hidden states (B, T, 2N) and the marks (B, T, 1)."""
    size = W.shape[0]
    V, h_0 = torch.complex(params["V_re"], params["V_im"]), torch.complex(params["h0_re"], params["h0_im"])
    h = torch.where(started0 == 0, h_0, torch.complex(hidden0[:, :size], hidden0[:, size:]))
    states = []
    for t in range(x.shape[1]):
        h = complex_modrelu(h @ W.T + x[:, t].to(V.dtype) @ V.T, params["b"])
        states.append(h)
    return stacked(states), torch.ones(x.shape[0], x.shape[1], 1, dtype=x.dtype)


def sequence(params: dict[str, Tensor], x: Tensor, hidden0: Tensor, started0: Tensor) -> tuple[Tensor, Tensor]:
    """All states [Re | Im] (B, T, 2N) of x (B, T, m), and the marks (B, T, 1) that a sequence has started.

    With theta (3, N); v_re, v_im (2, N); permutation (N), integers; V_re, V_im (N, m); b, h0_re, h0_im (N). hidden0 is
    (B, 2N), started0 (B, 1): where it is 0, h_0 replaces the row of hidden0.
    """
    return unitary_sequence(recurrent_matrix(params), params, x, hidden0, started0)
