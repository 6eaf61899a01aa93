"""Guarantees of the linear recurrences and the equilibrium network.

Cells: mingru, minlstm, lru, ren.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.dynamics import cell_at, every_stage, norm
from stablernn import StableRNN, create_cell

MINIMAL = pytest.mark.parametrize("key", ["mingru", "minlstm"])


class TestMinimal:
    @MINIMAL
    @pytest.mark.parametrize("memory", [0.0, 20.0, 500.0])
    def test_time_constants_start_between_two_steps_and_two_more_than_asked(self, key: str, memory: float) -> None:
        kept = create_cell(key, 1, 2000, init_memory=memory).double().recurrent_matrix().detach().diagonal()
        constants = 1 / (1 - kept)
        assert constants.min() >= 2 - 1e-5
        assert constants.max() <= (2 + memory) * (1 + 1e-3)
        assert float(constants.mean()) == pytest.approx(2 + memory / 2, rel=0.05)

    def test_two_closed_gates_of_the_minimal_lstm_are_weighed_and_give_no_quotient_of_zeros(self) -> None:
        cell = create_cell("minlstm", 1, 1)
        with torch.no_grad():
            cell.weight_ih.zero_()
            cell.bias_ih.copy_(torch.tensor([-300.0, -301.0, 2.0]))
        # sigmoid(-300) is zero in float32, their quotient e.
        kept = 1 / (1 + math.exp(-1.0))
        state = cell(torch.zeros(1, 1), torch.full((1, 1), 5.0)).detach()
        assert float(state) == pytest.approx(kept * 5 + (1 - kept) * 2, rel=1e-5)


class TestLRU:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_no_rounding_puts_an_eigenvalue_on_the_unit_circle(self, dtype: torch.dtype) -> None:
        cell = create_cell("lru", 1, 400).to(dtype)
        for decays in torch.linspace(-60, -10, 20_000).split(400):
            with torch.no_grad():
                cell.log_decay.copy_(decays)
                cell.log_phase.uniform_(-3, 3)
            real, imaginary = (part.double() for part in cell.materialize()[:2])
            assert (real.square() + imaginary.square()).max() < 1

    def test_parameters_beyond_the_range_of_the_exponential_leave_finite_numbers(self) -> None:
        layer = StableRNN("lru", 1, 3)
        with torch.no_grad():
            layer.cells[0].get_parameter("log_decay").copy_(torch.tensor([-200.0, 0.0, 200.0]))
            layer.cells[0].get_parameter("log_phase").copy_(torch.tensor([200.0, -200.0, 95.0]))
        output, _ = layer(torch.randn(2, 30, 1))
        output.sum().backward()
        assert torch.isfinite(output).all()
        assert all(
            torch.isfinite(parameter.grad).all() for parameter in layer.parameters() if parameter.grad is not None
        )

    @pytest.mark.parametrize(
        "options", [{}, {"preset": "paper"}, {"min_radius": 0.5, "max_radius": 0.6, "max_phase": 0.3}]
    )
    def test_eigenvalues_start_uniform_over_a_ring_and_states_at_unit_variance(self, options: dict[str, Any]) -> None:
        cell = create_cell("lru", 3, 4000, **options).double()
        eigenvalues = cell.eigenvalues().detach()
        square = eigenvalues.abs().square()
        least, most = cell.min_radius**2, cell.max_radius**2
        assert square.min() >= least - 1e-6
        assert square.max() <= most + 1e-6
        quarters = torch.quantile((square - least) / (most - least), torch.tensor([0.25, 0.5, 0.75]).double())
        torch.testing.assert_close(quarters, torch.tensor([0.25, 0.5, 0.75]).double(), rtol=0, atol=0.04)
        phase = cell.log_phase.exp().detach() / cell.max_phase
        quarters = torch.quantile(phase, torch.tensor([0.25, 0.5, 0.75]).double())
        torch.testing.assert_close(quarters, torch.tensor([0.25, 0.5, 0.75]).double(), rtol=0, atol=0.04)
        # White input of variance 1: E |h|^2 = gain^2 E |B x|^2 / (1 - |l|^2), and E |B x|^2 = sum_j |B_j|^2, about 1.
        squares = cell.weight_ih.square().sum(dim=1).view(2, -1).sum(dim=0)
        assert float(squares.detach().mean()) == pytest.approx(1.0, abs=0.05)
        inside = square < 0.999  # nearer to the circle float32 does not hold 1 - |l|^2
        torch.testing.assert_close(
            (2 * cell.log_gain.detach()).exp()[inside], (1 - square)[inside], rtol=1e-2, atol=1e-6
        )

    def test_the_real_form_of_the_recurrence_has_the_eigenvalues(self) -> None:
        cell = cell_at("perturbed", "lru", 6)
        got = torch.linalg.eigvals(cell.recurrent_matrix().detach())
        expected = cell.eigenvalues().detach()
        for value in torch.cat([expected, expected.conj()]):
            assert (got - value).abs().min() < 1e-12


class TestREN:
    RATES = pytest.mark.parametrize("rate", [1.0, 0.9, 0.5])

    @staticmethod
    def _used(cell: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """A, B1, C1 and D11 as the step uses them."""
        n, q = cell.hidden_size, cell.num_neurons
        weights = cell.materialize()
        return tuple(
            part.detach() for part in (weights.state[q : q + n], weights.neurons[:n], weights.state[:q], weights.within)
        )  # type: ignore[return-value]

    @every_stage
    @RATES
    def test_the_matrix_inequality_holds_for_the_matrices_that_the_step_uses(self, rate: float, stage: str) -> None:
        cell = cell_at(stage, "ren", 6, num_neurons=5, contraction_rate=rate)
        A, B1, C1, D11 = self._used(cell)
        E, P, L = (part.detach() for part in cell.matrices()[:3])
        F, S, R, G = E @ A, E @ B1, L[:, None] * C1, L[:, None] * D11
        W = 2 * torch.diag(L) - G - G.T
        rows = [[E + E.T - P / rate**2, -R.T, F.T], [-R, W, S.T], [F, S, P]]
        inequality = torch.cat([torch.cat(row, dim=1) for row in rows])
        assert norm(inequality - inequality.T) < 1e-10
        assert torch.linalg.eigvalsh(inequality).min() >= cell.margin * (1 - 1e-6)
        assert torch.linalg.eigvalsh(cell.metric().detach()).min() > 0

    def test_in_single_precision_large_and_deficient_parameters_still_contract(self) -> None:
        cell = create_cell("ren", 1, 16, num_neurons=8)
        free = cell.get_parameter("weight_hh")
        with torch.no_grad():
            free.copy_(500 * torch.randn(len(free), 3) @ torch.randn(3, free.shape[1]) / free.shape[1])
        a = cell.recurrent_matrix().detach().double()
        assert torch.linalg.eigvals(a).abs().max() < 1
        assert torch.linalg.eigvalsh(cell.matrices().P).min() > 0

    @RATES
    def test_memory_starts_with_a_rotation_that_keeps_nearly_what_the_rate_allows(self, rate: float) -> None:
        cell = create_cell("ren", 1, 12, contraction_rate=rate).double()
        values = torch.linalg.svdvals(cell.recurrent_matrix().detach()) / rate
        torch.testing.assert_close(values, torch.full_like(values, 0.98), rtol=0, atol=0.003)

    @pytest.mark.parametrize("neurons", [1, 16])
    @pytest.mark.parametrize("hidden", [1, 2, 30])
    @RATES
    def test_the_start_is_possible_at_every_size(self, rate: float, hidden: int, neurons: int) -> None:
        for _ in range(20):
            cell = create_cell("ren", 1, hidden, num_neurons=neurons, contraction_rate=rate)
            assert torch.isfinite(cell.weight_hh).all()
