"""The latent vector field and the ODE-RNN at steps of unequal length."""

from __future__ import annotations

import pytest
import torch

from cells.irregular_time.steps import (
    assert_close,
    normal_inputs,
    timed_layer,
)
from reference.dynamics import cell_at
from reference.mapping import MAPPING
from stablernn import create_cell
from stablernn.parametrizations import cayley_propagator


class TestLatentVectorField:
    """Their step is a linear propagator, then input and nonlinearity: only the first has a length."""

    @pytest.mark.parametrize("constraint", ["none", "hard"])
    def test_euler_divides_the_propagator_and_feeds_the_input_once(self, constraint: str) -> None:
        cell = cell_at("perturbed", "lvf", 7, constraint=constraint, step_size=0.4)
        h, x = normal_inputs(2, 7), normal_inputs(2, 1)
        part = torch.eye(7, dtype=torch.float64) + (2.5 / 3) * 0.4 * cell.operator()
        expected = torch.tanh(h @ torch.linalg.matrix_power(part, 3).T + cell.drive(x) + cell.bias)
        assert_close([cell(x, h, dt=2.5)], [expected])

    @pytest.mark.parametrize("nonlinearity", ["tanh", "modrelu", "softshrink"])
    @pytest.mark.parametrize("hidden_size", [1, 2, 7, 32])
    def test_midpoint_is_one_step_of_the_rule_for_each_sample(self, hidden_size: int, nonlinearity: str) -> None:
        cell = cell_at("perturbed", "lvf_mid", hidden_size, nonlinearity=nonlinearity, step_size=0.8)
        h, x, dt = (
            normal_inputs(4, hidden_size),
            normal_inputs(4, 1),
            torch.tensor([0.0, 0.3, 1.0, 9.0], dtype=torch.float64),
        )
        moved = torch.stack(
            [cayley_propagator(cell.operator(), 0.8 * length) @ row for length, row in zip(dt.tolist(), h, strict=True)]
        )
        expected = cell.activate(moved + cell.drive(x), cell.used_bias())
        assert_close([cell(x, h, dt=dt)], [expected])
        if hidden_size > 1:
            gradients = [
                torch.autograd.grad(y.square().sum(), cell.weight_hh)[0] for y in (cell(x, h, dt=dt), expected)
            ]
            assert_close(gradients[:1], gradients[1:])

    def test_midpoint_gradients_are_finite_where_frequencies_meet(self) -> None:
        # Two units turn at one pace, two do not turn at all: the gradient of an eigenvector would be infinite.
        cell = create_cell("lvf_mid", 1, 6).double()
        with torch.no_grad():
            cell.weight_hh.zero_()
            cell.weight_hh[0] = 0.5
            cell.weight_hh[9] = 0.5
            cell.bias.fill_(0.01)
        frequencies = torch.linalg.eigvals(cell.operator()).imag.sort().values
        assert frequencies.tolist() == pytest.approx([-0.5, -0.5, 0, 0, 0.5, 0.5])
        h, x = normal_inputs(3, 6), normal_inputs(3, 1)
        propagator = cayley_propagator(cell.operator(), cell.step_size * 1.5)
        expected = cell.activate(h @ propagator.T + cell.drive(x), cell.used_bias())
        gradients = [torch.autograd.grad(y.square().sum(), cell.weight_hh)[0] for y in (cell(x, h, dt=1.5), expected)]
        assert_close(gradients[:1], gradients[1:])


class TestODERNN:
    def test_a_long_flow_takes_more_steps_and_the_sample_enters_once(self) -> None:
        cell = timed_layer("ode_rnn", solver="euler", solver_steps=2).cells[0]
        h, x, dt = normal_inputs(2, 5), normal_inputs(2, 3), torch.tensor([2.5, 0.4], dtype=torch.float64)
        row = MAPPING["ode_rnn"]
        scalars = row.scalars(cell) | {"substeps": 6}
        expected = row.module.sequence(row.params(cell), x[:, None], h, **scalars, dt=dt[:, None])[:, 0]
        assert_close([cell(x, h, dt=dt)], [expected])


def test_noise_is_added_once_to_a_step_in_parts() -> None:
    layer = timed_layer("noisy_rnn", additive_noise=0.5, multiplicative_noise=0.0, max_dt=3.0).train()
    cell = layer.cells[0]
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
    output, _ = layer(normal_inputs(400, 1, 3), dt=torch.full((400, 1), 3.0, dtype=torch.float64))
    assert output.std().item() == pytest.approx(0.5, rel=0.1)
