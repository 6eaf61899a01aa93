"""A safe bound on the norm of a convolution over a window, seen as one linear map of all of its samples."""

from __future__ import annotations

import math

import numpy as np

from stablernn.bounds.linalg import EPSILON, Matrix, norm_upper_bound

LARGEST_MATRIX = 512
"""Rows or columns up to which the map is written out as a matrix, whose norm takes less than a tenth of a second."""
_FREQUENCIES = 64
"""Points of the grid, which make the bound of long windows at most 1 / cos(pi / 64) = 1.0012 times too large."""


def convolution_norm_upper_bound(taps: Matrix, length: int, dilation: int = 1) -> float:
    """Return at least the norm of a convolution, without padding, as a map of the 2-norms of whole windows.

    A dilated convolution treats every ``dilation``-th sample apart from the others, so that its norm is that of a plain
    convolution of the longest of these parts. That one is a block Toeplitz matrix, which is written out if it is small.
    The norm of a larger one is at most the largest norm of ``F(w) = sum_k taps[k] exp(-i k w)`` over all frequencies
    ``w`` (Parseval; Sedghi, Gupta, Long, "The singular values of convolutional layers", ICLR 2019, have circular ones).
    From a grid of N frequencies it follows for all of them: up to a factor of modulus 1, ``u* F(w) v`` is a
    trigonometric polynomial of degree m, half the number of taps less one, rounded up, whose largest modulus is at most
    ``1 / cos(pi m / N)`` times that on the grid (M. Riesz; Ehlich and Zeller, 1964).

    Args:
        taps: ``(kernel_size, outputs, inputs)``.
        length: Samples of the window, which hold one output or more.
        dilation: Distance of the samples that two neighboring taps read.
    """
    kernel_size, outputs, inputs = taps.shape
    # Samples of the longest part, and its outputs.
    samples = -(-length // dilation)
    positions = samples - kernel_size + 1
    if max(positions * outputs, samples * inputs) <= LARGEST_MATRIX:
        matrix = np.zeros((positions, outputs, samples, inputs))
        for position in range(positions):
            matrix[position, :, position : position + kernel_size] = taps.transpose(1, 0, 2)
        return norm_upper_bound(matrix.reshape(positions * outputs, samples * inputs))
    return _symbol_norm_upper_bound(taps)


def _symbol_norm_upper_bound(taps: Matrix) -> float:
    """Return at least the largest norm of ``sum_k taps[k] exp(-i k w)`` over all frequencies."""
    kernel_size = len(taps)
    # The taps are real: frequencies w and -w have the same norm.
    frequencies = 2 * np.pi * np.arange(_FREQUENCIES // 2 + 1) / _FREQUENCIES
    factors = np.exp(-1j * np.outer(frequencies, np.arange(kernel_size)))
    largest = max(norm_upper_bound(matrix) for matrix in np.einsum("fk,koi->foi", factors, taps))
    # What the factors and the sum are rounded by; taps may cancel, so that it is not a share of the result.
    rounding = 8 * kernel_size * EPSILON * sum(float(np.linalg.norm(tap)) for tap in taps)
    degree = kernel_size // 2
    return (largest + rounding) / math.cos(math.pi * degree / _FREQUENCIES) * (1 + 4 * EPSILON)
