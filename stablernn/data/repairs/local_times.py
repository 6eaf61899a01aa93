"""``timezone``: local times of a named zone become instants in UTC; days of its calendar stay, or become, days.

When clocks go back, an hour of local times comes twice: of the rows of one series with the same local time the first
half, in the order of the file, is taken for the first pass. When clocks go forward, an hour does not exist: rows in it
are refused, since they show that the times are not those of the zone.
"""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Int64Array, Timestamps
from stablernn.data.messages import format_timestamp
from stablernn.data.types import Notes
from stablernn.terms import terms

#: Zones whose changes of clocks are looked for in repeated times; most others change at the same times as one of these.
_USUAL_ZONES = (
    *("Europe/Berlin", "Europe/London", "Europe/Helsinki", "America/New_York", "Australia/Sydney"),
    *("Pacific/Auckland", "Asia/Jerusalem", "Africa/Cairo", "America/Santiago", "America/Havana"),
)
# Zones whose days are looked for in instants: those of other offsets and other changes, too.
_DAY_ZONES = (
    *_USUAL_ZONES,
    *("America/Chicago", "America/Denver", "America/Los_Angeles", "America/Anchorage", "America/Halifax"),
    *("America/St_Johns", "America/Sao_Paulo", "America/Asuncion", "America/Mexico_City", "Atlantic/Azores"),
    *("Australia/Adelaide", "Australia/Lord_Howe", "Asia/Tehran", "Asia/Beirut", "Asia/Amman", "Asia/Damascus"),
)
_HOUR_NS = 3_600_000_000_000
_LARGEST_FIXED_OFFSET = 12
# Shares of times that come twice, in repeated hours and elsewhere, where clocks are the reason.
_MIN_SHARE_IN_HOUR, _MAX_SHARE_ELSEWHERE = 0.9, 0.5


class LocalTimes(NamedTuple):
    """Converted times.

    Attributes:
        ds: Instants in UTC.
        notes: Counts of rows that were converted, and of repeated and skipped hours.
    """

    ds: Timestamps
    notes: Notes


@dataclass(frozen=True)
class SkippedTime:
    """A local time that does not exist.

    Attributes:
        index: Its row.
        message: The reason, as the end of a sentence about the row, with advice.
        settings: Settings that may be right instead.
    """

    index: int
    message: str
    settings: Notes


def check_timezone(name: str) -> None:
    """Raise unless there is a time zone of this name.

    Raises:
        UnknownNameError: With the closest one.
    """
    try:
        pl.Series([0], dtype=pl.Datetime("us")).dt.replace_time_zone(name)
    except pl.exceptions.PolarsError:
        hint = "Names are those of the IANA database, such as Europe/Berlin, America/New_York or UTC."
        raise errors.unknown("time zone", name, sorted(zoneinfo.available_timezones()), hint) from None


def are_days(local: Timestamps) -> bool:
    """Return True if there are several times, all at one time of the day: days of the calendar, of unequal length."""
    ticks = _ticks(local)
    return bool((ticks != ticks[0]).any()) and bool((ticks % (24 * _HOUR_NS) == ticks[0] % (24 * _HOUR_NS)).all())


def find_skipped_time(local: Timestamps, zone: str) -> SkippedTime | None:
    """Return the first local time that does not exist in a zone; None if all do."""
    skipped = _localize(local, zone, "earliest").is_null()
    if not skipped.any():
        return None
    index = int(np.argmax(skipped.to_numpy()))
    # The zone that keeps the time of the day before all year.
    before = (_ticks(local[index : index + 1]) - 24 * _HOUR_NS).view("datetime64[ns]")
    hours, remainder = divmod(
        int((_ticks(before) - _ticks(to_instants(_localize(before, zone, "earliest"))))[0]), _HOUR_NS
    )
    advice, settings = "Set data.timezone to the zone in which the times were recorded.", Notes()
    if not remainder and abs(hours) <= _LARGEST_FIXED_OFFSET:
        # The sign of these zones is that of POSIX.
        fixed = f"Etc/GMT{-hours:+d}" if hours else "UTC"
        advice = f"If clocks were never changed, {terms().set('data.timezone', fixed)}; else correct the times."
        settings = {"timezone": fixed}
    message = f"{format_timestamp(local[index])} does not exist in {zone}, where clocks went forward over it. {advice}"
    return SkippedTime(index, message, settings)


