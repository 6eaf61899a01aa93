"""Timestamps in a form that matplotlib plots as dates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def plottable_times(timestamps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return datetimes in microseconds; whole numbers stay as they are."""
    # matplotlib reads datetimes of microseconds; some versions take nanoseconds for plain numbers.
    return timestamps.astype("datetime64[us]") if np.issubdtype(timestamps.dtype, np.datetime64) else timestamps
