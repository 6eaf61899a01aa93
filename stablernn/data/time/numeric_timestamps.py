"""Whole numbers as timestamps: Unix times, dates written without separators, numbers of steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Int64Array
from stablernn.terms import terms

Stamps = Literal["unix-s", "unix-ms", "yyyymmdd", "step"]
STAMPS: tuple[Stamps, ...] = get_args(Stamps)

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


def may_be_dates(numbers: Int64Array) -> bool:
    """Return whether whole numbers, of any series, are large enough for :func:`find_resemblance`."""
    return bool(max(-int(numbers.min()), int(numbers.max())) >= 10 ** (_DATE_DIGITS - 1))


def find_resemblance(numbers: Int64Array) -> Resemblance | None:
    """Return the dates that the whole numbers of one series look like; None where they may well number its steps.

    Dates without separators (8 digits; 10, 12 or 14 with the time of day) are taken for such where more than half of
    them are in the calendar. Unix times are those of 1973-03-03 to 2099, and earlier ones where the series reaches
    beyond 100,000,000 seconds in whole hours, which counters seldom do.
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
    return None


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
        reading = find_resemblance(numbers[start:end])
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
        f"{problem} Say what they are with data.stamps{terms().flag('--stamps')}: unix-s, unix-ms, yyyymmdd, or step "
        "where they only number the steps."
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
