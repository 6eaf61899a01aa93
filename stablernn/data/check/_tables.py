"""What a table shows that training would refuse: its cells as they stand there, column by column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Int64Array, Resolution, Timestamps, finite_float32
from stablernn.data.check._report import Column, Findings, Kind, Role
from stablernn.data.messages import format_names, format_timestamp, pluralize, quote
from stablernn.data.options import TIME_COLUMN
from stablernn.data.readers.table_chunks import first_row_number, read_chunks, read_column_names
from stablernn.data.readers.tables import MISSING_CELLS, strip_cells
from stablernn.data.readers.timestamps import date_format_advice, normalize_times, parse_dates
from stablernn.data.time.numeric_timestamps import UNIX_NS, ambiguous_numbers_error, find_resemblance, unix_instants
from stablernn.data.types import Notes

_PARTS_OF_TIME = ("year", "month", "day", "hour", "minute", "second")
#: With fewer columns than this, rows are no series.
_WIDE = 20
#: A file that is refused is looked at up to here; mistakes behind it come to light when those before are gone.
_MOST_ROWS = 2_000_000
# Of so many rows at least one repeats a time where a table has several series.
_LEAST_SHARED = 4


@dataclass(frozen=True, eq=False)
class CellLook:
    """What the cells of a table say.

    Attributes:
        columns: All of them.
        readable: Those of numbers that training could take, in the order of the file.
        guessed: Settings by which the file could be read where those given do not do.
    """

    columns: tuple[Column, ...]
    readable: tuple[str, ...]
    guessed: Notes

    @property
    def has_times(self) -> bool:
        """Whether there is a column of times without a mistake in it."""
        return any(column.role == "time" and not column.unreadable for column in self.columns)


@dataclass(frozen=True, eq=False)
class _Cells:
    """The cells of a table, null where there is no value, and the number of each row in the file."""

    path: Path
    frame: pl.DataFrame
    rows: Int64Array

    def __getitem__(self, name: str) -> pl.Series:
        return self.frame[name]

    @property
    def names(self) -> list[str]:
        return self.frame.columns

    def where(self, name: str, wrong: pl.Series) -> str:
        """The first cell that is wrong and its row, for people."""
        index = int(np.argmax(wrong.to_numpy()))
        return f"the first is {quote(str(self[name][index] or ''))} in row {self.rows[index]}"


def look_at_cells(
    path: Path,
    findings: Findings,
    *,
    id_column: str,
    time_column: str,
    stamps: str | None,
    label_column: str | None,
    channels: Sequence[str] | None,
    static: Sequence[str],
    targets: Sequence[str] = (),
) -> CellLook | None:
    """Looks at a table that was refused and lists every column that is not what its role needs.

    Returns:
        None where not even the cells can be told apart; the reader's sentence for that is among the findings.
    """
    try:
        cells = _read(path, id_column)
    except errors.StableRNNError as error:
        findings.problem("unreadable", str(error))
        return None
    shape = _series_in_rows(cells, time_column)
    if shape is not None:
        findings.warn(*shape)
        return CellLook(tuple(_value(cells[name]) for name in cells.names), (), {})
    warn_of_names(cells.names, findings)
    time_name, guessed = _time_name(cells, time_column)
    times: Timestamps | None = None
    if time_name is not None:
        times, guess = _times(cells, time_name, stamps, findings)
        guessed |= guess
    if times is not None:
        ids = cells[id_column] if id_column in cells.names else None
        guessed |= _check_order(cells, times, ids, (time_name or "", *targets), findings)
    roles: dict[str | None, Role] = {
        label_column: "label",
        guessed.get("id_column", id_column): "id",
        time_name: "time",
    }
    columns, readable = [], []
    for name in cells.names:
        role: Role = "channel" if channels is None or name in channels else "ignored"
        role = "static" if name in static else roles.get(name, role)
        column = _column(cells, name, role, findings)
        if role == "time":
            column = _with_times(column, cells, name, times)
        columns.append(column)
        if role == "channel" and not column.unreadable and column.kind in ("numbers", "empty"):
            readable.append(name)
    if time_name is None or guessed.get("time_column"):
        _warn_of_parts(cells.names, findings)
    unreadable = [column.name for column in columns if column.role == "channel" and column.name not in readable]
    if unreadable and readable and channels is None:
        guessed["channels"] = readable
    return CellLook(tuple(columns), tuple(readable), guessed)


def warn_of_names(names: Sequence[str], findings: Findings) -> None:
    """A first row that holds values where names should be."""
    if all(_is_value(name) for name in names if name) and any(names):
        findings.warn(
            "no_header",
            f"The first row holds no names but values ({format_names(names)}). Put a row with the names of the columns "
            "before it.",
        )


def _read(path: Path, id_column: str) -> _Cells:
    """The rows in which anything stands."""
    parts, seen = [], 0
    for frame in read_chunks(path, read_column_names(path)):
        parts.append(frame)
        seen += len(frame)
        if seen >= _MOST_ROWS:
            break
    frame = pl.concat(parts)
    cleaned = frame.with_columns(
        strip_cells(frame[name], () if name == id_column else MISSING_CELLS) for name in frame.columns
    )
    filled = ~cleaned.select(pl.all_horizontal(pl.all().is_null())).to_series()
    rows = np.flatnonzero(filled.to_numpy()).astype(np.int64) + first_row_number(path)
    if not len(rows):
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")
    return _Cells(path, cleaned.filter(filled), rows)


def _series_in_rows(cells: _Cells, time_column: str) -> tuple[str, str] | None:
    """Code and sentence for a table with a series in each row; None for one that may be ours."""
    names = cells.names
    if time_column not in names and _holds_series_in_rows(cells):
        return (
            "series_in_rows",
            f"Each row seems to be a series of up to {pluralize(len(names) - 1, 'value')} behind its name. Tables are "
            "read with a row for each series and time: unique_id, ds, y.",
        )
    return None


def _time_name(cells: _Cells, time_column: str) -> tuple[str | None, Notes]:
    """The column of times as the reader finds it, else the first that could be one, and the setting that names it."""
    if time_column in cells.names:
        return time_column, {}
    first = cells.names[0]
    if time_column == TIME_COLUMN and parse_dates(normalize_times(cells[first])).count():
        return first, {}
    for name in cells.names:
        if _counts(cells[name]) or (
            not _are_numbers(cells[name]) and not parse_dates(normalize_times(cells[name])).null_count()
        ):
            return name, {"time_column": name}
    return None, {}


def _holds_series_in_rows(cells: _Cells) -> bool:
    """Whether a name stands first in each row and many numbers behind it."""
    first, *others = cells.names
    words = cells[first].drop_nulls()
    # With times in the first column it is a wide table: a row for each time, a column for each channel.
    if parse_dates(normalize_times(words)).count() or any(date_format_advice(str(word)) for word in words.head(1)):
        return False
    return len(others) >= _WIDE and not _are_numbers(cells[first]) and all(_are_numbers(cells[name]) for name in others)


def _value(cells: pl.Series) -> Column:
    kind: Kind = "numbers" if _are_numbers(cells) else "words"
    return Column(str(cells.name), "ignored", kind, cells.null_count() / max(len(cells), 1))


def _as_numbers(column: pl.Series) -> pl.Series:
    if column.dtype.is_temporal():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return column.cast(pl.Float64, strict=False)


def _are_numbers(column: pl.Series) -> bool:
    return _as_numbers(column).null_count() == column.null_count()


def _counts(column: pl.Series) -> bool:
    """Whether a column holds whole numbers that rise by the same step from row to row."""
    if column.dtype.is_temporal() or column.dtype.is_float():
        return False
    whole = column.cast(pl.Int64, strict=False)
    if whole.null_count() or len(whole) < 3:
        return False
    steps = np.diff(whole.to_numpy())
    return bool(steps[0] > 0 and (steps == steps[0]).all())


def _times(cells: _Cells, name: str, stamps: str | None, findings: Findings) -> tuple[Timestamps | None, Notes]:
    """The column of times, None where a cell is none, and the guess at what its whole numbers are."""
    text = normalize_times(cells[name])
    whole = text.cast(pl.Int64, strict=False) if text.dtype == pl.String else None
    guess: Notes = {}
    if whole is not None and not whole.null_count() and stamps != "yyyymmdd":
        numbers = whole.to_numpy().astype(np.int64)
        reading = find_resemblance(numbers) if stamps is None else None
        if reading is not None:
            error = ambiguous_numbers_error(cells.path.name, name, int(numbers[0]), reading)
            findings.problem("ambiguous_times", str(error))
            guess = {} if reading.stamps is None else {"stamps": reading.stamps}
            stamps = reading.stamps or "step"
        if stamps in UNIX_NS:
            instants, fits = unix_instants(numbers, stamps)
            return (instants.view("datetime64[ns]") if fits.all() else None), guess
        if stamps == "step":
            return numbers, guess
    found = parse_dates(text)
    if not found.null_count():
        return found.to_numpy().astype("datetime64[ns]"), guess
    if whole is not None and not whole.null_count() and stamps is None:
        return whole.to_numpy().astype(np.int64), guess
    if found.null_count() > 1 or not findings.refused(f"column '{name}'"):
        findings.problem(
            "not_a_time",
            f"'{cells.path.name}' column '{name}': {_of_cells(found.null_count(), len(found), 'time')}; "
            f"{cells.where(name, found.is_null())}.",
        )
    return None, guess


def _with_times(column: Column, cells: _Cells, name: str, times: Timestamps | None) -> Column:
    if times is None:
        return replace(column, kind="mixed", unreadable=parse_dates(normalize_times(cells[name])).null_count())
    kind: Kind = "dates" if times.dtype.kind == "M" else "numbers"
    return replace(column, kind=kind, low=format_timestamp(times.min()), high=format_timestamp(times.max()))


def _column(cells: _Cells, name: str, role: Role, findings: Findings) -> Column:
    column = cells[name]
    numbers = _as_numbers(column)
    filled, found = column.count(), numbers.count()
    kind = _kind(column, numbers)
    unreadable = 0
    if role in ("channel", "static"):
        unreadable = filled - found
        _check_numbers(cells, name, kind, numbers, findings)
    low = high = None
    if kind == "numbers":
        low, high = (float(str(value)) for value in (numbers.min(), numbers.max()))
    return Column(name, role, kind, 1 - filled / max(len(column), 1), low, high, unreadable)


def _kind(column: pl.Series, numbers: pl.Series) -> Kind:
    filled, found = column.count(), numbers.count()
    if not filled:
        return "empty"
    if found == filled:
        return "numbers"
    dated = parse_dates(normalize_times(column)).count()
    if dated == filled:
        return "dates"
    return "mixed" if found or dated else "words"


def kinds_at_the_start(path: Path, names: Sequence[str]) -> dict[str, Kind]:
    """What columns hold, by the first piece of the file."""
    frame = next(iter(read_chunks(path, names)))
    columns = {name: strip_cells(frame[name], MISSING_CELLS) for name in names}
    return {name: _kind(column, _as_numbers(column)) for name, column in columns.items()}


def _check_numbers(cells: _Cells, name: str, kind: Kind, numbers: pl.Series, findings: Findings) -> None:
    """Every reason for which a column cannot be a channel."""
    column, where = cells[name], f"'{cells.path.name}' column '{name}'"
    wrong = numbers.is_null() & column.is_not_null()
    if kind in ("words", "dates"):
        examples = [quote(str(word)) for word in column.drop_nulls().unique(maintain_order=True)[:3]]
        findings.problem(
            kind,
            f"{where} holds {kind} ({format_names(examples)}) and no numbers. Name the columns to read by 'channels', "
            "or "
            "write it as numbers.",
        )
        return
    if wrong.sum() > 1 or (wrong.any() and not findings.refused(f"column '{name}'")):
        findings.problem(
            "not_a_number",
            f"{where}: {_of_cells(int(wrong.sum()), column.count(), 'number')}; {cells.where(name, wrong)}.",
        )
    try:
        values = numbers.fill_null(float("nan")).to_numpy()
        finite_float32(values, lambda i: f"'{cells.path.name}' row {cells.rows[i[0]]}, column '{name}'")
        seen = Resolution()
        seen.add(values)
        seen.check(where)
    except errors.DataError as error:
        findings.problem("not_a_number", str(error))


def _check_order(
    cells: _Cells, stamps: Timestamps, ids: pl.Series | None, taken: Sequence[str], findings: Findings
) -> Notes:
    """Count the rows that repeat a time of their series or go back in time; guess which column tells series apart."""
    twice, back = _order(stamps, ids)
    if twice and ids is None:
        for name in cells.names:
            column = cells[name]
            if name in taken or not _may_name_series(column, twice):
                continue
            if _order(stamps, column) == (0, 0):
                findings.warn("unnamed_series", f"Column '{name}' seems to tell series apart: name it by id_column.")
                return {"id_column": name}
    if twice > 1 or (twice and not findings.refused(" twice, in rows ")):
        whose = "its series" if twice == 1 else "their series"
        findings.problem(
            "time_twice", f"'{cells.path.name}' has {pluralize(twice, 'row')} with a time that {whose} already has."
        )
    if back > 1 or (back and not findings.refused(" is not sorted by time: ")):
        verb = "row that is" if back == 1 else "rows that are"
        findings.problem(
            "not_sorted", f"'{cells.path.name}' has {back} {verb} earlier than the row of their series before."
        )
    return {}


def _of_cells(count: int, total: int, noun: str) -> str:
    return f"{count} of {total} cells {f'is no {noun}' if count == 1 else f'are not {noun}s'}"


def _may_name_series(column: pl.Series, twice: int) -> bool:
    """Whether a column holds words or whole numbers, each more than once, and few enough for so many times ``twice``.

    Series that run side by side share most of their times; a channel that differs where a row stands twice does not
    make them.
    """
    numbers = _as_numbers(column)
    fractions = column.dtype.is_float() or bool((numbers.drop_nulls() % 1 != 0).any())
    if column.null_count() or column.dtype.is_temporal() or fractions or twice * _LEAST_SHARED < len(column):
        return False
    return column.n_unique() > 1 and not bool(column.is_unique().any())


def _order(stamps: Timestamps, ids: pl.Series | None) -> tuple[int, int]:
    """Rows that repeat a time of their series, and rows that are earlier than the one of their series before."""
    codes = np.zeros(len(stamps), np.int64)
    if ids is not None:
        codes = np.unique(ids.cast(pl.String).fill_null("").to_numpy().astype(str), return_inverse=True)[1]
    times = stamps.astype(np.int64)
    rows = np.argsort(codes, kind="stable")
    same = np.diff(codes[rows]) == 0
    back = int((same & (np.diff(times[rows]) < 0)).sum())
    order = np.lexsort((times, codes))
    twice = int(((np.diff(codes[order]) == 0) & (np.diff(times[order]) == 0)).sum())
    return twice, back


def _warn_of_parts(names: Sequence[str], findings: Findings) -> None:
    parts = [name for name in names if name.lower() in _PARTS_OF_TIME]
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
