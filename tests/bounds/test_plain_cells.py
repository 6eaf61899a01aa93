"""Bounds of the plain family, of complex units and of the oscillators: exact cases, tightness, and where they end."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from bounds.step_search import exact, farthest, reached, size_of, worst_gain, worst_rate
from bounds.test_soundness import SLACK, drawn
from stablernn import create_cell
from stablernn.cells._base import float64
from stablernn.cells._complex import steepest_slopes
from stablernn.certificates.certificate import certify
from stablernn.parametrizations import complex_modrelu

ORTHOGONAL = ("scornn", "exprnn", "dtriv", "urnn", "fc_urnn", "eunn")
FREE = ("identity_rnn", "indrnn", "rnn_orth", "soft_orth", "nnrnn", "kru", "cornn")
"""Cells that contract where their weights are small."""
KEYS = (*ORTHOGONAL, *FREE, "spectral_rnn", "unicornn")
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    *(("rnn_orth", {"nonlinearity": word}) for word in ("tanh", "relu", "modrelu", "softshrink")),
    *(("spectral_rnn", {"nonlinearity": word, "margin": 0.3}) for word in ("tanh", "relu", "softshrink")),
    ("soft_orth", {"form": "factored"}),
    ("soft_orth", {"form": "unbounded"}),
    ("scornn", {"negative_signs": 3}),
    ("exprnn", {"parametrization": "cayley"}),
    ("dtriv", {"rebase": 1}),
    ("indrnn", {"max_length": 5}),
    ("kru", {"factors": 1, "nonlinearity": "modrelu"}),
    ("urnn", {"nonlinearity": "modrelu"}),
    ("fc_urnn", {"parametrization": "cayley", "nonlinearity": "modrelu"}),
    ("eunn", {"variant": "real"}),
    ("eunn", {"style": "fft", "nonlinearity": "modrelu"}),
    ("cornn", {"step_size": 0.042, "stiffness": 2.7, "damping": 4.7}),
    ("cornn", {"step_size": 0.06, "stiffness": 66.0, "damping": 15.0}),
    ("unicornn", {"step_size": 0.19, "stiffness": 30.65}),
    ("unicornn", {"stiffness": 0.0}),
    ("unicornn", {"step_size": 3.0}),
]
OPTION_IDS = [f"{key}-{'-'.join(map(str, options.values()))}" for key, options in OPTIONS]


def filled(key: str, inputs: int, hidden: int, *, options: dict[str, Any] | None = None, **values: object) -> Any:
    """A cell with every parameter at 0 but for those given."""
    cell = create_cell(key, inputs, hidden, **(options or {}))
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(torch.as_tensor(values.get(name, 0.0)).expand_as(parameter))
    return cell.eval()


def spectral_norm(matrix: Tensor) -> float:
    return float(np.linalg.norm(float64(matrix), 2))


def jacobian(cell: Any, state: tuple[Tensor, ...], x: Tensor) -> Tensor:
    """d(state after) / d(state before) of one unbatched state."""
    sizes = [len(part) for part in state]

    def step(joined: Tensor) -> Tensor:
        parts = tuple(part[None] for part in joined.split(sizes))
        return torch.cat([part[0] for part in cell.step(cell.weights(), parts, cell.drive(x[None]))])

    matrix = torch.autograd.functional.jacobian(step, torch.cat(state))
    assert isinstance(matrix, Tensor)
    return matrix


class TestExactCases:
    @pytest.mark.parametrize("weight", [0.6, -0.6, 1.0, -1.3])
    def test_one_unit_of_relu(self, weight: float) -> None:
        bound = filled("identity_rnn", 1, 1, weight_hh=weight, weight_ih=2.0).step_bound()
        assert bound.rate == pytest.approx(abs(weight), rel=1e-6)
        assert bound.gain == pytest.approx(2.0, rel=1e-6)
        assert bound.balls == ()

    @pytest.mark.parametrize("draw", ["fresh", "large"])
    def test_independent_units_have_the_rate_of_the_slowest(self, draw: str) -> None:
        cell: Any = drawn("indrnn", 16, draw)
        bound = cell.step_bound()
        assert (bound.norm, bound.metric) == ("l2", None)
        assert bound.rate == pytest.approx(float(cell.weight_hh.detach().abs().max()), rel=1e-7)
        assert bound.gain == pytest.approx(spectral_norm(cell.weight_ih), rel=1e-7)

    @pytest.mark.parametrize("draw", ["fresh", "small", "large"])
    @pytest.mark.parametrize("key", ORTHOGONAL)
    def test_orthogonal_matrices_neither_shrink_nor_expand(self, key: str, draw: str) -> None:
        cell = drawn(key, 16, draw)
        bound = cell.step_bound()
        assert bound.norm == "l2"
        assert bound.rate == pytest.approx(1, abs=1e-6)
        assert bound.gain == pytest.approx(spectral_norm(cell.get_parameter("weight_ih")), rel=1e-6)
        assert certify(cell).kind == "non-expansive"

    @pytest.mark.parametrize("spectrum", [-60.0, 60.0])
    def test_singular_values_at_the_end_of_their_range(self, spectrum: float) -> None:
        for key, options in (("spectral_rnn", {}), ("soft_orth", {"form": "factored"})):
            torch.manual_seed(0)
            cell = create_cell(key, 2, 8, margin=0.1, **options)
            torch.nn.init.constant_(cell.get_parameter("spectrum"), spectrum)
            assert cell.step_bound().rate == pytest.approx(1 + math.copysign(0.1, spectrum), rel=1e-6)

    def test_of_a_kronecker_product_the_norms_multiply(self) -> None:
        cell: Any = drawn("kru", 8, "large")
        norms = [float(torch.linalg.matrix_norm(factor.detach(), 2)) for factor in cell.factor_matrices()]
        assert cell.step_bound().rate <= math.prod(norms) * (1 + 1e-6)
        assert spectral_norm(cell.recurrent_matrix()) == pytest.approx(math.prod(norms), rel=1e-5)

    def test_without_coupling_oscillators_forget_as_their_spring_and_damping_do(self) -> None:
        cell = filled("cornn", 1, 3)
        bound = cell.step_bound()
        radius = float(np.abs(np.linalg.eigvals(cell.lure_system().F)).max())
        assert radius == pytest.approx(math.sqrt(0.75), rel=1e-9)
        assert radius <= bound.rate <= 1.02 * radius
        assert bound.covers == ("hidden", "velocity")

    @pytest.mark.parametrize(
        ("step_size", "stiffness", "damping"), [(0.5, 0.5, 0.5), (0.3, 2.0, 0.2), (0.042, 2.7, 4.7), (0.076, 0.4, 8.0)]
    )
    def test_the_balls_of_an_oscillator_are_reached(self, step_size: float, stiffness: float, damping: float) -> None:
        options = {"step_size": step_size, "stiffness": stiffness, "damping": damping}
        cell = filled("cornn", 1, 1, options=options, weight_ih=100.0)
        matrix, push = cell.lure_system().F, cell.lure_system().G[:, 0]
        responses = np.stack([np.linalg.matrix_power(matrix, power) @ push for power in range(6000)])
        for place, ball in enumerate(cell.step_bound().balls):
            assert (ball.state, ball.norm) == (cell.state_names[place], "linf")
            # The force that has done most to it in the end.
            worst = torch.from_numpy(np.sign(responses[::-1, place]).copy())[None, :, None]
            assert float(reached(exact(cell), worst)[place]) == pytest.approx(ball.radius, rel=1e-5)

    def test_a_spring_too_slow_to_sum_up_claims_no_ball(self) -> None:
        cell = create_cell("cornn", 1, 2, step_size=1e-4, stiffness=1e-3, damping=1e-3)
        assert cell.step_bound().balls == ()

    def test_an_undamped_oscillator_without_coupling_turns_its_energy_around(self) -> None:
        cell = filled("unicornn", 1, 3, speed=torch.tensor([-2.0, 0.0, 2.0]))
        assert cell.step_bound().rate == pytest.approx(1, abs=1e-9)
        assert certify(cell).kind == "non-expansive"

    @pytest.mark.parametrize("stiffness", [0.0, 1.0, 30.0])
    @pytest.mark.parametrize("weight", [-40.0, -3.0, -1.2, -0.5, 0.5, 5.0, 60.0])
    def test_of_one_undamped_oscillator_the_best_form_is_found(self, stiffness: float, weight: float) -> None:
        cell = filled("unicornn", 1, 1, options={"stiffness": stiffness}, weight_hh=weight, speed=1.0)
        least = best_rate(0.5 / (1 + math.exp(-1)), stiffness, weight)
        assert cell.step_bound().rate == pytest.approx(least, rel=1e-5)

    def test_an_oscillator_that_is_pushed_away_expands_as_fast_as_it_can(self) -> None:
        cell = filled("unicornn", 1, 1, options={"stiffness": 0.0}, weight_hh=-1.0, speed=2.0)
        zero = torch.zeros(1)
        modulus = torch.linalg.eigvals(jacobian(cell, (zero, zero), zero)).abs().max().item()
        assert cell.step_bound().rate == pytest.approx(modulus, rel=1e-3)

    def test_no_weights_make_an_undamped_oscillator_contract(self) -> None:
        for draw in ("fresh", "small", "large"):
            assert drawn("unicornn", 16, draw).step_bound().rate >= 1 - 1e-12


class TestComplexModReLU:
    @pytest.mark.parametrize("offset", [1e-5, 0.01])
    @pytest.mark.parametrize("excess", [-0.05, -1e-5, 0.0, 1e-6, 1e-3, 0.1])
    def test_its_jacobian_is_symmetric_with_eigenvalues_from_0_to_the_steepest_slope(
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

    @pytest.mark.parametrize(
        ("key", "bias", "slope"), [("urnn", 0.01, 500.5), ("kru", 1e-3, 50.5), ("eunn", 1e-3, 1 + 1e-3 / 0.01001)]
    )
    def test_a_positive_bias_stretches_the_surroundings_of_zero_by_what_is_claimed(
        self, key: str, bias: float, slope: float
    ) -> None:
        torch.manual_seed(0)
        cell: Any = create_cell(key, 1, 3, nonlinearity="modrelu")
        torch.nn.init.constant_(cell.bias, bias)
        bound = cell.step_bound()
        assert bound.rate == pytest.approx(slope, rel=1e-4)
        assert [one.holds for one in bound.conditions] == [False]
        assert bound.figures["steepest slope of modReLU"] == pytest.approx(slope, rel=1e-4)
        double = exact(cell)
        state = [torch.zeros(size, dtype=torch.float64) for size in cell.state_sizes]
        if key == "urnn":
            state[1] += 1
        matrix = jacobian(double, tuple(state), torch.zeros(1, dtype=torch.float64))
        assert torch.linalg.matrix_norm(matrix, 2).item() == pytest.approx(bound.rate, rel=1e-4)

    @pytest.mark.parametrize("key", ["urnn", "fc_urnn", "kru", "eunn"])
    def test_up_to_a_bias_of_0_nothing_is_stretched(self, key: str) -> None:
        torch.manual_seed(0)
        cell: Any = create_cell(key, 1, 5, nonlinearity="modrelu")
        torch.nn.init.zeros_(cell.bias)
        bound = cell.step_bound()
        assert bound.rate == pytest.approx(1, abs=1e-6)
        assert all(one.holds for one in bound.conditions)


class TestHypotheses:
    @pytest.mark.parametrize("key", ["scornn", "exprnn", "dtriv", "nnrnn", "rnn_orth", "spectral_rnn"])
    def test_nothing_is_proved_of_modrelu_where_a_bias_is_positive(self, key: str) -> None:
        cell: Any = create_cell(key, 1, 4, nonlinearity="modrelu")
        for largest, holds in ((0.0, True), (-0.1, True), (1e-6, False), (math.nan, False)):
            torch.nn.init.constant_(cell.bias, -0.2)
            with torch.no_grad():
                cell.bias[2] = largest
            bound = cell.step_bound()
            assert [one.holds for one in bound.hypotheses] == [holds]
            assert (bound.norm is not None, math.isfinite(bound.rate)) == (holds, holds)
            if not math.isnan(largest):
                assert (certify(cell).kind != "none") == holds

    def test_softshrink_and_the_smooth_ones_have_none_that_can_fail(self) -> None:
        for word in ("tanh", "relu"):
            assert create_cell("rnn_orth", 1, 4, nonlinearity=word).step_bound().hypotheses == ()
        cell: Any = create_cell("rnn_orth", 1, 4)
        torch.nn.init.constant_(cell.bias, 3.0)
        assert [one.holds for one in cell.step_bound().hypotheses] == [True]

    def test_the_real_eunn_needs_a_bias_below_what_it_adds(self) -> None:
        cell: Any = create_cell("eunn", 1, 4, variant="real", nonlinearity="modrelu")
        for bias, holds in ((0.0, False), (-0.009, False), (-0.02, True)):
            torch.nn.init.constant_(cell.bias, bias)
            assert [one.holds for one in cell.step_bound().hypotheses] == [holds]
            assert math.isfinite(cell.step_bound().rate) == holds

    def test_a_step_too_long_for_its_springs_is_told(self) -> None:
        for step_size, holds in ((1.0, True), (2.5, False)):
            cell = filled("unicornn", 1, 2, options={"step_size": step_size}, speed=20.0)
            bound = cell.step_bound()
            assert [one.holds for one in bound.conditions] == [holds]
            assert (bound.rate <= 1 + 1e-9) == holds


class TestTightness:
    @pytest.mark.parametrize("key", FREE)
    def test_small_weights_contract(self, key: str) -> None:
        cell = drawn(key, 16, "small")
        assert certify(cell).kind == "contracting"
        assert cell.step_bound().rate < (0.96 if key == "cornn" else 0.2)

    @pytest.mark.parametrize("draw", ["fresh", "small"])
    @pytest.mark.parametrize("key", KEYS)
    def test_rates_are_close_to_the_worst_that_is_found(self, key: str, draw: str) -> None:
        cell = drawn(key, 16, draw)
        best = cell.step_bound()
        # Where the norm is fitted to the whole step, no single one need come as close as in the 2-norm.
        bound = next((norm for norm in best.other_norms if norm.norm == "l2"), best)
        assert best.rate <= bound.rate <= 1.08 * worst_rate(cell, bound)
        assert bound.gain <= 1.35 * worst_gain(cell, bound)

    def test_a_weighted_norm_proves_what_the_plain_one_does_not(self) -> None:
        torch.manual_seed(0)
        cell: Any = create_cell("nnrnn", 1, 4)
        with torch.no_grad():
            cell.weight_hh.zero_()
            cell.gain.fill_(0.5)
            cell.weight_upper.fill_(0.5)
        bound = cell.step_bound()
        assert spectral_norm(cell.recurrent_matrix()) > 1.1
        assert bound.norm == "weighted-l2"
        assert bound.rate < 1

    def test_oscillators_contract_in_a_weighted_norm_alone(self) -> None:
        torch.manual_seed(0)
        cell: Any = create_cell("cornn", 1, 8, step_size=0.3, stiffness=2.0, damping=0.5)
        for parameter in cell.parameters():
            torch.nn.init.normal_(parameter, std=0.01)
        assert np.linalg.norm(cell.lure_system().F, 2) > 1.1
        assert cell.step_bound().norm == "weighted-l2"
        assert cell.step_bound().rate < 0.95


class TestReach:
    @pytest.mark.parametrize(("key", "options"), OPTIONS, ids=OPTION_IDS)
    @pytest.mark.parametrize("std", [None, pytest.param(0.1, marks=pytest.mark.slow), 0.7])
    def test_no_option_exceeds_its_bound(self, key: str, options: dict[str, Any], std: float | None) -> None:
        torch.manual_seed(1)
        cell = create_cell(key, 2, 8, **options)
        if std is not None:
            for parameter in cell.parameters():
                torch.nn.init.normal_(parameter, std=std)
            with torch.no_grad():
                cell.after_step(1, 100)
        bound = cell.step_bound()
        for ball, (largest, norm) in ((b, farthest(cell)[cell.state_names.index(b.state)]) for b in bound.balls):
            assert (largest if ball.norm == "linf" else norm) <= ball.radius * (1 + SLACK)
        if bound.norm is not None:
            assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)
            assert worst_gain(cell, bound) <= bound.gain * (1 + SLACK)

    @pytest.mark.parametrize(
        ("key", "options"),
        [("urnn", {}), ("fc_urnn", {}), ("soft_orth", {"form": "factored"})],
        ids=lambda one: str(one),
    )
    def test_a_sequence_that_has_not_started_counts_as_its_trained_first_state(
        self, key: str, options: dict[str, Any]
    ) -> None:
        torch.manual_seed(0)
        cell = create_cell(key, 2, 6, **options)
        with torch.no_grad():
            cell.get_parameter("hidden_0").normal_()
        bound = cell.step_bound()
        assert bound.covers == ("hidden",)
        assert ("started", "linf", 1.0) in [(ball.state, ball.norm, ball.radius) for ball in bound.balls]
        double, size = exact(cell), size_of(cell, bound)
        x = torch.randn(40, 2, dtype=torch.float64)
        fresh = double.initial_state(40)
        other = (torch.randn_like(fresh[0]), torch.ones_like(fresh[1]))
        before = size((double.get_parameter("hidden_0").expand_as(fresh[0]), fresh[1]), other)
        weights, drive = double.weights(), double.drive(x)
        after = size(double.step(weights, fresh, drive), double.step(weights, other, drive))
        assert (after <= bound.rate * before * (1 + SLACK)).all()

    def test_the_output_of_complex_units_is_their_real_part(self) -> None:
        cell = drawn("eunn", 8, "large")
        bound = cell.step_bound()
        assert bound.covers == ("hidden", "imaginary")
        assert bound.output_gain == 1.0


class TestProbe:
    @pytest.mark.parametrize("key", ["exprnn", "indrnn", "eunn", "kru", "cornn", "unicornn"])
    def test_it_catches_a_rate_a_tenth_too_low(self, key: str) -> None:
        cell = drawn(key, 16, "fresh")
        bound = cell.step_bound()
        wrong = replace(bound, rate=0.9 * bound.rate)
        assert worst_rate(cell, wrong) > wrong.rate * (1 + SLACK)


def best_rate(length: float, stiffness: float, weight: float) -> float:
    """The least rate of one undamped oscillator that a search over quadratic forms finds."""
    steps = np.array([[[1 - length**2 * k, length], [-length * k, 1]] for k in (stiffness, stiffness + weight)])

    def rate(free: np.ndarray) -> float:
        root = np.array([[math.exp(free[0]), 0], [free[1], 1]])
        return float(np.linalg.norm(root @ steps @ np.linalg.inv(root), 2, axis=(1, 2)).max())

    starts = [np.array([p, q]) for p in (-2.0, 0.0, 2.0) for q in (-1.0, 0.0)]
    options = {"xatol": 1e-9, "fatol": 1e-12, "maxiter": 4000}
    return min(float(optimize.minimize(rate, start, method="Nelder-Mead", options=options).fun) for start in starts)
