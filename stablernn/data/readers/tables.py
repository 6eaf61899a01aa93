"""Series from tables, long (a row for each series and time) and wide (a column for each channel).

Both are one format: a column of timestamps, an optional column of series names, and columns of numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from stablernn import errors
from stablernn.data.messages import format_names
from stablernn.data.options import ID_COLUMN, TIME_COLUMN, Repairs
from stablernn.data.readers.paths import TABLE_FORMATS, detect_format
from stablernn.data.readers.table_builder import TableBuilder
from stablernn.data.readers.table_chunks import read_chunks, read_column_names
from stablernn.data.readers.table_pieces import TablePiece, split_rows
from stablernn.data.readers.timestamps import check_date_format, date_format_advice, normalize_times, parse_dates
from stablernn.data.repairs.categories import collapse_names, expand_names
from stablernn.data.repairs.check_settings import check_repairs
from stablernn.data.repairs.resampling import Resampling, parse_step, resample_series
from stablernn.data.repairs.short_series import keep_long_series
from stablernn.data.time.numeric_timestamps import check_stamps
from stablernn.data.types import Notes, Series
from stablernn.terms import terms

_INFLUX_TIME = "_time"
# Names that pandas gives to an index: when it is read again, and in Parquet.
_INDEX = re.compile(r"Unnamed: \d+|__index_level_\d+__")


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
        builder = TableBuilder(
            self.path,
            self.time_name,
            self.id_name,
            self.repairs,
            stamps=self.stamps,
            columns=names,
            static=others[: len(others) - len(texts)],
            texts=tuple(texts),
            exclude=self.exclude,
            rows_before=0 if self.piece is None else self.piece.first_row,
            series_columns=series_columns,
        )
        file_notes: Notes = {}
        for chunk in self._chunks((*names, *others), file_notes, verbatim=(*texts, *categories)):
            builder.add(chunk)
        built = builder.build()
        table = Table(
            self.path.name, built.series, built.channels, built.notes, built.texts, built.static, built.categories
        )
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
    time_name = _find_time_column(path, names, time_column, repairs)
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
    raise errors.DataError(
        f"{terms().file(path.name)} has no column '{TIME_COLUMN}' and its first column '{first}' does not hold "
        f"dates. {advice or f'Name the time column; there are {format_names([*filter(None, names)])}.'}",
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
