"""Formulas that several references share: skew and orthogonal matrices, modReLU, the length of a step.

Each is the plain formula, dense and slow. The matrix exponential is a Taylor series of its own, not torch's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def skew(M: Tensor) -> Tensor:
    """triu(M, 1) - triu(M, 1)^T: only the entries of M (N, N) above the diagonal count."""
    upper = torch.triu(M, diagonal=1)
    return upper - upper.T


def skew_hermitian(S: Tensor, Y: Tensor) -> Tensor:
    """A complex with A_jk = S_jk + i Y_jk and A_kj = -conj(A_jk) for j < k, A_jj = i Y_jj: N^2 real numbers.

    Of S only the entries above the diagonal count, of Y those above and on it.
    """
    above, on = torch.triu(Y, diagonal=1), torch.diag(torch.diagonal(Y))
    return torch.complex(skew(S), above + above.T + on)


def exponential(A: Tensor) -> Tensor:
    """exp(A) by scaling and squaring: 20 Taylor terms of A / 2^k, of column-sum norm at most 1/2, squared k times."""
    size = float(A.detach().abs().sum(dim=0).max())
    assert math.isfinite(size)
    squarings = 0
    while size > 0.5:
        size, squarings = size / 2, squarings + 1
    scaled = A / 2**squarings
    term = total = torch.eye(A.shape[0], dtype=A.dtype)
    for k in range(1, 20):
        term = term @ scaled / k
        total = total + term
    for _ in range(squarings):
        total = total @ total
    return total


def cayley(A: Tensor) -> Tensor:
    """(I + A)^{-1} (I - A), the sign of the scaled Cayley transform (Helfrich et al. 2018); about exp(-2 A)."""
    identity = torch.eye(A.shape[0], dtype=A.dtype)
    inverse: Tensor = torch.linalg.inv(identity + A)
    return inverse @ (identity - A)


def orthogonal(A: Tensor, parametrization: str) -> Tensor:
    """The orthogonal or unitary matrix of a skew or skew-Hermitian A: "exp" or "cayley"."""
    if parametrization == "exp":
        return exponential(A)
    assert parametrization == "cayley"
    return cayley(A)


def reflection(u: Tensor) -> Tensor:
    """I - 2 u u^H / ||u||^2, (N, N), of a real or complex u (N)."""
    outer = u[:, None] * torch.conj(u)[None, :]
    return torch.eye(u.shape[0], dtype=u.dtype) - 2 * outer / torch.diagonal(outer).sum()


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """sign(z) max(|z| + b, 0) of a real z, with sign(0) = 0."""
    return torch.sign(z) * torch.clamp(torch.abs(z) + b, min=0)


def modulus(z: Tensor) -> Tensor:
    """|z| as sqrt(re^2 + im^2 + 1e-10): the gradient at zero exists."""
    return torch.sqrt(z.real**2 + z.imag**2 + 1e-10)


def complex_modrelu(z: Tensor, b: Tensor) -> Tensor:
    """z max(|z| + b, 0) / (|z| + 1e-5) of a complex z, with a real b."""
    n = modulus(z)
    return z * (torch.clamp(n + b, min=0) / (n + 1e-5))


def activation(z: Tensor, b: Tensor, nonlinearity: str) -> Tensor:
    """modrelu(z, b); or "tanh" and "relu" of z + b. Each has the one trained vector b (N)."""
    if nonlinearity == "modrelu":
        return modrelu(z, b)
    if nonlinearity == "tanh":
        return torch.tanh(z + b)
    assert nonlinearity == "relu"
    return torch.relu(z + b)


def step_length(eps: float, dt: Tensor | None, t: int) -> float | Tensor:
    """eps dt_t, (B, 1), with dt (B, T) in units of the regular step; eps where every step is regular (dt None)."""
    return eps if dt is None else eps * dt[:, t : t + 1]


def stacked(states: list[Tensor]) -> Tensor:
    """Complex states, each (B, N), as [Re | Im] over time, (B, T, 2N)."""
    z = torch.stack(states, dim=1)
    return torch.cat([z.real, z.imag], dim=-1)
