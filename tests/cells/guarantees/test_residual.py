"""Guarantees of the residual cells other than the antisymmetric and the Lipschitz ones, and where they end.

NAIS-Net, neural ODEs, the ablation of the gated antisymmetric cell, the incremental RNN and the noisy RNN; FastRNN and
FastGRNN have ``test_fastrnn.py``. Checked on fresh parameters, after a random perturbation, after optimizer steps.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reference import lipschitz as lipschitz_reference
from reference import nais_net as nais_reference
from reference import noisy_rnn as noisy_reference
from reference.dynamics import cell_at, every_stage, eye, jacobian, norm, train, trajectory, vector
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell


class TestNAISNet:
    @pytest.mark.parametrize("margin", [0.01, 0.2])
    @pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
    def test_the_spectrum_stays_in_its_interval_through_training(
        self, dtype: torch.dtype, slack: float, margin: float
    ) -> None:
        layer = StableRNN("nais_net", 1, 16, margin=margin).to(dtype)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        x, target = torch.randn(8, 12, 1, dtype=dtype), 3 * torch.randn(8, 16, dtype=dtype)
        largest = 0.0
        for step in range(1, 201):
            optimizer.zero_grad()
            (layer(x)[0][:, -1] - target).square().mean().backward()
            optimizer.step()
            largest = max(largest, _gram_size(layer.cells[0]))
            layer.after_step(step, 200)
            matrix = layer.cells[0].recurrent_matrix().detach()
            assert torch.equal(matrix, matrix.T) or (matrix - matrix.T).abs().max() < slack
            eigenvalues = torch.linalg.eigvalsh(matrix)
            assert eigenvalues.min() >= -(1 - margin) - slack
            assert eigenvalues.max() <= -margin + slack
        assert largest > 1 - 2 * margin, "the projection had something to do"

    @every_stage
    def test_the_spectral_radius_of_a_step_is_below_one_at_every_state(self, stage: str) -> None:
        cell = cell_at(stage, "nais_net", 12)
        with torch.no_grad():
            cell.project()
        for scale in (0.1, 1.0, 5.0):
            for _ in range(10):
                state, x = scale * torch.randn(12, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
                eigenvalues = torch.linalg.eigvals(jacobian(cell, state, x))
                assert eigenvalues.imag.abs().max() < 1e-9
                assert eigenvalues.abs().max() < 1
                assert eigenvalues.real.min() > 0

    def test_its_norm_is_not_and_trajectories_can_move_apart(self) -> None:
        cell = cell_at("fresh", "nais_net", 2)
        with torch.no_grad():
            cell.weight_hh.copy_(math.sqrt(0.45) * torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
            cell.weight_ih.zero_()
            cell.bias_ih.copy_(vector(0, 8))
            before = cell.weight_hh.clone()
            cell.project()
        assert torch.equal(cell.weight_hh, before), "this R is one that the projection leaves alone"
        # The second unit is saturated: it stays where it is, and the first is pushed away from it.
        step = jacobian(cell, vector(0, 0), torch.zeros(1, dtype=torch.float64))
        assert norm(step) > 1.09
        pair = torch.tensor([[0.0, 0.01], [0.0, -0.01]], dtype=torch.float64)
        states = trajectory(cell, pair, torch.zeros(1, 1, dtype=torch.float64))
        before, after = (states[:, 0] - states[:, 1]).norm(dim=1).tolist()
        assert after > 1.09 * before

    def test_random_states_have_it_too(self) -> None:
        cell = cell_at("perturbed", "nais_net", 8)
        with torch.no_grad():
            cell.project()
        norms = [
            norm(jacobian(cell, 3 * torch.randn(8, dtype=torch.float64), torch.randn(1, dtype=torch.float64)))
            for _ in range(50)
        ]
        assert max(norms) > 1.01

    @pytest.mark.parametrize("size", [0.3, 1.0, 5.0])
    def test_the_projection_is_the_papers(self, size: float) -> None:
        cell = cell_at("fresh", "nais_net", 7)
        with torch.no_grad():
            cell.weight_hh.copy_(size * torch.randn(7, 7, dtype=torch.float64) / 7)
            expected = nais_reference.projected(cell.weight_hh.clone(), cell.margin)
            cell.after_step(1, 1)
        torch.testing.assert_close(cell.weight_hh.detach(), expected, rtol=1e-13, atol=0)
        assert _gram_size(cell) <= (1 - 2 * cell.margin) * (1 + 1e-12)

    def test_the_root_on_the_product_would_leave_the_interval(self) -> None:
        # Two public versions scale R^T R, not R, by the root of d / ||R^T R||_F.
        margin = 0.01
        cell = cell_at("fresh", "nais_net", 2, margin=margin)
        r, d = 2.0 * eye(2), 1 - 2 * margin
        gram = r.T @ r
        theirs = -math.sqrt(d / gram.norm()) * gram - margin * eye(2)
        assert torch.linalg.eigvalsh(theirs).min() < -1.5
        with torch.no_grad():
            cell.weight_hh.copy_(r)
            cell.project()
        assert torch.linalg.eigvalsh(cell.recurrent_matrix()).min() >= -(1 - margin)

    def test_a_fresh_cell_is_projected(self) -> None:
        assert _gram_size(create_cell("nais_net", 1, 40)) == pytest.approx(0.98, rel=1e-5)


def _gram_size(cell: Any) -> float:
    return float((cell.weight_hh.T @ cell.weight_hh).detach().norm())


@every_stage
@pytest.mark.parametrize("key", ["antisymmetric", "antisymmetric_g", "neural_ode_rnn", "antisym_ablation"])
def test_a_step_moves_the_state_by_at_most_its_length_times_the_root_of_the_units(key: str, stage: str) -> None:
    cell = cell_at(stage, key, 9, step_size=0.2)
    states = trajectory(cell, torch.randn(4, 9, dtype=torch.float64), 10 * torch.randn(30, 1, dtype=torch.float64))
    assert (states[1:] - states[:-1]).norm(dim=-1).max() <= 0.2 * math.sqrt(9) * (1 + 1e-12)


class TestNeuralODE:
    def test_a_free_matrix_can_drive_the_state_from_the_origin(self) -> None:
        cell = cell_at("fresh", "neural_ode_rnn", 3, step_size=0.1)
        with torch.no_grad():
            cell.weight_hh.copy_(eye(3))
            cell.bias_ih.zero_()
        states = trajectory(cell, torch.full((1, 3), 1e-3).double(), torch.zeros(50, 1, dtype=torch.float64))
        assert states[-1].min().item() == pytest.approx(1e-3 * 1.1**50, rel=0.01)

    def test_it_is_the_lipschitz_cell_without_linear_term_and_structure(self) -> None:
        cell = cell_at("perturbed", "neural_ode_rnn", 6, step_size=0.3)
        x = torch.randn(2, 9, 1, dtype=torch.float64)
        zero = torch.zeros(6, 6, dtype=torch.float64)
        params = {"M_A": zero, "M_W": cell.weight_hh, "U": cell.weight_ih, "b": cell.bias_ih}
        expected = lipschitz_reference.sequence(
            params, x, torch.zeros(2, 6).double(), eps=0.3, beta=0.5, gamma_A=0.0, gamma_W=0.0, alpha=0.0
        )
        layer = StableRNN("neural_ode_rnn", 1, 6, step_size=0.3).double()
        layer.cells[0].load_state_dict(cell.state_dict())
        torch.testing.assert_close(layer(x)[0], expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("scale", [0.1, 2.0])
    def test_its_matrix_starts_with_a_deviation_that_falls_with_the_units(self, scale: float) -> None:
        weight = create_cell("neural_ode_rnn", 1, 200, init_scale=scale).weight_hh
        assert weight.std().item() == pytest.approx(scale / 200, rel=0.05)

    @pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("midpoint", 2), ("heun", 2), ("rk4", 4)])
    def test_each_solver_has_its_order(self, solver: str, order: int) -> None:
        def after(steps: int, method: str) -> Tensor:
            torch.manual_seed(4)
            cell = cell_at("perturbed", "ode_rnn", 4, solver=method, solver_steps=steps, flow_size=8)
            return cell(torch.zeros(1, 1).double(), vector(0.3, -0.5, 0.2, 0.9)[None]).detach()

        exact = after(400, "rk4")
        errors = [(after(steps, solver) - exact).norm().item() for steps in (8, 16)]
        assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.35)

    def test_the_sample_enters_after_the_flow(self) -> None:
        cell = cell_at("perturbed", "ode_rnn", 4)
        gru = create_cell("gru", 1, 4).double()
        gru.load_state_dict({name: cell.state_dict()[name] for name in gru.state_dict()})
        with torch.no_grad():
            cell.flow_out.zero_()
            cell.flow_out_bias.copy_(vector(1, 2, 3, 4))
        x, h = torch.randn(2, 1, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
        torch.testing.assert_close(cell(x, h), gru(x, h + vector(1, 2, 3, 4)), rtol=1e-12, atol=1e-12)

    def test_the_flow_starts_small(self) -> None:
        cell = create_cell("ode_rnn", 1, 60, flow_size=100)
        bounds = {"flow_in": 60**-0.5, "flow_in_bias": 60**-0.5, "flow_out": 0.01, "flow_out_bias": 0.01}
        for name, bound in bounds.items():
            values = getattr(cell, name).detach()
            assert 0.9 * bound < values.abs().max() <= bound, name
        assert cell.flow_out.std().item() == pytest.approx(0.01 / math.sqrt(3), rel=0.05)


class TestAblation:
    def test_with_the_antisymmetric_matrix_it_is_the_gated_cell(self) -> None:
        gated = cell_at("perturbed", "antisymmetric_g", 6, step_size=0.2)
        cell = cell_at("perturbed", "antisym_ablation", 6, step_size=0.2)
        with torch.no_grad():
            cell.weight_hh.copy_(gated.recurrent_matrix())
            cell.weight_ih.copy_(gated.weight_ih)
            cell.bias_ih.copy_(gated.bias_ih)
        x, h = torch.randn(3, 1, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
        torch.testing.assert_close(cell(x, h), gated(x, h), rtol=1e-13, atol=1e-13)

    def test_there_is_no_damping_unless_asked_for(self) -> None:
        for preset in ("practical", "paper"):
            cell = create_cell("antisym_ablation", 1, 5, preset=preset)
            assert torch.equal(cell.recurrent_matrix(), cell.weight_hh)
        damped = cell_at("fresh", "antisym_ablation", 5, damping=0.3)
        assert torch.equal(damped.recurrent_matrix(), damped.weight_hh - 0.3 * eye(5))

    def test_a_fresh_matrix_has_eigenvalues_on_both_sides(self) -> None:
        matrix = cell_at("fresh", "antisym_ablation", 40).recurrent_matrix().detach()
        real = torch.linalg.eigvals(matrix).real
        assert real.max() > 0.5
        assert real.min() < -0.5
        assert matrix.std().item() == pytest.approx(40**-0.5, rel=0.1)


class TestIncremental:
    """On the equilibrium the sum of old and new state is a function of the input alone."""

    def _converging(self, stage: str, **options: Any) -> Any:
        """A cell of that stage, trained with one inner step, whose inner steps halve distances."""
        cell = create_cell("incremental", 1, 6, **options).double()
        source = cell_at(stage, "incremental", 6, **{**options, "inner_steps": 1}).state_dict()
        del source["inner_lengths"]
        cell.load_state_dict(source, strict=False)
        with torch.no_grad():
            cell.weight_hh.mul_(0.5 / norm(cell.weight_hh))
            cell.inner_lengths.fill_(0.5)
        return cell

    @every_stage
    @pytest.mark.parametrize("start", ["previous", "zero"])
    @pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
    def test_the_jacobian_at_the_equilibrium_is_minus_the_identity(
        self, nonlinearity: str, start: str, stage: str
    ) -> None:
        cell = self._converging(stage, nonlinearity=nonlinearity, start=start, inner_steps=120)
        state, x = torch.randn(6, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
        torch.testing.assert_close(jacobian(cell, state, x), -eye(6), rtol=0, atol=1e-10)

    def test_there_the_sum_solves_its_equation_and_does_not_know_the_old_state(self) -> None:
        cell = self._converging("perturbed", inner_steps=150, leak=1.3, nonlinearity="tanh")
        x = torch.randn(1, 1, dtype=torch.float64)
        h = 2 * torch.randn(4, 6, dtype=torch.float64)
        y = cell(x.expand(4, 1), h) + h
        torch.testing.assert_close(y, y[:1].expand(4, 6), rtol=0, atol=1e-12)
        torch.testing.assert_close(
            torch.tanh(y @ cell.recurrent_matrix().T + cell.drive(x)), 1.3 * y, rtol=0, atol=1e-12
        )

    @pytest.mark.parametrize(("start", "factor"), [("previous", 2.0), ("zero", 1.0)])
    @pytest.mark.parametrize("count", [1, 2, 5, 20])
    def test_after_few_steps_it_is_as_near_as_the_docstring_says(self, count: int, start: str, factor: float) -> None:
        cell = self._converging("perturbed", inner_steps=count, start=start)
        rate = (1 - 0.5) + 0.5 * 0.5
        for _ in range(5):
            step = jacobian(cell, torch.randn(6, dtype=torch.float64), torch.randn(1, dtype=torch.float64))
            assert norm(step + eye(6)) <= factor * rate**count * (1 + 1e-9)

    def test_at_the_published_size_it_is_far_from_that(self) -> None:
        cell = cell_at("fresh", "incremental", 6, preset="paper", inner_steps=5)
        step = jacobian(cell, torch.randn(6, dtype=torch.float64), torch.randn(1, dtype=torch.float64))
        assert norm(step - eye(6)) < 0.2

    def test_a_large_matrix_keeps_the_inner_steps_from_converging(self) -> None:
        cell = cell_at("fresh", "incremental", 3, inner_steps=120, step_size=0.5)
        with torch.no_grad():
            cell.weight_hh.copy_(2 * eye(3))
            cell.bias_ih.fill_(1.0)
        assert norm(jacobian(cell, torch.ones(3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))) > 1e6

    def test_the_inner_steps_are_trained_from_where_they_start(self) -> None:
        cell = create_cell("incremental", 1, 4, preset="paper", inner_steps=3)
        assert cell.inner_lengths.tolist() == pytest.approx([0.01] * 3)
        assert cell.inner_lengths.requires_grad

    def test_of_low_rank_the_matrix_is_a_product(self) -> None:
        cell = cell_at("perturbed", "incremental", 8, recurrent_rank=2, inner_steps=2)
        assert sum(parameter.numel() for parameter in cell.parameters()) == 2 * 8 * 2 + 8 + 8 + 2
        assert torch.linalg.matrix_rank(cell.recurrent_matrix()) == 2
        assert cell.weight_hh.shape == (8, 2)
        assert cell.weight_hh_right.shape == (2, 8)

    @pytest.mark.parametrize("rank", [None, 4, 30], ids=["full", "4", "30"])
    def test_its_matrix_starts_with_one_variance_whatever_its_rank(self, rank: int | None) -> None:
        matrices = torch.stack(
            [create_cell("incremental", 1, 60, recurrent_rank=rank).recurrent_matrix().detach() for _ in range(20)]
        )
        # That of numbers uniform within 1/sqrt(60).
        assert matrices.var().item() == pytest.approx(1 / (3 * 60), rel=0.05)

    def test_its_factors_are_uniform_within_their_bounds(self) -> None:
        cell = create_cell("incremental", 1, 200, recurrent_rank=20)
        for name, fan_in in {"weight_hh": 20, "weight_hh_right": 200}.items():
            values, bound = getattr(cell, name).detach(), 3**0.25 * fan_in**-0.5
            assert 0.99 * bound < values.abs().max() <= bound, name
            assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name


class TestNoisy:
    def _layer(self, **options: Any) -> StableRNN:
        layer = StableRNN("noisy_rnn", 2, 5, **options).double()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        return layer

    def test_evaluation_is_the_lipschitz_cell_with_a_step_for_each_unit(self) -> None:
        layer = self._layer().eval()
        plain = StableRNN("lipschitz", 2, 5).double()
        cell = layer.cells[0]
        with torch.no_grad():
            cell.unit_steps.fill_(0.5)
        plain.load_state_dict({name: value for name, value in layer.state_dict().items() if "unit" not in name})
        x = torch.randn(2, 12, 2, dtype=torch.float64)
        assert torch.equal(layer(x)[0], layer(x)[0])
        torch.testing.assert_close(layer(x)[0], plain(x)[0], rtol=1e-13, atol=1e-13)
        with torch.no_grad():
            cell.unit_steps[2] = 0.0
        assert not layer(x)[0][..., 2].any()

    def test_training_draws_afresh_each_time_and_evaluation_draws_nothing(self) -> None:
        layer = self._layer()
        x = torch.randn(2, 12, 2, dtype=torch.float64)
        assert not torch.equal(layer(x)[0], layer(x)[0])
        state = torch.get_rng_state()
        layer.eval()(x)
        assert torch.equal(torch.get_rng_state(), state)

    def test_in_training_it_is_the_reference_with_the_draws_of_the_drive(self) -> None:
        layer = self._layer(additive_noise=0.3, multiplicative_noise=0.4)
        cell = layer.cells[0]
        x = torch.randn(2, 12, 2, dtype=torch.float64)
        torch.manual_seed(7)
        output = layer(x)[0]
        torch.manual_seed(7)
        # Layers put time first, and so draw in that order.
        _, factors, noise = cell.drive(x.transpose(0, 1)).transpose(0, 1).chunk(3, dim=-1)
        expected = noisy_reference.sequence(
            MAPPING["noisy_rnn"].params(cell),
            x,
            torch.zeros(2, 5, dtype=torch.float64),
            **MAPPING["noisy_rnn"].scalars(cell),
            additive=0.3,
            multiplicative=0.4,
            normal=noise / 0.3,
            uniform=(factors - 0.6) / 0.4,
        )
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)

    def test_the_draws_have_their_laws(self) -> None:
        cell = create_cell("noisy_rnn", 2, 50, additive_noise=0.05, multiplicative_noise=0.3)
        driven, factors, noise = cell.drive(torch.randn(20, 40, 2)).detach().chunk(3, dim=-1)
        assert driven.shape == (20, 40, 50)
        assert 0.7 <= factors.min() < 0.71
        assert 0.99 < factors.max() <= 1
        assert factors.mean().item() == pytest.approx(0.85, abs=0.005)
        assert noise.std().item() == pytest.approx(0.05, rel=0.02)
        assert abs(noise.mean().item()) < 1e-3
        # One draw for each unit, step and sample.
        assert len(noise.unique()) > 0.99 * noise.numel()

    @pytest.mark.parametrize(
        ("additive", "multiplicative"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1)], ids=["none", "additive", "multiplicative"]
    )
    def test_each_noise_can_be_switched_off(self, additive: float, multiplicative: float) -> None:
        cell = create_cell("noisy_rnn", 2, 5, additive_noise=additive, multiplicative_noise=multiplicative)
        drive = cell.drive(torch.randn(3, 2))
        if not additive and not multiplicative:
            assert drive.shape == (3, 5)
            return
        _, factors, noise = drive.chunk(3, dim=-1)
        assert bool((factors == 1).all()) == (multiplicative == 0)
        assert bool((noise == 0).all()) == (additive == 0)

    def test_parameters_are_drawn_afresh_steps_included(self) -> None:
        cell = create_cell("noisy_rnn", 2, 5, step_size=0.3)
        with torch.no_grad():
            cell.unit_steps.zero_()
        torch.manual_seed(3)
        cell.reset_parameters()
        torch.manual_seed(3)
        again = create_cell("noisy_rnn", 2, 5, step_size=0.3)
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in cell.state_dict().items())

    def test_each_unit_starts_with_the_same_step_and_learns_its_own(self) -> None:
        layer = StableRNN("noisy_rnn", 1, 6, step_size=0.2).double()
        assert layer.cells[0].unit_steps.tolist() == pytest.approx([0.2] * 6)
        train(layer, steps=30)
        assert layer.cells[0].unit_steps.std() > 0.01

    def test_the_paper_preset_has_the_released_noise(self) -> None:
        cell = create_cell("noisy_rnn", 1, 6, preset="paper")
        assert (cell.additive_noise, cell.multiplicative_noise, cell.step_size) == (0.02, 0.02, 0.01)


@pytest.mark.parametrize(
    ("key", "options", "sentence"),
    [
        ("nais_net", {"margin": 0.5}, "margin must be between 0 and 0.5 for NAISNetCell, got 0.5."),
        ("nais_net", {"margin": 0.0}, "margin must be between 0 and 0.5 for NAISNetCell, got 0.0."),
        (
            "neural_ode_rnn",
            {"init_scale": -1.0},
            "init_scale must be a finite number, 0 or more, for NeuralODERNNCell, got -1.0.",
        ),
        (
            "ode_rnn",
            {"solver": "dopri5"},
            "solver of ODERNNCell must be 'euler', 'midpoint', 'heun' or 'rk4', got 'dopri5'.",
        ),
        ("ode_rnn", {"solver_steps": 0}, "solver_steps must be 1 or more for ODERNNCell, got 0."),
        ("ode_rnn", {"flow_size": 0}, "flow_size must be 1 or more for ODERNNCell, got 0."),
        ("incremental", {"inner_steps": 0}, "inner_steps must be 1 or more for IncrementalRNNCell, got 0."),
        ("incremental", {"leak": 0.0}, "leak must be a finite number greater than 0 for IncrementalRNNCell, got 0.0."),
        ("incremental", {"start": "here"}, "start of IncrementalRNNCell must be 'previous' or 'zero', got 'here'."),
        (
            "incremental",
            {"recurrent_rank": 1.5},
            "recurrent_rank must be a whole number, 1 or more, for IncrementalRNNCell, got 1.5.",
        ),
        (
            "noisy_rnn",
            {"additive_noise": -0.1},
            "additive_noise must be a finite number, 0 or more, for NoisyRNNCell, got -0.1.",
        ),
        (
            "noisy_rnn",
            {"multiplicative_noise": 1.1},
            "multiplicative_noise must be from 0 to 1 for NoisyRNNCell, got 1.1.",
        ),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_an_option_out_of_range_is_refused(key: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        create_cell(key, 5, 5, **options)
