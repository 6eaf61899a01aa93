"""What the inputs of a linear layer do to its outputs, against the layer itself."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from stablernn import StableRNN, create_cell
from stablernn.bounds.linear_response import ImpulseResponse
from stablernn.cells import StableCell
from stablernn.certificates.cascade import cascade


def drawn(hidden: int = 6, features: int = 3, activation: str = "none", **options: float) -> StableCell:
    torch.manual_seed(hidden)
    return create_cell("lru", features, hidden, activation=activation, **options).eval()


def impulse(cell: StableCell, steps: int) -> Tensor:
    """``(steps, outputs, features)``: each feature's effect on the outputs, in float64."""
    exactly = copy.deepcopy(cell).double()
    weights, state = exactly.weights(), exactly.initial_state(cell.input_size)
    given, effects = torch.eye(cell.input_size, dtype=torch.float64), []
    for step in range(steps):
        with torch.no_grad():
            state = exactly.step(weights, state, exactly.drive(given if step == 0 else 0 * given))
        effects.append(state[0].T)
    return torch.stack(effects)


def response(cell: StableCell) -> ImpulseResponse:
    found = cell.step_bound().impulse_response
    assert found is not None
    return found


@pytest.mark.parametrize(("hidden", "features"), [(1, 1), (6, 3), (4, 9)])
def test_the_norms_are_those_of_the_impulse_response(hidden: int, features: int) -> None:
    cell = drawn(hidden, features)
    exact = torch.linalg.matrix_norm(impulse(cell, 300), 2).numpy()
    found = response(cell).norms(300)
    # The model rounds its eigenvalues to float32, powers of them drift apart.
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("steps", [1, 5, 200])
def test_the_last_output_moves_by_no_more_and_by_as_much(steps: int) -> None:
    cell = drawn()
    matrix = torch.cat([*impulse(cell, steps)], dim=1)
    assert response(cell).last_output_gain(steps) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_all_outputs_move_by_no_more_and_almost_as_much(steps: int) -> None:
    cell = drawn()
    effects = impulse(cell, steps)
    blocks = [
        [effects[row - column] if row >= column else 0 * effects[0] for column in range(steps)] for row in range(steps)
    ]
    exact = float(torch.linalg.matrix_norm(torch.cat([torch.cat(row, dim=1) for row in blocks]), 2))
    assert exact * (1 - 1e-4) <= response(cell).all_outputs_gain(steps) <= 1.6 * exact


def test_the_sum_over_any_time() -> None:
    cell = drawn(max_radius=0.97)
    exact = float(torch.linalg.matrix_norm(impulse(cell, 3000), 2).sum())
    assert exact * (1 - 1e-4) <= response(cell).total_gain <= 1.1 * exact
    assert replace(response(cell), poles=np.full(6, 1.0 + 0j)).total_gain == np.inf


def test_layers_pass_it_on() -> None:
    torch.manual_seed(0)
    layers = StableRNN("lru", 2, 5, 2, activation="none").double().eval()
    proved = cascade(layers.cells)
    x = torch.zeros(2, 80, 2, dtype=torch.float64)
    x[:, 0] = torch.eye(2)
    with torch.no_grad():
        effects = layers(x)[0].permute(1, 2, 0)
    total = float(torch.linalg.matrix_norm(effects, 2).sum())
    assert total <= proved.gains(80)[1] <= proved.total_gain()
