"""Calendar steps: the timestamp that lies a number of steps after another.

Frequencies are written as KServe's time-series API writes them (``S``, ``minute``, ``M``, ...) or as pandas does
(``min``, ``B``, ``MS``, ``BME``, ``QE-NOV``, ``W-SUN``), with an optional count in front (``15min``). ``MS-30`` is the
30th of a month, or the last day of a shorter one.
"""

from __future__ import annotations

import re
from calendar import monthrange
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import ManifestFields
from stablernn_registry.errors import did_you_mean
from stablernn_runtime.errors import InputError

_FIXED = {
    **dict.fromkeys(("S", "s", "second"), timedelta(seconds=1)),
    **dict.fromkeys(("T", "min", "minute"), timedelta(minutes=1)),
    **dict.fromkeys(("H", "h", "hour"), timedelta(hours=1)),
    **dict.fromkeys(("D", "day"), timedelta(days=1)),
    **dict.fromkeys(("W", "week"), timedelta(weeks=1)),
}
_DAY_SECONDS = 86_400
_BUSINESS = "B"
_Edge = Literal["none", "start", "end", "business start", "business end"]
# Months in a period, its edge that timestamps lie on, and the month (0 = January) that periods are counted from.
_CALENDAR: dict[str, tuple[int, _Edge, int]] = {
    **dict.fromkeys(("M", "month"), (1, "none", 0)),
    "MS": (1, "start", 0),
    "ME": (1, "end", 0),
    "BMS": (1, "business start", 0),
    "BME": (1, "business end", 0),
    **dict.fromkeys(("Q", "quarter"), (3, "none", 0)),
    "QS": (3, "start", 0),
    "QE": (3, "end", 11),
    "BQS": (3, "business start", 0),
    "BQE": (3, "business end", 11),
    **dict.fromkeys(("Y", "year"), (12, "none", 0)),
    "YS": (12, "start", 0),
    "YE": (12, "end", 11),
    "BYS": (12, "business start", 0),
    "BYE": (12, "business end", 11),
}
_DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_YEARS = range(1678, 2262)
"""Years that nanoseconds since 1970 can hold, which is how data for training are read."""
# As for files of data: step numbers seldom reach 100,000,000, which as a Unix time in seconds is 1973-03-03.
_MIN_UNIX_SECONDS, _MAX_UNIX_SECONDS = 100_000_000, 4_102_444_800
_UNIX_UNITS = {"seconds": 1, "milliseconds": 1000}
_PATTERN = re.compile(r"([1-9][0-9]{0,5})?([A-Za-z]+)(?:-([A-Z]{3}|[1-9][0-9]?))?")


def check_frequency(frequency: str, trained: str | None = None) -> None:
    """Raise unless :func:`advance` knows ``frequency`` and its steps are as long as those of training.

    Args:
        frequency: Frequency of a request.
        trained: Frequency of the data that the model was trained on; None where it is not known.

    Raises:
        InputError: If it is unknown, or its steps are longer or shorter than the model's.
    """
    length = _step_length(frequency)
    if trained is not None and _is_calendar_frequency(trained) and length != _step_length(trained):
        raise InputError(
            f"The model was trained on steps of '{trained}', got the frequency '{frequency}'. Give the series in the "
            "model's steps, or leave frequency out."
        )


def step_frequency(requested: str | None, trained: str | None) -> str | None:
    """Return the frequency to count steps by: that of a request, else that of training.

    The months, quarters and years of training (``MS``, ``QS``, ``YS``) lose their edge, and so keep the day.
    """
    if requested is not None or trained is None:
        return requested
    return re.sub(r"^([0-9]*[MQY])S(-[A-Z]{3})?$", r"\1", trained)


class DataZone(NamedTuple):
    """The zone of the times without one in the data of a model.

    Attributes:
        name: Such as ``Europe/Berlin``.
        has_days: Whether steps are days there, or longer, which keep their local times; parts of a day lie in UTC.
    """

    name: str
    has_days: bool


def data_zone(manifest: ManifestFields) -> DataZone | None:
    """Return the zone of the times without one in the data of a model; None where they are of no zone."""
    # Publishers may write anything there.
    repairs = manifest.preprocessing.get("repairs")
    zone = repairs.get("timezone") if isinstance(repairs, dict) else None
    frequency = calendar_frequency(manifest.frequency)
    seconds = None if frequency is None else step_seconds(frequency)
    is_part_of_day = frequency is None or (seconds is not None and seconds % _DAY_SECONDS != 0)
    return DataZone(zone, not is_part_of_day) if isinstance(zone, str) else None


