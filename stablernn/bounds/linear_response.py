"""Linear maps of whole sequences: the impulse response of a layer, and the norm of a convolution over a window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stablernn.bounds.linalg import EPSILON, Matrix, norm_upper_bound

_BLOCK_STEPS = 128
"""Steps whose responses are computed in one product."""
_MAX_SUMMED_STEPS = 512
"""Steps that are summed one by one; the tail is bounded by the geometric series of every mode."""


_FREQUENCIES_PER_STEP = 32
"""Points of the frequency grid for each step of the sequence."""
_MAX_SPECTRUM_ENTRIES = 8_000_000
"""Entries of a Fourier transform beyond which it is not worth its cost."""
LARGEST_MATRIX = 512
"""Rows or columns up to which the map is written out as a matrix, whose norm takes less than a tenth of a second."""
_FREQUENCIES = 64
"""Points of the grid, which make the bound of long windows at most 1 / cos(pi / 64) = 1.0012 times too large."""


_TOTAL_GAINS: dict[tuple[object, ...], float] = {}
"""Sums of responses of the last layers, by what the responses are made of."""
_MOST_TOTAL_GAINS = 16
"""Of a layer of 256 units with 32 inputs, one takes .3 MB."""


@dataclass(frozen=True)
class ImpulseResponse:
    """The response of ``h <- diag(poles) h + input_weights x``, read as ``f(Re(output_weights h) + skip x)``.

    Attributes:
        poles: ``(n,)``, complex.
        input_weights: ``(n, m)``, complex.
        output_weights: ``(k, n)``, complex.
        skip: ``(k, m)``.
        slope: The largest modulus of a slope of ``f``, coordinate by coordinate.
    """

    poles: npt.NDArray[np.complex128]
    input_weights: npt.NDArray[np.complex128]
    output_weights: npt.NDArray[np.complex128]
    skip: Matrix
    slope: float

    def norms(self, steps: int) -> Matrix:
        """Return at least the 2-norms of an input's effect on the output k steps later, k from 0; ``(steps,)``."""
        return np.concatenate([self._norms_of(effects) for effects in self._blocks(steps)])

    def last_output_gain(self, steps: int) -> float:
        """Return at least the 2-norm of the effect of all inputs of a sequence together on its last output."""
        gram = np.zeros((len(self.output_weights), len(self.output_weights)))
        for effects in self._blocks(steps):
            # (k, block * m): the inputs of all steps side by side.
            flat = effects.transpose(1, 0, 2).reshape(len(self.output_weights), -1)
            gram += flat @ flat.T
        largest = max(float(np.linalg.eigvalsh(gram)[-1]), 0.0)
        return self.slope * (math.sqrt(largest) + steps * self._rounding_error()) * (1 + 1e-9)

    def all_outputs_gain(self, steps: int) -> float:
        """Return at least the 2-norm of the effect of all inputs of a sequence together on all outputs together.

        The largest norm of the Fourier sum of the effects over all frequencies. Between the points of a grid it is
        bounded by Bernstein's inequality: a trigonometric sum of frequencies up to ``(steps - 1) / 2`` changes by at
        most that times its largest value.
        """
        summed = float(self.norms(steps).sum())
        points = _FREQUENCIES_PER_STEP * steps
        if points * self.skip.size > _MAX_SPECTRUM_ENTRIES:
            return summed
        spectrum = np.fft.rfft(np.concatenate([*self._blocks(steps)]), n=points, axis=0)
        # The smaller of the two Gram matrices has the same largest eigenvalue.
        if spectrum.shape[1] < spectrum.shape[2]:
            spectrum = spectrum.transpose(0, 2, 1)
        grams = spectrum.conj().transpose(0, 2, 1) @ spectrum
        largest = float(np.linalg.eigvalsh(grams)[:, -1].max(initial=0.0))
        grid_factor = 1 - math.pi * (steps - 1) / (2 * points)
        grid_bound = math.sqrt(max(largest, 0.0)) / grid_factor
        by_frequencies = self.slope * (grid_bound + steps * self._rounding_error()) * (1 + 1e-9)
        return min(summed, by_frequencies)

    @cached_property
    def total_gain(self) -> float:
        """At least the sum of :meth:`norms` over any number of steps; infinity without decay.

        It takes seconds for a wide layer, so that a certificate at the end repeats none of what an epoch's has summed.
        """
        arrays = self.poles, self.input_weights, self.output_weights, self.skip
        key = *(array.tobytes() for array in arrays), *(array.shape for array in arrays), self.slope
        if key not in _TOTAL_GAINS:
            if len(_TOTAL_GAINS) >= _MOST_TOTAL_GAINS:
                del _TOTAL_GAINS[next(iter(_TOTAL_GAINS))]
            _TOTAL_GAINS[key] = self._total_gain()
        return _TOTAL_GAINS[key]

    def _total_gain(self) -> float:
        moduli = np.abs(self.poles) * (1 + 4 * EPSILON)
        if (moduli >= 1).any():
            return math.inf
        output_norms = np.linalg.norm(self.output_weights, axis=0)
        mode_sums = output_norms * np.linalg.norm(self.input_weights, axis=1) / (1 - moduli)
        total, steps = 0.0, 0
        # The first block is always summed step by step: the skip is part of no mode's series.
        while steps == 0 or (steps < _MAX_SUMMED_STEPS and float(moduli**steps @ mode_sums) > 0.1 * total):
            total += float(self._norms_of(self._effects(steps, steps + _BLOCK_STEPS)).sum())
            steps += _BLOCK_STEPS
        return total + self.slope * float(moduli**steps @ mode_sums) * (1 + 1e-9)

    def _blocks(self, steps: int) -> Iterator[Matrix]:
        """Yield the effects at delays from 0 to ``steps``, ``(block, k, m)`` in turn."""
        for start in range(0, steps, _BLOCK_STEPS):
            yield self._effects(start, min(start + _BLOCK_STEPS, steps))

    def _norms_of(self, effects: Matrix) -> Matrix:
        """Return :meth:`norms` of the steps with some effects."""
        # The smaller of the two Gram matrices has the same largest eigenvalue.
        if effects.shape[1] < effects.shape[2]:
            effects = effects.transpose(0, 2, 1)
        grams = effects.transpose(0, 2, 1) @ effects
        largest = np.linalg.eigvalsh(grams)[:, -1] if grams.size else np.zeros(len(effects))
        norms: Matrix = self.slope * (np.sqrt(np.maximum(largest, 0.0)) + self._rounding_error()) * (1 + 1e-9)
        return norms

    def _effects(self, start: int, stop: int) -> Matrix:
        """Return the effect of an input on what ``f`` acts on, at delays from ``start``; ``(stop - start, k, m)``."""
        powers = self.poles[None] ** np.arange(start, stop)[:, None]
        modes = powers[:, :, None] * self.input_weights[None]
        # Only the real part of the product is read.
        effects: Matrix = np.real(self.output_weights) @ np.real(modes) - np.imag(self.output_weights) @ np.imag(modes)
        if start == 0:
            effects[0] += self.skip
        return effects

    def _rounding_error(self) -> float:
        """Bound the rounding error of a sum of modes that cancel."""
        size = float(
            np.linalg.norm(self.output_weights) * np.linalg.norm(self.input_weights) + np.linalg.norm(self.skip)
        )
        return 8 * len(self.poles) * EPSILON * size


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
