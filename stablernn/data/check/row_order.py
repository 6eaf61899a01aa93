"""The order of the rows of a table that training rejects, and the column that seems to name the series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stablernn.data.arrays import Timestamps
from stablernn.data.check.report import Findings
from stablernn.data.messages import pluralize
from stablernn.data.options import Repairs
from stablernn.data.types import Notes

# A column may name the series only if at least one of so many rows repeats a time.
_MAX_ROWS_PER_REPEATED_TIME = 4
# Share of rows that may repeat a time within the series that a column names.
_MAX_SHARE_OF_REPEATS = 0.02


def check_row_order(
    file: str,
    cells: pl.DataFrame,
    times: Timestamps,
    ids: pl.Series | None,
    repairs: Repairs,
    other_roles: Sequence[str],
    findings: Findings,
) -> Notes:
    """Report rows that repeat a time of their series or are out of order; return a guess at the column of series.

    Args:
        file: Name of the file.
        cells: All columns.
        times: Time of each row.
        ids: Name of the series of each row; None where the file does not name them.
        repairs: Repairs that are asked for already, whose faults are none.
        other_roles: Columns that do not name series.
        findings: Gets problems and warnings.
    """
    repeated, unsorted = count_unordered(times, ids)
    if ids is None:
        name = _find_series_column(cells, times, repeated, other_roles) if repeated else None
        if unsorted and name is None:
            name = _find_ordering_column(cells, times, other_roles)
        if name is not None:
            findings.warn("unnamed_series", f"Column '{name}' seems to tell series apart: name it by id_column.")
            return {"id_column": name}
    if repairs.on_duplicate != "error" or repairs.timezone is not None:
        repeated = 0
    if repairs.sort or repairs.timezone is not None:
        unsorted = 0
    if repeated > 1 or (repeated and not findings.refusal_contains(" twice, in rows ")):
        series = "its series" if repeated == 1 else "their series"
        findings.problem(
            "time_twice", f"'{file}' has {pluralize(repeated, 'row')} with a time that {series} already has."
        )
    if unsorted > 1 or (unsorted and not findings.refusal_contains(" is not sorted by time: ")):
        verb = "row that is" if unsorted == 1 else "rows that are"
        findings.problem("not_sorted", f"'{file}' has {unsorted} {verb} earlier than the row of their series before.")
    return {}


def _find_series_column(
    cells: pl.DataFrame, times: Timestamps, repeated: int, other_roles: Sequence[str]
) -> str | None:
    """Return the column within whose values the fewest rows repeat a time, if those are few; None without one."""
    remaining = {
        name: count_unordered(times, cells[name])[0]
        for name in cells.columns
        if name not in other_roles and _may_name_series(cells[name], repeated)
    }
    name = min(remaining, key=lambda each: remaining[each], default=None)
    # Some rows may be there twice, or in an hour that comes twice.
    return name if name is not None and remaining[name] <= _MAX_SHARE_OF_REPEATS * len(cells) else None


def _find_ordering_column(cells: pl.DataFrame, times: Timestamps, other_roles: Sequence[str]) -> str | None:
    """Return a column of text within whose values all rows are in order, as in one series after the other."""
    for name in cells.columns:
        column = cells[name]
        if name in other_roles or column.dtype != pl.String or column.null_count() or column.is_unique().any():
            continue
        if not column.cast(pl.Float64, strict=False).count() and count_unordered(times, column) == (0, 0):
            return name
    return None


def _may_name_series(column: pl.Series, repeated: int) -> bool:
    """Return True if a column contains text or integers, each more than once, and enough rows repeat a time.

    Parallel series share most of their times. A channel that merely differs in some repeated rows does not name series.

    Args:
        column: The column.
        repeated: Number of rows that repeat a time.
    """
    if column.null_count() or column.dtype.is_temporal() or column.dtype.is_float():
        return False
    if bool((column.cast(pl.Float64, strict=False).drop_nulls() % 1 != 0).any()):
        return False
    if repeated * _MAX_ROWS_PER_REPEATED_TIME < len(column):
        return False
    return column.n_unique() > 1 and not bool(column.is_unique().any())


def count_unordered(times: Timestamps, ids: pl.Series | None) -> tuple[int, int]:
    """Count the rows that repeat a time of their series, and those that are earlier than the previous row of it."""
    codes = np.zeros(len(times), np.int64)
    if ids is not None:
        codes = np.unique(ids.cast(pl.String).fill_null("").to_numpy().astype(str), return_inverse=True)[1]
    ticks = times.astype(np.int64)
    rows = np.argsort(codes, kind="stable")
    is_same_series = np.diff(codes[rows]) == 0
    unsorted = int((is_same_series & (np.diff(ticks[rows]) < 0)).sum())
    order = np.lexsort((ticks, codes))
    repeated = int(((np.diff(codes[order]) == 0) & (np.diff(ticks[order]) == 0)).sum())
    return repeated, unsorted
