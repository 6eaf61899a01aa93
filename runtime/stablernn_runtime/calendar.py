"""Calendar steps: the time stamp that lies a number of steps after another.

Frequencies are written as KServe's time-series API writes them (``S``, ``minute``, ``M``, ...) or as pandas does
(``min``, ``B``, ``MS``, ``QE``, ``W-SUN``), with an optional count in front (``15min``).
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stablernn_registry.errors import did_you_mean
from stablernn_runtime.errors import InputError

_FIXED = {
    **dict.fromkeys(("S", "s", "second"), timedelta(seconds=1)),
    **dict.fromkeys(("T", "min", "minute"), timedelta(minutes=1)),
    **dict.fromkeys(("H", "h", "hour"), timedelta(hours=1)),
    **dict.fromkeys(("D", "day"), timedelta(days=1)),
    **dict.fromkeys(("W", "week"), timedelta(weeks=1)),
}
_BUSINESS = "B"
_Edge = Literal["none", "start", "end"]
# Months in a period, which edge of it the stamps lie on, and the month (0 = January) that the periods are counted from.
_CALENDAR: dict[str, tuple[int, _Edge, int]] = {
    **dict.fromkeys(("M", "month"), (1, "none", 0)),
    "MS": (1, "start", 0),
    "ME": (1, "end", 0),
    **dict.fromkeys(("Q", "quarter"), (3, "none", 0)),
    "QS": (3, "start", 0),
    "QE": (3, "end", 11),
    **dict.fromkeys(("Y", "year"), (12, "none", 0)),
    "YS": (12, "start", 0),
    "YE": (12, "end", 11),
}
_DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_YEARS = range(1678, 2262)
"""Those that nanoseconds since 1970 can hold, which is how data for training are read."""
# As for files of data: step numbers seldom reach 100,000,000, which as a Unix time in seconds is 1973-03-03.
_LEAST_UNIX, _LARGEST_UNIX = 100_000_000, 4_102_444_800
_UNIX_UNITS = {"seconds": 1, "milliseconds": 1000}
_WORD = re.compile(r"([1-9][0-9]{0,5})?([A-Za-z]+)(?:-([A-Z]{3}))?")


def check_frequency(frequency: str, trained: str | None = None) -> None:
    """Raise unless :func:`advance` knows ``frequency`` and its steps are as long as those of training.

    Args:
        frequency: What a request says.
        trained: What the model was trained on; None where that is not known.

    Raises:
        InputError: Naming the frequencies there are, or that of the model.
    """
    length = _length(frequency)
    if trained is not None and _is_known(trained) and length != _length(trained):
        raise InputError(
            f"The model was trained on steps of '{trained}', got the frequency '{frequency}'. Give the series in the "
            "model's steps, or leave frequency out."
        )


def spacing(asked: str | None, trained: str | None) -> str | None:
    """The frequency to count by: the one asked for, else that of training, whose months and years keep the day."""
    if asked is not None or trained is None:
        return asked
    return re.sub(r"^([0-9]*[MQY])S$", r"\1", trained)


def advance(start: str, steps: int, frequency: str) -> str:
    """The time stamp ``steps`` steps after ``start``.

    Months, quarters and years without an edge keep the day of the month, and a start on the last day stays on the last.
    With an edge (``MS``, ``QE``, ...) a start that lies off it is first moved back to it, as pandas does.

    Args:
        start: ISO 8601, such as ``2024-01-31`` or ``2024-01-31T06:00:00Z``.
        steps: 1 or more.
        frequency: See the module.

    Returns:
        ISO 8601 with a time of day, in the zone of ``start``.

    Raises:
        InputError: If ``start`` or ``frequency`` is not understood, or the result lies beyond the year 9999.
    """
    text = _after(start, steps, frequency).isoformat()
    return text.removesuffix("+00:00") + "Z" if start.endswith("Z") else text


def times(start: str, first: int, count: int, frequency: str) -> NDArray[np.float64]:
    """The times of ``count`` steps in seconds since 1970-01-01T00:00Z; what says no zone is UTC.

    Args:
        start: As in :func:`advance`.
        first: Steps from there to the first of those wanted, 0 or more.
        count: Steps wanted, 1 or more.
        frequency: See the module.

    Raises:
        InputError: As in :func:`advance`, or if one lies outside of the years that can be trained on.
    """
    ends = [_utc(_after(start, step, frequency)) for step in (first, first + count - 1)]
    if not all(moment.year in _YEARS for moment in ends):
        raise InputError(
            f"The calendar is computed for the years {_YEARS[0]} to {_YEARS[-1]}, the steps that start at '{start}' "
            "lie beyond them."
        )
    number, unit, _ = _parse(frequency)
    if unit in _FIXED:
        stamps = np.datetime64(ends[0], "us") + np.arange(count) * np.timedelta64(number * _FIXED[unit], "us")
    else:
        stamps = np.array([_utc(_after(start, first + step, frequency)) for step in range(count)], "datetime64[us]")
    return np.asarray(stamps.astype("datetime64[ns]").astype(np.int64) * 1e-9, dtype=np.float64)


def instant(text: str) -> float:
    """Seconds since 1970-01-01T00:00Z; what says no zone is UTC.

    Raises:
        ValueError: If ``text`` is not ISO 8601.
    """
    return (_utc(datetime.fromisoformat(text)) - datetime(1970, 1, 1)) / timedelta(seconds=1)


def unix_time(number: float) -> str | None:
    """A number that looks like a Unix time, in words: ``2023-11-14T22:13:20Z in Unix seconds``; None for others.

    Such are seconds and milliseconds from 1973-03-03 to the end of 2099.
    """
    for unit, parts in _UNIX_UNITS.items():
        if _LEAST_UNIX <= number / parts < _LARGEST_UNIX:
            moment = datetime.fromtimestamp(int(number // parts), UTC).replace(tzinfo=None)
            return f"'{moment.isoformat()}Z' in Unix {unit}"
    return None


def step_seconds(frequency: str) -> float | None:
    """The length of a step; None where steps differ in length, as those of months do."""
    length = _length(frequency)
    return length / timedelta(seconds=1) if isinstance(length, timedelta) else None


def countable(frequency: str | None) -> str | None:
    """The word to count a model's regular steps by; None where they do not lie on the calendar."""
    return spacing(None, frequency) if frequency is not None and _is_known(frequency) else None


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _after(start: str, steps: int, frequency: str) -> datetime:
    count, unit, anchor = _parse(frequency)
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as error:
        number = unix_time(float(start)) if start.isdecimal() else None
        hint = "" if number is None else f" It is {number}."
        raise InputError(
            f"The start_timestamp must be ISO 8601, such as '2024-01-31T06:00:00Z', got '{start}'.{hint}"
        ) from error
    try:
        if unit in _FIXED:
            if anchor is not None:
                moment -= timedelta(days=(moment.weekday() - _DAYS.index(anchor)) % 7)
            return moment + steps * count * _FIXED[unit]
        if unit == _BUSINESS:
            return _business_days(moment, steps * count)
        return _months(moment, steps * count, *_CALENDAR[unit], anchor)
    except (OverflowError, ValueError) as error:
        raise InputError(f"{steps} steps of '{frequency}' after '{start}' lie beyond the year 9999.") from error


