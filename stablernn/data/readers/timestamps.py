"""Timestamps from text: ISO dates and similar formats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, cast

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Timestamps
from stablernn.data.readers.spilling_array import GrowingArray, MemoryBudget
from stablernn.data.time.frequency import infer_frequency
from stablernn.data.time.numeric_timestamps import COMPUTED_STAMPS, UNIX_NS, read_numbers

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

    ``stamps`` says what integers are, see :mod:`stablernn.data.time.numeric_timestamps`, and ``date_format`` how dates
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
