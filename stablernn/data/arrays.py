"""Array types, the names of the splits, and samples of a split as arrays."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
Timestamps = npt.NDArray[np.datetime64] | Int64Array
"""Timestamps of a series: datetime64[ns], or integers that number its steps."""

SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


class Samples(NamedTuple):
    """Some samples of a split, as numpy arrays.

    Attributes:
        x: float32 (samples, time, features), raw units, NaN = missing, padded with 0 after ``lengths``.
        lengths: int64 (samples,), real steps of each sample.
        y: int64 (samples,) class indices, or float32 (samples, horizon, targets) with NaN = missing.
        dt: float32 (samples, time), the time since the previous step in units of the regular step; None when the times
            of the steps are not known or not used.
        static: float32 (samples, s), values that are constant for a whole series, raw units; None where there are none.
        future: float32 (samples, horizon, f), values known in advance of the steps to forecast, raw units, NaN =
            missing; None where there are none.
    """

    x: Float32Array
    lengths: Int64Array
    y: Int64Array | Float32Array
    dt: Float32Array | None = None
    static: Float32Array | None = None
    future: Float32Array | None = None
