"""Plain measurements on a cell: matrices, Jacobians and trajectories, for the tests of what a cell promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from stablernn import StableRNN
from stablernn.cells import StableCell

STAGES = ("fresh", "perturbed", "trained")
"""A promise by construction holds at every stage of a cell's life."""
every_stage = pytest.mark.parametrize("stage", STAGES)

TRAINED_STEPS = 20
"""After which the stage "trained" stands: at its rate of learning every parameter has moved by tenths."""


def cell_at(stage: str, key: str, hidden_size: int, **options: Any) -> Any:
    """A float64 cell with one input: as created, after a random perturbation, or after some optimizer steps."""
    layer = StableRNN(key, 1, hidden_size, **options).double()
    if stage == "perturbed":
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(0.5 * torch.randn_like(parameter))
    if stage == "trained":
        train(layer, steps=TRAINED_STEPS)
    return layer.cells[0]


def train(layer: StableRNN, steps: int) -> None:
    """Optimizer steps on a small task whose loss moves every parameter."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    x = torch.randn(8, 12, layer.input_size, dtype=torch.float64)
    if layer.cells[0].takes_missing:
        x[:, ::3] = torch.nan
    target = torch.randn(8, layer.output_size, dtype=torch.float64)
    for step in range(steps):
        optimizer.zero_grad()
        loss = (layer(x)[0][:, -1] - target).square().mean()
        loss.backward()
        optimizer.step()
        layer.after_step(step + 1, steps)


def eye(size: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)


def symmetric_part(matrix: Tensor) -> Tensor:
    return ((matrix + matrix.T) / 2).detach()


def norm(matrix: Tensor) -> float:
    """The spectral norm."""
    return float(torch.linalg.matrix_norm(matrix.detach(), 2))


def log_norm(matrix: Tensor) -> float:
    """mu2: the largest eigenvalue of the symmetric part."""
    return float(torch.linalg.eigvalsh(symmetric_part(matrix)).max())


def jacobian(cell: StableCell, state: Tensor, x: Tensor) -> Tensor:
    """dh_t / dh_{t-1} of one step at state (N) and input x (m), as an (N, N) matrix acting on columns."""
    weights = tuple(tensor.detach() for tensor in cell.materialize())
    drive = cell.drive(x[None]).detach()

    def step(h: Tensor) -> Tensor:
        return cell.step(weights, (h[None],), drive)[0][0]

    matrix = torch.autograd.functional.jacobian(step, state)
    assert isinstance(matrix, Tensor)
    return matrix


def trajectory(cell: StableCell, h0: Tensor, x: Tensor) -> Tensor:
    """States (T + 1, B, N) from h0 (B, N), all rows under the same input x (T, m)."""
    weights, states = cell.materialize(), [h0]
    for drive in cell.drive(x):
        states.append(cell.step(weights, (states[-1],), drive.expand(len(h0), -1))[0])
    return torch.stack(states).detach()


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)
