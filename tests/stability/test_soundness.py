"""No step of any cell drives states further apart, or away, than its bound says: over sizes, weights and searches."""

from __future__ import annotations

import math

import pytest
import torch

from stability.probe import farthest, worst_gain, worst_rate
from stablernn import create_cell, list_cells
from stablernn.cells import StableCell

SLACK = 1e-6
"""What the float32 rounding of matrices that the probe builds in float64 may add."""
SIZES = (1, 2, 5, 16)
DRAWS = ("fresh", "small", "large")


def drawn(key: str, hidden: int, draw: str) -> StableCell:
    """A cell as it starts, or with all its parameters drawn anew, as after an optimizer step."""
    torch.manual_seed(hidden)
    cell = create_cell(key, 2, hidden)
    if draw != "fresh":
        for parameter in cell.parameters():
            torch.nn.init.normal_(parameter, std=(0.1 if draw == "small" else 1.0) * hidden**-0.5)
        with torch.no_grad():
            cell.after_step(1, 100)
    return cell.eval()


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("key", list_cells())
def test_no_pair_of_states_exceeds_the_bound(key: str, hidden: int, draw: str) -> None:
    cell = drawn(key, hidden, draw)
    bound = cell.step_bound()
    for ball, (largest, norm) in ((ball, farthest(cell)[cell.state_names.index(ball.state)]) for ball in bound.balls):
        assert (largest if ball.norm == "linf" else norm) <= ball.radius * (1 + SLACK)
    if bound.norm is None or not math.isfinite(bound.rate):
        return
    assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)
    if math.isfinite(bound.gain):
        assert worst_gain(cell, bound) <= bound.gain * (1 + SLACK)
