"""A lower bound on every rate: the largest spectral radius of a Lur'e system with nonlinearities of constant slopes.

With constant slopes the step is linear. In any norm its differences decay no faster than by its spectral radius: no
smaller rate can be proved, and a proof has lost no more than the gap between the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import LureSystem
from stablernn.bounds.norm_search import LureMap

_STEPS = 60
"""Of the ascent from each start."""


def largest_constant_slope_radius(step: LureSystem, *, starts: int = 8) -> float:
    """Return the largest spectral radius that a search over constant slopes within 0 to 1 finds.

    The slopes climb the gradient of the spectral radius, from all 0, from all 1, from the middle and from random
    vertices. Neurons of one group have the same slope. Deterministic.

    Args:
        step: The step.
        starts: How many random vertices to begin from.
    """
    generator = np.random.default_rng(0)
    lure_map = step.map
    groups = int(lure_map.groups.max(initial=-1)) + 1
    points = [np.zeros(groups), np.ones(groups), np.full(groups, 0.5)]
    points += [generator.integers(0, 2, groups).astype(np.float64) for _ in range(starts)]
    return max(_climb(lure_map, point) for point in points)


@dataclass(frozen=True)
class _Radius:
    value: float
    gradient: Matrix
    """By the slope of each group."""


def _climb(lure_map: LureMap, slopes: Matrix) -> float:
    """Return the spectral radius where gradient ascent within the cube ends."""
    current, length = _radius(lure_map, slopes), 1.0
    for _ in range(_STEPS):
        steepest = float(np.abs(current.gradient).max(initial=0.0))
        if not steepest or length < 1e-6:
            break
        # Of length 1, the step takes the steepest slope from one end to the other.
        next_slopes = np.clip(slopes + length * current.gradient / steepest, 0.0, 1.0)
        candidate = _radius(lure_map, next_slopes)
        if candidate.value > current.value:
            slopes, current, length = next_slopes, candidate, min(2 * length, 64.0)
        else:
            length /= 4
    return current.value


def _radius(lure_map: LureMap, of_groups: Matrix) -> _Radius:
    slopes = lure_map.spread(of_groups)
    # The neurons are w = S (V e + D w).
    resolvent: Matrix = np.eye(len(slopes))
    if lure_map.D is not None:
        resolvent = np.linalg.inv(resolvent - slopes[:, None] * lure_map.D).astype(np.float64)
    neurons = resolvent @ (slopes[:, None] * lure_map.V)
    jacobian = lure_map.F + lure_map.G @ neurons
    values, right = np.linalg.eig(jacobian)
    largest = int(np.abs(values).argmax())
    value, vector = values[largest], right[:, largest]
    transposed_values, left = np.linalg.eig(jacobian.T)
    covector = left[:, int(np.abs(transposed_values - value).argmin())]
    product = covector @ vector
    radius = float(abs(value))
    # Of a multiple eigenvalue, or of 0, there is no gradient.
    if abs(product) < 1e-12 or not radius:
        return _Radius(radius, np.zeros_like(of_groups))
    arguments = lure_map.V if lure_map.D is None else lure_map.V + lure_map.D @ neurons
    derivatives = (covector @ lure_map.G @ resolvent) * (arguments @ vector) / product
    by_neuron = np.real(np.conj(value) / radius * derivatives)
    by_group = np.bincount(lure_map.groups, weights=by_neuron, minlength=len(of_groups)).astype(np.float64)
    return _Radius(radius, by_group)
