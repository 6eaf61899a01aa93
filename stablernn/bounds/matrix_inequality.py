"""The matrix inequality by which a factor of a step is proved, checked with a bound on all that rounding can do.

For differences ``e`` of states and ``w`` of neurons of a Lur'e system (:mod:`stablernn.bounds.lure`), ``w^T L (V e +
D w - w) >= 0`` for every diagonal matrix ``L`` of multipliers that are not negative and equal within each group of
neurons. So ``|S (F e + G w)| <= r |T e|``, with ``P = S^T S``, where

    [ r^2 T^T T - F^T P F ,  -F^T P G - V^T L ;  .  ,  2 L - L D - D^T L - G^T P G ]  is positive semidefinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stablernn.bounds.linalg import (
    EPSILON,
    Indices,
    Matrix,
    inverse_error_factor,
    inverse_norm_upper_bound,
    norm_upper_bound,
    rounding_error_bound,
)


@dataclass(frozen=True)
class LureMap:
    """A map ``F e + G w`` of differences, ``w`` those of neurons that read ``V e + D w``.

    Attributes:
        F: As in :class:`stablernn.bounds.lure.LureSystem`, or the matrix of an input or an output in its place.
        G: ``(k, q)``.
        V: ``(q, n)``.
        D: ``(q, q)``, or None for zeros.
        groups: ``(q,)``, the group of each neuron, from 0 on; the neurons of a group have the same multiplier.
    """

    F: Matrix
    G: Matrix
    V: Matrix
    D: Matrix | None
    groups: Indices

    def allows(self, multipliers: Matrix) -> bool:
        """Return whether the inequality of the neurons holds for some multipliers.

        That is so where none is negative and those of a group are the same.
        """
        if multipliers.shape != self.groups.shape or not (np.isfinite(multipliers) & (multipliers >= 0)).all():
            return False
        return bool((multipliers == self.spread(self.of_groups(multipliers))).all())

    def spread(self, of_groups: Matrix) -> Matrix:
        """Return the multiplier of each neuron, given that of each group."""
        multipliers: Matrix = of_groups[self.groups]
        return multipliers

    def of_groups(self, multipliers: Matrix) -> Matrix:
        """Return the multiplier of the first neuron of each group."""
        _, first = np.unique(self.groups, return_index=True)
        return multipliers[first]


class MatrixInequality:
    """The matrix inequality of a map, for which a search tries many multipliers.

    Whatever does not depend on the multipliers is computed once, above all the singular values of the metrics.

    Args:
        F: As in :class:`stablernn.bounds.lure.LureSystem`, as ``G``, ``V`` and ``D``; or the matrix of an input or an
            output in its place.
        G: See ``F``.
        V: See ``F``.
        D: See ``F``.
        before: The metric of differences before the map; None for the identity.
        after: The metric of differences after it; None for the identity.
    """

    def __init__(
        self, F: Matrix, G: Matrix, V: Matrix, D: Matrix | None, before: Matrix | None, after: Matrix | None
    ) -> None:
        self.state_part, self.neuron_part = (F, G) if after is None else (after @ F, after @ G)
        self._neurons, self._inner = V, D
        self._gram = self.neuron_part.T @ self.neuron_part
        self._cross = self.state_part.T @ self.neuron_part
        self._gram_error = rounding_error_bound(self.neuron_part, self.neuron_part)
        self._cross_error = rounding_error_bound(self.state_part, self.neuron_part)
        self._state_error = 0.0
        if after is not None:
            # Of the products with the metric, which can be much smaller than its norm times that of the matrix.
            self._state_error, neuron_error = rounding_error_bound(after, F), rounding_error_bound(after, G)
            neuron_norm, state_norm = (float(np.linalg.norm(part)) for part in (self.neuron_part, self.state_part))
            self._gram_error += neuron_error * (2 * neuron_norm + neuron_error)
            self._cross_error += self._state_error * (neuron_norm + neuron_error) + state_norm * neuron_error
        # Of the terms of the multipliers.
        self._multiplier_terms = 2 + (0 if D is None else 2 * norm_upper_bound(D))
        self._inverse = None if before is None else np.linalg.inv(before)
        self._inverse_norm = 1.0 if before is None else inverse_norm_upper_bound(before)
        self._inverse_factor = 1.0 if before is None else inverse_error_factor(before)

    def factor(self, multipliers: Matrix) -> float:
        """Return the least ``r`` for some multipliers, by the Schur complement; infinity if they prove nothing.

        Args:
            multipliers: The diagonal of ``L``, ``(q,)``; not negative.
        """
        # Multipliers of a damaged certificate can be too large, and prove nothing then.
        with np.errstate(over="ignore", invalid="ignore"):
            corner = 2 * np.diag(multipliers) - self._gram
            if self._inner is not None:
                inner = multipliers[:, None] * self._inner
                corner = corner - (inner + inner.T)
            weighted_neurons = multipliers[:, None] * self._neurons
            side = self._cross + weighted_neurons.T
        if not (np.isfinite(corner).all() and np.isfinite(side).all()):
            return math.inf
        values, vectors = np.linalg.eigh((corner + corner.T) / 2)
        # The smallest eigenvalue less its error: of the product X^T X, and of the terms of the multipliers.
        largest = float(multipliers.max(initial=0.0))
        error_of_multipliers = 8 * len(corner) * EPSILON * largest * self._multiplier_terms
        lowest = float(values[0]) - self._gram_error - error_of_multipliers
        if not lowest > 0:
            return math.inf
        # With every eigenvalue of the corner lowered by what rounding can have done, the complement only grows.
        half = (side @ vectors) / np.sqrt(values - (float(values[0]) - lowest))
        stacked: Matrix = np.concatenate([self.state_part, half.T])
        if self._inverse is not None:
            stacked = stacked @ self._inverse
        side_error = self._cross_error + rounding_error_bound(weighted_neurons)
        error = rounding_error_bound(stacked)
        error += (self._state_error + 2 * side_error / math.sqrt(lowest)) * self._inverse_norm
        return float(np.linalg.norm(stacked, 2)) * self._inverse_factor + error
