"""Guarantees of the baselines and the antisymmetric cells, and where they end, computed from their matrices.

Promises are checked on fresh parameters, after a random perturbation and after optimizer steps. Where a paper's claim
does not hold, a test holds the counterexample.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch

from reference.dynamics import (
    TRAINED_STEPS,
    assert_approach,
    cell_at,
    every_stage,
    eye,
    jacobian,
    norm,
    symmetric_part,
    train,
    trajectory,
)
from stablernn import StableRNN, create_cell, list_cells


@pytest.mark.parametrize("key", list_cells())
def test_the_trained_stage_is_not_the_fresh_one(key: str) -> None:
    layer = StableRNN(key, 1, 7).double()
    before = copy.deepcopy(layer.state_dict())
    train(layer, steps=TRAINED_STEPS)
    for name, parameter in layer.named_parameters():
        assert (parameter - before[name]).abs().max() > 1e-3, name


class TestBaselines:
    @every_stage
    @pytest.mark.parametrize("key", ["rnn", "gru"])
    def test_the_state_stays_within_one(self, key: str, stage: str) -> None:
        cell = cell_at(stage, key, 9)
        h0 = torch.empty(4, 9, dtype=torch.float64).uniform_(-1, 1)
        states = trajectory(cell, h0, 10 * torch.randn(50, 1, dtype=torch.float64))
        assert states.abs().max() <= 1

    @every_stage
    def test_lstm_keeps_its_hidden_state_within_one_and_its_cell_state_within_the_number_of_steps(
        self, stage: str
    ) -> None:
        cell = cell_at(stage, "lstm", 9)
        weights, state = cell.materialize(), cell.initial_state(1)
        for t, drive in enumerate(cell.drive(10 * torch.randn(50, 1, dtype=torch.float64)), start=1):
            state = cell.step(weights, state, drive[None])
            assert state[0].abs().max() <= 1
            assert state[1].abs().max() <= t

    def test_lstm_cell_state_can_grow_by_almost_one_a_step(self) -> None:
        cell = create_cell("lstm", 1, 1).double()
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.zero_()
            cell.bias_ih.copy_(torch.tensor([20.0, 20.0, 20.0, 0.0]))  # gates i, f open, candidate at its top
        state = cell.initial_state(1)
        for _ in range(30):
            state = cell.step(cell.materialize(), state, cell.drive(torch.zeros(1, 1, dtype=torch.float64)))
        assert state[1].item() == pytest.approx(30, abs=1e-5)

    def test_lstm_starts_with_an_open_forget_gate(self) -> None:
        bias = create_cell("lstm", 3, 4).bias_ih.detach()
        assert torch.equal(bias, torch.tensor([0.0] * 4 + [1.0] * 4 + [0.0] * 8))

    @every_stage
    def test_rnn_contracts_where_its_matrix_does(self, stage: str) -> None:
        cell = cell_at(stage, "rnn", 9)
        with torch.no_grad():
            cell.weight_hh.mul_(0.9 / norm(cell.weight_hh))
        assert_approach(cell, rate=0.9)


class TestAntisymmetric:
    @every_stage
    @pytest.mark.parametrize("key", ["antisymmetric", "antisymmetric_g"])
    def test_matrix_is_skew_but_for_its_damping(self, key: str, stage: str) -> None:
        k = cell_at(stage, key, 8, damping=0.25).recurrent_matrix().detach()
        assert torch.equal(symmetric_part(k), -0.25 * eye(8))
        assert torch.linalg.eigvals(k).real == pytest.approx(torch.full((8,), -0.25), abs=1e-12)

    @every_stage
    @pytest.mark.parametrize("damping", [0.0, 0.01, 0.6])
    def test_jacobian_eigenvalues_lie_between_the_damped_slopes(self, damping: float, stage: str) -> None:
        cell = cell_at(stage, "antisymmetric", 12, damping=damping, init_scale=2.0)
        k = cell.recurrent_matrix().detach()
        for scale in (0.1, 1.0, 3.0):
            state, x = scale * torch.randn(12, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
            slopes = 1 - torch.tanh(k @ state + cell.drive(x)).square().detach()
            # The step is h + step_size f(h), so the continuous Jacobian is (J_step - I) / step_size.
            continuous = (jacobian(cell, state, x) - eye(12)) / cell.step_size
            torch.testing.assert_close(continuous, torch.diag(slopes) @ k, rtol=0, atol=1e-12)
            real = torch.linalg.eigvals(continuous).real
            assert real.min() >= -damping * slopes.max() - 1e-9
            assert real.max() <= -damping * slopes.min() + 1e-9

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

    def test_the_papers_damped_example_violates_its_own_euler_criterion(self) -> None:
        # At h = 0 the Jacobian is K; the criterion wants every |1 + step_size eigenvalue| at most 1.
        cell = cell_at("fresh", "antisymmetric", 2, step_size=0.1, damping=0.15)
        with torch.no_grad():
            cell.weight_hh.fill_(-2.0)
            cell.bias_ih.zero_()
        step = jacobian(cell, torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        assert torch.linalg.eigvals(step).abs().max() > 1.005

    def test_euler_criterion_holds_up_to_its_largest_step_and_not_beyond(self) -> None:
        cell = cell_at("fresh", "antisymmetric", 10, damping=0.3)
        k = cell.recurrent_matrix()
        skew_norm = norm(k + 0.3 * eye(10))
        largest = 2 * 0.3 / (0.3**2 + skew_norm**2)
        eigenvalues = torch.linalg.eigvals(k)
        assert (1 + 0.999 * largest * eigenvalues).abs().max() <= 1
        assert (1 + 1.001 * largest * eigenvalues).abs().max() > 1

    def test_without_damping_no_step_size_passes_the_euler_criterion(self) -> None:
        eigenvalues = torch.linalg.eigvals(cell_at("fresh", "antisymmetric", 10, damping=0.0).recurrent_matrix())
        for step_size in (1e-4, 1e-2, 1.0):
            assert (1 + step_size * eigenvalues).abs().max() > 1

    def test_paper_preset_draws_with_the_papers_standard_deviations(self) -> None:
        cell = create_cell("antisymmetric", 50, 200, preset="paper")
        assert cell.weight_hh.std().item() == pytest.approx(200**-0.5, rel=0.05)
        assert cell.weight_ih.std().item() == pytest.approx(50**-0.5, rel=0.05)
        assert not cell.bias_ih.any()


class TestGatedAntisymmetric:
    """The text of the paper says that the stability criterion stays satisfied with the gate. It does not."""

    def test_two_units_have_a_real_positive_eigenvalue(self) -> None:
        cell = cell_at("fresh", "antisymmetric_g", 2, damping=0.01)
        with torch.no_grad():
            cell.weight_hh.fill_(1.0)
            cell.weight_ih.zero_()
            cell.bias_ih.copy_(torch.tensor([0.0, 0.0, 0.0, -5.0]))
        step = jacobian(cell, torch.zeros(2, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        velocity = (step - eye(2)) / cell.step_size
        # Gate 1/2 in both units. Unit 0 has tanh = 0 and weight 1/2; unit 1 has tanh = -1 and weight -1/4: the product
        # with [[0, 1], [-1, 0]] has eigenvalues +-sqrt(1/8), less the damping.
        eigenvalues = torch.linalg.eigvals(velocity)
        assert eigenvalues.imag.abs().max() < 1e-12
        assert float(eigenvalues.real.max()) == pytest.approx(math.sqrt(1 / 8), abs=2e-3)
        assert torch.linalg.eigvals(step).abs().max() > 1.03

    def test_the_diagonal_factor_is_the_one_the_docstring_gives(self) -> None:
        cell = cell_at("perturbed", "antisymmetric_g", 6)
        state, x = torch.randn(6, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
        k = cell.recurrent_matrix()
        drive_z, drive_h = cell.drive(x).chunk(2)
        z, t = torch.sigmoid(k @ state + drive_z), torch.tanh(k @ state + drive_h)
        factor = z * ((1 - t.square()) + (1 - z) * t)
        expected = eye(6) + cell.step_size * torch.diag(factor) @ k
        torch.testing.assert_close(jacobian(cell, state, x), expected.detach(), rtol=0, atol=1e-12)

    def test_random_networks_have_them_too(self) -> None:
        cell = cell_at("fresh", "antisymmetric_g", 32, damping=0.01, init_scale=2.0)
        largest = 0.0
        for _ in range(20):
            state, x = 3 * torch.randn(32, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
            velocity = (jacobian(cell, state, x) - eye(32)) / cell.step_size
            largest = max(largest, float(torch.linalg.eigvals(velocity).real.max()))
        assert largest > 0.1
