"""The rows of a table: errors of those that are in no order or are none, with the option that would mend them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Timestamps
from stablernn.data.messages import format_timestamp
from stablernn.data.readers.spilling_array import find_unordered_row
from stablernn.data.repairs.duplicate_rows import find_repeats, repeats_differ
from stablernn.data.repairs.local_times import suggest_timezone
from stablernn.terms import terms

# With more repeated times than this, rows of different values are not proposed to be merged.
_MAX_SHARE_OF_REPEATS = 0.2


def no_series_error(file: str, exclude: Mapping[str, str]) -> errors.DataError:
    """Return the error for a file all of whose series are left out, each with the reason."""
    name, reason = next(iter(exclude.items()))
    return errors.DataError(
        f"{terms().file(file)} has no series without an error. That of '{name}', the first one: {reason}"
    )


def refuse_unordered_rows(
    file: str,
    ds: Timestamps,
    values: Float32Array,
    ends: Int64Array,
    *,
    row_number: Callable[[int], int],
    series_names: Sequence[str] | None,
    may_repeat: bool,
    may_be_local: bool,
) -> None:
    """Refuse a row that repeats the time of the row of its series before, or comes earlier.

    Args:
        file: Name of the file.
        ds: Timestamps, the rows of each series together.
        values: float32 (rows, columns).
        ends: End of each series.
        row_number: Returns the number in the file of the row at an index.
        series_names: Names of the series; None where the file does not name them.
        may_repeat: Whether repeated times are accepted.
        may_be_local: Whether the times may be those of a zone that is not set.

    Raises:
        DataError: If there is such a row.
    """
    first = find_unordered_row(ds, ends, may_repeat=may_repeat)
    if first is None:
        return

    def describe(index: int) -> str:
        earlier, later = row_number(index), row_number(index + 1)
        timestamp = format_timestamp(ds[index + 1])
        series = ""
        if series_names is not None:
            name = series_names[int(np.searchsorted(ends, index, side="right"))]
            series = f" of {terms().series(file, name)}"
        if ds[index + 1] == ds[index]:
            return f"{terms().file(file)} has the time {timestamp}{series} twice, in {terms().rows((earlier, later))}."
        return (
            f"{terms().file(file)} is not sorted by time: {terms().row(later)}{series} has {timestamp} after "
            f"{format_timestamp(ds[index])} in {terms().row(earlier)}."
        )

    problem, is_repeated = describe(first), ds[first + 1] == ds[first]
    faulty = {}
    if series_names is not None:
        faulty = {
            series_names[number]: describe(start + index)
            for number, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
            if (index := find_unordered_row(ds[start:end], ends[:0], may_repeat=may_repeat)) is not None
        }
    zone = suggest_timezone(ds, ends) if may_be_local else None
    if zone is not None:
        raise errors.DataError(
            f"{problem} Clocks in {zone} go back at such times: if they are local, "
            f"{terms().set('data.timezone', zone)}, or the zone in which they were recorded.",
            settings={"timezone": zone},
            series=faulty,
        )
    if not is_repeated:
        raise errors.DataError(
            f"{problem} Sort the rows, or {terms().set('data.sort', True)}.", settings={"sort": True}, series=faulty
        )
    repeats = find_repeats(ds, ends)
    differ = repeats_differ(values, repeats).any()
    unnamed = "Name the column that tells series apart by id_column" if series_names is None else "Remove one of them"
    # Different values at many times are rather those of several series.
    if differ and repeats.mean() > _MAX_SHARE_OF_REPEATS:
        raise errors.DataError(f"{problem} {unnamed}.", series=faulty)
    how = "mean" if differ else "last"
    raise errors.DataError(
        f"{problem} {unnamed}, or {terms().set('data.on_duplicate', how)}.",
        settings={"on_duplicate": how},
        series=faulty,
    )
