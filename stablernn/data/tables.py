"""Reads series from CSV: long (a row for each series and time) and wide (a column for each channel) alike.

Both are one format: a column of time stamps, perhaps a column of series names, and columns of numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.files import read_text, require_task
from stablernn.data.sequences import check_resolution, finite_float32
from stablernn.data.types import Notes, Series, Timestamps
from stablernn.data.windows import Float32Array, Int64Array
from stablernn.data.wording import listing, quoted, stamp_text

ID_COLUMN = "unique_id"
TIME_COLUMN = "ds"

#: Cells that mean "no value", besides the empty one; in the column of names they are names.
_MISSING = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")
# The header is row 1 and numbering starts at 1, so this is what editors and spreadsheets show.
_FIRST_ROW = 2
_EARLIEST, _LATEST = np.datetime64("1678-01-01", "us"), np.datetime64("2262-01-01", "us")
_FORMATS = (
    "%Y-%m-%d",
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d %H:%M:%S%.f%#z",
    "%Y-%m-%d %H:%M%#z",
)


@dataclass(frozen=True, eq=False)
class Table:
    """The series of one file, rows as they stand there: gaps are not filled.

    Attributes:
        name: The file's name, for messages.
        series: In order of first appearance; time stamps ascend.
        channels: Names of the columns of numbers.
        notes: Counts of rows, of cells without a value, of rows without anything.
    """

    name: str
    series: tuple[Series, ...]
    channels: tuple[str, ...]
    notes: Notes


@dataclass(frozen=True, eq=False)
class OpenTable:
    """A file whose time stamps and series names are read and whose columns of numbers are still text.

    Attributes:
        path: The file.
        cells: All cells as text, null where there is no value.
        rows: Number of each row in the file.
        ds: Time stamp of each row.
        ids: Series of each row; None without such a column.
        columns: The columns that are neither time stamps nor series names.
        blank_rows: Rows without anything, left out.
    """

    path: Path
    cells: pl.DataFrame
    rows: Int64Array
    ds: Timestamps
    ids: list[str] | None
    columns: tuple[str, ...]
    blank_rows: int

    def read(self, channels: Sequence[str] | None = None) -> Table:
        """The series with these columns of numbers, in this order; with all columns when omitted.

        Raises:
            UnknownNameError: If a column does not exist.
            DataError: If a cell is no finite number, or a time stamp comes twice or too early.
        """
        for name in channels or ():
            if name not in self.columns:
                raise unknown_column(self.path, name, self.columns)
        names = tuple(channels or self.columns)
        if not names:
            raise errors.DataError(
                f"'{self.path.name}' has no column of numbers besides {listing(self.cells.columns)}."
            )
        values = np.stack([_numbers(self.path, self.cells[name], self.rows) for name in names], axis=1)
        only = self.path.name.split(".")[0]
        series = []
        for unique_id, members in _groups(np.array(self.ids or [only] * len(self.rows))):
            _check_ascending(self.path, unique_id if self.ids else None, self.ds[members], self.rows[members])
            series.append(Series(unique_id, self.ds[members], values[members]))
        notes: Notes = {
            "rows": len(self.rows),
            "series": len(series),
            "missing_values": int(np.isnan(values).sum()),
            "blank_rows_skipped": self.blank_rows,
        }
        ignored = [name for name in self.columns if name not in names]
        return Table(self.path.name, tuple(series), names, {**notes, "ignored_columns": ignored} if ignored else notes)


def open_table(path: Path, *, id_column: str = ID_COLUMN, time_column: str = TIME_COLUMN) -> OpenTable:
    """Opens a CSV file, plain or ``.gz``.

    Args:
        path: The file. Columns are separated by commas, the first row names them.
        id_column: Names the series; without such a column (and with the default name) the file is one series.
        time_column: Time stamps: ISO dates (``2024-01-31``, ``2024-01-31 13:00``, also with ``/``, ``T``, a zone),
            months (``2024-01``), months and days without dashes (``202401``, ``20240131``) or other integers. Where the
            default name is missing, the first column is taken if it holds dates.

    Raises:
        UnknownNameError: If the file, or a column that was named, does not exist.
        DataError: If the file is no CSV, a time stamp is none, or nothing is in the file.
    """
    require_task(path, "forecast")
    cells, blank_rows, rows = _read_cells(path, id_column)
    time_name, ds = _time_column(path, cells, rows, time_column)
    ids = _id_column(path, cells, rows, id_column)
    columns = tuple(name for name in cells.columns if name != time_name and (ids is None or name != id_column))
    if "" in columns:
        # Tables that were written with their row numbers have such a column; as a feature it would give the time away.
        position = cells.columns.index("") + 1
        raise errors.DataError(f"'{path.name}' has no name for column {position}. Name it or remove it.")
    return OpenTable(path, cells, rows, ds, ids, columns, blank_rows)


def _read_cells(path: Path, id_column: str) -> tuple[pl.DataFrame, int, Int64Array]:
    """All cells as text without outer blanks, null where there is no value; rows blank throughout are left out."""
    text = read_text(path)
    try:
        header = [" ".join(name.split()) for name in next(csv.reader(io.StringIO(text)))]
        twice = next((name for name in header if header.count(name) > 1), None)
        if not any(header):
            raise errors.DataError(f"'{path.name}' begins with a blank row; the first row must name the columns.")
        if twice is not None:
            raise errors.DataError(f"'{path.name}' has the column '{twice}' twice. Rename one of them.")
        frame = pl.read_csv(text.encode(), infer_schema=False)
        frame.columns = header
    except (pl.exceptions.PolarsError, csv.Error) as error:
        reason = str(error).splitlines()[0]
        raise errors.DataError(f"'{path.name}' is not a CSV file with one header row ({reason}).") from error
    stripped = frame.with_columns(pl.all().str.strip_chars())
    cells = stripped.select(
        pl.when(pl.col(name).is_in([""] if name == id_column else ["", *_MISSING]))
        .then(None)
        .otherwise(pl.col(name))
        .alias(name)
        for name in stripped.columns
    )
    blank = cells.select(pl.all_horizontal(pl.all().is_null())).to_series().to_numpy()
    rows = np.flatnonzero(~blank).astype(np.int64) + _FIRST_ROW
    if not len(rows):
        raise errors.DataError(f"'{path.name}' has a header but no rows.")
    return cells.filter(pl.Series(~blank)), int(blank.sum()), rows


def _time_column(path: Path, cells: pl.DataFrame, rows: Int64Array, name: str) -> tuple[str, Timestamps]:
    if name in cells.columns:
        return name, _timestamps(path, name, cells[name], rows)
    if name != TIME_COLUMN:
        raise unknown_column(path, name, cells.columns)
    first = cells.columns[0]
    if _dates(cells[first]).null_count() < len(cells):
        return first, _timestamps(path, first, cells[first], rows)
    raise errors.DataError(
        f"'{path.name}' has no column '{TIME_COLUMN}' and its first column '{first}' does not hold dates. "
        f"Name the time column; there are {listing(cells.columns)}."
    )


def _id_column(path: Path, cells: pl.DataFrame, rows: Int64Array, name: str) -> list[str] | None:
    if name not in cells.columns:
        if name != ID_COLUMN:
            raise unknown_column(path, name, cells.columns)
        return None
    column = cells[name]
    if column.null_count():
        row = rows[int(np.argmax(column.is_null().to_numpy()))]
        raise errors.DataError(f"'{path.name}' row {row} has no '{name}'; each row must name its series.")
    return [" ".join(word.split()) for word in column.to_list()]


def unknown_column(path: Path, name: str, columns: Sequence[str]) -> errors.UnknownNameError:
    """The error for a column that was asked for and is not in the file."""
    return errors.unknown("column", name, columns, f"'{path.name}' has {listing(columns)}.")


def _numbers(path: Path, cells: pl.Series, rows: Int64Array) -> Float32Array:
    numbers = cells.cast(pl.Float64, strict=False)
    wrong = (numbers.is_null() & cells.is_not_null()).to_numpy()
    if wrong.any():
        index = int(np.argmax(wrong))
        raise errors.DataError(
            f"'{path.name}' row {rows[index]}, column '{cells.name}': {quoted(cells[index])} is not a number. "
            "Correct it, leave it empty if the value is missing, or name the columns to read by 'channels'."
        )
    values = numbers.fill_null(float("nan")).to_numpy()
    finite = finite_float32(values, lambda i: f"'{path.name}' row {rows[i[0]]}, column '{cells.name}'")
    check_resolution(values[:, None], lambda _: f"'{path.name}' column '{cells.name}'")
    return finite


def _timestamps(path: Path, name: str, cells: pl.Series, rows: Int64Array) -> Timestamps:
    integers = cells.cast(pl.Int64, strict=False)
    dates = _dates(cells)
    if integers.null_count() == 0 and dates.null_count():
        return integers.to_numpy().astype(np.int64)
    wrong = dates.is_null().to_numpy()
    if wrong.any():
        index = int(np.argmax(wrong))
        raise errors.DataError(
            f"'{path.name}' row {rows[index]}, column '{name}': {quoted(cells[index] or '')} is not a time. "
            "Times are dates from 1678 to 2261 as 2024-01-31 or 2024-01-31 13:00:00, or integers."
        )
    return dates.to_numpy().astype("datetime64[ns]")


def _dates(cells: pl.Series) -> pl.Series:
    """Dates in UTC, in microseconds; null where a cell is none or nanoseconds could not hold it."""
    text = cells.str.replace_all("/", "-", literal=True).str.replace("T", " ", literal=True)
    text = text.str.replace(r"^(\d{4})(\d\d)(\d\d)$", "$1-$2-$3").str.replace(r"^(\d{4})(\d\d)$", "$1-$2")
    text = text.str.replace(r"^(\d{4}-\d{1,2})$", "$1-01")
    dates = pl.Series([None] * len(text), dtype=pl.Datetime("us"))
    for form in _FORMATS:
        if not dates.null_count():
            break
        parsed = text.str.to_datetime(form, strict=False, time_unit="us")
        dates = dates.fill_null(parsed.dt.replace_time_zone(None) if "z" in form else parsed)
    in_range = _in_range(dates)
    return pl.select(pl.when(in_range).then(dates).otherwise(None)).to_series()


def _in_range(dates: pl.Series) -> pl.Series:
    stamps = dates.to_physical()
    return (stamps >= int(_EARLIEST.astype(np.int64))) & (stamps < int(_LATEST.astype(np.int64)))


def _groups(ids: npt.NDArray[np.str_]) -> list[tuple[str, Int64Array]]:
    """Rows of each series, in the order of the file, series by first appearance."""
    words, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    rows = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    return [(str(words[group]), rows[group]) for group in np.argsort(first)]


def _check_ascending(path: Path, unique_id: str | None, ds: Timestamps, rows: Int64Array) -> None:
    late = np.diff(ds).astype(np.int64) <= 0
    if not late.any():
        return
    index = int(np.argmax(late))
    whose = f" of series '{unique_id}'" if unique_id is not None else ""
    stamp = stamp_text(ds[index + 1])
    if ds[index + 1] == ds[index]:
        raise errors.DataError(
            f"'{path.name}' has the time {stamp}{whose} twice, in rows {rows[index]} and {rows[index + 1]}. "
            "Remove one of them, or name the column that tells series apart."
        )
    raise errors.DataError(
        f"'{path.name}' is not sorted by time: row {rows[index + 1]}{whose} has {stamp} "
        f"after {stamp_text(ds[index])} in row {rows[index]}. Sort the rows."
    )
