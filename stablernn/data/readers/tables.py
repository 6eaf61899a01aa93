"""Series from tables, long (a row for each series and time) and wide (a column for each channel).

Both are one format: a column of timestamps, an optional column of series names, and columns of numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Resolution, Timestamps, finite_float32
from stablernn.data.messages import format_names, format_timestamp, quote
from stablernn.data.options import ID_COLUMN, TIME_COLUMN
from stablernn.data.readers.paths import TABLE_FORMATS, detect_format
from stablernn.data.readers.spilling_array import (
    GrowingArray,
    MemoryBudget,
    find_unordered_row,
    group_rows,
    reorder_rows,
)
from stablernn.data.readers.table_chunks import first_row_number, read_chunks, read_column_names
from stablernn.data.readers.timestamps import BadTime, TimeColumn, date_format_advice, normalize_times, parse_dates
from stablernn.data.time.numeric_timestamps import ambiguous_numbers_error, check_stamps, find_resemblance
from stablernn.data.types import Notes, Series

#: Cells that mean "no value", besides the empty one; in the column of names they are names.
MISSING_CELLS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")
_NO_TEXT = -1


@dataclass(frozen=True, eq=False)
class Table:
    """The series of one file, with its rows: gaps are not filled.

    Attributes:
        name: The file's name, for messages.
        series: In order of first appearance; timestamps ascend.
        channels: Names of the columns of numbers.
        notes: Counts of rows, missing values and blank rows.
        texts: Of each column of text that was asked for, the value of each series, empty where it has none.
    """

    name: str
    series: tuple[Series, ...]
    channels: tuple[str, ...]
    notes: Notes
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenTable:
    """A table with its columns; the rows are not read yet.

    Attributes:
        path: The file.
        names: All columns, in the order of the file.
        columns: The columns that are neither timestamps nor series names.
        time_name: The column of timestamps.
        id_name: The column of series names; None without one.
        stamps: What whole numbers are in the column of timestamps; None where no option says.
    """

    path: Path
    names: tuple[str, ...]
    columns: tuple[str, ...]
    time_name: str
    id_name: str | None
    stamps: str | None = None

    def read(
        self, channels: Sequence[str] | None = None, *, static: Sequence[str] = (), texts: Sequence[str] = ()
    ) -> Table:
        """Read the series with these columns of numbers, in this order.

        Args:
            channels: All columns that have no other role when omitted.
            static: Columns of numbers that have one value for each series.
            texts: Columns of text that have one value for each series.

        Raises:
            UnknownNameError: If a column does not exist.
            DataError: If a cell is no finite number, a timestamp cannot be read, is repeated or comes too early, or a
                series has two values where it must have one.
        """
        others = (*static, *texts)
        for name in (*(channels or ()), *others):
            if name not in self.columns:
                raise unknown_column_error(self.path, name, self.columns)
        names = tuple(channels or (name for name in self.columns if name not in others))
        if not names:
            raise errors.DataError(f"'{self.path.name}' has no column of numbers besides {format_names(self.names)}.")
        builder = _TableBuilder(self, names, tuple(static), tuple(texts))
        used = [self.time_name, *([self.id_name] if self.id_name else []), *names, *others]
        counts: Counter[str] = Counter()
        for chunk in read_chunks(self.path, list(dict.fromkeys(used)), counts):
            builder.add(chunk)
        table = builder.build()
        return replace(table, notes={**table.notes, **counts})


def open_table(
    path: Path, *, id_column: str = ID_COLUMN, time_column: str = TIME_COLUMN, stamps: str | None = None
) -> OpenTable:
    """Open a CSV file, plain, ``.gz`` or ``.xz``, or a Parquet file.

    Args:
        path: The file. Columns of CSV are separated by commas, the first row names them.
        id_column: Column of series names; without such a column (and with the default name) the file is one series.
        time_column: Timestamps: ISO dates (``2024-01-31``, ``2024-01-31 13:00``, also with ``/``, ``T``, a zone),
            months (``2024-01``, ``202401``) or other integers. Where the default name is missing, the first column is
            taken if it holds dates.
        stamps: What integers are: Unix times in seconds (``unix-s``) or milliseconds (``unix-ms``), dates without
            separators (``yyyymmdd``), or numbers of steps (``step``). Without it they number steps, and are refused
            where they look like one of the others. Dates with separators are always dates.

    Raises:
        UnknownNameError: If the file, or a column that was named, does not exist, or ``stamps`` is none of these.
        DataError: If the file is no table, or has no column of times.
    """
    if stamps is not None:
        check_stamps(stamps)
    if detect_format(path) not in TABLE_FORMATS:
        raise errors.DataError(f"'{path.name}' is not a table; tables are {' and '.join(TABLE_FORMATS)}.")
    names = read_column_names(path)
    time_name = _find_time_column(path, names, time_column)
    if id_column not in names and id_column != ID_COLUMN:
        raise unknown_column_error(path, id_column, names)
    id_name = id_column if id_column in names else None
    columns = tuple(name for name in names if name not in (time_name, id_name))
    if "" in columns:
        # Tables written with their row numbers have such a column; as a feature it would reveal the time.
        raise errors.DataError(f"'{path.name}' has no name for column {names.index('') + 1}. Name it or remove it.")
    return OpenTable(path, tuple(names), columns, time_name, id_name, stamps)


def unknown_column_error(path: Path, name: str, columns: Sequence[str]) -> errors.UnknownNameError:
    """Return the error for a requested column that is not in the file."""
    return errors.unknown("column", name, columns, f"'{path.name}' has {format_names(columns)}.")


def _find_time_column(path: Path, names: Sequence[str], name: str) -> str:
    if name in names:
        return name
    if name != TIME_COLUMN:
        raise unknown_column_error(path, name, names)
    cells = next(iter(read_chunks(path, [names[0]])))[names[0]]
    times = normalize_times(cells)
    if len(cells) and parse_dates(times).null_count() < len(cells):
        return names[0]
    example = times.drop_nulls().head(1)
    advice = date_format_advice(str(example[0])) if len(example) and example.dtype == pl.String else ""
    raise errors.DataError(
        f"'{path.name}' has no column '{TIME_COLUMN}' and its first column '{names[0]}' does not hold dates. "
        f"{advice or f'Name the time column; there are {format_names(names)}.'}"
    )


class _TableBuilder:
    """Collects the rows of a table chunk by chunk and builds its series at the end."""

    def __init__(
        self, source: OpenTable, channels: tuple[str, ...], static: tuple[str, ...], texts: tuple[str, ...]
    ) -> None:
        self._source = source
        self._path = source.path
        self._channels, self._static = channels, static
        # One budget: the columns together must fit into the memory, or those that do not go to disk.
        budget = MemoryBudget()
        self._times = TimeColumn(budget, source.stamps)
        self._values = GrowingArray(np.float32, len(channels), budget)
        self._static_values = GrowingArray(np.float32, len(static), budget)
        # Series names and other text as numbers, which are much smaller than text in every row.
        self._series_codes = GrowingArray(np.int32, None, budget)
        self._text_codes = {name: GrowingArray(np.int32, None, budget) for name in texts}
        self._series_names: dict[str, int] = {}
        self._texts: dict[str, dict[str, int]] = {name: {} for name in texts}
        self._resolution = {name: Resolution() for name in channels}
        self._blank_rows: list[int] = []
        self._num_rows = 0
        self._num_missing = 0

    def add(self, chunk: pl.DataFrame) -> None:
        """Take in the next rows."""
        source = self._source
        times = normalize_times(chunk[source.time_name])
        if times.null_count() or (times.dtype == pl.String and times.is_in(["", *MISSING_CELLS]).any()):
            times, chunk = self._drop_blank_rows(times, chunk)
        self._num_rows += len(chunk)
        bad_time = self._times.add(times)
        if bad_time is not None:
            raise self._time_error(bad_time)
        if source.id_name is not None:
            codes = self._encode(chunk[source.id_name], self._series_names)
            if (codes == _NO_TEXT).any():
                row = self._row_number(len(self._series_codes) + int(np.argmax(codes == _NO_TEXT)))
                raise errors.DataError(
                    f"'{self._path.name}' row {row} has no '{source.id_name}'; each row must name its series."
                )
            self._series_codes.append(codes)
        values = np.empty((len(chunk), len(self._channels)), dtype=np.float32)
        for index, name in enumerate(self._channels):
            values[:, index] = self._parse_numbers(chunk[name], len(self._values), self._resolution[name])
        self._num_missing += int(np.isnan(values).sum())
        self._values.append(values)
        if self._static:
            static = [self._parse_numbers(chunk[name], len(self._static_values), None) for name in self._static]
            self._static_values.append(np.stack(static, axis=1))
        for name, codes in self._text_codes.items():
            codes.append(self._encode(chunk[name], self._texts[name]))

    def build(self) -> Table:
        """Build the series of all rows; to be called once."""
        if not self._num_rows:
            raise errors.DataError(f"'{self._path.name}' has a header but no rows. Add a row for each series and time.")
        # Only now, since the spread of a column is that of all chunks.
        for name, resolution in self._resolution.items():
            resolution.check(f"'{self._path.name}' column '{name}'")
        ds, is_utc = self._times.finish()
        values = self._values.finish()
        names = list(self._series_names) or [self._path.name.split(".")[0]]
        codes = self._series_codes.finish() if self._series_names else np.zeros(self._num_rows, dtype=np.int32)
        order, ends = group_rows(codes, len(names))
        if order is not None:
            # A budget of its own: the rows in file order are still there.
            budget = MemoryBudget()
            ds, values = reorder_rows(ds, order, budget), reorder_rows(values, order, budget)
        starts = np.concatenate(([0], ends[:-1]))
        self._check_numbers(ds, starts, ends)
        self._check_ascending(ds, order, ends, names)
        static = self._constant_values(order, starts, names)
        texts = {name: self._constant_text(name, order, starts, names) for name in self._texts}
        series = tuple(
            Series(name, ds[start:end], values[start:end], *(() if static is None else (static[index],)))
            for index, (name, start, end) in enumerate(zip(names, starts, ends, strict=True))
        )
        return Table(self._path.name, series, self._channels, self._notes(len(series), is_utc=is_utc), texts)

    def _notes(self, num_series: int, *, is_utc: bool) -> Notes:
        notes: Notes = {
            "rows": self._num_rows,
            "series": num_series,
            "missing_values": self._num_missing,
            "blank_rows_skipped": len(self._blank_rows),
        }
        if is_utc:
            notes["time_zone"] = "UTC"
        if self._times.stamps is not None:
            notes["stamps"] = self._times.stamps
        used = (*self._channels, *self._static, *self._texts)
        ignored = [name for name in self._source.columns if name not in used]
        if ignored:
            notes["ignored_columns"] = ignored
        return notes

    def _time_error(self, bad_time: BadTime) -> errors.DataError:
        row, cell = self._row_number(bad_time.position), quote(bad_time.text)
        location = f"'{self._path.name}' row {row}, column '{self._source.time_name}'"
        if bad_time.mixes_zones:
            return errors.DataError(
                f"{location}: some times have a zone and some have none, {cell} unlike those before it. "
                "Write all of them with a zone, or all without."
            )
        if not bad_time.text:
            return errors.DataError(f"{location} is empty; each row needs its time. Add it, or remove the row.")
        if bad_time.is_out_of_range:
            return errors.DataError(
                f"{location}: {cell} is no time of the years 1678 to 2261 by data.stamps="
                f"{self._source.stamps}. Set data.stamps (--stamps) to what the numbers are."
            )
        advice = date_format_advice(bad_time.text) or (
            "Times are dates from 1678 to 2261 as 2024-01-31 or 2024-01-31 13:00:00, or integers."
            if self._source.stamps != "yyyymmdd"
            else "With data.stamps=yyyymmdd times are dates from 1678 to 2261 as 20240131 or 2024-01-31."
        )
        return errors.DataError(f"{location}: {cell} is not a time. {advice}")

    def _encode(self, cells: pl.Series, codes_of: dict[str, int]) -> Any:
        """Return a number for each text, as :func:`_encode_text` does; text with a NUL character is refused."""
        before = len(codes_of)
        codes = _encode_text(cells, codes_of)
        for text in islice(codes_of, before, None):
            if "\0" in text:
                # The rows of this chunk are counted already.
                row = self._row_number(self._num_rows - len(cells) + int(np.argmax(codes == codes_of[text])))
                raise errors.DataError(
                    f"'{self._path.name}' row {row}, column '{cells.name}' holds a NUL character (byte 0). Remove it."
                )
        return codes

    def _drop_blank_rows(self, times: pl.Series, chunk: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
        """Return the rows that have any content; the positions of the others are remembered."""
        is_blank = pl.Series([True] * len(chunk))
        for name in chunk.columns:
            cells = strip_cells(chunk[name], () if name == self._source.id_name else MISSING_CELLS)
            is_blank &= cells.is_null()
        positions = np.flatnonzero(is_blank.to_numpy())
        self._blank_rows += (positions + self._num_rows + len(self._blank_rows)).tolist()
        return times.filter(~is_blank), chunk.filter(~is_blank)

    def _row_number(self, index: int) -> int:
        """Return the number in the file of the row at this index of the rows taken in."""
        # How many rows were taken in before each blank one.
        before = np.array(self._blank_rows, dtype=np.int64) - np.arange(len(self._blank_rows))
        return first_row_number(self._path) + index + int(np.searchsorted(before, index, side="right"))

    def _parse_numbers(self, cells: pl.Series, first: int, resolution: Resolution | None) -> Float32Array:
        """Return the cells as float32; ``first`` rows were taken in before them."""
        location = f"column '{cells.name}'"
        cleaned = strip_cells(cells, MISSING_CELLS)
        if not (cleaned.dtype.is_numeric() or cleaned.dtype in (pl.String, pl.Boolean, pl.Null)):
            raise errors.DataError(
                f"'{self._path.name}' {location} holds {str(cells.dtype).lower()}, not numbers. "
                "Name the columns to read by 'channels'."
            )
        numbers = cleaned if cleaned.dtype == pl.Float32 else cleaned.cast(pl.Float64, strict=False)
        is_invalid = (numbers.is_null() & cleaned.is_not_null()).to_numpy()
        if is_invalid.any():
            index = int(np.argmax(is_invalid))
            raise errors.DataError(
                f"'{self._path.name}' row {self._row_number(first + index)}, {location}: {quote(str(cleaned[index]))} "
                "is not a number. Correct it, leave it empty if the value is missing, or name the columns to read by "
                "'channels'."
            )
        values = numbers.fill_null(float("nan")).to_numpy()
        finite = finite_float32(
            values, lambda i: f"'{self._path.name}' row {self._row_number(first + i[0])}, {location}"
        )
        if resolution is not None:
            resolution.add(values)
        return finite

    def _check_numbers(self, ds: Timestamps, starts: Int64Array, ends: Int64Array) -> None:
        """Refuse integers that are probably dates where no option says what they are."""
        if self._source.stamps is not None or ds.dtype.kind == "M":
            return
        for start, end in zip(starts, ends, strict=True):
            numbers = cast(Int64Array, ds[start:end])
            reading = find_resemblance(numbers)
            if reading is not None:
                raise ambiguous_numbers_error(self._path.name, self._source.time_name, int(numbers[0]), reading)

    def _check_ascending(self, ds: Timestamps, order: Int64Array | None, ends: Int64Array, names: list[str]) -> None:
        index = find_unordered_row(ds, ends)
        if index is None:
            return
        earlier, later = (self._row_number(int(i if order is None else order[i])) for i in (index, index + 1))
        series = ""
        if self._series_names:
            series = f" of series '{names[int(np.searchsorted(ends, index, side='right'))]}'"
        timestamp = format_timestamp(ds[index + 1])
        if ds[index + 1] == ds[index]:
            raise errors.DataError(
                f"'{self._path.name}' has the time {timestamp}{series} twice, in rows {earlier} and {later}. "
                "Remove one of them, or name the column that tells series apart."
            )
        raise errors.DataError(
            f"'{self._path.name}' is not sorted by time: row {later}{series} has {timestamp} "
            f"after {format_timestamp(ds[index])} in row {earlier}. Sort the rows."
        )

    def _constant_values(self, order: Int64Array | None, starts: Int64Array, names: list[str]) -> Float32Array | None:
        """Return the value of each static column in each series, (series, s)."""
        if not self._static:
            return None
        values = self._static_values.finish()
        grouped = values if order is None else values[order]
        # fmin and fmax skip NaN: a value in one row of a series is enough.
        low, high = np.fmin.reduceat(grouped, starts), np.fmax.reduceat(grouped, starts)
        for column, name in enumerate(self._static):
            if np.isnan(low[:, column]).any():
                series = names[int(np.argmax(np.isnan(low[:, column])))]
                raise errors.DataError(
                    f"'{self._path.name}' has no value in the static column '{name}' for series '{series}'. Give it in "
                    "one row or more."
                )
            differs = low[:, column] != high[:, column]
            if differs.any():
                self._refuse_change(grouped[:, column], int(np.argmax(differs)), order, starts, names, name, "{:g}")
        return low

    def _constant_text(
        self, column: str, order: Int64Array | None, starts: Int64Array, names: list[str]
    ) -> tuple[str, ...]:
        codes = self._text_codes[column].finish()
        grouped = codes if order is None else codes[order]
        low, high = np.minimum.reduceat(grouped, starts), np.maximum.reduceat(grouped, starts)
        # The last one is that of the code -1, no text.
        texts = np.array([*self._texts[column], ""], dtype=object)
        if (low != high).any():
            series = int(np.argmax(low != high))
            self._refuse_change(texts[grouped], series, order, starts, names, column, "'{}'")
        return tuple(str(text) for text in texts[low])

    def _refuse_change(
        self,
        grouped: Any,
        series: int,
        order: Int64Array | None,
        starts: Int64Array,
        names: list[str],
        column: str,
        form: str,
    ) -> None:
        """Refuse a column that should be constant, with the first two rows that differ in a series."""
        start = int(starts[series])
        end = int(starts[series + 1]) if series + 1 < len(starts) else len(grouped)
        part = grouped[start:end]
        # A missing number is NaN, which differs from itself, and is skipped; a missing text differs from the others.
        present = np.flatnonzero(part == part)
        first = int(present[0])
        other = int(present[np.argmax(part[present] != part[first])])
        rows = [self._row_number(start + i if order is None else int(order[start + i])) for i in (first, other)]
        raise errors.DataError(
            f"'{self._path.name}': column '{column}' must have one value for each series, got "
            f"{form.format(part[first])} in row {rows[0]} and {form.format(part[other])} in row {rows[1]} of series "
            f"'{names[series]}'."
        )


def strip_cells(cells: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Return text without outer blanks, null where it is one of the missing values; numbers as they are."""
    if cells.dtype in (pl.Categorical, pl.Enum):
        cells = cells.cast(pl.String)
    if cells.dtype != pl.String:
        return cells
    stripped = cells.str.strip_chars()
    is_missing = stripped.is_in(["", *missing])
    return stripped.set(is_missing, None) if is_missing.any() else stripped


def _encode_text(cells: pl.Series, codes_of: dict[str, int]) -> Any:
    """Return a number for each text, new ones being added to ``codes_of``; -1 where a cell is empty."""
    texts = strip_cells(cells, ()).cast(pl.String)
    distinct = texts.drop_nulls().unique(maintain_order=True)
    for text in distinct:
        codes_of.setdefault(text, len(codes_of))
    if not len(distinct):
        return np.full(len(texts), _NO_TEXT, dtype=np.int32)
    codes = pl.Series([codes_of[text] for text in distinct], dtype=pl.Int32)
    return texts.replace_strict(distinct, codes, default=_NO_TEXT, return_dtype=pl.Int32).fill_null(_NO_TEXT).to_numpy()
