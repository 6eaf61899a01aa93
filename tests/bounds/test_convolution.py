"""Norms of convolutions over windows: never below the truth, and close to it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from stablernn.bounds import linear_response
from stablernn.bounds.linear_response import convolution_norm_upper_bound

SHAPES = [(1, 1, 3, 1), (4, 1, 24, 1), (5, 3, 11, 2), (3, 5, 29, 4), (2, 2, 9, 4), (8, 8, 60, 1)]
"""Outputs, inputs, samples and dilation."""


def power_iteration(weight: torch.Tensor, length: int, dilation: int, rounds: int = 300) -> float:
    """The norm of ``torch.nn.functional.conv1d`` on windows, from below."""
    x = torch.randn(1, weight.shape[1], length, dtype=torch.float64)
    norm = 0.0
    for _ in range(rounds):
        y = torch.nn.functional.conv1d(x / x.norm(), weight, dilation=dilation)
        norm = float(y.norm())
        x = torch.nn.functional.conv_transpose1d(y, weight, dilation=dilation)
        # Samples that no output reads.
        x = torch.nn.functional.pad(x, (0, length - x.shape[2]))
    return norm


def taps(weight: torch.Tensor) -> np.ndarray:
    """From conv1d's (outputs, inputs, kernel) to (kernel, outputs, inputs)."""
    return weight.permute(2, 0, 1).numpy()


@pytest.mark.parametrize(("outputs", "inputs", "length", "dilation"), SHAPES)
def test_the_bound_is_the_norm_that_power_iteration_finds(
    outputs: int, inputs: int, length: int, dilation: int
) -> None:
    weight = torch.randn(outputs, inputs, 3, dtype=torch.float64)
    norm, bound = (
        power_iteration(weight, length, dilation),
        convolution_norm_upper_bound(taps(weight), length, dilation),
    )
    assert norm <= bound <= 1.01 * norm


@pytest.mark.parametrize(("outputs", "inputs", "length", "dilation"), SHAPES)
def test_the_bound_for_windows_of_any_length_is_never_below(
    outputs: int, inputs: int, length: int, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(outputs, inputs, 3, dtype=torch.float64)
    exact = convolution_norm_upper_bound(taps(weight), length, dilation)
    monkeypatch.setattr(linear_response, "LARGEST_MATRIX", 0)
    assert convolution_norm_upper_bound(taps(weight), length, dilation) >= exact
    # Of a long window it is close.
    long = power_iteration(weight, 400, 1)
    assert long <= convolution_norm_upper_bound(taps(weight), 400) <= 1.01 * long


def test_the_grid_of_frequencies_misses_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_response, "LARGEST_MATRIX", 0)
    monkeypatch.setattr(linear_response, "_FREQUENCIES", 4)
    angles = np.linspace(0, np.pi, 2001)
    for seed in range(50):
        weight = np.random.default_rng(seed).normal(size=(3, 2, 2))
        symbol = sum(np.exp(-1j * k * angles)[:, None, None] * tap for k, tap in enumerate(weight))
        peak = float(np.linalg.norm(symbol, 2, axis=(1, 2)).max())
        bound = convolution_norm_upper_bound(weight, 10_000)
        assert peak <= bound <= peak / math.cos(math.pi / 4) * (1 + 1e-9)


def test_taps_that_cancel_still_have_a_bound() -> None:
    weight = np.array([1.0, -1.0, 0.0]).reshape(3, 1, 1) * 1e8
    assert convolution_norm_upper_bound(weight, 3) == pytest.approx(math.sqrt(2) * 1e8)
    assert 2e8 <= convolution_norm_upper_bound(weight, 10_000) <= 2.003e8
    assert convolution_norm_upper_bound(0 * weight, 10_000) == 0
