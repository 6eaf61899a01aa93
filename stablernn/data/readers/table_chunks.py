"""Tables in chunks: CSV and Parquet as frames of some hundred thousand rows, so that no file must fit into memory.

A sheet of a workbook, which has a million rows at most, is one chunk.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from stablernn import errors
from stablernn.data.messages import format_names, pluralize, quote
from stablernn.data.options import Repairs
from stablernn.data.readers.csv_dialect import (
    DELIMITERS,
    Dialect,
    detect_delimiter,
    detect_dialect,
    replace_decimal_commas,
)
from stablernn.data.readers.paths import (
    SIGNATURE_BYTES,
    check_signature,
    detect_format,
    empty_file_error,
    read_text_blocks,
)
from stablernn.data.readers.workbooks import read_sheet, read_sheet_names
from stablernn.data.types import Notes

CHUNK_CELLS = 1 << 21
"""Cells of a chunk: enough to be fast, few enough for a small machine."""
_MIN_CHUNK_ROWS = 1 << 12
# A panic of polars is no Exception; a few flipped bits cause one.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
# The header of a CSV file is row 1 and numbering starts at 1, so this is what editors and spreadsheets show.
_FIRST_ROW = {".csv": 2, ".parquet": 1, ".xlsx": 2}


def first_row_number(path: Path) -> int:
    """Return the number of the first row of data."""
    return _FIRST_ROW[detect_format(path)]


def read_column_names(path: Path, repairs: Repairs | None = None) -> list[str]:
    """Return the names of a table's columns.

    Args:
        path: The table.
        repairs: Used is the sheet of a workbook.

    Raises:
        UnknownNameError: If there is no such file or sheet.
        DataError: If it is not a table.
    """
    file_format = detect_format(path)
    if file_format == ".csv":
        text = next(read_text_blocks(path))
        return _read_header(path, text, detect_delimiter(text))[0]
    if file_format == ".xlsx":
        return _check_names(path, read_sheet_names(path, repairs.sheet if repairs is not None else None))
    return list(_scan_parquet(path).collect_schema())


def read_chunks(
    path: Path,
    columns: Sequence[str],
    notes: Notes | None = None,
    repairs: Repairs | None = None,
    *,
    verbatim: Sequence[str | None] = (),
    cells: int = CHUNK_CELLS,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of a table in their order, with at least these columns; cells of a CSV file are text.

    Args:
        path: The table.
        columns: The columns that are needed.
        notes: Gets, of CSV, ``short_rows``, rows with too few cells, whose missing cells are null; ``encoding``,
            ``delimiter`` and ``decimal_mark`` where they are not UTF-8, commas and points. Complete after the last row.
        repairs: Used are the sheet of a workbook and the mark of decimals.
        verbatim: Columns of CSV in which numbers with decimal commas are not rewritten, such as names of series.
        cells: Cells of a chunk of Parquet.

    Raises:
        DataError: If the file is not a whole table, or has no rows.
    """
    file_format, repairs = detect_format(path), repairs or Repairs()
    if file_format == ".csv":
        return _read_csv_chunks(path, {} if notes is None else notes, repairs.decimal_mark, verbatim)
    return (
        iter([read_sheet(path, repairs.sheet)])
        if file_format == ".xlsx"
        else _read_parquet_chunks(path, columns, cells)
    )


def _read_csv_chunks(
    path: Path, notes: Notes, decimal_mark: str | None, verbatim: Sequence[str | None]
) -> Iterator[pl.DataFrame]:
    names: list[str] = []
    header, dialect = "", Dialect()
    num_rows = 0
    for text in read_text_blocks(path, notes):
        body = text
        if not names:
            dialect = detect_dialect(path, text, decimal_mark)
            if dialect.delimiter != ",":
                notes["delimiter"] = DELIMITERS[dialect.delimiter]
            names, header = _read_header(path, text, dialect.delimiter)
            body = text[len(header) :]
        try:
            # With the header in front every block has all columns, and a row with more cells is refused.
            chunk = pl.read_csv(f"{header}{body}".encode(), infer_schema=False, separator=dialect.delimiter)
            chunk.columns = names
        except pl.exceptions.PolarsError as error:
            raise _bad_row_error(path, names, body, num_rows, dialect, error) from error
        # Rows are counted only if any may be short: then the last column has a null.
        if chunk[names[-1]].null_count():
            short_rows = _count_short_rows(body, len(names), len(chunk), dialect.delimiter)
            if short_rows:
                notes["short_rows"] = notes.get("short_rows", 0) + short_rows
        num_rows += len(chunk)
        yield _with_decimal_points(chunk, notes, verbatim) if dialect.has_decimal_commas else chunk
    if not num_rows:
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")


