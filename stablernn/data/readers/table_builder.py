"""The rows of a table, taken in chunk by chunk, as series."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Resolution, Timestamps, finite_float32
from stablernn.data.messages import quote
from stablernn.data.options import Repairs
from stablernn.data.readers.cells import (
    MISSING_CELLS,
    NO_TEXT,
    CellError,
    encode_text,
    restore_integers,
    strip_cells,
    suggest_thousands_mark,
)
from stablernn.data.readers.row_checks import no_series_error, refuse_unordered_rows
from stablernn.data.readers.spilling_array import GrowingArray, MemoryBudget, group_rows, reorder_rows
from stablernn.data.readers.table_chunks import first_row_number
from stablernn.data.readers.timestamps import BadTime, TimeColumn, date_format_advice, normalize_times
from stablernn.data.repairs.categories import CategoryCodes, expand_names
from stablernn.data.repairs.duplicate_rows import find_repeats, find_unlike_categories, merge_duplicates
from stablernn.data.repairs.local_times import are_days, convert_to_utc, find_skipped_time, to_days
from stablernn.data.repairs.missing_codes import MissingCodes
from stablernn.data.repairs.row_order import sort_order
from stablernn.data.stacked_series import StackedSeries
from stablernn.data.time.numeric_timestamps import refuse_ambiguous_numbers
from stablernn.data.types import Notes
from stablernn.terms import terms


class BuiltSeries(NamedTuple):
    """The series of a table and the facts about them, as :class:`stablernn.data.readers.tables.Table` has them."""

    series: StackedSeries
    channels: tuple[str, ...]
    notes: Notes
    texts: Mapping[str, tuple[str, ...]]
    static: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]


class _Rows(NamedTuple):
    """All rows of a table, those of each series together.

    Attributes:
        ds: Timestamps.
        values: float32 (rows, columns).
        order: Index of each row among the rows taken in; None where they are in the order of the file.
        ends: End of each series.
    """

    ds: Timestamps
    values: Float32Array
    order: Int64Array | None
    ends: Int64Array

    @property
    def starts(self) -> Int64Array:
        """First row of each series."""
        return np.concatenate(([0], self.ends[:-1]))


class TableBuilder:
    """Collects the rows of a table chunk by chunk and builds its series at the end.

    Args:
        path: The file.
        time_name: The column of timestamps.
        id_name: The column of series names; None without one.
        repairs: What is converted, merged or replaced.
        stamps: What whole numbers are in the column of timestamps; None where no option says.
        columns: Columns of numbers and of categories that vary.
        static: Columns of numbers and of categories that have one value for each series.
        texts: Columns of text that have one value for each series.
        exclude: Names of series to leave out, each with the reason.
        rows_before: Rows of the file before the first one that is taken in.
        series_columns: Columns that are series of their own, without a column of series names.
    """

    def __init__(
        self,
        path: Path,
        time_name: str,
        id_name: str | None,
        repairs: Repairs,
        *,
        stamps: str | None,
        columns: tuple[str, ...],
        static: tuple[str, ...],
        texts: tuple[str, ...],
        exclude: Mapping[str, str] | None = None,
        rows_before: int = 0,
        series_columns: Collection[str] = (),
    ) -> None:
        self._series_columns = series_columns
        self._first_row = first_row_number(path) + rows_before
        self._path, self._time_name, self._id_name, self._stamps = path, time_name, id_name, stamps
        self._repairs, self._columns, self._static = repairs, columns, static
        self._exclude = exclude or {}
        self._codes = MissingCodes(path.name, repairs.missing)
        self._categories = CategoryCodes(
            path.name, repairs.categories, refuses_unknown=repairs.unknown_category == "error"
        )
        # One budget: the columns together must fit into the memory, or those that do not go to disk.
        budget = MemoryBudget()
        self._times = TimeColumn(budget, stamps, repairs.date_format)
        self._values = GrowingArray(np.float32, len(columns), budget)
        self._static_values = GrowingArray(np.float32, len(static), budget)
        # Series names and other text as numbers, which are much smaller than text in every row.
        self._series_codes = GrowingArray(np.int32, None, budget)
        self._text_codes = {name: GrowingArray(np.int32, None, budget) for name in texts}
        self._series_names: dict[str, int] = {}
        self._texts: dict[str, dict[str, int]] = {name: {} for name in texts}
        self._resolution = {name: Resolution() for name in columns if name not in self._categories}
        self._skipped_rows: list[int] = []
        self._num_blank = 0
        # Number of the series of each row of the chunk that is taken in.
        self._chunk_codes: npt.NDArray[np.int32] | None = None
        self._num_rows = 0
        self._num_missing = 0

    def add(self, chunk: pl.DataFrame) -> None:
        """Take in the next rows."""
        times = normalize_times(chunk[self._time_name])
        may_be_blank = times.null_count() or (times.dtype == pl.String and times.is_in(["", *MISSING_CELLS]).any())
        if may_be_blank or self._exclude:
            times, chunk = self._skip_rows(times, chunk, may_be_blank=bool(may_be_blank))
        self._num_rows += len(chunk)
        bad_time = self._times.add(times)
        if bad_time is not None:
            raise self._time_error(bad_time, times)
        if self._id_name is not None:
            codes = self._encode(chunk[self._id_name], self._series_names)
            if (codes == NO_TEXT).any():
                row = self._row_number(len(self._series_codes) + int(np.argmax(codes == NO_TEXT)))
                raise errors.DataError(
                    f"{terms().row_of(self._path.name, row)} has no '{self._id_name}'; each row must name its series."
                )
            self._series_codes.append(codes)
            self._chunk_codes = codes
        values = np.empty((len(chunk), len(self._columns)), dtype=np.float32)
        faulty: dict[str, str] = {}
        for index, name in enumerate(self._columns):
            try:
                values[:, index] = self._parse_cells(chunk[name], len(self._values), self._resolution.get(name))
            except errors.DataError as error:
                # All series at fault are named at once, so that the file is not read again for each.
                if name not in self._series_columns:
                    raise
                faulty |= error.series
        errors.raise_for_series(faulty)
        self._num_missing += int(np.isnan(values).sum())
        self._values.append(values)
        if self._static:
            static = [self._parse_cells(chunk[name], len(self._static_values), None) for name in self._static]
            self._static_values.append(np.stack(static, axis=1))
        for name, codes in self._text_codes.items():
            codes.append(self._encode(chunk[name], self._texts[name]))

    def build(self) -> BuiltSeries:
        """Build the series of all rows; to be called once."""
        if not self._num_rows and self._exclude:
            raise no_series_error(self._path.name, self._exclude)
        if not self._num_rows:
            raise errors.DataError(
                f"{terms().file(self._path.name)} has a header but no rows. Add a row for each series and time."
            )
        # Only now, since the spread of a column is that of all chunks.
        for name, resolution in self._resolution.items():
            resolution.check(partial(self._column_name, name), series=self._series_of_column(name))
        names = list(self._series_names) or [self._path.name.split(".")[0]]
        categories, category_notes = self._categories.finish()
        notes: Notes = {
            "rows": self._num_rows,
            "series": len(names),
            "missing_values": self._num_missing,
            "blank_rows_skipped": self._num_blank,
            **self._codes.finish(self._series_of_column),
            **category_notes,
        }
        if categories:
            notes["categories"] = {name: list(vocabulary) for name, vocabulary in categories.items()}
        if self._times.stamps is not None:
            notes["stamps"] = self._times.stamps
        rows, is_utc = self._group(len(names))
        if self._stamps is None and rows.ds.dtype.kind != "M":
            refuse_ambiguous_numbers(
                self._path.name, self._time_name, cast(Int64Array, rows.ds), zip(rows.starts, rows.ends, strict=True)
            )
        rows, is_utc = self._convert_times(rows, is_utc, names, notes)
        if is_utc:
            notes["time_zone"] = "UTC"
        rows = self._sort(rows, notes)
        static = self._constant_values(rows, names)
        texts = {name: self._constant_text(name, rows, names) for name in self._texts}
        rows = self._merge(rows, names, notes, has_local_times=not is_utc)
        values = self._categories.expand(rows.values, self._columns) if categories else rows.values
        static_values = None if static is None else self._categories.expand(static, self._static)
        series = StackedSeries(names, rows.ds, values, rows.ends, static_values)
        channels, static_names = (expand_names(each, categories) for each in (self._columns, self._static))
        return BuiltSeries(series, channels, notes, texts, static_names, categories)

    def _group(self, num_series: int) -> tuple[_Rows, bool]:
        """Return all rows, those of each series together, and whether their times are instants."""
        ds, is_utc = self._times.finish()
        values = self._values.finish()
        codes = self._series_codes.finish() if self._series_names else np.zeros(self._num_rows, dtype=np.int32)
        order, ends = group_rows(codes, num_series)
        if order is not None:
            # A budget of its own: the rows in file order are still there.
            budget = MemoryBudget()
            ds, values = reorder_rows(ds, order, budget), reorder_rows(values, order, budget)
        return _Rows(ds, values, order, ends), is_utc

    def _convert_times(self, rows: _Rows, is_utc: bool, names: list[str], notes: Notes) -> tuple[_Rows, bool]:
        """Convert local times to UTC, and instants that are days in the zone to its days; numbers of steps stay."""
        zone = self._repairs.timezone
        if zone is None or rows.ds.dtype.kind != "M":
            return rows, is_utc
        if is_utc:
            days = to_days(rows.ds, zone)
            if days is None:
                return rows, True
            notes["calendar_days"] = zone
            return rows._replace(ds=days), False
        skipped = find_skipped_time(rows.ds, zone)
        # A day whose midnight is skipped is one, too, where it is the only row.
        if are_days(rows.ds) or (skipped is not None and (rows.ds == rows.ds.astype("datetime64[D]")).all()):
            notes["calendar_days"] = zone
            return rows, False
        if skipped is not None:
            location = terms().row_of(self._path.name, self._number_of(rows, skipped.index))
            raise errors.DataError(f"{location}: {skipped.message}", settings=skipped.settings)
        converted = convert_to_utc(rows.ds, rows.ends, zone)
        notes |= converted.notes
        return rows._replace(ds=converted.ds), True

    def _sort(self, rows: _Rows, notes: Notes) -> _Rows:
        if not self._repairs.sort:
            return rows
        order, notes["rows_sorted"] = sort_order(rows.ds, rows.ends)
        if order is None:
            return rows
        file_order = order if rows.order is None else rows.order[order]
        budget = MemoryBudget()
        ds, values = reorder_rows(rows.ds, order, budget), reorder_rows(rows.values, order, budget)
        return _Rows(cast(Timestamps, ds), values, file_order, rows.ends)

    def _merge(self, rows: _Rows, names: list[str], notes: Notes, *, has_local_times: bool) -> _Rows:
        """Merge rows that repeat a time, as far as that is asked for, and refuse rows that are not in order."""
        how = self._repairs.on_duplicate
        refuse_unordered_rows(
            self._path.name,
            rows.ds,
            rows.values,
            rows.ends,
            row_number=lambda index: self._number_of(rows, index),
            series_names=names if self._series_names else None,
            may_repeat=how != "error",
            may_be_local=has_local_times and rows.ds.dtype.kind == "M" and self._repairs.timezone is None,
        )
        if how == "error":
            return rows
        if how == "mean":
            self._refuse_mean_of_text(rows)
        merged = merge_duplicates(rows.ds, rows.values, rows.ends, how)
        notes |= merged.notes
        return _Rows(merged.ds, merged.values, None, merged.ends)

    def _refuse_mean_of_text(self, rows: _Rows) -> None:
        repeats = find_repeats(rows.ds, rows.ends)
        for column, name in enumerate(self._columns):
            index = find_unlike_categories(rows.values, repeats, column) if name in self._categories else None
            if index is not None:
                numbers = [self._number_of(rows, index - 1), self._number_of(rows, index)]
                raise errors.DataError(
                    f"{terms().column_of(self._path.name, name)} has two categories at one time, in "
                    f"{terms().rows(numbers)}, and {terms().setting('data.on_duplicate', 'mean')} cannot average text. "
                    f"Correct them, or {terms().set('data.on_duplicate', 'last')}.",
                    settings={"on_duplicate": "last"},
                )

    def _column_name(self, name: str) -> str:
        return terms().column_of(self._path.name, name)

    def _number_of(self, rows: _Rows, index: int) -> int:
        """Return the number in the file of a row of the grouped rows."""
        return self._row_number(int(index if rows.order is None else rows.order[index]))

    def _time_error(self, bad_time: BadTime, times: pl.Series) -> errors.DataError:
        row, cell = self._row_number(bad_time.position), quote(bad_time.text)
        location = f"{terms().row_of(self._path.name, row)}, column '{self._time_name}'"
        if bad_time.mixes_zones:
            return errors.DataError(
                f"{location}: some times have a zone and some have none, {cell} unlike those before it. "
                "Write all of them with a zone, or all without."
            )
        if not bad_time.text:
            return errors.DataError(f"{location} is empty; each row needs its time. Add it, or remove the row.")
        if bad_time.is_out_of_range:
            return errors.DataError(
                f"{location}: {cell} is no time of the years 1678 to 2261 by "
                f"{terms().setting('data.stamps', self._stamps)}. Set data.stamps{terms().flag('--stamps')} to what "
                "the numbers are."
            )
        if self._repairs.date_format is not None:
            form = terms().setting("data.date_format", self._repairs.date_format)
            return errors.DataError(f"{location}: {cell} is not a time by {form}. Correct one of them.")
        advice = date_format_advice(bad_time.text, times) or (
            "Times are dates from 1678 to 2261 as 2024-01-31 or 2024-01-31 13:00:00, or integers."
            if self._stamps != "yyyymmdd"
            else f"With {terms().setting('data.stamps', 'yyyymmdd')} times are dates from 1678 to 2261 as 20240131 or "
            "2024-01-31."
        )
        return errors.DataError(f"{location}: {cell} is not a time. {advice}")

    def _encode(self, cells: pl.Series, codes_of: dict[str, int]) -> Any:
        """Return a number for each text, as :func:`encode_text` does; text with a NUL character is refused."""
        before = len(codes_of)
        codes = encode_text(cells, codes_of)
        for text in islice(codes_of, before, None):
            if "\0" in text:
                # The rows of this chunk are counted already.
                row = self._row_number(self._num_rows - len(cells) + int(np.argmax(codes == codes_of[text])))
                raise errors.DataError(
                    f"{terms().row_of(self._path.name, row)}, column '{cells.name}' holds a NUL character (byte 0). "
                    "Remove it."
                )
        return codes

    def _skip_rows(
        self, times: pl.Series, chunk: pl.DataFrame, *, may_be_blank: bool
    ) -> tuple[pl.Series, pl.DataFrame]:
        """Return the rows that have any content and are not left out; the positions of the others are remembered."""
        is_skipped = pl.repeat(may_be_blank, len(chunk), eager=True)
        if may_be_blank:
            for name in chunk.columns:
                cells = strip_cells(chunk[name], () if name == self._id_name else MISSING_CELLS)
                is_skipped &= cells.is_null()
            self._num_blank += int(is_skipped.sum())
        if self._exclude and self._id_name is not None:
            names = strip_cells(chunk[self._id_name], ()).cast(pl.String)
            is_skipped |= names.is_in(list(self._exclude)).fill_null(False)
        positions = np.flatnonzero(is_skipped.to_numpy())
        self._skipped_rows += (positions + self._num_rows + len(self._skipped_rows)).tolist()
        return times.filter(~is_skipped), chunk.filter(~is_skipped)

    def _series_of_column(self, name: str) -> Sequence[str]:
        return [name] if name in self._series_columns else []

    def _faulty_series(self, column: str, positions: Any, describe: Callable[[int], str]) -> dict[str, str]:
        """Return what is wrong with each series that has a bad cell in these rows of the chunk."""
        if self._chunk_codes is None:
            return dict.fromkeys(self._series_of_column(column), describe(int(positions[0])))
        names = list(self._series_names)
        codes, firsts = np.unique(self._chunk_codes[positions], return_index=True)
        return {names[code]: describe(int(positions[first])) for code, first in zip(codes, firsts, strict=True)}

    def _row_number(self, index: int) -> int:
        """Return the number in the file of the row at this index of the rows taken in."""
        # How many rows were taken in before each skipped one.
        before = np.array(self._skipped_rows, dtype=np.int64) - np.arange(len(self._skipped_rows))
        return self._first_row + index + int(np.searchsorted(before, index, side="right"))

    def _parse_cells(self, cells: pl.Series, first: int, resolution: Resolution | None) -> Float32Array:
        """Return the cells as float32, categories as their numbers; ``first`` rows were taken in before them."""
        location = f"column '{cells.name}'"
        self._codes.count_texts(cells)
        cleaned = strip_cells(cells, (*MISSING_CELLS, *self._codes.texts))
        if cells.name in self._categories:
            self._codes.count(cells.name, cleaned.count(), 0)
            return self._categories.encode(cleaned)
        if not (cleaned.dtype.is_numeric() or cleaned.dtype in (pl.String, pl.Boolean, pl.Null)):
            raise errors.DataError(
                f"{terms().file(self._path.name)} {location} holds {str(cells.dtype).lower()}, not numbers. Name the "
                f"columns to read by {terms().channels}.",
                series=self._series_of_column(cells.name),
            )
        numbers = cleaned if cleaned.dtype == pl.Float32 else cleaned.cast(pl.Float64, strict=False)
        if numbers.null_count() > cleaned.null_count():
            positions = np.flatnonzero((numbers.is_null() & cleaned.is_not_null()).to_numpy())

            first_text = str(cleaned[int(positions[0])])
            mark = suggest_thousands_mark(first_text) if self._repairs.thousands_mark is None else None
            setting = None if mark is None else terms().set("data.thousands_mark", mark)
            advice = "Correct it" if mark is None else f"If its groups are thousands, {setting}; else correct it"

            def describe(index: int) -> str:
                row, cell = self._row_number(first + index), quote(str(cleaned[index]))
                return (
                    f"{terms().row_of(self._path.name, row)}, {location}: {cell} is not a number. {advice}, leave it "
                    f"empty if the value is missing, or name the columns to read by {terms().channels}."
                )

            raise CellError(
                describe(int(positions[0])),
                settings={} if mark is None else {"thousands_mark": mark},
                series=self._faulty_series(cells.name, positions, describe),
            )
        numbers = self._codes.replace(numbers)
        values = (numbers.fill_null(float("nan")) if numbers.null_count() else numbers).to_numpy()
        try:
            finite = finite_float32(
                values,
                lambda i: f"{terms().row_of(self._path.name, self._row_number(first + i[0]))}, {location}",
                series_of=partial(self._faulty_series, cells.name),
            )
        except errors.DataError as error:
            raise CellError(str(error), series=error.series) from error
        if resolution is not None:
            resolution.add(restore_integers(cleaned, numbers).drop_nulls().to_numpy())
        return finite

    def _constant_values(self, rows: _Rows, names: list[str]) -> Float32Array | None:
        """Return the value of each static column in each series, (series, s)."""
        if not self._static:
            return None
        values = self._static_values.finish()
        starts = rows.starts
        grouped = values if rows.order is None else values[rows.order]
        # fmin and fmax skip NaN: a value in one row of a series is enough.
        low, high = np.fmin.reduceat(grouped, starts), np.fmax.reduceat(grouped, starts)
        for column, name in enumerate(self._static):
            if np.isnan(low[:, column]).any():
                series = names[int(np.argmax(np.isnan(low[:, column])))]
                raise errors.DataError(
                    f"{terms().file(self._path.name)} has no value in the static column '{name}' for "
                    f"{terms().series(self._path.name, series)}. Give it in one row or more."
                )
            differs = low[:, column] != high[:, column]
            if differs.any():
                self._refuse_change(grouped[:, column], int(np.argmax(differs)), rows, names, name)
        return low

    def _constant_text(self, column: str, rows: _Rows, names: list[str]) -> tuple[str, ...]:
        codes = self._text_codes[column].finish()
        grouped = codes if rows.order is None else codes[rows.order]
        low, high = np.minimum.reduceat(grouped, rows.starts), np.maximum.reduceat(grouped, rows.starts)
        # The last one is that of the code -1, no text.
        texts = np.array([*self._texts[column], ""], dtype=object)
        if (low != high).any():
            series = int(np.argmax(low != high))
            self._refuse_change(texts[grouped], series, rows, names, column)
        return tuple(str(text) for text in texts[low])

    def _refuse_change(self, grouped: Any, series: int, rows: _Rows, names: list[str], column: str) -> None:
        """Refuse a column that should be constant, with the first two rows that differ in a series."""
        start = int(rows.starts[series])
        part = grouped[start : rows.ends[series]]
        # A missing number is NaN, which differs from itself, and is skipped; a missing text differs from the others.
        present = np.flatnonzero(part == part)
        first = int(present[0])
        other = int(present[np.argmax(part[present] != part[first])])
        numbers = [self._number_of(rows, start + i) for i in (first, other)]
        values = [self._describe(column, part[i]) for i in (first, other)]
        of_series = f" of {terms().series(self._path.name, names[series])}" if self._series_names else ""
        raise errors.DataError(
            f"{terms().file(self._path.name)}: column '{column}' must have one value for each series, got {values[0]} "
            f"in {terms().row(numbers[0])} and {values[1]} in {terms().row(numbers[1])}{of_series}."
        )

    def _describe(self, column: str, value: Any) -> str:
        if column in self._categories:
            return f"'{self._categories.name_of(column, value)}'"
        return f"'{value}'" if isinstance(value, str) else f"{value:g}"
