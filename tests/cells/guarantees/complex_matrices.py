"""Measures of unitary matrices and of complex states."""

from __future__ import annotations

import torch
from torch import Tensor

from stablernn.cells import StableCell


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


def distances(cell: StableCell, hidden: Tensor, x: Tensor) -> Tensor:
    """How far apart the two rows of ``hidden`` (2, size) are at each time, both under the input x (T, m)."""
    weights, started = cell.materialize(), torch.ones(2, 1, dtype=hidden.dtype)
    state: tuple[Tensor, ...] = tuple(
        started if name == "started" else part
        for name, part in zip(cell.state_names, split_state(cell, hidden), strict=True)
    )
    differences = [hidden[0] - hidden[1]]
    for drive in cell.drive(x):
        state = cell.step(weights, state, drive.expand(2, -1))
        moved = torch.cat(
            [part for part, name in zip(state, cell.state_names, strict=True) if name != "started"], dim=1
        )
        differences.append(moved[0] - moved[1])
    return torch.stack(differences).norm(dim=1).detach()


def split_state(cell: StableCell, hidden: Tensor) -> list[Tensor]:
    sizes = [0 if name == "started" else size for name, size in zip(cell.state_names, cell.state_sizes, strict=True)]
    return list(hidden.split(sizes, dim=1))
