"""Timestamps from text: ISO dates and their relatives."""

from __future__ import annotations

import re
from typing import NamedTuple, cast

import numpy as np
import polars as pl

from stablernn.data.arrays import Timestamps
from stablernn.data.readers.spilling_array import Budget, GrowingArray
from stablernn.data.time.numeric_timestamps import UNIX_NS, unix_instants

_EARLIEST, _LATEST = np.datetime64("1678-01-01", "us"), np.datetime64("2262-01-01", "us")
_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M%#z",
)
_ZONE = r"\s*(?:[Zz]|[+-]\d{2}:?\d{2})$"
_LARGEST_MONTH = 999_999
_DAY_OR_MONTH_FIRST = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}\b.*")


def parse_dates(cells: pl.Series) -> pl.Series:
    """Text as dates in UTC, in microseconds; null where a cell is none or nanoseconds could not hold it.

    Read are ``2024-01-31``, ``2024-01-31 13:00``, also with seconds and their fractions, ``/``, ``T`` or a zone;
    ``2024-01``, ``202401`` and ``20240131``.
    """
    return _dates_and_zones(cells)[0]


def date_format_advice(cell: str) -> str:
    """What to do about a cell that is no date: a sentence where it seems to be one, with the day or month first."""
    if _DAY_OR_MONTH_FIRST.fullmatch(cell):
        return "Write dates with the year first, then month and day, as 2024-01-31."
    return ""


