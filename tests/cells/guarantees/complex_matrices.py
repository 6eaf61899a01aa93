"""Measures of unitary matrices and of complex states."""

from __future__ import annotations

import torch
from torch import Tensor


def value_id(value: object) -> str | None:
    return (
        ",".join(f"{name}={option}" for name, option in value.items()) or "default" if isinstance(value, dict) else None
    )


def excess(matrix: Tensor) -> float:
    """Largest entry of W^H W - I."""
    return float((matrix.mH @ matrix - torch.eye(len(matrix), dtype=matrix.dtype)).abs().max())


def complex_randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.complex128)


def stacked(z: Tensor) -> Tensor:
    return torch.cat([z.real, z.imag], dim=-1)
