"""Guarantees of the baselines and the antisymmetric cells, and where they end, computed from their matrices.

Promises are checked on fresh parameters, after a random perturbation and after optimizer steps. Where a paper's claim
does not hold, a test holds the counterexample.
"""

from __future__ import annotations

import copy

import pytest
import torch

from model_helpers import TRAINED
from reference.dynamics import (
    TRAINED_STEPS,
    cell_at,
    every_stage,
    eye,
    symmetric_part,
    train,
    trajectory,
)
from stablernn import StableRNN, create_cell


@pytest.mark.parametrize("key", TRAINED)
def test_the_trained_stage_is_not_the_fresh_one(key: str) -> None:
    layer = StableRNN(key, 1, 7).double()
    before = copy.deepcopy(layer.state_dict())
    train(layer, steps=TRAINED_STEPS)
    for name, parameter in layer.named_parameters():
        assert (parameter - before[name]).abs().max() > 1e-3, name


class TestBaselines:
    def test_lstm_starts_with_an_open_forget_gate(self) -> None:
        bias = create_cell("lstm", 3, 4).bias_ih.detach()
        assert torch.equal(bias, torch.tensor([0.0] * 4 + [1.0] * 4 + [0.0] * 8))


class TestAntisymmetric:
    @every_stage
    @pytest.mark.parametrize("key", ["antisymmetric", "antisymmetric_g"])
    def test_matrix_is_skew_but_for_its_damping(self, key: str, stage: str) -> None:
        k = cell_at(stage, key, 8, damping=0.25).recurrent_matrix().detach()
        assert torch.equal(symmetric_part(k), -0.25 * eye(8))
        assert torch.linalg.eigvals(k).real == pytest.approx(torch.full((8,), -0.25), abs=1e-12)

    @pytest.mark.parametrize(
        ("damping", "growth", "norms"),
        [(0.0, 1.01980, [0.7894, 1.0190, 1.1923]), (0.15, 1.00510, [0.5176, 0.7109, 0.8407])],
        ids=["undamped", "damped"],
    )
    def test_two_dimensional_example_of_the_paper(self, damping: float, growth: float, norms: list[float]) -> None:
        cell = cell_at("fresh", "antisymmetric", 2, step_size=0.1, damping=damping)
        with torch.no_grad():
            cell.weight_hh.fill_(-2.0)
            cell.weight_ih.zero_()
            cell.bias_ih.zero_()
        k = cell.recurrent_matrix().detach()
        assert k.tolist() == [[-damping, -2.0], [2.0, -damping]]
        factor = (1 + 0.1 * torch.linalg.eigvals(k)).abs()
        assert factor == pytest.approx(torch.full((2,), growth), abs=1e-5)
        h0 = torch.tensor([[0, 0.5], [-0.5, -0.5], [0.5, -0.75]], dtype=torch.float64)
        last = trajectory(cell, h0, torch.zeros(50, 1, dtype=torch.float64))[-1]
        assert last.norm(dim=1) == pytest.approx(torch.tensor(norms), abs=6e-5)
