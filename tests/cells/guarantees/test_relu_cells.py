"""Guarantees of the two ReLU cells, and where they end."""

from __future__ import annotations

import math

import pytest
import torch

from cells.guarantees.states import normal
from stablernn import StableRNN


class TestIndRNN:
    @pytest.mark.parametrize("max_length", [None, 1, 8, 784])
    def test_recurrent_weights_stay_within_their_bound_in_training(self, max_length: int | None) -> None:
        layer = StableRNN("indrnn", 1, 16, max_length=max_length).double()
        u = layer.cells[0].get_parameter("weight_hh")
        bound = 1.0 if max_length is None else 2 ** (1 / max_length)
        assert 0 <= u.min() <= u.max() <= bound
        self._grow(layer, clamped=True)
        assert u.abs().max().item() == bound

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
