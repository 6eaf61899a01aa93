"""Bounds on rounding, of matrices for which float64 has few digits left."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from bounds.independent_check import exact, holds_exactly
from stablernn.bounds.linalg import (
    infinity_norm_upper_bound,
    norm_upper_bound,
    round_to_float32,
    rounding_error_bound,
    similar_norm_upper_bound,
    smallest_singular_value_lower_bound,
)
from stablernn.bounds.norm_search import LureMap, MatrixInequality

SMALLEST = float(np.nextafter(0.0, 1.0))


class TestUnderflow:
    @pytest.mark.parametrize("rate", [0.9, 1.1])
    def test_a_product_that_underflows_proves_no_rate_that_is_too_small(self, rate: float) -> None:
        # One unit of rate G V: the square of G is rounded down to the smallest number there is, by more than a quarter.
        gain = 1.18 * math.sqrt(SMALLEST)
        unit = LureMap(np.zeros((1, 1)), np.array([[gain]]), np.array([[rate / gain]]), None, np.zeros(1, np.intp))
        inequality = MatrixInequality(unit, None, None)
        for multiple in range(1, 20):
            assert inequality.factor(np.array([multiple * SMALLEST])) >= rate

    @pytest.mark.parametrize("scale", [1.0, 1e-100, 1e-170, 1e-300])
    def test_a_singular_matrix_is_not_told_from_one_at_any_scale(self, scale: float) -> None:
        matrix = scale * np.array([[1.0, 1.0], [1.0, 1.0 + 4e-16]])
        assert smallest_singular_value_lower_bound(matrix) == 0.0
        assert smallest_singular_value_lower_bound(scale * np.eye(2)) > 0.99 * scale

    @pytest.mark.parametrize("scale", [1.0, 1e-170, 1e-300])
    def test_the_bound_on_a_norm_keeps_its_margin(self, scale: float) -> None:
        assert norm_upper_bound(scale * np.eye(3)) > scale

    def test_zeros_are_exact(self) -> None:
        assert norm_upper_bound(np.zeros((3, 3))) == 0.0
        assert rounding_error_bound(np.zeros((3, 3)), np.eye(3)) == 0.0
        assert rounding_error_bound(np.full((3, 3), 1e-200), np.full((3, 3), 1e-200)) > 0.0


def test_the_infinity_norm_covers_a_sum_that_was_rounded_down() -> None:
    # Each of the small entries is half a unit of the last digit of 1, and is lost in a sum from left to right.
    row = np.array([[1.0, *[2.0**-53] * 6]])
    assert float(np.abs(row).sum()) < sum(map(Fraction, row[0].tolist())) <= infinity_norm_upper_bound(row)


class TestCancellation:
    def test_the_rate_of_a_linear_step_holds_where_the_metric_cancels_large_entries(self) -> None:
        for seed in range(80):
            generator = np.random.default_rng(seed)
            left, right = (np.linalg.qr(generator.normal(size=(3, 3)))[0] for _ in range(2))
            metric = round_to_float32(left @ np.diag([1.0, 1e-3, 1e-5]) @ right)
            # Large in the 2-norm, and below 1 in the norm of the metric.
            matrix = round_to_float32(np.linalg.inv(metric) @ (0.3 * generator.normal(size=(3, 3))) @ metric)
            rate = similar_norm_upper_bound(matrix, metric)
            form, product = exact(metric).T @ exact(metric), exact(metric) @ exact(matrix)
            assert holds_exactly(Fraction(rate) ** 2 * form - product.T @ product)
            assert rate < np.linalg.norm(metric @ matrix @ np.linalg.inv(metric), 2) * (1 + 1e-4)