def convert_to_utc(local: Timestamps, ends: Int64Array, zone: str) -> LocalTimes:
    """Convert the local times of series, all of which exist.

    Args:
        local: datetime64[ns], the rows of each series together, in the order of the file.
        ends: End of each series.
        zone: Name of the zone.
    """
    first = to_instants(_localize(local, zone, "earliest"))
    last = to_instants(_localize(local, zone, "latest"))
    ds, repeated, once = first.copy(), np.flatnonzero(first != last), 0
    if len(repeated):
        position, count = _occurrences(local, ends, repeated)
        is_second_pass = position >= (count + 1) // 2
        ds[repeated[is_second_pass]] = last[repeated[is_second_pass]]
        once = int((count == 1).sum())
    goes_forward = np.diff(_ticks(local) - _ticks(ds)) > 0
    goes_forward[ends[:-1] - 1] = False
    notes: Notes = {
        "local_times_converted": len(ds),
        "repeated_hour_rows": len(repeated),
        "repeated_hour_once": once,
        "skipped_hours": int(goes_forward.sum()),
        "local_zone": zone,
    }
    return LocalTimes(ds, notes)


def to_local(instants: Timestamps, zone: str) -> Timestamps:
    """Return instants in UTC as local times, datetime64[ns]."""
    text = pl.Series(instants.astype("datetime64[us]")).dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return np.asarray(text.dt.replace_time_zone(None).to_numpy().astype("datetime64[ns]"))


def to_days(instants: Timestamps, zone: str) -> Timestamps | None:
    """Return instants as the days of a zone, datetime64[ns], if all are of one time of its day; None for others.

    A day whose midnight is skipped begins when clocks have gone forward.
    """
    local = to_local(instants, zone)
    if are_days(local):
        return local
    midnight = np.asarray(local.astype("datetime64[D]").astype("datetime64[ns]"))
    is_late = _localize(midnight, zone, "earliest").is_null().to_numpy() & (
        _ticks(local) - _ticks(midnight) <= _HOUR_NS
    )
    days = np.where(is_late, midnight, local)
    return days if are_days(days) else None


def suggest_day_zone(instants: Timestamps) -> str | None:
    """Return a zone in which instants, a day or more apart, are midnights, or of one time of the day.

    None where they are so in UTC, or in no zone.
    """
    if len(instants) < 2 or np.median(np.diff(_ticks(instants))) < 23 * _HOUR_NS or are_days(instants):
        return None
    days = {zone: local for zone in _DAY_ZONES if (local := to_days(instants, zone)) is not None}
    midnights = (zone for zone, local in days.items() if not _ticks(local[:1]) % (24 * _HOUR_NS))
    return next(midnights, next(iter(days), None))


def suggest_timezone(local: Timestamps, ends: Int64Array) -> str | None:
    """Return a zone whose clocks explain repeated times; None if there is none.

    In its repeated hours nearly all times come twice, elsewhere most do not, as they do where several series have no
    names, and no time is in an hour that is skipped.
    """
    is_twice = _occurrences(local, ends, np.arange(len(local)))[1] >= 2
    for zone in _USUAL_ZONES:
        first = _localize(local, zone, "earliest")
        if first.is_null().any():
            continue
        is_repeated = to_instants(first) != to_instants(_localize(local, zone, "latest"))
        if not is_repeated.any() or is_repeated.all():
            continue
        if is_twice[is_repeated].mean() > _MIN_SHARE_IN_HOUR and is_twice[~is_repeated].mean() < _MAX_SHARE_ELSEWHERE:
            return zone
    return None


def _localize(local: Timestamps, zone: str, ambiguous: str) -> pl.Series:
    times = pl.Series(local.astype("datetime64[us]"))
    return times.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")  # type: ignore[arg-type]


def to_instants(times: pl.Series) -> npt.NDArray[np.datetime64]:
    """Return times with a zone as datetime64[ns] in UTC."""
    utc = times.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return np.asarray(utc.to_numpy().astype("datetime64[ns]"))


def _ticks(times: Timestamps) -> Int64Array:
    """Return times in nanoseconds."""
    return cast(Int64Array, times.astype("datetime64[ns]").astype(np.int64))


def _occurrences(local: Timestamps, ends: Int64Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return, for each of these rows, its number among those of its series and time, and how many those are."""
    series = np.searchsorted(ends, rows, side="right")
    frame = pl.DataFrame({"series": series, "time": local[rows].astype(np.int64)})
    occurrences = frame.select(
        position=pl.int_range(pl.len()).over("series", "time"), count=pl.len().over("series", "time").cast(pl.Int64)
    )
    return occurrences["position"].to_numpy(), occurrences["count"].to_numpy()
