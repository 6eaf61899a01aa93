"""Inspection of the cells of a table that training rejects, column by column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Int64Array, Resolution, Timestamps, finite_float32
from stablernn.data.check.report import Column, Findings, Kind, Role
from stablernn.data.messages import format_names, format_timestamp, pluralize, quote
from stablernn.data.options import TIME_COLUMN
from stablernn.data.readers.table_chunks import first_row_number, read_chunks, read_column_names
from stablernn.data.readers.tables import MISSING_CELLS, strip_cells
from stablernn.data.readers.timestamps import date_format_advice, normalize_times, parse_dates
from stablernn.data.time.numeric_timestamps import UNIX_NS, ambiguous_numbers_error, find_resemblance, unix_instants
from stablernn.data.types import Notes

_TIME_PARTS = ("year", "month", "day", "hour", "minute", "second")
#: A table may have a series in each row if it has at least this many columns after the first.
_MIN_COLUMNS_OF_SERIES_IN_ROWS = 20
#: Only so many rows of a rejected file are inspected; errors behind them appear once the earlier ones are fixed.
_MAX_ROWS = 2_000_000
# A column may name the series only if at least one of so many rows repeats a time.
_MAX_ROWS_PER_REPEATED_TIME = 4


@dataclass(frozen=True, eq=False)
class TableInspection:
    """Columns of a table and guesses at settings that would read it.

    Attributes:
        columns: All columns, in the order of the file.
        readable: Names of the numeric columns that could be channels, in the order of the file.
        guessed_settings: Settings that might make the file readable, by name.
    """

    columns: tuple[Column, ...]
    readable: tuple[str, ...]
    guessed_settings: Notes

    @property
    def has_times(self) -> bool:
        """True if there is a column of times without a single invalid cell."""
        return any(column.role == "time" and not column.unreadable for column in self.columns)


@dataclass(frozen=True, eq=False)
class _TableCells:
    """The cells of a table, null if missing, and the number of each row in the file."""

    path: Path
    frame: pl.DataFrame
    rows: Int64Array

    def __getitem__(self, name: str) -> pl.Series:
        return self.frame[name]

    @property
    def names(self) -> list[str]:
        return self.frame.columns

    def first_invalid(self, name: str, is_invalid: pl.Series) -> str:
        """Return the first invalid cell of a column and its row, as the end of a message."""
        index = int(np.argmax(is_invalid.to_numpy()))
        return f"the first is {quote(str(self[name][index] or ''))} in row {self.rows[index]}"


def inspect_cells(
    path: Path,
    findings: Findings,
    *,
    id_column: str,
    time_column: str,
    stamps: str | None,
    label_column: str | None,
    group_column: str | None,
    channels: Sequence[str] | None,
    static: Sequence[str],
    targets: Sequence[str] = (),
) -> TableInspection | None:
    """Inspect a table that was rejected and report every column whose cells do not fit its role.

    Args:
        path: The table.
        findings: Gets problems and warnings.
        id_column: Name of the column that distinguishes series.
        time_column: Name of the column of times.
        stamps: Format of integers in the column of times; None if it is not set.
        label_column: Name of the column of labels; None if the task is not ``classify``.
        group_column: Name of the column of groups; None without one.
        channels: Names of the channels; None for all columns without another role.
        static: Names of the columns that are constant for each series.
        targets: Names of the columns to forecast.

    Returns:
        None if the file cannot be split into cells; the error of the reader is among the findings then.
    """
    try:
        cells = _read(path, id_column)
    except errors.StableRNNError as error:
        findings.problem("unreadable", str(error))
        return None
    if time_column not in cells.names and _has_series_in_rows(cells):
        findings.warn(
            "series_in_rows",
            f"Each row seems to be a series of up to {pluralize(len(cells.names) - 1, 'value')} behind its name. "
            "Tables are read with a row for each series and time: unique_id, ds, y.",
        )
        return TableInspection(tuple(_value_column(cells[name]) for name in cells.names), (), {})
    warn_about_header(cells.names, findings)
    time_name, guessed_settings = _find_time_column(cells, time_column)
    times: Timestamps | None = None
    if time_name is not None:
        times, guess = _parse_times(cells, time_name, stamps, findings)
        guessed_settings |= guess
    if times is not None:
        ids = cells[id_column] if id_column in cells.names else None
        guessed_settings |= _check_order(cells, times, ids, (time_name or "", *targets), findings)
    roles: dict[str | None, Role] = {
        label_column: "label",
        group_column: "group",
        guessed_settings.get("id_column", id_column): "id",
        time_name: "time",
    }
    columns, readable = [], []
    for name in cells.names:
        role: Role = "channel" if channels is None or name in channels else "ignored"
        role = "static" if name in static else roles.get(name, role)
        column = _inspect_column(cells, name, role, findings)
        if role == "time":
            column = _add_times(column, cells, name, times)
        columns.append(column)
        if role == "channel" and not column.unreadable and column.kind in ("numbers", "empty"):
            readable.append(name)
    if time_name is None or guessed_settings.get("time_column"):
        _warn_about_time_parts(cells.names, findings)
    unreadable = [column.name for column in columns if column.role == "channel" and column.name not in readable]
    if unreadable and readable and channels is None:
        guessed_settings["channels"] = readable
    return TableInspection(tuple(columns), tuple(readable), guessed_settings)


def warn_about_header(names: Sequence[str], findings: Findings) -> None:
    """Warn about a first row that contains values instead of names."""
    if all(_is_value(name) for name in names if name) and any(names):
        findings.warn(
            "no_header",
            f"The first row holds no names but values ({format_names(names)}). Put a row with the names of the columns "
            "before it.",
        )


def _read(path: Path, id_column: str) -> _TableCells:
    """Read the rows that are not blank, of the first two million."""
    chunks, num_rows = [], 0
    for chunk in read_chunks(path, read_column_names(path)):
        chunks.append(chunk)
        num_rows += len(chunk)
        if num_rows >= _MAX_ROWS:
            break
    frame = pl.concat(chunks)
    cleaned = frame.with_columns(
        strip_cells(frame[name], () if name == id_column else MISSING_CELLS) for name in frame.columns
    )
    has_values = ~cleaned.select(pl.all_horizontal(pl.all().is_null())).to_series()
    rows = np.flatnonzero(has_values.to_numpy()).astype(np.int64) + first_row_number(path)
    if not len(rows):
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")
    return _TableCells(path, cleaned.filter(has_values), rows)


def _find_time_column(cells: _TableCells, time_column: str) -> tuple[str | None, Notes]:
    """Return the column of times that the reader would use, else the first candidate and the setting that names it."""
    if time_column in cells.names:
        return time_column, {}
    first = cells.names[0]
    if time_column == TIME_COLUMN and parse_dates(normalize_times(cells[first])).count():
        return first, {}
    for name in cells.names:
        if _is_row_counter(cells[name]) or (
            not _are_numbers(cells[name]) and not parse_dates(normalize_times(cells[name])).null_count()
        ):
            return name, {"time_column": name}
    return None, {}


def _has_series_in_rows(cells: _TableCells) -> bool:
    """Return True if each row consists of a name and many numbers after it."""
    first, *others = cells.names
    names = cells[first].drop_nulls()
    # With times in the first column it is a wide table: a row for each time, a column for each channel.
    if parse_dates(normalize_times(names)).count() or any(date_format_advice(str(name)) for name in names.head(1)):
        return False
    return (
        len(others) >= _MIN_COLUMNS_OF_SERIES_IN_ROWS
        and not _are_numbers(cells[first])
        and all(_are_numbers(cells[name]) for name in others)
    )


def _value_column(cells: pl.Series) -> Column:
    kind: Kind = "numbers" if _are_numbers(cells) else "words"
    return Column(str(cells.name), "ignored", kind, cells.null_count() / max(len(cells), 1))


def _as_numbers(column: pl.Series) -> pl.Series:
    if column.dtype.is_temporal():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return column.cast(pl.Float64, strict=False)


def _are_numbers(column: pl.Series) -> bool:
    return _as_numbers(column).null_count() == column.null_count()


def _is_row_counter(column: pl.Series) -> bool:
    """Return True if a column contains integers that rise by the same step from row to row."""
    if column.dtype.is_temporal() or column.dtype.is_float():
        return False
    integers = column.cast(pl.Int64, strict=False)
    if integers.null_count() or len(integers) < 3:
        return False
    steps = np.diff(integers.to_numpy())
    return bool(steps[0] > 0 and (steps == steps[0]).all())


def _parse_times(
    cells: _TableCells, name: str, stamps: str | None, findings: Findings
) -> tuple[Timestamps | None, Notes]:
    """Return the times of a column, None if a cell is not a time, and the guessed format of integers in it."""
    text = normalize_times(cells[name])
    integers = text.cast(pl.Int64, strict=False) if text.dtype == pl.String else None
    guess: Notes = {}
    if integers is not None and not integers.null_count() and stamps != "yyyymmdd":
        numbers = integers.to_numpy().astype(np.int64)
        resemblance = find_resemblance(numbers) if stamps is None else None
        if resemblance is not None:
            error = ambiguous_numbers_error(cells.path.name, name, int(numbers[0]), resemblance)
            findings.problem("ambiguous_times", str(error))
            guess = {} if resemblance.stamps is None else {"stamps": resemblance.stamps}
            stamps = resemblance.stamps or "step"
        if stamps in UNIX_NS:
            instants, is_in_range = unix_instants(numbers, stamps)
            return (instants.view("datetime64[ns]") if is_in_range.all() else None), guess
        if stamps == "step":
            return numbers, guess
    dates = parse_dates(text)
    if not dates.null_count():
        return dates.to_numpy().astype("datetime64[ns]"), guess
    if integers is not None and not integers.null_count() and stamps is None:
        return integers.to_numpy().astype(np.int64), guess
    if dates.null_count() > 1 or not findings.refusal_contains(f"column '{name}'"):
        findings.problem(
            "not_a_time",
            f"'{cells.path.name}' column '{name}': {_format_invalid(dates.null_count(), len(dates), 'time')}; "
            f"{cells.first_invalid(name, dates.is_null())}.",
        )
    return None, guess


def _add_times(column: Column, cells: _TableCells, name: str, times: Timestamps | None) -> Column:
    if times is None:
        return replace(column, kind="mixed", unreadable=parse_dates(normalize_times(cells[name])).null_count())
    kind: Kind = "dates" if times.dtype.kind == "M" else "numbers"
    return replace(column, kind=kind, low=format_timestamp(times.min()), high=format_timestamp(times.max()))


def _inspect_column(cells: _TableCells, name: str, role: Role, findings: Findings) -> Column:
    column = cells[name]
    numbers = _as_numbers(column)
    num_filled = column.count()
    kind = _kind(column, numbers)
    unreadable = 0
    if role in ("channel", "static"):
        unreadable = num_filled - numbers.count()
        _check_numbers(cells, name, kind, numbers, findings)
    low = high = None
    if kind == "numbers":
        low, high = (float(str(value)) for value in (numbers.min(), numbers.max()))
    return Column(name, role, kind, 1 - num_filled / max(len(column), 1), low, high, unreadable)


def _kind(column: pl.Series, numbers: pl.Series) -> Kind:
    num_filled, num_numbers = column.count(), numbers.count()
    if not num_filled:
        return "empty"
    if num_numbers == num_filled:
        return "numbers"
    num_dates = parse_dates(normalize_times(column)).count()
    if num_dates == num_filled:
        return "dates"
    return "mixed" if num_numbers or num_dates else "words"


def infer_column_kinds(path: Path, names: Sequence[str]) -> dict[str, Kind]:
    """Return the kind of each column, inferred from the first chunk of the file."""
    frame = next(iter(read_chunks(path, names)))
    columns = {name: strip_cells(frame[name], MISSING_CELLS) for name in names}
    return {name: _kind(column, _as_numbers(column)) for name, column in columns.items()}


def _check_numbers(cells: _TableCells, name: str, kind: Kind, numbers: pl.Series, findings: Findings) -> None:
    """Report every reason for which a column cannot be a channel."""
    column, location = cells[name], f"'{cells.path.name}' column '{name}'"
    is_invalid = numbers.is_null() & column.is_not_null()
    if kind in ("words", "dates"):
        examples = [quote(str(cell)) for cell in column.drop_nulls().unique(maintain_order=True)[:3]]
        findings.problem(
            kind,
            f"{location} holds {kind} ({format_names(examples)}) and no numbers. Name the columns to read by "
            "'channels', or write it as numbers.",
        )
        return
    if is_invalid.sum() > 1 or (is_invalid.any() and not findings.refusal_contains(f"column '{name}'")):
        findings.problem(
            "not_a_number",
            f"{location}: {_format_invalid(int(is_invalid.sum()), column.count(), 'number')}; "
            f"{cells.first_invalid(name, is_invalid)}.",
        )
    try:
        values = numbers.fill_null(float("nan")).to_numpy()
        finite_float32(values, lambda i: f"'{cells.path.name}' row {cells.rows[i[0]]}, column '{name}'")
        resolution = Resolution()
        resolution.add(values)
        resolution.check(location)
    except errors.DataError as error:
        findings.problem("not_a_number", str(error))


def _check_order(
    cells: _TableCells, times: Timestamps, ids: pl.Series | None, other_roles: Sequence[str], findings: Findings
) -> Notes:
    """Report rows that repeat a time of their series or are out of order; return a guess at the column of series."""
    repeated, unsorted = _count_unordered(times, ids)
    if repeated and ids is None:
        for name in cells.names:
            column = cells[name]
            if name in other_roles or not _may_name_series(column, repeated):
                continue
            if _count_unordered(times, column) == (0, 0):
                findings.warn("unnamed_series", f"Column '{name}' seems to tell series apart: name it by id_column.")
                return {"id_column": name}
    if repeated > 1 or (repeated and not findings.refusal_contains(" twice, in rows ")):
        series = "its series" if repeated == 1 else "their series"
        findings.problem(
            "time_twice", f"'{cells.path.name}' has {pluralize(repeated, 'row')} with a time that {series} already has."
        )
    if unsorted > 1 or (unsorted and not findings.refusal_contains(" is not sorted by time: ")):
        verb = "row that is" if unsorted == 1 else "rows that are"
        findings.problem(
            "not_sorted", f"'{cells.path.name}' has {unsorted} {verb} earlier than the row of their series before."
        )
    return {}


def _format_invalid(count: int, total: int, noun: str) -> str:
    return f"{count} of {total} cells {f'is no {noun}' if count == 1 else f'are not {noun}s'}"


def _may_name_series(column: pl.Series, repeated: int) -> bool:
    """Return True if a column contains text or integers, each more than once, and enough rows repeat a time.

    Parallel series share most of their times. A channel that merely differs in some repeated rows does not name series.

    Args:
        column: The column.
        repeated: Number of rows that repeat a time.
    """
    numbers = _as_numbers(column)
    has_fractions = column.dtype.is_float() or bool((numbers.drop_nulls() % 1 != 0).any())
    if column.null_count() or column.dtype.is_temporal() or has_fractions:
        return False
    if repeated * _MAX_ROWS_PER_REPEATED_TIME < len(column):
        return False
    return column.n_unique() > 1 and not bool(column.is_unique().any())


def _count_unordered(times: Timestamps, ids: pl.Series | None) -> tuple[int, int]:
    """Count the rows that repeat a time of their series, and those that are earlier than the previous row of it."""
    codes = np.zeros(len(times), np.int64)
    if ids is not None:
        codes = np.unique(ids.cast(pl.String).fill_null("").to_numpy().astype(str), return_inverse=True)[1]
    ticks = times.astype(np.int64)
    rows = np.argsort(codes, kind="stable")
    is_same_series = np.diff(codes[rows]) == 0
    unsorted = int((is_same_series & (np.diff(ticks[rows]) < 0)).sum())
    order = np.lexsort((ticks, codes))
    repeated = int(((np.diff(codes[order]) == 0) & (np.diff(ticks[order]) == 0)).sum())
    return repeated, unsorted


def _warn_about_time_parts(names: Sequence[str], findings: Findings) -> None:
    parts = [name for name in names if name.lower() in _TIME_PARTS]
    if len(parts) > 1:
        findings.warn(
            "time_in_parts",
            f"The time seems to be in several columns ({format_names(parts)}). Join them into one column 'ds', such as "
            "2024-01-31 13:00.",
        )


def _is_value(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return bool(re.fullmatch(r"\d{4}[-/]\d\d?([-/]\d\d?.*)?", name))
    return True