def _parse(frequency: str) -> tuple[int, str, str | None]:
    """Count, unit and anchor of a frequency."""
    match = _WORD.fullmatch(frequency)
    known = (*_FIXED, _BUSINESS, *_CALENDAR)
    if match is None or match[2] not in known:
        raise InputError(
            f"Unknown frequency '{frequency}'.{did_you_mean(frequency, known)} It is one of {', '.join(known)}, "
            "with a count in front if need be ('15min')."
        )
    count, unit, anchor = int(match[1] or 1), match[2], match[3]
    anchors = _DAYS if unit == "W" else _MONTHS if unit in ("QS", "QE", "YS", "YE") else ()
    if anchor is not None and anchor not in anchors:
        allowed = f"one of {', '.join(anchors)}" if anchors else "nothing"
        raise InputError(f"The frequency '{frequency}' may have {allowed} after '{unit}-'.")
    return count, unit, anchor


def _is_known(frequency: str) -> bool:
    """Whether this is a frequency of the calendar; steps that are numbered, or shorter than a second, are not."""
    try:
        _parse(frequency)
    except InputError:
        return False
    return True


def _length(frequency: str) -> timedelta | int | tuple[str, int]:
    """How long a step is: a time, a number of months, or business days."""
    count, unit, _ = _parse(frequency)
    if unit in _FIXED:
        return count * _FIXED[unit]
    return ("business days", count) if unit == _BUSINESS else count * _CALENDAR[unit][0]


def _business_days(moment: datetime, steps: int) -> datetime:
    """So many days from Monday to Friday later; a weekend counts as the Friday before it."""
    day = min(moment.weekday(), 4)
    weeks, following = divmod(day + steps, 5)
    return moment + timedelta(weeks=weeks, days=following - moment.weekday())


def _months(moment: datetime, steps: int, months: int, edge: _Edge, first: int, anchor: str | None) -> datetime:
    """``steps`` periods of ``months`` months after ``moment``."""
    index = moment.year * 12 + moment.month - 1
    is_last_day = moment.day == monthrange(moment.year, moment.month)[1]
    if edge != "none":
        if edge == "end" and not is_last_day:
            index -= 1
        index -= (index - (_MONTHS.index(anchor) if anchor else first)) % months
    year, month = divmod(index + steps * months, 12)
    last = monthrange(year, month + 1)[1]
    if edge == "start":
        day = 1
    elif edge == "end" or is_last_day:
        day = last
    else:
        day = min(moment.day, last)
    return moment.replace(year=year, month=month + 1, day=day)
