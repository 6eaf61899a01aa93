"""Guarantees of the momentum LSTMs and sLSTM, and where they end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cells.guarantees.states import make_wild, normal, run_steps
from reference.dynamics import eye
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

    @pytest.mark.parametrize("restart", [1, 2, 5, 40])
    def test_the_count_goes_round(self, restart: int) -> None:
        cell = create_cell("sr_lstm", 1, 2, restart=restart)
        counts = [int(state[3]) for state in run_steps(cell, torch.zeros(100, 1, 1))]
        assert counts == [t % restart for t in range(101)]


class TestSLSTM:
    def test_the_stabilizer_changes_no_output(self) -> None:
        cell: Any = make_wild(create_cell("slstm", 2, 5).double(), 0.5)
        h, c, n, m = run_steps(cell, normal(10, 3, 2))[-1]
        x, shift = normal(30, 3, 2), normal(3, 5, scale=3)
        moved = (h, c * torch.exp(-shift), n * torch.exp(-shift), m + shift)
        for got, expected in zip(run_steps(cell, x, moved), run_steps(cell, x, (h, c, n, m)), strict=True):
            torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-12)

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
