"""``on_duplicate``: rows that repeat a time of their series become their mean or the last of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Float32Array, Int64Array, Timestamps
from stablernn.data.types import Notes


class MergedRows(NamedTuple):
    """Rows of which none repeats a time of its series.

    Attributes:
        ds: Timestamps.
        values: float32 (rows, columns).
        ends: End of each series.
        notes: ``duplicate_rows``, rows that were merged into another one, and ``duplicate_rows_differing``, how many of
            them had other values.
    """

    ds: Timestamps
    values: Float32Array
    ends: Int64Array
    notes: Notes


def find_repeats(ds: Timestamps, ends: Int64Array) -> npt.NDArray[np.bool_]:
    """Return, for each row, whether it has the time of the row of its series before."""
    repeats = np.zeros(len(ds), dtype=bool)
    repeats[1:] = ds[1:] == ds[:-1]
    repeats[ends[:-1]] = False
    return repeats


def repeats_differ(values: Float32Array, repeats: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return, for each row that repeats a time, whether its values differ from those of the row before."""
    rows = np.flatnonzero(repeats)
    before, after = values[rows - 1], values[rows]
    return np.asarray(((before != after) & ~(np.isnan(before) & np.isnan(after))).any(axis=1))


def find_unlike_categories(values: Float32Array, repeats: npt.NDArray[np.bool_], column: int) -> int | None:
    """Return the first row that repeats a time with another category; None if there is none."""
    rows = np.flatnonzero(repeats)
    differs = repeats_differ(values[:, [column]], repeats)
    return int(rows[np.argmax(differs)]) if differs.any() else None


def merge_duplicates(
    ds: Timestamps, values: Float32Array, ends: Int64Array, how: Literal["mean", "last"]
) -> MergedRows:
    """Merge rows of one series and time, which follow each other.

    Args:
        ds: Timestamps, in ascending order within each series.
        values: float32 (rows, columns); a mean is that of the values that are not missing.
        ends: End of each series.
        how: Which values the merged row has.
    """
    repeats = find_repeats(ds, ends)
    notes: Notes = {
        "duplicate_rows": int(repeats.sum()),
        "duplicate_rows_differing": int(repeats_differ(values, repeats).sum()),
    }
    if not notes["duplicate_rows"]:
        return MergedRows(ds, values, ends, notes)
    starts = np.flatnonzero(~repeats)
    # Of each series, how many of its rows begin a group of rows of one time.
    new_ends = np.searchsorted(starts, ends, side="left").astype(np.int64)
    if how == "last":
        last = np.append(starts[1:], len(ds)) - 1
        return MergedRows(ds[last], values[last], new_ends, notes)
    is_present = ~np.isnan(values)
    # float64, so that the mean of equal values is that value.
    total = np.add.reduceat(np.where(is_present, values, 0).astype(np.float64), starts, axis=0)
    count = np.add.reduceat(is_present.astype(np.int64), starts, axis=0)
    with np.errstate(invalid="ignore"):
        mean = (total / count).astype(np.float32)
    return MergedRows(ds[starts], mean, new_ends, notes)