def _with_decimal_points(chunk: pl.DataFrame, notes: Notes, verbatim: Sequence[str | None]) -> pl.DataFrame:
    for name in chunk.columns:
        if name in verbatim:
            continue
        cells = chunk[name]
        replaced = replace_decimal_commas(cells)
        if replaced is not cells:
            notes["decimal_mark"] = "comma"
            chunk = chunk.with_columns(replaced.alias(name))
    return chunk


def _count_short_rows(body: str, columns: int, rows: int, delimiter: str) -> int:
    """Count the rows that are not blank and have fewer cells than there are columns."""
    if '"' in body:
        try:
            reader = csv.reader(io.StringIO(body), delimiter=delimiter)
            return sum(len(cells) < columns and any(map(str.strip, cells)) for cells in reader)
        except csv.Error:
            # A cell longer than Python's reader takes: delimiters are counted instead, and quoted ones may hide a row.
            pass
    if body.count(delimiter) == rows * (columns - 1):
        return 0
    lines = (line for line in body.split("\n") if line.strip(f" \t{delimiter}"))
    return sum(line.count(delimiter) < columns - 1 for line in lines)


def _read_header(path: Path, text: str, delimiter: str) -> tuple[list[str], str]:
    """Return the names of the columns, and the text of the header."""
    lines = io.StringIO(text)
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        names = [" ".join(name.split()) for name in next(reader)]
    except csv.Error as error:
        reason = str(error).removesuffix(".")
        raise errors.DataError(
            f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again."
        ) from error
    return _check_names(path, names), text[: lines.tell()]


def _check_names(path: Path, names: list[str]) -> list[str]:
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if not any(names):
        raise errors.DataError(f"'{path.name}' begins with a blank row; the first row must name the columns.")
    if duplicate is not None:
        raise errors.DataError(f"'{path.name}' has the column '{duplicate}' twice. Rename one of them.")
    return names


def _bad_row_error(
    path: Path, names: Sequence[str], body: str, num_rows: int, dialect: Dialect, error: Exception
) -> errors.DataError:
    """Return the error for rows that polars refuses, after ``num_rows`` others, with the first row that is wrong."""
    # The error of polars names no row, so they are read again here.
    reader = csv.reader(io.StringIO(body), strict=True, delimiter=dialect.delimiter)
    separators = DELIMITERS[dialect.delimiter]
    decimals = ", and write decimals by points" if dialect.delimiter == "," else ""
    row, line = num_rows + _FIRST_ROW[".csv"], 0
    try:
        for cells in reader:
            if len(cells) > len(names):
                return errors.DataError(
                    f"'{path.name}' row {row} has {pluralize(len(cells), 'cell')}, the header has "
                    f"{pluralize(len(names), 'column')} ({format_names(names)}). Name all columns in the first row, "
                    f"put cells that hold {separators} in quotes{decimals}."
                )
            row, line = row + 1, reader.line_num
    except csv.Error:
        return errors.DataError(
            f"'{path.name}' row {row} has a quote that is not closed, or not at the end of its cell: "
            f"{quote(body.split(chr(10))[line])}. Close it, or remove it."
        )
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again.")


def _scan_parquet(path: Path) -> pl.LazyFrame:
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    if not path.is_file():
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.")
    if not path.stat().st_size:
        raise empty_file_error(path)
    with path.open("rb") as file:
        check_signature(path, file.read(SIGNATURE_BYTES))
    try:
        scan = pl.scan_parquet(path, glob=False)
        scan.collect_schema()
    except _DAMAGE as error:
        raise _parquet_error(path, error) from error
    return scan


def _read_parquet_chunks(path: Path, columns: Sequence[str], cells: int) -> Iterator[pl.DataFrame]:
    scan = _scan_parquet(path)
    try:
        rows = int(scan.select(pl.len()).collect().item())
        if not rows:
            raise errors.DataError(
                f"'{path.name}' has no rows; its columns are {format_names(columns)}. Add a row for each series and "
                "time."
            )
        chunk_rows = max(_MIN_CHUNK_ROWS, cells // len(columns))
        for first in range(0, rows, chunk_rows):
            # Row groups outside of the slice are not read.
            yield scan.select(columns).slice(first, chunk_rows).collect()
    except _DAMAGE as error:
        raise _parquet_error(path, error) from error


def _parquet_error(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is damaged or is not a Parquet file ({reason}). Write it again.")
