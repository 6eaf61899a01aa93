"""Time stamps from text: ISO dates and their relatives."""

from __future__ import annotations

from typing import cast

import numpy as np
import polars as pl

from stablernn.data.store import Budget, GrowingArray
from stablernn.data.types import Timestamps

_EARLIEST, _LATEST = np.datetime64("1678-01-01", "us"), np.datetime64("2262-01-01", "us")
_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M%#z",
)


def dates(cells: pl.Series) -> pl.Series:
    """Text as dates in UTC, in microseconds; null where a cell is none or nanoseconds could not hold it.

    Read are ``2024-01-31``, ``2024-01-31 13:00``, also with seconds and their fractions, ``/``, ``T`` or a zone;
    ``2024-01``, ``202401`` and ``20240131``.
    """
    if cells.dtype != pl.String:
        return in_range(cells)
    some = cells.drop_nulls().head(1)
    usual = next((form for form in _FORMATS if _parsed(some, form).drop_nulls().len()), None)
    found = pl.Series([None] * len(cells), dtype=pl.Datetime("us")) if usual is None else _parsed(cells, usual)
    rest = found.is_null() & cells.is_not_null()
    if rest.any():
        # What is not written as the first cell is; most files have none of it, and these words take their time.
        found = found.scatter(rest.arg_true(), _slowly(cells.filter(rest)))
    return in_range(found)


def _slowly(cells: pl.Series) -> pl.Series:
    text = cells.str.replace_all("/", "-", literal=True).str.replace("T", " ", literal=True)
    text = text.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3").str.replace(r"^(\d{4})(\d\d)$", "$1-$2")
    text = text.str.replace(r"^(\d{4}-\d{1,2})$", "$1-01")
    found = pl.Series([None] * len(text), dtype=pl.Datetime("us"))
    for form in _FORMATS:
        if not found.null_count():
            break
        found = found.fill_null(_parsed(text, form))
    return found


def _parsed(text: pl.Series, form: str) -> pl.Series:
    parsed = text.str.to_datetime(form, strict=False, time_unit="us")
    return parsed.dt.replace_time_zone(None) if "z" in form else parsed


def in_range(found: pl.Series) -> pl.Series:
    """Dates in microseconds, null where nanoseconds could not hold them."""
    stamps = found.to_physical()
    held = (stamps >= int(_EARLIEST.astype(np.int64))) & (stamps < int(_LATEST.astype(np.int64)))
    return pl.select(pl.when(held).then(found).otherwise(None)).to_series()


def time_text(cells: pl.Series) -> pl.Series:
    """A column of times for :func:`dates` and :class:`TimeColumn`: dates as they are, all else as text."""
    if cells.dtype == pl.Date:
        return cells.cast(pl.Datetime("us"))
    if isinstance(cells.dtype, pl.Datetime):
        # With a zone, what is stored is UTC.
        return cells.dt.cast_time_unit("us").to_physical().cast(pl.Datetime("us"))
    text = cells if cells.dtype == pl.String else cells.cast(pl.String, strict=False)
    return text.str.strip_chars()


class TimeColumn:
    """Time stamps that come in pieces: dates if all of them are, else integers if all of them are."""

    def __init__(self, budget: Budget) -> None:
        self._dates: GrowingArray | None = GrowingArray("datetime64[ns]", None, budget)
        self._integers: GrowingArray | None = GrowingArray(np.int64, None, budget)
        self._rows = 0
        self._no_date: tuple[int, str] | None = None

    def add(self, cells: pl.Series) -> tuple[int, str] | None:
        """Take in the next cells, as :func:`time_text` gives them.

        Returns:
            Position, from the first piece on, and text of the first cell that is no date, once neither dates nor
            integers are possible; None before.
        """
        if self._dates is not None:
            found = dates(cells)
            if found.null_count():
                index = int(np.argmax(found.is_null().to_numpy()))
                self._no_date = (self._rows + index, str(cells[index] or ""))
                self._dates = None
            else:
                self._dates.append(found.to_numpy().astype("datetime64[ns]"))
        if self._integers is not None:
            whole = cells.cast(pl.Int64, strict=False) if cells.dtype == pl.String else None
            if whole is None or whole.null_count():
                self._integers = None
            else:
                self._integers.append(whole.to_numpy())
        self._rows += len(cells)
        if self._dates is None and self._integers is None:
            return self._no_date or (0, "")
        return None

    def whole(self) -> Timestamps:
        """All time stamps: datetime64[ns], or int64."""
        kept = self._dates if self._dates is not None else self._integers
        assert kept is not None
        return cast(Timestamps, kept.whole())
