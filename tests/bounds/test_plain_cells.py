"""Bounds of the plain family, of complex units and of the oscillators: exact cases, tightness, and where they end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bounds.step_search import exact, reached
from bounds.test_soundness import drawn
from stablernn import create_cell
from stablernn.cells._base import float64
from stablernn.cells._complex import steepest_slopes
from stablernn.certificates.certificate import certify
from stablernn.parametrizations import complex_modrelu

ORTHOGONAL = ("scornn", "exprnn", "dtriv", "urnn", "fc_urnn", "eunn")


def filled(key: str, inputs: int, hidden: int, *, options: dict[str, Any] | None = None, **values: object) -> Any:
    """A cell with every parameter at 0 but for those given."""
    cell = create_cell(key, inputs, hidden, **(options or {}))
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(torch.as_tensor(values.get(name, 0.0)).expand_as(parameter))
    return cell.eval()


def spectral_norm(matrix: Tensor) -> float:
    return float(np.linalg.norm(float64(matrix), 2))


class TestExactCases:
    @pytest.mark.parametrize("weight", [0.6, -0.6, 1.0, -1.3])
    def test_one_unit_of_relu(self, weight: float) -> None:
        bound = filled("identity_rnn", 1, 1, weight_hh=weight, weight_ih=2.0).step_bound()
        assert bound.rate == pytest.approx(abs(weight), rel=1e-6)
        assert bound.gain == pytest.approx(2.0, rel=1e-6)
        assert bound.balls == ()

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

    @pytest.mark.parametrize(("step_size", "stiffness", "damping"), [(0.3, 2.0, 0.2), (0.076, 0.4, 8.0)])
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


class TestHypotheses:
    @pytest.mark.parametrize(
        "key", ["scornn", "exprnn", "dtriv", "nnrnn", "rnn_orth", "spectral_rnn", "lvf", "lvf_mid"]
    )
    def test_nothing_is_proved_of_modrelu_where_a_bias_is_positive(self, key: str) -> None:
        cell: Any = create_cell(key, 1, 4, nonlinearity="modrelu")
        for largest, holds in ((0.0, True), (-0.1, True), (1e-6, False), (math.nan, False)):
            torch.nn.init.constant_(cell.bias, -0.2)
            with torch.no_grad():
                cell.bias[2] = largest
            bound = cell.step_bound()
            assert [one.holds for one in bound.hypotheses] == [holds]
            assert (bound.norm is not None, math.isfinite(bound.rate)) == (holds, holds)

    def test_the_real_eunn_needs_a_bias_below_what_it_adds(self) -> None:
        cell: Any = create_cell("eunn", 1, 4, variant="real", nonlinearity="modrelu")
        for bias, holds in ((0.0, False), (-0.009, False), (-0.02, True)):
            torch.nn.init.constant_(cell.bias, bias)
            assert [one.holds for one in cell.step_bound().hypotheses] == [holds]
            assert math.isfinite(cell.step_bound().rate) == holds


class TestTightness:
    @pytest.mark.parametrize("key", ["nnrnn", "kru"])
    def test_small_weights_contract(self, key: str) -> None:
        cell = drawn(key, 16, "small")
        assert certify(cell).kind == "contracting"
        assert cell.step_bound().rate < 0.2

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


class TestReach:
    def test_the_output_of_complex_units_is_their_real_part(self) -> None:
        cell = drawn("eunn", 8, "large")
        bound = cell.step_bound()
        assert bound.covers == ("hidden", "imaginary")
        assert bound.output_gain == 1.0
