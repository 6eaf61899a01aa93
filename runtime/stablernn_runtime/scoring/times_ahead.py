"""Times of the steps that forecasts are for, from the times of the steps before."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.calendar import advance, calendar_frequency, step_seconds
from stablernn_runtime.errors import InputError

if TYPE_CHECKING:
    import polars as pl

Array = NDArray[Any]

_TICKS = {"ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks of a second in each unit of polars."""


def times_ahead(times: pl.Series, steps: int, frequency: str | None) -> tuple[pl.Series, dict[int, str]]:
    """Return the times of the steps after each sequence.

    Args:
        times: The times of each sequence in ascending order, lists of dates, datetimes or integers.
        steps: Number of steps ahead.
        frequency: Frequency of the training data; None where their steps had no length of their own.

    Returns:
        The times, lists of ``steps`` datetimes or integers, null where a sequence has an error; and why a sequence has
        no times ahead, by its number.

    Raises:
        InputError: If the times are of another type.
    """
    import polars as pl

    inner = times.dtype.inner if isinstance(times.dtype, pl.List) else None
    if inner == pl.Date:
        times = times.cast(pl.List(pl.Datetime("us")))
        inner = pl.Datetime("us")
    if not isinstance(inner, pl.Datetime) and not (inner is not None and inner.is_integer()):
        raise InputError(
            f"The column '{times.name}' has values of the type {inner}, and a forecast goes on from dates, datetimes "
            "or integers. Convert it, or leave 'time_column' out and sort the table."
        )
    ticks = times.cast(pl.List(pl.Int64))
    changes = ticks.list.diff()
    # NaN for sequences of one step or none.
    smallest, largest, last = (
        values.cast(pl.Float64).to_numpy() for values in (changes.list.min(), changes.list.max(), ticks.list.last())
    )
    length: Array | None = None
    name = calendar_frequency(frequency) if isinstance(inner, pl.Datetime) else None
    seconds = None if name is None else step_seconds(name)
    if isinstance(inner, pl.Datetime) and seconds is not None:
        length = np.full(len(times), seconds * _TICKS[inner.time_unit])
    elif name is None:
        # Of a single integer, the next one.
        length = np.where(np.isnan(smallest), 1.0 if inner.is_integer() else np.nan, smallest)
    rows: list[Any] = [None] * len(times)
    errors: dict[int, str] = {}
    for number in np.flatnonzero(~np.isnan(last)):
        if length is None:
            assert name is not None
            rows[number] = _on_calendar(times[int(number)].to_list(), steps, name)
        elif np.isnan(length[number]):
            errors[int(number)] = "A single time does not say how long its steps are."
            continue
        elif np.isnan(smallest[number]) or smallest[number] == largest[number] == length[number]:
            rows[number] = int(ticks[int(number)][-1]) + int(length[number]) * np.arange(1, steps + 1)
        if rows[number] is None:
            errors[int(number)] = _irregular(times.name, name)
    if length is None:
        return pl.Series(times.name, rows, dtype=pl.List(inner)), errors
    values = [None if row is None else row.tolist() for row in rows]
    return pl.Series(times.name, values, dtype=pl.List(pl.Int64)).cast(pl.List(inner)), errors


def _on_calendar(times: list[datetime], steps: int, frequency: str) -> list[datetime] | None:
    """Return the times after some that lie on the calendar, None if they are not one step apart."""
    start = times[0].isoformat()
    if any(
        datetime.fromisoformat(advance(start, step, frequency)) != time for step, time in enumerate(times[1:], start=1)
    ):
        return None
    end = times[-1].isoformat()
    return [datetime.fromisoformat(advance(end, step, frequency)) for step in range(1, steps + 1)]


def _irregular(column: str, frequency: str | None) -> str:
    step = "one step" if frequency is None else f"one step of '{frequency}'"
    return f"Its times in '{column}' are not {step} apart. Fill the gaps with empty values."
