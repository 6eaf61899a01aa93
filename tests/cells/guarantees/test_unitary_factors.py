"""Guarantees of the unitary cells whose W is a product of factors: EUNN and Kronecker recurrent units."""

from __future__ import annotations

import cmath
import itertools
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from cells.guarantees.complex_matrices import complex_randn, distances, excess, stacked, value_id
from reference import eunn as eunn_reference
from reference import kru as kru_reference
from reference.dynamics import cell_at, every_stage, norm
from stablernn import StableRNN, create_cell
from stablernn.cells.kru import factor_sizes
from stablernn.parametrizations import haar_unitary


class TestEfficientUnitary:
    @pytest.mark.parametrize("variant", ["complex", "real"])
    @pytest.mark.parametrize(
        ("hidden_size", "capacity", "style"),
        [
            (6, 2, "tunable"),
            (7, 2, "tunable"),
            (7, 5, "tunable"),
            (1, 3, "tunable"),
            (8, None, "fft"),
            (16, None, "fft"),
        ],
    )
    def test_rotations_one_after_the_other_are_the_dense_matrix(
        self, hidden_size: int, capacity: int | None, style: str, variant: str
    ) -> None:
        cell = cell_at("perturbed", "eunn", hidden_size, capacity=capacity, style=style, variant=variant)
        start = complex_randn(hidden_size) if variant == "complex" else torch.randn(hidden_size, dtype=torch.float64)
        h, pair = start.tolist(), 0
        for layer in range(hidden_size.bit_length() - 1 if style == "fft" else capacity):
            step = 2**layer if style == "fft" else 1
            firsts = range(hidden_size) if style == "fft" else range(layer % 2, hidden_size - 1, 2)
            for i in firsts:
                if style == "fft" and i // step % 2:
                    continue
                theta = cell.theta[pair].item()
                turn = cmath.exp(1j * cell.phi[pair].item()) if variant == "complex" else 1
                h[i], h[i + step] = (
                    math.cos(theta) * h[i] - turn * math.sin(theta) * h[i + step],
                    math.sin(theta) * h[i] + turn * math.cos(theta) * h[i + step],
                )
                pair += 1
        assert pair == len(cell.theta)
        if variant == "complex":
            h = [value * cmath.exp(1j * omega) for value, omega in zip(h, cell.omega.tolist(), strict=True)]
        expected = torch.tensor(h, dtype=start.dtype)
        torch.testing.assert_close(cell.complex_matrix().detach() @ start, expected, rtol=0, atol=1e-13)
        if variant == "complex":
            got = cell.recurrent_matrix().detach() @ stacked(start)
            torch.testing.assert_close(got, stacked(expected), rtol=0, atol=1e-13)

    @pytest.mark.parametrize("variant", ["complex", "real"])
    def test_fft_style_follows_its_reference(self, variant: str) -> None:
        cell = cell_at("perturbed", "eunn", 8, style="fft", variant=variant)
        params = {"theta": cell.theta}
        if variant == "complex":
            params |= {"phi": cell.phi, "omega": cell.omega}
        expected = eunn_reference.recurrent_matrix(params, size=8, variant=variant, capacity=None, style="fft")
        torch.testing.assert_close(cell.complex_matrix(), expected, rtol=0, atol=1e-13)

    def test_capacity_is_how_far_units_see_and_fft_style_sees_all(self) -> None:
        index = torch.arange(16)
        far = (index[:, None] - index).abs()
        for capacity in (1, 2, 5):
            matrix = cell_at("fresh", "eunn", 16, capacity=capacity).complex_matrix()
            assert not matrix[far > capacity].any()
            assert matrix[far == capacity].any()
        assert cell_at("fresh", "eunn", 16, style="fft").complex_matrix().abs().min() > 0

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"variant": "real"}, 2 * 15 // 2),
            ({"variant": "real", "capacity": 16}, 16 * 15 // 2),
            ({}, 2 * 15 + 16),
            ({"capacity": 4}, 4 * 15 + 16),
            ({"capacity": 16}, 16**2),
            ({"style": "fft"}, 16 * 4 + 16),
        ],
        ids=value_id,
    )
    def test_recurrent_parameters_are_as_many_as_the_paper_counts(self, options: dict[str, Any], expected: int) -> None:
        cell = create_cell("eunn", 1, 16, **options)
        assert sum(getattr(cell, name).numel() for name in cell.orthogonal) == expected

    def test_capacity_counts_the_layers_of_the_tunable_style_alone(self) -> None:
        sentence = (
            "capacity of EfficientUnitaryRNNCell is for style 'tunable', got 2 with style 'fft', which has "
            "log2(hidden_size) layers. Leave capacity out."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
            create_cell("eunn", 1, 16, style="fft", capacity=2)
        assert create_cell("eunn", 1, 16, preset="paper", style="fft").capacity is None
        for preset in ("practical", "paper"):
            assert create_cell("eunn", 1, 16, preset=preset).capacity == 2

    def test_with_as_many_layers_as_units_it_reaches_a_given_unitary_matrix_and_with_two_it_does_not(self) -> None:
        target = haar_unitary(4)
        reached = {}
        for capacity in (2, 4):
            cell = create_cell("eunn", 1, 4, capacity=capacity).double()
            angles = [getattr(cell, name) for name in cell.orthogonal]
            optimizer = torch.optim.LBFGS(angles, max_iter=500, tolerance_change=0, line_search_fn="strong_wolfe")

            def distance(cell: Any = cell, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
                optimizer.zero_grad()
                loss = (cell.complex_matrix() - target).abs().square().sum()
                loss.backward()
                return loss

            optimizer.step(distance)
            reached[capacity] = distance().item()
        assert reached[4] < 1e-10
        assert reached[2] > 0.1

    def test_paper_preset_starts_as_the_released_code_does(self) -> None:
        cell = create_cell("eunn", 30, 300, preset="paper")
        for name, bound in {"theta": math.pi, "phi": math.pi, "omega": math.pi, "weight_ih": 0.01}.items():
            values = getattr(cell, name).detach()
            assert values.abs().max() <= bound
            assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1), name
        assert not cell.bias.any()


class TestKronecker:
    @pytest.mark.parametrize(
        ("hidden_size", "factors"), [(1, None), (7, None), (24, None), (24, 2), (36, 3), (32, None)]
    )
    def test_factors_one_after_the_other_are_the_dense_matrix(self, hidden_size: int, factors: int | None) -> None:
        cell = cell_at("perturbed", "kru", hidden_size, factors=factors)
        h = complex_randn(hidden_size)
        applied = h.reshape(cell.sizes)
        for axis, factor in enumerate(cell.factor_matrices()):
            applied = torch.tensordot(factor, applied, dims=([1], [axis])).movedim(0, axis)
        expected = applied.flatten().detach()
        torch.testing.assert_close(cell.complex_matrix().detach() @ h, expected, rtol=0, atol=1e-11)
        got = cell.recurrent_matrix().detach() @ stacked(h)
        torch.testing.assert_close(got, stacked(expected), rtol=0, atol=1e-11)

    @every_stage
    def test_penalty_is_that_of_the_reference(self, stage: str) -> None:
        cell = cell_at(stage, "kru", 12, penalty_weight=0.3)
        named = {}
        for f, factor in enumerate(cell.factor_matrices(), start=1):
            named |= {f"W_{f}_re": factor.real, f"W_{f}_im": factor.imag}
        expected = 0.3 * kru_reference.penalty(named).item()
        assert cell.penalty().item() == pytest.approx(expected, rel=1e-12)
        assert create_cell("kru", 1, 12, penalty_weight=0.0).penalty() is None

    def test_factors_start_unitary(self) -> None:
        cell = create_cell("kru", 3, 24)
        assert cell.penalty().item() < 1e-12
        assert all(excess(factor.detach()) < 1e-6 for factor in cell.factor_matrices())

    def test_penalty_goes_to_zero_and_the_matrix_to_unitary_when_weighted_up(self) -> None:
        x, target = torch.randn(8, 4, 1, dtype=torch.float64), torch.randn(8, 4, 32, dtype=torch.float64)
        start = StableRNN("kru", 1, 16).double().state_dict()
        left, stretch = [], []
        for weight in (1e-4, 0.1, 100.0):
            layer = StableRNN("kru", 1, 16, penalty_weight=weight).double()
            layer.load_state_dict(start)
            optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 300)
            for _ in range(300):
                penalty = layer.penalty()
                assert penalty is not None
                optimizer.zero_grad()
                ((layer(x)[0] - target).square().mean() + penalty).backward()
                optimizer.step()
                schedule.step()
            left.append(layer.penalty().item() / weight)
            stretch.append(excess(layer.cells[0].recurrent_matrix().detach()))
        assert left == sorted(left, reverse=True)
        assert left[0] > 0.1
        assert left[-1] < 1e-7
        assert stretch[0] > 0.1
        assert stretch[-1] < 1e-3

    def test_a_factor_that_is_not_unitary_drives_states_apart(self) -> None:
        cell = cell_at("fresh", "kru", 8, nonlinearity="softshrink")
        with torch.no_grad():
            cell.weight_hh.mul_(1.1)
            cell.bias.zero_()
        # Three factors, each a tenth too long.
        assert norm(cell.recurrent_matrix()) == pytest.approx(1.1**3, rel=1e-6)
        apart = distances(cell, torch.randn(2, 16, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64))
        assert apart[1] > 1.3 * apart[0]

    def test_sizes_have_the_least_sum_of_squares(self) -> None:
        assert factor_sizes(512, 9) == (2,) * 9
        assert factor_sizes(512, 4) == (4, 4, 4, 8)
        assert factor_sizes(97, 1) == (97,)
        for size, count in ((60, 2), (60, 3), (360, 3), (128, 2), (30, 3)):
            every = [
                sizes
                for sizes in itertools.combinations_with_replacement(range(2, size + 1), count)
                if math.prod(sizes) == size
            ]
            assert sum(s * s for s in factor_sizes(size, count)) == min(sum(s * s for s in sizes) for sizes in every)
