"""Guarantees of the momentum LSTMs and sLSTM, and where they end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cells.guarantees.states import make_wild, normal, run_steps, step_jacobian
from reference.dynamics import cell_at, every_stage, eye
from reference.mapping import reference_states
from stablernn import StableRNN, create_cell


class TestMomentumLSTM:
    BOTH = pytest.mark.parametrize("key", ["momentum_lstm", "sr_lstm"])

    @BOTH
    def test_the_identity_stands_in_the_input_gates_block_alone(self, key: str) -> None:
        i, f, g, o = create_cell(key, 3, 7).get_parameter("weight_hh").chunk(4)
        assert torch.equal(i, torch.eye(7))
        assert not any(block.any() for block in (f, g, o))

    @BOTH
    def test_both_biases_open_the_forget_gate(self, key: str) -> None:
        cell = create_cell(key, 3, 4, preset="paper")
        for name in ("bias_ih", "bias_hh"):
            assert torch.equal(cell.get_parameter(name), torch.tensor([0.0] * 4 + [1.0] * 4 + [0.0] * 8))
        timit = create_cell(key, 3, 4, forget_bias=-4.0)
        assert bool((timit.get_parameter("bias_hh")[4:8] == -4).all())

    @BOTH
    def test_the_input_matrix_starts_orthogonal(self, key: str) -> None:
        w = create_cell(key, 3, 7).double().get_parameter("weight_ih").detach()
        torch.testing.assert_close(w.T @ w, eye(3), rtol=0, atol=1e-6)

    def test_the_accumulated_forget_bias_is_that_of_the_docstring(self) -> None:
        cell: Any = create_cell("momentum_lstm", 1, 1).double()
        *_, v = run_steps(cell, torch.zeros(200, 1, 1, dtype=torch.float64))[-1]
        seen = v[0, 1] + cell.bias_hh[1]
        assert seen.item() == pytest.approx(1 + cell.input_scale / (1 - cell.momentum), rel=1e-12)

    def test_at_input_scale_one_the_two_forget_biases_of_sr_lstm_cancel(self) -> None:
        cell: Any = create_cell("sr_lstm", 1, 3, preset="paper").double()
        p = run_steps(cell, torch.zeros(1, 1, 1, dtype=torch.float64))[-1][2]
        assert not p.any()

    def test_without_momentum_it_is_the_lstm(self) -> None:
        cell: Any = make_wild(create_cell("momentum_lstm", 2, 5, momentum=0.0, input_scale=1.0).double(), 0.5)
        lstm = create_cell("lstm", 2, 5).double()
        with torch.no_grad():
            bias = cell.bias_ih + cell.bias_hh
            lstm.load_state_dict({"weight_ih": cell.weight_ih, "weight_hh": cell.weight_hh, "bias_ih": bias})
        x = normal(20, 3, 2)
        for got, expected in zip(run_steps(cell, x), run_steps(lstm, x), strict=True):
            torch.testing.assert_close(got[:2], expected, rtol=0, atol=1e-12)

    def test_a_cycle_of_one_step_is_the_lstm_with_the_input_turned_around(self) -> None:
        cell: Any = make_wild(create_cell("sr_lstm", 2, 5, restart=1, input_scale=0.7).double(), 0.5)
        lstm = create_cell("lstm", 2, 5).double()
        with torch.no_grad():
            bias = cell.bias_hh - 0.7 * cell.bias_ih
            lstm.load_state_dict({"weight_ih": -0.7 * cell.weight_ih, "weight_hh": cell.weight_hh, "bias_ih": bias})
        x = normal(20, 3, 2)
        for got, expected in zip(run_steps(cell, x), run_steps(lstm, x), strict=True):
            torch.testing.assert_close(got[:2], expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("restart", [1, 2, 5, 40])
    def test_the_count_goes_round(self, restart: int) -> None:
        cell = create_cell("sr_lstm", 1, 2, restart=restart)
        counts = [int(state[3]) for state in run_steps(cell, torch.zeros(100, 1, 1))]
        assert counts == [t % restart for t in range(101)]

    def test_the_first_step_of_a_cycle_does_not_see_the_step_before(self) -> None:
        cell: Any = make_wild(create_cell("sr_lstm", 1, 4).double(), 0.5)
        h, c, _, count = cell.initial_state(2)
        previous = normal(2, 16)
        weights, drive = cell.materialize(), cell.drive(torch.ones(2, 1, dtype=torch.float64))
        first = cell.step(weights, (h, c, previous, count), drive)
        assert torch.equal(first[0], cell.step(weights, (h, c, 0 * previous, count), drive)[0])
        second = cell.step(weights, (h, c, previous, count + 1), drive)
        assert (second[0] - first[0]).abs().max() > 0.01

    @BOTH
    @every_stage
    def test_the_hidden_state_stays_within_one_and_the_cell_state_within_the_number_of_steps(
        self, key: str, stage: str
    ) -> None:
        cell = cell_at(stage, key, 9)
        for t, (h, c, *_) in enumerate(run_steps(cell, normal(50, 2, 1, scale=10))):
            assert h.abs().max() <= 1
            assert c.abs().max() <= t

    @every_stage
    def test_the_momentum_stays_within_that_of_the_largest_drive(self, stage: str) -> None:
        cell = cell_at(stage, "momentum_lstm", 9)
        x = normal(200, 2, 1, scale=10)
        largest = cell.drive(x).abs().max() / (1 - cell.momentum)
        assert max(float(v.abs().max()) for *_, v in run_steps(cell, x)) <= largest * (1 + 1e-12)


class TestSLSTM:
    @every_stage
    @pytest.mark.parametrize("init", ["spread", "released"])
    def test_the_output_stays_within_one_and_the_normalizer_above(self, init: str, stage: str) -> None:
        cell = cell_at(stage, "slstm", 9, init=init)
        for wild in (False, True):
            if wild:
                make_wild(cell)
            states = run_steps(cell, normal(80, 6, 1, scale=10))[1:]
            for t, (h, c, n, _) in enumerate(states, start=1):
                assert h.abs().max() <= 1
                assert (c.abs() <= n * (1 + 1e-12)).all()
                assert n.min() >= 1 - 1e-12
                assert n.max() <= t

    def test_the_stabilizer_changes_no_output(self) -> None:
        cell: Any = make_wild(create_cell("slstm", 2, 5).double(), 0.5)
        h, c, n, m = run_steps(cell, normal(10, 3, 2))[-1]
        x, shift = normal(30, 3, 2), normal(3, 5, scale=3)
        moved = (h, c * torch.exp(-shift), n * torch.exp(-shift), m + shift)
        for got, expected in zip(run_steps(cell, x, moved), run_steps(cell, x, (h, c, n, m)), strict=True):
            torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-12)

    def test_it_is_the_recurrence_without_a_stabilizer_where_that_does_not_overflow(self) -> None:
        cell: Any = make_wild(create_cell("slstm", 2, 5).double(), 0.5)
        x = normal(40, 3, 2)
        h = c = n = torch.zeros(3, 5, dtype=torch.float64)
        for drive, (expected, *_) in zip(cell.drive(x), run_steps(cell, x)[1:], strict=True):
            i, f, z, o = (h @ cell.recurrent_matrix().T + drive).detach().chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
            n = torch.sigmoid(f) * n + torch.exp(i)
            h = torch.sigmoid(o) * c / n
            torch.testing.assert_close(h, expected, rtol=0, atol=1e-12)

    def test_each_row_knows_its_own_start(self) -> None:
        cell: Any = make_wild(create_cell("slstm", 2, 5).double(), 0.5)
        going = run_steps(cell, normal(10, 1, 2))[-1]
        joined = tuple(torch.cat([tensor, torch.zeros_like(tensor)]) for tensor in going)
        x = normal(20, 2, 2)
        both = run_steps(cell, x, joined)[-1]
        for got, expected in zip(both, run_steps(cell, x[:, 1:])[-1], strict=True):
            torch.testing.assert_close(got[1:], expected, rtol=0, atol=1e-12)

    def test_the_first_step_forgets_what_never_was(self) -> None:
        cell: Any = make_wild(create_cell("slstm", 2, 5).double())
        _, _, z, o = cell.drive(torch.ones(1, 2, dtype=torch.float64)).detach().chunk(4, dim=-1)
        h, c, n, _ = cell(torch.ones(1, 2, dtype=torch.float64))
        assert torch.equal(n, torch.ones_like(n))
        torch.testing.assert_close(c, torch.tanh(z), rtol=0, atol=1e-15)
        torch.testing.assert_close(h, torch.sigmoid(o) * torch.tanh(z), rtol=0, atol=1e-15)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gates_beyond_the_range_of_the_exponential_overflow_nothing(self, dtype: torch.dtype) -> None:
        layer = StableRNN("slstm", 1, 4).to(dtype)
        with torch.no_grad():
            layer.cells[0].get_parameter("weight_ih").mul_(1e4)
        x = (100 * torch.randn(3, 40, 1, dtype=dtype)).requires_grad_()
        output, state = layer(x)
        assert all(torch.isfinite(tensor).all() for tensor in (output, *state))
        output.sum().backward()
        for tensor in (x, *layer.parameters()):
            assert tensor.grad is not None
            assert torch.isfinite(tensor.grad).all()

    @pytest.mark.parametrize("num_heads", [1, 2, 3, 6])
    def test_heads_are_those_of_the_reference(self, num_heads: int) -> None:
        layer = StableRNN("slstm", 2, 6, num_heads=num_heads).double()
        make_wild(layer, 0.4)
        x = normal(3, 11, 2)
        states = reference_states(layer.cells[0], x, layer.initial_state(3))
        output, _ = layer(x)
        torch.testing.assert_close(output, states[0], rtol=0, atol=1e-12)

    def test_a_head_sees_itself_alone(self) -> None:
        cell: Any = make_wild(create_cell("slstm", 1, 6, num_heads=3).double(), 0.5)
        state = tuple(tensor[0] for tensor in run_steps(cell, normal(5, 1, 1))[-1])
        blocks = step_jacobian(cell, state, normal(1))[:6, :6].view(3, 2, 3, 2).abs().amax(dim=(1, 3))
        assert blocks.diagonal().min() > 0
        assert not (blocks - torch.diag(blocks.diagonal())).any()

    def test_released_start(self) -> None:
        cell: Any = create_cell("slstm", 3, 8, num_heads=2, init="released")
        assert not cell.weight_hh.any()
        i, f, z, o = cell.bias_ih.chunk(4)
        assert not any(bias.any() for bias in (i, z, o))
        expected = 5 - 12 * (torch.arange(4) / 3) ** 0.3
        torch.testing.assert_close(f.detach(), expected.repeat(2))

    def test_spread_start(self) -> None:
        cell: Any = create_cell("slstm", 3, 100)
        assert 0.09 < cell.weight_hh.abs().max() <= 0.1
        torch.testing.assert_close(cell.bias_ih[100:200].detach(), torch.linspace(3, 6, 100))
