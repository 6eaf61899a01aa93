"""Timestamps: dates as text, and whole numbers such as Unix times, packed calendar periods and steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float64Array, GrowingArray, Int64Array, MemoryBudget, Timestamps
from stablernn.data.options import Stamps
from stablernn.data.table.frequency import infer_frequency
from stablernn.terms import terms

_EARLIEST, _LATEST = np.datetime64("1678-01-01", "us"), np.datetime64("2262-01-01", "us")
_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M%#z",
    # With points between them, the day comes first everywhere.
    "%d.%m.%Y",
    "%d.%m.%Y %H:%M:%S%.f",
    "%d.%m.%Y %H:%M",
)
_ZONE = r"\s*(?:[Zz]|[+-]\d{2}:?\d{2})$"
_LARGEST_MONTH = 999_999
# 202401 and 20240131.
_DIGITS_OF_DATES = (6, 8)
_HOUR_24 = r"(\b|T)24(\D00(?:\D00(?:\.0+)?)?)\b"
# What a check looks for: dates with any of these marks between their parts, and times of day behind them.
_DATE_FORMS = (
    *("%Y{0}%m{0}%d", "%d{0}%m{0}%Y", "%m{0}%d{0}%Y", "%d{0}%m{0}%y", "%m{0}%d{0}%y", "%y{0}%m{0}%d"),
    *("%d{0}%b{0}%Y", "%d{0}%b{0}%y", "%b %d, %Y"),
)
_DATE_MARKS = ("/", "-", ".", " ")
_TIME_FORMS = ("%H:%M", "%H:%M:%S", "%H:%M:%S%.f", "%I:%M %p", "%I:%M:%S %p", "%I:%M%p")
# Fewer dates may lie at equal distances by chance.
_LEAST_REGULAR = 3

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
_PACKED_YEARS = range(1800, 2100)
# Days from the epoch of spreadsheets, 1899-12-30, to 1970; and those to 1954-10-03 and 2099-12-31.
_EXCEL_DAYS, _EXCEL_RANGE = 25_569, range(20_000, 73_051)
# Fewer numbers may lie like business days or months by chance.
_LEAST_SERIALS = 6


def parse_dates(cells: pl.Series, form: str | None = None) -> pl.Series:
    """Parse text as dates in UTC, in microseconds; null where a cell is no date or nanoseconds could not hold it.

    With ``form``, the codes of strftime, read are dates of that format, also without its time of day, which is midnight
    then, and with ``24:00``, the midnight after the day. Without, read are ``2024-01-31``, ``2024-01-31 13:00``, also
    with seconds and their fractions, ``/``, ``T`` or a zone;
    ``2024-01``, ``202401`` and ``20240131``; and ``31.01.2024``, also with a time of day.
    """
    return _dates_and_zones(cells, form)[0]


def check_date_format(form: str) -> None:
    """Raise unless dates can be read by a format.

    Raises:
        ConfigError: If it has no day, month or year, or an unknown code.
    """
    try:
        example = pl.Series([datetime(2024, 2, 28)])
        is_read = parse_dates(example.dt.to_string(form), form).equals(example)
    except pl.exceptions.PolarsError:
        is_read = False
    if not is_read:
        raise errors.ConfigError(
            f"date_format must name year, month and day by the codes of strftime, and hour and minute or neither, such "
            f"as '%d/%m/%Y %H:%M' or '%m/%d/%Y %I:%M %p', got '{form}'."
        )


def fitting_date_formats(cells: pl.Series) -> list[str]:
    """Return the formats by which all cells of a column of text can be read; none where no format is known."""
    text = cells.drop_nulls()
    if text.dtype != pl.String or not len(text):
        return []
    # Some cells may lack a time of day that is midnight.
    longest = text.gather([int(text.str.len_chars().arg_max() or 0)])
    marks = [mark for mark in _DATE_MARKS if mark in str(longest[0])]
    dates = dict.fromkeys(form.format(mark) for form in _DATE_FORMS for mark in marks)
    times = [f"{mark}{time}" for time in _TIME_FORMS for mark in " T"] if ":" in str(longest[0]) else [""]
    forms = [f"{date}{time}" for date in dates for time in times]
    readings: dict[str, pl.Series] = {}
    for form in forms:
        if parse_dates(longest, form).null_count():
            continue
        reading = parse_dates(text, form)
        # Formats by which all cells are the same times are one.
        if not reading.null_count() and not any(reading.equals(other) for other in readings.values()):
            readings[form] = reading
    return list(readings)


def suggest_date_format(cells: pl.Series, forms: Sequence[str]) -> str | None:
    """Return which of the formats that read a column of text it proves: the only one, or with steps of one length."""
    if len(forms) > 1 and cells.n_unique() >= _LEAST_REGULAR:
        times = {form: np.unique(parse_dates(cells.drop_nulls(), form).to_numpy()) for form in forms}
        forms = [form for form in forms if infer_frequency(times[form].astype("datetime64[ns]")) is not None]
    return forms[0] if len(forms) == 1 else None


def date_format_advice(cell: str, column: pl.Series) -> str:
    """Return advice on a cell that cannot be read: a sentence if it looks like a date in one format or several.

    The formats are those that read its whole column, as far as there are any: day and month of one cell may be alike.
    """
    forms = [f"'{form}'" for form in fitting_date_formats(column) or fitting_date_formats(pl.Series([cell]))]
    if not forms:
        return ""
    return f"Set data.date_format to the format, such as {' or '.join(forms)}, or write dates as 2024-01-31 13:00."


def _dates_and_zones(cells: pl.Series, form: str | None = None) -> tuple[pl.Series, pl.Series]:
    """Return dates as :func:`parse_dates` does, and which of the cells have a zone."""
    if cells.dtype.is_integer():
        cells = cells.cast(pl.String)
    if cells.dtype != pl.String:
        return mask_out_of_range(cells), pl.repeat(False, len(cells), eager=True)
    if form is not None:
        return mask_out_of_range(_parse_format(cells, form)), pl.repeat(_has_zone(form), len(cells), eager=True)
    # The format of the first cell is tried on all of them, which is much faster than every format on each.
    example = cells.drop_nulls().head(1)
    usual = next((form for form in _FORMATS if _parse(example, form).drop_nulls().len()), None)
    dates = pl.Series([None] * len(cells), dtype=pl.Datetime("us")) if usual is None else _parse(cells, usual)
    has_zone = pl.repeat(usual is not None and "z" in usual, len(cells), eager=True)
    unread = dates.is_null() & cells.is_not_null()
    if unread.any():
        # Cells in other formats than the first; most files have none, and reading them is slow.
        other_dates, other_zones = _parse_any_format(cells.filter(unread))
        dates, has_zone = (
            dates.scatter(unread.arg_true(), other_dates),
            has_zone.scatter(unread.arg_true(), other_zones),
        )
    return mask_out_of_range(dates), has_zone


def _parse_any_format(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    # Variants are rewritten to the formats: 2024/01/31, 2024-01-31T13:00, 20240131, 202401 and 2024-01.
    text = cells.str.replace_all("/", "-", literal=True).str.replace("T", " ", literal=True)
    text = text.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3").str.replace(r"^(\d{4})(\d\d)$", "$1-$2")
    text = text.str.replace(r"^(\d{4}-\d{1,2})$", "$1-01")
    dates = pl.Series([None] * len(text), dtype=pl.Datetime("us"))
    has_zone = pl.repeat(False, len(text), eager=True)
    for form in _FORMATS:
        if not dates.null_count():
            break
        parsed = _parse(text, form)
        if "z" in form:
            has_zone |= dates.is_null() & parsed.is_not_null()
        dates = dates.fill_null(parsed)
    return dates, has_zone


def _parse_format(text: pl.Series, form: str) -> pl.Series:
    parsed = _parse(text, form)
    date_form = re.split(r"\W*%[HIkl]", form, maxsplit=1)[0]
    if date_form != form and parsed.null_count():
        parsed = parsed.fill_null(_parse(text, date_form))
        midnights = _parse(text.str.replace(_HOUR_24, "${1}00$2"), form) if "%H" in form else parsed
        is_24 = parsed.is_null() & text.str.contains(_HOUR_24).fill_null(False)
        parsed = parsed.zip_with(~is_24, midnights.dt.offset_by("1d"))
    return parsed


def _has_zone(form: str) -> bool:
    return re.search(r"%[#:]*z", form) is not None


def _parse(text: pl.Series, form: str) -> pl.Series:
    parsed = text.str.to_datetime(form, strict=False, time_unit="us")
    return parsed.dt.replace_time_zone(None) if _has_zone(form) else parsed


def mask_out_of_range(dates: pl.Series) -> pl.Series:
    """Return dates in microseconds, null where nanoseconds could not hold them."""
    microseconds = dates.to_physical()
    fits = (microseconds >= int(_EARLIEST.astype(np.int64))) & (microseconds < int(_LATEST.astype(np.int64)))
    return pl.select(pl.when(fits).then(dates).otherwise(None)).to_series()


def normalize_times(cells: pl.Series) -> pl.Series:
    """Return a column of times for :func:`parse_dates` and :class:`TimeColumn`.

    Dates and whole numbers stay what they are, and all else becomes text.
    """
    if cells.dtype == pl.Date:
        return cells.cast(pl.Datetime("us"))
    if isinstance(cells.dtype, pl.Datetime):
        if cells.dtype.time_zone is not None:
            # As text with its offset, since TimeColumn needs the local time, too.
            return cells.dt.to_string("%Y-%m-%d %H:%M:%S%.6f%:z")
        return cells.dt.cast_time_unit("us")
    if cells.dtype.is_integer():
        return cells
    text = cells if cells.dtype == pl.String else cells.cast(pl.String, strict=False)
    return text.str.strip_chars()


def zone_suffixes(cells: pl.Series, form: str | None = None) -> list[str | None]:
    """Return the different zones that the cells of a column of times end with, such as ``+01:00``; None for none.

    ``form`` is the format of dates, of which some end like a zone. Where the first cell has no zone, others are not
    looked for.
    """
    if isinstance(cells.dtype, pl.Datetime) and cells.dtype.time_zone == "UTC":
        return ["+00:00"]
    text = normalize_times(cells).drop_nulls()
    may_have_zones = text.dtype == pl.String and (form is None or _has_zone(form))
    if not may_have_zones or not text.head(1).str.contains(_ZONE).any():
        return [None]
    return text.str.extract(f"({_ZONE})").unique().to_list()


def _text_of(cells: pl.Series, index: int) -> str:
    cell = cells[index]
    return "" if cell is None else str(cell)


class BadTime(NamedTuple):
    """A cell that cannot be a timestamp of its column.

    Attributes:
        position: Index of the cell, from the first chunk on.
        text: Its content; empty where there is none.
        mixes_zones: Whether it is a date with a zone where others have none, or without one where they have it.
        is_out_of_range: Whether it is a number that is no time of the years 1678 to 2261.
    """

    position: int
    text: str
    mixes_zones: bool = False
    is_out_of_range: bool = False


class TimeColumn:
    """Timestamps that come in chunks: dates if all of them are, else integers if all of them are.

    ``stamps`` says what integers are, see :data:`STAMPS`, and ``date_format`` how dates
    are written, see :func:`parse_dates`; then there are no integers. Without ``stamps`` days of eight
    digits stay integers, for the caller to refuse, and months of six digits are dates.

    Dates with a zone are instants, in UTC. But those of one time of day in a zone whose offset from UTC changes, such
    as every midnight of a year, are days of the calendar there, which are not equally long: they are read without zone.
    """

    def __init__(self, budget: MemoryBudget, stamps: str | None = None, date_format: str | None = None) -> None:
        self._stamps, self._format = stamps, date_format
        self._computed = stamps if stamps in COMPUTED_STAMPS else None
        self._dates: GrowingArray | None = GrowingArray("datetime64[ns]", None, budget)
        self._local = GrowingArray("datetime64[ns]", None, budget)
        # Times that are computed are stored in nanoseconds since 1970.
        takes_integers = stamps != "yyyymmdd" and date_format is None
        self._integers: GrowingArray | None = GrowingArray(np.int64, None, budget) if takes_integers else None
        self._largest = 0
        self._all_integers = True
        self._num_rows = 0
        self._has_zone: bool | None = None
        self._first_non_date: BadTime | None = None

    def add(self, cells: pl.Series) -> BadTime | None:
        """Take in the next cells, as :func:`normalize_times` gives them.

        Returns:
            The first cell that is no date, once neither dates nor integers are possible, or that mixes zones; None
            before.
        """
        bad_time = self._add_dates(cells) or self._add_integers(cells)
        if bad_time is not None:
            return bad_time
        self._num_rows += len(cells)
        if self._dates is None and self._integers is None:
            return self._first_non_date or BadTime(0, "")
        return None

    def _add_dates(self, cells: pl.Series) -> BadTime | None:
        if self._dates is None:
            return None
        # Trying all formats takes as long as reading a hundred thousand numbers.
        if (
            self._format is None
            and cells.dtype.is_integer()
            and len(cells)
            and len(_text_of(cells, 0)) not in _DIGITS_OF_DATES
        ):
            self._first_non_date, self._dates = BadTime(self._num_rows, _text_of(cells, 0)), None
            return None
        # All formats are tried on all cells that none fits, so that the first cell, of a column of numbers, is tried
        # alone before.
        first, _ = _dates_and_zones(cells.head(1), self._format)
        dates, has_zone = (first, first) if first.null_count() else _dates_and_zones(cells, self._format)
        if dates.null_count():
            # The column may still be one of integers; the cell is reported if it is not.
            index = int(np.argmax(dates.is_null().to_numpy()))
            self._first_non_date = BadTime(self._num_rows + index, _text_of(cells, index))
            self._dates = None
            return None
        if not len(cells):
            return None
        self._has_zone = bool(has_zone[0]) if self._has_zone is None else self._has_zone
        is_other = has_zone != self._has_zone
        if is_other.any():
            index = int(np.argmax(is_other.to_numpy()))
            return BadTime(self._num_rows + index, str(cells[index]), mixes_zones=True)
        self._dates.append(dates.to_numpy().astype("datetime64[ns]"))
        if self._has_zone:
            without_zone = None if self._format is None else re.sub(r"\s*%[#:]*z", "", self._format)
            local, _ = _dates_and_zones(cells.str.replace(_ZONE, ""), without_zone)
            self._local.append(local.to_numpy().astype("datetime64[ns]"))
        return None

    def _add_integers(self, cells: pl.Series) -> BadTime | None:
        if not self._all_integers:
            return None
        may_be_integers = cells.dtype == pl.String or cells.dtype.is_integer()
        # Serial numbers of spreadsheets have the time of day behind the decimal point.
        number_type = pl.Float64 if self._computed == "excel" else pl.Int64
        integers = cells.cast(number_type, strict=False) if may_be_integers else None
        if integers is None or integers.null_count():
            self._all_integers, self._integers = False, None
        elif self._integers is not None and len(integers):
            numbers = integers.to_numpy()
            self._largest = max(self._largest, int(numbers.max()))
            if self._computed is not None:
                numbers, fits = read_numbers(numbers, self._computed)
                if not fits.all():
                    index = int(np.argmin(fits))
                    return BadTime(self._num_rows + index, str(cells[index]), is_out_of_range=True)
            self._integers.append(numbers)
        return None

    @property
    def stamps(self) -> str | None:
        """The setting by which whole numbers were read; None where there was none, or dates have separators."""
        return self._stamps if self._all_integers else None

    @property
    def are_integers(self) -> bool:
        """True if all are whole numbers and none was read as a date without separators."""
        if self._integers is None:
            return False
        # Numbers up to six digits that are dates are months as 202401.
        return self._dates is None or self._stamps is not None or self._largest > _LARGEST_MONTH

    def finish(self) -> tuple[Timestamps, bool]:
        """Return all timestamps, datetime64[ns] or int64, and whether they are instants, in UTC; to be called once."""
        if self.are_integers:
            assert self._integers is not None
            integers = self._integers.finish()
            if self._computed is not None:
                return cast(Timestamps, integers.view("datetime64[ns]")), self._computed in UNIX_NS
            return cast(Timestamps, integers), False
        assert self._dates is not None
        instants = self._dates.finish()
        if not self._has_zone:
            return cast(Timestamps, instants), False
        local = self._local.finish()
        offset_changes = len(np.unique(local - instants)) > 1
        if offset_changes and len(np.unique(local - local.astype("datetime64[D]"))) == 1:
            return cast(Timestamps, local), False
        return cast(Timestamps, instants), True


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
    # Smaller ones look like no date, whatever series they are of.
    if max(-int(numbers.min()), int(numbers.max())) < 10 * _PACKED_YEARS.start:
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
