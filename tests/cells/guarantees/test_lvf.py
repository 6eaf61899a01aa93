"""Guarantees of the latent-vector-field cells, and where the paper's criterion and its Euler step fall short."""

from __future__ import annotations

import pytest
import torch

from reference.dynamics import cell_at, every_stage, eye
from stablernn import create_cell
from stablernn.parametrizations import cayley_propagator, modrelu

LVF = pytest.mark.parametrize("key", ["lvf", "lvf_mid"])


class TestLatentVectorField:
    @LVF
    @every_stage
    @pytest.mark.parametrize("constraint", ["none", "soft"])
    def test_operator_is_skew_plus_half_the_divergence(self, key: str, constraint: str, stage: str) -> None:
        weight = 0.1 if constraint == "soft" else 0.0
        cell = cell_at(stage, key, 9, constraint=constraint, divergence_weight=weight)
        d = cell.operator().detach()
        ones = torch.ones(9, dtype=torch.float64)
        torch.testing.assert_close(d @ ones, torch.zeros_like(ones), rtol=0, atol=1e-13)
        torch.testing.assert_close(d + d.T, torch.diag(2 * d.diagonal()), rtol=0, atol=1e-14)
        # One stored number is one edge: S_01 stands in D_01 and, with the other sign, in D_10.
        assert d[0, 1].item() == cell.weight_hh[0].item()
        assert d[1, 0].item() == -cell.weight_hh[0].item()

    @LVF
    @every_stage
    def test_hard_constraint_is_exactly_skew(self, key: str, stage: str) -> None:
        d = cell_at(stage, key, 9, constraint="hard").operator()
        assert torch.equal(d.T, -d)
        assert d.abs().max() > 0

    @LVF
    def test_a_fresh_operator_is_skew_within_the_tolerance_of_its_start(self, key: str) -> None:
        cell = create_cell(key, 1, 40, constraint="none").double()
        divergence = 2 * cell.operator().diagonal()
        assert 0 < divergence.abs().max() < 1.5e-3
        # Entries of V are near uniform on [0, 2 / (N - 1)], so S = (V^T - V) / 2 has mean modulus 1 / (3 (N - 1)).
        s = cell.weight_hh.detach()
        assert s.abs().max() < 0.5
        assert s.abs().mean().item() == pytest.approx(1 / (3 * 39), rel=0.2)

    @LVF
    @every_stage
    def test_soft_constraint_adds_the_squared_divergence(self, key: str, stage: str) -> None:
        cell = cell_at(stage, key, 7, constraint="soft", divergence_weight=0.3)
        rows, columns = torch.triu_indices(7, 7, offset=1)
        v = torch.zeros(7, 7, dtype=torch.float64)  # any field with (V_ji - V_ij) / 2 = S_ij
        v[columns, rows] = 2 * cell.weight_hh.detach()
        divergence = v.sum(dim=1) - v.sum(dim=0)
        assert cell.penalty().item() == pytest.approx(0.3 * divergence.square().sum().item(), rel=1e-12)

    @every_stage
    @pytest.mark.parametrize("hidden_size", [1, 7, 64])
    @pytest.mark.parametrize("step_size", [0.1, 1.0, 10.0])
    def test_midpoint_propagator_is_orthogonal_under_the_hard_constraint(
        self, hidden_size: int, step_size: float, stage: str
    ) -> None:
        cell = cell_at(stage, "lvf_mid", hidden_size, constraint="hard", step_size=step_size)
        phi = cell.recurrent_matrix()
        identity = eye(hidden_size)
        torch.testing.assert_close(phi @ phi.T, identity, rtol=0, atol=1e-10)
        assert torch.linalg.det(phi).item() == pytest.approx(1, abs=1e-9)

    def test_midpoint_propagator_is_orthogonal_in_single_precision_at_any_length_of_the_step(self) -> None:
        matrix = torch.randn(128, 128)
        for step_size in (0.1, 1.0, 1e3):
            propagator = cayley_propagator(matrix - matrix.T, step_size)
            assert propagator.dtype == torch.float32
            exact = propagator.double()
            assert (exact.T @ exact - eye(128)).abs().max() < 2e-6

    def test_modrelu_is_zero_at_zero_and_below_its_threshold(self) -> None:
        z = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])
        assert modrelu(z, torch.full((5,), -1.0)).tolist() == [-1.0, 0.0, 0.0, 0.0, 1.0]
        assert modrelu(z, torch.full((5,), 1.0)).tolist() == [-3.0, -1.5, 0.0, 1.5, 3.0]
