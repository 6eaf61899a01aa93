"""Guarantees of the cells of irregular time.

Cells: gru_d, cfc, ode_lstm.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.dynamics import cell_at, every_stage, random_normal, states_after
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell

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


class TestGRUD:
    @every_stage
    def test_the_state_stays_within_one_whatever_is_missing_for_however_long(self, stage: str) -> None:
        cell = cell_at(stage, "gru_d", 7)
        x = 10 * random_normal(80, 1)
        x[torch.rand(80, 1) < 0.6] = torch.nan
        dt = 10 ** (4 * torch.rand(80, dtype=torch.float64) - 2)
        start = (
            2 * torch.rand(3, 7, dtype=torch.float64) - 1,
            random_normal(3, 1),
            torch.zeros(3, 1, dtype=torch.float64),
        )
        for hidden, last, elapsed in states_after(cell, start, x, dt):
            assert hidden.abs().max() <= 1
            assert torch.isfinite(last).all()
            assert torch.isfinite(elapsed).all()

    def test_last_and_elapsed_follow_each_feature(self) -> None:
        cell = create_cell("gru_d", 2, 3).double()
        nan = math.nan
        x = torch.tensor([[nan, 1.0], [2.0, nan], [nan, nan], [nan, 4.0]], dtype=torch.float64)
        dt = torch.tensor([0.5, 1.0, 2.0, 0.25], dtype=torch.float64)
        states = states_after(cell, cell.initial_state(1), x, dt)[1:]
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
        x = random_normal(4, 12, 3)
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
        x, dt = random_normal(2, 9, 3), 3 * torch.rand(2, 9, dtype=torch.float64)
        h0, empty = random_normal(2, 5), torch.zeros(2, 3, dtype=torch.float64)
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
        x, dt = random_normal(3, 8, 2), 4 * torch.rand(3, 8, dtype=torch.float64)
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
        x = random_normal(3, 6, 2)
        output, _ = layer(x)
        timed, _ = layer(x, dt=torch.ones(3, 6, dtype=torch.float64))
        torch.testing.assert_close(timed, output, rtol=1e-13, atol=1e-13)


class TestCfC:
    @every_stage
    @pytest.mark.parametrize("options", [{}, {"preset": "paper"}, {"activation": "relu", "backbone_layers": 2}])
    def test_the_state_stays_within_one_for_any_time_step(self, options: dict[str, Any], stage: str) -> None:
        cell = cell_at(stage, "cfc", 7, **options)
        x, dt = 20 * random_normal(60, 1), 10 ** (12 * torch.rand(60, dtype=torch.float64) - 6)
        for (hidden,) in states_after(cell, (100 * random_normal(3, 7),), x, dt)[1:]:
            assert hidden.abs().max() <= 1

    @pytest.mark.parametrize("activation", ["lecun_tanh", "tanh", "silu", "gelu"])
    @pytest.mark.parametrize(("layers", "units"), [(0, None), (1, None), (1, 20), (3, 9)])
    def test_memory_starts_with_a_step_that_passes_small_states_on(
        self, layers: int, units: int | None, activation: str
    ) -> None:
        cell = create_cell("cfc", 1, 9, backbone_layers=layers, backbone_units=units, activation=activation).double()
        h = 1e-6 * random_normal(5, 9)
        (after,) = cell.step(cell.materialize(), (h,), cell.drive(torch.zeros(5, 1, dtype=torch.float64)))
        torch.testing.assert_close(after, h, rtol=1e-3, atol=1e-9)

    def test_at_equal_heads_the_gate_and_time_do_not_matter(self) -> None:
        cell = cell_at("perturbed", "cfc", 5)
        with torch.no_grad():
            cell.weight_head[5:10] = cell.weight_head[:5]
            cell.bias_head[5:10] = cell.bias_head[:5]
        x, h = random_normal(2, 1), random_normal(2, 5)
        torch.testing.assert_close(cell(x, h, dt=0.01), cell(x, h, dt=100.0), rtol=1e-13, atol=1e-13)


class TestODELSTM:
    SOLVERS = pytest.mark.parametrize("solver", ["euler", "heun", "rk4"])

    @SOLVERS
    @every_stage
    def test_hidden_and_cell_state_stay_within_their_bounds(self, solver: str, stage: str) -> None:
        cell = cell_at(stage, "ode_lstm", 7, solver=solver)
        fastest = (cell.flow_out.abs().sum(dim=1) + cell.flow_out_bias.abs()).detach()
        x, dt = 5 * random_normal(50, 1), 6 * torch.rand(50, dtype=torch.float64)
        start = (random_normal(2, 7), torch.zeros(2, 7, dtype=torch.float64))
        for index, (hidden, memory) in enumerate(states_after(cell, start, x, dt)[1:], start=1):
            assert (hidden.abs() <= 1 + dt[index - 1] * fastest).all()
            assert memory.abs().max() <= index

    @SOLVERS
    def test_no_time_and_no_flow_leave_an_lstm(self, solver: str) -> None:
        cell = cell_at("perturbed", "ode_lstm", 5, solver=solver)
        plain = create_cell("lstm", 1, 5).double()
        for name in ("weight_hh", "weight_ih", "bias_ih"):
            getattr(plain, name).data = getattr(cell, name).data
        x, state = random_normal(3, 1), (random_normal(3, 5), random_normal(3, 5))
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
        x, state = random_normal(30, 1), (random_normal(30, 4), random_normal(30, 4))
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
