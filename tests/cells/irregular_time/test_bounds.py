"""Bounds of a step shorter than a regular one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cells.irregular_time.steps import (
    step_lengths,
)
from reference.dynamics import cell_at, log_norm, norm
from stablernn import StableRNN
from stablernn.cells import StableCell


class TestShorterStepsKeepWhatARegularOnePromises:
    """A shorter Euler step is a mean of the regular one and of the identity: it expands only where the regular does."""

    @pytest.mark.parametrize("length", [0.01, 0.3, 1.0])
    def test_of_a_contracting_lipschitz_cell(self, length: float) -> None:
        cell = cell_at("perturbed", "lipschitz", 8, step_size=0.05, linear_damping=4.0, init_scale=0.5)
        with torch.no_grad():
            cell.weight_hh.mul_(0.5 / norm(cell.recurrent_matrix()))
        a, q, w = -log_norm(cell.linear_matrix()), norm(cell.linear_matrix()), norm(cell.recurrent_matrix())
        assert a > w
        assert cell.step_size < min(1 / w, 2 * (a - w) / (q**2 - w**2))
        rate = 1 - length * (1 - _largest_stretch(cell, 1.0))
        assert _largest_stretch(cell, length) <= rate + 1e-12 < 1

    @pytest.mark.parametrize("length", [0.01, 0.3, 1.0])
    def test_of_a_cell_that_does_not_expand_and_does_not_contract(self, length: float) -> None:
        cell = cell_at("perturbed", "neural_ode_rnn", 6, step_size=1.0)
        with torch.no_grad():
            cell.weight_hh.copy_(-torch.diag(torch.linspace(0.1, 2.0, 6)))
            cell.weight_ih.zero_()
            cell.bias_ih.zero_()
        assert _largest_stretch(cell, 1.0) <= 1
        assert _largest_stretch(cell, length) <= 1

    @pytest.mark.parametrize("longest", [1.7, 10.0])
    def test_of_a_long_step_in_parts(self, longest: float) -> None:
        layer = StableRNN("lipschitz", 1, 8, step_size=0.05, linear_damping=6.0, max_dt=longest).double()
        start = 3 * torch.randn(2, 8, dtype=torch.float64)
        x = torch.randn(1, 30, 1, dtype=torch.float64).expand(2, -1, -1)
        dt = step_lengths(1, 30, longest=longest).expand(2, -1)
        states = torch.cat([start[:, None], layer(x, start[None], dt=dt)[0]], dim=1)
        distances = (states[0] - states[1]).norm(dim=-1)
        apart = distances[:-1] > 1e-13
        assert apart.sum() > 5
        assert (distances[1:] - distances[:-1])[apart].max() < 0

    @pytest.mark.parametrize("length", [1e-3, 0.4, 1.0, 17.0])
    @pytest.mark.parametrize("nonlinearity", ["tanh", "softshrink"])
    def test_of_the_hard_constrained_midpoint_rule_at_any_length(self, nonlinearity: str, length: float) -> None:
        cell = cell_at("perturbed", "lvf_mid", 9, nonlinearity=nonlinearity)
        assert _largest_stretch(cell, length) <= 1 + 1e-12

    @pytest.mark.parametrize("length", [0.2, 0.7, 1.0])
    def test_of_nais_net_in_its_spectral_radius(self, length: float) -> None:
        cell = cell_at("trained", "nais_net", 9)
        for _ in range(20):
            step = _jacobian(cell, 2 * torch.randn(9, dtype=torch.float64), length)
            assert torch.linalg.eigvals(step).abs().max() < 1


def _jacobian(cell: StableCell, state: Tensor, length: float) -> Tensor:
    weights = tuple(tensor.detach() for tensor in cell.materialize_timed())
    drive = cell.drive(torch.randn(1, cell.input_size, dtype=torch.float64)).detach()
    dt = torch.full((1, 1), length, dtype=torch.float64)
    matrix = torch.autograd.functional.jacobian(lambda h: cell.step(weights, (h[None],), drive, dt)[0][0], state)
    assert isinstance(matrix, Tensor)
    return matrix


def _largest_stretch(cell: StableCell, length: float) -> float:
    """The largest 2-norm of a step's Jacobian at the same thirty states and inputs."""
    torch.manual_seed(1)
    size = cell.hidden_size
    return max(norm(_jacobian(cell, 2 * torch.randn(size, dtype=torch.float64), length)) for _ in range(30))
