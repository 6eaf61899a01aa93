"""``sort``: the rows of each series in the order of time. Counted are the rows that come after a later one."""

from __future__ import annotations

import numpy as np

from stablernn.data.arrays import Int64Array, Timestamps


def sort_order(ds: Timestamps, ends: Int64Array) -> tuple[Int64Array | None, int]:
    """Return the order that sorts the rows of each series by time, None if they are sorted, and how many were not.

    Rows with the same time keep their order.

    Args:
        ds: Timestamps, the rows of each series together.
        ends: End of each series.
    """
    ticks = ds.view(np.int64)
    is_early = ticks[1:] < ticks[:-1]
    is_early[ends[:-1] - 1] = False
    if not is_early.any():
        return None, 0
    codes = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    return np.lexsort((ticks, codes)), int(is_early.sum())
