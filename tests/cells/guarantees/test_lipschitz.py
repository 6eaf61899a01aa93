"""Guarantees of the Lipschitz cells (propositions of the paper, bounds of one step), and where its conditions fail."""

from __future__ import annotations

import pytest
import torch

from reference.dynamics import (
    cell_at,
    every_stage,
    eye,
)

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
