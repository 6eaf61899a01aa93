"""Guarantees of the Lipschitz cells (propositions of the paper, bounds of one step), and where its conditions fail."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.dynamics import (
    assert_approach,
    cell_at,
    every_stage,
    eye,
    jacobian,
    log_norm,
    norm,
    symmetric_part,
    trajectory,
)
from stablernn import create_cell

LIPSCHITZ = pytest.mark.parametrize("key", ["lipschitz", "lipschitz_rk2"])


def _contracting(key: str, stage: str, step_size: float = 0.05) -> Any:
    """A cell for which condition (a) of theorem 1 holds, made so by damping A after the fact."""
    cell = cell_at(stage, key, 10, step_size=step_size, skew_weight=0.8)
    cell.linear_damping += 1.5 * norm(cell.recurrent_matrix()) + max(0.0, log_norm(cell.linear_matrix())) + 0.1
    assert -log_norm(cell.linear_matrix()) > norm(cell.recurrent_matrix())
    return cell


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
    @every_stage
    @pytest.mark.parametrize("beta", [0.5, 0.65, 0.75, 0.8, 1.0])
    def test_spectra_lie_in_the_interval_of_proposition_1(self, key: str, beta: float, stage: str) -> None:
        cell = cell_at(stage, key, 12, skew_weight=beta, linear_damping=0.3, recurrent_damping=0.9)
        for free, gamma, used in (
            (cell.weight_linear, 0.3, cell.linear_matrix()),
            (cell.weight_hh, 0.9, cell.recurrent_matrix()),
        ):
            ends = (1 - beta) * torch.linalg.eigvalsh(free + free.T)[[0, -1]] - gamma
            for values in (torch.linalg.eigvals(used).real, torch.linalg.eigvalsh(symmetric_part(used))):
                assert values.min() >= ends[0] - 1e-9
                assert values.max() <= ends[1] + 1e-9

    @LIPSCHITZ
    def test_skew_weight_one_is_skew_but_for_the_damping(self, key: str) -> None:
        cell = cell_at("perturbed", key, 8, skew_weight=1.0, linear_damping=0.25, recurrent_damping=0.5)
        identity = eye(8)
        assert torch.equal(symmetric_part(cell.linear_matrix()), -0.25 * identity)
        assert torch.equal(symmetric_part(cell.recurrent_matrix()), -0.5 * identity)

    @LIPSCHITZ
    @pytest.mark.parametrize("beta", [0.6, 0.75, 1.0])
    def test_a_gradient_step_moves_the_symmetric_part_by_the_square_of_one_minus_beta(
        self, key: str, beta: float
    ) -> None:
        # Lemma 2, in its exact form: the change is -2 d (1 - beta)^2 (G + G^T) with G = dL/dA.
        cell = cell_at("perturbed", key, 8, skew_weight=beta)
        before, rate = cell.linear_matrix().detach(), 0.1
        gradient = torch.randn(8, 8, dtype=torch.float64)  # dL/dA of the loss below
        (cell.linear_matrix() * gradient).sum().backward()
        torch.optim.SGD([cell.weight_linear], lr=rate).step()
        change = symmetric_part(cell.linear_matrix().detach() - before)
        expected = -2 * rate * (1 - beta) ** 2 * (gradient + gradient.T)
        torch.testing.assert_close(change, expected, rtol=0, atol=1e-13)

    @every_stage
    def test_euler_step_contracts_at_the_computed_rate_under_theorem_1(self, stage: str) -> None:
        cell = _contracting("lipschitz", stage)
        linear, w = cell.linear_matrix().detach(), norm(cell.recurrent_matrix())
        a, q = -log_norm(linear), norm(linear)
        cell.step_size = 0.9 * min(1 / w, 2 * (a - w) / (q**2 - w**2))
        rate = norm(eye(10) + cell.step_size * linear) + cell.step_size * w
        assert rate < 1
        assert_approach(cell, rate, scale=3.0)

    @every_stage
    def test_midpoint_step_contracts_at_the_computed_rate_under_theorem_1(self, stage: str) -> None:
        cell = _contracting("lipschitz_rk2", stage)
        a, q = -log_norm(cell.linear_matrix()), norm(cell.linear_matrix())
        w = norm(cell.recurrent_matrix())

        def bound(e: float) -> float:
            return math.sqrt(1 - 2 * e * a + (e * q) ** 2) + e * w + e**2 / 2 * (q + w) ** 2

        cell.step_size = next(e for e in (0.2 * 0.8**k for k in range(60)) if bound(e) < 1)
        assert_approach(cell, bound(cell.step_size), scale=3.0)

    @LIPSCHITZ
    @every_stage
    def test_step_jacobian_stays_below_its_bound_even_where_nothing_contracts(self, key: str, stage: str) -> None:
        cell = cell_at(stage, key, 10, step_size=0.3)
        linear, e = cell.linear_matrix().detach(), cell.step_size
        a, q, w = -log_norm(linear), norm(linear), norm(cell.recurrent_matrix())
        if key == "lipschitz":
            bound = norm(eye(10) + e * linear) + e * w
        else:
            bound = math.sqrt(1 - 2 * e * a + (e * q) ** 2) + e * w + e**2 / 2 * (q + w) ** 2
        for _ in range(10):
            state, x = 2 * torch.randn(10, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
            assert norm(jacobian(cell, state, x)) <= bound * (1 + 1e-12)

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

    @LIPSCHITZ
    @pytest.mark.parametrize(("damping", "holds"), [(0.02, False), (0.035, True)])
    def test_condition_a_needs_a_damping_of_about_26_thousandths(self, key: str, damping: float, holds: bool) -> None:
        cell = create_cell(key, 1, 128, preset="paper", linear_damping=damping).double()
        assert (log_norm(cell.linear_matrix()) + norm(cell.recurrent_matrix()) < 0) == holds

    @pytest.mark.parametrize(("key", "order"), [("lipschitz", 1), ("lipschitz_rk2", 2)])
    def test_the_scheme_converges_to_the_continuous_unit_at_its_order(self, key: str, order: int) -> None:
        cell = cell_at("perturbed", key, 6)
        x, h0 = torch.ones(1, 1, dtype=torch.float64), torch.randn(1, 6, dtype=torch.float64)
        linear, recurrent, drive = cell.linear_matrix(), cell.recurrent_matrix(), cell.drive(x)

        def velocity(h: Tensor) -> Tensor:
            return h @ linear.T + torch.tanh(h @ recurrent.T + drive)

        exact, fine = h0, 1 / 400
        for _ in range(400):  # the classical fourth-order rule: its error is far below the ones measured
            k1 = velocity(exact)
            k2 = velocity(exact + fine / 2 * k1)
            k3 = velocity(exact + fine / 2 * k2)
            k4 = velocity(exact + fine * k3)
            exact = exact + fine / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        errors = []
        for steps in (40, 80):
            cell.step_size = 1 / steps
            last = trajectory(cell, h0, x.expand(steps, 1))[-1]
            errors.append(float((last - exact.detach()).norm()))
        assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)

    def test_linear_scale_zero_drops_the_linear_term(self) -> None:
        cell = cell_at("perturbed", "lipschitz", 6, linear_scale=0.0)
        before = trajectory(cell, torch.ones(1, 6, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64))
        with torch.no_grad():
            cell.weight_linear.normal_()
        after = trajectory(cell, torch.ones(1, 6, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64))
        assert torch.equal(after, before)
