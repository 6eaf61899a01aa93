"""Times of the steps that forecasts are for, from the times of the steps before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stablernn_runtime.calendar import advance, calendar_frequency, step_seconds
from stablernn_runtime.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_TICKS = {"ms": 10**3, "us": 10**6, "ns": 10**9}
"""Ticks of a second in each unit of polars."""
_YEAR_10000 = 253_402_300_800
"""Seconds from 1970 to the first year that Python's datetimes do not have."""
_DAY = 86_400.0
_BEYOND = "The times of its forecast lie beyond the last one that the column can hold."


class _NoTimesError(Exception):
    """Why a sequence has no times ahead."""


def times_ahead(
    times: pl.Series, steps: int, frequency: str | None, day_zone: str | None = None
) -> tuple[pl.Series, dict[int, str]]:
    """Return the times of the steps after each sequence.

    Args:
        times: The times of each sequence in ascending order, lists of dates, datetimes or integers.
        steps: Number of steps ahead.
        frequency: Frequency of the training data; None where their steps had no length of their own.
        day_zone: Zone whose days the steps are; None: that of the column.

    Returns:
        The times, lists of ``steps`` datetimes or integers, null where a sequence has an error or no times; and why a
        sequence has no times ahead, by its number.

    Raises:
        InputError: If the times are of another type.
    """
    import polars as pl

    inner = times.dtype.inner if isinstance(times.dtype, pl.List) else None
    if inner == pl.Date:
        inner = pl.Datetime("us")
    elif inner is not None and (inner.is_integer() or (inner == pl.Null and not len(times))):
        inner = pl.Int64()
    elif not isinstance(inner, pl.Datetime):
        raise InputError(
            f"The column '{times.name}' has values of the type {inner}, and a forecast goes on from dates, datetimes "
            "or integers. Convert it, or leave 'time_column' out and sort the table."
        )
    times = times.cast(pl.List(inner))
    if not isinstance(inner, pl.Datetime):
        # Of a single integer, the next ones.
        return _continue(times, lambda ticks: _in_equal_steps(ticks, steps, 2**63, None, alone=1))
    name = calendar_frequency(frequency)
    seconds = None if name is None else step_seconds(name)
    zone = inner.time_zone
    if zone is not None and name is not None and (seconds is None or seconds >= _DAY):
        # Days and longer steps are those of the calendar: they go on at the same time of day when clocks change.
        day_zone = day_zone or zone
        local = times.list.eval(_local_days(pl.element(), day_zone))
        ahead, errors = times_ahead(local, steps, frequency)
        return ahead.list.eval(_instants(pl.element(), day_zone).dt.convert_time_zone(zone)), errors
    if name is not None and seconds is None:
        return _continue(times, lambda part: _on_calendar(tuple(part), steps, name), is_calendar=True)
    ticks_of_second = _TICKS[inner.time_unit]
    limit = min(_YEAR_10000 * ticks_of_second, 2**63)
    length = None if seconds is None else round(seconds * ticks_of_second)
    return _continue(times, lambda ticks: _in_equal_steps(ticks, steps, limit, length, name=name))


def _local_days(instants: pl.Expr, zone: str) -> pl.Expr:
    """Return instants as local times: midnights, if all of them are, of which a skipped one begins its day later."""
    import polars as pl

    local = instants.dt.convert_time_zone(zone).dt.replace_time_zone(None)
    midnight = local.dt.truncate("1d")
    begins = _instants(midnight, zone).dt.replace_time_zone(None)
    return pl.when((local == begins).all()).then(midnight).otherwise(local)


def _instants(local: pl.Expr, zone: str) -> pl.Expr:
    """Return local times as instants: of those that come twice the first, after a midnight that is skipped the next."""
    first, later = (
        time.dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        for time in (local, local.dt.offset_by("1h"))
    )
    return first.fill_null(later)


def _continue(
    times: pl.Series, continuation: Callable[[list[Any]], list[Any]], *, is_calendar: bool = False
) -> tuple[pl.Series, dict[int, str]]:
    """Return the continuation of each sequence, a function of its times or their ticks, and the errors."""
    import polars as pl

    parts = times.to_list() if is_calendar else times.cast(pl.List(pl.Int64)).to_list()
    rows: list[list[Any] | None] = []
    errors: dict[int, str] = {}
    for number, part in enumerate(parts):
        try:
            rows.append(continuation(part) if part else None)
        except _NoTimesError as error:
            rows.append(None)
            errors[number] = str(error)
    values = pl.Series(times.name, rows, dtype=times.dtype if is_calendar else pl.List(pl.Int64))
    return values.cast(times.dtype), errors


def _in_equal_steps(
    ticks: Sequence[int],
    steps: int,
    limit: int,
    length: int | None,
    *,
    alone: int | None = None,
    name: str | None = None,
) -> list[int]:
    """Return the ticks after some that are equally far apart.

    Args:
        ticks: One or more.
        steps: Number of steps ahead.
        limit: What all of them must be below.
        length: Ticks of a step; None to take what they are apart.
        alone: Ticks of a step that nothing else says.
        name: Frequency whose steps these are, for an error.

    Raises:
        _NoTimesError: If there are none.
    """
    change = length or alone
    if len(ticks) > 1:
        changes = np.diff(np.array(ticks))
        change = int(changes[0])
        if (changes != change).any() or length not in (None, change):
            raise _irregular(name)
    if change is None:
        raise _NoTimesError("A single time does not say how long its steps are.")
    if ticks[-1] + steps * change >= limit:
        raise _NoTimesError(_BEYOND)
    return list(range(ticks[-1] + change, ticks[-1] + steps * change + 1, change))


# Many series have the same times.
@lru_cache(maxsize=1024)
def _on_calendar(times: tuple[datetime, ...], steps: int, frequency: str) -> list[datetime]:
    """Return the times after some that lie on the calendar.

    Raises:
        _NoTimesError: If there are none.
    """
    start, end = times[0].isoformat(), times[-1].isoformat()
    for step, time in enumerate(times[1:], start=1):
        if datetime.fromisoformat(advance(start, step, frequency)) != time:
            raise _irregular(frequency)
    try:
        return [datetime.fromisoformat(advance(end, step, frequency)) for step in range(1, steps + 1)]
    except InputError:
        raise _NoTimesError(_BEYOND) from None


def _irregular(frequency: str | None) -> _NoTimesError:
    step = "one step" if frequency is None else f"one step of '{frequency}'"
    return _NoTimesError(f"Its times are not {step} apart. Fill the gaps with empty values.")
