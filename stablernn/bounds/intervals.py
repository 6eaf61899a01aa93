"""Interval arithmetic, coordinate by coordinate: the ranges of gates and states for inputs of a bounded size.

Every operation widens its result by more than float32 can have rounded it: an interval holds the values of exact
arithmetic and those that a model in float32 computes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from stablernn.bounds.linalg import EPSILON, Matrix

FLOAT32_EPSILON = float(np.finfo(np.float32).eps)
_MARGIN = 4 * FLOAT32_EPSILON
"""Several times the relative error of a sum, a product, a sigmoid or a hyperbolic tangent."""
LARGEST_FLOAT32_SUM = 2.0**26
"""Times the largest summand, at least the size that a sum of any number of them reaches in float32: its half last place
is then more than a summand, whatever the binade."""
_HUGE = 1e200
"""Beyond this, products with float32 weights can overflow: such a range counts as unbounded."""
_ROUNDS = 50
"""Rounds after which :func:`shrink_invariant` ends: later ones gain nothing that matters."""


@dataclass(frozen=True)
class Box:
    """A box in space, one closed interval for each coordinate.

    Attributes:
        lower: ``(n,)``, minus infinity where there is no bound.
        upper: ``(n,)``, infinity where there is no bound.
    """

    lower: Matrix
    upper: Matrix

    @classmethod
    def around_zero(cls, size: int, radius: float) -> Box:
        """Return ``size`` intervals from minus ``radius`` to ``radius``, which may be infinite."""
        return cls(np.full(size, -radius), np.full(size, radius))

    @property
    def modulus(self) -> Matrix:
        """The largest modulus of each coordinate, ``(n,)``."""
        return np.maximum(np.abs(self.lower), np.abs(self.upper))

    @property
    def smallest_modulus(self) -> Matrix:
        """The smallest modulus of each coordinate, ``(n,)``."""
        return np.maximum(0.0, np.maximum(self.lower, -self.upper))

    @property
    def is_finite(self) -> bool:
        """True if every coordinate is bounded."""
        return bool(np.isfinite(self.lower).all() and np.isfinite(self.upper).all())

    def split(self, parts: int) -> tuple[Box, ...]:
        """Return equal parts of the coordinates, one after the other."""
        return tuple(Box(*ends) for ends in zip(np.split(self.lower, parts), np.split(self.upper, parts), strict=True))

    def affine(self, matrix: Matrix, bias: Matrix | float = 0.0) -> Box:
        """Return the range of ``matrix @ x + bias``."""
        bias = np.broadcast_to(bias, len(matrix))
        if not float(np.max(self.modulus, initial=0.0)) < _HUGE:
            # A zero in the matrix times infinity would be NaN.
            return Box.around_zero(len(matrix), np.inf)
        up, down = np.maximum(matrix, 0), np.minimum(matrix, 0)
        margin = (matrix.shape[1] + 4) * FLOAT32_EPSILON * (np.abs(matrix) @ self.modulus + np.abs(bias))
        return Box(
            up @ self.lower + down @ self.upper + bias - margin, up @ self.upper + down @ self.lower + bias + margin
        )

    def scaled(self, factor: Matrix | float) -> Box:
        """Return the range of the product with a positive number, or one for each coordinate; 0 times infinity is 0."""
        factor = np.broadcast_to(factor, self.lower.shape)
        return _widened(
            *(np.where(end == 0, 0.0, end * np.where(end == 0, 1.0, factor)) for end in (self.lower, self.upper))
        )

    def negated(self) -> Box:
        """Return the range of the values with the other sign."""
        return Box(-self.upper, -self.lower)

    def plus(self, other: Box) -> Box:
        """Return the range of the sum with numbers of another box."""
        return _widened(self.lower + other.lower, self.upper + other.upper)

    def times(self, other: Box) -> Box:
        """Return the range of the product with numbers of another box, which must both be finite."""
        products = [a * b for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        return _widened(np.min(products, axis=0), np.max(products, axis=0))

    def mapped(self, increasing: Callable[[Matrix], Matrix], lowest: float, highest: float) -> Box:
        """Return the range of an increasing function with values from ``lowest`` to ``highest``."""
        image = _widened(increasing(self.lower), increasing(self.upper))
        return Box(np.maximum(image.lower, lowest), np.minimum(image.upper, highest))

    def sigmoid(self) -> Box:
        """Return the range of the sigmoid."""
        return self.mapped(sigmoid, 0.0, 1.0)

    def tanh(self) -> Box:
        """Return the range of the hyperbolic tangent."""
        return self.mapped(np.tanh, -1.0, 1.0)

    def relu(self) -> Box:
        """Return the range of ``max(0, x)``."""
        return Box(np.maximum(self.lower, 0.0), np.maximum(self.upper, 0.0))

    def silu(self) -> Box:
        """Return the range of ``x sigmoid(x)``."""
        return self._dipping(lambda x: x * sigmoid(x), at=-1.278465, lowest=-0.278465)

    def gelu(self) -> Box:
        """Return the range of ``x Phi(x)``, with the normal distribution function in its exact form."""
        return self._dipping(lambda x: x * _normal_cdf(x), at=-0.751792, lowest=-0.169972)

    def _dipping(self, function: Callable[[Matrix], Matrix], *, at: float, lowest: float) -> Box:
        """Return the range of a function that falls up to its minimum, ``lowest`` or more, near ``at``, and then rises.

        It is 0 at minus infinity, so that its largest value is at an end of an interval.
        """
        # Minus infinity times 0 would be NaN.
        ends = np.array([function(np.maximum(self.lower, -1e300)), function(self.upper)])
        image = _widened(ends.min(axis=0) - _MARGIN, ends.max(axis=0) + _MARGIN)
        is_inside = (self.lower < at + 1e-5) & (self.upper > at - 1e-5)
        return Box(np.where(is_inside, np.minimum(lowest, image.lower), image.lower), image.upper)

    def with_zero(self) -> Box:
        """Return the smallest box that holds this one and the origin."""
        return Box(np.minimum(self.lower, 0.0), np.maximum(self.upper, 0.0))

    def hull(self, other: Box) -> Box:
        """Return the smallest box that holds this one and another."""
        return Box(np.minimum(self.lower, other.lower), np.maximum(self.upper, other.upper))

    def meet(self, other: Box) -> Box:
        """Return the intersection."""
        return Box(np.maximum(self.lower, other.lower), np.minimum(self.upper, other.upper))

    def join(self, *others: Box) -> Box:
        """Return the box of all coordinates, one after the other."""
        boxes = (self, *others)
        return Box(np.concatenate([box.lower for box in boxes]), np.concatenate([box.upper for box in boxes]))

    def distance(self, other: Box) -> Matrix:
        """Return at least the modulus of the difference to numbers of another box, ``(n,)``."""
        return np.maximum(self.upper - other.lower, other.upper - self.lower) * (1 + 4 * EPSILON)


def sigmoid(values: Matrix) -> Matrix:
    """Return the logistic sigmoid without overflow."""
    small = np.exp(-np.abs(values))
    image: Matrix = np.where(values >= 0, 1.0, small) / (1 + small)
    return image


def _normal_cdf(values: Matrix) -> Matrix:
    return np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in values.tolist()])


def shrink_invariant(states: Box, image: Callable[[Box], Box]) -> Box:
    """Return a smaller box that no step leaves, and that holds the zero state.

    Args:
        states: A box that no step leaves, with the zero state in it.
        image: Returns at least the next states of those in a box.
    """
    # The next states of an invariant box are in it and in their range: so are those of the two's intersection.
    for _ in range(_ROUNDS):
        smaller = states.meet(image(states).with_zero())
        gain = float(np.max(states.modulus - smaller.modulus, initial=0.0))
        states = smaller
        if gain < 1e-9:
            break
    return states


def accumulated_rounding(share: Matrix) -> Matrix:
    """Return the factor by which float32 rounding can lead ``(1 - s) x + s y`` beyond the range of ``y`` over time.

    Every step rounds the state, and only the share ``s`` of the excess is lost in the next. Infinity where that is no
    more than a rounding.

    Args:
        share: The smallest values of ``s``, ``(n,)``.
    """
    # Of the gate, of both products and of the sum.
    remaining = share - 16 * FLOAT32_EPSILON
    is_positive = remaining > 0
    return np.where(is_positive, share / np.where(is_positive, remaining, 1.0), np.inf)


def accumulated_range(change: Box, share: Matrix) -> Box:
    """Return the range of ``x <- (1 - s) x + c`` from zero, over any number of steps; infinite where ``s`` can be 0.

    Args:
        change: Range of ``c``.
        share: The smallest values of ``s``, ``(n,)``.
    """
    with np.errstate(divide="ignore"):
        exact = 1 / share
    # Where 1 - s can round to 1 in float32, sums end to change when c is below half of their last place.
    factor = np.minimum(exact * accumulated_rounding(share), np.maximum(exact, LARGEST_FLOAT32_SUM))
    return change.with_zero().scaled(factor)


def grow_invariant(size: int, image: Callable[[Box], Box], largest: float = 1e6) -> Box | None:
    """Return a box around the zero state that no step leaves; None if none is found.

    Args:
        size: Number of coordinates.
        image: Returns, for states within a box, a box around zero that no step from it leaves while the arguments of
            gates and candidates stay as they are there.
        largest: Size from which the search is given up.
    """
    states = Box.around_zero(size, 0.0)
    for _ in range(4 * _ROUNDS):
        needed = image(states)
        if (needed.upper <= states.upper).all() and (needed.lower >= states.lower).all():
            return states
        if not float(np.max(needed.modulus)) < largest:
            return None
        # A little more than is needed, so that the rounds end.
        slack = 0.01 * needed.modulus + 1e-6
        states = Box(np.minimum(states.lower, needed.lower - slack), np.maximum(states.upper, needed.upper + slack))
    return None


def _widened(lower: Matrix, upper: Matrix) -> Box:
    """Return a box with ends moved outwards by more than the rounding of one operation."""
    # Zero is exact where a product or a range ends there, and infinity minus a share of it would be NaN.
    low, high = (np.where(np.isfinite(ends), np.abs(ends), 0.0) * _MARGIN for ends in (lower, upper))
    return Box(lower - low, upper + high)
