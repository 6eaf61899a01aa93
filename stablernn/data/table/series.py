"""Series from tables, long (a row for each series and time) and wide (a column for each channel).

Both are one format: a column of timestamps, an optional column of series names, and columns of numbers.
:class:`OpenTable` knows the columns, and :class:`_TableBuilder` takes in the rows, chunk by chunk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import (
    Float32Array,
    GrowingArray,
    Int64Array,
    MemoryBudget,
    Resolution,
    Timestamps,
    find_unordered_row,
    finite_float32,
    group_rows,
    reorder_rows,
)
from stablernn.data.files import TABLE_FORMATS, detect_format
from stablernn.data.messages import format_names, format_timestamp, quote
from stablernn.data.options import ID_COLUMN, TIME_COLUMN, Repairs
from stablernn.data.table.cells import (
    MISSING_CELLS,
    NO_TEXT,
    CellError,
    encode_text,
    restore_integers,
    strip_cells,
    suggest_thousands_mark,
)
from stablernn.data.table.chunks import first_row_number, read_chunks, read_column_names
from stablernn.data.table.pieces import TablePiece, split_rows
from stablernn.data.table.repairs import (
    CategoryCodes,
    MissingCodes,
    Resampling,
    are_days,
    check_repairs,
    collapse_names,
    convert_to_utc,
    expand_names,
    find_repeats,
    find_skipped_time,
    find_unlike_categories,
    keep_long_series,
    merge_duplicates,
    parse_step,
    repeats_differ,
    resample_series,
    sort_order,
    suggest_timezone,
    to_days,
)
from stablernn.data.table.timestamps import (
    BadTime,
    TimeColumn,
    check_date_format,
    check_stamps,
    date_format_advice,
    normalize_times,
    parse_dates,
    refuse_ambiguous_numbers,
)
from stablernn.data.types import Notes, Series, StackedSeries
from stablernn.terms import terms

_INFLUX_TIME = "_time"
# Names that pandas gives to an index: when it is read again, and in Parquet.
_INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")

# With more repeated times than this, rows of different values are not proposed to be merged.
_MAX_SHARE_OF_REPEATS = 0.2


@dataclass(frozen=True, eq=False)
class Table:
    """The series of one file, with its rows: gaps are not filled.

    Attributes:
        name: The file's name, for messages.
        series: In order of first appearance; timestamps ascend.
        channels: Names of the columns of numbers, with a channel for each category of columns of text.
        notes: Counts of rows, missing values, blank rows and repairs.
        texts: Of each column of text that was asked for, the value of each series, empty where it has none.
        static: Names of the values that are constant for a series.
        categories: Columns of text that became channels or static values, each with its categories.
    """

    name: str
    series: Sequence[Series]
    channels: tuple[str, ...]
    notes: Notes
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    static: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenTable:
    """A table with its columns; the rows are not read yet.

    Attributes:
        path: The file.
        names: All columns, in the order of the file.
        columns: The columns that are neither timestamps nor series names nor row numbers.
        time_name: The column of timestamps.
        id_name: The column of series names; None without one.
        stamps: What whole numbers are in the column of timestamps; None where no option says.
        repairs: What is converted, merged, replaced or set aside.
        exclude: Names of series to leave out, each with the reason.
        piece: The rows that are read in place of all rows of the file.
    """

    path: Path
    names: tuple[str, ...]
    columns: tuple[str, ...]
    time_name: str
    id_name: str | None
    stamps: str | None = None
    repairs: Repairs = field(default_factory=Repairs)
    exclude: Mapping[str, str] | None = None
    piece: TablePiece | None = None

    def read(
        self,
        channels: Sequence[str] | None = None,
        *,
        static: Sequence[str] = (),
        texts: Sequence[str] = (),
        series_columns: Sequence[str] = (),
    ) -> Table:
        """Read the series with these columns of numbers, in this order, and repair them.

        Args:
            channels: Columns, or channels of categories; all columns that have no other role when omitted. Columns of
                categories that have no other role are added.
            static: Columns of numbers or categories that have one value for each series.
            texts: Columns of text that have one value for each series.
            series_columns: Channels that are series of their own, by which errors name them.

        Raises:
            UnknownNameError: If a column does not exist.
            DataError: If a cell is no finite number, a timestamp cannot be read, is repeated or comes too early, or a
                series has two values where it must have one; or if a repair cannot be made.
        """
        categories = self.repairs.categories
        others = (*collapse_names(static, categories), *texts)
        names = collapse_names(channels or [name for name in self.columns if name not in others], categories)
        names = (*names, *(name for name in categories if name not in (*names, *others)))
        for name in (*names, *others):
            if name not in self.columns:
                raise unknown_column_error(self.path, name, self.columns)
        if not names:
            raise errors.DataError(
                f"{terms().file(self.path.name)} has no column of numbers besides {format_names(self.names)}."
            )
        static_names = others[: len(others) - len(texts)]
        builder = _TableBuilder(self, names, static_names, tuple(texts), series_columns)
        file_notes: Notes = {}
        for chunk in self._chunks((*names, *others), file_notes, verbatim=(*texts, *categories)):
            builder.add(chunk)
        table = builder.build()
        ignored = [name for name in self.names if name not in (self.time_name, self.id_name, *names, *others)]
        notes = {**table.notes, **file_notes, **({"ignored_columns": ignored} if ignored else {})}
        table = _resample(replace(table, notes=notes), self.repairs)
        table = _select_long_series(table, self.repairs)
        return table if channels is None else _select_channels(table, expand_names(channels, table.categories))

    def pieces(self, columns: Sequence[str], *, verbatim: Sequence[str], cells: int) -> Iterator[OpenTable]:
        """Yield the table in pieces of whole series, if the rows of each series follow each other.

        Args:
            columns: The columns that are read, besides those of series names and timestamps.
            verbatim: Columns of text.
            cells: Cells of a piece, at least, but for the last one.

        Raises:
            NotInPieces: As :func:`.split_rows`.
            DataError: If the file is not a whole table, or has no rows.
        """
        assert self.id_name is not None
        notes: Notes = {}
        used = [self.time_name, self.id_name, *columns]
        chunks = read_chunks(self.path, used, notes, self.repairs, verbatim=(*self._texts, *verbatim), cells=cells)
        pieces = split_rows(
            chunks,
            self.id_name,
            self.time_name,
            min_rows=cells // len(used),
            notes=notes,
            date_format=self.repairs.date_format,
        )
        # The variable of a loop would hold the rows of a piece while the next one is read.
        return map(self._with_piece, pieces)

    def _with_piece(self, piece: TablePiece) -> OpenTable:
        return replace(self, piece=piece)

    def _chunks(
        self, columns: Sequence[str], notes: Notes, *, verbatim: Sequence[str | None]
    ) -> Iterator[pl.DataFrame]:
        if self.piece is not None:
            notes |= self.piece.notes
            return iter(self.piece.frames)
        used: list[str] = [self.time_name, *([self.id_name] if self.id_name else []), *columns]
        texts = (*self._texts, *verbatim)
        return read_chunks(self.path, list(dict.fromkeys(used)), notes, self.repairs, verbatim=texts)

    @property
    def _texts(self) -> tuple[str, ...]:
        """The columns of times and series names that are no numbers; days of a spreadsheet may have decimals."""
        names = [self.time_name if self.stamps != "excel" else None, self.id_name]
        return tuple(name for name in names if name is not None)


def open_table(
    path: Path,
    *,
    id_column: str = ID_COLUMN,
    time_column: str = TIME_COLUMN,
    stamps: str | None = None,
    repairs: Repairs | None = None,
    exclude: Mapping[str, str] | None = None,
) -> OpenTable:
    """Open a CSV file, plain, ``.gz`` or ``.xz``, a Parquet file or a workbook.

    Args:
        path: The file. The first row of CSV and of a sheet names the columns.
        id_column: Column of series names; without such a column (and with the default name) the file is one series.
        time_column: Timestamps: ISO dates (``2024-01-31``, ``2024-01-31 13:00``, also with ``/``, ``T``, a zone),
            months (``2024-01``, ``202401``) or other integers. Where the default name is missing, the first column is
            taken if it holds dates.
        stamps: What integers are: Unix times in seconds (``unix-s``) or milliseconds (``unix-ms``), dates without
            separators (``yyyymmdd``), years with a week (``yyyyww``), day (``yyyyddd``) or quarter (``yyyyq``), days of
            a spreadsheet (``excel``), or numbers of steps (``step``). Without it they number steps, and are refused
            where they look like one of the others. Dates with separators are always dates.
        repairs: What is converted, merged, replaced or set aside; nothing when omitted.
        exclude: Names of series to leave out, each with the reason.

    Raises:
        UnknownNameError: If the file, or a column that was named, does not exist, or ``stamps`` is none of these.
        ConfigError: If a repair cannot be made as asked for.
        DataError: If the file is no table, or has no column of times.
    """
    repairs = repairs or Repairs()
    check_repairs(repairs)
    if repairs.date_format is not None:
        check_date_format(repairs.date_format)
    if stamps is not None:
        check_stamps(stamps)
    if stamps is not None and repairs.date_format is not None:
        raise errors.ConfigError(
            f"date_format={repairs.date_format} says how dates are written, and stamps={stamps} what whole numbers "
            "are. Leave one of them out."
        )
    if detect_format(path) not in TABLE_FORMATS:
        raise errors.DataError(f"{terms().file(path.name)} is not a table; tables are {', '.join(TABLE_FORMATS)}.")
    names = read_column_names(path, repairs)
    time_name = _find_time_column(path, [name for name in names if name != id_column], time_column, repairs)
    if id_column not in names and id_column != ID_COLUMN:
        raise unknown_column_error(path, id_column, names)
    id_name = id_column if id_column in names else None
    columns = tuple(name for name in names if name not in (time_name, id_name) and not is_index(name))
    return OpenTable(path, tuple(names), columns, time_name, id_name, stamps, repairs, exclude)


def is_index(name: str) -> bool:
    """Return True if a column holds the index of a data frame, such as row numbers: pandas writes it without a name."""
    return not name or bool(_INDEX.fullmatch(name))


def unknown_column_error(path: Path, name: str, columns: Sequence[str]) -> errors.UnknownNameError:
    """Return the error for a requested column that is not in the file."""
    return errors.unknown("column", name, columns, f"{terms().file(path.name)} has {format_names(columns)}.")


def _find_time_column(path: Path, names: Sequence[str], name: str, repairs: Repairs) -> str:
    if name in names:
        return name
    if name != TIME_COLUMN:
        raise unknown_column_error(path, name, names)
    # Dates may be the index of a data frame, whose name is empty; row numbers are no times.
    first, times = "", pl.Series(dtype=pl.String)
    for first in names[:2] if is_index(names[0]) else names[:1]:
        times = normalize_times(next(read_chunks(path, [first], repairs=repairs, verbatim=[first]))[first])
        dates = parse_dates(times.head(1) if is_index(first) else times, repairs.date_format)
        if len(dates) > dates.null_count():
            return first
    example = times.drop_nulls().head(1)
    advice = date_format_advice(str(example[0]), times) if len(example) and example.dtype == pl.String else ""
    settings: Notes = {}
    if _INFLUX_TIME in names:
        settings = {"time_column": _INFLUX_TIME}
        advice = f"For InfluxDB's annotated CSV {terms().set('data.time_column', _INFLUX_TIME)}."
    key = terms().key("data.time_column")
    raise errors.DataError(
        f"{terms().file(path.name)} has no column '{TIME_COLUMN}' and its first column '{first}' does not hold "
        f"dates. {advice or f'Name the time column by {key}; there are {format_names([*filter(None, names)])}. '}"
        f"{'' if advice else 'A recording without times is read from a folder.'}",
        settings=settings,
    )


def _resample(table: Table, repairs: Repairs) -> Table:
    if repairs.resample is None:
        return table
    one_hot = expand_names(list(table.categories), table.categories)
    shares = tuple(index for index, name in enumerate(table.channels) if name in one_hot)
    zone = table.notes.get("local_zone")
    how = Resampling(parse_step(repairs.resample), repairs.aggregate, shares, zone)
    series, notes = resample_series(table.name, table.series, how)
    notes = {**table.notes, **notes}
    if how.has_local_days:
        del notes["time_zone"]
        notes["calendar_days"] = zone
    return replace(table, series=series, notes=notes)


def _select_long_series(table: Table, repairs: Repairs) -> Table:
    if repairs.min_length is None:
        return table
    positions, notes = keep_long_series(table.name, table.series, repairs.min_length)
    return replace(
        table,
        series=tuple(table.series[index] for index in positions),
        texts={name: tuple(texts[index] for index in positions) for name, texts in table.texts.items()},
        notes={**table.notes, **notes, "series": len(positions)},
    )


def _select_channels(table: Table, channels: Sequence[str]) -> Table:
    """Return the table with these channels first, in their order, and then the others."""
    ordered = (*channels, *(name for name in table.channels if name not in channels))
    if ordered == table.channels:
        return table
    for name in channels:
        if name not in table.channels:
            raise errors.unknown(
                "channel", name, table.channels, f"{terms().file(table.name)} has {format_names(table.channels)}."
            )
    indices = [table.channels.index(name) for name in ordered]
    series = tuple(replace(each, values=each.values[:, indices]) for each in table.series)
    return replace(table, series=series, channels=ordered)


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


class _TableBuilder:
    """Collects the rows of a table chunk by chunk and builds its series at the end.

    Args:
        table: The table.
        columns: Columns of numbers and of categories that vary.
        static: Columns of numbers and of categories that have one value for each series.
        texts: Columns of text that have one value for each series.
        series_columns: Columns that are series of their own, without a column of series names.
    """

    def __init__(
        self,
        table: OpenTable,
        columns: tuple[str, ...],
        static: tuple[str, ...],
        texts: tuple[str, ...],
        series_columns: Collection[str],
    ) -> None:
        path, repairs = table.path, table.repairs
        self._columns, self._static, self._series_columns = columns, static, series_columns
        self._first_row = first_row_number(path) + (0 if table.piece is None else table.piece.first_row)
        self._path, self._time_name, self._id_name = path, table.time_name, table.id_name
        self._stamps, self._repairs, self._exclude = table.stamps, repairs, table.exclude or {}
        self._codes = MissingCodes(path.name, repairs.missing)
        self._categories = CategoryCodes(
            path.name, repairs.categories, refuses_unknown=repairs.unknown_category == "error"
        )
        # One budget: the columns together must fit into the memory, or those that do not go to disk.
        budget = MemoryBudget()
        self._times = TimeColumn(budget, table.stamps, repairs.date_format)
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

    def build(self) -> Table:
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
        return Table(self._path.name, series, channels, notes, texts, static_names, categories)

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
        instants, counts = convert_to_utc(rows.ds, rows.ends, zone)
        notes |= counts
        return rows._replace(ds=instants), True

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


def no_series_error(file: str, exclude: Mapping[str, str]) -> errors.DataError:
    """Return the error for a file all of whose series are left out, each with the reason."""
    name, reason = next(iter(exclude.items()))
    return errors.DataError(
        f"{terms().file(file)} has no series without an error. That of '{name}', the first one: {reason}"
    )


def refuse_unordered_rows(
    file: str,
    ds: Timestamps,
    values: Float32Array,
    ends: Int64Array,
    *,
    row_number: Callable[[int], int],
    series_names: Sequence[str] | None,
    may_repeat: bool,
    may_be_local: bool,
) -> None:
    """Refuse a row that repeats the time of the row of its series before, or comes earlier.

    Args:
        file: Name of the file.
        ds: Timestamps, the rows of each series together.
        values: float32 (rows, columns).
        ends: End of each series.
        row_number: Returns the number in the file of the row at an index.
        series_names: Names of the series; None where the file does not name them.
        may_repeat: Whether repeated times are accepted.
        may_be_local: Whether the times may be those of a zone that is not set.

    Raises:
        DataError: If there is such a row.
    """
    first = find_unordered_row(ds, ends, may_repeat=may_repeat)
    if first is None:
        return

    def describe(index: int) -> str:
        earlier, later = row_number(index), row_number(index + 1)
        timestamp = format_timestamp(ds[index + 1])
        series = ""
        if series_names is not None:
            name = series_names[int(np.searchsorted(ends, index, side="right"))]
            series = f" of {terms().series(file, name)}"
        if ds[index + 1] == ds[index]:
            return f"{terms().file(file)} has the time {timestamp}{series} twice, in {terms().rows((earlier, later))}."
        return (
            f"{terms().file(file)} is not sorted by time: {terms().row(later)}{series} has {timestamp} after "
            f"{format_timestamp(ds[index])} in {terms().row(earlier)}."
        )

    problem, is_repeated = describe(first), ds[first + 1] == ds[first]
    faulty = {}
    if series_names is not None:
        faulty = {
            series_names[number]: describe(start + index)
            for number, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
            if (index := find_unordered_row(ds[start:end], ends[:0], may_repeat=may_repeat)) is not None
        }
    zone = suggest_timezone(ds, ends) if may_be_local else None
    if zone is not None:
        raise errors.DataError(
            f"{problem} Clocks in {zone} go back at such times: if they are local, "
            f"{terms().set('data.timezone', zone)}, or the zone in which they were recorded.",
            settings={"timezone": zone},
            series=faulty,
        )
    if not is_repeated:
        raise errors.DataError(
            f"{problem} Sort the rows, or {terms().set('data.sort', True)}.", settings={"sort": True}, series=faulty
        )
    repeats = find_repeats(ds, ends)
    differ = repeats_differ(values, repeats).any()
    unnamed = "Name the column that tells series apart by id_column" if series_names is None else "Remove one of them"
    # Different values at many times are rather those of several series.
    if differ and repeats.mean() > _MAX_SHARE_OF_REPEATS:
        raise errors.DataError(f"{problem} {unnamed}.", series=faulty)
    how = "mean" if differ else "last"
    raise errors.DataError(
        f"{problem} {unnamed}, or {terms().set('data.on_duplicate', how)}.",
        settings={"on_duplicate": how},
        series=faulty,
    )
