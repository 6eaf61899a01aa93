"""Time grids: the regular steps that a series' timestamps lie on, their gaps, and the timestamps that come next.

Frequency aliases are those of pandas: ``h``, ``15min``, ``D``, ``B`` (Monday to Friday), ``W-SAT``, ``MS`` (months,
same day), ``ME`` (month ends), ``QS``, ``QE``, ``YS``, ``YE``, with a number in front for multiples. A bare number is
the step of integer timestamps.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Int64Array, Timestamps

Kind = Literal["fixed", "business", "month", "month-end", "index"]

_DAY_NS = 86_400_000_000_000
_FIXED_NS = {
    "D": _DAY_NS,
    "h": 3_600_000_000_000,
    "min": 60_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_MONTHS: dict[str, tuple[Kind, int]] = {
    "MS": ("month", 1),
    "QS": ("month", 3),
    "YS": ("month", 12),
    "ME": ("month-end", 1),
    "QE": ("month-end", 3),
    "YE": ("month-end", 12),
}
_WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_ALIASES = (*_FIXED_NS, "B", "W", *_MONTHS)

#: Data with a smaller share of present steps do not follow a grid: random seconds also lie on a grid of seconds.
_MIN_COVERAGE = 0.5


@dataclass(frozen=True)
class Frequency:
    """A regular time grid.

    Attributes:
        alias: The frequency alias, see the module.
        kind: The unit in which steps are counted.
        step: Length of one step: nanoseconds, business days, months or integers.
    """

    alias: str
    kind: Kind
    step: int

    def has_steps_of(self, other: Frequency) -> bool:
        """Return True if steps are as long as those of another grid, wherever in a month theirs are."""
        unanchored = ("index", "fixed", "business")
        is_same_unit = self.kind == other.kind or (self.kind not in unanchored and other.kind not in unanchored)
        return is_same_unit and self.step == other.step

    def positions(self, ds: Timestamps) -> Int64Array | None:
        """Return the steps from the first timestamp to each of them; None when one is not on the grid."""
        if self.kind == "index":
            offsets = (ds - ds[0]).astype(np.int64)
        elif self.kind == "fixed":
            offsets = (ds - ds[0]).astype("timedelta64[ns]").astype(np.int64)
        elif self.kind == "business":
            days = ds.astype("datetime64[D]")
            if not np.is_busday(days).all() or len(np.unique(ds - days)) > 1:
                return None
            offsets = np.asarray(np.busday_count(days[0], days), dtype=np.int64)
        else:
            months, since_start, until_end = _split_months(ds)
            offset = since_start if self.kind == "month" else until_end
            # A month end is its last day, at any time of it: days until the end are counted without the time of day.
            if len(np.unique(offset)) > 1 or (self.kind == "month-end" and offset[0] != np.timedelta64(1, "D")):
                return None
            offsets = months - months[0]
        if (offsets % self.step).any():
            return None
        return np.asarray(offsets // self.step, dtype=np.int64)

    def at(self, origin: np.datetime64 | np.int64, positions: Int64Array) -> Timestamps:
        """Return the timestamps so many steps after ``origin``, which is on the grid."""
        offsets = positions * self.step
        if self.kind == "index":
            return np.asarray(np.int64(origin) + offsets, dtype=np.int64)
        start = np.array([origin]).astype("datetime64[ns]")
        if self.kind == "fixed":
            return np.asarray(start + offsets.astype("timedelta64[ns]"))
        if self.kind == "business":
            day = start.astype("datetime64[D]")
            return np.asarray(np.busday_offset(day, offsets).astype("datetime64[ns]") + (start - day))
        month = start.astype("datetime64[M]")
        first = (month + offsets).astype("datetime64[ns]")
        if self.kind == "month":
            return np.asarray(first + (start - month))
        # Month ends are counted back from the next month, which begins later the longer the month is.
        next_month = (month + 1).astype("datetime64[ns]")
        return np.asarray((month + offsets + 1).astype("datetime64[ns]") - (next_month - start))

    @property
    def season(self) -> int:
        """Steps of the most common season: a day, a working or whole week, a year; 1 when none fits."""
        if self.kind == "business":
            return 5 if self.step == 1 else 1
        if self.kind in ("month", "month-end"):
            return 12 // self.step if 12 % self.step == 0 else 1
        if self.kind == "fixed":
            if self.step == 7 * _DAY_NS:
                return 52
            if self.step == _DAY_NS:
                return 7
            if _FIXED_NS["min"] <= self.step < _DAY_NS and _DAY_NS % self.step == 0:
                return _DAY_NS // self.step
        return 1


def parse_frequency(alias: str) -> Frequency:
    """Return the grid of a frequency alias.

    Raises:
        UnknownNameError: If there is no such alias.
    """
    match = re.fullmatch(r"(\d*)([A-Za-z]*)(?:-([A-Z]{3}))?", alias)
    number, unit, anchor = match.groups() if match else ("", "", None)
    count = int(number or 1)
    if match and count:
        if number and not unit and not anchor:
            return Frequency(alias, "index", count)
        if unit == "W" and (anchor is None or anchor in _WEEKDAYS):
            return Frequency(alias, "fixed", count * 7 * _DAY_NS)
        if unit in _FIXED_NS and anchor is None:
            return Frequency(alias, "fixed", count * _FIXED_NS[unit])
        if unit == "B" and anchor is None:
            return Frequency(alias, "business", count)
        if unit in _MONTHS and anchor is None:
            kind, months = _MONTHS[unit]
            return Frequency(alias, kind, count * months)
    raise errors.unknown(
        "frequency", alias, _ALIASES, f"Known are {', '.join(_ALIASES)}, W-MON to W-SUN, and multiples as 15min."
    )


def is_part_of_days(frequency: Frequency) -> bool:
    """Return True if steps are seconds, minutes, hours or days, or multiples of them."""
    return re.fullmatch(r"\d*(s|min|h|D)", frequency.alias) is not None


def coarsest_frequency(frequencies: Collection[Frequency | None]) -> Frequency | None:
    """Return the frequency with the longest steps if they are multiples of those of all others; else None."""
    divisible = [frequency for frequency in frequencies if frequency is not None and is_part_of_days(frequency)]
    if not divisible or len(divisible) < len(frequencies):
        return None
    coarsest = max(divisible, key=lambda frequency: frequency.step)
    return None if any(coarsest.step % frequency.step for frequency in divisible) else coarsest


def infer_frequency(ds: Timestamps) -> Frequency | None:
    """Return the grid that ascending timestamps lie on, gaps allowed; None when they are irregular or fewer than two.

    The step is the most frequent difference. All timestamps must be multiples of it and fill at least half of the grid.
    """
    if len(ds) < 2:
        return None
    return next((frequency for frequency in _candidates(ds) if covers(frequency, ds)), None)


def covers(frequency: Frequency, ds: Timestamps) -> bool:
    """Return True if the timestamps lie on the grid and fill at least half of it."""
    positions = frequency.positions(ds)
    return positions is not None and len(ds) >= _MIN_COVERAGE * (int(positions[-1]) + 1)


def _candidates(ds: Timestamps) -> list[Frequency]:
    """Return grids with the most frequent step, the most specific first."""
    if ds.dtype.kind != "M":
        step = _mode(np.diff(ds).astype(np.int64))
        return [Frequency(str(step), "index", step)]
    step = _mode(np.diff(ds).astype("timedelta64[ns]").astype(np.int64))
    candidates: list[Frequency] = []
    if step >= 28 * _DAY_NS:
        candidates += _monthly(ds)
    # Five rows or fewer may be a daily series that has not reached a weekend yet.
    if step == _DAY_NS and _weekdays(ds).max() < 5 and len(ds) > 5:
        candidates.append(Frequency("B", "business", 1))
    return [*candidates, _fixed(step, ds)]


def _monthly(ds: Timestamps) -> list[Frequency]:
    months, since_start, _ = _split_months(ds)
    steps = np.diff(months)
    if (steps < 1).any():
        return []
    step = _mode(steps)
    ends = Frequency("", "month-end", step).positions(ds) is not None
    month = int(months[0]) % 12
    letter = "E" if ends else "S"
    unit, count = "M", step
    # Anchored quarters and years (QS-FEB) are written as multiples of months; these two are the plain ones.
    if step % 12 == 0 and month == (11 if ends else 0):
        unit, count = "Y", step // 12
    elif step == 3 and month % 3 == (2 if ends else 0):
        unit, count = "Q", 1
    elif not ends and since_start[0] > np.timedelta64(28, "D"):
        # Not every month has such a day.
        return []
    return [Frequency(f"{count if count > 1 else ''}{unit}{letter}", "month-end" if ends else "month", step)]


def _fixed(step: int, ds: Timestamps) -> Frequency:
    if step % (7 * _DAY_NS) == 0:
        weeks = step // (7 * _DAY_NS)
        return Frequency(f"{weeks if weeks > 1 else ''}W-{_WEEKDAYS[int(_weekdays(ds)[0])]}", "fixed", step)
    unit = next(unit for unit, size in _FIXED_NS.items() if step % size == 0)
    count = step // _FIXED_NS[unit]
    return Frequency(f"{count if count > 1 else ''}{unit}", "fixed", step)


def _mode(steps: npt.NDArray[np.int64]) -> int:
    # np.unique sorts, so of equally frequent steps the shortest wins.
    values, counts = np.unique(steps, return_counts=True)
    return int(values[np.argmax(counts)])


def _weekdays(ds: Timestamps) -> Int64Array:
    # 1970-01-01 was a Thursday, day 3 of a week that begins on Monday.
    return (ds.astype("datetime64[D]").astype(np.int64) + 3) % 7


def _split_months(ds: Timestamps) -> tuple[Int64Array, npt.NDArray[np.timedelta64], npt.NDArray[np.timedelta64]]:
    """Return the month number, the time since the month began, and days (without the time of day) until it ends."""
    month = ds.astype("datetime64[M]")
    since_start: npt.NDArray[np.timedelta64] = np.subtract(ds, month.astype("datetime64[ns]"))
    until_end = np.asarray((month + 1).astype("datetime64[ns]") - ds.astype("datetime64[D]").astype("datetime64[ns]"))
    return month.astype(np.int64), since_start, until_end
