"""Reads series from tables: long (a row for each series and time) and wide (a column for each channel) alike.

Both are one format: a column of timestamps, perhaps a column of series names, and columns of numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Timestamps
from stablernn.data.messages import format_names, format_timestamp, quote
from stablernn.data.options import ID_COLUMN, TIME_COLUMN
from stablernn.data.readers.paths import TABLE_FORMATS, detect_format
from stablernn.data.readers.spilling_array import Budget, GrowingArray
from stablernn.data.readers.table_chunks import first_row_number, read_chunks, read_column_names
from stablernn.data.readers.timestamps import BadTime, TimeColumn, date_format_advice, normalize_times, parse_dates
from stablernn.data.sequences import Resolution, finite_float32
from stablernn.data.time.numeric_timestamps import ambiguous_numbers_error, check_stamps, find_resemblance
from stablernn.data.types import Notes, Series

#: Cells that mean "no value", besides the empty one; in the column of names they are names.
MISSING_CELLS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")
_NO_WORD = -1
# Rows that are looked at together, where all at once would take as much memory again as the table itself.
_BLOCK_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class Table:
    """The series of one file, rows as they stand there: gaps are not filled.

    Attributes:
        name: The file's name, for messages.
        series: In order of first appearance; timestamps ascend.
        channels: Names of the columns of numbers.
        notes: Counts of rows, of cells without a value, of rows without anything.
        labels: A word a series, empty where it has none; None where no column of words was asked for.
    """

    name: str
    series: tuple[Series, ...]
    channels: tuple[str, ...]
    notes: Notes
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class OpenTable:
    """A table of which the columns are known and the rows are not read.

    Attributes:
        path: The file.
        names: All columns, in the order of the file.
        columns: The columns that are neither timestamps nor series names.
        time_name: The column of timestamps.
        id_name: The column of series names; None without one.
        stamps: What whole numbers are in the column of timestamps; None where nobody said.
    """

    path: Path
    names: tuple[str, ...]
    columns: tuple[str, ...]
    time_name: str
    id_name: str | None
    stamps: str | None = None

    def read(
        self, channels: Sequence[str] | None = None, *, static: Sequence[str] = (), label: str | None = None
    ) -> Table:
        """The series with these columns of numbers, in this order.

        Args:
            channels: All columns that have no other part when omitted.
            static: Columns of numbers that have one value for each series.
            label: A column of words that has one for each series.

        Raises:
            UnknownNameError: If a column does not exist.
            DataError: If a cell is no finite number, a timestamp is none, or comes twice or too early, or a series
                has two values where it must have one.
        """
        others = (*static, *(() if label is None else (label,)))
        for name in (*(channels or ()), *others):
            if name not in self.columns:
                raise unknown_column_error(self.path, name, self.columns)
        names = tuple(channels or (name for name in self.columns if name not in others))
        if not names:
            raise errors.DataError(f"'{self.path.name}' has no column of numbers besides {format_names(self.names)}.")
        rows = _Rows(self, names, tuple(static), label)
        used = [self.time_name, *([self.id_name] if self.id_name else []), *names, *others]
        counts: Counter[str] = Counter()
        for frame in read_chunks(self.path, list(dict.fromkeys(used)), counts):
            rows.add(frame)
        table = rows.table()
        return replace(table, notes={**table.notes, **counts})


def open_table(
    path: Path, *, id_column: str = ID_COLUMN, time_column: str = TIME_COLUMN, stamps: str | None = None
) -> OpenTable:
    """Opens a CSV file, plain, ``.gz`` or ``.xz``, or a Parquet file.

    Args:
        path: The file. Columns of CSV are separated by commas, the first row names them.
        id_column: Names the series; without such a column (and with the default name) the file is one series.
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
    time_name = _time_column(path, names, time_column)
    if id_column not in names and id_column != ID_COLUMN:
        raise unknown_column_error(path, id_column, names)
    id_name = id_column if id_column in names else None
    columns = tuple(name for name in names if name not in (time_name, id_name))
    if "" in columns:
        # Tables that were written with their row numbers have such a column; as a feature it would give the time away.
        raise errors.DataError(f"'{path.name}' has no name for column {names.index('') + 1}. Name it or remove it.")
    return OpenTable(path, tuple(names), columns, time_name, id_name, stamps)


def unknown_column_error(path: Path, name: str, columns: Sequence[str]) -> errors.UnknownNameError:
    """The error for a column that was asked for and is not in the file."""
    return errors.unknown("column", name, columns, f"'{path.name}' has {format_names(columns)}.")


