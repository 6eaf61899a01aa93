"""Conformal intervals: quantile forecasts, shifted until they have their nominal coverage on a calibration set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn.errors import DataError
from stablernn.training.evaluation.metrics import symmetric_levels

Array = npt.NDArray[Any]


class Conformal(NamedTuple):
    """Result of a conformal calibration.

    Attributes:
        offsets: float32 (horizon, targets, levels), to be added to each quantile in units of the anchor's scale.
        report: As JSON types: ``samples``; ``short``, the number of intervals, by step and target, with too few
            samples; ``levels_left``, levels without a mirror image, which are not shifted; ``coverage``, by the nominal
            coverage that on the calibration set ``before`` and ``after``.
    """

    offsets: npt.NDArray[np.float32]
    report: dict[str, Any]


def conformal_offsets(truth: Array, quantiles: Array, scale: Array, levels: Sequence[float]) -> Conformal:
    r"""Return offsets of conformalized quantile regression (Romano, Patterson, Candes, NeurIPS 2019).

    Offsets are computed for each step and target. For two symmetric levels, :math:`a/2` and :math:`1 - a/2`, the score
    of a sample is the distance of the true value from the interval,
    :math:`E_i = \max(q_{a/2} - y_i,\ y_i - q_{1-a/2}) / s_i`, negative inside. The offset is the
    :math:`\lceil (n + 1)(1 - a) \rceil`-th smallest score, subtracted from the lower quantile and added to the upper
    one. If the n samples and a new one are exchangeable, the interval covers the new value with a probability of at
    least :math:`1 - a`, for any model; without ties at most :math:`1 - a + 1/(n + 1)`.

    Windows of a series that overlap or follow each other are not exchangeable: neighbors have nearly the same error, so
    that n of them are worth far fewer, and later values may differ from all of them. The guarantee is then an
    approximation, and the coverage on the test split has to be measured. It holds as stated for many similar series
    with one window each.

    If n is too small for that rank (:math:`(n + 1)(1 - a) > n`), the largest score is used, which covers a new value
    with a probability of n/(n + 1) only; such steps are counted. A step without any true value is not shifted.

    The median is not shifted, nor is a level without a mirror image. A large negative offset can shift a lower quantile
    beyond its neighbor: sort quantiles after applying offsets.

    Args:
        truth: (n, horizon, targets), raw units, NaN = missing.
        quantiles: (n, horizon, targets, levels), raw units, rising along the levels.
        scale: (n, 1, targets), the unit of each sample, above 0.
        levels: Between 0 and 1, increasing.

    Raises:
        DataError: If there is no sample, or a quantile is not finite.
    """
    if not len(truth):
        raise DataError("Conformal intervals need a calibration split, and it is empty. Hold out more for validation.")
    if not np.isfinite(quantiles).all():
        raise DataError("A quantile forecast of the calibration split is not finite, so that nothing can be measured.")
    y, q = truth.astype(np.float64), quantiles.astype(np.float64)
    s = scale.astype(np.float64)
    is_observed = ~np.isnan(y)
    count = is_observed.sum(axis=0)  # (horizon, targets)
    offsets = np.zeros(q.shape[1:])
    pairs = symmetric_levels(levels)
    short = 0
    for lower, upper in pairs:
        nominal = levels[upper] - levels[lower]
        scores = np.maximum(q[..., lower] - y, y - q[..., upper]) / s
        # Missing values sort behind all scores, beyond the ranks up to count.
        ordered = np.sort(np.where(is_observed, scores, math.inf), axis=0)
        # Rounding must not lift (n + 1)(1 - a) above the whole number that it is.
        rank = np.ceil((count + 1) * nominal - 1e-9).astype(np.int64)
        short += int((rank > count).sum())
        index = np.clip(np.minimum(rank, count) - 1, 0, None)
        # (horizon, targets)
        shift = np.take_along_axis(ordered, index[None], axis=0)[0]
        shift = np.where(count > 0, shift, 0.0)
        offsets[..., lower], offsets[..., upper] = -shift, shift
    # The model stores float32; coverage is measured with the offsets as stored.
    rounded = offsets.astype(np.float32)
    shifted = np.sort(q + s[..., None] * rounded, axis=-1)
    coverage = {
        f"{round(levels[upper] - levels[lower], 6):g}": {
            "before": _coverage(q[..., lower], y, q[..., upper], is_observed),
            "after": _coverage(shifted[..., lower], y, shifted[..., upper], is_observed),
        }
        for lower, upper in pairs
    }
    paired = {number for pair in pairs for number in pair}
    unpaired = [level for number, level in enumerate(levels) if number not in paired and not math.isclose(level, 0.5)]
    report = {"samples": len(truth), "short": short, "levels_left": unpaired, "coverage": coverage}
    return Conformal(rounded, report)


def _coverage(lower: Array, y: Array, upper: Array, is_observed: Array) -> float | None:
    """Return the share of observed values within the interval; None without any."""
    is_inside = (lower <= y) & (y <= upper)
    return float(is_inside[is_observed].mean()) if is_observed.any() else None
