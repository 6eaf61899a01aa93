"""Guarantees of the unitary cells whose W is a product of factors: EUNN and Kronecker recurrent units."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from cells.guarantees.complex_matrices import complex_randn, excess, stacked, value_id
from reference import eunn as eunn_reference
from reference import kru as kru_reference
from reference.dynamics import cell_at, every_stage
from stablernn import create_cell
from stablernn.cells.kru import factor_sizes


class TestEfficientUnitary:
    @pytest.mark.parametrize("variant", ["complex", "real"])
    def test_fft_style_follows_its_reference(self, variant: str) -> None:
        cell = cell_at("perturbed", "eunn", 8, style="fft", variant=variant)
        params = {"theta": cell.theta}
        if variant == "complex":
            params |= {"phi": cell.phi, "omega": cell.omega}
        expected = eunn_reference.recurrent_matrix(params, size=8, variant=variant, capacity=None, style="fft")
        torch.testing.assert_close(cell.complex_matrix(), expected, rtol=0, atol=1e-13)

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

    def test_sizes_have_the_least_sum_of_squares(self) -> None:
        assert factor_sizes(512, 9) == (2,) * 9
        assert factor_sizes(512, 4) == (4, 4, 4, 8)
        assert factor_sizes(97, 1) == (97,)
        for size, count in ((60, 2), (60, 3), (30, 3)):
            every = [
                sizes
                for sizes in itertools.combinations_with_replacement(range(2, size + 1), count)
                if math.prod(sizes) == size
            ]
            assert sum(s * s for s in factor_sizes(size, count)) == min(sum(s * s for s in sizes) for sizes in every)
