"""Time grids: the regular steps that a series' timestamps lie on, their gaps, and the timestamps that come next.

Frequency aliases are those of pandas: ``h``, ``15min``, ``D``, ``B`` (Monday to Friday), ``W-SAT``, ``MS`` (months,
same day), ``ME`` (month ends), ``BMS`` and ``BME`` (first and last business day), ``QS``, ``QE-NOV``, ``YS``, ``BYE``,
with a number in front for multiples. pandas has none for months on the 28th to 31st: ``MS-30`` is the 30th, or the last
day of a shorter month. A bare number is the step of integer timestamps.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Int64Array, Timestamps
from stablernn.data.messages import format_timestamp
from stablernn.data.types import Notes, Series, StackedSeries
from stablernn.terms import terms

Kind = Literal["fixed", "business", "month", "month-end", "business-start", "business-end", "index"]

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
_EDGES: dict[str, Kind] = {"S": "month", "E": "month-end", "BS": "business-start", "BE": "business-end"}
_PERIODS = {"M": 1, "Q": 3, "Y": 12}
# MS, BMS, QS, BQS, ...: the kind and the number of months.
_MONTHS: dict[str, tuple[Kind, int]] = {
    f"{edge[:-1]}{period}{edge[-1]}": (kind, months)
    for edge, kind in _EDGES.items()
    for period, months in _PERIODS.items()
}
_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_ALIASES = (*_FIXED_NS, "B", "W", *_MONTHS)

#: Data with a smaller share of present steps do not follow a grid: random seconds also lie on a grid of seconds.
_MIN_COVERAGE = 0.5

_Result = TypeVar("_Result")
# A configured frequency may leave far more gaps than an inferred one; a grid of seconds for monthly rows is a mistake.
_MAX_STEPS_PER_ROW = 100
# Timestamps that are copied to be compared.
_MAX_COPIED_BYTES = 1 << 16


@dataclass(frozen=True)
class Frequency:
    """A regular time grid.

    Attributes:
        alias: The frequency alias, see the module.
        kind: The unit in which steps are counted.
        step: Length of one step: nanoseconds, business days, months or integers.
        month: Month, 0 for January, that begins or ends a quarter or year; None for other steps.
        day: Day of the month, of which shorter months have their last; None: that of the first timestamp.
    """

    alias: str
    kind: Kind
    step: int
    month: int | None = None
    day: int | None = None

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
            months, days = ds.astype("datetime64[M]"), ds.astype("datetime64[D]")
            is_same = len(np.unique(ds - months)) == 1 if self._keeps_day else (days == self._days_of(months)).all()
            offsets = (months - months[0]).astype(np.int64)
            phase = 0 if self.month is None else int(months[0].astype(np.int64)) - self.month
            # Every second quarter may be either of them.
            if not is_same or phase % _PERIODS["Q" if "Q" in self.alias else "Y"]:
                return None
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
        if self._keeps_day:
            return np.asarray((month + offsets).astype("datetime64[ns]") + (start - month))
        time_of_day = start - start.astype("datetime64[D]")
        return np.asarray(
            self._days_of((month + offsets).astype("datetime64[M]")).astype("datetime64[ns]") + time_of_day
        )

    @property
    def _keeps_day(self) -> bool:
        """True for months on the day, and at the time of it, of the first timestamp."""
        return self.kind == "month" and self.day is None

    def _days_of(self, months: npt.NDArray[np.datetime64]) -> npt.NDArray[np.datetime64]:
        """Return the day, datetime64[D], that the grid has in each month, at any time of it."""
        first = months.astype("datetime64[D]")
        last = (months + 1).astype("datetime64[D]") - 1
        if self.kind == "month":
            return np.asarray(np.minimum(first + (cast(int, self.day) - 1), last))
        if self.kind == "business-start":
            return np.asarray(np.busday_offset(first, 0, roll="forward"))
        return last if self.kind == "month-end" else np.asarray(np.busday_offset(last, 0, roll="backward"))

    @property
    def season(self) -> int:
        """Steps of the most common season: a day, a working or whole week, a year; 1 when none fits."""
        return next(iter(self.seasons), 1)

    @property
    def seasons(self) -> tuple[int, ...]:
        """Steps of the seasons that such data usually have, the shortest first: a day, a week, a year."""
        if self.kind == "business":
            return (5, 261) if self.step == 1 else ()
        if self.kind in _EDGES.values():
            return (12 // self.step,) if 12 % self.step == 0 and self.step < 12 else ()
        if self.kind == "fixed":
            if self.step == 7 * _DAY_NS:
                return (52,)
            if self.step == _DAY_NS:
                return (7, 365)
            if _FIXED_NS["min"] <= self.step < _DAY_NS and _DAY_NS % self.step == 0:
                day = _DAY_NS // self.step
                return (day, 7 * day)
        return ()


def parse_frequency(alias: str) -> Frequency:
    """Return the grid of a frequency alias.

    Raises:
        UnknownNameError: If there is no such alias.
    """
    match = re.fullmatch(r"(\d*)([A-Za-z]*)(?:-([A-Z]{3}|[1-9]\d?))?", alias)
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
        if unit in _MONTHS:
            kind, months = _MONTHS[unit]
            if anchor is None and months == 1:
                return Frequency(alias, kind, count)
            name = anchor or ("JAN" if unit[-1] == "S" else "DEC")
            if months > 1 and name in _MONTH_NAMES:
                return Frequency(alias, kind, count * months, month=_MONTH_NAMES.index(name))
            if unit == "MS" and anchor and anchor.isdigit() and int(anchor) <= 31:
                return Frequency(alias, kind, count, day=int(anchor))
    raise errors.unknown(
        "frequency",
        alias,
        _ALIASES,
        f"Known are {', '.join(_ALIASES)}, W-MON to W-SUN, MS-1 to MS-31, months behind Q and Y (QE-NOV), and "
        "multiples as 15min.",
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
    months = ds.astype("datetime64[M]")
    numbers = months.astype(np.int64)
    steps = np.diff(numbers)
    if (steps < 1).any():
        return []
    step, month = _mode(steps), int(numbers[0]) % 12
    day = int((ds.astype("datetime64[D]") - months.astype("datetime64[D]")).max().astype(np.int64)) + 1
    # Not every month has the 29th, and the 28th may be a month's end: such a day is part of the alias.
    same_day = _month_alias(step, month, "S") if day < 28 else f"{step if step > 1 else ''}MS-{day}"
    ends, business_ends, business_starts = (_month_alias(step, month, edge) for edge in ("E", "BE", "BS"))
    aliases = (ends, same_day, business_ends, business_starts) if day < 28 else (ends, business_ends, same_day)
    return [parse_frequency(alias) for alias in aliases]


def _month_alias(step: int, month: int, edge: str) -> str:
    """Return the alias of periods of ``step`` months, one of which begins or ends (``edge``) in ``month``."""
    is_end = edge.endswith("E")
    unit, count = "M", step
    # Quarters and years in other months (QS-FEB) are written as multiples of months; these two are the plain ones.
    if step % 12 == 0 and month == (11 if is_end else 0):
        unit, count = "Y", step // 12
    elif step == 3 and month % 3 == (2 if is_end else 0):
        unit, count = "Q", 1
    return f"{count if count > 1 else ''}{edge[:-1]}{unit}{edge[-1]}"


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
