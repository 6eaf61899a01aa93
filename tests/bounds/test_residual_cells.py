"""What is proved of a step of the residual cells and their kin: exact where a step is known, close to what a search
finds elsewhere."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from bounds.step_search import farthest, worst_rate
from stablernn import create_cell
from stablernn.cells import StableCell
from stablernn.certificates.certificate import certify

SLACK = 1e-6
"""What the float32 rounding of matrices that the probe builds in float64 may add."""


def filled(key: str, options: dict[str, Any], **values: float) -> StableCell:
    """A cell of one unit and one input, whose parameters are given, the others zero."""
    cell = create_cell(key, 1, 1, **options).eval()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        for name, value in values.items():
            cell.get_parameter(name).fill_(value)
    return cell


def shrunk(key: str, factor: float, hidden: int = 16, **options: Any) -> StableCell:
    """A fresh cell with a smaller recurrent matrix."""
    torch.manual_seed(0)
    cell = create_cell(key, 2, hidden, **options).eval()
    with torch.no_grad():
        cell.get_parameter("weight_hh").mul_(factor)
    return cell


def logit(share: float) -> float:
    return math.log(share / (1 - share))


SCALARS = [
    # h + .3 tanh(-.5 h): slopes from 1 - .15 to 1.
    ("antisymmetric", {"step_size": 0.3, "damping": 0.5}, {}, 1.0),
    ("antisymmetric", {"step_size": 1.0, "damping": 3.0}, {}, 2.0),
    # A gated tanh has slopes from -1/4 to 1.
    ("antisym_ablation", {"step_size": 0.3}, {"weight_hh": 1.0}, 1.3),
    ("antisym_ablation", {"step_size": 0.3}, {"weight_hh": -1.0}, 1.075),
    ("antisymmetric_g", {"step_size": 0.3, "damping": 1.0}, {}, 1.075),
    ("nais_net", {}, {"weight_hh": 0.9}, 1.0),
    ("neural_ode_rnn", {"step_size": 0.5}, {"weight_hh": -1.0}, 1.0),
    ("neural_ode_rnn", {"step_size": 0.5}, {"weight_hh": 1.0}, 1.5),
    # 1 - d to 1 - d + d w.
    (
        "noisy_rnn",
        {"linear_damping": 1.0, "recurrent_damping": -0.5},
        {"unit_steps": 0.4},
        0.8,
    ),
    ("noisy_rnn", {"linear_damping": 1.0, "recurrent_damping": 0.5}, {"unit_steps": -0.4}, 1.6),
    ("fastrnn", {}, {"alpha": logit(0.3), "beta": logit(0.6), "weight_hh": 0.5}, 0.75),
    ("fastrnn", {}, {"alpha": logit(0.3), "beta": logit(0.6), "weight_hh": -1.0}, 0.6),
    ("fastrnn", {"nonlinearity": "relu"}, {"alpha": logit(0.3), "beta": logit(0.6), "weight_hh": -5.0}, 0.9),
    # -e a to -e (a - u), from twice the state one more.
    ("incremental", {"inner_steps": 1}, {"inner_lengths": 0.5, "weight_hh": 0.4}, 0.5),
    ("incremental", {"inner_steps": 1}, {"inner_lengths": 0.5, "weight_hh": -0.4}, 0.7),
    ("incremental", {"inner_steps": 1, "start": "previous"}, {"inner_lengths": 0.5, "weight_hh": 0.4}, 0.4),
    ("lvf", {}, {}, 1.0),
    ("lvf_mid", {}, {}, 1.0),
]


@pytest.mark.parametrize(("key", "options", "values", "rate"), SCALARS, ids=[str(row[0]) for row in SCALARS])
def test_the_rate_of_one_unit_is_that_of_its_steepest_slope(
    key: str, options: dict[str, Any], values: dict[str, float], rate: float
) -> None:
    cell = filled(key, options, **values)
    assert cell.step_bound().rate == pytest.approx(rate, rel=1e-3)
    assert cell.step_bound().rate >= rate * (1 - SLACK)


@pytest.mark.parametrize("contraction_rate", [0.5, 1.0])
@pytest.mark.parametrize("init", ["memory", "random"])
def test_a_ren_is_proved_to_contract_at_the_rate_it_is_built_for(init: str, contraction_rate: float) -> None:
    torch.manual_seed(0)
    cell = create_cell("ren", 2, 8, init=init, contraction_rate=contraction_rate)
    bound = cell.step_bound()
    assert bound.rate <= contraction_rate
    if init == "memory":
        # Its linear part alone keeps that much.
        assert bound.rate >= 0.98 * contraction_rate * (1 - SLACK)


class TestBalls:
    def test_a_fastrnn_stays_within_the_ratio_of_its_numbers_and_reaches_it(self) -> None:
        cell = create_cell("fastrnn", 2, 5, alpha_init=0.5, beta_init=1.0)
        (ball,) = cell.step_bound().balls
        ratio = torch.sigmoid(torch.tensor(0.5)) / (1 - torch.sigmoid(torch.tensor(1.0)))
        assert ball.norm == "linf"
        assert ball.radius == pytest.approx(ratio.item(), rel=1e-6)
        assert farthest(cell)[0][0] == pytest.approx(ball.radius, rel=1e-3)

    @pytest.mark.parametrize("start", ["zero", "previous"])
    def test_an_incremental_cell_with_tanh_stays_where_its_inner_steps_lead(self, start: str) -> None:
        cell = create_cell("incremental", 2, 5, inner_steps=2, nonlinearity="tanh", start=start)
        (ball,) = cell.step_bound().balls
        # The inner steps keep 1/4 of y and add at most 3/4; h is taken off again.
        assert ball.radius == pytest.approx({"zero": 3.0, "previous": 1.5}[start], rel=1e-9)

    @pytest.mark.parametrize(
        ("key", "options"),
        [
            ("antisymmetric", {}),
            ("antisym_ablation", {}),
            ("nais_net", {}),
            ("neural_ode_rnn", {}),
            ("fastrnn", {"nonlinearity": "relu"}),
            ("incremental", {}),
            ("lvf", {"nonlinearity": "softshrink"}),
            ("ren", {}),
        ],
    )
    def test_none_where_inputs_drive_the_state_ever_further(self, key: str, options: dict[str, Any]) -> None:
        cell = create_cell(key, 2, 5, **options)
        assert cell.step_bound().balls == ()
        assert farthest(cell)[-1][0] > 10


class TestAntisymmetric:
    def test_the_criterion_ends_where_its_formula_says(self) -> None:
        for step_size, holds in [(0.95, True), (1.05, False)]:
            cell = create_cell("antisymmetric", 1, 2, step_size=step_size, damping=1.0)
            with torch.no_grad():
                cell.get_parameter("weight_hh").fill_(1.0)
            bound = cell.step_bound()
            assert bound.conditions[0].bound == pytest.approx(1.0)
            assert bound.conditions[0].holds is holds

    def test_the_largest_coordinate_is_kept_up_to_dominance_and_not_beyond(self) -> None:
        for entry, norm in [(0.95, "linf"), (1.05, "l2")]:
            cell = create_cell("antisymmetric", 1, 2, step_size=0.5, damping=1.0)
            with torch.no_grad():
                cell.get_parameter("weight_hh").fill_(entry)
            bound = cell.step_bound()
            assert (bound.rate <= 1 + 1e-9) == (norm == "linf")
            assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)


class TestLatentVectorField:
    @pytest.mark.parametrize("key", ["lvf", "lvf_mid"])
    def test_no_divergence_is_what_the_papers_criterion_asks_for(self, key: str) -> None:
        torch.manual_seed(0)
        (hard,) = create_cell(key, 2, 6).step_bound().conditions
        assert hard.holds
        free = create_cell(key, 2, 6, constraint="none")
        torch.nn.init.normal_(free.get_parameter("weight_hh"))
        bound = free.step_bound()
        assert not bound.conditions[0].holds
        assert bound.rate > 1.01


class TestNoisy:
    def test_a_step_backwards_ends_it(self) -> None:
        cell = create_cell("noisy_rnn", 2, 6, linear_damping=2.0)
        with torch.no_grad():
            cell.get_parameter("unit_steps")[3] = -0.1
        bound = cell.step_bound()
        assert not bound.conditions[0].holds
        assert bound.rate > 1

    def test_noise_of_training_is_not_meant(self) -> None:
        cell = create_cell("noisy_rnn", 2, 6)
        assert cell.train().step_bound().rate == cell.eval().step_bound().rate


class TestIncremental:
    def test_the_condition_of_its_limit(self) -> None:
        few = filled("incremental", {"inner_steps": 1}, inner_lengths=0.5, weight_hh=0.5).step_bound()
        assert few.conditions[0].value == pytest.approx(0.75)
        assert few.conditions[0].holds
        assert (
            not filled("incremental", {"inner_steps": 1}, inner_lengths=0.5, weight_hh=1.0)
            .step_bound()
            .conditions[0]
            .holds
        )

    def test_many_neurons_are_bounded_step_by_step(self) -> None:
        cell = shrunk("incremental", 0.2, hidden=150, inner_steps=3)
        bound = cell.step_bound()
        assert certify(cell).kind == "contracting"
        assert worst_rate(cell, bound, searches=3) <= bound.rate


class TestNothing:
    @pytest.mark.parametrize("key", ["ode_rnn", "fastgrnn", "fastgrnn_lsq"])
    def test_is_claimed_of_gates_over_states_without_a_ball(self, key: str) -> None:
        cell = create_cell(key, 2, 4)
        bound = cell.step_bound()
        assert (bound.norm, bound.rate, bound.balls) == (None, math.inf, ())
        assert certify(cell).kind == "none"
