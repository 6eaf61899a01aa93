"""Guarantees of the linear recurrences and the equilibrium network.

Cells: mingru, minlstm, lru, ren.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.dynamics import cell_at, every_stage, eye, norm, random_normal, states_after, trajectory
from stablernn import StableRNN, create_cell

MINIMAL = pytest.mark.parametrize("key", ["mingru", "minlstm"])


class TestMinimal:
    @MINIMAL
    @every_stage
    def test_the_state_never_leaves_the_range_of_its_start_and_the_candidates(self, key: str, stage: str) -> None:
        cell = cell_at(stage, key, 9)
        x, h0 = 3 * random_normal(60, 1), random_normal(4, 9)
        candidates = (x @ cell.weight_ih[-9:].T + cell.bias_ih[-9:]).detach()
        states = trajectory(cell, h0, x)
        least = torch.minimum(candidates.amin(dim=0), h0)
        most = torch.maximum(candidates.amax(dim=0), h0)
        assert (states >= least - 1e-12).all()
        assert (states <= most + 1e-12).all()

    @MINIMAL
    @every_stage
    def test_two_states_approach_in_every_unit_by_what_is_kept(self, key: str, stage: str) -> None:
        cell = cell_at(stage, key, 9)
        x = random_normal(30, 1)
        states = trajectory(cell, 5 * random_normal(2, 9), x)
        kept = cell.drive(x).detach()[:, :9]
        assert (kept < 1).all()
        assert (kept > 0).all()
        difference = states[:, 0] - states[:, 1]
        torch.testing.assert_close(difference[1:], difference[0] * kept.cumprod(dim=0), rtol=1e-9, atol=1e-13)

    @every_stage
    def test_bounded_inputs_bound_the_rate(self, stage: str) -> None:
        cell = cell_at(stage, "mingru", 9)
        bound = torch.sigmoid(cell.weight_ih[:9].abs().sum(dim=1) * 2.0 - cell.bias_ih[:9])
        for x in (2 * torch.rand(200, 1, dtype=torch.float64) - 1) * 2.0:
            assert (cell.drive(x)[:9] <= bound).all()

    @MINIMAL
    def test_the_recurrence_is_linear_in_the_state_and_has_a_closed_form(self, key: str) -> None:
        cell = cell_at("perturbed", key, 5)
        x, h0 = random_normal(20, 1), random_normal(1, 5)
        kept, added = cell.drive(x).detach().chunk(2, dim=-1)
        products = kept.cumprod(dim=0)
        expected = products[-1] * (h0 + (added / products).sum(dim=0))
        torch.testing.assert_close(trajectory(cell, h0, x)[-1], expected, rtol=1e-9, atol=1e-12)

    @MINIMAL
    @pytest.mark.parametrize("memory", [0.0, 20.0, 500.0])
    def test_time_constants_start_between_two_steps_and_two_more_than_asked(self, key: str, memory: float) -> None:
        kept = create_cell(key, 1, 2000, init_memory=memory).double().recurrent_matrix().detach().diagonal()
        constants = 1 / (1 - kept)
        assert constants.min() >= 2 - 1e-5
        assert constants.max() <= (2 + memory) * (1 + 1e-3)
        assert float(constants.mean()) == pytest.approx(2 + memory / 2, rel=0.05)

    @MINIMAL
    def test_the_paper_starts_its_gates_without_a_bias(self, key: str) -> None:
        assert not create_cell(key, 2, 6, preset="paper").bias_ih.any()

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
    @every_stage
    def test_every_eigenvalue_lies_inside_the_unit_circle(self, stage: str) -> None:
        cell = cell_at(stage, "lru", 20)
        assert cell.eigenvalues().abs().max() < 1

    def test_no_value_of_the_parameters_puts_an_eigenvalue_outside(self) -> None:
        cell = create_cell("lru", 1, 200).double()
        with torch.no_grad():
            cell.log_decay.copy_(torch.linspace(-30, 30, 200))
            cell.log_phase.copy_(torch.linspace(-20, 5, 200))
        assert cell.eigenvalues().abs().max() < 1

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

    @every_stage
    def test_two_states_approach_unit_by_unit_at_the_modulus_of_the_eigenvalue(self, stage: str) -> None:
        cell = cell_at(stage, "lru", 8)
        start = (torch.zeros(2, 8, dtype=torch.float64), random_normal(2, 16))
        states = states_after(cell, start, random_normal(40, 1))
        moduli = cell.eigenvalues().abs().detach()
        for before, after in itertools.pairwise(states):
            distance = [torch.hypot(*(part[0] - part[1]).chunk(2)) for _, part in (before, after)]
            torch.testing.assert_close(distance[1], moduli * distance[0], rtol=1e-6, atol=1e-13)

    @every_stage
    def test_the_state_is_a_sum_of_powers_of_the_eigenvalues(self, stage: str) -> None:
        cell = cell_at(stage, "lru", 6, activation="none")
        x = random_normal(25, 1)
        real, imaginary = cell.weight_ih.detach().chunk(2)
        driven = torch.exp(cell.log_gain) * (x.to(torch.complex128) @ torch.complex(real, imaginary).T)
        powers = cell.eigenvalues() ** torch.arange(24, -1, -1)[:, None]
        h = (powers * driven).sum(dim=0).detach()
        C = torch.complex(*cell.weight_output.detach().chunk(2, dim=1))
        y, hidden = states_after(cell, cell.initial_state(1), x)[-1]
        torch.testing.assert_close(hidden[0], torch.cat([h.real, h.imag]), rtol=1e-9, atol=1e-12)
        expected = (C @ h).real + cell.weight_skip.detach() @ x[-1]
        torch.testing.assert_close(y[0], expected, rtol=1e-9, atol=1e-12)

    @every_stage
    def test_a_bounded_input_gives_a_bounded_state(self, stage: str) -> None:
        cell = cell_at(stage, "lru", 8)
        x = torch.sign(random_normal(500, 1))
        real, imaginary = cell.weight_ih.chunk(2)
        driven = torch.exp(cell.log_gain) * torch.hypot(real, imaginary).sum(dim=1)
        bound = driven / (1 - cell.eigenvalues().abs())
        for _, hidden in states_after(cell, cell.initial_state(1), x):
            assert (torch.hypot(*hidden.chunk(2, dim=1)) <= bound * (1 + 1e-9)).all()

    def test_the_activation_touches_the_output_alone(self) -> None:
        cell = cell_at("perturbed", "lru", 5, activation="none")
        x, start = random_normal(10, 1), cell.initial_state(2)
        plain = states_after(cell, start, x)
        cell.activation = "gelu"
        for (y, hidden), (curved, same) in zip(plain[1:], states_after(cell, start, x)[1:], strict=True):
            assert torch.equal(hidden, same)
            torch.testing.assert_close(curved, y * (1 + torch.erf(y / math.sqrt(2))) / 2)

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

    @every_stage
    @RATES
    def test_two_states_under_one_input_approach_at_the_rate_in_the_metric(self, rate: float, stage: str) -> None:
        cell = cell_at(stage, "ren", 6, num_neurons=5, contraction_rate=rate)
        factor = torch.linalg.cholesky(cell.metric().detach())
        for scale in (0.1, 1.0, 10.0):
            start = (torch.zeros(2, 6, dtype=torch.float64), scale * random_normal(2, 6))
            states = states_after(cell, start, scale * random_normal(40, 1))
            hidden = torch.stack([state[1] for state in states])
            distances = ((hidden[:, 0] - hidden[:, 1]) @ factor).norm(dim=1)
            excess = distances[1:] - rate * distances[:-1]
            allowed = 1e-13 * (1 + hidden.abs().max()) * norm(factor)
            assert excess.max() <= allowed, f"margin {float(-excess.max()):.3g}"

    @every_stage
    @RATES
    def test_it_contracts_whatever_slopes_within_0_and_1_the_neurons_have(self, rate: float, stage: str) -> None:
        # Trajectories visit few slopes; the promise is for all of them, of which the corners are the worst.
        cell = cell_at(stage, "ren", 4, num_neurons=4, contraction_rate=rate)
        A, B1, C1, D11 = self._used(cell)
        factor = torch.linalg.cholesky(cell.metric().detach())
        corners = torch.tensor(list(itertools.product([0.0, 1.0], repeat=4)), dtype=torch.float64)
        largest = 0.0
        for slopes in torch.cat([corners, torch.rand(40, 4, dtype=torch.float64)]):
            D = torch.diag(slopes)
            jacobian = A + B1 @ torch.linalg.solve(eye(4) - D @ D11, D @ C1)
            largest = max(largest, norm(factor.T @ jacobian @ torch.linalg.inv(factor.T)))
        assert largest <= rate * (1 + 1e-9), f"margin {rate - largest:.3g}"

    @every_stage
    def test_a_rate_of_one_still_contracts_strictly(self, stage: str) -> None:
        cell = cell_at(stage, "ren", 6, num_neurons=5)
        start = (torch.zeros(2, 6, dtype=torch.float64), random_normal(2, 6))
        states = states_after(cell, start, random_normal(3000, 1))
        first, last = (float((states[index][1][0] - states[index][1][1]).norm()) for index in (0, -1))
        assert last < 1e-3 * first

    def test_in_single_precision_large_and_deficient_parameters_still_contract(self) -> None:
        cell = create_cell("ren", 1, 16, num_neurons=8)
        free = cell.get_parameter("weight_hh")
        with torch.no_grad():
            free.copy_(500 * torch.randn(len(free), 3) @ torch.randn(3, free.shape[1]) / free.shape[1])
        a = cell.recurrent_matrix().detach().double()
        assert torch.linalg.eigvals(a).abs().max() < 1
        assert torch.linalg.eigvalsh(cell.matrices().P).min() > 0

    def test_in_the_euclidean_norm_states_may_part_before_they_meet(self) -> None:
        # The metric is part of the promise: a step of A alone can lengthen a vector.
        cell = cell_at("perturbed", "ren", 6, num_neurons=5)
        assert norm(cell.recurrent_matrix()) > 1
        assert torch.linalg.eigvals(cell.recurrent_matrix().detach()).abs().max() < 1

    def test_the_neurons_see_only_those_before_them(self) -> None:
        within = cell_at("perturbed", "ren", 3, num_neurons=7).materialize().within
        assert not torch.triu(within).any()
        assert (within[1:, 0] != 0).all()

    @every_stage
    def test_neurons_one_after_the_other_solve_the_implicit_equation(self, stage: str) -> None:
        cell = cell_at(stage, "ren", 5, num_neurons=6)
        q, n = 6, 5
        weights, x, u = cell.materialize(), random_normal(3, n), random_normal(3, 1)
        known = x @ weights.state.T + u @ weights.input.T + weights.bias
        w = torch.zeros(3, q, dtype=torch.float64)
        for _ in range(q):  # D11 is nilpotent: the iteration ends at the solution
            w = torch.tanh(known[:, :q] + w @ weights.within.T)
        expected = known[:, q:] + w @ weights.neurons.T
        y, after = cell.step(weights, (torch.zeros_like(x), x), cell.drive(u))
        torch.testing.assert_close(torch.cat([after, y], dim=1), expected, rtol=1e-10, atol=1e-12)

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


@pytest.mark.parametrize(
    ("key", "options", "sentence"),
    [
        (
            "mingru",
            {"init_memory": -1.0},
            "init_memory must be a finite number, 0 or more, for MinGRUCell, got -1.0.",
        ),
        (
            "minlstm",
            {"init_memory": math.inf},
            "init_memory must be a finite number, 0 or more, for MinLSTMCell, got inf.",
        ),
        (
            "lru",
            {"min_radius": 0.9, "max_radius": 0.5},
            "min_radius and max_radius of LRUCell must be in this order within 0 to 1, got 0.9 and 0.5.",
        ),
        (
            "lru",
            {"max_radius": 1.5},
            "min_radius and max_radius of LRUCell must be in this order within 0 to 1, got 0.9 and 1.5.",
        ),
        ("lru", {"max_phase": 0.0}, "max_phase must be a finite number greater than 0 for LRUCell, got 0.0."),
        ("lru", {"activation": "tanh"}, "activation of LRUCell must be 'none' or 'gelu', got 'tanh'."),
        ("ren", {"num_neurons": 0}, "num_neurons must be 1 or more for RENCell, got 0."),
        ("ren", {"contraction_rate": 0.0}, "contraction_rate must be above 0 up to 1 for RENCell, got 0.0."),
        ("ren", {"contraction_rate": 1.1}, "contraction_rate must be above 0 up to 1 for RENCell, got 1.1."),
        ("ren", {"margin": 0.0}, "margin must be a finite number greater than 0 for RENCell, got 0.0."),
        ("ren", {"init": "cholesky"}, "init of RENCell must be 'memory' or 'random', got 'cholesky'."),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_an_option_out_of_range_is_refused(key: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        create_cell(key, 2, 3, **options)
