"""What an input of a linear layer does to its outputs, step by step: tighter than a rate and two norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stablernn.bounds.linalg import UNIT, Matrix

_PIECE = 128
"""Steps of which products are made at a time."""
_LONGEST = 512
"""Steps that are summed up one by one; of the rest the sum of every mode's own series is taken."""


_FINENESS = 32
"""Frequencies for each step at which a Fourier sum is taken."""
_LARGEST = 8_000_000
"""Numbers of a Fourier sum beyond which it is not worth its cost."""


@dataclass(frozen=True)
class Response:
    """That of ``h <- diag(poles) h + given x``, read as ``f(Re(read h) + skip x)``.

    Attributes:
        poles: ``(n,)``, complex.
        given: ``(n, m)``, complex.
        read: ``(k, n)``, complex.
        skip: ``(k, m)``.
        slope: The largest modulus of a slope of ``f``, coordinate by coordinate.
    """

    poles: npt.NDArray[np.complex128]
    given: npt.NDArray[np.complex128]
    read: npt.NDArray[np.complex128]
    skip: Matrix
    slope: float

    def norms(self, steps: int) -> Matrix:
        """``(steps,)``: at least the 2-norm of what an input does to the output k steps later, k from 0."""
        found = [self._norms(start, min(start + _PIECE, steps)) for start in range(0, steps, _PIECE)]
        return np.concatenate(found)

    def last(self, steps: int) -> float:
        """At least the 2-norm of what all inputs of a sequence together do to its last output."""
        total = np.zeros((len(self.read), len(self.read)))
        for start in range(0, steps, _PIECE):
            effects = self._effects(start, min(start + _PIECE, steps))
            flat = effects.transpose(1, 0, 2).reshape(len(self.read), -1)
            total += flat @ flat.T
        largest = max(float(np.linalg.eigvalsh(total)[-1]), 0.0)
        return self.slope * (math.sqrt(largest) + steps * self._rounding()) * (1 + 1e-9)

    def every(self, steps: int) -> float:
        """At least the 2-norm of what all inputs of a sequence together do to all outputs together.

        The largest norm of the Fourier sum of the effects over all frequencies. Between the points of a grid it is
        bounded by Bernstein's inequality: a trigonometric sum of frequencies up to ``(steps - 1) / 2`` changes by at
        most that times its largest value.
        """
        summed = float(self.norms(steps).sum())
        points = _FINENESS * steps
        if points * self.skip.size > _LARGEST:
            return summed
        effects = np.concatenate([self._effects(at, min(at + _PIECE, steps)) for at in range(0, steps, _PIECE)])
        waves = np.fft.rfft(effects, n=points, axis=0)
        if waves.shape[1] < waves.shape[2]:
            waves = waves.transpose(0, 2, 1)
        largest = float(np.linalg.eigvalsh(waves.conj().transpose(0, 2, 1) @ waves)[:, -1].max(initial=0.0))
        between = 1 - math.pi * (steps - 1) / (2 * points)
        found = self.slope * (math.sqrt(max(largest, 0.0)) / between + steps * self._rounding()) * (1 + 1e-9)
        return min(summed, found)

    @cached_property
    def total(self) -> float:
        """At least the sum of :meth:`norms` over any number of steps; infinity without decay."""
        moduli = np.abs(self.poles) * (1 + 4 * UNIT)
        if (moduli >= 1).any():
            return math.inf
        each = np.linalg.norm(self.read, axis=0) * np.linalg.norm(self.given, axis=1) / (1 - moduli)
        known, steps = 0.0, 0
        # The first effects are always counted one by one: what the input skips to the output is among them alone.
        while steps == 0 or (steps < _LONGEST and float(moduli**steps @ each) > 0.1 * known):
            known += float(self._norms(steps, steps + _PIECE).sum())
            steps += _PIECE
        return known + self.slope * float(moduli**steps @ each) * (1 + 1e-9)

    def _norms(self, start: int, stop: int) -> Matrix:
        effects = self._effects(start, stop)
        if effects.shape[1] < effects.shape[2]:
            effects = effects.transpose(0, 2, 1)
        squares = effects.transpose(0, 2, 1) @ effects
        largest = np.linalg.eigvalsh(squares)[:, -1] if squares.size else np.zeros(stop - start)
        found: Matrix = self.slope * (np.sqrt(np.maximum(largest, 0.0)) + self._rounding()) * (1 + 1e-9)
        return found

    def _effects(self, start: int, stop: int) -> Matrix:
        """``(stop - start, k, m)``, what an input gives to what is read, before ``f``."""
        powers = self.poles[None] ** np.arange(start, stop)[:, None]
        turned = powers[:, :, None] * self.given[None]
        effects: Matrix = np.real(self.read) @ np.real(turned) - np.imag(self.read) @ np.imag(turned)
        if start == 0:
            effects[0] += self.skip
        return effects

    def _rounding(self) -> float:
        """How far off what modes add up to can be, where they cancel."""
        size = float(np.linalg.norm(self.read) * np.linalg.norm(self.given) + np.linalg.norm(self.skip))
        return 8 * len(self.poles) * UNIT * size
