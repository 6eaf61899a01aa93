"""Lyapunov exponents against systems of which they are known."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from stablernn.dynamics.lyapunov import entropy_rate, kaplan_yorke, lyapunov_spectrum, tangent_map


def starts(batch: int, size: int, seed: int = 0) -> Tensor:
    return torch.rand(batch, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_diagonal_map_has_the_logarithms_of_its_factors() -> None:
    factors = torch.tensor([1.5, -0.5, 0.9, 1e-6], dtype=torch.float64)
    push = tangent_map(lambda t, h: h * factors)
    found = lyapunov_spectrum(push, starts(3, 4), 300, warm_up=200)
    expected = sorted((math.log(abs(factor)) for factor in factors.tolist()), reverse=True)
    assert found.exponents == pytest.approx(expected, abs=1e-9)
    assert found.standard_error == pytest.approx([0.0] * 4, abs=1e-9)
    assert (found.sequences, found.steps, found.warm_up, found.size) == (3, 300, 200, 4)


def test_a_direction_that_is_forgotten_at_once_has_minus_infinity() -> None:
    factors = torch.tensor([0.5, 0.0], dtype=torch.float64)
    found = lyapunov_spectrum(tangent_map(lambda t, h: h * factors), starts(2, 2), 30, warm_up=10)
    assert found.exponents[0] == pytest.approx(math.log(0.5))
    assert found.exponents[1] < -30
    exact = lyapunov_spectrum(tangent_map(lambda t, h: 0 * h), starts(2, 2), 5)
    assert exact.exponents.tolist() == [-math.inf, -math.inf]
    assert exact.document()["exponents"] == [None, None]
    assert exact.kaplan_yorke == 0


def test_growth_within_the_warm_up_is_not_counted() -> None:
    push = tangent_map(lambda t, h: h * (1000 if t < 6 else 0.5))
    found = lyapunov_spectrum(push, starts(2, 1), 10, warm_up=6)
    assert found.exponents == pytest.approx([math.log(0.5)])


def test_the_henon_map() -> None:
    def step(t: int, h: Tensor) -> Tensor:
        x, y = h.unbind(dim=-1)
        return torch.stack([1 - 1.4 * x**2 + y, 0.3 * x], dim=-1)

    found = lyapunov_spectrum(tangent_map(step), 0.1 * starts(128, 2), 500, warm_up=100)
    assert found.exponents == pytest.approx([0.419, -1.623], abs=0.006)
    # The determinant is -0.3 everywhere.
    assert found.exponents.sum() == pytest.approx(math.log(0.3), abs=1e-9)
    assert found.kaplan_yorke == pytest.approx(1.258, abs=0.005)


def test_the_leading_exponents_are_those_of_the_whole_spectrum() -> None:
    generator = torch.Generator().manual_seed(1)
    mixing = torch.linalg.qr(torch.randn(12, 12, generator=generator, dtype=torch.float64))[0]
    matrix = mixing @ torch.diag(torch.linspace(1.2, 0.1, 12, dtype=torch.float64)) @ mixing.T
    push = tangent_map(lambda t, h: torch.tanh(h @ matrix.T + 0.1 * t % 1))
    whole = lyapunov_spectrum(push, starts(3, 12), 200, warm_up=100)
    leading = lyapunov_spectrum(push, starts(3, 12), 200, warm_up=100, count=4)
    assert leading.exponents == pytest.approx(whole.exponents[:4], rel=1e-6)
    assert leading.size == 12


def test_trajectories_of_different_lengths_each_count_their_own_steps() -> None:
    push = tangent_map(lambda t, h: h * (2.0 if t < 10 else 3.0))
    found = lyapunov_spectrum(push, starts(3, 1), 20, warm_up=5, lengths=[20, 10, 4])
    long, short = (5 * math.log(2) + 10 * math.log(3)) / 15, math.log(2)
    assert found.exponents[0] == pytest.approx((long + short) / 2)
    assert found.standard_error[0] == pytest.approx(abs(long - short) / 2)
    assert (found.sequences, found.steps) == (2, 20)


def test_dimension_and_entropy_of_given_exponents() -> None:
    assert kaplan_yorke([-0.1, -0.2]) == 0
    assert kaplan_yorke([0.906, 0.0, -14.57]) == pytest.approx(2 + 0.906 / 14.57)
    assert kaplan_yorke([0.5, 0.1]) == 2
    assert kaplan_yorke([0.5, 0.1], size=3) is None
    assert kaplan_yorke([0.5, -math.inf]) == 1
    assert kaplan_yorke([math.nan, -1.0]) is None
    assert entropy_rate([0.5, 0.1, -2.0]) == pytest.approx(0.6)
    assert entropy_rate([-0.5]) == 0
    assert entropy_rate([0.5, 0.1], size=3) is None
    assert entropy_rate([0.5, -0.1], size=3) == 0.5
    assert entropy_rate([math.nan]) is None