def as_in_data(text: str, zone: DataZone | None) -> str:
    """Return a time as the data of a model have it: local days without a zone, or parts of a day in UTC.

    Args:
        text: Any text; what is no time is returned as it is.
        zone: From :func:`data_zone`.

    Raises:
        InputError: If this machine does not know the zone, the year there is none, or a local time is no single
            instant, as clocks change.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    if zone is None or (moment.tzinfo is None) == zone.has_days:
        return text
    local_zone = _zone_info(zone.name)
    if not zone.has_days:
        instant, other = (_in_zone(moment.replace(tzinfo=local_zone, fold=fold), UTC) for fold in (0, 1))
        if instant != other:
            raise InputError(
                f"The time '{text}' is no single instant in '{zone.name}', where clocks change then; give its offset "
                f"from UTC, such as '{_in_zone(instant, local_zone).isoformat()}'."
            )
        return instant.isoformat().removesuffix("+00:00") + "Z"
    local = _in_zone(moment, local_zone).replace(tzinfo=None)
    midnight = datetime.combine(local, time())
    # A day whose midnight is skipped begins when clocks have gone forward.
    begins = _in_zone(_in_zone(midnight.replace(tzinfo=local_zone), UTC), local_zone).replace(tzinfo=None)
    return (midnight if local == begins else local).isoformat()


def advance(start: str, steps: int, frequency: str, zone: DataZone | None = None) -> str:
    """Return the timestamp ``steps`` steps after ``start``.

    Months, quarters and years without an edge keep the day of the month, and a start on the last day stays on the last.
    With an edge (``MS``, ``QE``, ...) a start that lies off it is first moved back to it, as pandas does.

    Args:
        start: ISO 8601, such as ``2024-01-31`` or ``2024-01-31T06:00:00Z``.
        steps: 1 or more.
        frequency: As the module describes.
        zone: Zone of a start without one, and of the days that steps are; see :func:`data_zone`.

    Returns:
        ISO 8601 with a time of day, in the zone of ``start``; in UTC where that has none and steps lie in UTC.

    Raises:
        InputError: If ``start`` or ``frequency`` is not understood, or the result lies beyond the year 9999.
    """
    local = as_in_data(start, zone)
    moment = _add_steps(local, steps, frequency)
    if zone is not None and zone.has_days and local != start:
        moment = _in_zone(moment.replace(tzinfo=_zone_info(zone.name)), datetime.fromisoformat(start).tzinfo)
    text = moment.isoformat()
    # In the notation of the start.
    return text.removesuffix("+00:00") + "Z" if "Z" in (start[-1:], local[-1:]) else text


def step_times(start: str, first: int, count: int, frequency: str) -> NDArray[np.float64]:
    """Return the times of ``count`` steps in seconds since 1970-01-01T00:00Z; a start without a zone is in UTC.

    Args:
        start: As in :func:`advance`.
        first: Steps from ``start`` to the first of them, 0 or more.
        count: Number of steps, 1 or more.
        frequency: As the module describes.

    Returns:
        Shape ``(count,)``.

    Raises:
        InputError: As in :func:`advance`, or if one lies outside of the years that can be trained on.
    """
    ends = [_utc(_add_steps(start, step, frequency)) for step in (first, first + count - 1)]
    if not all(moment.year in _YEARS for moment in ends):
        raise InputError(
            f"The calendar is computed for the years {_YEARS[0]} to {_YEARS[-1]}, the steps that start at '{start}' "
            "lie beyond them."
        )
    number, unit, _ = _parse(frequency)
    if unit in _FIXED:
        # Steps of one length need no calendar.
        stamps = np.datetime64(ends[0], "us") + np.arange(count) * np.timedelta64(number * _FIXED[unit], "us")
    else:
        moments = [_utc(_add_steps(start, first + step, frequency)) for step in range(count)]
        stamps = np.array(moments, "datetime64[us]")
    # By nanoseconds, as data for training are read: the same time gives the same bits.
    return np.asarray(stamps.astype("datetime64[ns]").astype(np.int64) * 1e-9, dtype=np.float64)


def unix_seconds(text: str) -> float:
    """Return a timestamp as seconds since 1970-01-01T00:00Z; one without a zone is in UTC.

    Raises:
        ValueError: If ``text`` is not ISO 8601.
    """
    return (_utc(datetime.fromisoformat(text)) - datetime(1970, 1, 1)) / timedelta(seconds=1)


def describe_unix_time(number: float) -> str | None:
    """Return a number that looks like a Unix time as text, ``'2023-11-14T22:13:20Z' in Unix seconds``; None otherwise.

    Seconds and milliseconds from 1973-03-03 to the end of 2099 look like one.
    """
    for unit, parts in _UNIX_UNITS.items():
        if _MIN_UNIX_SECONDS <= number / parts < _MAX_UNIX_SECONDS:
            moment = datetime.fromtimestamp(int(number // parts), UTC).replace(tzinfo=None)
            return f"'{moment.isoformat()}Z' in Unix {unit}"
    return None


def step_seconds(frequency: str) -> float | None:
    """Return the length of a step; None where steps differ in length, as months do."""
    length = _step_length(frequency)
    return length / timedelta(seconds=1) if isinstance(length, timedelta) else None


def calendar_frequency(frequency: str | None) -> str | None:
    """Return the frequency to count a model's regular steps by; None where they do not lie on the calendar."""
    return step_frequency(None, frequency) if frequency is not None and _is_calendar_frequency(frequency) else None


