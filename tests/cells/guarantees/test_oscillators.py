"""Guarantees of the oscillators and LEM, and where they end.

Bounds are checked on fresh parameters, after a random perturbation and after optimizer steps, and where it matters with
weights and inputs far beyond any that training gives.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cells.guarantees.states import normal, run_steps
from reference.dynamics import STAGES, cell_at


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