def _dates_and_zones(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Dates as of :func:`parse_dates`, and which of the cells have a zone."""
    if cells.dtype != pl.String:
        return mask_out_of_range(cells), pl.repeat(False, len(cells), eager=True)
    some = cells.drop_nulls().head(1)
    usual = next((form for form in _FORMATS if _parsed(some, form).drop_nulls().len()), None)
    found = pl.Series([None] * len(cells), dtype=pl.Datetime("us")) if usual is None else _parsed(cells, usual)
    zoned = pl.repeat(usual is not None and "z" in usual, len(cells), eager=True)
    rest = found.is_null() & cells.is_not_null()
    if rest.any():
        # What is not written as the first cell is; most files have none of it, and these words take their time.
        others, with_zone = _slowly(cells.filter(rest))
        found, zoned = found.scatter(rest.arg_true(), others), zoned.scatter(rest.arg_true(), with_zone)
    return mask_out_of_range(found), zoned


def _slowly(cells: pl.Series) -> tuple[pl.Series, pl.Series]:
    text = cells.str.replace_all("/", "-", literal=True).str.replace("T", " ", literal=True)
    text = text.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3").str.replace(r"^(\d{4})(\d\d)$", "$1-$2")
    text = text.str.replace(r"^(\d{4}-\d{1,2})$", "$1-01")
    found = pl.Series([None] * len(text), dtype=pl.Datetime("us"))
    zoned = pl.repeat(False, len(text), eager=True)
    for form in _FORMATS:
        if not found.null_count():
            break
        parsed = _parsed(text, form)
        if "z" in form:
            zoned |= found.is_null() & parsed.is_not_null()
        found = found.fill_null(parsed)
    return found, zoned


def _parsed(text: pl.Series, form: str) -> pl.Series:
    parsed = text.str.to_datetime(form, strict=False, time_unit="us")
    return parsed.dt.replace_time_zone(None) if "z" in form else parsed


def mask_out_of_range(found: pl.Series) -> pl.Series:
    """Dates in microseconds, null where nanoseconds could not hold them."""
    stamps = found.to_physical()
    held = (stamps >= int(_EARLIEST.astype(np.int64))) & (stamps < int(_LATEST.astype(np.int64)))
    return pl.select(pl.when(held).then(found).otherwise(None)).to_series()


def normalize_times(cells: pl.Series) -> pl.Series:
    """A column of times for :func:`parse_dates` and :class:`TimeColumn`: dates as they are, all else as text."""
    if cells.dtype == pl.Date:
        return cells.cast(pl.Datetime("us"))
    if isinstance(cells.dtype, pl.Datetime):
        if cells.dtype.time_zone is not None:
            return cells.dt.to_string("%Y-%m-%d %H:%M:%S%.6f%:z")
        return cells.dt.cast_time_unit("us")
    text = cells if cells.dtype == pl.String else cells.cast(pl.String, strict=False)
    return text.str.strip_chars()


class BadTime(NamedTuple):
    """A cell that cannot be a timestamp of its column.

    Attributes:
        position: Of the cell, from the first piece on.
        text: What stands there; empty where nothing does.
        mixes_zones: Whether it is a date that has a zone where others have none, or has none where they do.
        is_out_of_range: Whether it is a Unix time outside the years 1678 to 2261.
    """

    position: int
    text: str
    mixes_zones: bool = False
    is_out_of_range: bool = False


class TimeColumn:
    """Timestamps that come in pieces: dates if all of them are, else integers if all of them are.

    What integers are follows from ``stamps``, see :mod:`stablernn.data.time.numeric_timestamps`. Without it days of
    eight digits stay integers, for the caller to refuse, and months of six digits are dates.

    Dates with a zone are instants, in UTC. But those of one time of day in a zone whose distance from UTC changes, such
    as every midnight of a year, are days of the calendar there, which are not equally long: they are read without zone.
    """

    def __init__(self, budget: Budget, stamps: str | None = None) -> None:
        self._stamps = stamps
        self._unix = stamps if stamps in UNIX_NS else None
        self._dates: GrowingArray | None = GrowingArray("datetime64[ns]", None, budget)
        self._local = GrowingArray("datetime64[ns]", None, budget)
        # Of Unix times nanoseconds since 1970.
        self._integers: GrowingArray | None = None if stamps == "yyyymmdd" else GrowingArray(np.int64, None, budget)
        self._largest = 0
        self._all_whole = True
        self._rows = 0
        self._zoned: bool | None = None
        self._no_date: BadTime | None = None

    def add(self, cells: pl.Series) -> BadTime | None:
        """Take in the next cells, as :func:`normalize_times` gives them.

        Returns:
            The first cell that is no date, once neither dates nor integers are possible, or that mixes zones; None
            before.
        """
        if self._dates is not None:
            found, zoned = _dates_and_zones(cells)
            if found.null_count():
                index = int(np.argmax(found.is_null().to_numpy()))
                self._no_date = BadTime(self._rows + index, str(cells[index] or ""))
                self._dates = None
            elif len(cells):
                self._zoned = bool(zoned[0]) if self._zoned is None else self._zoned
                other = zoned != self._zoned
                if other.any():
                    index = int(np.argmax(other.to_numpy()))
                    return BadTime(self._rows + index, str(cells[index]), mixes_zones=True)
                self._dates.append(found.to_numpy().astype("datetime64[ns]"))
                if self._zoned:
                    local, _ = _dates_and_zones(cells.str.replace(_ZONE, ""))
                    self._local.append(local.to_numpy().astype("datetime64[ns]"))
        if self._all_whole:
            whole = cells.cast(pl.Int64, strict=False) if cells.dtype == pl.String else None
            if whole is None or whole.null_count():
                self._all_whole, self._integers = False, None
            elif self._integers is not None and len(whole):
                numbers = whole.to_numpy()
                self._largest = max(self._largest, int(numbers.max()))
                if self._unix is not None:
                    numbers, fits = unix_instants(numbers, self._unix)
                    if not fits.all():
                        index = int(np.argmin(fits))
                        return BadTime(self._rows + index, str(cells[index]), is_out_of_range=True)
                self._integers.append(numbers)
        self._rows += len(cells)
        if self._dates is None and self._integers is None:
            return self._no_date or BadTime(0, "")
        return None

    @property
    def stamps(self) -> str | None:
        """The setting by which whole numbers were read; None where there was none, or dates have separators."""
        return self._stamps if self._all_whole else None

    @property
    def are_integers(self) -> bool:
        """True if all are whole numbers and none was read as a date without separators."""
        if self._integers is None:
            return False
        return self._dates is None or self._stamps is not None or self._largest > _LARGEST_MONTH

    def whole(self) -> tuple[Timestamps, bool]:
        """All timestamps, datetime64[ns] or int64, and whether they are instants, in UTC; to be asked once."""
        if self.are_integers:
            assert self._integers is not None
            integers = self._integers.whole()
            if self._unix is not None:
                return cast(Timestamps, integers.view("datetime64[ns]")), True
            return cast(Timestamps, integers), False
        assert self._dates is not None
        instants = self._dates.whole()
        if not self._zoned:
            return cast(Timestamps, instants), False
        local = self._local.whole()
        changes = len(np.unique(local - instants)) > 1
        if changes and len(np.unique(local - local.astype("datetime64[D]"))) == 1:
            return cast(Timestamps, local), False
        return cast(Timestamps, instants), True
