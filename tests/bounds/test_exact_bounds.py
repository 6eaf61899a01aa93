"""Bounds of steps of which the worst is known: exact there, claimed only where proved, and nothing where nothing is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bounds.box_search import worst_step
from bounds.specimens import drawn
from bounds.step_search import SLACK, checked, exact, farthest, reached, violations, worst_rate
from stablernn import create_cell, list_cells
from stablernn.bounds.intervals import Box
from stablernn.cells._base import float64
from stablernn.cells._complex import steepest_slopes
from stablernn.cells.cfc import _SLOPE_RANGES
from stablernn.certificates.certificate import certify
from stablernn.parametrizations import complex_modrelu

Options = dict[str, Any]


def filled(key: str, options: Options | None = None, *, inputs: int = 1, hidden: int = 1, **values: Any) -> Any:
    """A cell whose parameters are zero but for those given, which are broadcast."""
    cell = create_cell(key, inputs, hidden, **(options or {})).eval()
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(torch.as_tensor(values.get(name, 0.0)).expand_as(parameter))
    return cell


def logit(share: float) -> float:
    return math.log(share / (1 - share))


FAST = {"alpha": logit(0.3), "beta": logit(0.6)}
ONE_STEP = {"inner_steps": 1}
RATES: list[tuple[str, Options, Options, float]] = [
    *(("identity_rnn", {}, {"weight_hh": weight}, abs(weight)) for weight in (0.6, -0.6, 1.0, -1.3)),
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
    ("noisy_rnn", {"linear_damping": 1.0, "recurrent_damping": -0.5}, {"unit_steps": 0.4}, 0.8),
    ("noisy_rnn", {"linear_damping": 1.0, "recurrent_damping": 0.5}, {"unit_steps": -0.4}, 1.6),
    ("fastrnn", {}, {**FAST, "weight_hh": 0.5}, 0.75),
    ("fastrnn", {}, {**FAST, "weight_hh": -1.0}, 0.6),
    ("fastrnn", {"nonlinearity": "relu"}, {**FAST, "weight_hh": -5.0}, 0.9),
    # -e a to -e (a - u), from twice the state one more.
    ("incremental", ONE_STEP, {"inner_lengths": 0.5, "weight_hh": 0.4}, 0.5),
    ("incremental", ONE_STEP, {"inner_lengths": 0.5, "weight_hh": -0.4}, 0.7),
    ("incremental", {**ONE_STEP, "start": "previous"}, {"inner_lengths": 0.5, "weight_hh": 0.4}, 0.4),
    ("lvf", {}, {}, 1.0),
    ("lvf_mid", {}, {}, 1.0),
]


@pytest.mark.parametrize(("key", "options", "values", "rate"), RATES)
def test_the_rate_of_one_unit_is_that_of_its_steepest_slope(
    key: str, options: Options, values: Options, rate: float
) -> None:
    assert rate * (1 - SLACK) <= filled(key, options, **values).step_bound().rate <= rate * 1.001


# With every sign alike and an input for each gate the worst of all terms can come together.
GATED: list[tuple[str, Options, Options]] = [
    ("gru", {"weight_hh": [[1.5], [1.2], [0.8]], "weight_ih": torch.eye(3), "bias_hn": 0.3}, {}),
    ("gru", {"weight_hh": [[0.5], [0.4], [1.8]], "weight_ih": torch.eye(3), "bias_hn": 1.0}, {}),
    (
        "gru_d",
        {"weight_hh": [[1.6], [0.7], [1.4]], "weight_ih": torch.eye(3), "state_decay": 0.5},
        {"imputation": "none"},
    ),
    ("cfc", {"weight_hh": [[0.7], [0.9], [2.0], [0.5]], "weight_ih": torch.eye(4)[:, :3]}, {"backbone_layers": 0}),
    ("lem", {"weight_hh": [[1.1], [1.6], [0.9]], "weight_memory": 1.3, "weight_ih": torch.eye(4)}, {"step_size": 0.8}),
    ("lem", {"weight_hh": [[0.1], [2.6], [1.9]], "weight_memory": 0.8, "weight_ih": torch.eye(4)}, {"step_size": 1.0}),
]


@pytest.mark.parametrize(("key", "values", "options"), GATED)
def test_the_rate_of_a_gated_unit_is_that_of_its_steepest_jacobian(key: str, values: Options, options: Options) -> None:
    inputs = values["weight_ih"].shape[1]
    cell = filled(key, options, inputs=inputs, **values)
    share = worst_step(cell, cell.step_bound(), Box.around_zero(inputs, 8.0), points=64, searches=30).rate
    assert 0.97 <= share <= 1 + SLACK


@pytest.mark.parametrize("key", ["scornn", "exprnn", "dtriv", "urnn", "fc_urnn", "eunn"])
def test_orthogonal_matrices_neither_shrink_nor_expand(key: str) -> None:
    cell = drawn(key, 16, "large")
    bound = cell.step_bound()
    assert (bound.norm, certify(cell).kind) == ("l2", "non-expansive")
    assert bound.rate == pytest.approx(1, abs=1e-6)
    assert bound.gain == pytest.approx(float(np.linalg.norm(float64(cell.get_parameter("weight_ih")), 2)), rel=1e-6)


@pytest.mark.parametrize("spectrum", [-60.0, 60.0])
def test_singular_values_at_the_end_of_their_range(spectrum: float) -> None:
    for key, options in (("spectral_rnn", {}), ("soft_orth", {"form": "factored"})):
        cell = create_cell(key, 2, 8, margin=0.1, **options)
        torch.nn.init.constant_(cell.get_parameter("spectrum"), spectrum)
        assert cell.step_bound().rate == pytest.approx(1 + math.copysign(0.1, spectrum), rel=1e-6)


@pytest.mark.parametrize("contraction_rate", [0.5, 1.0])
@pytest.mark.parametrize("init", ["memory", "random"])
def test_a_ren_contracts_at_the_rate_it_is_built_for(init: str, contraction_rate: float) -> None:
    rate = create_cell("ren", 2, 8, init=init, contraction_rate=contraction_rate).step_bound().rate
    # Its linear part alone keeps that much.
    assert (0.98 * contraction_rate * (1 - SLACK) if init == "memory" else 0.0) <= rate <= contraction_rate


def test_a_gru_without_gates_from_the_state_expands_as_its_candidate_does() -> None:
    for candidate, rate in ((0.5, 1.0), (1.0, 1.0), (2.0, 2.0)):
        cell = filled("gru", inputs=3, weight_hh=[[0.0], [0.0], [candidate]], weight_ih=torch.eye(3))
        assert cell.step_bound().rate == pytest.approx(rate, rel=1e-9)


@pytest.mark.parametrize(("fastest", "rate"), [(-1.0, 1.0), (-0.1, math.exp(-0.1))])
def test_gru_d_without_recurrence_contracts_as_its_slowest_decay(fastest: float, rate: float) -> None:
    decay = [[0.5], [0.1], [0.0], [fastest]]
    cell = filled("gru_d", {"imputation": "none"}, inputs=2, hidden=4, state_decay=decay, state_decay_bias=0.2)
    assert cell.step_bound().rate == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("heads", [(0.7, 0.7, 0.0), (0.9, 0.4, 0.0), (0.0, 0.0, 3.0), (1.2, 1.2, 1.0)])
def test_cfc_of_one_unit_is_exact(heads: tuple[float, float, float]) -> None:
    f1, f2, gate = heads
    weights = [[f1], [f2], [gate / 2], [gate / 2]]
    cell = filled("cfc", {"backbone_layers": 0}, inputs=3, weight_hh=weights, weight_ih=torch.eye(4)[:, :3])
    # The gate alone: at s = 1/2 and two tanh of 1 and -1.
    expected = gate / 2 if not f1 else max(f1, f2) if not gate else f1 + gate**2 / (16 * f1)
    assert cell.step_bound().rate == pytest.approx(expected)


@pytest.mark.parametrize("key", ["mingru", "minlstm"])
def test_a_gate_of_the_input_alone_never_expands_and_comes_close_to_keeping_all(key: str) -> None:
    cell = drawn(key, 5, "large")
    bound = cell.step_bound()
    assert (bound.rate, bound.gain, certify(cell).kind) == (1, math.inf, "non-expansive")
    kept = exact(cell).drive(100 * torch.randn(2000, 2).double()).chunk(2, dim=-1)[0]
    assert 0.999 <= float(kept.detach().max()) <= 1


def test_weights_of_coordinates_find_what_plain_ones_miss() -> None:
    # The first unit sees 1.5 of the second, which sees little of the first.
    candidate = torch.tensor([[0.1, 1.5], [0.3, 0.1]])
    weights = torch.cat([torch.zeros(4, 2), candidate])
    bound = filled("gru", inputs=6, hidden=2, weight_hh=weights, weight_ih=torch.eye(6)).step_bound()
    assert bound.rate == 1
    assert bound.weights[0] > bound.weights[1]


def test_a_weighted_norm_proves_what_the_plain_one_does_not() -> None:
    cell: Any = create_cell("nnrnn", 1, 4)
    with torch.no_grad():
        cell.weight_hh.zero_()
        cell.gain.fill_(0.5)
        cell.weight_upper.fill_(0.5)
    bound = cell.step_bound()
    assert np.linalg.norm(float64(cell.recurrent_matrix()), 2) > 1.1
    assert (bound.norm, bound.rate < 1) == ("weighted-l2", True)


def test_the_largest_coordinate_is_kept_up_to_dominance_and_not_beyond() -> None:
    for entry, is_kept in [(0.95, True), (1.05, False)]:
        cell = create_cell("antisymmetric", 1, 2, step_size=0.5, damping=1.0)
        torch.nn.init.constant_(cell.get_parameter("weight_hh"), entry)
        bound = cell.step_bound()
        assert (bound.rate <= 1 + 1e-9) == is_kept
        assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)


def test_no_gain_in_a_weighted_infinity_norm_is_exceeded() -> None:
    cell = drawn("antisymmetric", 4, "small", features=3, step_size=2.5, damping=0.7)
    bound = cell.step_bound()
    assert (bound.norm, bound.weights is None) == ("linf", False)
    assert not violations(checked(cell, bound))


def test_many_neurons_are_bounded_step_by_step() -> None:
    cell = drawn("incremental", 150, inner_steps=3)
    with torch.no_grad():
        cell.get_parameter("weight_hh").mul_(0.2)
    bound = cell.step_bound()
    assert certify(cell).kind == "contracting"
    assert worst_rate(cell, bound, searches=3) <= bound.rate


def test_training_and_the_slowest_decay_change_no_proof() -> None:
    noisy, lru = create_cell("noisy_rnn", 2, 6), create_cell("lru", 2, 64)
    assert noisy.train().step_bound().rate == noisy.eval().step_bound().rate
    torch.nn.init.constant_(lru.get_parameter("log_decay"), -200.0)
    assert 1 - 1e-6 < lru.step_bound().rate < 1


class TestSlopes:
    @pytest.mark.parametrize("activation", ["silu", "gelu", "lecun_tanh"])
    def test_of_activations_stay_in_their_ranges(self, activation: str) -> None:
        cell: Any = create_cell("cfc", 1, 1, activation=activation)
        v = torch.linspace(-12, 12, 200001, dtype=torch.float64, requires_grad=True)
        (slopes,) = torch.autograd.grad(cell._activate(v).sum(), v)
        least, most = _SLOPE_RANGES[activation]
        assert least <= float(slopes.min()) <= least + 1e-5
        assert most - 1e-5 <= float(slopes.max()) <= most

    @pytest.mark.parametrize("offset", [1e-5, 0.01])
    @pytest.mark.parametrize("excess", [-0.05, -1e-5, 0.0, 1e-6, 1e-3, 0.1])
    def test_of_complex_modrelu_are_those_of_a_symmetric_matrix_up_to_the_steepest(
        self, offset: float, excess: float
    ) -> None:
        bias = torch.tensor([offset + excess], dtype=torch.float64)
        slope = float(steepest_slopes(bias, offset)[0])
        z = torch.randn(200, 2, dtype=torch.float64) * torch.logspace(-8, 1, 200, dtype=torch.float64)[:, None]
        z[0] = 0
        found = torch.func.vmap(torch.func.jacrev(lambda one: complex_modrelu(one, bias, offset)))(z)
        torch.testing.assert_close(found, found.mT, rtol=0, atol=1e-9 * slope)
        eigenvalues = torch.linalg.eigvalsh(found)
        assert eigenvalues.min() >= -1e-9
        assert eigenvalues.max() <= slope * (1 + 1e-9)
        assert slope == pytest.approx(max(1.0, 1 + excess / (1e-5 + offset)), rel=1e-9)
        if excess > 0:
            assert eigenvalues[0].max().item() == pytest.approx(slope, rel=1e-9)


class TestConditions:
    @pytest.mark.parametrize(
        ("key", "options", "cases"),
        [
            *(
                (key, {}, [(0.0, True), (-0.1, True), (1e-6, False), (math.nan, False)])
                for key in ("scornn", "exprnn", "dtriv", "nnrnn", "rnn_orth", "spectral_rnn", "lvf", "lvf_mid")
            ),
            ("eunn", {"variant": "real"}, [(0.0, False), (-0.009, False), (-0.02, True)]),
        ],
    )
    def test_nothing_is_proved_of_modrelu_where_a_bias_makes_a_jump(
        self, key: str, options: Options, cases: list[tuple[float, bool]]
    ) -> None:
        cell: Any = create_cell(key, 1, 4, nonlinearity="modrelu", **options)
        for largest, holds in cases:
            torch.nn.init.constant_(cell.bias, -0.2)
            with torch.no_grad():
                cell.bias[2] = largest
            bound = cell.step_bound()
            assert [one.holds for one in bound.hypotheses] == [holds]
            assert (bound.norm is not None, math.isfinite(bound.rate)) == (holds, holds)

    def test_of_papers_end_where_their_formulas_say(self) -> None:
        for step_size, holds in [(0.95, True), (1.05, False)]:
            cell = filled("antisymmetric", {"step_size": step_size, "damping": 1.0}, hidden=2, weight_hh=1.0)
            (condition,) = cell.step_bound().conditions
            assert (condition.bound, condition.holds) == (pytest.approx(1.0), holds)
        for weight, holds in [(0.5, True), (1.0, False)]:
            cell = filled("incremental", ONE_STEP, inner_lengths=0.5, weight_hh=weight)
            assert cell.step_bound().conditions[0].holds is holds
        cell = create_cell("noisy_rnn", 2, 6, linear_damping=2.0)
        with torch.no_grad():
            cell.get_parameter("unit_steps")[3] = -0.1
        assert not cell.step_bound().conditions[0].holds
        for key in ("lvf", "lvf_mid"):
            free = drawn(key, 6, "large", constraint="none")
            assert [cell.step_bound().conditions[0].holds for cell in (drawn(key, 6), free)] == [True, False]

    @pytest.mark.parametrize("key", ["ode_rnn", "fastgrnn", "fastgrnn_lsq", "gru_d"])
    def test_no_rate_is_claimed_of_gates_over_states_without_a_ball(self, key: str) -> None:
        bound = create_cell(key, 2, 4).step_bound()
        assert (bound.norm, bound.rate) == (None, math.inf)
        assert [ball.radius for ball in bound.balls] == ([1.0] if key == "gru_d" else [])


class TestBalls:
    @pytest.mark.parametrize(("step_size", "stiffness", "damping"), [(0.3, 2.0, 0.2), (0.076, 0.4, 8.0)])
    def test_of_an_oscillator_are_reached(self, step_size: float, stiffness: float, damping: float) -> None:
        options = {"step_size": step_size, "stiffness": stiffness, "damping": damping}
        cell = filled("cornn", options, weight_ih=100.0)
        matrix, push = cell.lure_system().F, cell.lure_system().G[:, 0]
        responses = np.stack([np.linalg.matrix_power(matrix, power) @ push for power in range(6000)])
        for place, ball in enumerate(cell.step_bound().balls):
            assert (ball.state, ball.norm) == (cell.state_names[place], "linf")
            # The force that has done most to it in the end.
            worst = torch.from_numpy(np.sign(responses[::-1, place]).copy())[None, :, None]
            assert float(reached(exact(cell), worst)[place]) == pytest.approx(ball.radius, rel=1e-5)

    def test_of_a_fastrnn_is_the_ratio_of_its_numbers_and_reached(self) -> None:
        cell = create_cell("fastrnn", 2, 5, alpha_init=0.5, beta_init=1.0)
        (ball,) = cell.step_bound().balls
        ratio = torch.sigmoid(torch.tensor(0.5)) / (1 - torch.sigmoid(torch.tensor(1.0)))
        assert (ball.norm, ball.radius) == ("linf", pytest.approx(ratio.item(), rel=1e-6))
        assert farthest(cell)[0][0] == pytest.approx(ball.radius, rel=1e-3)

    @pytest.mark.parametrize(("start", "radius"), [("zero", 3.0), ("previous", 1.5)])
    def test_of_an_incremental_cell_with_tanh_is_where_its_inner_steps_lead(self, start: str, radius: float) -> None:
        cell = create_cell("incremental", 2, 5, inner_steps=2, nonlinearity="tanh", start=start)
        # The inner steps keep 1/4 of y and add at most 3/4; h is taken off again.
        assert [ball.radius for ball in cell.step_bound().balls] == [pytest.approx(radius, rel=1e-9)]

    def test_of_lem_need_a_step_below_two_and_its_rate_one_of_one(self) -> None:
        radii = {}
        for step_size in (0.5, 1.0, 1.5, 2.0, 3.0):
            cell = drawn("lem", 8, "large", step_size=step_size)
            bound = cell.step_bound()
            assert [one.holds for one in bound.hypotheses] == [step_size <= 1]
            assert (bound.norm is not None) == (step_size <= 1)
            radii[step_size] = [ball.radius for ball in bound.balls]
            for ball, (largest, _) in zip(bound.balls, farthest(cell), strict=False):
                assert largest <= ball.radius * (1 + SLACK)
        assert radii == {0.5: [1.0, 1.0], 1.0: [1.0, 1.0], 1.5: pytest.approx([3.0, 3.0]), 2.0: [], 3.0: []}

    @pytest.mark.parametrize("key", [key for key in list_cells() if "lstm" in key and key != "minlstm"])
    def test_of_memories_without_a_bound_are_those_of_the_output_alone(self, key: str) -> None:
        cell = drawn(key, 5, "large")
        bound = cell.step_bound()
        assert (bound.norm, bound.covers, bound.rate) == (None, (), math.inf)
        assert bound.balls[0].state == "hidden"
        assert {"cell", "normalizer", "momentum", "previous"}.isdisjoint(ball.state for ball in bound.balls)
        assert certify(cell).kind == "none"

    def test_of_a_scheduled_restart_hold_the_count_before_it(self) -> None:
        for restart in (1, 2, 7):
            cell = create_cell("sr_lstm", 2, 3, restart=restart)
            radii = {ball.state: ball.radius for ball in cell.step_bound().balls}
            assert radii == {"hidden": 1.0, "count": restart - 1}
            assert farthest(cell, steps=20)[3][0] == restart - 1

    @pytest.mark.parametrize("solver", ["euler", "heun", "rk4"])
    def test_of_an_ode_lstm_hold_what_its_flow_can_add(self, solver: str) -> None:
        values = {"weight_ih": 1.0, "bias_ih": [30, 0, 30, 30], "flow_in_bias": 30.0, "flow_out": 2.0}
        cell = filled("ode_lstm", {"solver": solver}, **values, flow_out_bias=1.0)
        (ball,) = cell.step_bound().balls
        # Above what the flow can add in exact arithmetic, by what float32 rounds.
        assert 4.0 < ball.radius < 4.0001
        assert 0.99 * ball.radius <= farthest(cell)[0][0] <= ball.radius

    @pytest.mark.parametrize(
        ("key", "options"),
        [
            *((key, {}) for key in ("antisymmetric", "antisym_ablation", "nais_net", "neural_ode_rnn", "incremental")),
            ("fastrnn", {"nonlinearity": "relu"}),
            ("lvf", {"nonlinearity": "softshrink"}),
            ("ren", {}),
            ("cornn", {"step_size": 1e-4, "stiffness": 1e-3, "damping": 1e-3}),
        ],
    )
    def test_there_are_none_where_inputs_drive_the_state_ever_further(self, key: str, options: Options) -> None:
        cell = create_cell(key, 2, 5, **options)
        assert cell.step_bound().balls == ()
        # A spring that slow takes longer than the search lasts.
        assert key == "cornn" or farthest(cell)[-1][0] > 10
