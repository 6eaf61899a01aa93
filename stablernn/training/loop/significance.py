"""Standard errors of differences between two forecasts, for the one-standard-error rule."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


def standard_error(differences: Float64Array, origins: Int64Array, horizon: int) -> float | None:
    """Return the standard error of the mean of differences between the errors of two forecasts, window by window.

    Windows are not independent: those of one series have much in common, and so have those of one time, whose targets
    overlap or are disturbed by the same events. Windows are therefore clustered by time, into as many stretches of
    origins as have targets that do not overlap, and by series; the larger of the two cluster-robust errors is returned
    (Cameron, Miller, "A practitioner's guide to cluster-robust inference", 2015).

    Args:
        differences: ``(windows,)``.
        origins: ``(windows, 2)``, series and first forecast step of each window.
        horizon: Steps that are forecast.

    Returns:
        The standard error; None where all windows are of one time and one series, which says nothing of the noise.
    """
    clusters = stretches_of_time(origins, horizon), origins[:, 0]
    errors = [_clustered(differences, each) for each in clusters]
    return max((error for error in errors if error is not None), default=None)


def stretches_of_time(origins: Int64Array, horizon: int) -> Int64Array:
    """Return the stretch of origins of each window, (windows,): as many as have targets that do not overlap.

    Args:
        origins: ``(windows, 2)``, series and first forecast step of each window.
        horizon: Steps that are forecast.
    """
    series, ends = origins[:, 0], origins[:, 1]
    last = np.full(int(series.max(initial=0)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, series, ends)
    # Series may have different lengths; they are taken to end at the same time.
    back = last[series] - ends
    span = int(back.max(initial=0)) + 1
    stretches = 1 + (span - 1) // horizon
    return np.asarray(back * stretches // span)


def _clustered(differences: Float64Array, clusters: Int64Array) -> float | None:
    """Return the cluster-robust standard error of the mean; None for less than two clusters."""
    names, members = np.unique(clusters, return_inverse=True)
    count = len(names)
    if count < 2:
        return None
    sums = np.bincount(members, weights=differences - differences.mean(), minlength=count)
    return math.sqrt(count / (count - 1) * float((sums**2).sum())) / len(differences)
