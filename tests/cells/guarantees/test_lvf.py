"""Guarantees of the latent-vector-field cells, and where the paper's criterion and its Euler step fall short."""

from __future__ import annotations

import math

import pytest
import torch

from reference.dynamics import assert_approach, cell_at, every_stage, eye, log_norm, norm, symmetric_part, trajectory
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
    def test_divergences_sum_to_zero_so_the_papers_criterion_holds_for_skew_operators_only(
        self, key: str, stage: str
    ) -> None:
        # Proposition 2 asks for div_i <= 0 at every node. Every edge leaves one node and enters another, so the
        # divergences of a field sum to zero: either all vanish and D is skew, or some eigenvalue of sym(D) is positive.
        cell = cell_at(stage, key, 9, constraint="none")
        d = cell.operator().detach()
        assert d.diagonal().sum().item() == pytest.approx(0, abs=1e-13)
        assert log_norm(d) == pytest.approx(d.diagonal().max().item(), abs=1e-12)
        assert log_norm(d) > 0

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

    @LVF
    @pytest.mark.parametrize("constraint", ["none", "hard"])
    def test_without_the_soft_constraint_there_is_no_penalty(self, key: str, constraint: str) -> None:
        assert create_cell(key, 1, 5, constraint=constraint).penalty() is None

    @LVF
    def test_training_on_the_penalty_makes_the_operator_skew(self, key: str) -> None:
        cell = cell_at("perturbed", key, 7, constraint="soft", divergence_weight=1.0)
        before = cell.penalty().item()
        optimizer = torch.optim.SGD([cell.weight_hh], lr=0.01)
        for _ in range(100):
            optimizer.zero_grad()
            cell.penalty().backward()
            optimizer.step()
        assert cell.penalty().item() < 1e-4 * before

    @every_stage
    @pytest.mark.parametrize("step_size", [0.01, 0.1, 1.0])
    def test_euler_propagator_of_a_skew_operator_expands(self, step_size: float, stage: str) -> None:
        cell = cell_at(stage, "lvf", 9, constraint="hard", step_size=step_size)
        expected = math.sqrt(1 + (step_size * norm(cell.operator())) ** 2)
        assert norm(cell.propagator()) == pytest.approx(expected, rel=1e-12)
        assert norm(cell.propagator()) > 1

    @every_stage
    @pytest.mark.parametrize("step_size", [0.1, 1.0])
    def test_euler_propagator_has_the_norm_its_operator_gives(self, step_size: float, stage: str) -> None:
        cell = cell_at(stage, "lvf", 9, constraint="none", step_size=step_size)
        d = cell.operator().detach()
        gram = eye(9) + 2 * step_size * symmetric_part(d) + step_size**2 * d.T @ d
        assert norm(cell.propagator()) ** 2 == pytest.approx(torch.linalg.eigvalsh(gram).max().item(), rel=1e-12)

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

    def test_midpoint_propagator_solves_the_implicit_midpoint_rule(self) -> None:
        # (h' - h) / dt = D (h' + h) / 2
        cell = cell_at("perturbed", "lvf_mid", 8, constraint="none", step_size=0.7)
        h = torch.randn(8, dtype=torch.float64)
        following = cell.propagator() @ h
        torch.testing.assert_close((following - h) / 0.7, cell.operator() @ (following + h) / 2, rtol=0, atol=1e-10)

    def test_midpoint_propagator_is_orthogonal_in_single_precision_at_any_length_of_the_step(self) -> None:
        matrix = torch.randn(128, 128)
        for step_size in (0.1, 1.0, 1e3):
            propagator = cayley_propagator(matrix - matrix.T, step_size)
            assert propagator.dtype == torch.float32
            exact = propagator.double()
            assert (exact.T @ exact - eye(128)).abs().max() < 2e-6

    def test_midpoint_propagator_has_norm_at_most_one_where_the_symmetric_part_is_negative(self) -> None:

        matrix = torch.randn(8, 8, dtype=torch.float64)
        damped = (matrix - matrix.T) / 2 - torch.diag(torch.rand(8, dtype=torch.float64))
        for step_size in (0.1, 1.0, 10.0):
            assert norm(cayley_propagator(damped, step_size)) <= 1
            assert norm(cayley_propagator(-damped, step_size)) > 1

    def test_midpoint_propagator_expands_as_soon_as_there_is_divergence(self) -> None:
        def stretch(stage: str) -> float:
            return norm(cell_at(stage, "lvf_mid", 9, constraint="none").propagator())

        assert stretch("fresh") == pytest.approx(1, abs=1e-3)
        assert stretch("trained") > 1.001
        assert stretch("perturbed") > 1.1

    @every_stage
    @pytest.mark.parametrize("nonlinearity", ["tanh", "softshrink"])
    def test_hard_constrained_midpoint_cell_never_drives_trajectories_apart(
        self, nonlinearity: str, stage: str
    ) -> None:
        cell = cell_at(stage, "lvf_mid", 9, constraint="hard", nonlinearity=nonlinearity)
        with torch.no_grad():
            # Of either sign: softshrink takes its size, while modReLU below does not survive a positive one.
            cell.bias.copy_(torch.linspace(-0.5, 0.5, 9))
        assert_approach(cell, rate=1.0, scale=2.0)

    def test_a_positive_modrelu_bias_drives_trajectories_apart(self) -> None:
        cell = cell_at("fresh", "lvf_mid", 4, constraint="hard", nonlinearity="modrelu")
        with torch.no_grad():
            cell.bias.fill_(0.5)
        pair = torch.full((2, 4), 1e-3, dtype=torch.float64)
        pair[1] *= -1
        states = trajectory(cell, pair, torch.zeros(1, 1, dtype=torch.float64))
        before, after = (states[:, 0] - states[:, 1]).norm(dim=1).tolist()
        assert after > 100 * before

    def test_modrelu_is_zero_at_zero_and_below_its_threshold(self) -> None:
        z = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])
        assert modrelu(z, torch.full((5,), -1.0)).tolist() == [-1.0, 0.0, 0.0, 0.0, 1.0]
        assert modrelu(z, torch.full((5,), 1.0)).tolist() == [-3.0, -1.5, 0.0, 1.5, 3.0]

    @LVF
    def test_tanh_keeps_the_state_within_one(self, key: str) -> None:
        cell = cell_at("perturbed", key, 9, nonlinearity="tanh")
        h0 = torch.randn(3, 9, dtype=torch.float64)
        assert trajectory(cell, h0, 10 * torch.randn(40, 1, dtype=torch.float64))[1:].abs().max() <= 1
