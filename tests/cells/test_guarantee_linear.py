"""What the linear recurrences, the equilibrium network and the cells of irregular time promise.

Cells: mingru, minlstm, lru, ren, gru_d, cfc, ode_lstm.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.dynamics import STAGES, cell_at, eye, norm, trajectory
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell

every_stage = pytest.mark.parametrize("stage", STAGES)
MINIMAL = pytest.mark.parametrize("key", ["mingru", "minlstm"])
TIMED = pytest.mark.parametrize(
    ("key", "options"),
    [
        ("gru_d", {}),
        ("cfc", {}),
        ("cfc", {"backbone_layers": 0}),
        ("ode_lstm", {"solver": "heun"}),
        ("ode_lstm", {"solver": "rk4", "flow_size": 3}),
    ],
    ids=lambda value: ",".join(map(str, value.values())) if isinstance(value, dict) else None,
)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _states(cell: Any, state: tuple[Tensor, ...], x: Tensor, dt: Tensor | None = None) -> list[tuple[Tensor, ...]]:
    """The states after each step of x (T, m), every row of the batch under the same input; first the one given."""
    weights, states = cell.materialize(), [state]
    for index, drive in enumerate(cell.drive(x)):
        batch = drive.expand(len(state[0]), -1)
        step = None if dt is None else dt[index].expand(len(state[0]), 1)
        states.append(tuple(part.detach() for part in cell.step(weights, states[-1], batch, step)))
    return states


class TestMinimal:
    @MINIMAL
    @every_stage
    def test_the_state_never_leaves_the_range_of_its_start_and_the_candidates(self, key: str, stage: str) -> None:
        cell = cell_at(stage, key, 9)
        x, h0 = 3 * _random(60, 1), _random(4, 9)
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
        x = _random(30, 1)
        states = trajectory(cell, 5 * _random(2, 9), x)
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
        x, h0 = _random(20, 1), _random(1, 5)
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
        start = (torch.zeros(2, 8, dtype=torch.float64), _random(2, 16))
        states = _states(cell, start, _random(40, 1))
        moduli = cell.eigenvalues().abs().detach()
        for before, after in itertools.pairwise(states):
            distance = [torch.hypot(*(part[0] - part[1]).chunk(2)) for _, part in (before, after)]
            torch.testing.assert_close(distance[1], moduli * distance[0], rtol=1e-6, atol=1e-13)

    @every_stage
    def test_the_state_is_a_sum_of_powers_of_the_eigenvalues(self, stage: str) -> None:
        cell = cell_at(stage, "lru", 6, activation="none")
        x = _random(25, 1)
        real, imaginary = cell.weight_ih.detach().chunk(2)
        driven = torch.exp(cell.log_gain) * (x.to(torch.complex128) @ torch.complex(real, imaginary).T)
        powers = cell.eigenvalues() ** torch.arange(24, -1, -1)[:, None]
        h = (powers * driven).sum(dim=0).detach()
        C = torch.complex(*cell.weight_output.detach().chunk(2, dim=1))
        y, hidden = _states(cell, cell.initial_state(1), x)[-1]
        torch.testing.assert_close(hidden[0], torch.cat([h.real, h.imag]), rtol=1e-9, atol=1e-12)
        expected = (C @ h).real + cell.weight_skip.detach() @ x[-1]
        torch.testing.assert_close(y[0], expected, rtol=1e-9, atol=1e-12)

    @every_stage
    def test_a_bounded_input_gives_a_bounded_state(self, stage: str) -> None:
        cell = cell_at(stage, "lru", 8)
        x = torch.sign(_random(500, 1))
        real, imaginary = cell.weight_ih.chunk(2)
        driven = torch.exp(cell.log_gain) * torch.hypot(real, imaginary).sum(dim=1)
        bound = driven / (1 - cell.eigenvalues().abs())
        for _, hidden in _states(cell, cell.initial_state(1), x):
            assert (torch.hypot(*hidden.chunk(2, dim=1)) <= bound * (1 + 1e-9)).all()

    def test_the_activation_touches_the_output_alone(self) -> None:
        cell = cell_at("perturbed", "lru", 5, activation="none")
        x, start = _random(10, 1), cell.initial_state(2)
        plain = _states(cell, start, x)
        cell.activation = "gelu"
        for (y, hidden), (curved, same) in zip(plain[1:], _states(cell, start, x)[1:], strict=True):
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
            start = (torch.zeros(2, 6, dtype=torch.float64), scale * _random(2, 6))
            states = _states(cell, start, scale * _random(40, 1))
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
        start = (torch.zeros(2, 6, dtype=torch.float64), _random(2, 6))
        states = _states(cell, start, _random(3000, 1))
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
        weights, x, u = cell.materialize(), _random(3, n), _random(3, 1)
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


class TestGRUD:
    @every_stage
    def test_the_state_stays_within_one_whatever_is_missing_for_however_long(self, stage: str) -> None:
        cell = cell_at(stage, "gru_d", 7)
        x = 10 * _random(80, 1)
        x[torch.rand(80, 1) < 0.6] = torch.nan
        dt = 10 ** (4 * torch.rand(80, dtype=torch.float64) - 2)
        start = (2 * torch.rand(3, 7, dtype=torch.float64) - 1, _random(3, 1), torch.zeros(3, 1, dtype=torch.float64))
        for hidden, last, elapsed in _states(cell, start, x, dt):
            assert hidden.abs().max() <= 1
            assert torch.isfinite(last).all()
            assert torch.isfinite(elapsed).all()

    def test_last_and_elapsed_follow_each_feature(self) -> None:
        cell = create_cell("gru_d", 2, 3).double()
        nan = math.nan
        x = torch.tensor([[nan, 1.0], [2.0, nan], [nan, nan], [nan, 4.0]], dtype=torch.float64)
        dt = torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=torch.float64)
        states = _states(cell, cell.initial_state(1), x, dt)[1:]
        assert [state[1][0].tolist() for state in states] == [[0, 1], [2, 1], [2, 1], [2, 4]]
        assert [state[2][0].tolist() for state in states] == [[0.5, 0], [0, 1], [2, 3], [2.25, 0]]

    def test_a_missing_value_decays_from_the_last_one_to_the_mean(self) -> None:
        cell = create_cell("gru_d", 1, 1).double()
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.zero_()
            cell.input_decay.fill_(0.5)
            cell.input_decay_bias.fill_(-1.0)
            cell.weight_ih[2] = 1.0  # the candidate is tanh of the value filled in, the gate half open
        weights, zero = cell.materialize(), torch.zeros(1, 1, dtype=torch.float64)
        for gap, left in ((1.0, 1.0), (2.0, 1.0), (6.0, math.exp(-2.0)), (1e9, 0.0)):
            state = (zero, torch.full_like(zero, 3.0), zero)
            hidden = cell.step(weights, state, torch.full_like(zero, math.nan), torch.full_like(zero, gap))[0]
            assert hidden.item() == pytest.approx(math.tanh(3.0 * left) / 2, abs=1e-12)

    def test_the_state_decays_with_the_time_that_has_passed(self) -> None:
        cell = create_cell("gru_d", 2, 1).double()
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.zero_()
            cell.bias_ih[0] = -40.0  # the gate keeps everything
            cell.state_decay.copy_(torch.tensor([[0.1, 0.2]], dtype=torch.float64))
        one = torch.ones(1, 1, dtype=torch.float64)
        state = (one, torch.zeros(1, 2).double(), torch.tensor([[1.0, 4.0]]).double())
        hidden = cell.step(cell.materialize(), state, cell.drive(torch.zeros(1, 2).double()), 3 * one)[0]
        assert hidden.item() == pytest.approx(math.exp(-(0.1 * 4 + 0.2 * 7)), rel=1e-12)

    @pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize("num_layers", [1, 2])
    def test_gradients_are_finite_for_every_share_of_missing_values(self, num_layers: int, share: float) -> None:
        layer = StableRNN("gru_d", 3, 5, num_layers).double()
        x = _random(4, 12, 3)
        x[torch.rand(x.shape) < share] = torch.nan
        x.requires_grad_()
        output, state = layer(x, dt=5 * torch.rand(4, 12, dtype=torch.float64))
        sum(part.sum() for part in (output.square(), *state)).backward()
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()
        assert not x.grad[torch.isnan(x)].any()
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name

    def test_upper_layers_impute_nothing(self) -> None:
        layer = StableRNN("gru_d", 3, 5, num_layers=3)
        first, *upper = layer.cells
        assert first.state_names == ("hidden", "last", "elapsed")
        assert first.takes_missing
        for cell in upper:
            assert cell.state_names == ("hidden",)
            assert not cell.takes_missing
            assert {"weight_mask", "input_decay", "input_decay_bias"}.isdisjoint(dict(cell.named_parameters()))
        _, state = layer(torch.randn(2, 4, 3))
        assert [tuple(part.shape) for part in state] == [(3, 2, 5), (1, 2, 3), (1, 2, 3)]

    def test_without_imputation_it_is_the_reference_with_everything_observed(self) -> None:
        cell = create_cell("gru_d", 3, 5, imputation="none").double()
        for parameter in cell.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        gates = dict(zip("zrn", range(3), strict=True))
        parts = {name: parameter.chunk(3) for name, parameter in cell.named_parameters()}
        named = {
            f"{letter}_{gate}": parts[name][index]
            for letter, name in (("W", "weight_ih"), ("U", "weight_hh"), ("b", "bias_ih"))
            for gate, index in gates.items()
        }
        zeros = torch.zeros(3, dtype=torch.float64)
        named |= {f"V_{gate}": torch.zeros(5, 3, dtype=torch.float64) for gate in gates}
        named |= {
            "w_gx": zeros,
            "b_gx": zeros,
            "W_gh": cell.state_decay.expand(5, 3) / 3,
            "b_gh": cell.state_decay_bias,
        }
        x, dt = _random(2, 9, 3), 3 * torch.rand(2, 9, dtype=torch.float64)
        h0, empty = _random(2, 5), torch.zeros(2, 3, dtype=torch.float64)
        expected = MAPPING["gru_d"].module.sequence(named, x, h0, empty, empty, dt=dt)[0]
        state = (h0,)
        for index in range(9):
            state = cell.step(cell.materialize(), state, cell.drive(x[:, index]), dt[:, index, None])
            torch.testing.assert_close(state[0], expected[:, index], rtol=1e-10, atol=1e-12)


class TestIrregularTime:
    @TIMED
    def test_steps_of_any_length_equal_the_reference_in_values_and_gradients(
        self, key: str, options: dict[str, Any]
    ) -> None:
        layer = StableRNN(key, 2, 4, **options).double()
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
        cell = layer.cells[0]
        x, dt = _random(3, 8, 2), 4 * torch.rand(3, 8, dtype=torch.float64)
        if cell.takes_missing:
            x[torch.rand(x.shape) < 0.4] = torch.nan
        state = tuple(torch.rand_like(part) for part in cell.initial_state(3))
        leaves = [dt.requires_grad_(), *layer.parameters()]
        row = MAPPING[key]
        expected = row.module.sequence(row.params(cell), x, *state, dt=dt, **row.scalars(cell))
        expected = expected if isinstance(expected, tuple) else (expected,)
        output, last = layer.run(x, state, dt=dt)
        torch.testing.assert_close(output, expected[0], rtol=1e-10, atol=1e-12)
        for part, want in zip(last, expected, strict=True):
            torch.testing.assert_close(part, want[:, -1], rtol=1e-10, atol=1e-12)
        got = torch.autograd.grad(output.square().sum(), leaves)
        for gradient, want in zip(got, torch.autograd.grad(expected[0].square().sum(), leaves), strict=True):
            torch.testing.assert_close(gradient, want, rtol=1e-9, atol=1e-11)

    @TIMED
    def test_a_long_step_is_one_step(self, key: str, options: dict[str, Any]) -> None:
        assert create_cell(key, 2, 4, **options).substeps(1e6) == 1

    @TIMED
    def test_one_is_the_regular_step(self, key: str, options: dict[str, Any]) -> None:
        layer = StableRNN(key, 2, 4, **options).double()
        x = _random(3, 6, 2)
        output, _ = layer(x)
        timed, _ = layer(x, dt=torch.ones(3, 6, dtype=torch.float64))
        torch.testing.assert_close(timed, output, rtol=1e-13, atol=1e-13)


class TestCfC:
    @every_stage
    @pytest.mark.parametrize("options", [{}, {"preset": "paper"}, {"activation": "relu", "backbone_layers": 2}])
    def test_the_state_stays_within_one_for_any_time_step(self, options: dict[str, Any], stage: str) -> None:
        cell = cell_at(stage, "cfc", 7, **options)
        x, dt = 20 * _random(60, 1), 10 ** (12 * torch.rand(60, dtype=torch.float64) - 6)
        for (hidden,) in _states(cell, (100 * _random(3, 7),), x, dt)[1:]:
            assert hidden.abs().max() <= 1

    @pytest.mark.parametrize("activation", ["lecun_tanh", "tanh", "silu", "gelu"])
    @pytest.mark.parametrize(("layers", "units"), [(0, None), (1, None), (1, 20), (3, 9)])
    def test_memory_starts_with_a_step_that_passes_small_states_on(
        self, layers: int, units: int | None, activation: str
    ) -> None:
        cell = create_cell("cfc", 1, 9, backbone_layers=layers, backbone_units=units, activation=activation).double()
        h = 1e-6 * _random(5, 9)
        (after,) = cell.step(cell.materialize(), (h,), cell.drive(torch.zeros(5, 1, dtype=torch.float64)))
        torch.testing.assert_close(after, h, rtol=1e-3, atol=1e-9)

    def test_at_equal_heads_the_gate_and_time_do_not_matter(self) -> None:
        cell = cell_at("perturbed", "cfc", 5)
        with torch.no_grad():
            cell.weight_head[5:10] = cell.weight_head[:5]
            cell.bias_head[5:10] = cell.bias_head[:5]
        x, h = _random(2, 1), _random(2, 5)
        torch.testing.assert_close(cell(x, h, dt=0.01), cell(x, h, dt=100.0), rtol=1e-13, atol=1e-13)


class TestODELSTM:
    SOLVERS = pytest.mark.parametrize("solver", ["euler", "heun", "rk4"])

    @SOLVERS
    @every_stage
    def test_hidden_and_cell_state_stay_within_their_bounds(self, solver: str, stage: str) -> None:
        cell = cell_at(stage, "ode_lstm", 7, solver=solver)
        fastest = (cell.flow_out.abs().sum(dim=1) + cell.flow_out_bias.abs()).detach()
        x, dt = 5 * _random(50, 1), 6 * torch.rand(50, dtype=torch.float64)
        start = (_random(2, 7), torch.zeros(2, 7, dtype=torch.float64))
        for index, (hidden, memory) in enumerate(_states(cell, start, x, dt)[1:], start=1):
            assert (hidden.abs() <= 1 + dt[index - 1] * fastest).all()
            assert memory.abs().max() <= index

    @SOLVERS
    def test_no_time_and_no_flow_leave_an_lstm(self, solver: str) -> None:
        cell = cell_at("perturbed", "ode_lstm", 5, solver=solver)
        plain = create_cell("lstm", 1, 5).double()
        for name in ("weight_hh", "weight_ih", "bias_ih"):
            getattr(plain, name).data = getattr(cell, name).data
        x, state = _random(3, 1), (_random(3, 5), _random(3, 5))
        expected = plain(x, state)
        for got, want in zip(cell(x, state, dt=0.0), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)
        with torch.no_grad():
            cell.flow_out.zero_()
            cell.flow_out_bias.zero_()
        for got, want in zip(cell(x, state, dt=7.0), expected, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("heun", 2), ("rk4", 4)])
    def test_three_steps_of_the_solver_follow_the_flow_at_its_order(self, solver: str, order: int) -> None:
        cell = cell_at("perturbed", "ode_lstm", 4, solver=solver)
        x, state = _random(30, 1), (_random(30, 4), _random(30, 4))
        start = cell(x, state, dt=0.0)[0].detach()

        def velocity(h: Tensor) -> Tensor:
            return torch.tanh(h @ cell.flow_in.T + cell.flow_in_bias) @ cell.flow_out.T + cell.flow_out_bias

        errors = []
        for length in (0.2, 0.1):
            exact, part = start, length / 200
            for _ in range(200):
                k1 = velocity(exact)
                k2 = velocity(exact + part / 2 * k1)
                k3 = velocity(exact + part / 2 * k2)
                exact = (exact + part / 6 * (k1 + 2 * k2 + 2 * k3 + velocity(exact + part * k3))).detach()
            errors.append((cell(x, state, dt=length)[0] - exact).norm().item())
        # Over one interval of length s the error is of order s^(order + 1).
        assert math.log2(errors[0] / errors[1]) == pytest.approx(order + 1, abs=0.3)


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
        ("gru_d", {"imputation": "mean"}, "imputation of GRUDCell must be 'decay' or 'none', got 'mean'."),
        ("gru_d", {"init_decay": 0.0}, "init_decay must be a finite number greater than 0 for GRUDCell, got 0.0."),
        ("gru_d", {"update_bias": math.nan}, "update_bias must be a finite number for GRUDCell, got nan."),
        ("cfc", {"backbone_layers": -1}, "backbone_layers must be 0 or more for CfCCell, got -1."),
        ("cfc", {"backbone_units": 0}, "backbone_units must be 1 or more, or None, for CfCCell, got 0."),
        (
            "cfc",
            {"activation": "elu"},
            "activation of CfCCell must be 'lecun_tanh', 'tanh', 'relu', 'silu' or 'gelu', got 'elu'.",
        ),
        ("cfc", {"init": "zeros"}, "init of CfCCell must be 'memory' or 'xavier', got 'zeros'."),
        ("ode_lstm", {"solver": "midpoint"}, "solver of ODELSTMCell must be 'euler', 'heun' or 'rk4', got 'midpoint'."),
        ("ode_lstm", {"flow_size": 0}, "flow_size must be a whole number, 1 or more, or None, for ODELSTMCell, got 0."),
        ("ode_lstm", {"forget_bias": math.nan}, "forget_bias must be a finite number for ODELSTMCell, got nan."),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_an_option_out_of_range_is_refused(key: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        create_cell(key, 2, 3, **options)
