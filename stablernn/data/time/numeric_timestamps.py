"""Whole numbers as timestamps: Unix times, dates written without separators, packed calendar periods, steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float64Array, Int64Array
from stablernn.data.time.frequency import infer_frequency
from stablernn.terms import terms

Stamps = Literal["unix-s", "unix-ms", "yyyymmdd", "yyyyww", "yyyyddd", "yyyyq", "excel", "step"]
STAMPS: tuple[Stamps, ...] = get_args(Stamps)
#: Those by which numbers are computed into times; that of dates is read as text.
COMPUTED_STAMPS = tuple(stamps for stamps in STAMPS if stamps not in ("yyyymmdd", "step"))

#: Nanoseconds in the unit of each kind of Unix time.
UNIX_NS: dict[str, int] = {"unix-s": 1_000_000_000, "unix-ms": 1_000_000}
# Seconds since 1970 of the first and the last year that nanoseconds can hold, as for dates.
_EARLIEST_SECOND, _END_SECOND = (int(np.datetime64(year, "s").astype(np.int64)) for year in ("1678", "2262"))
# Step numbers seldom reach this (it is 1973-03-03); Unix times of anything measured nowadays lie above.
_LEAST_SECOND = 100_000_000
_FUTURE_SECOND = int(np.datetime64("2100", "s").astype(np.int64))
# Units of Unix times: their names, parts of a second, and the option that reads them.
_UNITS: tuple[tuple[str, int, Stamps | None], ...] = (
    ("seconds", 1, "unix-s"),
    ("milliseconds", 1_000, "unix-ms"),
    ("microseconds", 1_000_000, None),
    ("nanoseconds", 1_000_000_000, None),
)
_DATE_DIGITS = 8
_DAY_NS = 86_400_000_000_000
_MONDAY = 4  # 1970-01-05, in days since 1970.


class _Packing(NamedTuple):
    """A form of periods numbered within their year, which stands before them in the number.

    Attributes:
        form: Its name, for messages.
        stamps: The option that reads it; None where there is none.
        digits: Digits of the period.
        min_last: Least number of the last period in any year of a series.
        max_last: Number that no period exceeds.
    """

    form: str
    stamps: Stamps | None
    digits: int
    min_last: int
    max_last: int


_PACKINGS = (
    _Packing("years and days of the year", "yyyyddd", 3, 54, 366),
    _Packing("years and weeks", "yyyyww", 2, 14, 53),
    # Thirteenth months, with the year's average, and periods of four weeks.
    _Packing("years and one of 13 periods", None, 2, 13, 13),
    _Packing("years and quarters", "yyyyq", 1, 3, 4),
    _Packing("half-years", None, 1, 2, 2),
)
_PACKED_YEARS = range(1800, 2100)
# Days from the epoch of spreadsheets, 1899-12-30, to 1970; and those to 1954-10-03 and 2099-12-31.
_EXCEL_DAYS, _EXCEL_RANGE = 25_569, range(20_000, 73_051)
# Fewer numbers may lie like business days or months by chance.
_LEAST_SERIALS = 6


class Resemblance(NamedTuple):
    """A kind of timestamps that whole numbers look like.

    Attributes:
        form: Its name, such as ``Unix times in seconds``.
        stamps: The option that reads them so; None where there is none.
        example: The first of them as a date.
    """

    form: str
    stamps: Stamps | None
    example: str


def check_stamps(stamps: str) -> None:
    """Raise unless ``stamps`` is one of :data:`STAMPS`.

    Raises:
        UnknownNameError: With the allowed values.
    """
    if stamps not in STAMPS:
        raise errors.unknown("reading of whole numbers", stamps, STAMPS, f"stamps is one of {', '.join(STAMPS)}.")


def unix_instants(numbers: Int64Array, stamps: str) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return Unix times as nanoseconds since 1970, and which of them are in the years 1678 to 2261."""
    per_second = 1_000_000_000 // UNIX_NS[stamps]
    # Checked before the product, which would overflow outside of these years.
    fits = (numbers >= _EARLIEST_SECOND * per_second) & (numbers < _END_SECOND * per_second)
    return np.where(fits, numbers, 0) * UNIX_NS[stamps], fits