def _zone_info(zone: str) -> ZoneInfo:
    try:
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(
            f"The model's data have times of '{zone}', a zone that this machine does not know. Install tzdata."
        ) from error


def _in_zone(moment: datetime, zone: tzinfo | None) -> datetime:
    try:
        return moment.astimezone(zone)
    except OverflowError as error:
        raise InputError(f"The time '{moment.isoformat()}' lies outside of the years 1 to 9999 in '{zone}'.") from error


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)


def _add_steps(start: str, steps: int, frequency: str) -> datetime:
    count, unit, anchor = _parse(frequency)
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as error:
        number = describe_unix_time(float(start)) if start.isdecimal() else None
        hint = "" if number is None else f" It is {number}."
        raise InputError(
            f"The start_timestamp must be ISO 8601, such as '2024-01-31T06:00:00Z', got '{start}'.{hint}"
        ) from error
    try:
        if unit in _FIXED:
            if anchor is not None:
                # Back to the day that weeks begin on.
                moment -= timedelta(days=(moment.weekday() - _DAYS.index(anchor)) % 7)
            return moment + steps * count * _FIXED[unit]
        if unit == _BUSINESS:
            return _add_business_days(moment, steps * count)
        months, edge, first = _CALENDAR[unit]
        if anchor in _MONTHS:
            first = _MONTHS.index(anchor)
        return _add_months(moment, steps * count, months, edge, first, int(anchor) if unit == "MS" and anchor else 1)
    except (OverflowError, ValueError) as error:
        raise InputError(f"{steps} steps of '{frequency}' after '{start}' lie beyond the year 9999.") from error


def _parse(frequency: str) -> tuple[int, str, str | None]:
    """Return the count, unit and anchor of a frequency.

    Raises:
        InputError: If it is unknown.
    """
    match = _PATTERN.fullmatch(frequency)
    units = (*_FIXED, _BUSINESS, *_CALENDAR)
    if match is None or match[2] not in units:
        raise InputError(
            f"Unknown frequency '{frequency}'.{did_you_mean(frequency, units)} It is one of {', '.join(units)}, "
            "with a count in front if need be ('15min')."
        )
    count, unit, anchor = int(match[1] or 1), match[2], match[3]
    anchors: tuple[str, ...] = _DAYS if unit == "W" else ()
    if unit == "MS":
        anchors = tuple(map(str, range(1, 32)))
    elif unit in _CALENDAR and _CALENDAR[unit][0] > 1 and _CALENDAR[unit][1] != "none":
        anchors = _MONTHS
    if anchor is not None and anchor not in anchors:
        allowed = f"one of {', '.join(anchors)}" if anchors else "nothing"
        raise InputError(f"The frequency '{frequency}' may have {allowed} after '{unit}-'.")
    return count, unit, anchor


def _is_calendar_frequency(frequency: str) -> bool:
    """Return whether steps lie on the calendar; those that are numbered, or shorter than a second, do not."""
    try:
        _parse(frequency)
    except InputError:
        return False
    return True


def _step_length(frequency: str) -> timedelta | int | tuple[str, int]:
    """Return the length of a step: a time, a number of months, or business days."""
    count, unit, _ = _parse(frequency)
    if unit in _FIXED:
        return count * _FIXED[unit]
    return ("business days", count) if unit == _BUSINESS else count * _CALENDAR[unit][0]


def _add_business_days(moment: datetime, steps: int) -> datetime:
    """Return the time ``steps`` days from Monday to Friday later; a weekend counts as the Friday before it."""
    day = min(moment.weekday(), 4)
    weeks, weekday = divmod(day + steps, 5)
    return moment + timedelta(weeks=weeks, days=weekday - moment.weekday())


def _add_months(moment: datetime, steps: int, months: int, edge: _Edge, first: int, day: int) -> datetime:
    """Return the time ``steps`` periods of ``months`` months after ``moment``.

    Args:
        moment: A time.
        steps: Number of periods.
        months: Months in each.
        edge: As in ``_CALENDAR``.
        first: As there.
        day: Day of the month that periods with the edge "start" begin on.
    """
    # Months since year 0.
    index = moment.year * 12 + moment.month - 1
    last = monthrange(moment.year, moment.month)[1]
    if edge == "none":
        day = 31 if moment.day == last else moment.day
    else:
        # Back to the edge: a month whose edge is yet to come is not over.
        index -= moment.day < _edge_day(index, edge, day)
        index -= (index - first) % months
    index += steps * months
    return moment.replace(year=index // 12, month=index % 12 + 1, day=_edge_day(index, edge, day))


def _edge_day(index: int, edge: _Edge, day: int) -> int:
    """Return the day of a month that is its edge, or ``day``, where there is one, for those that keep it."""
    weekday, last = monthrange(index // 12, index % 12 + 1)
    if edge == "business start":
        # Weekday of the first day, 5 and 6 for a weekend.
        return 1 + (7 - weekday if weekday > 4 else 0)
    if edge == "business end":
        return last - max(0, (weekday + last - 1) % 7 - 4)
    return last if edge == "end" else min(day, last)
