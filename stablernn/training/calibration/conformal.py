"""Conformal intervals: quantile forecasts, moved until they hold on a calibration set what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn.errors import DataError
from stablernn.training.evaluation.metrics import mirrored

Array = npt.NDArray[Any]


class Conformal(NamedTuple):
    """What calibration found.

    Attributes:
        offsets: float32 (horizon, targets, levels), to be added to each quantile in units of the anchor's scale.
        report: As JSON types: ``samples``; ``short``, the steps and targets with too few of them for their interval;
            ``levels_left``, those that have no mirror image and were not moved; ``coverage``, by the share that an
            interval should hold what it held on the calibration set ``before`` and ``after``.
    """

    offsets: npt.NDArray[np.float32]
    report: dict[str, Any]


def conformal_offsets(truth: Array, quantiles: Array, scale: Array, levels: Sequence[float]) -> Conformal:
    r"""Offsets of conformalized quantile regression (Romano, Patterson, Candes, NeurIPS 2019) by step and target.

    For two levels that mirror each other, :math:`a/2` and :math:`1 - a/2`, each sample's score is how far its truth
    lies outside of the interval, :math:`E_i = \max(q_{a/2} - y_i,\ y_i - q_{1-a/2}) / s_i`, negative inside. The
    offset is the :math:`\lceil (n + 1)(1 - a) \rceil`-th smallest score, taken off the lower quantile and added to the
    upper one. If the n samples and a new one are exchangeable, the interval holds the new truth with a probability of
    at least :math:`1 - a`, whatever the model; without ties at most :math:`1 - a + 1/(n + 1)`.

    Windows of a series that overlap, or that follow each other, are not exchangeable: neighbours have nearly the same
    error, so that n of them are worth far fewer, and what comes later may differ from all of them. The promise is then
    an approximation: what the interval holds on the test split is to be looked at, not presumed. Over many series whose
    windows are one each, and series like them, it holds as it stands.

    Where n is too small for the wanted smallest score to exist (:math:`(n + 1)(1 - a) > n`), the largest one is taken,
    which holds a new truth with n/(n + 1) only; such steps are counted. A step without any truth is not moved.

    The median is not moved, nor is a level whose mirror image is missing. A large negative offset can carry a lower
    quantile beyond its neighbour: whoever applies offsets sorts afterwards.

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
    seen = ~np.isnan(y)
    count = seen.sum(axis=0)  # (horizon, targets)
    offsets = np.zeros(q.shape[1:])
    pairs = mirrored(levels)
    short = 0
    for lower, upper in pairs:
        held = levels[upper] - levels[lower]
        scores = np.maximum(q[..., lower] - y, y - q[..., upper]) / s
        ordered = np.sort(np.where(seen, scores, math.inf), axis=0)
        # Rounding must not lift (n + 1)(1 - a) above the whole number that it is.
        rank = np.ceil((count + 1) * held - 1e-9).astype(np.int64)
        short += int((rank > count).sum())
        place = np.clip(np.minimum(rank, count) - 1, 0, None)
        found = np.take_along_axis(ordered, place[None], axis=0)[0]
        found = np.where(count > 0, found, 0.0)
        offsets[..., lower], offsets[..., upper] = -found, found
    rounded = offsets.astype(np.float32)
    moved = np.sort(q + s[..., None] * rounded, axis=-1)
    coverage = {
        f"{round(levels[upper] - levels[lower], 6):g}": {
            "before": _held(q[..., lower], y, q[..., upper], seen),
            "after": _held(moved[..., lower], y, moved[..., upper], seen),
        }
        for lower, upper in pairs
    }
    used = {number for pair in pairs for number in pair}
    left = [level for number, level in enumerate(levels) if number not in used and not math.isclose(level, 0.5)]
    report = {"samples": len(truth), "short": short, "levels_left": left, "coverage": coverage}
    return Conformal(rounded, report)


def _held(lower: Array, y: Array, upper: Array, seen: Array) -> float | None:
    inside = (lower <= y) & (y <= upper)
    return float(inside[seen].mean()) if seen.any() else None
