"""The minimum of a function of one number within bounds.

SciPy's ``minimize_scalar(method="bounded")`` finds the same numbers; importing ``scipy.optimize`` takes a fifth of a
second, which every command would wait for that proves something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

_GOLDEN_SHARE = 0.5 * (3.0 - math.sqrt(5.0))
_RESOLUTION = math.sqrt(2.2e-16)
"""Share of a number by which a minimum cannot be told apart in float64."""
_MAX_EVALUATIONS = 500


class Minimum(NamedTuple):
    """A local minimum, and the value of the function there."""

    x: float
    value: float


def minimize_bounded(
    function: Callable[[float], float], lower: float, upper: float, *, tolerance: float = 1e-5
) -> Minimum:
    """Return a local minimum between bounds, by golden sections and parabolas (Brent, 1973, chapter 5).

    Args:
        function: The function; infinite values are allowed.
        lower: Lower bound.
        upper: Upper bound, which is above it.
        tolerance: Largest error of the position, in its own unit.
    """
    # The names of the algorithm's papers: x, w and v are the best, the second and the third point so far.
    a, b = lower, upper
    x = w = v = a + _GOLDEN_SHARE * (b - a)
    step = step_before = 0.0
    fx = fw = fv = function(x)
    for _ in range(_MAX_EVALUATIONS - 1):
        middle = 0.5 * (a + b)
        least = _RESOLUTION * abs(x) + tolerance / 3.0
        if abs(x - middle) <= 2.0 * least - 0.5 * (b - a):
            break
        parabola = _parabolic_step(x, w, v, fx, fw, fv) if abs(step_before) > least else None
        # Accepted within the bounds, and where steps halve: the step is below half of that before the last.
        if parabola is not None and _is_acceptable(*parabola, a - x, b - x, step_before):
            p, q = parabola
            step_before, step = step, (p + 0.0) / q
            if x + step - a < 2.0 * least or b - (x + step) < 2.0 * least:
                step = math.copysign(least, middle - x)
        else:
            step_before = a - x if x >= middle else b - x
            step = _GOLDEN_SHARE * step_before
        point = x + math.copysign(max(abs(step), least), step)
        value = function(point)
        if value <= fx:
            a, b = (x, b) if point >= x else (a, x)
            v, fv, w, fw, x, fx = w, fw, x, fx, point, value
            continue
        a, b = (point, b) if point < x else (a, point)
        if value <= fw or w == x:
            v, fv, w, fw = w, fw, point, value
        elif value <= fv or v in (x, w):
            v, fv = point, value
    return Minimum(x, fx)


def _parabolic_step(x: float, w: float, v: float, fx: float, fw: float, fv: float) -> tuple[float, float]:
    """Return the step from x to the vertex of the parabola through three points, as numerator and denominator."""
    r = (x - w) * (fx - fv)
    q = (x - v) * (fx - fw)
    p = (x - v) * q - (x - w) * r
    q = 2.0 * (q - r)
    return (-p if q > 0.0 else p), abs(q)


def _is_acceptable(p: float, q: float, below: float, above: float, step_before: float) -> bool:
    return abs(p) < abs(0.5 * q * step_before) and q * below < p < q * above
