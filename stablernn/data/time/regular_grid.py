"""Puts the rows of series on one time grid: a missing row becomes a step without values, and is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stablernn import errors
from stablernn.data.messages import stamp_text
from stablernn.data.time.frequency import Frequency, covers, infer_frequency, parse_frequency
from stablernn.data.types import Notes, Series

# A given frequency may leave far more gaps than an inferred one, but a grid of seconds for monthly rows is a mistake.
_MOST_STEPS_PER_ROW = 100


def to_grid(
    name: str, series: Sequence[Series], frequency: str | None
) -> tuple[tuple[Series, ...], Frequency | None, Notes]:
    """The series with a row for every step of their grid.

    Args:
        name: The file's name, for messages.
        series: As they stand in the file, time stamps ascending.
        frequency: Word of the grid; inferred when omitted.

    Returns:
        The series, the grid (None when the time stamps are irregular: then rows are steps), and counts of steps filled
        and of intervals that differ from the most frequent one.

    Raises:
        UnknownNameError: If the word names no frequency.
        DataError: If a series is not on the grid, or series are on different ones.
    """
    grid = _given(name, series, frequency) if frequency is not None else _common(name, series)
    if grid is None:
        return tuple(series), None, {"gap_steps_filled": 0, "irregular_intervals": sum(map(_irregular, series))}
    filled = tuple(_fill(grid, one) for one in series)
    added = sum(len(after.ds) - len(before.ds) for after, before in zip(filled, series, strict=True))
    return filled, grid, {"gap_steps_filled": added, "irregular_intervals": 0}


def _given(name: str, series: Sequence[Series], word: str) -> Frequency:
    grid = parse_frequency(word)
    for one in series:
        if (grid.kind == "index") != (one.ds.dtype.kind != "M"):
            held = "dates" if one.ds.dtype.kind == "M" else "integers"
            raise errors.DataError(f"'{name}' has {held} as time stamps, which frequency '{word}' cannot step through.")
        positions = grid.positions(one.ds)
        if positions is None:
            raise errors.DataError(
                f"'{name}': series '{one.unique_id}', which begins at {stamp_text(one.ds[0])}, "
                f"is not in steps of frequency '{word}'."
            )
        if int(positions[-1]) >= _MOST_STEPS_PER_ROW * len(one.ds):
            raise errors.DataError(
                f"'{name}': frequency '{word}' would turn the {len(one.ds)} rows of series '{one.unique_id}' into "
                f"{int(positions[-1]) + 1} steps. Give the frequency of the data."
            )
    return grid


def _common(name: str, series: Sequence[Series]) -> Frequency | None:
    """The grid of most series, which the others must share."""
    found = {one.unique_id: infer_frequency(one.ds) for one in series if len(one.ds) > 1}
    if not found:
        return None
    grid = Counter(found.values()).most_common(1)[0][0]
    for one in series:
        if len(one.ds) < 2 or found[one.unique_id] == grid:
            continue
        if grid is None or not covers(grid, one.ds):
            mine, usual = (f"'{g.word}'" if g else "irregular" for g in (found[one.unique_id], grid))
            raise errors.DataError(
                f"'{name}' mixes frequencies: series '{one.unique_id}' is {mine}, most are {usual}. "
                "Split the file by frequency, or give the frequency that all of them share."
            )
    return grid


def _fill(grid: Frequency, one: Series) -> Series:
    positions = grid.positions(one.ds)
    if positions is None:
        raise AssertionError(f"series {one.unique_id} passed the check of its grid")
    steps = int(positions[-1]) + 1
    if steps == len(one.ds):
        return one
    values = np.full((steps, one.values.shape[1]), np.nan, dtype=np.float32)
    values[positions] = one.values
    return replace(one, ds=grid.at(one.ds[0], np.arange(steps, dtype=np.int64)), values=values)


def _irregular(one: Series) -> int:
    steps = np.diff(one.ds).astype(np.int64)
    return int(len(steps) - np.unique(steps, return_counts=True)[1].max()) if len(steps) else 0
