"""What is proved of a step of the residual cells and their kin: exact where a step is known, close to what a search
finds elsewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bounds.step_search import exact, farthest, size_of, worst_gain, worst_rate
from stablernn import create_cell
from stablernn.bounds.continuous import theorem_1_holds
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


@pytest.mark.parametrize(
    ("key", "options", "gain"),
    [
        ("antisymmetric", {"step_size": 0.3}, 0.6),
        ("antisymmetric_g", {"step_size": 0.3}, 0.3 * math.hypot(2, 2)),
        ("neural_ode_rnn", {"step_size": 0.5}, 1.0),
        ("incremental", {"inner_steps": 1, "step_size": 0.25}, 0.5),
        ("lvf", {}, 2.0),
        ("lvf_mid", {}, 2.0),
    ],
)
def test_the_gain_of_one_unit_is_step_times_input_weight(key: str, options: dict[str, Any], gain: float) -> None:
    own = {"inner_lengths": 0.25} if key == "incremental" else {}
    cell = filled(key, options, weight_ih=2.0, **own)
    assert cell.step_bound().gain == pytest.approx(gain, rel=1e-3)


def test_the_explicit_propagator_of_a_rotation_expands_as_its_formula_says() -> None:
    cell = create_cell("lvf", 1, 2, step_size=0.5)
    with torch.no_grad():
        cell.get_parameter("weight_hh").fill_(0.8)
    bound = cell.step_bound()
    assert bound.rate == pytest.approx(math.sqrt(1 + 0.4**2), rel=1e-6)
    assert bound.figures["norm_propagator"] == pytest.approx(math.sqrt(1 + 0.4**2), rel=1e-6)


@pytest.mark.parametrize("contraction_rate", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("init", ["memory", "random"])
def test_a_ren_is_proved_to_contract_at_the_rate_it_is_built_for(init: str, contraction_rate: float) -> None:
    torch.manual_seed(0)
    cell = create_cell("ren", 2, 8, init=init, contraction_rate=contraction_rate)
    bound = cell.step_bound()
    assert bound.rate <= contraction_rate
    if init == "memory":
        # Its linear part alone keeps that much.
        assert bound.rate >= 0.98 * contraction_rate * (1 - SLACK)


def test_a_large_ren_is_proved_to_contract_from_its_rounded_matrices() -> None:
    torch.manual_seed(0)
    cell = create_cell("ren", 2, 8)
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter)
    assert certify(cell).kind == "contracting"


@pytest.mark.parametrize("init", ["memory", "random"])
def test_the_output_of_a_ren_follows_the_bound_of_its_state(init: str) -> None:
    torch.manual_seed(3)
    cell = create_cell("ren", 2, 5, init=init)
    bound, exactly = cell.step_bound(), exact(cell)
    states, inputs = torch.randn(2, 300, 5).double() * 3, torch.randn(2, 300, 2).double()
    # Near and far ones; of the first hundred the inputs are alike, of the last the states.
    states[1] = states[0] + (states[1] - states[0]) * torch.logspace(-4, 1, 100).double().repeat(3)[:, None]
    inputs[1, :100], states[1, 200:] = inputs[0, :100], states[0, 200:]
    with torch.no_grad():
        one, other = (exactly(x, (torch.zeros_like(h), h)) for x, h in zip(inputs, states, strict=True))
    before = size_of(cell, bound)((states[0], states[0]), (states[1], states[1]))
    given = (inputs[0] - inputs[1]).norm(dim=-1)
    reached = bound.rate * before + bound.gain * given
    apart = (one.output - other.output).norm(dim=-1)
    allowed = bound.output_gain * reached + bound.output_input_gain * given
    assert bool((apart <= allowed * (1 + SLACK)).all())
    if init == "memory":
        assert (apart / allowed)[:100].max() > 0.7


CONTRACTING = [
    ("noisy_rnn", {"linear_damping": 1.0}, 1.0),
    ("fastrnn", {}, 0.3),
    ("fastrnn", {"nonlinearity": "relu"}, 0.3),
    ("fastrnn", {"recurrent_rank": 3, "input_rank": 1}, 1.0),
    ("incremental", {}, 0.4),
    ("incremental", {"inner_steps": 1}, 1.0),
    ("incremental", {"start": "previous"}, 0.4),
    ("incremental", {"inner_steps": 3, "nonlinearity": "tanh"}, 0.4),
    ("incremental", {"recurrent_rank": 4}, 0.4),
    ("ren", {}, 1.0),
    ("ren", {"contraction_rate": 0.7}, 1.0),
]


@pytest.mark.parametrize(("key", "options", "factor"), CONTRACTING, ids=[f"{row[0]}-{row[1]}" for row in CONTRACTING])
def test_small_matrices_contract_and_little_is_given_away(key: str, options: dict[str, Any], factor: float) -> None:
    cell = shrunk(key, factor, **options)
    bound = cell.step_bound()
    assert certify(cell).kind == "contracting"
    assert bound.rate * 0.93 <= worst_rate(cell, bound, searches=100) <= bound.rate * (1 + SLACK)
    assert worst_gain(cell, bound) <= bound.gain * (1 + SLACK)


NON_EXPANSIVE = [
    ("nais_net", {}, 1.0, "weighted-l2"),
    ("nais_net", {"step_size": 1.9}, 1.0, "weighted-l2"),
    ("antisymmetric", {"damping": 1.0}, 0.05, "linf"),
    ("lvf_mid", {}, 1.0, "l2"),
    ("lvf_mid", {"nonlinearity": "tanh"}, 1.0, "l2"),
    ("lvf_mid", {"nonlinearity": "modrelu"}, 1.0, "l2"),
]


@pytest.mark.parametrize(
    ("key", "options", "factor", "norm"), NON_EXPANSIVE, ids=[f"{row[0]}-{row[1]}" for row in NON_EXPANSIVE]
)
def test_steps_that_keep_a_norm_are_proved_to(key: str, options: dict[str, Any], factor: float, norm: str) -> None:
    cell = shrunk(key, factor, **options)
    bound = cell.step_bound()
    assert certify(cell).kind == "non-expansive"
    assert bound.norm == norm
    assert bound.rate <= 1 + 1e-6
    assert 0.97 <= worst_rate(cell, bound) <= bound.rate * (1 + SLACK)
    assert worst_gain(cell, bound) <= bound.gain * (1 + SLACK)


def test_a_nais_net_keeps_its_own_norm_but_not_the_euclidean_one() -> None:
    torch.manual_seed(0)
    cell = create_cell("nais_net", 2, 16)
    bound = cell.step_bound()
    assert bound.metric is not None
    form = bound.metric.T @ bound.metric
    a = cell.recurrent_matrix().detach().double().numpy()
    np.testing.assert_allclose(form / form[0, 0], a / a[0, 0], atol=1e-6)
    halves = [np.eye(16) + np.diag(np.arange(16) % 2 == place) @ a for place in (0, 1)]
    assert max(np.linalg.norm(one, 2) for one in halves) > 1.001


def test_the_interval_is_kept_by_a_parameter_that_nobody_projected() -> None:
    cell = shrunk("nais_net", 3.0)
    assert all(condition.holds for condition in cell.step_bound().conditions)
    assert certify(cell).kind == "non-expansive"


SOUND = [
    ("antisymmetric", {"damping": 2.0, "step_size": 1.5}),
    ("antisym_ablation", {"damping": 2.0, "step_size": 1.5}),
    ("neural_ode_rnn", {"init_scale": 5.0}),
    ("noisy_rnn", {"init_scale": 5.0}),
    ("fastrnn", {"nonlinearity": "relu"}),
    ("fastrnn", {"nonlinearity": "quant_tanh", "recurrent_rank": 2}),
    ("incremental", {"nonlinearity": "tanh", "inner_steps": 4}),
    ("incremental", {"start": "previous", "leak": 2.0}),
    ("incremental", {"recurrent_rank": 2, "nonlinearity": "tanh", "start": "previous"}),
    ("lvf", {"constraint": "none", "nonlinearity": "softshrink"}),
    ("lvf_mid", {"constraint": "soft", "divergence_weight": 0.1}),
    ("ren", {"init": "random", "num_neurons": 3}),
]


@pytest.mark.parametrize("spread", [0.3, 1.0])
@pytest.mark.parametrize(("key", "options"), SOUND, ids=[f"{key}-{options}" for key, options in SOUND])
def test_no_option_exceeds_its_bound(key: str, options: dict[str, Any], spread: float) -> None:
    torch.manual_seed(1)
    cell = create_cell(key, 2, 6, **options).eval()
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    bound = cell.step_bound()
    assert math.isfinite(bound.rate)
    assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)
    assert worst_gain(cell, bound) <= bound.gain * (1 + SLACK)
    for ball in bound.balls:
        largest, norm = farthest(cell)[cell.state_names.index(ball.state)]
        assert (largest if ball.norm == "linf" else norm) <= ball.radius * (1 + SLACK)


@pytest.mark.parametrize(
    ("key", "options", "factor"),
    [("nais_net", {}, 1.0), ("lvf_mid", {}, 1.0), ("fastrnn", {}, 0.3), ("incremental", {}, 0.4), ("ren", {}, 1.0)],
)
def test_the_search_would_find_a_rate_that_is_a_tenth_too_small(
    key: str, options: dict[str, Any], factor: float
) -> None:
    cell = shrunk(key, factor, **options)
    bound = cell.step_bound()
    assert worst_rate(cell, bound) > 0.9 * bound.rate


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
    def test_the_papers_criterion_bounds_every_jacobian_where_it_holds(self) -> None:
        cell = shrunk("antisymmetric", 0.3, damping=1.0)
        assert all(condition.holds for condition in cell.step_bound().conditions)
        k, generator = cell.recurrent_matrix().detach().double(), torch.Generator().manual_seed(0)
        slopes = torch.rand(200, 16, 1, generator=generator, dtype=torch.float64)
        moduli = torch.linalg.eigvals(torch.eye(16) + cell.step_size * slopes * k).abs()
        assert moduli.max() <= 1 + 1e-12

    def test_the_criterion_ends_where_its_formula_says(self) -> None:
        for step_size, holds in [(0.95, True), (1.05, False)]:
            cell = create_cell("antisymmetric", 1, 2, step_size=step_size, damping=1.0)
            with torch.no_grad():
                cell.get_parameter("weight_hh").fill_(1.0)
            bound = cell.step_bound()
            assert bound.conditions[0].bound == pytest.approx(1.0)
            assert bound.conditions[0].holds is holds

    def test_without_damping_it_never_holds(self) -> None:
        (condition,) = create_cell("antisymmetric", 1, 4, step_size=1e-3, damping=0.0).step_bound().conditions
        assert not condition.holds

    def test_the_largest_coordinate_is_kept_up_to_dominance_and_not_beyond(self) -> None:
        for entry, norm in [(0.95, "linf"), (1.05, "l2")]:
            cell = create_cell("antisymmetric", 1, 2, step_size=0.5, damping=1.0)
            with torch.no_grad():
                cell.get_parameter("weight_hh").fill_(entry)
            bound = cell.step_bound()
            assert (bound.rate <= 1 + 1e-9) == (norm == "linf")
            assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)

    def test_the_gated_slope_lies_within_its_interval_and_reaches_both_ends(self) -> None:
        z, t = torch.linspace(0, 1, 401).double()[:, None], torch.linspace(-1, 1, 401).double()
        gate, candidate = z * (1 - z) * t, z * (1 - t**2)
        assert (gate + candidate).min().item() == pytest.approx(-0.25)
        assert (gate + candidate).max().item() == pytest.approx(1.0)
        assert (gate**2 + candidate**2).max().item() == pytest.approx(1.0)


class TestLatentVectorField:
    @pytest.mark.parametrize("key", ["lvf", "lvf_mid"])
    def test_a_positive_bias_of_modrelu_takes_the_proof_away(self, key: str) -> None:
        cell = create_cell(key, 2, 4, nonlinearity="modrelu")
        assert cell.step_bound().norm == "l2"
        with torch.no_grad():
            cell.get_parameter("bias")[2] = 0.1
        bound = cell.step_bound()
        assert (bound.norm, bound.rate) == (None, math.inf)
        assert [one.holds for one in bound.hypotheses] == [False]
        assert certify(cell).kind == "none"

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
    def test_damped_solutions_approach_for_units_of_different_steps(self) -> None:
        cell = create_cell("noisy_rnn", 2, 6, linear_damping=2.0)
        with torch.no_grad():
            cell.get_parameter("unit_steps").copy_(torch.linspace(0.01, 0.6, 6))
        bound = cell.step_bound()
        assert theorem_1_holds(bound.conditions[1:])
        assert certify(cell).kind == "contracting"
        assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)

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

    def test_many_inner_steps_come_to_a_rate_of_one(self) -> None:
        bound = shrunk("incremental", 0.3, hidden=4, inner_steps=30).step_bound()
        assert bound.rate == pytest.approx(1.0, abs=0.01)

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

    def test_a_flow_past_an_open_gate_carries_the_state_away(self) -> None:
        cell = create_cell("ode_rnn", 1, 2)
        with torch.no_grad():
            cell.get_parameter("flow_out").zero_()
            cell.get_parameter("flow_out_bias").fill_(1.0)
            cell.get_parameter("bias_ih")[2:4] = 60.0
        state, x = torch.zeros(1, 2), torch.zeros(1, 1)
        with torch.no_grad():
            for _ in range(100):
                state = cell(x, state)
        assert state.tolist() == [pytest.approx([100.0, 100.0])]
