"""Efficient unitary RNN, EURNN (Jing, Shen, Dubcek, Peurifoy, Skirlo, LeCun, Tegmark, Soljacic, ICML 2017).

    W   = D F_L ... F_1,  D = diag(exp(i omega))
    F_l  rotates disjoint pairs (i, j), each with its angles theta, phi:
         h_i <- cos(theta) h_i - exp(i phi) sin(theta) h_j
         h_j <- sin(theta) h_i + exp(i phi) cos(theta) h_j
    h_t = modReLU(W h_{t-1} + U x_t),  modReLU(z) = (z / n) max(n + b, 0),  n = |z| + .01

Tunable style: the layers take the pairs (0,1) (2,3) .. and (1,2) (3,4) .. in turn; a unit without a partner stays as it
is. FFT style: log2 N layers, layer k = 0, 1, .. pairs the units whose numbers differ in bit k. The complex |z| is
sqrt(re^2 + im^2 + 1e-10). The real variant has phi = omega = 0 and modReLU(z) = sign(z) max(|z| + .01 + b, 0). Vectors
are columns in the formula; a batch holds one state per row, so ``W h`` reads ``h @ W.T`` below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reference.pieces import modulus


def layer_pairs(size: int, capacity: int, style: str) -> list[list[tuple[int, int]]]:
    """The pairs of each layer, F_1 first, in ascending order of their first unit."""
    if style == "tunable":
        return [[(i, i + 1) for i in range(layer % 2, size - 1, 2)] for layer in range(capacity)]
    assert style == "fft"
    assert size & (size - 1) == 0
    return [[(i, i | 1 << k) for i in range(size) if not i >> k & 1] for k in range(size.bit_length() - 1)]


def recurrent_matrix(params: dict[str, Tensor], *, size: int, variant: str, capacity: int, style: str) -> Tensor:
    """W (N, N), complex or real: a product of layers, each an N x N matrix of 2 x 2 rotations."""
    theta = params["theta"]
    phi = params["phi"] if variant == "complex" else torch.zeros_like(theta)
    turn = torch.complex(torch.cos(phi), torch.sin(phi))
    W = torch.eye(size, dtype=torch.complex128)
    first = 0  # where the angles of the layer begin
    for pairs in layer_pairs(size, capacity, style):
        F = torch.eye(size, dtype=torch.complex128)
        for k, (i, j) in enumerate(pairs, start=first):
            c, s = torch.cos(theta[k]), torch.sin(theta[k])
            F[i, i], F[i, j] = c.to(F.dtype), -turn[k] * s
            F[j, i], F[j, j] = s.to(F.dtype), turn[k] * c
        W, first = F @ W, first + len(pairs)
    assert first == theta.shape[0]
    if variant == "real":
        return W.real
    omega = params["omega"]
    return torch.diag(torch.complex(torch.cos(omega), torch.sin(omega))) @ W


def sequence(
    params: dict[str, Tensor],
    x: Tensor,
    hidden0: Tensor,
    imaginary0: Tensor | None = None,
    *,
    variant: str = "complex",
    capacity: int = 2,
    style: str = "tunable",
) -> Tensor | tuple[Tensor, Tensor]:
    """All states of x (B, T, m): (Re, Im), each (B, T, N), or for the real variant one real (B, T, N).

    With theta (P), the angles of all pairs, layer F_1 first; b (N). Complex: phi (P), omega (N), U_re and U_im (N, m).
    Real: U (N, m). The capacity L does not count in FFT style.
    """
    size, b = hidden0.shape[1], params["b"]
    W = recurrent_matrix(params, size=size, variant=variant, capacity=capacity, style=style)
    states = []
    if variant == "real":
        h = hidden0
        for t in range(x.shape[1]):
            z = h @ W.T + x[:, t] @ params["U"].T
            h = torch.sign(z) * torch.clamp(torch.abs(z) + 0.01 + b, min=0)
            states.append(h)
        return torch.stack(states, dim=1)
    assert variant == "complex"
    assert imaginary0 is not None
    h, U = torch.complex(hidden0, imaginary0), torch.complex(params["U_re"], params["U_im"])
    for t in range(x.shape[1]):
        z = h @ W.T + x[:, t].to(U.dtype) @ U.T
        n = modulus(z) + 0.01
        h = z / n * torch.clamp(n + b, min=0)
        states.append(h)
    all_states = torch.stack(states, dim=1)
    return all_states.real, all_states.imag
