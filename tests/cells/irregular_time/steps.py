"""Layers and inputs with steps of unequal length, for every cell that takes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stablernn import StableRNN, create_cell, list_cells

TIMED = [key for key in list_cells() if create_cell(key, 2, 3).takes_dt]
UNTIMED = [key for key in list_cells() if key not in TIMED]
every_timed_cell = pytest.mark.parametrize("key", TIMED)


def timed_layer(key: str, num_layers: int = 1, **options: Any) -> StableRNN:
    """A float64 layer of 3 features and 5 units in evaluation mode, away from its start."""
    layer = StableRNN(key, 3, 5, num_layers, **options).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def normal_inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def step_lengths(*shape: int, longest: float = 2.5) -> Tensor:
    return longest * torch.rand(*shape, dtype=torch.float64)


def assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float = 1e-11) -> None:
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance)
