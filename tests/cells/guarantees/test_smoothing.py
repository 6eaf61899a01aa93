"""Exponential smoothing: bounds that the worst inputs come close to, and what is forgotten of a start."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stablernn.bounds.intervals import Box
from stablernn.cells.smoothing import DISCOUNTS, TRENDS, SmoothingCell, _largest_slope


def run(cell: SmoothingCell, x: Tensor, state: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
    """The state after values ``(batch, time)``."""
    state = cell.initial_state(len(x)) if state is None else state
    for value in x.T:
        state = cell.step(cell.weights(), state, value[:, None])
    return state


def largest_forecasts(cell: SmoothingCell, is_missing: Tensor) -> Tensor:
    """The largest slope and forecast by trend for values within 1: those of every member are linear in the values."""
    impulses = torch.eye(len(is_missing), dtype=torch.float64)
    _, _, _, _, moments, sums, _, _ = run(cell, torch.where(is_missing, torch.nan, impulses))
    moments, sums = moments.view(-1, 1, 3, len(DISCOUNTS)), sums.view(-1, 1, 2, 1, len(DISCOUNTS))
    level, slope = cell._members(moments, sums)
    ahead = level + slope * cell.weights()[2][-1, :, None, None]
    return torch.stack([part.abs().sum(dim=0).amax(dim=(0, 2, 3)) for part in (slope.expand_as(ahead), ahead)])


def test_the_worst_values_reach_most_of_the_bound_on_slopes_and_none_exceeds_that_on_forecasts() -> None:
    cell, generator = SmoothingCell(1, 6).double(), torch.Generator().manual_seed(0)
    radius = cell.step_bound_within(Box.around_zero(1, 1.0)).balls[0].radius
    slopes = torch.zeros(len(TRENDS), dtype=torch.float64)
    with torch.no_grad():
        for length, share, gap in [(2, 0.0, 1010), (3, 0.0, 0), (4, 0.5, 0), (7, 0.5, 0), (60, 0.2, 0)]:
            is_missing = torch.rand(length + gap, generator=generator) < share
            is_missing[length:] = True
            slope, ahead = largest_forecasts(cell, is_missing)
            slopes = torch.maximum(slopes, slope)
            assert float(ahead.max()) <= radius
    for slope, (place, share, _) in zip(slopes.tolist(), TRENDS, strict=True):
        bound = _largest_slope(DISCOUNTS[place])
        assert slope == 0 if share == 0 else 0.9 * bound <= slope <= bound


def differences(state: tuple[Tensor, ...]) -> list[float]:
    """The largest difference of two rows in each tensor of a state."""
    return [float((part[0] - part[1]).abs().max()) for part in state]


@pytest.mark.parametrize("season", [1, 40])
def test_observed_values_are_forgotten_at_the_stated_rate_and_a_gap_forgets_nothing(season: int) -> None:
    cell, generator = SmoothingCell(1, 3, season=season).double(), torch.Generator().manual_seed(1)
    (rate,) = cell.step_bound_within(Box.around_zero(1, 1.0)).figures.values()
    values = 2 * torch.rand(2, 1200, generator=generator, dtype=torch.float64) - 1
    values[0, 50:90].fill_(torch.nan)
    # From here on both rows have the same values.
    values[:, 120:] = values[:1, 120:]
    with torch.no_grad():
        state = run(cell, values[:, :500])
        first = differences(state)
        last = differences(run(cell, values[:, 500:], state))
        gap = differences(run(cell, torch.full((2, season), torch.nan, dtype=torch.float64), state))
    # The forecast follows the errors of members by large factors.
    ratios = [after / before for before, after in zip(first[1:], last[1:], strict=True) if before]
    assert 0.5 * rate**700 < max(ratios) < 2 * rate**700
    # Level and slope, and errors.
    assert gap[-3:-1] == first[-3:-1]
