"""Guarantees of the Lipschitz cells (propositions of the paper, bounds of one step), and where its conditions fail."""

from __future__ import annotations

import pytest
import torch

from reference.dynamics import (
    cell_at,
    every_stage,
    eye,
    log_norm,
)
from stablernn import create_cell

LIPSCHITZ = pytest.mark.parametrize("key", ["lipschitz", "lipschitz_rk2"])


class TestLipschitz:
    @LIPSCHITZ
    @every_stage
    @pytest.mark.parametrize("beta", [0.0, 0.5, 0.65, 0.75, 1.0])
    def test_both_matrices_are_the_decomposition_of_their_own_free_matrix(
        self, key: str, beta: float, stage: str
    ) -> None:
        cell = cell_at(stage, key, 7, skew_weight=beta, linear_damping=0.3, recurrent_damping=0.9)
        identity = eye(7)
        for free, gamma, used in (
            (cell.weight_linear, 0.3, cell.linear_matrix()),
            (cell.weight_hh, 0.9, cell.recurrent_matrix()),
        ):
            expected = (1 - beta) * (free + free.T) + beta * (free - free.T) - gamma * identity
            torch.testing.assert_close(used, expected, rtol=0, atol=1e-14)

    @LIPSCHITZ
    def test_published_mnist_settings_fail_theorem_1_at_the_start(self, key: str) -> None:
        cell = create_cell(key, 1, 128, preset="paper").double()
        assert cell.skew_weight == 0.75
        assert cell.linear_damping == cell.recurrent_damping == 0.001
        assert cell.weight_linear.std().item() == pytest.approx(0.1 / 128, rel=0.05)
        # sym(A) has positive eigenvalues: (1 - beta) 2 std sqrt(2 N) - gamma, about .0053.
        assert log_norm(cell.linear_matrix()) == pytest.approx(0.005, abs=0.001)
        # sym(W) too, so that condition (b) fails as well.
        assert log_norm(cell.recurrent_matrix()) > 0
