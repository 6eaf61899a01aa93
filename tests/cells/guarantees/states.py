"""States and Jacobians of cells with several state tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablernn.cells import StableCell

State = tuple[Tensor, ...]


def make_wild(cell: Any, scale: float = 3.0) -> Any:
    """The cell with weights far beyond those of training."""
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.normal_(std=scale)
    return cell


def run_steps(cell: StableCell, x: Tensor, state: State | None = None, dt: Tensor | None = None) -> list[State]:
    """States before, between and after the steps over x (T, B, m), each of the length dt (T, B, 1)."""
    weights = cell.materialize()
    states = [cell.initial_state(x.shape[1]) if state is None else state]
    for t, drive in enumerate(cell.drive(x)):
        states.append(cell.step(weights, states[-1], drive, None if dt is None else dt[t]))
    return [tuple(tensor.detach() for tensor in state) for state in states]


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)