def read_numbers(numbers: Int64Array | Float64Array, stamps: str) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return numbers as nanoseconds since 1970, and which of them are times of the years 1678 to 2261.

    Args:
        numbers: Whole numbers; serial numbers of spreadsheets (``excel``) may have fractions of a day.
        stamps: One of :data:`COMPUTED_STAMPS`.
    """
    if stamps in UNIX_NS:
        return unix_instants(numbers.astype(np.int64), stamps)
    if stamps == "excel":
        # To the second: sheets show five digits of a fraction.
        seconds = np.rint((np.nan_to_num(numbers, nan=np.inf) - _EXCEL_DAYS) * 86_400)
        fits = (seconds >= _EARLIEST_SECOND) & (seconds < _END_SECOND)
        return np.where(fits, seconds, 0).astype(np.int64) * 1_000_000_000, fits
    days, fits = _unpack(numbers.astype(np.int64), stamps)
    return days * _DAY_NS, fits


def _unpack(numbers: Int64Array, stamps: str) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Return the first days of packed periods, in days since 1970, and which of them exist."""
    years, periods = np.divmod(numbers, 10 ** {"yyyyddd": 3, "yyyyww": 2, "yyyyq": 1}[stamps])
    fits = (years >= 1678) & (years < 2262) & (periods >= 1)
    year = (np.where(fits, years, 1970) - 1970).astype("datetime64[Y]")
    if stamps == "yyyyq":
        months = year.astype("datetime64[M]") + 3 * (periods - 1)
        return _days_since_1970(months), fits & (periods <= 4)
    first, next_first = (_days_since_1970(each) for each in (year, year + 1))
    if stamps == "yyyyddd":
        return first + periods - 1, fits & (periods <= next_first - first)
    # As in ISO 8601, the first week is that of January 4, and weeks begin on Monday.
    first, next_first = ((day + 3) - (day + 3 - _MONDAY) % 7 for day in (first, next_first))
    return first + 7 * (periods - 1), fits & (7 * periods <= next_first - first)


def _days_since_1970(dates: npt.NDArray[np.datetime64]) -> Int64Array:
    return np.asarray(dates.astype("datetime64[D]").astype(np.int64))


def may_be_dates(numbers: Int64Array) -> bool:
    """Return whether whole numbers, of any series, are large enough for :func:`find_resemblance`."""
    return bool(max(-int(numbers.min()), int(numbers.max())) >= 10 * _PACKED_YEARS.start)


def may_be_serials(numbers: Float64Array) -> bool:
    """Return whether numbers, some of them with a fraction, may be days and times of a spreadsheet, 1954 to 2099."""
    return bool(((numbers >= _EXCEL_RANGE.start) & (numbers < _EXCEL_RANGE.stop)).all())


