"""Series on one time grid: a missing row becomes a step without values, and is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Int64Array, Timestamps
from stablernn.data.messages import format_timestamp
from stablernn.data.stacked_series import StackedSeries
from stablernn.data.time.frequency import (
    Frequency,
    coarsest_frequency,
    covers,
    infer_frequency,
    parse_frequency,
)
from stablernn.data.types import Notes, Series
from stablernn.terms import terms

_Result = TypeVar("_Result")

# A configured frequency may leave far more gaps than an inferred one; a grid of seconds for monthly rows is a mistake.
_MAX_STEPS_PER_ROW = 100
# Timestamps that are copied to be compared.
_MAX_COPIED_BYTES = 1 << 16


def align_to_grid(
    name: str, series: Sequence[Series], frequency: str | None
) -> tuple[Sequence[Series], Frequency | None, Notes]:
    """Return the series with a row for every step of their grid.

    Args:
        name: The file's name, for messages.
        series: The rows of the file, timestamps ascending.
        frequency: Frequency alias of the grid; inferred when omitted.

    Returns:
        The series, the grid (None when the timestamps are irregular: then rows are steps), and counts of steps filled
        and of intervals that differ from the most frequent one.

    Raises:
        UnknownNameError: If there is no such frequency alias.
        DataError: If a series is not on the grid, or series are on different ones.
    """
    have_equal_stamps = isinstance(series, StackedSeries) and series.have_equal_stamps
    # What holds for one of them then holds for all.
    checked = series[:1] if have_equal_stamps else series
    if frequency is None:
        grid = _infer_common_grid(name, checked)
    else:
        grid = _parse_grid(name, checked, frequency)
        if _find_off_grid(name, checked, grid):
            errors.raise_for_series(_find_off_grid(name, series, grid))
    if grid is None:
        return series, None, {"gap_steps_filled": 0, "irregular_intervals": sum(map(_count_irregular, series))}
    positions_of = _for_equal_stamps(grid.positions)
    if have_equal_stamps and not _has_gaps(positions_of(series[0].ds)):
        return series, grid, {"gap_steps_filled": 0, "irregular_intervals": 0}
    filled = tuple(_fill_gaps(grid, each, positions_of(each.ds)) for each in series)
    added = sum(len(after.ds) - len(before.ds) for after, before in zip(filled, series, strict=True))
    return filled, grid, {"gap_steps_filled": added, "irregular_intervals": 0}


def _parse_grid(name: str, series: Sequence[Series], frequency: str) -> Frequency:
    grid = parse_frequency(frequency)
    has_dates = series[0].ds.dtype.kind == "M"
    if (grid.kind == "index") == has_dates:
        timestamps = "dates" if has_dates else "integers"
        raise errors.DataError(
            f"{terms().file(name)} has {timestamps} as timestamps, which frequency '{frequency}' cannot step through."
        )
    return grid


def _find_off_grid(name: str, series: Sequence[Series], grid: Frequency) -> dict[str, str]:
    """Return what is wrong with each series that is not on the grid, or has far too few rows for it."""
    positions_of = _for_equal_stamps(grid.positions)
    faulty = {}
    for each in series:
        positions = positions_of(each.ds)
        if positions is None:
            inferred = infer_frequency(each.ds)
            faulty[each.unique_id] = (
                f"{terms().series_of(name, each.unique_id)}, which begins at {format_timestamp(each.ds[0])}, is not in "
                f"steps of frequency '{grid.alias}'" + ("." if inferred is None else f" but of '{inferred.alias}'.")
            )
        elif int(positions[-1]) >= _MAX_STEPS_PER_ROW * len(each.ds):
            faulty[each.unique_id] = (
                f"{terms().file(name)}: frequency '{grid.alias}' would turn the {len(each.ds)} rows of "
                f"{terms().series(name, each.unique_id)} into {int(positions[-1]) + 1} steps. Give the frequency of "
                "the data."
            )
    return faulty


def _infer_common_grid(name: str, series: Sequence[Series]) -> Frequency | None:
    """Return the grid of most series, which the others must share."""
    # One row has no step, and fits any grid.
    infer = _for_equal_stamps(infer_frequency)
    grids = {each.unique_id: infer(each.ds) for each in series if len(each.ds) > 1}
    if not grids:
        return None
    first = next(iter(grids.values()))
    if all(grid is first for grid in grids.values()):
        return first
    grid = Counter(grids.values()).most_common(1)[0][0]
    others = [
        each.unique_id
        for each in series
        if len(each.ds) > 1 and grids[each.unique_id] != grid and (grid is None or not covers(grid, each.ds))
    ]
    if others:
        coarsest = coarsest_frequency(list(grids.values()))
        key = "data.resample"
        resample = terms().key(key) if coarsest is None else terms().setting(key, coarsest.alias)

        def describe(series_name: str) -> str:
            other, usual = (f"'{g.alias}'" if g else "irregular" for g in (grids[series_name], grid))
            return (
                f"{terms().file(name)} mixes frequencies: {terms().series(name, series_name)} is {other}, most are "
                f"{usual}. Split {terms().source} by frequency, give the frequency that all of them share, or "
                f"aggregate their rows to the longest step with {resample}, to their mean, or with "
                f"{terms().setting('data.aggregate', 'sum')} to their sum."
            )

        raise errors.DataError(
            describe(others[0]),
            settings=None if coarsest is None else {"resample": coarsest.alias},
            series={series_name: describe(series_name) for series_name in others},
        )
    return grid


def _for_equal_stamps(function: Callable[[Timestamps], _Result]) -> Callable[[Timestamps], _Result]:
    """Return a function that computes once what holds for several series in a row with the same stamps."""
    last: tuple[Timestamps, bytes, _Result] | None = None

    def remembered(ds: Timestamps) -> _Result:
        nonlocal last
        # Comparing bytes is much faster than np.array_equal, which counts for many short series; of long ones, which
        # may be mapped from a file on disk, it would take a copy.
        content = ds.tobytes() if ds.nbytes <= _MAX_COPIED_BYTES else b""
        if (
            last is None
            or last[1] != content
            or last[0].dtype != ds.dtype
            or not (content or np.array_equal(ds, last[0]))
        ):
            last = (ds, content, function(ds))
        return last[2]

    return remembered


def _has_gaps(positions: Int64Array | None) -> bool:
    if positions is None:
        raise AssertionError("series that passed the check of their grid are on it")
    return int(positions[-1]) + 1 != len(positions)


def _fill_gaps(grid: Frequency, series: Series, positions: Int64Array | None) -> Series:
    if positions is None or not _has_gaps(positions):
        # Nothing to fill: values that are mapped from a file on disk are not copied.
        return series
    steps = int(positions[-1]) + 1
    values = np.full((steps, series.values.shape[1]), np.nan, dtype=np.float32)
    values[positions] = series.values
    return replace(series, ds=grid.at(series.ds[0], np.arange(steps, dtype=np.int64)), values=values)


def _count_irregular(series: Series) -> int:
    """Count the intervals that differ from the most frequent one."""
    steps = np.diff(series.ds).astype(np.int64)
    return int(len(steps) - np.unique(steps, return_counts=True)[1].max()) if len(steps) else 0
