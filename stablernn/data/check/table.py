"""Inspection of a table that training rejects: the cells of each column, their types, and the order of the rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Int64Array, Resolution, Timestamps, finite_float32
from stablernn.data.check.report import Column, Findings, Kind, Role
from stablernn.data.messages import format_names, format_timestamp, pluralize, quote
from stablernn.data.options import TARGET_COLUMN, TIME_COLUMN, LoadOptions, Repairs
from stablernn.data.table.cells import MISSING_CELLS, restore_integers, strip_cells
from stablernn.data.table.chunks import first_row_number, read_chunks, read_column_names
from stablernn.data.table.repairs import MissingCodes
from stablernn.data.table.series import is_index
from stablernn.data.table.timestamps import (
    COMPUTED_STAMPS,
    ambiguous_numbers_error,
    find_resemblance,
    fitting_date_formats,
    may_be_serials,
    normalize_times,
    parse_dates,
    read_numbers,
    suggest_date_format,
)
from stablernn.data.types import Notes

_MAX_CATEGORIES = 20
"""A column of text has categories if it has at most so many different ones, and each comes twice on average."""
_MAX_MISSING_TEXTS = 5
"""A column of numbers has texts for missing values if it has at most so many different ones, and no word only once."""
_MISSING_WORDS = frozenset(
    ("unavailable", "unknown", "missing", "nodata", "no data", "n.a.", "n/a", "nil", "none", "null")
)
"""Words that stand for a missing value even if they come once."""

# A column may name the series only if at least one of so many rows repeats a time.
_MAX_ROWS_PER_REPEATED_TIME = 4
# Share of rows that may repeat a time within the series that a column names.
_MAX_SHARE_OF_REPEATS = 0.02
_TIME_PARTS = ("year", "month", "day", "hour", "minute", "second")
#: A table may have a series in each row if it has at least this many columns after the first.
_MIN_COLUMNS_OF_SERIES_IN_ROWS = 20
#: Only so many rows of a rejected file are inspected; errors behind them appear once the earlier ones are fixed.
_MAX_ROWS = 2_000_000


def as_numbers(column: pl.Series) -> pl.Series:
    """Return the cells as float64, null where a cell is no number; times are none."""
    if column.dtype.is_temporal():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return column.cast(pl.Float64, strict=False)


def are_numbers(column: pl.Series) -> bool:
    """Return True if every cell is a number or missing."""
    return as_numbers(column).null_count() == column.null_count()


def is_row_counter(column: pl.Series) -> bool:
    """Return True if a column contains integers that rise by the same step from row to row."""
    if column.dtype.is_temporal() or column.dtype.is_float():
        return False
    integers = column.cast(pl.Int64, strict=False)
    if integers.null_count() or len(integers) < 3:
        return False
    steps = np.diff(integers.to_numpy())
    return bool(steps[0] > 0 and (steps == steps[0]).all())


def column_kind(column: pl.Series, numbers: pl.Series) -> Kind:
    """Return the type that all cells have, or "mixed".

    Args:
        column: The cells, null if missing.
        numbers: Those that are numbers, as of :func:`as_numbers`.
    """
    num_filled, num_numbers = column.count(), numbers.count()
    if not num_filled:
        return "empty"
    if num_numbers == num_filled:
        return "numbers"
    num_dates = parse_dates(normalize_times(column)).count()
    if num_dates == num_filled:
        return "dates"
    return "mixed" if num_numbers or num_dates else "words"


def has_categories(column: pl.Series) -> bool:
    """Return True if a column of words has few different ones."""
    words = column.drop_nulls()
    if column.dtype != pl.String or as_numbers(words).count() or parse_dates(normalize_times(words)).count():
        return False
    return 2 <= words.n_unique() <= min(_MAX_CATEGORIES, len(words) // 2)


def missing_texts(column: pl.Series) -> list[str]:
    """Return the texts in a column of numbers, if all of them may stand for missing values."""
    invalid = column.filter(as_numbers(column).is_null() & column.is_not_null())
    if invalid.dtype != pl.String or 2 * len(invalid) > column.count():
        return []
    counts = invalid.value_counts()
    is_code = [
        count > 1 or text.lower() in _MISSING_WORDS or not any(map(str.isalnum, text))
        for text, count in counts.iter_rows()
    ]
    # Numbers with other marks than those of the file are none, nor are 5%, <5 and (5), which is -5 to accountants.
    is_code.append(not invalid.str.contains(r"^[^\w\s]*\d[\d.,'\s]*[^\w\s#]*$").any())
    return sorted(invalid.unique()) if all(is_code) and len(counts) <= _MAX_MISSING_TEXTS else []


def is_constant(ids: pl.Series, column: pl.Series) -> bool:
    """Return True if a column has one value for each of several series, and values for all of them."""
    pairs = pl.DataFrame({"id": ids, "value": column})
    counts = pairs.group_by("id").agg(pl.col("value").n_unique(), has_missing=pl.col("value").is_null().any())
    return len(counts) > 1 and bool((counts["value"] == 1).all()) and not bool(counts["has_missing"].any())


def check_row_order(
    file: str,
    cells: pl.DataFrame,
    times: Timestamps,
    ids: pl.Series | None,
    repairs: Repairs,
    other_roles: Sequence[str],
    findings: Findings,
) -> Notes:
    """Report rows that repeat a time of their series or are out of order; return a guess at the column of series.

    Args:
        file: Name of the file.
        cells: All columns.
        times: Time of each row.
        ids: Name of the series of each row; None where the file does not name them.
        repairs: Repairs that are asked for already, whose faults are none.
        other_roles: Columns that do not name series.
        findings: Gets problems and warnings.
    """
    repeated, unsorted = count_unordered(times, ids)
    if ids is None:
        name = _find_series_column(cells, times, repeated, other_roles) if repeated else None
        if unsorted and name is None:
            name = _find_ordering_column(cells, times, other_roles)
        if name is not None:
            findings.warn("unnamed_series", f"Column '{name}' seems to tell series apart: name it by id_column.")
            return {"id_column": name}
    if repairs.on_duplicate != "error" or repairs.timezone is not None:
        repeated = 0
    if repairs.sort or repairs.timezone is not None:
        unsorted = 0
    if repeated > 1 or (repeated and not findings.refusal_contains(" twice, in rows ")):
        series = "its series" if repeated == 1 else "their series"
        findings.problem(
            "time_twice", f"'{file}' has {pluralize(repeated, 'row')} with a time that {series} already has."
        )
    if unsorted > 1 or (unsorted and not findings.refusal_contains(" is not sorted by time: ")):
        verb = "row that is" if unsorted == 1 else "rows that are"
        findings.problem("not_sorted", f"'{file}' has {unsorted} {verb} earlier than the row of their series before.")
    return {}


def _find_series_column(
    cells: pl.DataFrame, times: Timestamps, repeated: int, other_roles: Sequence[str]
) -> str | None:
    """Return the column within whose values the fewest rows repeat a time, if those are few; None without one."""
    remaining = {
        name: count_unordered(times, cells[name])[0]
        for name in cells.columns
        if name not in other_roles and _may_name_series(cells[name], repeated)
    }
    name = min(remaining, key=lambda each: remaining[each], default=None)
    # Some rows may be there twice, or in an hour that comes twice.
    return name if name is not None and remaining[name] <= _MAX_SHARE_OF_REPEATS * len(cells) else None


def _find_ordering_column(cells: pl.DataFrame, times: Timestamps, other_roles: Sequence[str]) -> str | None:
    """Return a column of text within whose values all rows are in order, as in one series after the other."""
    for name in cells.columns:
        column = cells[name]
        if name in other_roles or column.dtype != pl.String or column.null_count() or column.is_unique().any():
            continue
        if not column.cast(pl.Float64, strict=False).count() and count_unordered(times, column) == (0, 0):
            return name
    return None


def _may_name_series(column: pl.Series, repeated: int) -> bool:
    """Return True if a column contains text or integers, each more than once, and enough rows repeat a time.

    Parallel series share most of their times. A channel that merely differs in some repeated rows does not name series.

    Args:
        column: The column.
        repeated: Number of rows that repeat a time.
    """
    if column.null_count() or column.dtype.is_temporal() or column.dtype.is_float():
        return False
    if bool((column.cast(pl.Float64, strict=False).drop_nulls() % 1 != 0).any()):
        return False
    if repeated * _MAX_ROWS_PER_REPEATED_TIME < len(column):
        return False
    return column.n_unique() > 1 and not bool(column.is_unique().any())


def count_unordered(times: Timestamps, ids: pl.Series | None) -> tuple[int, int]:
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


def inspect_cells(path: Path, options: LoadOptions, task: str, findings: Findings) -> TableInspection | None:
    """Inspect a table that was rejected and report every column whose cells do not fit its role.

    Args:
        path: The table, which need not be the source of the options.
        options: The options that name columns and repairs.
        task: The task that the table is read for.
        findings: Gets problems and warnings.

    Returns:
        None if the file cannot be split into cells; the error of the reader is among the findings then.
    """
    repairs, id_column = options.repairs, options.id_column
    try:
        cells = _read(path, id_column, repairs)
    except errors.StableRNNError as error:
        findings.problem("unreadable", str(error))
        return None
    if options.time_column not in cells.names and _has_series_in_rows(cells):
        findings.warn(
            "series_in_rows",
            f"Each row seems to be a series of up to {pluralize(len(cells.names) - 1, 'value')} behind its name. "
            "Tables are read with a row for each series and time: unique_id, ds, y.",
        )
        columns = tuple(
            Column(
                name,
                "ignored",
                "numbers" if are_numbers(cells[name]) else "words",
                cells[name].null_count() / max(len(cells.rows), 1),
            )
            for name in cells.names
        )
        return TableInspection(columns, (), {})
    warn_about_header(cells.names, findings)
    time_name, guessed_settings = _find_time_column(cells, options.time_column, repairs.date_format)
    times: Timestamps | None = None
    if time_name is not None:
        times, guess = _parse_times(cells, time_name, options.stamps, repairs.date_format, findings)
        guessed_settings |= guess
        if times is not None:
            ids = cells[id_column] if id_column in cells.names else None
            ordered = (time_name, *(options.target or (TARGET_COLUMN,)))
            guessed_settings |= check_row_order(path.name, cells.frame, times, ids, repairs, ordered, findings)
    id_name = guessed_settings.get("id_column", id_column)
    other_roles: dict[str | None, Role] = {
        options.label_column if task == "classify" else None: "label",
        options.group_column: "group",
        id_name: "id",
        time_name: "time",
    }
    roles = _assign_roles(cells.names, other_roles, options)
    columns = tuple(_inspect_column(cells, name, role, times, repairs, findings) for name, role in roles.items())
    if time_name is None or guessed_settings.get("time_column"):
        _warn_about_time_parts(cells.names, findings)
    channel_columns = [column for column in columns if column.role == "channel"]
    readable = [
        column.name for column in channel_columns if not column.unreadable and column.kind in ("numbers", "empty")
    ]
    unreadable = [column.name for column in channel_columns if column.name not in readable]
    informative = [column.name for column in channel_columns if column.name in readable and column.varies]
    guessed_settings |= _guess_channels(cells, unreadable, informative or readable, options.channels)
    if id_name in cells.names:
        categories = guessed_settings.get("categories", ())
        constant = [name for name in categories if is_constant(cells[id_name], cells[name])]
        if constant:
            guessed_settings["static"] = [*options.static, *constant]
        if "channels" in guessed_settings:
            others = guessed_settings.get("static", ())
            guessed_settings["channels"] = [name for name in guessed_settings["channels"] if name not in others]
    return TableInspection(columns, tuple(readable), guessed_settings)


def _assign_roles(
    names: Sequence[str], other_roles: Mapping[str | None, Role], options: LoadOptions
) -> dict[str, Role]:
    """Return the role of each column, in the order of the file.

    Args:
        names: Names of all columns.
        other_roles: Roles of the columns of labels, groups, names and times.
        options: The options that name channels and static columns.
    """
    roles: dict[str, Role] = {}
    for name in names:
        is_channel = not is_index(name) if options.channels is None else name in options.channels
        default: Role = "channel" if is_channel else "ignored"
        roles[name] = "static" if name in options.static else other_roles.get(name, default)
    return roles


def _guess_channels(
    cells: _TableCells, unreadable: Sequence[str], readable: Sequence[str], channels: Sequence[str] | None
) -> Notes:
    """Return settings with which columns that hold no numbers are categories or left out, or their words missing."""
    categories = [name for name in unreadable if has_categories(cells[name])]
    texts = {name: missing_texts(cells[name]) for name in unreadable if name not in categories}
    mended = [name for name in texts if texts[name]]
    left_out = [name for name in unreadable if name not in (*categories, *mended)]
    guess: Notes = {"categories": categories} if categories else {}
    if mended:
        guess["missing"] = sorted({text for name in mended for text in texts[name]})
    names = (*readable, *categories, *mended)
    if left_out and channels is None and names:
        guess["channels"] = [name for name in cells.names if name in names]
    return guess


def warn_about_header(names: Sequence[str], findings: Findings) -> None:
    """Warn about a first row that contains values instead of names."""
    if all(_is_value(name) for name in names if name) and any(names):
        findings.warn(
            "no_header",
            f"The first row holds no names but values ({format_names(names)}). Put a row with the names of the columns "
            "before it.",
        )


def _read(path: Path, id_column: str, repairs: Repairs) -> _TableCells:
    """Read the rows that are not blank, of the first two million."""
    chunks, num_rows = [], 0
    names = read_column_names(path, repairs)
    for chunk in read_chunks(path, names, repairs=repairs, verbatim=(id_column, *repairs.categories), is_lenient=True):
        chunks.append(chunk)
        num_rows += len(chunk)
        if num_rows >= _MAX_ROWS:
            break
    frame = pl.concat(chunks)
    missing = [code for code in repairs.missing if isinstance(code, str)]
    cleaned = frame.with_columns(
        strip_cells(frame[name], () if name == id_column else (*MISSING_CELLS, *missing)) for name in frame.columns
    )
    has_values = ~cleaned.select(pl.all_horizontal(pl.all().is_null())).to_series()
    rows = np.flatnonzero(has_values.to_numpy()).astype(np.int64) + first_row_number(path)
    if not len(rows):
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")
    return _TableCells(path, cleaned.filter(has_values), rows)


def _find_time_column(cells: _TableCells, time_column: str, form: str | None) -> tuple[str | None, Notes]:
    """Return the column of times that the reader would use, else the first candidate and the setting that names it."""
    if time_column in cells.names:
        return time_column, {}
    first = cells.names[0]
    if time_column == TIME_COLUMN and (
        parse_dates(normalize_times(cells[first]), form).count() or fitting_date_formats(cells[first])
    ):
        return first, {}
    for name in cells.names:
        # Neither row numbers of a data frame nor the same time in every row, such as the beginning of an export.
        if is_index(name) or cells[name].n_unique() == 1 < len(cells.rows):
            continue
        is_date = not are_numbers(cells[name]) and (
            not parse_dates(normalize_times(cells[name]), form).null_count() or fitting_date_formats(cells[name])
        )
        if is_date or is_row_counter(cells[name]):
            return name, {"time_column": name}
    return None, {}


def _has_series_in_rows(cells: _TableCells) -> bool:
    """Return True if each row consists of a name and many numbers after it."""
    first, *others = cells.names
    names = cells[first].drop_nulls()
    # With times in the first column it is a wide table: a row for each time, a column for each channel.
    if parse_dates(normalize_times(names)).count() or fitting_date_formats(names.head(1)):
        return False
    return (
        len(others) >= _MIN_COLUMNS_OF_SERIES_IN_ROWS
        and not are_numbers(cells[first])
        and all(are_numbers(cells[name]) for name in others)
    )


def _parse_times(
    cells: _TableCells, name: str, stamps: str | None, form: str | None, findings: Findings
) -> tuple[Timestamps | None, Notes]:
    """Return the times of a column, None if a cell is not a time, and the guessed format of integers or dates in it."""
    text = normalize_times(cells[name])
    integers = text.cast(pl.Int64, strict=False) if text.dtype == pl.String else None
    guess: Notes = {}
    if integers is not None and not integers.null_count() and stamps != "yyyymmdd":
        numbers = integers.to_numpy().astype(np.int64)
        resemblance = find_resemblance(numbers, name) if stamps is None else None
        if resemblance is not None:
            error = ambiguous_numbers_error(cells.path.name, name, int(numbers[0]), resemblance)
            findings.problem("ambiguous_times", str(error))
            guess = {} if resemblance.stamps is None else {"stamps": resemblance.stamps}
            stamps = resemblance.stamps or "step"
        if stamps in COMPUTED_STAMPS:
            instants, is_in_range = read_numbers(numbers, stamps)
            return (instants.view("datetime64[ns]") if is_in_range.all() else None), guess
        if stamps == "step":
            return numbers, guess
    decimals = text.cast(pl.Float64, strict=False) if integers is not None and integers.null_count() else None
    if decimals is not None and not decimals.null_count() and stamps in (None, "excel"):
        serials = decimals.to_numpy()
        guess = {"stamps": "excel"} if may_be_serials(serials) else {}
        if guess:
            return read_numbers(serials, "excel")[0].view("datetime64[ns]"), guess
    dates = parse_dates(text, form)
    forms = fitting_date_formats(text) if form is None and dates.null_count() else []
    proved_form = suggest_date_format(text, forms)
    if proved_form is not None:
        guess["date_format"] = proved_form
        dates = parse_dates(text, proved_form)
    if not dates.null_count():
        return dates.to_numpy().astype("datetime64[ns]"), guess
    if forms:
        findings.problem(
            "ambiguous_times",
            f"'{cells.path.name}' column '{name}' holds dates that several formats read ({format_names(forms)}). "
            "Set data.date_format to the right one.",
        )
        return None, guess
    if integers is not None and not integers.null_count() and stamps is None:
        return integers.to_numpy().astype(np.int64), guess
    if dates.null_count() > 1 or not findings.refusal_contains(f"column '{name}'"):
        findings.problem(
            "not_a_time",
            f"'{cells.path.name}' column '{name}': {_format_invalid(dates.null_count(), len(dates), 'time')}; "
            f"{cells.first_invalid(name, dates.is_null())}.",
        )
    return None, guess


def _inspect_column(
    cells: _TableCells, name: str, role: Role, times: Timestamps | None, repairs: Repairs, findings: Findings
) -> Column:
    """Return a column's facts, and report why it cannot have its role.

    Args:
        cells: The table.
        name: Name of the column.
        role: Its role.
        times: The parsed column of times; None if it could not be parsed.
        repairs: Repairs that are asked for already.
        findings: Gets problems.
    """
    column = cells[name]
    if name in repairs.categories:
        return Column(name, role, "words", column.null_count() / max(len(column), 1))
    num_filled = column.count()
    numbers = MissingCodes(cells.path.name, repairs.missing).replace(as_numbers(column))
    kind = column_kind(column, numbers)
    unreadable = 0
    if role in ("channel", "static"):
        unreadable = num_filled - as_numbers(column).count()
        _check_numbers(cells, name, kind, numbers, findings)
    low = high = None
    if kind == "numbers":
        low, high = (float(str(value)) for value in (numbers.min(), numbers.max()))
    inspected = Column(name, role, kind, 1 - num_filled / max(len(column), 1), low, high, unreadable)
    if role != "time":
        return inspected
    if times is None:
        return replace(inspected, kind="mixed", unreadable=parse_dates(normalize_times(column)).null_count())
    kind = "dates" if times.dtype.kind == "M" else "numbers"
    return replace(inspected, kind=kind, low=format_timestamp(times.min()), high=format_timestamp(times.max()))


def infer_column_kinds(path: Path, names: Sequence[str], repairs: Repairs) -> dict[str, Kind]:
    """Return the kind of each column, inferred from the first chunk of the file."""
    frame = next(read_chunks(path, names, repairs=repairs, is_lenient=True))
    columns = {name: strip_cells(frame[name], MISSING_CELLS) for name in names}
    return {name: column_kind(column, as_numbers(column)) for name, column in columns.items()}


def _check_numbers(cells: _TableCells, name: str, kind: Kind, numbers: pl.Series, findings: Findings) -> None:
    """Report every reason for which a column cannot be a channel."""
    column, location = cells[name], f"'{cells.path.name}' column '{name}'"
    is_invalid = as_numbers(column).is_null() & column.is_not_null()
    if kind in ("words", "dates"):
        examples = [quote(str(cell)) for cell in column.drop_nulls().unique(maintain_order=True)[:3]]
        findings.problem(
            kind,
            f"{location} holds {kind} ({format_names(examples)}) and no numbers. Name it by data.categories, name the "
            "columns to read by data.channels, or write it as numbers.",
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
        resolution.add(restore_integers(column, numbers).drop_nulls().to_numpy())
        resolution.check(lambda: location)
    except errors.DataError as error:
        findings.problem("not_a_number", str(error))


def _format_invalid(count: int, total: int, noun: str) -> str:
    return f"{count} of {total} cells {f'is no {noun}' if count == 1 else f'are not {noun}s'}"


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