def _time_column(path: Path, names: Sequence[str], name: str) -> str:
    if name in names:
        return name
    if name != TIME_COLUMN:
        raise unknown_column_error(path, name, names)
    first = next(iter(read_chunks(path, [names[0]])))[names[0]]
    words = normalize_times(first)
    if len(first) and parse_dates(words).null_count() < len(first):
        return names[0]
    some = words.drop_nulls().head(1)
    advice = date_format_advice(str(some[0])) if len(some) and some.dtype == pl.String else ""
    raise errors.DataError(
        f"'{path.name}' has no column '{TIME_COLUMN}' and its first column '{names[0]}' does not hold dates. "
        f"{advice or f'Name the time column; there are {format_names(names)}.'}"
    )


class _Rows:
    """The rows of a table as they come in, and at the end its series."""

    def __init__(
        self, opened: OpenTable, channels: tuple[str, ...], static: tuple[str, ...], label: str | None
    ) -> None:
        self._opened = opened
        self._path = opened.path
        self._channels, self._static, self._label = channels, static, label
        budget = Budget()
        self._times = TimeColumn(budget, opened.stamps)
        self._values = GrowingArray(np.float32, len(channels), budget)
        self._fixed = GrowingArray(np.float32, len(static), budget)
        self._series = GrowingArray(np.int32, None, budget)
        self._words = GrowingArray(np.int32, None, budget)
        self._ids: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._resolution = {name: Resolution() for name in channels}
        self._blank: list[int] = []
        self._seen = 0
        self._missing = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Take in the next rows."""
        opened = self._opened
        text = normalize_times(frame[opened.time_name])
        if text.null_count() or (text.dtype == pl.String and text.is_in(["", *MISSING_CELLS]).any()):
            text, frame = self._without_blank(text, frame)
        self._seen += len(frame)
        wrong = self._times.add(text)
        if wrong is not None:
            raise self._no_time(wrong)
        if opened.id_name is not None:
            codes = self._coded(frame[opened.id_name], self._ids)
            if (codes == _NO_WORD).any():
                row = self._row(len(self._series) + int(np.argmax(codes == _NO_WORD)))
                raise errors.DataError(
                    f"'{self._path.name}' row {row} has no '{opened.id_name}'; each row must name its series."
                )
            self._series.append(codes)
        values = np.empty((len(frame), len(self._channels)), dtype=np.float32)
        for index, name in enumerate(self._channels):
            values[:, index] = self._numbers(frame[name], len(self._values), self._resolution[name])
        self._missing += int(np.isnan(values).sum())
        self._values.append(values)
        if self._static:
            fixed = [self._numbers(frame[name], len(self._fixed), None) for name in self._static]
            self._fixed.append(np.stack(fixed, axis=1))
        if self._label is not None:
            self._words.append(self._coded(frame[self._label], self._labels))

    def table(self) -> Table:
        """The series of all rows."""
        if not self._seen:
            raise errors.DataError(f"'{self._path.name}' has a header but no rows. Add a row for each series and time.")
        for name, seen in self._resolution.items():
            seen.check(f"'{self._path.name}' column '{name}'")
        ds, in_utc = self._times.whole()
        values = self._values.whole()
        names = list(self._ids) or [self._path.name.split(".")[0]]
        codes = self._series.whole() if self._ids else np.zeros(self._seen, dtype=np.int32)
        order, ends = _grouped(codes, len(names))
        if order is not None:
            budget = Budget()
            ds, values = _reordered(ds, order, budget), _reordered(values, order, budget)
        starts = np.concatenate(([0], ends[:-1]))
        self._check_numbers(ds, starts, ends)
        self._check_ascending(ds, order, ends, names)
        static = self._constant(self._fixed.whole(), order, starts, names)
        labels = self._constant_label(order, starts, names) if self._label is not None else None
        series = tuple(
            Series(name, ds[start:end], values[start:end], *(() if static is None else (static[index],)))
            for index, (name, start, end) in enumerate(zip(names, starts, ends, strict=True))
        )
        notes: Notes = {
            "rows": self._seen,
            "series": len(series),
            "missing_values": self._missing,
            "blank_rows_skipped": len(self._blank),
        }
        if in_utc:
            notes["time_zone"] = "UTC"
        if self._times.stamps is not None:
            notes["stamps"] = self._times.stamps
        used = (*self._channels, *self._static, self._label)
        ignored = [name for name in self._opened.columns if name not in used]
        if ignored:
            notes["ignored_columns"] = ignored
        return Table(self._path.name, series, self._channels, notes, labels)

    def _no_time(self, wrong: BadTime) -> errors.DataError:
        where = f"'{self._path.name}' row {self._row(wrong.position)}, column '{self._opened.time_name}'"
        if wrong.mixes_zones:
            return errors.DataError(
                f"{where}: some times have a zone and some have none, {quote(wrong.text)} unlike those before it. "
                "Write all of them with a zone, or all without."
            )
        if not wrong.text:
            return errors.DataError(f"{where} is empty; each row needs its time. Add it, or remove the row.")
        if wrong.is_out_of_range:
            return errors.DataError(
                f"{where}: {quote(wrong.text)} is no time of the years 1678 to 2261 by data.stamps="
                f"{self._opened.stamps}. Set data.stamps (--stamps) to what the numbers are."
            )
        advice = date_format_advice(wrong.text) or (
            "Times are dates from 1678 to 2261 as 2024-01-31 or 2024-01-31 13:00:00, or integers."
            if self._opened.stamps != "yyyymmdd"
            else "With data.stamps=yyyymmdd times are dates from 1678 to 2261 as 20240131 or 2024-01-31."
        )
        return errors.DataError(f"{where}: {quote(wrong.text)} is not a time. {advice}")

    def _coded(self, cells: pl.Series, known: dict[str, int]) -> Any:
        """A number for each word, as of :func:`_codes`."""
        before = len(known)
        codes = _codes(cells, known)
        for word in islice(known, before, None):
            if "\0" in word:
                # The rows of this frame are counted already.
                row = self._row(self._seen - len(cells) + int(np.argmax(codes == known[word])))
                raise errors.DataError(
                    f"'{self._path.name}' row {row}, column '{cells.name}' holds a NUL character (byte 0). Remove it."
                )
        return codes

    def _without_blank(self, text: pl.Series, frame: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
        """The rows in which anything stands; the others are counted."""
        empty = pl.Series([True] * len(frame))
        for name in frame.columns:
            words = strip_cells(frame[name], () if name == self._opened.id_name else MISSING_CELLS)
            empty &= words.is_null()
        found = np.flatnonzero(empty.to_numpy())
        self._blank += (found + self._seen + len(self._blank)).tolist()
        return text.filter(~empty), frame.filter(~empty)

    def _row(self, index: int) -> int:
        """Number in the file of a row that was taken in."""
        before = np.array(self._blank, dtype=np.int64) - np.arange(len(self._blank))
        return first_row_number(self._path) + index + int(np.searchsorted(before, index, side="right"))

    def _numbers(self, cells: pl.Series, first: int, resolution: Resolution | None) -> Float32Array:
        """The cells as float32; ``first`` rows came before them."""
        where = f"column '{cells.name}'"
        cleaned = strip_cells(cells, MISSING_CELLS)
        if not (cleaned.dtype.is_numeric() or cleaned.dtype in (pl.String, pl.Boolean, pl.Null)):
            raise errors.DataError(
                f"'{self._path.name}' {where} holds {str(cells.dtype).lower()}, not numbers. "
                "Name the columns to read by 'channels'."
            )
        found = cleaned if cleaned.dtype == pl.Float32 else cleaned.cast(pl.Float64, strict=False)
        wrong = (found.is_null() & cleaned.is_not_null()).to_numpy()
        if wrong.any():
            index = int(np.argmax(wrong))
            raise errors.DataError(
                f"'{self._path.name}' row {self._row(first + index)}, {where}: {quote(str(cleaned[index]))} is not a "
                "number. Correct it, leave it empty if the value is missing, or name the columns to read by 'channels'."
            )
        values = found.fill_null(float("nan")).to_numpy()
        finite = finite_float32(values, lambda i: f"'{self._path.name}' row {self._row(first + i[0])}, {where}")
        if resolution is not None:
            resolution.add(values)
        return finite

    def _check_numbers(self, ds: Timestamps, starts: Int64Array, ends: Int64Array) -> None:
        """Refuse integers that are probably dates where nobody said what they are."""
        if self._opened.stamps is not None or ds.dtype.kind == "M":
            return
        for start, end in zip(starts, ends, strict=True):
            numbers = cast(Int64Array, ds[start:end])
            reading = find_resemblance(numbers)
            if reading is not None:
                raise ambiguous_numbers_error(self._path.name, self._opened.time_name, int(numbers[0]), reading)

    def _check_ascending(self, ds: Timestamps, order: Int64Array | None, ends: Int64Array, names: list[str]) -> None:
        index = _first_late(ds, ends)
        if index is None:
            return
        earlier, later = (self._row(int(i if order is None else order[i])) for i in (index, index + 1))
        whose = f" of series '{names[int(np.searchsorted(ends, index, side='right'))]}'" if self._ids else ""
        stamp = format_timestamp(ds[index + 1])
        if ds[index + 1] == ds[index]:
            raise errors.DataError(
                f"'{self._path.name}' has the time {stamp}{whose} twice, in rows {earlier} and {later}. "
                "Remove one of them, or name the column that tells series apart."
            )
        raise errors.DataError(
            f"'{self._path.name}' is not sorted by time: row {later}{whose} has {stamp} "
            f"after {format_timestamp(ds[index])} in row {earlier}. Sort the rows."
        )

    def _constant(
        self, fixed: Float32Array, order: Int64Array | None, starts: Int64Array, names: list[str]
    ) -> Float32Array | None:
        """The value of each static column in each series, (series, s)."""
        if not self._static:
            return None
        grouped = fixed if order is None else fixed[order]
        low, high = np.fmin.reduceat(grouped, starts), np.fmax.reduceat(grouped, starts)
        for column, name in enumerate(self._static):
            if np.isnan(low[:, column]).any():
                one = names[int(np.argmax(np.isnan(low[:, column])))]
                raise errors.DataError(
                    f"'{self._path.name}' has no value in the static column '{name}' for series '{one}'. Give it in "
                    "one row or more."
                )
            differs = low[:, column] != high[:, column]
            if differs.any():
                self._refuse_change(grouped[:, column], int(np.argmax(differs)), order, starts, names, name, "{:g}")
        return low

    def _constant_label(self, order: Int64Array | None, starts: Int64Array, names: list[str]) -> tuple[str, ...]:
        codes = self._words.whole()
        grouped = codes if order is None else codes[order]
        low, high = np.minimum.reduceat(grouped, starts), np.maximum.reduceat(grouped, starts)
        words = np.array([*self._labels, ""], dtype=object)
        if (low != high).any():
            assert self._label is not None
            series = int(np.argmax(low != high))
            self._refuse_change(words[grouped], series, order, starts, names, self._label, "'{}'")
        return tuple(str(word) for word in words[low])

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
        start = int(starts[series])
        end = int(starts[series + 1]) if series + 1 < len(starts) else len(grouped)
        part = grouped[start:end]
        # A missing number is no value, and differs from itself; a missing word is one that differs from others.
        present = np.flatnonzero(part == part)
        first = int(present[0])
        other = int(present[np.argmax(part[present] != part[first])])
        rows = [self._row(start + i if order is None else int(order[start + i])) for i in (first, other)]
        raise errors.DataError(
            f"'{self._path.name}': column '{column}' must have one value for each series, got "
            f"{form.format(part[first])} in row {rows[0]} and {form.format(part[other])} in row {rows[1]} of series "
            f"'{names[series]}'."
        )


def strip_cells(cells: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Words without outer blanks, null where there is no value; numbers as they are."""
    if cells.dtype in (pl.Categorical, pl.Enum):
        cells = cells.cast(pl.String)
    if cells.dtype != pl.String:
        return cells
    stripped = cells.str.strip_chars()
    none = stripped.is_in(["", *missing])
    return stripped.set(none, None) if none.any() else stripped


