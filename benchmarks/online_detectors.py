"""Detectors of drift on the same residuals, for ``online.py``: ours at two rates, ADWIN and Page-Hinkley of river."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stablernn_runtime.drift import DriftDetector

Array = np.ndarray[Any, np.dtype[Any]]
Detect = Callable[[Array, Array, Array, int], Array]

LONGEST_DELAY = 400
"""Readings after a shift within which an alarm counts as its detection."""


def residuals(streams: Array, quantiles: Array) -> Array:
    """Residuals one reading ahead in half widths of the interval, (streams, readings); NaN at the first.

    Args:
        streams: (streams, readings).
        quantiles: (streams, readings, horizon, 1, levels), after each reading.
    """
    low, center, high = np.moveaxis(quantiles[:, :-1, 0, 0].astype(np.float64), -1, 0)
    z = np.full(streams.shape, np.nan)
    z[:, 1:] = (streams[:, 1:] - center) / ((high - low) / 2)
    return z


def _conformal(rate: float) -> Detect:
    def detect(streams: Array, quantiles: Array, z: Array, block: int) -> Array:
        detector = DriftDetector(rate, block, quantiles.shape[2], 1)
        center, width = quantiles[..., 1], quantiles[..., 2] - quantiles[..., 0]
        return detector.advance({}, streams[:, :, None, None], center, width)[1] >= 1

    return detect


def _river(name: str) -> Detect:
    def detect(streams: Array, quantiles: Array, z: Array, block: int) -> Array:
        from river import drift

        alarms = np.zeros(z.shape, np.bool_)
        for row, series in enumerate(z):
            # As the conformal test, one for the residuals and one for their absolute values; with river's defaults.
            pair = [getattr(drift, name)(), getattr(drift, name)()]
            for position, value in enumerate(series):
                if np.isnan(value):
                    continue
                for detector, figure in zip(pair, (value, abs(value)), strict=True):
                    detector.update(float(figure))
                    alarms[row, position] |= detector.drift_detected
        return alarms

    return detect


DETECTORS: dict[str, Detect] = {
    "this test, rate 0.0001": _conformal(1e-4),
    "this test, rate 0.001": _conformal(1e-3),
    "river ADWIN": _river("ADWIN"),
    "river PageHinkley": _river("PageHinkley"),
}


def count_alarms(alarms: Array) -> int:
    """Number of alarms in all streams."""
    return int(alarms.sum())


def delays(alarms: Array, onsets: list[int]) -> dict[str, Any]:
    """Detections of shifts.

    Args:
        alarms: (streams, readings).
        onsets: First reading of the shift of each stream.

    Returns:
        ``shifts``, ``detected`` within :data:`LONGEST_DELAY` readings, and the median ``delay`` of these in readings.
    """
    first = []
    for row, onset in zip(alarms, onsets, strict=True):
        later = np.flatnonzero(row[onset : onset + LONGEST_DELAY])
        if len(later):
            first.append(int(later[0]) + 1)
    return {"shifts": len(onsets), "detected": len(first), "delay": float(np.median(first)) if first else None}
