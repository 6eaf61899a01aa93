"""Projections onto matrices with a dominant diagonal, and the boxes that steps with such a matrix do not leave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stablernn import create_cell
from stablernn.bounds.intervals import Box
from stablernn.bounds.step_bound import restoring_box
from stablernn.cells import StableCell
from stablernn.certificates.certificate import certify
from stablernn.certificates.projection import project, with_bounded_rows, with_dominant_diagonal

SHARE, SMALLEST, LARGEST = 0.8, 0.05, 1.5


def drawn(size: int, seed: int) -> Tensor:
    return torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def is_dominant(matrix: Tensor, slack: float = 1e-12) -> bool:
    diagonal = matrix.diagonal()
    others = matrix.abs().sum(dim=1) - diagonal.abs()
    return bool(
        (others <= -SHARE * diagonal + slack).all()
        and (diagonal >= -LARGEST - slack).all()
        and (diagonal <= -SMALLEST + slack).all()
    )


@pytest.mark.parametrize("offset", [0.0, 2.0, 6.0])
def test_no_other_matrix_of_the_region_is_nearer(offset: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for seed in range(5):
        matrix = drawn(5, seed) - offset * torch.eye(5, dtype=torch.float64)
        nearest = with_dominant_diagonal(matrix, SHARE, SMALLEST, LARGEST)
        assert is_dominant(nearest)
        for _ in range(200):
            # Any point of the region: a diagonal, and others that sum to a share of what it allows.
            share = torch.rand(5, 1, generator=generator, dtype=torch.float64)
            damping = SMALLEST + (LARGEST - SMALLEST) * share
            others = torch.randn(5, 5, generator=generator, dtype=torch.float64).fill_diagonal_(0)
            others *= SHARE * damping / others.abs().sum(dim=1, keepdim=True)
            point = others - torch.diag(damping[:, 0])
            # Of a convex set, no direction to another point leads nearer.
            assert float(((matrix - nearest) * (point - nearest)).sum()) <= 1e-9


def test_a_dominant_matrix_is_returned_as_it_is() -> None:
    matrix = with_dominant_diagonal(drawn(4, 0), SHARE, SMALLEST, LARGEST)
    assert with_dominant_diagonal(matrix, SHARE - 0.01, SMALLEST, LARGEST + 0.01) is not matrix
    assert with_dominant_diagonal(matrix, SHARE + 0.01, SMALLEST, LARGEST + 0.01) is matrix


def test_rows_of_a_skew_matrix_are_bounded_and_it_stays_skew() -> None:
    matrix = drawn(5, 0) - drawn(5, 0).T
    bounded = with_bounded_rows(matrix, 0.7)
    assert bool((bounded.abs().sum(dim=1) <= 0.7 + 1e-12).all())
    assert torch.equal(bounded, -bounded.T)
    assert with_bounded_rows(bounded, 0.8) is bounded


def test_a_small_excess_over_one_is_no_reason_to_keep_a_quadratic_norm() -> None:
    # Both norms prove a rate within 1e-6 of 1, but only that of the rows is a rate of 1.
    cell: Any = create_cell("antisymmetric", 1, 2, damping=1e-4)
    with torch.no_grad():
        cell.weight_hh.fill_(0.9e-4)
    assert certify(cell).kind == "non-expansive"


BOXED: list[tuple[str, dict[str, Any]]] = [
    ("antisymmetric", {"damping": 0.5}),
    ("antisymmetric_g", {"damping": 0.5}),
    ("antisym_ablation", {}),
    ("fastgrnn_lsq", {}),
]


def projected(key: str, options: dict[str, Any], seed: int) -> StableCell:
    torch.manual_seed(seed)
    cell = create_cell(key, 1, 4, **options).eval()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(2.0 * torch.randn_like(parameter))
    project(cell, 0.3)
    return cell


@pytest.mark.parametrize(("key", "options"), BOXED, ids=[key for key, _ in BOXED])
def test_no_trajectory_leaves_its_box(key: str, options: dict[str, Any]) -> None:
    largest_share = 0.0
    for seed in range(6):
        cell = projected(key, options, seed)
        radius = certify(cell, inputs_within=1.0).balls[0]["radius"]
        generator = torch.Generator().manual_seed(seed)
        weights = cell.weights()
        # Starts at corners of the box and at the origin; inputs that stay at an end of their range, or change.
        state = radius * torch.sign(torch.randn(64, 4, generator=generator))
        state[:8] = 0
        x = torch.sign(torch.randn(64, 1, generator=generator))
        for step in range(200):
            if step % 20 == 0:
                x[::2] = torch.sign(torch.randn(32, 1, generator=generator))
            (state,) = cell.step(weights, (state,), cell.drive(x))
            assert float(state.detach().abs().max()) <= radius * (1 + 1e-6)
        largest_share = max(largest_share, float(state[:8].detach().abs().max()) / radius)
    # The box is not so large that nothing could leave it.
    assert largest_share > 0.1


def test_a_matrix_without_a_dominant_diagonal_has_no_box() -> None:
    drive = Box.around_zero(2, 1.0)
    assert restoring_box(np.array([[-1.0, 1.1], [0.0, -1.0]]), drive, 0.1) is None
    assert restoring_box(np.array([[-1.0, 1.0], [0.0, -1.0]]), drive, 0.1) is None
    assert restoring_box(np.array([[1.0, 0.0], [0.0, -1.0]]), drive, 0.1) is None
    assert restoring_box(np.array([[-1.0, 0.5], [0.0, -1.0]]), Box.around_zero(2, np.inf), 0.1) is None


def test_the_radius_is_where_the_diagonal_outweighs_input_and_neighbors() -> None:
    # 1 (R - 0.1) = 0.5 R + 1
    box = restoring_box(np.array([[-1.0, 0.5], [0.0, -1.0]]), Box.around_zero(2, 1.0), 0.1)
    assert box is not None
    assert box.upper == pytest.approx([2.2, 2.2], rel=1e-4)
