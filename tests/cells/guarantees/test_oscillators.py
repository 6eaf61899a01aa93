"""Guarantees of the oscillators and LEM, and where they end.

Bounds are checked on fresh parameters, after a random perturbation and after optimizer steps, and where it matters with
weights and inputs far beyond any that training gives.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from cells.guarantees.states import normal, run_steps
from reference.dynamics import STAGES, cell_at
from stablernn import create_cell


class TestCoRNN:
    def test_parameters_start_uniform_within_the_root_of_what_a_unit_sees(self) -> None:
        cell = create_cell("cornn", 10, 100)
        for parameter in cell.parameters():
            bound = 210**-0.5
            assert parameter.abs().max() <= bound
        assert cell.get_parameter("weight_hh").std().item() == pytest.approx(210**-0.5 / math.sqrt(3), rel=0.02)


class TestLEM:
    def test_parameters_start_uniform_within_the_root_of_the_units(self) -> None:
        cell = create_cell("lem", 10, 100)
        for parameter in cell.parameters():
            assert 0.09 < parameter.abs().max() <= 0.1
            assert parameter.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.1)


class TestUnICORNN:
    @pytest.mark.parametrize(
        ("preset", "stage", "w"),
        [
            ("practical", "fresh", None),
            *(("paper", stage, None) for stage in STAGES),
            *(("paper", "fresh", w) for w in (-10.0, -2.0, 2.0, 10.0)),
        ],
    )
    @pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
    def test_a_thousand_steps_are_undone(self, preset: str, stage: str, w: float | None, irregular: bool) -> None:
        cell = cell_at(stage, "unicornn", 16, preset=preset)
        if w is not None:
            nn.init.constant_(cell.weight_hh, w)
        assert self._distance_after_there_and_back(cell, irregular) < 1e-10

    def _distance_after_there_and_back(self, cell: Any, irregular: bool = False) -> float:
        """The largest error of the state after 1,000 steps that are then undone."""
        x = normal(1000, 4, 1)
        dt = torch.rand(1000, 4, 1, dtype=torch.float64) if irregular else None
        start = (normal(4, 16), normal(4, 16))
        state, weights, drive = run_steps(cell, x, start, dt)[-1], cell.materialize(), cell.drive(x)
        for t in reversed(range(1000)):
            state = cell.inverse_step(weights, state, drive[t], None if dt is None else dt[t])
        return max(float((got - expected).detach().abs().max()) for got, expected in zip(state, start, strict=True))

    def test_parameters_start_as_published(self) -> None:
        cell: Any = create_cell("unicornn", 6, 2000, preset="paper")
        assert 0 <= cell.weight_hh.min() <= 0.01
        assert 0.99 <= cell.weight_hh.max() <= 1
        assert 0.099 <= cell.speed.abs().max() <= 0.1
        assert cell.weight_ih.abs().max().item() == pytest.approx(math.sqrt(6 / (65 * 6)), rel=1e-3)
        assert not cell.bias_ih.any()
