"""Guarantees of the two ReLU cells, and where they end."""

from __future__ import annotations

import math

import pytest
import torch

from cells.guarantees.states import normal, run_steps
from reference.dynamics import assert_approach, cell_at, norm
from stablernn import StableRNN, create_cell


class TestIndRNN:
    @pytest.mark.parametrize("max_length", [None, 1, 8, 784])
    def test_recurrent_weights_stay_within_their_bound_in_training(self, max_length: int | None) -> None:
        layer = StableRNN("indrnn", 1, 16, max_length=max_length).double()
        u = layer.cells[0].get_parameter("weight_hh")
        bound = 1.0 if max_length is None else 2 ** (1 / max_length)
        assert 0 <= u.min() <= u.max() <= bound
        self._grow(layer, clamped=True)
        assert u.abs().max().item() == bound

    def test_training_pushes_them_beyond_where_nothing_clamps(self) -> None:
        layer = StableRNN("indrnn", 1, 16).double()
        self._grow(layer, clamped=False)
        assert layer.cells[0].get_parameter("weight_hh").abs().max() > 1.5

    def _grow(self, layer: StableRNN, clamped: bool) -> None:
        """Training that wants the largest outputs there are."""
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        x = normal(8, 12, 1)
        for step in range(200):
            optimizer.zero_grad()
            (-layer(x)[0][:, -1].sum()).backward()
            optimizer.step()
            if clamped:
                layer.after_step(step + 1, 200)

    def test_a_clamp_meets_both_signs(self) -> None:
        layer = StableRNN("indrnn", 1, 3, max_length=2).double()
        u = layer.cells[0].get_parameter("weight_hh")
        with torch.no_grad():
            u.copy_(torch.tensor([-7.0, 0.5, 7.0]))
        layer.after_step(1, 1)
        assert u.tolist() == [-math.sqrt(2), 0.5, math.sqrt(2)]

    @pytest.mark.parametrize("stage", ["fresh", "trained"])
    def test_no_step_drives_two_states_apart(self, stage: str) -> None:
        assert_approach(cell_at(stage, "indrnn", 9), rate=1.0, scale=3.0)

    def test_max_length_steps_at_most_double_a_distance(self) -> None:
        cell = cell_at("fresh", "indrnn", 1, max_length=20)
        with torch.no_grad():
            cell.weight_hh.fill_(cell.bound)
        a, b = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
        x = torch.rand(20, 1, 1, dtype=torch.float64).mul(cell.weight_ih.detach().sign())
        (first,), (second,) = run_steps(cell, x, (a,))[-1], run_steps(cell, x, (b,))[-1]
        assert (second - first).abs().item() == pytest.approx(2, rel=1e-12)

    def test_a_unit_that_adds_up_has_no_bound(self) -> None:
        cell = cell_at("fresh", "indrnn", 1)
        with torch.no_grad():
            cell.weight_hh.fill_(1.0)
            cell.weight_ih.fill_(1.0)
        (h,) = run_steps(cell, torch.ones(1000, 1, 1, dtype=torch.float64))[-1]
        assert h.item() == 1000


class TestIdentityRNN:
    def test_start(self) -> None:
        cell = create_cell("identity_rnn", 50, 200, preset="paper")
        assert torch.equal(cell.recurrent_matrix(), torch.eye(200))
        assert not cell.get_parameter("bias").any()
        assert cell.get_parameter("weight_ih").std().item() == pytest.approx(0.001, rel=0.05)

    def test_no_step_drives_two_states_apart_at_the_start(self) -> None:
        assert_approach(cell_at("fresh", "identity_rnn", 9), rate=1.0)

    def test_training_loses_that(self) -> None:
        cell = cell_at("trained", "identity_rnn", 9)
        assert norm(cell.recurrent_matrix()) > 1.01
