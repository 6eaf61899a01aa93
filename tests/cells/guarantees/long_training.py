"""Layers after 200 optimizer steps, and how far a matrix is from an orthogonal one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stablernn import StableRNN

# A larger matrix and float64 in the same steps are slow tests.
every_long_run = pytest.mark.parametrize(
    ("dtype", "size", "tolerance"),
    [
        pytest.param(torch.float32, 32, 1e-5, id="float32-32"),
        pytest.param(torch.float32, 128, 1e-5, id="float32-128", marks=pytest.mark.slow),
        pytest.param(torch.float64, 128, 1e-10, id="float64-128", marks=pytest.mark.slow),
    ],
)


def off_orthogonal(matrix: Tensor) -> float:
    """The largest entry of W^T W - I."""
    w = matrix.detach()
    return float((w.T @ w - torch.eye(len(w), dtype=w.dtype)).abs().max())


def train_long(key: str, dtype: torch.dtype, size: int, **options: Any) -> Any:
    """A cell after 200 optimizer steps at a rate that moves every entry far."""
    layer = StableRNN(key, 1, size, **options).to(dtype)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    x, target = torch.randn(8, 4, 1, dtype=dtype), torch.randn(8, size, dtype=dtype)
    for step in range(200):
        optimizer.zero_grad()
        (layer(x)[0][:, -1] - target).square().mean().backward()
        optimizer.step()
        layer.after_step(step + 1, 200)
    return layer.cells[0]
