"""The impulse response of a linear layer, from its modes: tighter than a rate and two norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stablernn.bounds.linalg import EPSILON, Matrix

_BLOCK_STEPS = 128
"""Steps whose responses are computed in one product."""
_MAX_SUMMED_STEPS = 512
"""Steps that are summed one by one; the tail is bounded by the geometric series of every mode."""


_FREQUENCIES_PER_STEP = 32
"""Points of the frequency grid for each step of the sequence."""
_MAX_SPECTRUM_ENTRIES = 8_000_000
"""Entries of a Fourier transform beyond which it is not worth its cost."""


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
        blocks = [self._block_norms(start, min(start + _BLOCK_STEPS, steps)) for start in range(0, steps, _BLOCK_STEPS)]
        return np.concatenate(blocks)

    def last_output_gain(self, steps: int) -> float:
        """Return at least the 2-norm of the effect of all inputs of a sequence together on its last output."""
        gram = np.zeros((len(self.output_weights), len(self.output_weights)))
        for start in range(0, steps, _BLOCK_STEPS):
            effects = self._effects(start, min(start + _BLOCK_STEPS, steps))
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
        effects = np.concatenate(
            [self._effects(start, min(start + _BLOCK_STEPS, steps)) for start in range(0, steps, _BLOCK_STEPS)]
        )
        spectrum = np.fft.rfft(effects, n=points, axis=0)
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
        """At least the sum of :meth:`norms` over any number of steps; infinity without decay."""
        moduli = np.abs(self.poles) * (1 + 4 * EPSILON)
        if (moduli >= 1).any():
            return math.inf
        output_norms = np.linalg.norm(self.output_weights, axis=0)
        mode_sums = output_norms * np.linalg.norm(self.input_weights, axis=1) / (1 - moduli)
        total, steps = 0.0, 0
        # The first block is always summed step by step: the skip is part of no mode's series.
        while steps == 0 or (steps < _MAX_SUMMED_STEPS and float(moduli**steps @ mode_sums) > 0.1 * total):
            total += float(self._block_norms(steps, steps + _BLOCK_STEPS).sum())
            steps += _BLOCK_STEPS
        return total + self.slope * float(moduli**steps @ mode_sums) * (1 + 1e-9)

    def _block_norms(self, start: int, stop: int) -> Matrix:
        """Return :meth:`norms` of the steps from ``start`` to ``stop``."""
        effects = self._effects(start, stop)
        # The smaller of the two Gram matrices has the same largest eigenvalue.
        if effects.shape[1] < effects.shape[2]:
            effects = effects.transpose(0, 2, 1)
        grams = effects.transpose(0, 2, 1) @ effects
        largest = np.linalg.eigvalsh(grams)[:, -1] if grams.size else np.zeros(stop - start)
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
