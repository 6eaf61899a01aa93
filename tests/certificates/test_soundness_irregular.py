"""No pair of trajectories does what is proved of steps of any length, or of the time they take."""

from __future__ import annotations

import pytest
import torch

from bounds.step_search import Seen, violations
from certificates.trajectory_search import checked_module
from stablernn import StableRNN, list_cells
from stablernn.cells import cell_info
from stablernn.certificates.certificate import certify

TIMED = [key for key in list_cells() if cell_info(key).cell.takes_dt]


def layers(key: str, depth: int, max_dt: float, share: float) -> StableRNN:
    torch.manual_seed(depth)
    built = StableRNN(key, 2, 5, num_layers=depth, max_dt=max_dt)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(share)
    built.after_step(1, 100)
    return built.eval()


def check(built: StableRNN, **search: int) -> list[Seen]:
    seen = checked_module(built, None, **search)
    assert not violations(seen)
    return seen


@pytest.mark.parametrize("key", TIMED)
def test_of_layers(key: str) -> None:
    check(layers(key, 1, 2.5, 0.3))
    check(layers(key, 2, 2.5, 0.3), pairs=4, searches=2)


@pytest.mark.slow
@pytest.mark.parametrize("max_dt", [1.0, 7.3])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("key", TIMED)
def test_of_layers_widely(key: str, depth: int, max_dt: float) -> None:
    for share in (0.1, 0.5, 1.0):
        check(layers(key, depth, max_dt, share), steps=30, searches=8)


def test_some_of_them_contract() -> None:
    damped = StableRNN("lipschitz", 2, 5, max_dt=2.0, linear_damping=1.0).eval()
    assert certify(damped, stored=False).kind == "contracting"
    claims = {one.claim: one for one in check(damped)}
    assert claims["approach"].share > 0.3
    assert "largest gain" in claims
