"""Numbers that seem to stand for missing values, such as -9999."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Float32Array
from stablernn.data.check.channel_statistics import OUTLIER_DEVIATIONS, robust_scale
from stablernn.data.check.report import Findings
from stablernn.data.messages import pluralize

#: Numbers that programs and devices write where they have no value.
_USUAL_CODES = (-9999, -999, -99, -1e30, -32768, 999, 9999, 99999, 999999, 65535, 32767, 1e30)
#: A number that comes once may be a measurement.
_MIN_COUNT = 2


def warn_about_missing_codes(values: Sequence[Float32Array], channels: Sequence[str], findings: Findings) -> None:
    """Warn about usual codes for missing values that come more than once and lie far from all other values.

    Args:
        values: float32 (time, channels), an array for each series.
        channels: Names of the channels.
        findings: Gets a warning for each column.
    """
    for index, name in enumerate(channels):
        # The extremes tell in one pass whether a code comes at all; most columns have none.
        extremes = (
            np.fmin.reduce([np.fmin.reduce(each[:, index]) for each in values]),
            np.fmax.reduce([np.fmax.reduce(each[:, index]) for each in values]),
        )
        codes = [code for code in _USUAL_CODES if np.float32(code) in extremes]
        if not codes:
            continue
        column = np.concatenate([each[:, index] for each in values])
        column = column[~np.isnan(column)]
        for code in codes:
            count = int((column == np.float32(code)).sum())
            if count >= _MIN_COUNT and _is_far(code, column[column != np.float32(code)].astype(np.float64)):
                findings.warn(
                    "missing_code",
                    f"Column '{name}' has the value {code:g} {pluralize(count, 'time')}, far from all others: if it "
                    f"stands for a missing value, set data.missing=[{code:g}].",
                    {"missing": [int(code) if float(code).is_integer() else code]},
                )


def _is_far(code: float, others: npt.NDArray[np.float64]) -> bool:
    median, deviation = robust_scale(others)
    return bool(abs(code - median) > OUTLIER_DEVIATIONS * deviation)