def find_resemblance(numbers: Int64Array, column: str = "") -> Resemblance | None:
    """Return the dates that the whole numbers of one series look like; None where they may well number its steps.

    Dates without separators (8 digits; 10, 12 or 14 with the time of day) are taken for such where more than half of
    them are in the calendar. Unix times are those of 1973-03-03 to 2099, and earlier ones where the series reaches
    beyond 100,000,000 seconds in whole hours, which counters seldom do. Packed periods (year and week, day or quarter)
    span more than one year, in steps that are regular in the calendar and not as numbers. So do serial numbers of
    spreadsheets that are business days or months; all others are told by a name of the column with "date".
    """
    low, high = int(numbers.min()), int(numbers.max())
    if _are_dates(numbers, low, high):
        text = str(int(numbers[0])).ljust(14, "0")
        day, time = f"{text[:4]}-{text[4:6]}-{text[6:8]}", f"{text[8:10]}:{text[10:12]}:{text[12:14]}"
        is_day = len(str(low)) == _DATE_DIGITS
        stamps: Stamps | None = "yyyymmdd" if is_day else None
        return Resemblance("dates without separators", stamps, day if is_day else f"{day} {time}")
    for name, parts, option in _UNITS:
        if low < _EARLIEST_SECOND * parts or high >= _FUTURE_SECOND * parts:
            continue
        is_recent = low >= _LEAST_SECOND * parts
        reaches = max(-low, high) >= _LEAST_SECOND * parts
        if is_recent or (reaches and _usual_step(numbers) % (3600 * parts) == 0):
            instant = np.datetime64(int(numbers[0]) // parts, "s")
            return Resemblance(f"Unix times in {name}", option, str(instant).replace("T", " "))
    return _packed_resemblance(numbers) or _excel_resemblance(numbers, column)


def _packed_resemblance(numbers: Int64Array) -> Resemblance | None:
    ordered = np.unique(numbers)
    if len(np.unique(np.diff(ordered))) < 2:
        # Numbers at equal distances are a grid already.
        return None
    for form, stamps, digits, min_last, max_last in _PACKINGS:
        years, periods = np.divmod(ordered, 10**digits)
        has_years = years[0] in _PACKED_YEARS and years[-1] in _PACKED_YEARS and years[0] < years[-1]
        if not has_years or periods.min() < 1 or not min_last <= periods.max() <= max_last:
            continue
        if stamps is None:
            positions = years * max_last + periods
            if 2 * len(ordered) > positions[-1] - positions[0]:
                return Resemblance(form, None, f"period {periods[0]} of {years[0]}")
            continue
        instants, fits = read_numbers(ordered, stamps)
        if fits.all() and infer_frequency(instants.view("datetime64[ns]")) is not None:
            return Resemblance(form, stamps, str(read_numbers(numbers[:1], stamps)[0].view("datetime64[ns]")[0])[:10])
    return None


def _excel_resemblance(numbers: Int64Array, column: str) -> Resemblance | None:
    ordered = np.unique(numbers)
    if int(ordered[0]) not in _EXCEL_RANGE or int(ordered[-1]) not in _EXCEL_RANGE:
        return None
    days = read_numbers(ordered, "excel")[0].view("datetime64[ns]")
    grid = infer_frequency(days)
    if "date" not in column.lower() and (grid is None or grid.kind == "fixed" or len(ordered) < _LEAST_SERIALS):
        return None
    first = read_numbers(numbers[:1], "excel")[0].view("datetime64[ns]")[0]
    return Resemblance("serial numbers of days in a spreadsheet", "excel", str(first)[:10])


def refuse_ambiguous_numbers(file: str, column: str, numbers: Int64Array, series: Iterable[tuple[int, int]]) -> None:
    """Refuse whole numbers that are probably dates where no option says what they are.

    Args:
        file: Name of the file.
        column: Name of the column.
        numbers: The numbers of all series, one series after another.
        series: First row and end of each.

    Raises:
        DataError: If those of one series look like dates.
    """
    if not may_be_dates(numbers):
        return
    for start, end in series:
        reading = find_resemblance(numbers[start:end], column)
        if reading is not None:
            raise ambiguous_numbers_error(file, column, int(numbers[start]), reading)


def ambiguous_numbers_error(file: str, column: str, first: int, reading: Resemblance) -> errors.DataError:
    """Return the error for whole numbers that may be dates, where no option says what they are."""
    problem = (
        f"{terms().column_of(file, column)} holds whole numbers that look like {reading.form}: {first} would be "
        f"{reading.example}."
    )
    if reading.stamps is None:
        return errors.DataError(
            f"{problem} Write them as dates such as 2024-01-31 13:00:00 or as Unix times in milliseconds, or set "
            f"{terms().setting('data.stamps', 'step')}{terms().flag('--stamps')} where they only number the steps."
        )
    return errors.DataError(
        f"{problem} Say what they are with data.stamps{terms().flag('--stamps')}: {reading.stamps}, or step where they "
        "only number the steps.",
        settings={"stamps": reading.stamps},
    )


def _are_dates(numbers: Int64Array, low: int, high: int) -> bool:
    """Return True if more than half are written as YYYYMMDD, perhaps followed by hour, minute and second."""
    digits = len(str(low)) if low > 0 else 0
    if digits not in (8, 10, 12, 14) or len(str(high)) != digits:
        return False
    # The digits behind the date, filled up to hour, minute and second.
    date, time = np.divmod(numbers, 10 ** (digits - _DATE_DIGITS))
    time = time * 10 ** (14 - digits)
    year, month, day = date // 10_000, date // 100 % 100, date % 100
    fits = (year >= 1678) & (year < 2262) & (month >= 1) & (month <= 12)
    first = np.where(fits, (year - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    last_day = ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
    fits &= (day >= 1) & (day <= last_day)
    fits &= (time // 10_000 < 24) & (time // 100 % 100 < 60) & (time % 100 < 60)
    return 2 * int(fits.sum()) > len(numbers)


def _usual_step(numbers: Int64Array) -> int:
    """Return the most frequent difference; 1 for a single number."""
    if len(numbers) < 2:
        return 1
    steps, counts = np.unique(np.diff(numbers), return_counts=True)
    return int(steps[np.argmax(counts)])
