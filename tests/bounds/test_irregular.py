"""Steps of any length: the certificate of irregular time, and the longest step that is proved."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bounds.specimens import sampled
from bounds.step_search import exact, size_of
from stablernn import StableRNN, create_cell, list_cells
from stablernn.bounds.lure import lure_rate
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.certificates.certificate import certify

TIMED = [key for key in list_cells() if create_cell(key, 2, 3).takes_dt]
EULER = [key for key in TIMED if create_cell(key, 2, 3).is_euler]
DRAWS = {"fresh": None, "small": 0.1, "large": 1.0}


def drawn(key: str, draw: str = "small", hidden: int = 6, **options: Any) -> StableCell:
    torch.manual_seed(hidden)
    cell = create_cell(key, 2, hidden, **options).eval()
    std = DRAWS[draw]
    if std is not None:
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.normal_(std=std * hidden**-0.5)
            if key == "noisy_rnn":
                cell.get_parameter("unit_steps").uniform_(0.2, 0.9)
            cell.after_step(1, 100)
    return cell


def states(cell: StableCell, size: float, count: int = 40) -> tuple[Tensor, ...]:
    return tuple(size * torch.randn(count, length, dtype=torch.float64) for length in cell.state_sizes)


@pytest.mark.parametrize("key", EULER)
@pytest.mark.parametrize("draw", ["small"])
def test_an_euler_step_is_a_mean_of_none_and_the_regular_one(key: str, draw: str) -> None:
    cell = exact(drawn(key, draw))
    (h,), x = states(cell, 2.0), torch.randn(40, 2, dtype=torch.float64)
    part = torch.rand(40, 1, dtype=torch.float64)
    weights, drive = cell.weights(), cell.drive(x)
    (whole,), (partly,) = cell.step(weights, (h,), drive), cell.step(weights, (h,), drive, part)
    torch.testing.assert_close(partly, h + part * (whole - h), rtol=1e-12, atol=1e-12)


def worst_over_time(cell: StableCell, bound: StepBound, seed: int = 0) -> float:
    """The largest logarithm of the growth of a difference, for each regular step of time it took."""
    torch.manual_seed(seed)
    exactly, size = exact(cell), size_of(cell, bound)
    one, move = states(cell, 1.0), states(cell, 1.0)
    other = tuple(a + 0.3 * b for a, b in zip(one, move, strict=True))
    weights, worst = exactly.weights(timed=True), -math.inf
    before, passed = size(one, other), torch.zeros(40, dtype=torch.float64)
    with torch.no_grad():
        for longest in (0.05, 0.7, 1.0, 2.6, 6.0, 0.3, 3.0):
            dt = longest * torch.rand(40, 1, dtype=torch.float64)
            drive = exactly.drive(torch.randn(40, 2, dtype=torch.float64))
            parts = exactly.substeps(longest)
            one = exactly.advance(weights, one, drive, dt, parts)
            other = exactly.advance(weights, other, drive, dt, parts)
            passed = passed + dt[:, 0]
            after = size(one, other)
            seen = after > 1e-9
            worst = max([worst, *((after / before).log() / passed)[seen].tolist()])
    return worst


@pytest.mark.parametrize(
    ("key", "draw"), sampled(itertools.product(TIMED, DRAWS), *((key, "small") for key in TIMED), ("lem", "large"))
)
def test_no_pair_parts_faster_than_is_proved_of_any_steps(key: str, draw: str) -> None:
    cell = drawn(key, draw)
    bound = cell.irregular_bound()
    if bound.norm is None:
        assert not math.isfinite(bound.rate)
        return
    assert worst_over_time(cell, bound) <= math.log(bound.rate) + 1e-9


@pytest.mark.parametrize(
    ("key", "draw"), sampled(itertools.product(TIMED, DRAWS), *((key, "small") for key in TIMED), ("lem", "large"))
)
def test_no_steps_lead_out_of_the_balls(key: str, draw: str) -> None:
    cell = drawn(key, draw)
    bound, exactly = cell.irregular_bound(), exact(cell)
    weights, state = exactly.weights(timed=True), exactly.initial_state(60)
    size = torch.logspace(-2, 5, 60, dtype=torch.float64)[:, None]
    for step in range(60):
        longest = (0.3, 1.0, 5.0)[step % 3]
        dt = longest * torch.rand(60, 1, dtype=torch.float64)
        x = size * (1 if step % 2 else -1) * torch.randn(60, 2, dtype=torch.float64).abs()
        with torch.no_grad():
            state = exactly.advance(weights, state, exactly.drive(x), dt, exactly.substeps(longest))
        for ball in bound.balls:
            part = state[cell.state_names.index(ball.state)]
            reached = part.abs().amax() if ball.norm == "linf" else part.norm(dim=-1).amax()
            assert float(reached) <= ball.radius * (1 + 1e-9)


def test_an_euler_layer_for_irregular_time_contracts_where_the_regular_one_does() -> None:
    regular = certify(StableRNN("lipschitz", 2, 8, linear_damping=0.5))
    built = StableRNN("lipschitz", 2, 8, max_dt=3.0, linear_damping=0.5)
    certificate = certify(built)
    assert regular.kind == certificate.kind == "contracting"
    assert certificate.document()["time"] == {"steps": "irregular", "longest": 3.0}
    assert certificate.document()["gaps"][0]["output_error"] is None
    again = copy.deepcopy(built)
    again.max_dt = None
    same = certify(again)
    assert same.rate is not None
    assert certificate.rate == pytest.approx(math.exp(same.rate - 1))


@pytest.mark.parametrize("key", ["cornn", "ode_rnn"])
def test_of_other_cells_nothing_is_proved_of_irregular_time(key: str) -> None:
    certificate = certify(StableRNN(key, 2, 4, max_dt=2.5))
    assert certificate.kind == "none"
    (hypothesis,) = certificate.document()["hypotheses"]
    assert hypothesis == {
        "name": "regular steps: largest abs(dt - 1)",
        "value": 1.5,
        "bound": 0.0,
        "holds": False,
    }


def test_a_rotation_keeps_distances_at_any_length() -> None:
    assert certify(StableRNN("lvf_mid", 2, 8, max_dt=20.0)).kind == "non-expansive"


class TestLongestStep:
    """The figures ``largest_euler_step`` and ``largest_midpoint_step``."""

    def longest(self, cell: StableCell, name: str = "largest_euler_step") -> float:
        return cell.step_bound().figures[name]

    def test_lipschitz_by_hand(self) -> None:
        # h' = -a h + tanh(w h): a step s is at most |1 - s a| + s |w|, at slope 0 or 1.
        cell = drawn("lipschitz", "fresh", hidden=1, step_size=0.5, skew_weight=0.5)
        with torch.no_grad():
            cell.get_parameter("weight_linear").fill_(-0.5)
            cell.get_parameter("weight_hh").fill_(-0.2)
        (a,), (w,) = (-cell.linear_matrix()[0]).tolist(), cell.recurrent_matrix()[0].tolist()
        assert w < 0 < a
        assert self.longest(cell) == pytest.approx(2 / (a - w), rel=0.011)

    @pytest.mark.parametrize("key", ["lipschitz", "neural_ode_rnn", "nais_net", "antisymmetric"])
    def test_steps_up_to_it_are_proved_by_themselves(self, key: str) -> None:
        cell = drawn(key, "small")
        with torch.no_grad():
            if key == "neural_ode_rnn":
                cell.get_parameter("weight_hh").sub_(torch.eye(6))
            elif key == "lipschitz":
                cell.linear_damping = 0.4
            elif key == "antisymmetric":
                cell.damping = 1.5
        longest = self.longest(cell)
        assert longest > 0
        for share in (0.1, 0.5, 0.99):
            cell.step_size = share * longest
            assert cell.step_bound().rate <= 1 + 1e-6

    def test_of_the_midpoint_rule(self) -> None:
        cell = drawn("lipschitz_rk2", "small", linear_damping=0.4)
        longest = self.longest(cell, "largest_midpoint_step")
        cell.step_size = longest
        step = cell.lure_system()
        assert step is not None
        assert lure_rate(step) <= 1
        cell.step_size = 1.06 * longest
        beyond = cell.lure_system()
        assert beyond is not None
        assert lure_rate(beyond) > 1

    def test_of_units_with_steps_of_their_own_it_is_a_share(self) -> None:
        cell = drawn("noisy_rnn", "small", linear_damping=0.4)
        longest = cell.step_bound().figures["largest_dt"]
        assert longest > 1
        with torch.no_grad():
            cell.get_parameter("unit_steps").mul_(0.98 * longest)
        assert cell.step_bound().rate <= 1 + 1e-6