def _codes(cells: pl.Series, known: dict[str, int]) -> Any:
    """A number for each word, new ones added to those known; -1 where there is none."""
    words = strip_cells(cells, ()).cast(pl.String)
    distinct = words.drop_nulls().unique(maintain_order=True)
    for word in distinct:
        known.setdefault(word, len(known))
    if not len(distinct):
        return np.full(len(words), _NO_WORD, dtype=np.int32)
    numbers = pl.Series([known[word] for word in distinct], dtype=pl.Int32)
    return (
        words.replace_strict(distinct, numbers, default=_NO_WORD, return_dtype=pl.Int32).fill_null(_NO_WORD).to_numpy()
    )


def _grouped(codes: Any, count: int) -> tuple[Int64Array | None, Int64Array]:
    """An order that puts the rows of each series together, None where they are so; where each series ends in it."""
    ends = np.cumsum(sum(np.bincount(codes[i : i + _BLOCK_ROWS], minlength=count) for i in _blocks(len(codes))))
    if sum(np.count_nonzero(np.diff(codes[i : i + _BLOCK_ROWS + 1])) for i in _blocks(len(codes))) == count - 1:
        return None, ends
    return np.argsort(codes, kind="stable"), ends


def _reordered(array: Any, order: Int64Array, budget: Budget) -> Any:
    """``array[order]``, on disk where memory would not hold it."""
    grown = GrowingArray(array.dtype, array.shape[1] if array.ndim > 1 else None, budget)
    for start in _blocks(len(order)):
        grown.append(array[order[start : start + _BLOCK_ROWS]])
    return grown.whole()


def _first_late(ds: Timestamps, ends: Int64Array) -> int | None:
    """The first row that the next one of its series does not come after; series end before ``ends``."""
    for start in _blocks(len(ds)):
        # As integers, and not as their difference, which overflows beyond 292 years.
        block = ds[start : start + _BLOCK_ROWS + 1].view(np.int64)
        late = np.asarray(block[1:] <= block[:-1])
        borders = ends[(ends > start) & (ends <= start + len(late))] - 1 - start
        late[borders] = False
        if late.any():
            return start + int(np.argmax(late))
    return None


def _blocks(rows: int) -> range:
    return range(0, rows, _BLOCK_ROWS)
